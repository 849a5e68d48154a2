//! Command R: attention and feed-forward side by side on one layer norm, neighbouring pairs rotated, logits scaled.
//! Reference: `mlx_lm/models/cohere.py`, `cohere2.py`.

use serde::Deserialize;

use super::base::Base;
use super::blocks::Parallel;
use super::decoder::{Decoder, Parts};
use crate::lm::nn::rope::RopeConfig;
use crate::lm::nn::{Act, Attention, AttentionConfig, GatedMlp, NormConfig, QkNorm, QkNormKind};
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    #[serde(default = "scale")]
    logit_scale: f32,
    #[serde(default)]
    layer_norm_bias: bool,
    #[serde(default)]
    use_qk_norm: bool,
    #[serde(default = "pattern")]
    sliding_window_pattern: usize,
}

fn scale() -> f32 {
    0.0625
}
fn pattern() -> usize {
    4
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<Parallel>> {
    let base = Base { head_dim: None, ..c.base.clone() };
    let rope = rope(&base, 8_000_000.0);
    let eps = base.layer_norm_eps.unwrap_or(1e-5);
    let names = ["q_norm", "k_norm"];
    let qk_norm = c.use_qk_norm.then_some(QkNorm { kind: QkNormKind::Layer, names, eps });
    let attention = base.per_layer(|_| Ok(AttentionConfig { qk_norm, ..base.attention_of(&rope)? }))?;
    load_with(c, &base, w, attention)
}

/// Command R7B and Command A: windows, and the rotation, in all layers but every fourth.
pub fn load_cohere2(c: &Config, w: Weights) -> Result<Decoder<Parallel>> {
    let base = Base { sliding_window: c.base.sliding_window.or(Some(4096)), ..c.base.clone() };
    let rope = rope(&base, 50_000.0);
    let attention = base.per_layer(|i| {
        let all = base.attention_of(&rope)?;
        Ok(match (i + 1).is_multiple_of(c.sliding_window_pattern) {
            true => AttentionConfig { rope: None, ..all },
            false => AttentionConfig { window: Some(base.sliding()?), ..all },
        })
    })?;
    load_with(c, &base, w, attention)
}

fn rope(base: &Base, theta: f64) -> RopeConfig {
    let rope = base.rope(base.head_dim());
    RopeConfig { traditional: true, scaling: None, theta: base.rope_theta.unwrap_or(theta), ..rope }
}

fn load_with(
    c: &Config,
    base: &Base,
    w: Weights,
    attention: Vec<AttentionConfig>,
) -> Result<Decoder<Parallel>> {
    let norm = NormConfig::Layer { eps: base.layer_norm_eps.unwrap_or(1e-5), bias: c.layer_norm_bias };
    let parts = Parts { tied: true, ..Parts::new(base, true, norm, attention) };
    let dim = base.hidden_size;
    let decoder = Decoder::load(&parts, w, |w, attention| {
        Ok(Parallel {
            input_layernorm: norm.load(w, "input_layernorm", dim)?,
            self_attn: Attention::load(&w.at("self_attn"), attention)?,
            mlp_layernorm: None,
            mlp: GatedMlp::load(&w.at("mlp"), dim, base.intermediate_size, false, Act::Silu)?,
        })
    })?;
    Ok(Decoder { logit_scale: Some(c.logit_scale), ..decoder })
}
