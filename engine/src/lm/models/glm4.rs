//! GLM-4-0414: [`glm`](super::glm) with norms after each sublayer too, and a part of each head rotated. Reference:
//! `mlx_lm/models/glm4.py`.

use super::base::Base;
use super::blocks::Sandwich;
use super::decoder::{Decoder, Parts};
use crate::lm::nn::rope::RopeConfig;
use crate::lm::nn::{Act, Attention, AttentionConfig, GatedMlp};
use crate::weights::{Result, Weights};

const NORMS: [&str; 4] =
    ["input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"];

pub fn load(c: &Base, w: Weights) -> Result<Decoder<Sandwich>> {
    let norm = c.rms()?;
    let traditional = c.rope_traditional.unwrap_or(true);
    let rope = RopeConfig { traditional, scaling: None, ..c.partial_rope(1.0) };
    let attention = c.per_layer(|_| Ok(AttentionConfig { o_bias: false, ..c.attention_of(&rope)? }))?;
    let parts = Parts { tied: false, ..Parts::new(c, false, norm, attention) };
    Decoder::load(&parts, w, |w, attention| {
        let mlp = GatedMlp::load_fused(&w.at("mlp"), c.hidden_size, c.intermediate_size, Act::Silu)?;
        let attention = Attention::load(&w.at("self_attn"), attention)?;
        Sandwich::load(w, NORMS, norm, c.hidden_size, (attention, mlp))
    })
}
