//! Which tokens run in the next step. Pure: no arrays, no clocks, no I/O.
//!
//! Prefill and decode are one thing here: a sequence has tokens, of which the model has processed the
//! first `computed`. A step processes a span of each chosen sequence, and a span that reaches the last
//! known token draws the next one.
//!
//! Memory is counted before it is used. A request that could never fit is refused; one that fits later waits;
//! when running sequences outgrow the budget, the last in rank gives its place up and comes back to the queue.

mod memory;

use std::collections::BTreeMap;
use std::ops::Range;

use crate::protocol::{FinishReason, Priority, SeqId, TokenId};

pub use memory::{CacheCost, LayerCost};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences that hold a cache at once; others wait.
    pub max_running: usize,
    /// Sequences that wait; more are refused.
    pub max_waiting: usize,
    /// Tokens processed in one step, over all rows. Decoding rows always run; prefill takes what is left.
    pub step_tokens: usize,
    /// Prompt tokens processed in one step while other rows decode: what bounds the gap between two of their tokens.
    pub mixed_prefill: usize,
    /// Bytes that the caches of running sequences may take together.
    pub memory: usize,
    /// Steps after which a waiting request counts as one class higher.
    pub ageing: u64,
    /// Whether prefill also stops at the last block border of a prompt, for caches that can be resumed only
    /// where they were.
    pub checkpoints: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_running: 32,
            max_waiting: 1024,
            step_tokens: 2048,
            mixed_prefill: 256,
            memory: usize::MAX,
            ageing: 512,
            checkpoints: false,
        }
    }
}

/// Tokens of a block of the prefix cache: where a prefill may be resumed.
pub use crate::lm::cache::BLOCK;

/// Prompts this short never queue behind a longer one's chunks.
const SHORT: usize = 128;

/// One request's tokens and progress.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    pub id: SeqId,
    pub priority: Priority,
    /// Prompt followed by everything generated.
    pub tokens: Vec<TokenId>,
    pub prompt_len: usize,
    /// Leading tokens that the model has processed; starts above zero on a prefix-cache hit.
    pub computed: usize,
    /// Length at which the sequence is full: prompt and generated tokens together.
    pub max_len: usize,
    pub stop_ids: Vec<TokenId>,
    /// The sequence whose processed prompt this one takes over, all but its last token.
    pub leader: Option<SeqId>,
}

impl Sequence {
    /// Tokens known but not processed: 1 while decoding, more during prefill.
    fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    pub fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
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

/// Who gets a cache before the next step, and who gives it up, first to last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    pub preempted: Vec<SeqId>,
    pub admitted: Vec<SeqId>,
}

/// Why a sequence was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    QueueFull {
        waiting: usize,
    },
    /// It could never run, even alone. In bytes.
    TooLarge {
        needs: usize,
        budget: usize,
    },
}

pub struct Scheduler {
    limits: Limits,
    cost: CacheCost,
    sequences: BTreeMap<SeqId, Sequence>,
    /// Admitted sequences, the first in rank first; each holds a cache.
    running: Vec<SeqId>,
    waiting: Vec<Waiting>,
    /// Rows of a step that failed, each with the length that it must pass to be cleared. They run alone.
    suspects: BTreeMap<SeqId, usize>,
    steps: u64,
}

#[derive(Clone, Copy)]
struct Waiting {
    id: SeqId,
    since: u64,
}

impl Scheduler {
    /// # Panics
    /// If a limit is zero: nothing could ever run.
    pub fn new(limits: Limits, cost: CacheCost) -> Self {
        let Limits { max_running, step_tokens, mixed_prefill, .. } = limits;
        assert!(0 < max_running && 0 < step_tokens && 0 < mixed_prefill, "a limit of zero: {limits:?}");
        Self {
            limits,
            cost,
            sequences: BTreeMap::new(),
            running: Vec::new(),
            waiting: Vec::new(),
            suspects: BTreeMap::new(),
            steps: 0,
        }
    }

