//! Per-sequence model state.
//!
//! [`SeqCache`] is everything that a model remembers about one sequence: one [`LayerCache`] per layer and
//! a single length. It supports three operations that the engine builds everything from:
//!
//! * `clone`: an O(1) fork. Arrays are immutable handles, so forks share buffers until a write.
//! * `rewind`: drop trailing tokens, where every layer can do so exactly.
//! * `begin`: a [`Round`], a transaction whose writes are kept or dropped as a prefix.

mod kv;

use std::ops::{Deref, DerefMut};

use mlx_core::{Array, Dtype};

pub use kv::{KvCache, KvSpec};

/// What a layer needs remembered, as data. Models return one per layer; the engine builds caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerSpec {
    Attention(KvSpec),
}

/// The memory of one layer of one sequence.
#[derive(Clone)]
pub enum LayerCache {
    Attention(KvCache),
}

/// What a layer keeps of a block of [`BLOCK`] tokens, detached from the cache that it came from.
pub type LayerBlock = Vec<Array>;

/// Tokens of a block: where attention's own blocks end, and prefixes may be cut.
pub const BLOCK: usize = 256;

/// How a layer's memory grows with the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Numbers kept for each token.
    pub per_token: usize,
    /// Tokens kept; `None` keeps all.
    pub window: Option<usize>,
    /// Bytes that don't grow.
    pub fixed: usize,
}

impl LayerSpec {
    pub fn growth(&self) -> Growth {
        match self {
            Self::Attention(kv) => {
                Growth { per_token: kv.n_heads * (kv.head_dim + kv.v_head_dim), window: kv.window, fixed: 0 }
            }
        }
    }
}

/// Some layer has already forgotten what a rewind would need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a cache of {len} tokens cannot drop its last {n} exactly")]
pub struct CannotRewind {
    pub len: usize,
    pub n: usize,
}

#[derive(Clone)]
pub struct SeqCache {
    layers: Vec<LayerCache>,
    // The only clock. Layers keep no offset of their own, so they cannot disagree about it.
    len: usize,
    /// Length at which the open round began: what a dropped round returns to.
    round_start: Option<usize>,
}

impl SeqCache {
    pub fn new(specs: &[LayerSpec]) -> Self {
        Self::stored_as(specs, None)
    }

    /// With keys and values stored in `kv`, instead of the type of the activations.
    pub fn stored_as(specs: &[LayerSpec], kv: Option<Dtype>) -> Self {
        let layer = |spec: &LayerSpec| match *spec {
            LayerSpec::Attention(spec) => LayerCache::Attention(KvCache::new(spec, kv)),
        };
        Self { layers: specs.iter().map(layer).collect(), len: 0, round_start: None }
    }

    /// A cache of `len` tokens from its blocks, first to last. A layer takes what it needs of them; the last block
    /// has something for every layer.
    pub fn from_blocks(specs: &[LayerSpec], blocks: &[&[Option<LayerBlock>]], len: usize) -> Self {
        let layer = |(i, spec): (usize, &LayerSpec)| match *spec {
            LayerSpec::Attention(spec) => {
                let parts: Vec<&LayerBlock> = blocks.iter().filter_map(|block| block[i].as_ref()).collect();
                LayerCache::Attention(KvCache::from_blocks(spec, &parts, len))
            }
        };
        Self { layers: specs.iter().enumerate().map(layer).collect(), len, round_start: None }
    }

    /// What each layer keeps of the block that ends at `end`; `None` for one that can't go on from there.
    pub fn block(&self, end: usize) -> Vec<Option<LayerBlock>> {
        let layer = |layer: &LayerCache| match layer {
            LayerCache::Attention(kv) => kv.block(end),
        };
        self.layers.iter().map(layer).collect()
    }

    /// Tokens remembered.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all buffers, room for growth included.
    pub fn nbytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }

    /// Every array held, for evaluation at the end of a step.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(|layer| match layer {
            LayerCache::Attention(kv) => kv.arrays(),
        })
    }

    pub(crate) fn layer(&mut self, i: usize) -> &mut LayerCache {
        &mut self.layers[i]
    }

    /// The position that the cache may have to return to: nothing that its window sees may be evicted.
    pub(crate) fn rollback_len(&self) -> usize {
        self.round_start.unwrap_or(self.len)
    }

    pub(crate) fn advance(&mut self, n: usize) {
        self.len += n;
    }

    /// Drops the last `n` tokens. Fails, changing nothing, if some layer cannot do so exactly.
    pub fn rewind(&mut self, n: usize) -> Result<(), CannotRewind> {
        let can = |layer: &LayerCache| match layer {
            LayerCache::Attention(kv) => kv.reaches_back_to(self.len - n),
        };
        if self.len < n || !self.layers.iter().all(can) {
            return Err(CannotRewind { len: self.len, n });
        }
        self.len -= n;
        Ok(())
    }

    /// Opens a round: forwards write provisionally until [`Round::commit`]; dropping it undoes them.
    ///
    /// The round borrows the cache, so nothing can fork, rewind or save a half-written cache:
    ///
    /// ```compile_fail,E0505
    /// # let mut cache = engine::lm::cache::SeqCache::new(&[]);
    /// let round = cache.begin();
    /// let fork = cache.clone();
    /// drop(cache);
    /// round.commit(0);
    /// ```
    pub fn begin(&mut self) -> Round<'_> {
        let start = self.len;
        self.round_start = Some(start);
        Round { cache: self, start, keep: 0 }
    }
}

/// Provisional writes to one sequence. Attention only ever appends, so undoing them is a matter of length.
pub struct Round<'a> {
    cache: &'a mut SeqCache,
    start: usize,
    keep: usize,
}

impl Round<'_> {
    /// Keeps the first `keep` tokens written in this round.
    ///
    /// # Panics
    /// If fewer were written.
    pub fn commit(mut self, keep: usize) {
        let written = self.cache.len - self.start;
        assert!(keep <= written, "cannot keep {keep} of {written} tokens");
        self.keep = keep;
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.cache.len = self.start + self.keep;
        self.cache.round_start = None;
    }
}

impl Deref for Round<'_> {
    type Target = SeqCache;
    fn deref(&self) -> &SeqCache {
        self.cache
    }
}

impl DerefMut for Round<'_> {
    fn deref_mut(&mut self) -> &mut SeqCache {
        self.cache
    }
}
