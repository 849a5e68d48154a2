//! Granite 3: Llama with factors on embeddings, scores, sublayers and logits. Reference:
//! `mlx_lm/models/granite.py`.

use serde::Deserialize;

use super::base::Base;
use super::blocks::{PreNorm, ScaledPreNorm};
use super::decoder::{Decoder, Parts};
use crate::lm::nn::{Act, Attention, AttentionConfig, GatedMlp};
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    logits_scaling: f32,
    attention_multiplier: f32,
    embedding_multiplier: f32,
    residual_multiplier: f32,
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<ScaledPreNorm>> {
    let base = &Base { head_dim: None, ..c.base.clone() };
    let norm = base.rms()?;
    let attention =
        base.per_layer(|_| Ok(AttentionConfig { scale: c.attention_multiplier, ..base.attention()? }))?;
    let decoder = Decoder::load(&Parts::new(base, true, norm, attention), w, |w, attention| {
        let (dim, bias) = (base.hidden_size, base.mlp_bias.unwrap_or(false));
        let mlp = GatedMlp::load(&w.at("mlp"), dim, base.intermediate_size, bias, Act::Silu)?;
        let attention = Attention::load(&w.at("self_attn"), attention)?;
        let block = PreNorm::load(w, norm, dim, attention, mlp)?;
        Ok(ScaledPreNorm { block, scale: c.residual_multiplier })
    })?;
    Ok(Decoder {
        embed_scale: Some(c.embedding_multiplier),
        logit_scale: Some(1.0 / c.logits_scaling),
        ..decoder
    })
}
