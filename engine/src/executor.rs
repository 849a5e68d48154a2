//! Turns a plan into one packed forward and its tokens. Owns every array that belongs to a sequence.

use std::collections::HashMap;

use mlx_core::projection::pick;
use mlx_core::{Array, Dtype, Error, async_eval, eval};

use crate::lm::cache::SeqCache;
use crate::lm::{CausalLm, Row, run};
use crate::protocol::{SamplingParams, SeqId, TokenId};
use crate::sampling::{Draw, NotANumber, draw};
use crate::schedule::{Scheduler, StepPlan};

pub struct Executor {
    lm: Box<dyn CausalLm>,
    live: HashMap<SeqId, Live>,
}

struct Live {
    cache: SeqCache,
    sampling: SamplingParams,
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
pub type Drawn = (SeqId, Result<Draw, NotANumber>);

impl Executor {
    pub fn new(lm: Box<dyn CausalLm>) -> Self {
        Self { lm, live: HashMap::new() }
    }

    pub fn add(&mut self, id: SeqId, sampling: SamplingParams) {
        let cache = SeqCache::new(self.lm.layers());
        self.live.insert(id, Live { cache, sampling });
    }

    pub fn remove(&mut self, id: SeqId) {
        self.live.remove(&id);
    }

    /// Builds the step's graph and starts it.
    pub fn launch(&mut self, sequences: &Scheduler, plan: &StepPlan) -> Result<Launched, Error> {
        let tokens: Vec<TokenId> = plan
            .spans
            .iter()
            .flat_map(|span| sequences.sequence(span.id).tokens[span.range.clone()].iter().copied())
            .collect();
        // Rows leave the map for the step, so that many caches can be borrowed at once.
        let mut live: Vec<(SeqId, Live)> = Vec::with_capacity(plan.spans.len());
        for span in &plan.spans {
            live.push((span.id, self.live.remove(&span.id).expect("a planned sequence is live")));
        }
        let ids = Array::from_slice(&tokens, &[tokens.len() as i32]);
        let mut rows: Vec<Row<'_>> = live
            .iter_mut()
            .zip(&plan.spans)
            .map(|((_, live), span)| Row { cache: &mut live.cache, tokens: span.range.len() })
            .collect();
        let hidden = run(&*self.lm, self.lm.embed(&ids), &mut rows, &[]);

        let (drawing, last) = last_positions(plan);
        let greedy = live.iter().all(|(_, live)| live.sampling.is_plain_greedy());
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
        async_eval(results.into_iter().chain(live.iter().flat_map(|(_, live)| live.cache.arrays())))?;
        self.live.extend(live);
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
                let rows = launched.drawing.into_iter().zip(logits.chunks_exact_mut(vocab));
                Ok(rows
                    .map(|(seq, logits)| {
                        let history = &sequences.sequence(seq).tokens;
                        (seq, draw(logits, history, history.len(), &self.live[&seq].sampling))
                    })
                    .collect())
            }
        }
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

fn checked(sequences: &Scheduler, seq: SeqId, id: TokenId, logprob: f32) -> Result<Draw, NotANumber> {
    match logprob.is_finite() {
        true => Ok(Draw { id, logprob }),
        false => Err(NotANumber { position: sequences.sequence(seq).tokens.len() }),
    }
}
