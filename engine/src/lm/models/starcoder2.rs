//! StarCoder2: layer norms, biases everywhere, a feed-forward block without a gate. Paper: arXiv 2402.19173.
//! Reference: `mlx_lm/models/starcoder2.py`.

use mlx_core::Array;
use serde::Deserialize;

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::{Decoder, Parts};
use crate::lm::nn::rope::RopeConfig;
use crate::lm::nn::{Attention, NormConfig, PlainMlp, PlainMlpConfig};
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    #[serde(default = "epsilon")]
    norm_epsilon: f32,
}

fn epsilon() -> f32 {
    1e-5
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<PreNorm<PlainMlp>>> {
    let base = &Base { head_dim: None, attention_bias: Some(true), ..c.base.clone() };
    let norm = NormConfig::Layer { eps: c.norm_epsilon, bias: true };
    let theta = base.rope_theta.unwrap_or(100_000.0);
    let rope = RopeConfig { theta, traditional: false, scaling: None, ..base.rope(base.head_dim()) };
    let attention = base.per_layer(|_| base.attention_of(&rope))?;
    let mlp = PlainMlpConfig {
        dim: base.hidden_size,
        hidden: base.intermediate_size,
        names: ["c_fc", "c_proj"],
        bias: true,
        act: Array::gelu,
    };
    Decoder::load(&Parts::new(base, true, norm, attention), w, |w, attention| {
        let attention = Attention::load(&w.at("self_attn"), attention)?;
        PreNorm::load(w, norm, base.hidden_size, attention, PlainMlp::load(&w.at("mlp"), &mlp)?)
    })
}
