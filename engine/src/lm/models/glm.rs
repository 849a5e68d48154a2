//! GLM-4 of 2024: Llama with neighbouring pairs rotated, and gate and up in one matrix. Paper: arXiv 2406.12793.
//! Reference: `mlx_lm/models/glm.py`, which rotates whole heads, whatever the config says.

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::{Decoder, Parts};
use crate::lm::nn::rope::RopeConfig;
use crate::lm::nn::{Act, Attention, AttentionConfig, GatedMlp};
use crate::weights::{Result, Weights};

pub fn load(c: &Base, w: Weights) -> Result<Decoder<PreNorm>> {
    let norm = c.rms()?;
    let rope = RopeConfig { traditional: true, scaling: None, ..c.rope(c.head_dim()) };
    let attention = c.per_layer(|_| Ok(AttentionConfig { o_bias: false, ..c.attention_of(&rope)? }))?;
    Decoder::load(&Parts::new(c, true, norm, attention), w, |w, attention| {
        let mlp = GatedMlp::load_fused(&w.at("mlp"), c.hidden_size, c.intermediate_size, Act::Silu)?;
        PreNorm::load(w, norm, c.hidden_size, Attention::load(&w.at("self_attn"), attention)?, mlp)
    })
}
