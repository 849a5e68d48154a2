//! Mixtral: Llama whose feed-forward blocks are experts. Paper: arXiv 2401.04088. Reference:
//! `mlx_lm/models/mixtral.py`.

use mlx_core::experts::{Gating, Routing, Scores};
use serde::Deserialize;

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::{Decoder, Parts};
use crate::lm::nn::{Act, Attention, Moe, MoeConfig};
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<PreNorm<Moe>>> {
    let base = Base { rope_theta: c.base.rope_theta.or(Some(1e6)), ..c.base.clone() };
    let (b, dim) = (&base, base.hidden_size);
    let attention = b.per_layer(|_| b.attention())?;
    let w = w.stacked_experts("block_sparse_moe.experts", "block_sparse_moe.switch_mlp", &NAMES)?;
    Decoder::load(&Parts::new(b, false, b.rms()?, attention), w, |w, attention| {
        let self_attn = Attention::load(&w.at("self_attn"), attention)?;
        PreNorm::load(w, b.rms()?, dim, self_attn, Moe::load(&w.at("block_sparse_moe"), c.moe())?)
    })
}

/// A checkpoint's names of one expert's matrices, and those of the stacks.
const NAMES: [(&str, &str); 3] = [("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj")];

impl Config {
    fn moe(&self) -> MoeConfig {
        MoeConfig {
            dim: self.base.hidden_size,
            hidden: self.base.intermediate_size,
            n_experts: self.num_local_experts.unwrap_or(8),
            router: "gate",
            experts: "switch_mlp",
            router_bias: false,
            bias: false,
            score_bias: None,
            gating: Gating::Glu(Act::Silu),
            routing: Routing {
                k: self.num_experts_per_tok.unwrap_or(2),
                scores: Scores::SoftmaxOfChosen,
                normalize: false,
                scale: 1.0,
                bias: None,
                groups: None,
            },
        }
    }
}
