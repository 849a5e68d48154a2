//! SmolLM3: Llama where every fourth layer has no rotation. Reference: `mlx_lm/models/smollm3.py`.

use serde::Deserialize;

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::Decoder;
use super::llama;
use crate::lm::nn::AttentionConfig;
use crate::weights::{LoadError, Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    #[serde(default = "four")]
    no_rope_layer_interval: usize,
    /// One number for each layer: 0 leaves the rotation out.
    no_rope_layers: Option<Vec<usize>>,
}

fn four() -> usize {
    4
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<PreNorm>> {
    let base = &c.base;
    if let Some(layers) = c.no_rope_layers.as_ref().filter(|l| l.len() != base.num_hidden_layers) {
        return Err(LoadError::Config(format!(
            "config.json: `no_rope_layers` has {} entries for {} layers",
            layers.len(),
            base.num_hidden_layers
        )));
    }
    let rotates = |i: usize| match &c.no_rope_layers {
        Some(layers) => layers[i] != 0,
        None => !(i + 1).is_multiple_of(c.no_rope_layer_interval),
    };
    let attention = base.per_layer(|i| {
        let attention = AttentionConfig { window: base.window(i)?, ..base.attention()? };
        Ok(AttentionConfig { rope: attention.rope.filter(|_| rotates(i)), ..attention })
    })?;
    llama::load_with(base, w, true, attention)
}
