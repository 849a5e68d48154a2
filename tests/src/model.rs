//! A model without an engine: forwards over caches that the test holds.

use engine::lm::cache::SeqCache;
use engine::lm::{CausalLm, Row, run};
use mlx_core::Array;

/// Appends `rows` of tokens, packed into one forward, each to its cache; returns `[tokens, vocab]` logits of each.
pub fn logits(lm: &dyn CausalLm, rows: &mut [(&mut SeqCache, &[u32])]) -> Vec<Vec<f32>> {
    let ids: Vec<u32> = rows.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect();
    let widths: Vec<usize> = rows.iter().map(|(_, tokens)| tokens.len() * lm.vocab_size()).collect();
    let h = lm.embed(&Array::from_slice(&ids, &[ids.len() as i32]));
    let mut packed: Vec<Row<'_>> =
        rows.iter_mut().map(|(cache, tokens)| Row { cache, tokens: tokens.len() }).collect();
    let hidden = run(lm, h, &mut packed, &[]);
    let all = lm.logits(&hidden.last).to_vec::<f32>().expect("a tiny forward computes");
    let mut rest = &all[..];
    let mut split = |n| {
        let (row, tail) = rest.split_at(n);
        rest = tail;
        row.to_vec()
    };
    widths.into_iter().map(&mut split).collect()
}

/// Appends `tokens` to one cache.
pub fn extend(lm: &dyn CausalLm, cache: &mut SeqCache, tokens: &[u32]) -> Vec<f32> {
    logits(lm, &mut [(cache, tokens)]).remove(0)
}

/// The largest absolute difference.
///
/// # Panics
/// If the lengths differ.
pub fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    // Not `f32::max`, which would pass over NaN.
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, |worst, d| if d <= worst { worst } else { d })
}

/// The id of the largest logit.
pub fn argmax(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
    best.expect("a vocabulary is not empty") as u32
}
