//! From logits to a token, on the host and without arrays.
//!
//! The stages, their order and their defaults are mlx-lm's (`make_logits_processors`, then
//! `make_sampler`): logit bias, repetition, presence and frequency penalties over the logits; then, on
//! normalised log-probabilities, top-p, min-p, XTC and top-k; temperature comes last. One thing differs:
//! the noise is a function of `(seed, position, token)`, so a draw never depends on what else ran.

mod noise;
mod stages;

use mlx_core::kernels::log_softmax;

use crate::protocol::{SamplingParams, TokenId, TokenSet};

/// A chosen token and its log-probability after bias and penalties, before any filter.
#[derive(Clone, Debug, PartialEq)]
pub struct Draw {
    pub id: TokenId,
    pub logprob: f32,
    /// The most probable tokens, the best first.
    pub top: Vec<(TokenId, f32)>,
}

/// Why no token can be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DrawError {
    #[error(
        "the model's logits at position {position} are not numbers; the weights are damaged, or the data type \
         overflows: try another --dtype"
    )]
    NotANumber { position: usize },
    #[error(
        "no token is allowed at position {position}: what the answer must conform to excludes all of them"
    )]
    NothingAllowed { position: usize },
}

/// What a draw must keep to beside its parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules<'a> {
    pub forbidden: &'a [TokenId],
    /// `None` allows all.
    pub allowed: Option<&'a TokenSet>,
    /// How many of the most probable tokens to report.
    pub top: usize,
}

impl SamplingParams {
    /// Whether the token is the largest logit and nothing else, so that the device can pick it.
    pub fn is_plain_greedy(&self) -> bool {
        self.temperature == 0.0 && !self.has_processors()
    }

