//! GLM-4.5: experts scored by sigmoids after a few dense layers, one more that every token goes through, and half
//! of each head rotated. Paper: arXiv 2508.06471. Reference: `mlx_lm/models/glm4_moe.py`.

use mlx_core::experts::{Gating, Groups, Routing, Scores};
use serde::Deserialize;

use super::base::{Base, missing};
use super::blocks::PreNorm;
use super::decoder::{Decoder, Parts};
use super::qwen3_moe::NAMES;
use crate::lm::nn::rope::RopeConfig;
use crate::lm::nn::{
    Act, Attention, AttentionConfig, FeedForward, GatedMlp, Moe, MoeConfig, QkNorm, QkNormKind,
};
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    moe_intermediate_size: usize,
    norm_topk_prob: bool,
    n_group: usize,
    topk_group: usize,
    n_shared_experts: Option<usize>,
    n_routed_experts: Option<usize>,
    routed_scaling_factor: f32,
    num_experts_per_tok: usize,
    first_k_dense_replace: usize,
    use_qk_norm: bool,
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<PreNorm<Box<dyn FeedForward>>>> {
    let (b, dim) = (&c.base, c.base.hidden_size);
    let norm = QkNorm {
        kind: QkNormKind::Head,
        names: ["q_norm", "k_norm"],
        eps: b.rms_norm_eps.ok_or_else(|| missing("rms_norm_eps"))?,
    };
    let rope = RopeConfig { scaling: None, ..b.partial_rope(1.0) };
    let attention = b.per_layer(|_| {
        let qk_norm = c.use_qk_norm.then_some(norm);
        Ok(AttentionConfig { qk_norm, o_bias: false, ..b.attention_of(&rope)? })
    })?;
    // The layer past the last one predicts tokens further ahead.
    let further = format!("model.layers.{}.", b.num_hidden_layers);
    let w = w.without(|name| name.starts_with(&further));
    let w = w.stacked_experts("mlp.experts", "mlp.switch_mlp", &NAMES)?;
    let layer = std::cell::Cell::new(0);
    Decoder::load(&Parts::new(b, false, b.rms()?, attention), w, |w, attention| {
        let self_attn = Attention::load(&w.at("self_attn"), attention)?;
        let gated = |w: &Weights, hidden| GatedMlp::load(w, dim, hidden, false, Act::Silu);
        let (mlp, i) = (w.at("mlp"), layer.replace(layer.get() + 1));
        let mlp: Box<dyn FeedForward> = match c.n_routed_experts {
            Some(n) if c.first_k_dense_replace <= i => {
                let moe = Moe::load(&mlp, c.moe(n))?;
                Box::new(match c.n_shared_experts {
                    Some(k) => {
                        moe.with_shared(gated(&mlp.at("shared_experts"), c.moe_intermediate_size * k)?, None)
                    }
                    None => moe,
                })
            }
            _ => Box::new(gated(&mlp, b.intermediate_size)?),
        };
        PreNorm::load(w, b.rms()?, dim, self_attn, mlp)
    })
}

impl Config {
    fn moe(&self, n_experts: usize) -> MoeConfig {
        MoeConfig {
            dim: self.base.hidden_size,
            hidden: self.moe_intermediate_size,
            n_experts,
            router: "gate",
            experts: "switch_mlp",
            router_bias: false,
            bias: false,
            score_bias: Some("gate.e_score_correction_bias"),
            gating: Gating::Glu(Act::Silu),
            routing: Routing {
                k: self.num_experts_per_tok,
                scores: Scores::Sigmoid,
                normalize: self.norm_topk_prob && 1 < self.num_experts_per_tok,
                scale: self.routed_scaling_factor,
                bias: None,
                groups: (1 < self.n_group).then_some(Groups { n: self.n_group, kept: self.topk_group }),
            },
        }
    }
}
