//! Llama and those that share its graph: pre-norm blocks, grouped-query attention, SwiGLU.
//!
//! Papers: arXiv 2302.13971, 2407.21783. Reference: `mlx_lm/models/llama.py`.

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::{Decoder, Parts};
use crate::lm::nn::{Act, Attention, AttentionConfig, GatedMlp};
use crate::weights::{Result, Weights};

pub fn load(c: &Base, w: Weights) -> Result<Decoder<PreNorm>> {
    let attention = c.per_layer(|i| Ok(AttentionConfig { window: c.window(i)?, ..c.attention()? }))?;
    load_with(c, w, true, attention)
}

/// A model that differs from Llama in its attention's options only. `tied` is what config.json means by silence.
pub fn load_with(
    c: &Base,
    w: Weights,
    tied: bool,
    attention: Vec<AttentionConfig>,
) -> Result<Decoder<PreNorm>> {
    let norm = c.rms()?;
    Decoder::load(&Parts::new(c, tied, norm, attention), w, |w, attention| {
        let bias = c.mlp_bias.unwrap_or(false);
        let mlp = GatedMlp::load(&w.at("mlp"), c.hidden_size, c.intermediate_size, bias, Act::Silu)?;
        PreNorm::load(w, norm, c.hidden_size, Attention::load(&w.at("self_attn"), attention)?, mlp)
    })
}