    fn has_processors(&self) -> bool {
        !self.logit_bias.is_empty()
            || self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

/// Draws the token at `position` from `logits: [vocab]`; `history` holds the tokens before it, prompt
/// included. `logits` is scratch space afterwards.
pub fn draw(
    logits: &mut [f32],
    history: &[TokenId],
    position: usize,
    params: &SamplingParams,
    rules: Rules<'_>,
) -> Result<Draw, DrawError> {
    if logits.iter().any(|x| x.is_nan() || *x == f32::INFINITY) {
        return Err(DrawError::NotANumber { position });
    }
    stages::process(logits, history, params);
    stages::restrict(logits, rules);
    if logits.iter().all(|x| *x == f32::NEG_INFINITY) {
        return Err(DrawError::NothingAllowed { position });
    }
    log_softmax(logits);
    let logprobs = &*logits;
    let id = match params.temperature {
        0.0 => argmax(logprobs),
        _ => sample(logprobs, position, params),
    };
    Ok(Draw { id, logprob: logprobs[id as usize], top: stages::top(logprobs, rules.top) })
}

fn sample(logprobs: &[f32], position: usize, p: &SamplingParams) -> TokenId {
    let scale = f64::from(p.temperature).recip();
    let score = |id: TokenId| {
        f64::from(logprobs[id as usize]) * scale + noise::gumbel(p.seed, position, u64::from(id))
    };
    let kept = stages::filter(logprobs, position, p);
    let best = kept.into_iter().map(|id| (score(id), id)).reduce(|a, b| if b.0 > a.0 { b } else { a });
    best.expect("every filter keeps at least one token").1
}

/// The first of the largest entries, as MLX's `argmax` picks it.
pub(crate) fn argmax(x: &[f32]) -> TokenId {
    let best = (0..x.len()).reduce(|a, b| if x[b] > x[a] { b } else { a });
    best.expect("a vocabulary has at least one token") as TokenId
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 6] = [1.0, 3.0, 2.5, -1.0, 0.5, 2.9];

    fn draw_with(p: &SamplingParams, position: usize) -> TokenId {
        draw(&mut LOGITS.clone(), &[], position, p, Rules::default()).unwrap().id
    }

    #[test]
    fn greedy_takes_the_first_largest() {
        let p = SamplingParams::default();
        let got = draw(&mut [0.0, 2.0, 2.0], &[], 0, &p, Rules { top: 2, ..Rules::default() }).unwrap();
        assert_eq!(got.id, 1);
        let want = (2f64.exp() / (1.0 + 2.0 * 2f64.exp())).ln() as f32;
        assert!((got.logprob - want).abs() < 1e-6, "{} {want}", got.logprob);
        assert_eq!(got.top, [(1, got.logprob), (2, got.logprob)]);
    }

    #[test]
    fn draws_follow_the_tempered_distribution() {
        let p = SamplingParams { temperature: 0.7, seed: 9, ..Default::default() };
        let n = 20_000;
        let mut counts = [0usize; 6];
        (0..n).for_each(|position| counts[draw_with(&p, position) as usize] += 1);
        let weights: Vec<f64> = LOGITS.iter().map(|&x| (f64::from(x) / 0.7).exp()).collect();
        let total: f64 = weights.iter().sum();
        for (count, w) in counts.iter().zip(&weights) {
            let (got, want) = (*count as f64 / f64::from(n as u32), w / total);
            assert!((got - want).abs() < 0.012, "drew {got}, expected {want}");
        }
    }

    #[test]
    fn the_draw_is_a_function_of_seed_and_position() {
        let p = |seed| SamplingParams { temperature: 1.0, seed, ..Default::default() };
        let run = |seed| (0..64).map(|position| draw_with(&p(seed), position)).collect::<Vec<_>>();
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
    }

    #[test]
    fn filters_only_ever_leave_their_survivors() {
        let base = SamplingParams { temperature: 50.0, ..Default::default() };
        let survivors = |p: &SamplingParams| {
            let mut ids: Vec<_> = (0..500).map(|position| draw_with(p, position)).collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        assert_eq!(survivors(&base), [0, 1, 2, 3, 4, 5]);
        assert_eq!(survivors(&SamplingParams { top_k: 2, ..base.clone() }), [1, 5]);
        assert_eq!(survivors(&SamplingParams { top_p: 0.5, ..base.clone() }), [1, 5]);
        assert_eq!(survivors(&SamplingParams { min_p: 0.3, ..base.clone() }), [1, 2, 5]);
        let xtc = SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.1, ..base.clone() };
        assert_eq!(survivors(&xtc), [0, 2, 3, 4]);
        let xtc = SamplingParams { xtc_special_tokens: vec![1], ..xtc };
        assert_eq!(survivors(&xtc), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn rules_hold_whatever_the_sampling() {
        let allowed: TokenSet = [0, 3, 4].into_iter().collect();
        let rules = Rules { forbidden: &[0], allowed: Some(&allowed), top: 6 };
        for (temperature, position) in [(0.0, 0), (50.0, 1), (50.0, 2), (50.0, 3)] {
            let p = SamplingParams { temperature, ..Default::default() };
            let got = draw(&mut LOGITS.clone(), &[], position, &p, rules).unwrap();
            assert!(got.id == 3 || got.id == 4, "{} was drawn", got.id);
            assert_eq!(got.top.iter().map(|t| t.0).collect::<Vec<_>>(), [4, 3]);
        }
        let rules = Rules { forbidden: &[0, 3, 4], ..rules };
        let got = draw(&mut LOGITS.clone(), &[], 9, &SamplingParams::default(), rules);
        assert_eq!(got, Err(DrawError::NothingAllowed { position: 9 }));
    }

    #[test]
    fn a_damaged_model_is_an_error() {
        let draw = |logits: &mut [f32]| draw(logits, &[], 7, &SamplingParams::default(), Rules::default());
        assert_eq!(draw(&mut [0.0, f32::NAN]), Err(DrawError::NotANumber { position: 7 }));
        assert!(draw(&mut [0.0, f32::NEG_INFINITY]).is_ok());
    }
}
