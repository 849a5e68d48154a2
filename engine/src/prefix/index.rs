//! Which blocks there are, and which of them goes first. Holds no arrays.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use crate::protocol::TokenId;
use crate::schedule::BLOCK;

/// Stands for a text up to the end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub [u8; 16]);

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The parent of every first block of a model.
pub fn seed(identity: &str) -> Key {
    truncated(Sha256::digest(identity))
}

/// The whole blocks of `tokens`, each with its key.
pub fn chain(seed: Key, tokens: &[TokenId]) -> impl Iterator<Item = (Key, &[TokenId])> {
    tokens.chunks_exact(BLOCK).scan(seed, |parent, block| {
        let mut hash = Sha256::new();
        hash.update(parent.0);
        block.iter().for_each(|id| hash.update(id.to_le_bytes()));
        *parent = truncated(hash.finalize());
        Some((*parent, block))
    })
}

fn truncated(hash: impl AsRef<[u8]>) -> Key {
    Key(hash.as_ref()[..16].try_into().expect("a hash is longer than a key"))
}

struct Entry {
    parent: Option<Key>,
    tokens: Box<[TokenId]>,
    bytes: usize,
    children: usize,
    last_used: u64,
    uses: u32,
    saved: bool,
    /// The clock at insertion.
    inserted: u64,
}

impl Entry {
    /// What was reused outlives what merely came last: each use counts as this many insertions.
    fn worth(&self) -> u64 {
        self.last_used + 64 * u64::from(self.uses.min(16))
    }
}

pub struct Index {
    entries: HashMap<Key, Entry>,
    capacity: usize,
    bytes: usize,
    clock: u64,
    evictions: u64,
}

impl Index {
    pub fn new(capacity: usize) -> Self {
        Self { entries: HashMap::new(), capacity, bytes: 0, clock: 0, evictions: 0 }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    pub fn contains(&self, key: Key) -> bool {
        self.entries.contains_key(&key)
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    pub fn used(&mut self, key: Key) {
        self.clock += 1;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.last_used = self.clock;
            entry.uses += 1;
        }
    }

    /// Adds a block, or changes its size; returns what had to go. The block itself may not have been taken: when it
    /// alone is too large, or its parent is not there.
    pub fn insert(&mut self, key: Key, parent: Option<Key>, tokens: &[TokenId], bytes: usize) -> Vec<Key> {
        self.clock += 1;
        if self.capacity < bytes || parent.is_some_and(|p| !self.contains(p)) {
            return Vec::new();
        }
        let old = self.take(key);
        let mut evicted = Vec::new();
        while self.capacity < self.bytes + bytes {
            let Some(victim) = self.victim(parent) else { return evicted };
            self.take(victim);
            self.evictions += 1;
            evicted.push(victim);
        }
        if let Some(parent) = parent.and_then(|p| self.entries.get_mut(&p)) {
            parent.children += 1;
        }
        self.bytes += bytes;
        let (children, uses) = old.map_or((0, 0), |e| (e.children, e.uses));
        let entry = Entry {
            parent,
            tokens: tokens.into(),
            bytes,
            children,
            last_used: self.clock,
            uses,
            saved: false,
            inserted: self.clock,
        };
        self.entries.insert(key, entry);
        evicted
    }

    /// The least worth of those that nothing builds on, `keep` excepted.
    fn victim(&self, keep: Option<Key>) -> Option<Key> {
        let leaves = self.entries.iter().filter(|(key, e)| e.children == 0 && Some(**key) != keep);
        leaves.min_by_key(|(key, e)| (e.worth(), **key)).map(|(key, _)| *key)
    }

    fn take(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        self.bytes -= entry.bytes;
        if let Some(parent) = entry.parent.and_then(|p| self.entries.get_mut(&p)) {
            parent.children -= 1;
        }
        Some(entry)
    }

    /// The oldest block that is not on disk.
    pub fn first_unsaved(&self) -> Option<Key> {
        let unsaved = self.entries.iter().filter(|(_, e)| !e.saved);
        unsaved.min_by_key(|(_, e)| e.inserted).map(|(key, _)| *key)
    }

    pub fn saved(&mut self, key: Key) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.saved = true;
        }
    }

    /// How many of `tokens` a block after `parent` begins with, at best.
    pub fn longest_common(&self, parent: Option<Key>, tokens: &[TokenId]) -> usize {
        let next = self.entries.values().filter(|e| e.parent == parent);
        let common = |e: &Entry| e.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        next.map(common).max().unwrap_or(0)
    }
}
