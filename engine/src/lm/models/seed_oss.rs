//! Seed-OSS: Llama with biases of its own names. Reference: `mlx_lm/models/seed_oss.py`.

use serde::Deserialize;

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::Decoder;
use super::llama;
use crate::lm::nn::AttentionConfig;
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    #[serde(default)]
    attention_out_bias: bool,
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<PreNorm>> {
    let attention =
        c.base.per_layer(|_| Ok(AttentionConfig { o_bias: c.attention_out_bias, ..c.base.attention()? }))?;
    llama::load_with(&c.base, w, true, attention)
}
