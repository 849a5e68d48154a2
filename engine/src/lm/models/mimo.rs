//! MiMo: Qwen2 with layers that predict further tokens, which wait for a drafter. Paper: arXiv 2505.07608. Reference:
//! `mlx_lm/models/mimo.py`.

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::Decoder;
use super::qwen2;
use crate::weights::{Result, Weights};

pub fn load(c: &Base, w: Weights) -> Result<Decoder<PreNorm>> {
    let tied = Some(c.tie_word_embeddings.unwrap_or(false));
    let c = &Base { head_dim: None, tie_word_embeddings: tied, ..c.clone() };
    qwen2::load(c, w.without(|name| name.starts_with("model.mtp_layers.")))
}
