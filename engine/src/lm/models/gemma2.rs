//! Gemma 2: four centred norms a layer, capped attention scores and logits. Paper: arXiv 2408.00118. Reference:
//! `mlx_lm/models/gemma2.py`, which lets every layer see all positions.

use serde::Deserialize;

use super::base::{Base, missing};
use super::blocks::Sandwich;
use super::decoder::{Decoder, Parts};
use crate::lm::nn::{Act, Attention, AttentionConfig, GatedMlp, NormConfig};
use crate::weights::{Result, Weights};

/// Gemma's norms, in the order of use.
pub const NORMS: [&str; 4] = [
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
];

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    #[serde(default = "fifty")]
    attn_logit_softcapping: f32,
    #[serde(default = "thirty")]
    final_logit_softcapping: f32,
    #[serde(default = "scalar")]
    query_pre_attn_scalar: f32,
}

fn fifty() -> f32 {
    50.0
}
fn thirty() -> f32 {
    30.0
}
fn scalar() -> f32 {
    144.0
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<Sandwich>> {
    let base = &c.base;
    let norm = NormConfig::CentredRms { eps: base.rms_norm_eps.ok_or_else(|| missing("rms_norm_eps"))? };
    let attention = base.per_layer(|_| {
        Ok(AttentionConfig {
            scale: c.query_pre_attn_scalar.powf(-0.5),
            softcap: Some(c.attn_logit_softcapping),
            ..base.attention()?
        })
    })?;
    let decoder = load_layers(&Parts { tied: true, ..Parts::new(base, true, norm, attention) }, w)?;
    Ok(Decoder {
        embed_scale: Some((base.hidden_size as f32).sqrt()),
        softcap: Some(c.final_logit_softcapping),
        ..decoder
    })
}

/// Layers of Gemma 2 and 3.
pub fn load_layers(parts: &Parts<'_>, w: Weights) -> Result<Decoder<Sandwich>> {
    let dim = parts.base.hidden_size;
    Decoder::load(parts, w, |w, attention| {
        let mlp = GatedMlp::load(&w.at("mlp"), dim, parts.base.intermediate_size, false, Act::GeluTanh)?;
        let attention = Attention::load(&w.at("self_attn"), attention)?;
        Sandwich::load(w, NORMS, parts.norm, dim, (attention, mlp))
    })
}
