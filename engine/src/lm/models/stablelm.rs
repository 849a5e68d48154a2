//! StableLM 2: layer norms, a part of each head rotated, feed-forward beside or after attention. Paper: arXiv
//! 2402.17834. Reference: `mlx_lm/models/stablelm.py`.

use mlx_core::Array;
use serde::Deserialize;

use super::base::Base;
use super::blocks::{Parallel, PreNorm};
use super::decoder::{Block, Decoder, Parts};
use crate::lm::LayerView;
use crate::lm::nn::{Act, Attention, AttentionConfig, GatedMlp, NormConfig, QkNorm, QkNormKind};
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    use_qkv_bias: bool,
    #[serde(default)]
    use_parallel_residual: bool,
    #[serde(default)]
    qk_layernorm: bool,
}

pub enum Layer {
    Parallel(Parallel),
    Sequential(PreNorm),
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<Layer>> {
    let base = &Base { head_dim: None, ..c.base.clone() };
    let eps = base.layer_norm_eps.unwrap_or(1e-5);
    let norm = NormConfig::Layer { eps, bias: true };
    let rope = base.partial_rope(0.25);
    let names = ["q_layernorm", "k_layernorm"];
    let attention = base.per_layer(|_| {
        Ok(AttentionConfig {
            qkv_bias: c.use_qkv_bias,
            o_bias: false,
            qk_norm: c.qk_layernorm.then_some(QkNorm { kind: QkNormKind::Layer, names, eps }),
            ..base.attention_of(&rope)?
        })
    })?;
    let parts = Parts { tied: false, ..Parts::new(base, false, norm, attention) };
    let dim = base.hidden_size;
    Decoder::load(&parts, w, |w, attention| {
        if c.qk_layernorm && !w.at("self_attn").has("q_layernorm.weight") {
            // A checkpoint has a vector for each head; a GGUF file has them as one.
            let w = w.at("self_attn");
            for (name, n) in names.into_iter().zip([attention.n_heads, attention.n_kv_heads]) {
                w.stack(&format!("{name}.norms"), n, attention.head_dim, name)?;
            }
        }
        let self_attn = Attention::load(&w.at("self_attn"), attention)?;
        let mlp = GatedMlp::load(&w.at("mlp"), dim, base.intermediate_size, false, Act::Silu)?;
        let input_layernorm = norm.load(w, "input_layernorm", dim)?;
        Ok(match c.use_parallel_residual {
            true => Layer::Parallel(Parallel { input_layernorm, self_attn, mlp_layernorm: None, mlp }),
            false => Layer::Sequential(PreNorm {
                input_layernorm,
                self_attn,
                post_attention_layernorm: norm.load(w, "post_attention_layernorm", dim)?,
                mlp,
            }),
        })
    })
}

impl Block for Layer {
    fn forward(&self, x: Array, cache: &mut LayerView<'_>) -> Array {
        match self {
            Self::Parallel(block) => block.forward(x, cache),
            Self::Sequential(block) => block.forward(x, cache),
        }
    }
}
