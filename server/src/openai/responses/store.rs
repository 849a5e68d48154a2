//! The last responses, in memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

/// Of all that is kept, as JSON.
const MOST_BYTES: usize = 256 << 20;

pub struct Stored {
    /// All items that led to the response, those of earlier responses included.
    pub input: Vec<Value>,
    pub response: Value,
    bytes: usize,
}

/// Written by the tasks of any connection.
#[derive(Default)]
pub struct Store {
    kept: Mutex<VecDeque<Arc<Stored>>>,
}

/// The oldest go first.
const MOST: usize = 256;

impl Store {
    pub fn keep(&self, input: Vec<Value>, response: Value) {
        let bytes =
            response.to_string().len() + input.iter().map(|item| item.to_string().len()).sum::<usize>();
        let mut kept = self.locked();
        kept.push_back(Arc::new(Stored { input, response, bytes }));
        while MOST < kept.len() || (1 < kept.len() && MOST_BYTES < kept.iter().map(|s| s.bytes).sum()) {
            kept.pop_front();
        }
    }

    pub fn find(&self, id: &str) -> Option<Arc<Stored>> {
        self.locked().iter().find(|stored| stored.response["id"] == id).cloned()
    }

    pub fn remove(&self, id: &str) -> bool {
        let mut kept = self.locked();
        let before = kept.len();
        kept.retain(|stored| stored.response["id"] != id);
        kept.len() < before
    }

    fn locked(&self) -> MutexGuard<'_, VecDeque<Arc<Stored>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
