//! Qwen3: Llama with an RMS norm on each head of q and k. Paper: arXiv 2505.09388. Reference:
//! `mlx_lm/models/qwen3.py`.

use super::base::{Base, missing};
use super::blocks::PreNorm;
use super::decoder::Decoder;
use super::llama;
use crate::lm::nn::{AttentionConfig, QkNorm, QkNormKind};
use crate::weights::{Result, Weights};

pub fn load(c: &Base, w: Weights) -> Result<Decoder<PreNorm>> {
    let norm = QkNorm {
        kind: QkNormKind::Head,
        names: ["q_norm", "k_norm"],
        eps: c.rms_norm_eps.ok_or_else(|| missing("rms_norm_eps"))?,
    };
    let attention = c.per_layer(|_| {
        Ok(AttentionConfig { qk_norm: Some(norm), qkv_bias: false, o_bias: false, ..c.attention()? })
    })?;
    llama::load_with(c, w, true, attention)
}
