//! Turns a plan into one packed forward and its tokens. Owns every array that belongs to a sequence.

mod masks;

use std::collections::HashMap;

use mlx_core::projection::pick;
use mlx_core::{Array, Dtype, Error, async_eval, eval};

use crate::lm::cache::SeqCache;
use crate::lm::{CausalLm, Row, run};
use crate::prefix::{Prefix, PrefixStats};
use crate::protocol::{Constraint, SamplingParams, SeqId, TokenId, TokenSet};
use crate::sampling::{Draw, DrawError, Rules, draw};
use crate::schedule::{BLOCK, Scheduler, Sequence, Span, StepPlan};
use masks::Masks;

pub struct Executor {
    lm: Box<dyn CausalLm>,
    live: HashMap<SeqId, Live>,
    prefix: Option<Prefix>,
    kv_dtype: Option<Dtype>,
    masks: Masks,
}

/// What a request asks for beside its tokens.
pub struct Wishes {
    pub sampling: SamplingParams,
    pub top_logprobs: usize,
    pub min_tokens: usize,
    pub constraint: Option<Box<dyn Constraint>>,
}

struct Live {
    wishes: Wishes,
    /// `None` while the sequence waits.
    cache: Option<SeqCache>,
    /// The last token that the constraint has not heard of.
    unheard: Option<TokenId>,
}

/// A step whose forward has been launched and not yet read.
pub struct Launched {
    /// Rows that draw, in the order of the rows of the arrays.
    drawing: Vec<SeqId>,
    rows: Option<DrawRows>,
}

/// What the host reads of the rows that draw.
enum DrawRows {
    /// All rows are greedy: `[R]` ids and log-probabilities.
    Greedy { ids: Array, logprobs: Array },
    /// `[R, vocab]` float32.
    Logits(Array),
}

/// What became of one row that draws.
pub type Drawn = (SeqId, Result<Draw, String>);

impl Executor {
    pub fn new(lm: Box<dyn CausalLm>, prefix: Option<Prefix>, kv_dtype: Option<Dtype>) -> Self {
        Self { lm, live: HashMap::new(), prefix, kv_dtype, masks: Masks::new() }
    }

    pub fn add(&mut self, id: SeqId, wishes: Wishes) {
        self.live.insert(id, Live { wishes, cache: None, unheard: None });
    }

    /// Gives a sequence a cache, with as many of its leading tokens as are remembered; returns their number.
    pub fn open(&mut self, sequence: &Sequence) -> usize {
        let live = self.live.get_mut(&sequence.id).expect("an admitted sequence is live");
        // A fork brings its own.
        if live.cache.is_some() {
            return sequence.computed;
        }
        let known = self.prefix.as_mut().and_then(|p| p.longest(self.lm.layers(), &sequence.tokens));
        let cache = known.unwrap_or_else(|| SeqCache::stored_as(self.lm.layers(), self.kv_dtype));
        let computed = cache.len();
        live.cache = Some(cache);
        computed
    }

    /// Takes a preempted sequence's cache away.
    pub fn close(&mut self, id: SeqId) {
        self.live.get_mut(&id).expect("a preempted sequence is live").cache = None;
    }

    /// After a step that failed: its rows' caches are not to be trusted, and what was lent out comes back.
    pub fn recover(&mut self, plan: &StepPlan) {
        for span in &plan.spans {
            if let Some(live) = self.live.get_mut(&span.id) {
                live.cache = None;
            }
        }
        for (id, (constraint, _)) in self.masks.collect() {
            if let Some(live) = self.live.get_mut(&id) {
                live.wishes.constraint = Some(constraint);
            }
        }
    }

    /// Gives `to` a copy of `from`'s cache.
    pub fn fork(&mut self, from: SeqId, to: SeqId) {
        let cache = self.live[&from].cache.clone();
        self.live.get_mut(&to).expect("a follower is live").cache = cache;
    }

    pub fn remove(&mut self, id: SeqId) {
        self.live.remove(&id);
    }

    pub fn prefix_stats(&self) -> PrefixStats {
        self.prefix.as_ref().map(Prefix::stats).unwrap_or_default()
    }

    /// Writes to disk what only memory remembers; returns whether some of it is left.
    pub fn persist(&mut self) -> bool {
        self.prefix.as_mut().is_some_and(Prefix::persist)
    }

    /// Forgets every remembered prefix.
    pub fn clear_prefix(&mut self) {
        if let Some(prefix) = &mut self.prefix {
            prefix.clear();
        }
    }

