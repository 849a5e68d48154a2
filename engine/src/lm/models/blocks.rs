//! The ways to wire attention and a feed-forward block into a layer that more than one model has.

use mlx_core::Array;

use super::decoder::Block;
use crate::lm::LayerView;
use crate::lm::nn::{Attention, FeedForward, GatedMlp, Norm, NormConfig};
use crate::weights::{Result, Weights};

/// Norms before each sublayer: `h = x + attention(norm(x))`, `h + mlp(norm(h))`.
pub struct PreNorm<M = GatedMlp> {
    pub input_layernorm: Norm,
    pub self_attn: Attention,
    pub post_attention_layernorm: Norm,
    pub mlp: M,
}

impl<M> PreNorm<M> {
    /// With the norms' usual names.
    pub fn load(w: &Weights, norm: NormConfig, dim: usize, self_attn: Attention, mlp: M) -> Result<Self> {
        Ok(Self {
            input_layernorm: norm.load(w, "input_layernorm", dim)?,
            self_attn,
            post_attention_layernorm: norm.load(w, "post_attention_layernorm", dim)?,
            mlp,
        })
    }
}

impl<M: FeedForward> Block for PreNorm<M> {
    fn forward(&self, x: Array, cache: &mut LayerView<'_>) -> Array {
        let (y, norm) = self.input_layernorm.split(&x);
        let h = self.self_attn.forward_add(norm, &y, &x, cache);
        let (y, norm) = self.post_attention_layernorm.split(&h);
        self.mlp.forward_add(norm, &y, &h)
    }
}

/// [`PreNorm`] whose sublayers are multiplied by a number before they are added.
pub struct ScaledPreNorm {
    pub block: PreNorm,
    pub scale: f32,
}

impl Block for ScaledPreNorm {
    fn forward(&self, x: Array, cache: &mut LayerView<'_>) -> Array {
        let block = &self.block;
        let (y, norm) = block.input_layernorm.split(&x);
        let h = &x + &(&block.self_attn.forward(norm, &y, cache) * self.scale);
        let (y, norm) = block.post_attention_layernorm.split(&h);
        &h + &(&block.mlp.forward(norm, &y) * self.scale)
    }
}

/// Norms after each sublayer: `h = x + norm(attention(x))`, `h + norm(mlp(h))`.
pub struct PostNorm {
    self_attn: Attention,
    post_attention_layernorm: Norm,
    mlp: GatedMlp,
    post_feedforward_layernorm: Norm,
}

impl PostNorm {
    pub fn load(
        w: &Weights,
        norm: NormConfig,
        dim: usize,
        self_attn: Attention,
        mlp: GatedMlp,
    ) -> Result<Self> {
        Ok(Self {
            self_attn,
            post_attention_layernorm: norm.load(w, "post_attention_layernorm", dim)?,
            mlp,
            post_feedforward_layernorm: norm.load(w, "post_feedforward_layernorm", dim)?,
        })
    }
}

impl Block for PostNorm {
    fn forward(&self, x: Array, cache: &mut LayerView<'_>) -> Array {
        let r = self.self_attn.forward(None, &x, cache);
        let h = &x + &self.post_attention_layernorm.forward(&r);
        let r = self.mlp.forward(None, &h);
        &h + &self.post_feedforward_layernorm.forward(&r)
    }
}

/// Norms before and after each sublayer.
pub struct Sandwich {
    before_attention: Norm,
    self_attn: Attention,
    after_attention: Norm,
    before_mlp: Norm,
    mlp: GatedMlp,
    after_mlp: Norm,
}

impl Sandwich {
    /// `names` of the four norms, in the order of use.
    pub fn load(
        w: &Weights,
        names: [&str; 4],
        norm: NormConfig,
        dim: usize,
        (self_attn, mlp): (Attention, GatedMlp),
    ) -> Result<Self> {
        let norm = |i: usize| norm.load(w, names[i], dim);
        Ok(Self {
            before_attention: norm(0)?,
            self_attn,
            after_attention: norm(1)?,
            before_mlp: norm(2)?,
            mlp,
            after_mlp: norm(3)?,
        })
    }
}

impl Block for Sandwich {
    fn forward(&self, x: Array, cache: &mut LayerView<'_>) -> Array {
        let (y, norm) = self.before_attention.split(&x);
        let h = &x + &self.after_attention.forward(&self.self_attn.forward(norm, &y, cache));
        let (y, norm) = self.before_mlp.split(&h);
        &h + &self.after_mlp.forward(&self.mlp.forward(norm, &y))
    }
}

/// Attention and feed-forward side by side: `x + attention(norm(x)) + mlp(norm(x))`.
pub struct Parallel<M = GatedMlp> {
    pub input_layernorm: Norm,
    pub self_attn: Attention,
    /// A norm of its own for the feed-forward block; without one they share.
    pub mlp_layernorm: Option<Norm>,
    pub mlp: M,
}

impl<M: FeedForward> Block for Parallel<M> {
    fn forward(&self, x: Array, cache: &mut LayerView<'_>) -> Array {
        let (y, norm) = self.input_layernorm.split(&x);
        let h = self.self_attn.forward_add(norm, &y, &x, cache);
        let (y, norm) = match &self.mlp_layernorm {
            Some(own) => own.split(&x),
            None => (y, norm),
        };
        self.mlp.forward_add(norm, &y, &h)
    }
}
