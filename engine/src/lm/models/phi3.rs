//! Phi-3 and Phi-4: Llama with q, k and v in one matrix, and gate and up in another. Paper: arXiv 2404.14219.
//! Reference: `mlx_lm/models/phi3.py`.

use serde::Deserialize;
use serde_json::{Value, json};

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::{Decoder, Parts};
use crate::lm::nn::{Act, Attention, AttentionConfig, GatedMlp};
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    #[serde(default = "original")]
    original_max_position_embeddings: usize,
}

fn original() -> usize {
    4096
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<PreNorm>> {
    let base = &c.base;
    let norm = base.rms()?;
    let mut rope = base.partial_rope(1.0);
    rope.max_position_embeddings = base.max_position_embeddings.unwrap_or(131_072);
    // The reference knows these scalings alone, and goes on without any other.
    rope.scaling = rope.scaling.filter(|scaling| {
        let kind = scaling.get("type").or(scaling.get("rope_type")).and_then(Value::as_str);
        matches!(kind, Some("longrope" | "su" | "linear"))
    });
    if let Some(scaling) = &mut rope.scaling {
        scaling.insert("original_max_position_embeddings".into(), json!(c.original_max_position_embeddings));
    }
    let attention = base
        .per_layer(|_| Ok(AttentionConfig { qkv_bias: false, o_bias: false, ..base.attention_of(&rope)? }))?;
    let (dim, hidden) = (base.hidden_size, base.intermediate_size);
    Decoder::load(&Parts::new(base, false, norm, attention), w, |w, attention| {
        let attention = Attention::load_fused(&w.at("self_attn"), "qkv_proj", 1, attention)?;
        PreNorm::load(w, norm, dim, attention, GatedMlp::load_fused(&w.at("mlp"), dim, hidden, Act::Silu)?)
    })
}
