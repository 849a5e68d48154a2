//! ERNIE 4.5: Llama with neighbouring pairs rotated and one switch for all biases. Reference:
//! `mlx_lm/models/ernie4_5.py`.

use serde::Deserialize;

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::Decoder;
use super::llama;
use crate::lm::nn::rope::RopeConfig;
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    use_bias: bool,
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<PreNorm>> {
    let bias = Some(c.use_bias);
    let base = &Base { attention_bias: bias, mlp_bias: bias, ..c.base.clone() };
    let rope = RopeConfig { traditional: true, scaling: None, ..base.rope(base.head_dim()) };
    let attention = base.per_layer(|_| base.attention_of(&rope))?;
    llama::load_with(base, w, true, attention)
}
