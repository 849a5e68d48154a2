//! The single stages, each as mlx-lm defines it.

use std::collections::BTreeMap;

use super::{Rules, noise};
use crate::protocol::{SamplingParams, TokenId};

/// Lanes of [`noise::uniform`] past every token id, for draws that belong to no token.
const XTC_LANE: u64 = 1 << 40;

/// Applies bias and penalties to raw logits, in place.
pub(super) fn process(logits: &mut [f32], history: &[TokenId], p: &SamplingParams) {
    for &(id, bias) in &p.logit_bias {
        if let Some(x) = logits.get_mut(id as usize) {
            *x += bias;
        }
    }
    if p.repetition_penalty != 1.0 {
        for_each_recent(logits, history, p.repetition_context_size, |x, _| {
            *x = if *x < 0.0 { *x * p.repetition_penalty } else { *x / p.repetition_penalty };
        });
    }
    if p.presence_penalty != 0.0 {
        for_each_recent(logits, history, p.presence_context_size, |x, _| *x -= p.presence_penalty);
    }
    if p.frequency_penalty != 0.0 {
        for_each_recent(logits, history, p.frequency_context_size, |x, n| {
            *x -= p.frequency_penalty * n as f32;
        });
    }
}

/// Takes away what may not be drawn.
pub(super) fn restrict(logits: &mut [f32], rules: Rules<'_>) {
    for &id in rules.forbidden {
        if let Some(x) = logits.get_mut(id as usize) {
            *x = f32::NEG_INFINITY;
        }
    }
    if let Some(allowed) = rules.allowed {
        for (id, x) in logits.iter_mut().enumerate() {
            if !allowed.contains(id as TokenId) {
                *x = f32::NEG_INFINITY;
            }
        }
    }
}

/// The `n` most probable tokens that are possible at all, the best first.
pub(super) fn top(logprobs: &[f32], n: usize) -> Vec<(TokenId, f32)> {
    if n == 0 {
        return Vec::new();
    }
    let possible = |id: &TokenId| f32::NEG_INFINITY < logprobs[*id as usize];
    let mut ids: Vec<TokenId> = (0..logprobs.len() as TokenId).filter(possible).collect();
    largest_first(&mut ids, logprobs, n);
    ids.truncate(n);
    ids.into_iter().map(|id| (id, logprobs[id as usize])).collect()
}

/// Visits the logit of every distinct token among the last `window` tokens, with its count there.
fn for_each_recent(
    logits: &mut [f32],
    history: &[TokenId],
    window: usize,
    mut f: impl FnMut(&mut f32, usize),
) {
    let mut counts = BTreeMap::new();
    for id in &history[history.len().saturating_sub(window)..] {
        *counts.entry(*id).or_insert(0) += 1;
    }
    for (id, n) in counts {
        if let Some(x) = logits.get_mut(id as usize) {
            f(x, n);
        }
    }
}

/// The ids that the filters keep: top-p, min-p, XTC, top-k, in this order.
pub(super) fn filter(logprobs: &[f32], position: usize, p: &SamplingParams) -> Vec<TokenId> {
    let mut kept: Vec<TokenId> = (0..logprobs.len() as TokenId).collect();
    if 0.0 < p.top_p && p.top_p < 1.0 {
        top_p(&mut kept, logprobs, p.top_p);
    }
    if p.min_p != 0.0 {
        min_p(&mut kept, logprobs, p.min_p, p.min_tokens_to_keep);
    }
    if noise::uniform(p.seed, position, XTC_LANE) <= f64::from(p.xtc_probability) {
        xtc(&mut kept, logprobs, p);
    }
    if 0 < p.top_k && p.top_k < kept.len() {
        largest_first(&mut kept, logprobs, p.top_k);
        kept.truncate(p.top_k);
    }
    kept
}

/// Keeps every token whose more probable tokens together weigh less than `top_p`, ties included.
fn top_p(kept: &mut Vec<TokenId>, logprobs: &[f32], top_p: f32) {
    let total: f32 = logprobs.iter().map(|x| x.exp()).sum();
    // The nucleus is usually tiny beside the vocabulary, so only as much as it needs is sorted.
    let mut n = 256.min(kept.len());
    loop {
        largest_first(kept, logprobs, n);
        let mut above = 0.0;
        for i in 0..n {
            let logprob = logprobs[kept[i] as usize];
            above += logprob.exp();
            if top_p * total <= above {
                kept.retain(|&id| logprob <= logprobs[id as usize]);
                return;
            }
        }
        if n == kept.len() {
            return;
        }
        n = (n * 4).min(kept.len());
    }
}

/// Drops tokens less than `min_p` times as probable as the most probable one.
fn min_p(kept: &mut Vec<TokenId>, logprobs: &[f32], min_p: f32, min_tokens_to_keep: usize) {
    let protected = min_tokens_to_keep.max(1).min(kept.len());
    largest_first(kept, logprobs, protected);
    let floor = logprobs[kept[0] as usize] + min_p.ln();
    let mut i = 0;
    kept.retain(|&id| {
        i += 1;
        i <= protected || floor <= logprobs[id as usize]
    });
}

/// Exclude top choices: of the tokens above the threshold, drops all but the least probable.
/// Special tokens stay. Source: the sampler's proposal in text-generation-webui (2024).
fn xtc(kept: &mut Vec<TokenId>, logprobs: &[f32], p: &SamplingParams) {
    let total: f32 = kept.iter().map(|&id| logprobs[id as usize].exp()).sum();
    let prob = |id: TokenId| logprobs[id as usize].exp() / total;
    let least =
        kept.iter().map(|&id| prob(id)).filter(|x| p.xtc_threshold < *x).fold(f32::INFINITY, f32::min);
    kept.retain(|&id| prob(id) <= least || p.xtc_special_tokens.contains(&id));
}

/// Brings the `n` most probable tokens to the front, in order; equals are ordered by id.
fn largest_first(kept: &mut [TokenId], logprobs: &[f32], n: usize) {
    let by =
        |a: &TokenId, b: &TokenId| logprobs[*b as usize].total_cmp(&logprobs[*a as usize]).then(a.cmp(b));
    if 0 < n && n < kept.len() {
        kept.select_nth_unstable_by(n - 1, by);
    }
    let n = n.min(kept.len());
    kept[..n].sort_unstable_by(by);
}
