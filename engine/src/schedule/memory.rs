//! What a sequence's cache takes, from its length alone.

/// Bytes of one sequence's cache, as a function of its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheCost {
    /// State that doesn't grow.
    pub fixed: usize,
    /// Layers that keep tokens.
    pub layers: Vec<LayerCost>,
}

/// Layers of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerCost {
    /// Of all layers of the kind together.
    pub bytes_per_token: usize,
    /// Tokens kept; `None` keeps all.
    pub window: Option<usize>,
}

/// Buffers grow by this many tokens.
const STEP: usize = 256;

impl CacheCost {
    /// For `len` tokens, room for growth included.
    pub fn bytes(&self, len: usize) -> usize {
        let layer = |l: &LayerCost| {
            let kept = l.window.map_or(len, |w| len.min(w + STEP));
            // A buffer that was enlarged has an eighth to spare.
            let room = kept.saturating_add(kept / 8).saturating_add(STEP);
            l.bytes_per_token.saturating_mul(room)
        };
        self.layers.iter().map(layer).fold(self.fixed, usize::saturating_add)
    }

    /// The greatest length up to `most` whose cache takes no more than `budget`.
    pub fn longest(&self, budget: usize, most: usize) -> usize {
        let (mut fits, mut over) = (0, most + 1);
        while fits + 1 < over {
            let middle = fits + (over - fits) / 2;
            match self.bytes(middle) <= budget {
                true => fits = middle,
                false => over = middle,
            }
        }
        fits
    }
}
