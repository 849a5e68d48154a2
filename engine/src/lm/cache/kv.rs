//! Keys and values of one attention layer of one sequence, in one linear buffer.
//!
//! A full layer keeps every token. A sliding-window layer keeps the window and some slack in the same
//! layout, so that one token and many are written alike, and a round can be undone until it ends.

use super::{BLOCK, LayerBlock};
use mlx_core::attention::{KvBuffer, TILE};
use mlx_core::{Array, Dtype};

/// Buffers grow by at least this many positions.
const STEP: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSpec {
    pub n_heads: usize,
    pub head_dim: usize,
    pub v_head_dim: usize,
    /// Positions that a query sees, itself included; `None` sees all.
    pub window: Option<usize>,
}

#[derive(Clone)]
pub struct KvCache {
    spec: KvSpec,
    /// What keys and values are stored in; `None` takes the activations' type.
    dtype: Option<Dtype>,
    buffer: Option<KvBuffer>,
}

impl KvCache {
    pub fn new(spec: KvSpec, dtype: Option<Dtype>) -> Self {
        Self { spec, dtype, buffer: None }
    }

    /// Keys and values of the last positions before `end` that a later query may see, at most a block of them, as
    /// copies; `None` if they have gone.
    pub fn block(&self, end: usize) -> Option<LayerBlock> {
        let buffer = self.buffer.as_ref()?;
        let start = (end - self.per_block()).checked_sub(buffer.start as usize)? as i32;
        // A slice would keep the whole buffer, and the next write to it would have to copy.
        let copy = |x: &Array| {
            let part = x.slice(1, start..start + self.per_block() as i32);
            Array::zeros(part.shape(), part.dtype()).slice_update(&part, &[0, 0, 0])
        };
        Some(vec![copy(&buffer.k), copy(&buffer.v)])
    }

    /// A cache of `len` tokens whose last blocks are `blocks`.
    pub fn from_blocks(spec: KvSpec, blocks: &[&LayerBlock], len: usize) -> Self {
        let dtype = blocks.last().map(|block| block[0].dtype());
        let cache = Self::new(spec, dtype);
        let wanted = len - cache.first_visible(len);
        let n = wanted.div_ceil(cache.per_block()).min(blocks.len());
        let start = len - n * cache.per_block();
        let blocks = &blocks[blocks.len() - n..];
        let join = |i: usize| {
            let (heads, dim) = (blocks[0][i].dim(0), blocks[0][i].dim(2));
            let room = Array::zeros(&[heads, STEP as i32, dim], blocks[0][i].dtype());
            Array::concat(&blocks.iter().map(|b| &b[i]).chain([&room]).collect::<Vec<_>>(), 1)
        };
        let buffer = KvBuffer { k: join(0), v: join(1), start: start as i32 };
        Self { spec, dtype, buffer: Some(buffer) }
    }

    /// Positions of a block that a query after it can see, in whole tiles.
    fn per_block(&self) -> usize {
        self.spec.window.map_or(BLOCK, |w| BLOCK.min((w.max(2) - 1).next_multiple_of(TILE)))
    }

    pub fn arrays(&self) -> impl Iterator<Item = &Array> + use<'_> {
        self.buffer.iter().flat_map(|b| [&b.k, &b.v])
    }

    /// Whether the window of a query at position `len` is still held whole.
    pub fn reaches_back_to(&self, len: usize) -> bool {
        let start = self.buffer.as_ref().map_or(0, |b| b.start as usize);
        start <= self.first_visible(len)
    }

    /// First position that a query at position `len` sees.
    fn first_visible(&self, len: usize) -> usize {
        self.spec.window.map_or(0, |w| (len + 1).saturating_sub(w))
    }

    /// Hands out the buffer for a write of `n` tokens at position `len`, with room for them; what a query
    /// at `rollback_len` or later sees stays. The buffer must be [restored](Self::restore): while it is
    /// out it has one owner, so that MLX writes it in place.
    pub fn lend(&mut self, len: usize, rollback_len: usize, n: usize, dtype: Dtype) -> KvBuffer {
        let keep_from = self.first_visible(rollback_len) / TILE * TILE;
        let dtype = self.dtype.unwrap_or(dtype);
        match self.buffer.take() {
            None => self.allocate(keep_from, STEP.max(n.next_multiple_of(STEP)), dtype),
            Some(buffer) => {
                let (start, capacity) = (buffer.start as usize, buffer.k.dim(1) as usize);
                if len + n <= start + capacity {
                    return buffer;
                }
                self.moved(&buffer, keep_from.max(start), len, n)
            }
        }
    }

    pub fn restore(&mut self, buffer: KvBuffer) {
        self.buffer = Some(buffer);
    }

    /// A larger buffer that begins at position `from` and holds `buffer`'s positions `from..len`.
    fn moved(&self, buffer: &KvBuffer, from: usize, len: usize, n: usize) -> KvBuffer {
        // An eighth more at a time keeps the copies of a long sequence to a constant share of its work.
        let spare = (len - from) / 8;
        let capacity = (len - from + n + spare).next_multiple_of(STEP);
        let new = self.allocate(from, capacity, buffer.k.dtype());
        let start = buffer.start as usize;
        let old = (from - start) as i32..(len - start).next_multiple_of(TILE) as i32;
        let copy = |to: Array, x: &Array| match old.is_empty() {
            true => to,
            false => to.slice_update(&x.slice(1, old.clone()), &[0, 0, 0]),
        };
        KvBuffer { k: copy(new.k, &buffer.k), v: copy(new.v, &buffer.v), start: new.start }
    }

    fn allocate(&self, start: usize, capacity: usize, dtype: Dtype) -> KvBuffer {
        let s = &self.spec;
        let zeros = |dim: usize| Array::zeros(&[s.n_heads as i32, capacity as i32, dim as i32], dtype);
        KvBuffer { k: zeros(s.head_dim), v: zeros(s.v_head_dim), start: start as i32 }
    }
}
