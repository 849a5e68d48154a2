//! The contract between model graphs and the engine.
//!
//! A forward takes packed rows: the new tokens of all sequences end to end, `[ΣT, D]`. Everything but
//! attention runs once over all of them and never learns where one sequence ends.

pub mod cache;
pub mod models;
pub mod nn;
mod registry;

use mlx_core::Array;
use mlx_core::attention::{self, AttentionSpec};

use cache::{LayerCache, LayerSpec, SeqCache};

pub use registry::{SUPPORTED, build, check};

/// A causal language model: ids to embeddings, embeddings to hidden states, logits on request.
///
/// The three steps are separate because callers need the seams: prefill skips `logits` except for
/// the last position, drafters read hidden states, and media inputs replace embeddings.
pub trait CausalLm {
    fn layers(&self) -> &[LayerSpec];
    fn vocab_size(&self) -> usize;
    /// `[N]` ids to `[N, D]`.
    fn embed(&self, ids: &Array) -> Array;
    /// `[N, D]` embeddings to `[N, D]` final (normed) hidden states.
    fn forward(&self, h: Array, cx: &mut Forward<'_>) -> Array;
    /// `[N, D]` hidden states to `[N, vocab]`.
    fn logits(&self, h: &Array) -> Array;
}

/// One sequence's share of a forward: its next `tokens` packed rows.
pub struct Row<'a> {
    pub cache: &'a mut SeqCache,
    pub tokens: usize,
}

/// What a forward leaves behind: final hidden states, and those of tapped layers, in order.
#[derive(Clone)]
pub struct Hidden {
    /// `[N, D]`
    pub last: Array,
    /// `[N, D]` each.
    pub taps: Vec<Array>,
}

/// Runs embeddings `h: [N, D]` over `rows`, whose tokens add up to `N`, and advances each cache. The only
/// caller of [`CausalLm::forward`], so that no model can forget to advance a cache.
pub fn run(lm: &dyn CausalLm, h: Array, rows: &mut [Row<'_>], taps: &[usize]) -> Hidden {
    let n: usize = rows.iter().map(|row| row.tokens).sum();
    assert_eq!(n as i32, h.dim(0), "rows of {n} tokens were given embeddings of shape {:?}", h.shape());
    let (last, taps) = {
        let rows = rows.iter_mut().map(|row| Row { cache: &mut *row.cache, tokens: row.tokens });
        let mut cx = Forward { rows: rows.collect(), want: taps, taps: Vec::new() };
        (lm.forward(h, &mut cx), cx.taps)
    };
    for row in rows {
        row.cache.advance(row.tokens);
    }
    Hidden { last, taps }
}

/// One forward pass in progress.
pub struct Forward<'a> {
    rows: Vec<Row<'a>>,
    want: &'a [usize],
    taps: Vec<Array>,
}

impl Forward<'_> {
    /// The position of each packed token in its own sequence.
    pub fn positions(&self) -> Vec<usize> {
        self.rows.iter().flat_map(|row| row.cache.len()..row.cache.len() + row.tokens).collect()
    }

    /// Feeds `h: [N, D]` through `layers`, handing each its caches and recording tapped outputs.
    pub fn through<L>(
        &mut self,
        layers: &[L],
        mut h: Array,
        f: impl Fn(&L, Array, &mut LayerView<'_>) -> Array,
    ) -> Array {
        for (i, layer) in layers.iter().enumerate() {
            let rows = self.rows.iter_mut().map(|row| LayerRow {
                tokens: row.tokens,
                position: row.cache.len(),
                rollback_len: row.cache.rollback_len(),
                cache: row.cache.layer(i),
            });
            h = f(layer, h, &mut LayerView { rows: rows.collect() });
            if self.want.contains(&i) {
                self.taps.push(h.clone());
            }
        }
        h
    }
}

/// One layer's caches for the rows of a step: all that a block may do with memory.
pub struct LayerView<'a> {
    rows: Vec<LayerRow<'a>>,
}

struct LayerRow<'a> {
    tokens: usize,
    position: usize,
    rollback_len: usize,
    cache: &'a mut LayerCache,
}

impl LayerView<'_> {
    /// The position of each packed token in its own sequence.
    pub fn positions(&self) -> Vec<usize> {
        self.rows.iter().flat_map(|row| row.position..row.position + row.tokens).collect()
    }

    /// Appends `k: [N, Hkv·D]` and `v: [N, Hkv·Dv]` to each row's cache and attends `q: [N, H·D]` over what
    /// it then holds; returns `[N, H·Dv]`. Rotation and q/k norms are part of `spec`.
    pub fn attend(&mut self, q: &Array, k: &Array, v: &Array, spec: &AttentionSpec) -> Array {
        let rows = self.rows.iter_mut().map(|row| {
            let LayerCache::Attention(kv) = &mut *row.cache;
            attention::Row {
                tokens: row.tokens as i32,
                position: row.position as i32,
                kv: kv.lend(row.position, row.rollback_len, row.tokens, k.dtype()),
            }
        });
        let (out, buffers) = attention::attend(q, k, v, rows.collect(), spec);
        for (row, buffer) in self.rows.iter_mut().zip(buffers) {
            let LayerCache::Attention(kv) = &mut *row.cache;
            kv.restore(buffer);
        }
        out
    }
}
