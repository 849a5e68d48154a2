//! One request's text side, the same for every dialect: token ids go in, pieces of an answer come out.

mod choice;
mod gather;
mod logprobs;
mod stop;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::protocol::{Constraint, Event, Priority, Request, SamplingParams, TokenId};
use engine::thread::Stream;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::app::App;
use crate::error::{Kind, Problem, Result};
use crate::guard::Call;
use crate::ids;
use crate::metrics::Observation;
use crate::output::{Output, Piece};
use choice::Choice;

pub use gather::{Gathered, ToolCall};
pub use logprobs::{Logprob, Top};

/// What a request asks of the model, whatever dialect it came in.
#[derive(Default)]
pub struct Plan {
    /// Each gets `n` choices.
    pub prompts: Vec<Vec<TokenId>>,
    pub n: usize,
    /// `None` goes on to the end of the context.
    pub max_tokens: Option<usize>,
    pub min_tokens: usize,
    pub sampling: SamplingParams,
    /// The same seed gives the same answer; without one every answer differs.
    pub seed: Option<u64>,
    pub stop: Vec<String>,
    pub ignore_eos: bool,
    /// The alternatives reported at each position; `None` reports nothing.
    pub logprobs: Option<usize>,
    pub output: Output,
    /// Ends an answer after its first tool call.
    pub one_call: bool,
    pub priority: Priority,
    pub constraint: Option<Box<dyn Constraint>>,
}

/// What happens to the answers, in order.
#[derive(Debug)]
pub enum Step {
    Prefill {
        done: usize,
        total: usize,
    },
    /// Of the choice with this index.
    Pieces(usize, Vec<Piece>, Vec<Logprob>),
    End(usize, End),
    Failed(Problem),
}

#[derive(Clone, Debug, PartialEq)]
pub struct End {
    pub reason: Reason,
    pub usage: Usage,
    pub timings: Timings,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The model ended by itself.
    Stop,
    /// The stop string that was met.
    StopString(String),
    Length,
    /// The model ended by itself, and called tools.
    Calls,
}

impl Reason {
    /// OpenAI's word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Stop | Self::StopString(_) => "stop",
            Self::Length => "length",
            Self::Calls => "tool_calls",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt: usize,
    /// Of the prompt's, those that were remembered.
    pub cached: usize,
    pub generated: usize,
    /// Of the generated, those of the reasoning.
    pub reasoning: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    pub prompt: Duration,
    pub generation: Duration,
}

/// The running answers of one request. Dropping them cancels what has not ended.
pub struct Answers {
    app: Arc<App>,
    call: Call,
    choices: Vec<Choice>,
    running: FuturesUnordered<BoxFuture<'static, Next>>,
    ready: VecDeque<Next>,
    steps: VecDeque<Step>,
    max_tokens: Option<usize>,
}

type Next = (usize, Stream, Option<Event>);

/// How long a response waits for a refusal, which comes between two steps, before its headers go out.
const REFUSAL: Duration = Duration::from_millis(50);

impl Answers {
    /// Submits the plan. What can be refused is refused here, before anything is sent.
    pub async fn start(app: &Arc<App>, call: &Call, plan: Plan) -> Result<Self> {
        if !app.model.engine.is_alive() {
            return Err(Problem::new(Kind::Busy, "the engine has ended; restart the server"));
        }
        let context = app.model.info.context_length;
        if let Some(long) = plan.prompts.iter().find(|prompt| context <= prompt.len()) {
            return Err(Problem::context(long.len(), context));
        }
        if plan.prompts.iter().any(Vec::is_empty) {
            return Err(Problem::field("prompt", "the prompt is empty"));
        }
        let mut answers = Self {
            app: app.clone(),
            call: call.clone(),
            choices: Vec::new(),
            running: FuturesUnordered::new(),
            ready: VecDeque::new(),
            steps: VecDeque::new(),
            max_tokens: plan.max_tokens,
        };
        answers.submit(plan);
        if let Ok(Some(first)) = tokio::time::timeout(REFUSAL, answers.running.next()).await {
            if let (i, _, Some(Event::Failed(failure))) = first {
                answers.choices[i].ended = true;
                return Err(failure.into());
            }
            answers.ready.push_back(first);
        }
        Ok(answers)
    }

