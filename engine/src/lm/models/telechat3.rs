//! TeleChat3: Llama, untied unless the config says so. Reference: `mlx_lm/models/telechat3.py`.

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::Decoder;
use super::llama;
use crate::weights::{Result, Weights};

pub fn load(c: &Base, w: Weights) -> Result<Decoder<PreNorm>> {
    let attention = c.per_layer(|_| c.attention())?;
    llama::load_with(c, w, false, attention)
}