    /// Builds the step's graph and starts it.
    pub fn launch(&mut self, sequences: &Scheduler, plan: &StepPlan) -> Result<Launched, Error> {
        let tokens: Vec<TokenId> = plan
            .spans
            .iter()
            .flat_map(|span| sequences.sequence(span.id).tokens[span.range.clone()].iter().copied())
            .collect();
        let constrained = self.ask_constraints(plan);
        // Caches leave the map for the step, so that many can be borrowed at once.
        let mut caches: Vec<SeqCache> = Vec::with_capacity(plan.spans.len());
        for span in &plan.spans {
            let live = self.live.get_mut(&span.id).expect("a planned sequence is live");
            caches.push(live.cache.take().expect("a planned sequence has a cache"));
        }
        let ids = Array::from_slice(&tokens, &[tokens.len() as i32]);
        let mut rows: Vec<Row<'_>> = caches
            .iter_mut()
            .zip(&plan.spans)
            .map(|(cache, span)| Row { cache, tokens: span.range.len() })
            .collect();
        let hidden = run(&*self.lm, self.lm.embed(&ids), &mut rows, &[]);

        let (drawing, last) = last_positions(plan);
        let greedy =
            !constrained && drawing.iter().all(|id| self.live[id].draws_on_device(sequences.sequence(*id)));
        let rows = (!last.is_empty()).then(|| {
            let last = Array::from_slice(&last, &[last.len() as i32]);
            let logits = self.lm.logits(&hidden.last.take(&last, 0)).astype(Dtype::Float32);
            if !greedy {
                return DrawRows::Logits(logits);
            }
            let [ids, logprobs] = pick(&logits);
            DrawRows::Greedy { ids, logprobs }
        });
        let results = match &rows {
            None => Vec::new(),
            Some(DrawRows::Greedy { ids, logprobs }) => vec![ids, logprobs],
            Some(DrawRows::Logits(logits)) => vec![logits],
        };
        // Caches are computed with the step that wrote them: no lazy graph outlives it.
        async_eval(results.into_iter().chain(caches.iter().flat_map(SeqCache::arrays)))?;
        for (span, cache) in plan.spans.iter().zip(caches) {
            self.live.get_mut(&span.id).expect("it was there above").cache = Some(cache);
        }
        Ok(Launched { drawing, rows })
    }

    /// Waits for a step, once, and draws its tokens.
    pub fn collect(&mut self, sequences: &Scheduler, launched: Launched) -> Result<Vec<Drawn>, Error> {
        match launched.rows {
            None => {
                mlx_core::synchronize()?;
                eval([]).map(|()| Vec::new())
            }
            Some(DrawRows::Greedy { ids, logprobs }) => {
                let (ids, logprobs) = (ids.to_vec::<u32>()?, logprobs.to_vec::<f32>()?);
                let drawn = launched.drawing.into_iter().zip(ids).zip(logprobs);
                Ok(drawn.map(|((seq, id), logprob)| (seq, checked(sequences, seq, id, logprob))).collect())
            }
            Some(DrawRows::Logits(logits)) => {
                let vocab = logits.dim(1) as usize;
                let mut logits = logits.to_vec::<f32>()?;
                let mut answers = self.masks.collect();
                let rows = launched.drawing.into_iter().zip(logits.chunks_exact_mut(vocab));
                Ok(rows
                    .map(|(id, logits)| {
                        let live = self.live.get_mut(&id).expect("a row that draws is live");
                        let allowed = answers.remove(&id).map(|(constraint, allowed)| {
                            live.wishes.constraint = Some(constraint);
                            allowed
                        });
                        (id, live.draw(sequences.sequence(id), logits, allowed))
                    })
                    .collect())
            }
        }
    }

    /// Remembers the blocks that the step's spans have completed.
    pub fn remember(&mut self, sequences: &Scheduler, spans: &[Span]) -> Result<(), Error> {
        let Some(prefix) = &mut self.prefix else { return Ok(()) };
        for span in spans {
            let complete = span.range.start / BLOCK < span.range.end / BLOCK;
            let Some(Live { cache: Some(cache), .. }) = self.live.get(&span.id).filter(|_| complete) else {
                continue;
            };
            prefix.insert(&sequences.sequence(span.id).tokens[..span.range.end], span.range.start, cache)?;
        }
        Ok(())
    }

    /// Has the grammars of the rows that draw worked out while the model computes. Returns whether there are any.
    fn ask_constraints(&mut self, plan: &StepPlan) -> bool {
        let mut any = false;
        for span in plan.spans.iter().filter(|span| span.draws) {
            let live = self.live.get_mut(&span.id).expect("a planned sequence is live");
            if let Some(constraint) = live.wishes.constraint.take() {
                self.masks.ask(span.id, constraint, live.unheard.take());
                any = true;
            }
        }
        any
    }
}

impl Live {
    /// Whether the token is the largest logit and nothing else is asked, so that the device picks it.
    fn draws_on_device(&self, sequence: &Sequence) -> bool {
        let w = &self.wishes;
        w.sampling.is_plain_greedy() && w.top_logprobs == 0 && w.min_tokens <= sequence.generated()
    }

    fn draw(
        &mut self,
        sequence: &Sequence,
        logits: &mut [f32],
        allowed: Option<Result<TokenSet, String>>,
    ) -> Result<Draw, String> {
        let allowed = allowed.transpose()?;
        let early = sequence.generated() < self.wishes.min_tokens;
        let rules = Rules {
            forbidden: if early { &sequence.stop_ids } else { &[] },
            allowed: allowed.as_ref(),
            top: self.wishes.top_logprobs,
        };
        let history = &sequence.tokens;
        let drawn = draw(logits, history, history.len(), &self.wishes.sampling, rules);
        let drawn = drawn.map_err(|err: DrawError| err.to_string())?;
        self.unheard = allowed.is_some().then_some(drawn.id);
        Ok(drawn)
    }
}

/// The rows that draw, and the packed position of each one's last token.
fn last_positions(plan: &StepPlan) -> (Vec<SeqId>, Vec<u32>) {
    let mut end = 0;
    let mut rows = (Vec::new(), Vec::new());
    for span in &plan.spans {
        end += span.range.len();
        if span.draws {
            rows.0.push(span.id);
            rows.1.push(end as u32 - 1);
        }
    }
    rows
}

fn checked(sequences: &Scheduler, seq: SeqId, id: TokenId, logprob: f32) -> Result<Draw, String> {
    match logprob.is_finite() {
        true => Ok(Draw { id, logprob, top: Vec::new() }),
        false => Err(DrawError::NotANumber { position: sequences.sequence(seq).tokens.len() }.to_string()),
    }
}
