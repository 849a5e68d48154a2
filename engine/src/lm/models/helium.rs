//! Helium: Llama with neighbouring pairs rotated. Reference: `mlx_lm/models/helium.py`.

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::Decoder;
use super::llama;
use crate::lm::nn::AttentionConfig;
use crate::lm::nn::rope::RopeConfig;
use crate::weights::{Result, Weights};

pub fn load(c: &Base, w: Weights) -> Result<Decoder<PreNorm>> {
    let c = &Base { head_dim: None, ..c.clone() };
    let rope = RopeConfig { traditional: true, scaling: None, ..c.rope(c.head_dim()) };
    let attention = c.per_layer(|_| Ok(AttentionConfig { o_bias: false, ..c.attention_of(&rope)? }))?;
    llama::load_with(c, w, false, attention)
}