    pub fn add(&mut self, sequence: Sequence) -> Result<(), Refusal> {
        assert!(sequence.computed < sequence.tokens.len(), "{:?} has nothing to process", sequence.id);
        let waiting = self.waiting.len();
        // With room to run at once nobody waits, whatever the queue's limit.
        if self.limits.max_waiting <= waiting && self.limits.max_running <= self.running.len() + waiting {
            return Err(Refusal::QueueFull { waiting });
        }
        let needs = self.cost.bytes(sequence.max_len);
        if self.limits.memory < needs {
            return Err(Refusal::TooLarge { needs, budget: self.limits.memory });
        }
        self.waiting.push(Waiting { id: sequence.id, since: self.steps });
        self.sequences.insert(sequence.id, sequence);
        Ok(())
    }

    pub fn sequence(&self, id: SeqId) -> &Sequence {
        &self.sequences[&id]
    }

    pub fn get(&self, id: SeqId) -> Option<&Sequence> {
        self.sequences.get(&id)
    }

    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    pub fn n_running(&self) -> usize {
        self.running.len()
    }

    pub fn n_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Bytes that the running sequences need for their next step.
    pub fn committed(&self) -> usize {
        self.running.iter().map(|id| self.needs(*id)).sum()
    }

    /// Decides who holds a cache in the next step. The caller opens and drops caches accordingly, and says by
    /// [`Self::resume`] what a new cache already holds.
    pub fn admit(&mut self) -> Admission {
        self.steps += 1;
        let mut admission = Admission::default();
        // The first in rank always fits: it was refused otherwise.
        while self.limits.memory < self.committed() && 1 < self.running.len() {
            let id = self.running.pop().expect("more than one runs");
            let sequence = self.sequences.get_mut(&id).expect("a running sequence is known");
            sequence.computed = 0;
            self.waiting.push(Waiting { id, since: self.steps });
            admission.preempted.push(id);
        }
        if !admission.preempted.is_empty() {
            return admission;
        }
        let mut queue = std::mem::take(&mut self.waiting);
        queue.sort_by_key(|w| (self.class(*w), w.id));
        let mut committed = self.committed();
        for waiting in queue {
            let needs = self.needs(waiting.id);
            let fits = self.running.len() < self.limits.max_running
                && committed.saturating_add(needs) <= self.limits.memory
                // Nobody overtakes one that waits for memory.
                && self.waiting.iter().all(|w| self.follows(w.id));
            if fits && !self.follows(waiting.id) {
                committed += needs;
                self.running.push(waiting.id);
                admission.admitted.push(waiting.id);
            } else {
                self.waiting.push(waiting);
            }
        }
        self.running.sort_by_key(|id| (self.sequences[id].priority, *id));
        admission
    }

    /// A new cache holds the first `computed` tokens.
    pub fn resume(&mut self, id: SeqId, computed: usize) {
        let sequence = self.sequences.get_mut(&id).expect("only known sequences are resumed");
        assert!(computed < sequence.tokens.len(), "{id:?} has nothing left to process");
        sequence.computed = computed;
    }

    /// Sequences that wait for `leader`'s prompt, once it is processed up to the last token.
    pub fn ready_followers(&self, leader: SeqId) -> Vec<SeqId> {
        let ready = |s: &Sequence| s.computed + 1 == s.prompt_len && s.generated() == 0;
        match self.sequences.get(&leader).is_some_and(ready) {
            true => self.followers(leader).collect(),
            false => Vec::new(),
        }
    }

    /// `id` has a copy of its leader's cache, and is on its own from now on.
    pub fn forked(&mut self, id: SeqId) {
        let leader = self.sequences[&id].leader.expect("a follower has a leader");
        let computed = self.sequences[&leader].computed;
        let sequence = self.sequences.get_mut(&id).expect("it was just found");
        (sequence.leader, sequence.computed) = (None, computed);
    }

    /// One of the rows of a step may be at fault. All of them start again from what is remembered, one at a time, so
    /// that the one that fails alone is known. They give their caches up.
    pub fn suspect(&mut self, ids: impl IntoIterator<Item = SeqId>) {
        for id in ids {
            let Some(sequence) = self.sequences.get_mut(&id) else { continue };
            self.suspects.insert(id, sequence.tokens.len());
            sequence.computed = 0;
            self.running.retain(|it| *it != id);
            self.waiting.retain(|it| it.id != id);
            self.waiting.push(Waiting { id, since: self.steps });
        }
    }

