//! The other end of a request's stream.

use std::time::Instant;

use crate::protocol::{Event, Finish, FinishReason};

pub(super) struct Client {
    events: flume::Sender<Event>,
    pub(super) prompt_tokens: usize,
    pub(super) cached_tokens: Option<usize>,
    pub(super) generated: usize,
    submitted: Instant,
    first_token: Option<Instant>,
}

impl Client {
    pub(super) fn new(events: flume::Sender<Event>, prompt_tokens: usize) -> Self {
        Self {
            events,
            prompt_tokens,
            cached_tokens: None,
            generated: 0,
            submitted: Instant::now(),
            first_token: None,
        }
    }

    /// Whether nobody listens any more.
    pub(super) fn is_gone(&self) -> bool {
        self.events.is_disconnected()
    }

    pub(super) fn send(&self, event: Event) {
        // A client that is gone is found by `is_gone`; a full stream can't be, it holds all there is to say.
        self.events.try_send(event).ok();
    }

    pub(super) fn drew(&mut self) {
        self.first_token.get_or_insert_with(Instant::now);
        self.generated += 1;
    }

    pub(super) fn finish(&self, reason: FinishReason) -> Finish {
        let first = self.first_token.unwrap_or(self.submitted);
        Finish {
            reason,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens.unwrap_or(0),
            generated_tokens: self.generated,
            prompt_time: first - self.submitted,
            generation_time: first.elapsed(),
        }
    }
}
