//! Ministral 3: Llama whose queries grow with their position. Reference: `mlx_lm/models/ministral3.py`.

use mlx_core::Array;
use serde::Deserialize;

use super::base::{Base, missing};
use super::blocks::PreNorm;
use super::decoder::{Block, Decoder, Parts};
use crate::lm::LayerView;
use crate::lm::nn::{Act, Attention, AttentionConfig, GatedMlp};
use crate::weights::{LoadError, Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
}

/// [`PreNorm`] with queries multiplied by `1 + beta · ln(1 + ⌊position / original⌋)`.
pub struct Layer {
    block: PreNorm,
    growth: Growth,
}

#[derive(Clone, Copy)]
struct Growth {
    beta: f64,
    original: usize,
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<Layer>> {
    let base = &Base { attention_bias: None, ..c.base.clone() };
    let norm = base.rms()?;
    let growth = growth(base)?;
    let attention =
        base.per_layer(|i| Ok(AttentionConfig { window: base.window(i)?, ..base.attention()? }))?;
    Decoder::load(&Parts::new(base, true, norm, attention), w, |w, attention| {
        let dim = base.hidden_size;
        let mlp = GatedMlp::load(&w.at("mlp"), dim, base.intermediate_size, false, Act::Silu)?;
        let attention = Attention::load(&w.at("self_attn"), attention)?;
        Ok(Layer { block: PreNorm::load(w, norm, dim, attention, mlp)?, growth })
    })
}

fn growth(c: &Base) -> Result<Growth> {
    let settings = c.rope_parameters.as_ref().ok_or_else(|| missing("rope_parameters"))?;
    let number = |key: &str| {
        let value = settings.get(key).and_then(serde_json::Value::as_f64);
        value.filter(|x| 0.0 < *x).ok_or_else(|| {
            LoadError::Config(format!("config.json: `rope_parameters.{key}` should be a positive number"))
        })
    };
    Ok(Growth {
        beta: number("llama_4_scaling_beta")?,
        original: (number("original_max_position_embeddings")? as usize).max(1),
    })
}

impl Growth {
    /// `[N, 1]`; `None` where every query stays as it is.
    fn at(self, positions: &[usize]) -> Option<Array> {
        if positions.iter().all(|p| *p < self.original) {
            return None;
        }
        let scale = |p: &usize| (1.0 + self.beta * ((1 + p / self.original) as f64).ln()) as f32;
        let scales: Vec<f32> = positions.iter().map(scale).collect();
        Some(Array::from_slice(&scales, &[scales.len() as i32, 1]))
    }
}

impl Block for Layer {
    fn forward(&self, x: Array, cache: &mut LayerView<'_>) -> Array {
        let block = &self.block;
        let scale = self.growth.at(&cache.positions()).map(|scale| scale.astype(x.dtype()));
        let (y, norm) = block.input_layernorm.split(&x);
        let h = block.self_attn.forward_add_scaled(norm, &y, scale.as_ref(), cache);
        let (y, norm) = block.post_attention_layernorm.split(&h);
        block.mlp.forward_add(norm, &y, &h)
    }
}