    /// The longest that a sequence may grow where nothing else bounds it.
    pub fn longest(&self, most: usize) -> usize {
        self.cost.longest(self.limits.memory, most)
    }

    /// Every decoding row advances by one; prefill chunks share the rest of the budget, in the order of rank, and
    /// short prompts slip in beside long ones.
    pub fn plan(&self) -> StepPlan {
        let suspect = self.running.iter().find(|id| self.suspects.contains_key(id));
        let running = suspect.map_or(&self.running[..], std::slice::from_ref);
        let rows = running.iter().map(|id| &self.sequences[id]);
        let (decoding, prefilling): (Vec<_>, Vec<_>) = rows.partition(|s| s.pending() == 1);
        let mut spans: Vec<Span> = decoding.iter().map(|s| span(s, 1)).collect();
        let budget = match decoding.is_empty() {
            true => self.limits.step_tokens,
            false => {
                self.limits.step_tokens.saturating_sub(decoding.len()).clamp(1, self.limits.mixed_prefill)
            }
        };
        let (mut left, mut left_for_short) = (budget, budget);
        for sequence in prefilling {
            let n = self.chunk(sequence, left);
            let short = sequence.pending() <= SHORT.min(left_for_short);
            if 0 < n {
                left -= n;
                spans.push(span(sequence, n));
            } else if short {
                left_for_short -= sequence.pending();
                spans.push(span(sequence, self.chunk(sequence, usize::MAX)));
            }
        }
        StepPlan { spans }
    }

    /// How much of a prefill runs with a budget of `left` tokens.
    fn chunk(&self, s: &Sequence, left: usize) -> usize {
        let held_back = usize::from(self.followers(s.id).next().is_some());
        let end = s.tokens.len() - held_back;
        if end <= s.computed {
            return 0;
        }
        let border = (end - 1) / BLOCK * BLOCK;
        let end = if self.limits.checkpoints && s.computed < border { border } else { end };
        let n = (end - s.computed).min(left);
        // A chunk that is cut by the budget ends at a border where it can.
        match (s.computed + n) / BLOCK * BLOCK {
            border if s.computed + n < end && s.computed < border => border - s.computed,
            _ => n,
        }
    }

    /// The span was processed.
    pub fn processed(&mut self, span: &Span) {
        let sequence = self.sequences.get_mut(&span.id).expect("only known sequences are planned");
        assert_eq!(sequence.computed, span.range.start, "spans of {:?} ran out of order", span.id);
        sequence.computed = span.range.end;
        self.suspects.retain(|id, until| *id != span.id || span.range.end < *until);
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

    /// Forgets a sequence, finished or not. Its followers stand for themselves.
    pub fn remove(&mut self, id: SeqId) -> Option<Sequence> {
        self.running.retain(|it| *it != id);
        self.waiting.retain(|it| it.id != id);
        self.suspects.remove(&id);
        self.sequences.values_mut().filter(|s| s.leader == Some(id)).for_each(|s| s.leader = None);
        self.sequences.remove(&id)
    }

    fn class(&self, w: Waiting) -> u64 {
        let aged = (self.steps - w.since) / self.limits.ageing.max(1);
        (self.sequences[&w.id].priority as u64).saturating_sub(aged)
    }

    /// Bytes that a sequence needs for all its known tokens and the next.
    fn needs(&self, id: SeqId) -> usize {
        self.cost.bytes(self.sequences[&id].tokens.len() + 1)
    }

    fn follows(&self, id: SeqId) -> bool {
        self.sequences[&id].leader.is_some()
    }

    fn followers(&self, leader: SeqId) -> impl Iterator<Item = SeqId> + '_ {
        self.sequences.values().filter(move |s| s.leader == Some(leader)).map(|s| s.id)
    }
}

fn span(s: &Sequence, n: usize) -> Span {
    let range = s.computed..s.computed + n;
    Span { id: s.id, draws: range.end == s.tokens.len(), range }
}

#[cfg(test)]
mod tests;
