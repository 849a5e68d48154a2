//! gpt-oss: experts with clamped units and biases, windows on every other layer, and a sink for each head.
//! Paper: arXiv 2508.10925. Reference: `mlx_lm/models/gpt_oss.py`.

use mlx_core::Dtype;
use mlx_core::experts::{Gating, Routing, Scores};
use serde::Deserialize;

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::{Decoder, Parts};
use crate::lm::nn::{Attention, AttentionConfig, Moe, MoeConfig};
use crate::weights::{Result, Tensor, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<PreNorm<Moe>>> {
    let base = Base {
        rope_theta: c.base.rope_theta.or(Some(150_000.0)),
        rms_norm_eps: c.base.rms_norm_eps.or(Some(1e-5)),
        head_dim: c.base.head_dim.or(Some(64)),
        sliding_window: c.base.sliding_window.or(Some(128)),
        ..c.base.clone()
    };
    let (b, dim) = (&base, base.hidden_size);
    let attention = b.per_layer(|i| {
        let window = match &b.layer_types {
            Some(_) => b.window(i)?,
            None if i.is_multiple_of(2) => Some(b.sliding()?),
            None => None,
        };
        Ok(AttentionConfig { qkv_bias: true, o_bias: true, window, sinks: true, ..b.attention()? })
    })?;
    let parts = Parts { tied: false, ..Parts::new(b, false, b.rms()?, attention) };
    Decoder::load(&parts, adapt(w), |w, attention| {
        let self_attn = Attention::load(&w.at("self_attn"), attention)?;
        PreNorm::load(w, b.rms()?, dim, self_attn, Moe::load(&w.at("mlp"), c.moe())?)
    })
}

impl Config {
    fn moe(&self) -> MoeConfig {
        MoeConfig {
            dim: self.base.hidden_size,
            hidden: self.base.intermediate_size,
            n_experts: self.num_local_experts.unwrap_or(128),
            router: "router",
            experts: "experts",
            router_bias: true,
            bias: true,
            score_bias: None,
            gating: Gating::ClampedSwiglu { alpha: 1.702, limit: 7.0 },
            routing: Routing {
                k: self.num_experts_per_tok.unwrap_or(4),
                scores: Scores::SoftmaxOfChosen,
                normalize: false,
                scale: 1.0,
                bias: None,
                groups: None,
            },
        }
    }
}

/// The original checkpoint holds gate and up row by row in turn, and mxfp4 as `_blocks` of bytes beside `_scales`.
fn adapt(w: Weights) -> Weights {
    w.replaced(|name, tensor| {
        let (stem, part) = name.rsplit_once('.').unwrap_or(("", name));
        let (matrix, suffix) = match part {
            "gate_up_proj" | "gate_up_proj_blocks" => ("gate_up", "weight"),
            "gate_up_proj_scales" => ("gate_up", "scales"),
            "gate_up_proj_bias" => ("gate_up", "bias"),
            "down_proj" | "down_proj_blocks" => ("down", "weight"),
            "down_proj_scales" => ("down", "scales"),
            "down_proj_bias" => ("down", "bias"),
            _ => return None,
        };
        let tensor = if part.ends_with("_blocks") { words(tensor) } else { tensor.clone() };
        if matrix == "down" {
            return Some(vec![(format!("{stem}.down_proj.{suffix}"), tensor)]);
        }
        let half = |first| tensor.every(first, 2, 1);
        Some(vec![
            (format!("{stem}.gate_proj.{suffix}"), half(0)),
            (format!("{stem}.up_proj.{suffix}"), half(1)),
        ])
    })
}

/// `[E, out, groups, 16]` bytes as `[E, out, groups · 4]` words.
fn words(blocks: &Tensor) -> Tensor {
    let mut shape = blocks.shape.clone();
    let bytes = shape.pop().unwrap_or(16);
    if let Some(groups) = shape.last_mut() {
        *groups = *groups * bytes / 4;
    }
    blocks.viewed(shape, Dtype::Uint32)
}
