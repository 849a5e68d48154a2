//! Which tokens run in the next step. Pure: no arrays, no clocks, no I/O.
//!
//! Prefill and decode are one thing here: a sequence has tokens, of which the model has processed the
//! first `computed`. A step processes a span of each chosen sequence, and a span that reaches the last
//! known token draws the next one.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::protocol::{FinishReason, SeqId, TokenId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences that hold a cache at once; others wait.
    pub max_running: usize,
    /// Tokens processed in one step, over all rows. Decoding rows always run; prefill takes what is left.
    pub step_tokens: usize,
    /// Prompt tokens of one sequence processed in one step.
    pub prefill_chunk: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_running: 32, step_tokens: 4096, prefill_chunk: 2048 }
    }
}

/// One request's tokens and progress.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    pub id: SeqId,
    /// Prompt followed by everything generated.
    pub tokens: Vec<TokenId>,
    pub prompt_len: usize,
    /// Leading tokens that the model has processed; starts above zero on a prefix-cache hit.
    pub computed: usize,
    /// Length at which the sequence is full: prompt and generated tokens together.
    pub max_len: usize,
    pub stop_ids: Vec<TokenId>,
}

impl Sequence {
    /// Tokens known but not processed: 1 while decoding, more during prefill.
    fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }
}

/// The work of one step, in the order in which rows are packed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    pub spans: Vec<Span>,
}

impl StepPlan {
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub id: SeqId,
    pub range: Range<usize>,
    /// Whether the span ends at the last known token, so that the next one is drawn.
    pub draws: bool,
}

pub struct Scheduler {
    limits: Limits,
    sequences: BTreeMap<SeqId, Sequence>,
    /// Admitted sequences, oldest first; each holds a cache.
    running: Vec<SeqId>,
    waiting: Vec<SeqId>,
}

impl Scheduler {
    /// # Panics
    /// If a limit is zero: nothing could ever run.
    pub fn new(limits: Limits) -> Self {
        let Limits { max_running, step_tokens, prefill_chunk } = limits;
        assert!(0 < max_running && 0 < step_tokens && 0 < prefill_chunk, "a limit of zero: {limits:?}");
        Self { limits, sequences: BTreeMap::new(), running: Vec::new(), waiting: Vec::new() }
    }

    pub fn add(&mut self, sequence: Sequence) {
        assert!(sequence.computed < sequence.tokens.len(), "{:?} has nothing to process", sequence.id);
        self.waiting.push(sequence.id);
        self.sequences.insert(sequence.id, sequence);
    }

    pub fn sequence(&self, id: SeqId) -> &Sequence {
        &self.sequences[&id]
    }

    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Every decoding row advances by one; prefill chunks share the rest of the budget, oldest first.
    pub fn schedule(&mut self) -> StepPlan {
        let room = self.limits.max_running - self.running.len();
        self.running.extend(self.waiting.drain(..room.min(self.waiting.len())));

        let (decoding, prefilling): (Vec<_>, Vec<_>) =
            self.running.iter().map(|id| &self.sequences[id]).partition(|s| s.pending() == 1);
        let mut left = self.limits.step_tokens.saturating_sub(decoding.len());
        let mut spans: Vec<Span> = decoding.iter().map(|s| span(s, 1)).collect();
        for sequence in prefilling {
            let n = sequence.pending().min(self.limits.prefill_chunk).min(left);
            if n == 0 && !spans.is_empty() {
                break;
            }
            // A step that could not fit even one token of prefill would starve it for ever.
            let n = n.max(1);
            spans.push(span(sequence, n));
            left = left.saturating_sub(n);
        }
        StepPlan { spans }
    }

    /// The span was processed without drawing a token.
    pub fn processed(&mut self, span: &Span) {
        let sequence = self.sequences.get_mut(&span.id).expect("only known sequences are planned");
        assert_eq!(sequence.computed, span.range.start, "spans of {:?} ran out of order", span.id);
        sequence.computed = span.range.end;
    }

    /// Appends a drawn token; says whether it ends the sequence, which is then forgotten by [`Self::remove`].
    pub fn drew(&mut self, id: SeqId, token: TokenId) -> Option<FinishReason> {
        let sequence = self.sequences.get_mut(&id).expect("only known sequences draw");
        sequence.tokens.push(token);
        if sequence.stop_ids.contains(&token) {
            Some(FinishReason::Stop)
        } else if sequence.max_len <= sequence.tokens.len() {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    /// Forgets a sequence, finished or not.
    pub fn remove(&mut self, id: SeqId) -> Option<Sequence> {
        self.running.retain(|it| *it != id);
        self.waiting.retain(|it| *it != id);
        self.sequences.remove(&id)
    }
}

fn span(s: &Sequence, n: usize) -> Span {
    let range = s.computed..s.computed + n;
    Span { id: s.id, draws: range.end == s.tokens.len(), range }
}

#[cfg(test)]
mod tests;
