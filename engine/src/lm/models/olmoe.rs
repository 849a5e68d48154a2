//! OLMoE: experts everywhere, and norms over all heads of q and of k. Paper: arXiv 2409.02060. Reference:
//! `mlx_lm/models/olmoe.py`.

use mlx_core::experts::{Gating, Routing, Scores};
use serde::Deserialize;

use super::base::{Base, missing};
use super::blocks::PreNorm;
use super::decoder::{Decoder, Parts};
use super::qwen3_moe::NAMES;
use crate::lm::nn::{Act, Attention, AttentionConfig, Moe, MoeConfig, QkNorm, QkNormKind};
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    num_experts: usize,
    num_experts_per_tok: usize,
    #[serde(default)]
    norm_topk_prob: bool,
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<PreNorm<Moe>>> {
    let (b, dim) = (&c.base, c.base.hidden_size);
    let norm = QkNorm {
        kind: QkNormKind::Whole,
        names: ["q_norm", "k_norm"],
        eps: b.rms_norm_eps.ok_or_else(|| missing("rms_norm_eps"))?,
    };
    let attention = b.per_layer(|_| Ok(AttentionConfig { qk_norm: Some(norm), ..b.attention()? }))?;
    let w = w.stacked_experts("mlp.experts", "mlp.switch_mlp", &NAMES)?;
    Decoder::load(&Parts::new(b, true, b.rms()?, attention), w, |w, attention| {
        let self_attn = Attention::load(&w.at("self_attn"), attention)?;
        PreNorm::load(w, b.rms()?, dim, self_attn, Moe::load(&w.at("mlp"), c.moe())?)
    })
}

impl Config {
    fn moe(&self) -> MoeConfig {
        MoeConfig {
            dim: self.base.hidden_size,
            hidden: self.base.intermediate_size,
            n_experts: self.num_experts,
            router: "gate",
            experts: "switch_mlp",
            router_bias: false,
            bias: self.base.mlp_bias.unwrap_or(false),
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
