//! Plain data that crosses between the array thread and everyone else. Nothing here holds an array.

use std::time::Duration;

pub type TokenId = u32;

/// One sequence in the engine. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId(pub u64);

/// What a client asks for, already tokenized and validated.
#[derive(Default)]
pub struct Request {
    pub prompt: Vec<TokenId>,
    /// `None` generates until a stop id or the end of the context.
    pub max_tokens: Option<usize>,
    /// Stop ids are not drawn before this many tokens.
    pub min_tokens: usize,
    /// Ids that end the sequence; the stop id itself is reported, flagged by [`FinishReason::Stop`].
    pub stop_ids: Vec<TokenId>,
    pub sampling: SamplingParams,
    /// The most probable tokens to report at each position.
    pub top_logprobs: usize,
    pub priority: Priority,
    /// What the answer must conform to.
    pub constraint: Option<Box<dyn Constraint>>,
}

/// Who waits for whom. A waiting request rises by one class at a time, so that none waits for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    Interactive,
    #[default]
    Normal,
    Background,
}

/// A grammar's state beside a row: says which tokens may come next. It is asked off the array thread, while the
/// model computes.
pub trait Constraint: Send {
    /// The ids that may be drawn next.
    fn allowed(&mut self) -> Result<TokenSet, String>;
    /// Moves on by a token that was drawn. Called once for each, before the next [`Self::allowed`].
    fn accept(&mut self, id: TokenId) -> Result<(), String>;
    /// The same state for another row of the same prompt.
    fn fork(&self) -> Box<dyn Constraint>;
}

/// A set of token ids, one bit each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenSet {
    words: Vec<u32>,
}

impl TokenSet {
    /// Bit `i % 32` of word `i / 32` stands for token `i`; tokens past the end are not in the set.
    pub fn from_words(words: Vec<u32>) -> Self {
        Self { words }
    }

    pub fn contains(&self, id: TokenId) -> bool {
        self.words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
    }
}

impl FromIterator<TokenId> for TokenSet {
    fn from_iter<I: IntoIterator<Item = TokenId>>(ids: I) -> Self {
        let mut words = Vec::new();
        for id in ids {
            let at = id as usize / 32;
            if words.len() <= at {
                words.resize(at + 1, 0);
            }
            words[at] |= 1 << (id % 32);
        }
        Self { words }
    }
}

/// How tokens are drawn. The defaults are mlx-lm's: greedy, every filter off.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 takes the largest logit.
    pub temperature: f32,
    /// Active strictly between 0 and 1.
    pub top_p: f32,
    /// 0 is off.
    pub top_k: usize,
    /// 0 is off.
    pub min_p: f32,
    /// Tokens that `min_p` never removes.
    pub min_tokens_to_keep: usize,
    pub xtc_probability: f32,
    pub xtc_threshold: f32,
    /// Tokens that XTC never removes (newline and EOS in mlx-lm).
    pub xtc_special_tokens: Vec<TokenId>,
    /// 1 is off.
    pub repetition_penalty: f32,
    pub repetition_context_size: usize,
    /// 0 is off.
    pub presence_penalty: f32,
    pub presence_context_size: usize,
    /// 0 is off.
    pub frequency_penalty: f32,
    pub frequency_context_size: usize,
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Noise is a function of `(seed, position)`, so a request's output never depends on its neighbours.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            min_tokens_to_keep: 1,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            xtc_special_tokens: Vec::new(),
            repetition_penalty: 1.0,
            repetition_context_size: 20,
            presence_penalty: 0.0,
            presence_context_size: 20,
            frequency_penalty: 0.0,
            frequency_context_size: 20,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// What comes back, in order; exactly one `Finished` or `Failed` ends a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Prompt tokens processed so far.
    Prefill {
        done: usize,
        total: usize,
        /// Of these, tokens that came from a prefix cache.
        cached: usize,
    },
    Token {
        id: TokenId,
        /// Natural log of the token's probability after bias and penalties, before any filter.
        logprob: f32,
        /// The most probable tokens at this position, the best first, as many as were asked for.
        top: Vec<(TokenId, f32)>,
    },
    Finished(Finish),
    Failed(Failure),
}

/// Why a request ended without an answer, and whose fault it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The request can never run; another one might.
    #[error("{0}")]
    Invalid(String),
    /// Too much is going on; the same request may run later.
    #[error("{0}")]
    Busy(String),
    /// The engine's own.
    #[error("{0}")]
    Internal(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    pub reason: FinishReason,
    pub prompt_tokens: usize,
    /// Prompt tokens that came from a prefix cache.
    pub cached_tokens: usize,
    pub generated_tokens: usize,
    /// From admission to the first token.
    pub prompt_time: Duration,
    /// From the first token to the last.
    pub generation_time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    Stop,
    Length,
}
