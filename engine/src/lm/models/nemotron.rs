//! Nemotron-4 and Minitron: layer norms of which checkpoints hold `weight - 1`, squared ReLU, a part of each head
//! rotated. Paper: arXiv 2402.16819. Reference: `mlx_lm/models/nemotron.py`.

use serde::Deserialize;

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::{Decoder, Parts};
use crate::lm::nn::{Attention, NormConfig, PlainMlp, PlainMlpConfig, relu_squared};
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    norm_eps: f32,
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<PreNorm<PlainMlp>>> {
    let base = &c.base;
    let norm = NormConfig::CentredLayer { eps: c.norm_eps };
    let rope = base.partial_rope(0.5);
    let attention = base.per_layer(|_| base.attention_of(&rope))?;
    let mlp = PlainMlpConfig {
        dim: base.hidden_size,
        hidden: base.intermediate_size,
        names: ["up_proj", "down_proj"],
        bias: base.mlp_bias.unwrap_or(false),
        act: relu_squared,
    };
    Decoder::load(&Parts::new(base, false, norm, attention), w, |w, attention| {
        let attention = Attention::load(&w.at("self_attn"), attention)?;
        PreNorm::load(w, norm, base.hidden_size, attention, PlainMlp::load(&w.at("mlp"), &mlp)?)
    })
}
