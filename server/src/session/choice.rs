//! One answer in the making: tokens → text → stop strings → content, reasoning and calls.

use std::sync::Arc;
use std::time::Instant;

use engine::protocol::{Finish, FinishReason, TokenId};
use engine::text::{Detokenizer, Tokenizer};

use super::logprobs::{Logprob, Logprobs};
use super::stop::StopStrings;
use super::{End, Plan, Reason, Timings, Usage};
use crate::app::Model;
use crate::output::{Piece, Splitter};

pub(super) struct Choice {
    detokenizer: Detokenizer<Arc<Tokenizer>>,
    stop: StopStrings,
    splitter: Splitter,
    logprobs: Option<Logprobs>,
    ends: Vec<TokenId>,
    one_call: bool,
    calls: usize,
    calls_done: usize,
    /// The stop string that was met.
    met: Option<String>,
    pub(super) usage: Usage,
    pub(super) started: Instant,
    pub(super) first: Option<Instant>,
    pub(super) ended: bool,
}

impl Choice {
    pub(super) fn new(model: &Model, plan: &Plan, ends: &[TokenId], prompt: usize, started: Instant) -> Self {
        let splitter = plan.output.splitter(&model.tokenizer);
        Self {
            // Markers of reasoning and calls are special tokens in many vocabularies.
            detokenizer: model.tokenizer.detokenizer(!splitter.is_active()),
            stop: StopStrings::new(&plan.stop),
            logprobs: plan.logprobs.map(|_| Logprobs::new(model.tokenizer.clone(), splitter.is_active())),
            splitter,
            ends: ends.to_vec(),
            one_call: plan.one_call,
            calls: 0,
            calls_done: 0,
            met: None,
            usage: Usage { prompt, ..Usage::default() },
            started,
            first: None,
            ended: false,
        }
    }

    pub(super) fn token(
        &mut self,
        id: TokenId,
        logprob: f32,
        top: &[(TokenId, f32)],
    ) -> (Vec<Piece>, Vec<Logprob>) {
        self.first.get_or_insert_with(Instant::now);
        self.usage.generated += 1;
        if self.ends.contains(&id) {
            return (Vec::new(), Vec::new());
        }
        if let Some(logprobs) = &mut self.logprobs {
            logprobs.drawn(id, logprob, top);
        }
        let text = self.detokenizer.push(id);
        if let Some(logprobs) = &mut self.logprobs {
            logprobs.decoded(text.len());
        }
        let (text, met) = self.stop.push(&text);
        let mut pieces = self.splitter.push(&text);
        if met.is_some() {
            self.met = met;
            pieces.extend(self.splitter.finish());
        }
        self.note(&pieces);
        self.usage.reasoning += usize::from(self.splitter.is_reasoning());
        let logprobs = self.logprobs.as_mut().map(|logprobs| logprobs.release(&pieces));
        (pieces, logprobs.unwrap_or_default())
    }

    /// The end that the text has come to, before the model's own.
    pub(super) fn cut(&mut self) -> Option<End> {
        if let Some(met) = self.met.take() {
            return Some(self.end(Reason::StopString(met), self.timings()));
        }
        let called = self.one_call && 0 < self.calls_done;
        called.then(|| self.end(Reason::Calls, self.timings()))
    }

    pub(super) fn finish(&mut self, finish: &Finish) -> (Vec<Piece>, Vec<Logprob>, End) {
        let tail = self.detokenizer.finish();
        if let Some(logprobs) = &mut self.logprobs {
            logprobs.decoded(tail.len());
        }
        let (mut text, met) = self.stop.push(&tail);
        if met.is_none() {
            text.push_str(&self.stop.finish());
        }
        let mut pieces = self.splitter.push(&text);
        pieces.extend(self.splitter.finish());
        self.note(&pieces);
        let logprobs = self.logprobs.as_mut().map(|logprobs| logprobs.release(&pieces));
        let reason = match (met, finish.reason) {
            (Some(met), _) => Reason::StopString(met),
            (None, FinishReason::Length) => Reason::Length,
            (None, FinishReason::Stop) if 0 < self.calls => Reason::Calls,
            (None, FinishReason::Stop) => Reason::Stop,
        };
        self.usage.cached = finish.cached_tokens;
        self.usage.generated = finish.generated_tokens;
        let timings = Timings { prompt: finish.prompt_time, generation: finish.generation_time };
        (pieces, logprobs.unwrap_or_default(), self.end(reason, timings))
    }

    /// Of a request for no tokens.
    pub(super) fn nothing(&self) -> End {
        self.end(Reason::Length, Timings::default())
    }

    pub(super) fn timings(&self) -> Timings {
        match self.first {
            Some(first) => Timings { prompt: first - self.started, generation: first.elapsed() },
            None => Timings { prompt: self.started.elapsed(), ..Timings::default() },
        }
    }

    fn end(&self, reason: Reason, timings: Timings) -> End {
        End { reason, usage: self.usage, timings }
    }

    fn note(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            match piece {
                Piece::ToolStart { .. } => self.calls += 1,
                Piece::ToolEnd { .. } => self.calls_done += 1,
                _ => {}
            }
        }
    }
}
