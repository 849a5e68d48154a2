//! Phi-1 to Phi-2: attention and feed-forward side by side on one layer norm, biases everywhere. Reference:
//! `mlx_lm/models/phi.py`.

use mlx_core::Array;

use super::base::Base;
use super::blocks::Parallel;
use super::decoder::{Decoder, Names, Parts};
use crate::lm::nn::{Attention, AttentionConfig, NormConfig, PlainMlp, PlainMlpConfig};
use crate::weights::{Result, Weights};

pub fn load(c: &Base, w: Weights) -> Result<Decoder<Parallel<PlainMlp>>> {
    let c = &Base { head_dim: None, attention_bias: Some(true), rope_scaling: None, ..c.clone() };
    let norm = NormConfig::Layer { eps: c.layer_norm_eps.unwrap_or(1e-5), bias: true };
    let rope = c.partial_rope(0.4);
    let attention = c.per_layer(|_| Ok(AttentionConfig { o_proj: "dense", ..c.attention_of(&rope)? }))?;
    let dim = c.hidden_size;
    let mlp = PlainMlpConfig {
        dim,
        hidden: c.intermediate_size,
        names: ["fc1", "fc2"],
        bias: true,
        act: Array::gelu_approx,
    };
    let names = Names { norm: "final_layernorm", ..Names::USUAL };
    let parts = Parts { names, tied: false, lm_head_bias: true, ..Parts::new(c, false, norm, attention) };
    Decoder::load(&parts, w, |w, attention| {
        Ok(Parallel {
            input_layernorm: norm.load(w, "input_layernorm", dim)?,
            self_attn: Attention::load(&w.at("self_attn"), attention)?,
            mlp_layernorm: None,
            mlp: PlainMlp::load(&w.at("mlp"), &mlp)?,
        })
    })
}
