//! Qwen3 with experts in place of some or all feed-forward blocks. Paper: arXiv 2505.09388. Reference:
//! `mlx_lm/models/qwen3_moe.py`.

use mlx_core::experts::{Gating, Routing, Scores};
use serde::Deserialize;

use super::base::{Base, missing};
use super::blocks::PreNorm;
use super::decoder::{Decoder, Parts};
use crate::lm::nn::{
    Act, Attention, AttentionConfig, FeedForward, GatedMlp, Moe, MoeConfig, QkNorm, QkNormKind,
};
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    num_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    decoder_sparse_step: usize,
    mlp_only_layers: Vec<usize>,
    norm_topk_prob: bool,
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<PreNorm<Box<dyn FeedForward>>>> {
    let (b, dim) = (&c.base, c.base.hidden_size);
    let norm = QkNorm {
        kind: QkNormKind::Head,
        names: ["q_norm", "k_norm"],
        eps: b.rms_norm_eps.ok_or_else(|| missing("rms_norm_eps"))?,
    };
    let attention = b.per_layer(|_| {
        Ok(AttentionConfig { qk_norm: Some(norm), qkv_bias: false, o_bias: false, ..b.attention()? })
    })?;
    let w = w.stacked_experts("mlp.experts", "mlp.switch_mlp", &NAMES)?;
    let layer = std::cell::Cell::new(0);
    Decoder::load(&Parts::new(b, false, b.rms()?, attention), w, |w, attention| {
        let self_attn = Attention::load(&w.at("self_attn"), attention)?;
        let mlp: Box<dyn FeedForward> = match c.has_experts(layer.replace(layer.get() + 1)) {
            true => Box::new(Moe::load(&w.at("mlp"), c.moe())?),
            false => {
                let mlp = GatedMlp::load(&w.at("mlp"), dim, b.intermediate_size, false, Act::Silu)?;
                Box::new(mlp)
            }
        };
        PreNorm::load(w, b.rms()?, dim, self_attn, mlp)
    })
}

/// A checkpoint's names of one expert's matrices, and those of the stacks.
pub const NAMES: [(&str, &str); 3] =
    [("gate_proj", "gate_proj"), ("up_proj", "up_proj"), ("down_proj", "down_proj")];

impl Config {
    fn has_experts(&self, layer: usize) -> bool {
        let step = self.decoder_sparse_step.max(1);
        !self.mlp_only_layers.contains(&layer) && 0 < self.num_experts && (layer + 1).is_multiple_of(step)
    }

    fn moe(&self) -> MoeConfig {
        MoeConfig {
            dim: self.base.hidden_size,
            hidden: self.moe_intermediate_size,
            n_experts: self.num_experts,
            router: "gate",
            experts: "switch_mlp",
            router_bias: false,
            bias: false,
            score_bias: None,
            gating: Gating::Glu(Act::Silu),
            routing: Routing {
                k: self.num_experts_per_tok,
                scores: Scores::Softmax,
                normalize: self.norm_topk_prob,
                scale: 1.0,
                bias: None,
                groups: None,
            },
        }
    }
}
