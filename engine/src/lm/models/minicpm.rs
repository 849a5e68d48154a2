//! MiniCPM: Llama with factors on embeddings, sublayers and, where it is not tied, the output projection. Paper: arXiv
//! 2404.06395. Reference: `mlx_lm/models/minicpm.py`.

use serde::Deserialize;

use super::base::Base;
use super::blocks::{PreNorm, ScaledPreNorm};
use super::decoder::{Decoder, Parts};
use crate::lm::nn::{Act, Attention, GatedMlp};
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    dim_model_base: f32,
    scale_depth: f32,
    scale_emb: f32,
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<ScaledPreNorm>> {
    let base = &Base {
        head_dim: None,
        attention_bias: None,
        rope_theta: c.base.rope_theta.or(Some(1e6)),
        ..c.base.clone()
    };
    let norm = base.rms()?;
    let scale = c.scale_depth / (base.num_hidden_layers as f32).sqrt();
    let attention = base.per_layer(|_| base.attention())?;
    let configured = Parts::new(base, false, norm, attention);
    let logit_scale = (!configured.tied).then(|| c.dim_model_base / base.hidden_size as f32);
    // Some checkpoints that are not tied leave out the matrix and mean the embedding.
    let tied = configured.tied || !w.has("lm_head.weight");
    let decoder = Decoder::load(&Parts { tied, ..configured }, w, |w, attention| {
        let dim = base.hidden_size;
        let mlp = GatedMlp::load(&w.at("mlp"), dim, base.intermediate_size, false, Act::Silu)?;
        let attention = Attention::load(&w.at("self_attn"), attention)?;
        Ok(ScaledPreNorm { block: PreNorm::load(w, norm, dim, attention, mlp)?, scale })
    })?;
    Ok(Decoder { embed_scale: Some(c.scale_emb), logit_scale, ..decoder })
}
