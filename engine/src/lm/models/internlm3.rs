//! InternLM3: Llama with biases of its own names. Reference: `mlx_lm/models/internlm3.py`.

use serde::Deserialize;

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::Decoder;
use super::llama;
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    /// Of the feed-forward block.
    #[serde(default)]
    bias: bool,
    /// Of attention, its output projection included.
    #[serde(default)]
    qkv_bias: bool,
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<PreNorm>> {
    let base = &Base {
        attention_bias: Some(c.qkv_bias),
        mlp_bias: Some(c.bias),
        head_dim: None,
        max_position_embeddings: c.base.max_position_embeddings.or(Some(32_768)),
        ..c.base.clone()
    };
    let attention = base.per_layer(|_| base.attention())?;
    llama::load_with(base, w, false, attention)
}
