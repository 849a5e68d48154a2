//! Qwen1.5/2 with experts, and one that every token goes through, weighed by a gate. Paper: arXiv 2407.10671.
//! Reference: `mlx_lm/models/qwen2_moe.py`.

use mlx_core::experts::{Gating, Routing, Scores};
use serde::Deserialize;

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::{Decoder, Parts};
use super::qwen3_moe::NAMES;
use crate::lm::nn::{Act, Attention, AttentionConfig, GatedMlp, Moe, MoeConfig};
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    num_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    shared_expert_intermediate_size: usize,
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<PreNorm<Moe>>> {
    let base = Base { rope_theta: c.base.rope_theta.or(Some(1e6)), ..c.base.clone() };
    let (b, dim) = (&base, base.hidden_size);
    let attention =
        b.per_layer(|_| Ok(AttentionConfig { qkv_bias: true, o_bias: false, ..b.attention()? }))?;
    let w = w.stacked_experts("mlp.experts", "mlp.switch_mlp", &NAMES)?;
    Decoder::load(&Parts::new(b, false, b.rms()?, attention), w, |w, attention| {
        let self_attn = Attention::load(&w.at("self_attn"), attention)?;
        let mlp = w.at("mlp");
        let hidden = c.shared_expert_intermediate_size;
        let shared = GatedMlp::load(&mlp.at("shared_expert"), dim, hidden, false, Act::Silu)?;
        let gate = mlp.linear("shared_expert_gate", dim, 1, false)?;
        let moe = Moe::load(&mlp, c.moe())?.with_shared(shared, Some(gate));
        PreNorm::load(w, b.rms()?, dim, self_attn, moe)
    })
}

impl Config {
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
                normalize: false,
                scale: 1.0,
                bias: None,
                groups: None,
            },
        }
    }
}
