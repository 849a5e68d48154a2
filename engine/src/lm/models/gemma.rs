//! Gemma: Llama with centred norms, scaled embeddings and an exact GELU gate. Paper: arXiv 2403.08295. Reference:
//! `mlx_lm/models/gemma.py`.

use super::base::{Base, missing};
use super::blocks::PreNorm;
use super::decoder::{Decoder, Parts};
use crate::lm::nn::{Act, Attention, GatedMlp, NormConfig};
use crate::weights::{Result, Weights};

pub fn load(c: &Base, w: Weights) -> Result<Decoder<PreNorm>> {
    let norm = NormConfig::CentredRms { eps: c.rms_norm_eps.ok_or_else(|| missing("rms_norm_eps"))? };
    let attention = c.per_layer(|_| c.attention())?;
    let parts = Parts { tied: true, ..Parts::new(c, true, norm, attention) };
    let dim = c.hidden_size;
    let decoder = Decoder::load(&parts, w, |w, attention| {
        let mlp = GatedMlp::load(&w.at("mlp"), dim, c.intermediate_size, false, Act::Gelu)?;
        PreNorm::load(w, norm, dim, Attention::load(&w.at("self_attn"), attention)?, mlp)
    })?;
    Ok(Decoder { embed_scale: Some((dim as f32).sqrt()), ..decoder })
}
