//! Qwen2 and Qwen2.5: Llama with biases on q, k and v. Paper: arXiv 2412.15115. Reference: `mlx_lm/models/qwen2.py`.

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::Decoder;
use super::llama;
use crate::lm::nn::AttentionConfig;
use crate::weights::{Result, Weights};

pub fn load(c: &Base, w: Weights) -> Result<Decoder<PreNorm>> {
    let attention =
        c.per_layer(|_| Ok(AttentionConfig { qkv_bias: true, o_bias: false, ..c.attention()? }))?;
    llama::load_with(c, w, true, attention)
}
