//! InternLM2: Llama with q, k and v in one matrix, by key/value head. Paper: arXiv 2403.17297. Reference:
//! `mlx_lm/models/internlm2.py`.

use serde::Deserialize;

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::{Decoder, Names, Parts};
use crate::lm::nn::{Act, Attention, AttentionConfig, GatedMlp};
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    #[serde(default = "yes")]
    bias: bool,
}

fn yes() -> bool {
    true
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<PreNorm>> {
    let base = &Base {
        head_dim: None,
        attention_bias: Some(c.bias),
        max_position_embeddings: c.base.max_position_embeddings.or(Some(32_768)),
        ..c.base.clone()
    };
    let norm = base.rms()?;
    let attention = base.per_layer(|_| Ok(AttentionConfig { o_proj: "wo", ..base.attention()? }))?;
    let names = Names { embed_tokens: "tok_embeddings", lm_head: "output", ..Names::USUAL };
    let parts = Parts { names, ..Parts::new(base, false, norm, attention) };
    let w = w.without(|name| {
        name.ends_with("attention.rope.inv_freq") || (parts.tied && name.starts_with("output."))
    });
    let (dim, hidden) = (base.hidden_size, base.intermediate_size);
    Decoder::load(&parts, w, |w, attention| {
        let groups = attention.n_kv_heads;
        let mlp = ["w1", "w3", "w2"];
        Ok(PreNorm {
            input_layernorm: norm.load(w, "attention_norm", dim)?,
            self_attn: Attention::load_fused(&w.at("attention"), "wqkv", groups, attention)?,
            post_attention_layernorm: norm.load(w, "ffn_norm", dim)?,
            mlp: GatedMlp::load_named(&w.at("feed_forward"), mlp, [dim, hidden], false, Act::Silu)?,
        })
    })
}
