//! GPT-NeoX and Pythia: layer norms, q, k and v of each head side by side in one matrix, a part of each head rotated,
//! attention and feed-forward on one input. Paper: arXiv 2204.06745. Reference: `mlx_lm/models/gpt_neox.py`.

use mlx_core::Array;
use serde::Deserialize;

use super::base::Base;
use super::blocks::{Parallel, PreNorm};
use super::decoder::{Block, Decoder, Names, Parts};
use crate::lm::LayerView;
use crate::lm::nn::{Attention, AttentionConfig, NormConfig, PlainMlp, PlainMlpConfig};
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    layer_norm_eps: f32,
    rotary_emb_base: f64,
    rotary_pct: f64,
    #[serde(default = "yes")]
    use_parallel_residual: bool,
}

fn yes() -> bool {
    true
}

pub enum Layer {
    Parallel(Parallel<PlainMlp>),
    Sequential(PreNorm<PlainMlp>),
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<Layer>> {
    let base = &Base { attention_bias: Some(true), rope_theta: Some(c.rotary_emb_base), ..c.base() };
    let norm = NormConfig::Layer { eps: c.layer_norm_eps, bias: true };
    let rope = base.partial_rope(c.rotary_pct);
    let attention =
        base.per_layer(|_| Ok(AttentionConfig { o_proj: "dense", ..base.attention_of(&rope)? }))?;
    let dim = base.hidden_size;
    let mlp = PlainMlpConfig {
        dim,
        hidden: base.intermediate_size,
        names: ["dense_h_to_4h", "dense_4h_to_h"],
        bias: true,
        act: Array::gelu_approx,
    };
    let names = Names {
        root: "",
        embed_tokens: "model.embed_in",
        layers: "model.h",
        norm: "model.final_layer_norm",
        lm_head: "model.embed_out",
    };
    let parts = Parts { names, tied: false, ..Parts::new(base, false, norm, attention) };
    Decoder::load(&parts, w.renamed(name), |w, attention| {
        let attention = Attention::load_fused(
            &w.at("attention"),
            "query_key_value",
            base.num_attention_heads,
            attention,
        )?;
        let mlp = PlainMlp::load(&w.at("mlp"), &mlp)?;
        let block = PreNorm::load(w, norm, dim, attention, mlp)?;
        Ok(match c.use_parallel_residual {
            false => Layer::Sequential(block),
            true => Layer::Parallel(Parallel {
                input_layernorm: block.input_layernorm,
                self_attn: block.self_attn,
                mlp_layernorm: Some(block.post_attention_layernorm),
                mlp: block.mlp,
            }),
        })
    })
}

impl Config {
    fn base(&self) -> Base {
        Base {
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            intermediate_size: 4 * self.hidden_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            ..Base::default()
        }
    }
}

/// Published checkpoints have masks and other names for the layers.
fn name(name: &str) -> Option<String> {
    let masks = [".attention.bias", ".attention.masked_bias"];
    if masks.iter().any(|mask| name.ends_with(mask)) {
        return None;
    }
    let inner = name.strip_prefix("model.").unwrap_or(name);
    let inner = inner.strip_prefix("gpt_neox.").unwrap_or(inner);
    let inner = inner.strip_prefix("layers.").map_or(inner.to_owned(), |rest| format!("h.{rest}"));
    Some(format!("model.{inner}"))
}

impl Block for Layer {
    fn forward(&self, x: Array, cache: &mut LayerView<'_>) -> Array {
        match self {
            Self::Parallel(block) => block.forward(x, cache),
            Self::Sequential(block) => block.forward(x, cache),
        }
    }
}
