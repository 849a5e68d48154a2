//! Plain data that crosses between the array thread and everyone else. Nothing here holds an array.

use std::time::Duration;

pub type TokenId = u32;

/// One sequence in the engine. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId(pub u64);

/// What a client asks for, already tokenized and validated.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub prompt: Vec<TokenId>,
    /// `None` generates until a stop id or the end of the context.
    pub max_tokens: Option<usize>,
    /// Ids that end the sequence; the stop id itself is reported, flagged by [`FinishReason::Stop`].
    pub stop_ids: Vec<TokenId>,
    pub sampling: SamplingParams,
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
    },
    Token {
        id: TokenId,
        /// Natural log of the token's probability under the model's own distribution.
        logprob: f32,
    },
    Finished(Finish),
    Failed(String),
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