    fn submit(&mut self, plan: Plan) {
        let (app, started) = (self.app.clone(), Instant::now());
        let tokenizer = &app.model.tokenizer;
        let ends: Vec<TokenId> = match plan.ignore_eos {
            true => Vec::new(),
            false => tokenizer.ends().iter().copied().collect(),
        };
        let seed = plan.seed.unwrap_or_else(ids::fresh_seed);
        for prompt in &plan.prompts {
            let room = app.model.info.context_length - prompt.len();
            let max_tokens = plan.max_tokens.map(|max| max.min(room));
            let mut requests = Vec::new();
            for k in 0..plan.n.max(1) {
                self.choices.push(Choice::new(&app.model, &plan, &ends, prompt.len(), started));
                let mut sampling = plan.sampling.clone();
                sampling.seed = seed.wrapping_add(k as u64);
                requests.push(Request {
                    prompt: prompt.clone(),
                    max_tokens,
                    min_tokens: plan.min_tokens,
                    stop_ids: ends.clone(),
                    sampling,
                    top_logprobs: plan.logprobs.unwrap_or(0),
                    priority: plan.priority,
                    constraint: plan.constraint.as_ref().map(|c| c.fork()),
                });
            }
            let first = self.choices.len() - requests.len();
            if max_tokens == Some(0) {
                for i in first..self.choices.len() {
                    let end = self.choices[i].nothing();
                    self.end(i, end);
                }
                continue;
            }
            for (k, stream) in app.model.engine.submit_all(requests).into_iter().enumerate() {
                self.wait(first + k, stream);
            }
        }
    }

    fn wait(&self, i: usize, stream: Stream) {
        let next = async move {
            let event = stream.recv().await;
            (i, stream, event)
        };
        self.running.push(next.boxed());
    }

    /// What a choice has used so far.
    pub fn usage(&self, i: usize) -> Usage {
        self.choices[i].usage
    }

    pub fn n_choices(&self) -> usize {
        self.choices.len()
    }

    /// `None` after every choice has ended.
    pub async fn next(&mut self) -> Option<Step> {
        loop {
            if let Some(step) = self.steps.pop_front() {
                return Some(step);
            }
            let (i, stream, event) = match self.ready.pop_front() {
                Some(next) => next,
                None => self.running.next().await?,
            };
            let more = match event {
                Some(event) => self.take(i, event),
                None => {
                    self.fail(i, Problem::internal("the engine ended in the middle of the answer"));
                    false
                }
            };
            if more {
                self.wait(i, stream);
            }
        }
    }

    /// Turns an event into steps; says whether the stream goes on.
    fn take(&mut self, i: usize, event: Event) -> bool {
        let choice = &mut self.choices[i];
        match event {
            Event::Prefill { done, total, cached } => {
                choice.usage.cached = cached;
                // Choices of one prompt share its prefill.
                if i == 0 {
                    self.steps.push_back(Step::Prefill { done, total });
                }
                true
            }
            Event::Token { id, logprob, top } => {
                let (pieces, logprobs) = choice.token(id, logprob, &top);
                let end = choice.cut();
                self.pieces(i, pieces, logprobs);
                match end {
                    Some(end) => {
                        self.end(i, end);
                        false
                    }
                    None => true,
                }
            }
            Event::Finished(finish) => {
                let (pieces, logprobs, end) = choice.finish(&finish);
                self.pieces(i, pieces, logprobs);
                self.end(i, end);
                false
            }
            Event::Failed(failure) => {
                self.fail(i, failure.into());
                false
            }
        }
    }

    fn pieces(&mut self, i: usize, pieces: Vec<Piece>, logprobs: Vec<Logprob>) {
        if !pieces.is_empty() || !logprobs.is_empty() {
            self.steps.push_back(Step::Pieces(i, pieces, logprobs));
        }
    }

    fn end(&mut self, i: usize, end: End) {
        self.choices[i].ended = true;
        self.observe(i, Some(&end));
        self.steps.push_back(Step::End(i, end));
    }

    fn fail(&mut self, i: usize, problem: Problem) {
        tracing::warn!(id = self.call.id(), message = problem.message, "an answer failed");
        self.choices[i].ended = true;
        self.steps.push_back(Step::Failed(problem));
    }

    fn observe(&self, i: usize, end: Option<&End>) {
        let choice = &self.choices[i];
        let usage = choice.usage;
        // The prompt is counted once, however many choices it has.
        self.call.used(if i == 0 { usage.prompt } else { 0 }, usage.generated);
        let timings = end.map_or_else(|| choice.timings(), |end| end.timings);
        self.app.metrics.observe(&Observation {
            prompt_tokens: usage.prompt,
            cached_tokens: usage.cached,
            generated_tokens: usage.generated,
            first_token: choice.first.map(|first| first - choice.started),
            prefill: timings.prompt,
            decode: timings.generation,
            total: choice.started.elapsed(),
            finish: end.map(|end| end.reason.word()),
            max_tokens: self.max_tokens,
        });
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        for i in 0..self.choices.len() {
            if !self.choices[i].ended {
                self.observe(i, None);
            }
        }
    }
}
