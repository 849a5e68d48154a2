//! What stands around the layers of nearly every decoder: an embedding, a last norm, and the output projection.

use mlx_core::Array;

use super::base::Base;
use crate::lm::cache::LayerSpec;
use crate::lm::nn::{AttentionConfig, Embedding, Linear, Norm, NormConfig};
use crate::lm::{CausalLm, Forward, LayerView};
use crate::weights::{Result, Weights};

/// A layer: `[N, D] → [N, D]`.
pub trait Block {
    fn forward(&self, x: Array, cache: &mut LayerView<'_>) -> Array;
}

pub struct Decoder<B> {
    pub embed_tokens: Embedding,
    /// A factor on embeddings.
    pub embed_scale: Option<f32>,
    pub layers: Vec<B>,
    pub norm: Norm,
    pub lm_head: Linear,
    /// A factor on logits.
    pub logit_scale: Option<f32>,
    /// Logits become `cap · tanh(logit / cap)`, after their factor.
    pub softcap: Option<f32>,
    pub specs: Vec<LayerSpec>,
    pub vocab_size: usize,
}

/// What the parts of a checkpoint are called.
pub struct Names {
    pub root: &'static str,
    pub embed_tokens: &'static str,
    pub layers: &'static str,
    pub norm: &'static str,
    pub lm_head: &'static str,
}

impl Names {
    pub const USUAL: Self = Self {
        root: "model",
        embed_tokens: "embed_tokens",
        layers: "layers",
        norm: "norm",
        lm_head: "lm_head",
    };
}

/// What a decoder is made of, besides its layers.
pub struct Parts<'a> {
    pub base: &'a Base,
    pub names: Names,
    pub tied: bool,
    pub lm_head_bias: bool,
    pub norm: NormConfig,
    /// One for each layer.
    pub attention: Vec<AttentionConfig>,
}

impl<'a> Parts<'a> {
    pub fn new(base: &'a Base, tied: bool, norm: NormConfig, attention: Vec<AttentionConfig>) -> Self {
        let tied = base.tie_word_embeddings.unwrap_or(tied);
        Self { base, names: Names::USUAL, tied, lm_head_bias: false, norm, attention }
    }
}

impl<B> Decoder<B> {
    /// Loads everything at `w`, each layer by `block`, and fails if the checkpoint holds more.
    pub fn load(
        parts: &Parts<'_>,
        w: Weights,
        block: impl Fn(&Weights, AttentionConfig) -> Result<B>,
    ) -> Result<Self> {
        let (c, names) = (parts.base, &parts.names);
        // Tied checkpoints may hold a copy of the embedding; early conversions carry rotary tables.
        let is_head = |name: &str| {
            let own = name.strip_prefix(names.lm_head).is_some_and(|kind| kind.starts_with('.'));
            own || name.contains("lm_head.")
        };
        let w = w.without(|name| name.ends_with("rotary_emb.inv_freq") || (parts.tied && is_head(name)));
        let model = if names.root.is_empty() { w.clone() } else { w.at(names.root) };
        let embed_tokens = model.embedding(names.embed_tokens, c.vocab_size, c.hidden_size)?;
        let decoder = Self {
            lm_head: match parts.tied {
                true => embed_tokens.as_linear(),
                false => w.linear(names.lm_head, c.hidden_size, c.vocab_size, parts.lm_head_bias)?,
            },
            embed_tokens,
            embed_scale: None,
            layers: model
                .layers(names.layers, c.num_hidden_layers, |i, w| block(&w, parts.attention[i].clone()))?,
            norm: parts.norm.load(&model, names.norm, c.hidden_size)?,
            logit_scale: None,
            softcap: None,
            specs: parts.attention.iter().map(AttentionConfig::layer).collect(),
            vocab_size: c.vocab_size,
        };
        drop(model);
        w.finish()?;
        Ok(decoder)
    }
}

impl<B: Block> CausalLm for Decoder<B> {
    fn layers(&self) -> &[LayerSpec] {
        &self.specs
    }
    fn vocab_size(&self) -> usize {
        self.vocab_size
    }
    fn embed(&self, ids: &Array) -> Array {
        let h = self.embed_tokens.forward(ids);
        self.embed_scale.map_or(h.clone(), |scale| &h * scale)
    }
    fn forward(&self, h: Array, cx: &mut Forward<'_>) -> Array {
        self.norm.forward(&cx.through(&self.layers, h, B::forward))
    }
    fn logits(&self, h: &Array) -> Array {
        self.logits_of(h)
    }
}

impl<B> Decoder<B> {
    /// `[N, D]` hidden states to `[N, vocab]`.
    pub fn logits_of(&self, h: &Array) -> Array {
        let mut logits = self.lm_head.forward(h);
        if let Some(scale) = self.logit_scale {
            logits = &logits * scale;
        }
        if let Some(cap) = self.softcap {
            logits = &(&logits * (1.0 / cap)).tanh() * cap;
        }
        logits
    }
}
