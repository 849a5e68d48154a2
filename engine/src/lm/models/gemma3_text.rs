//! Gemma 3: five layers with a window and a rotation of their own to one that sees all; q and k are normed. Paper:
//! arXiv 2503.19786. Reference: `mlx_lm/models/gemma3_text.py`.

use half::bf16;
use serde::Deserialize;
use serde_json::{Value, json};

use super::base::Base;
use super::blocks::Sandwich;
use super::decoder::{Decoder, Parts};
use super::gemma2::load_layers;
use crate::lm::nn::rope::RopeConfig;
use crate::lm::nn::{AttentionConfig, NormConfig, QkNorm, QkNormKind};
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    #[serde(default = "local")]
    rope_local_base_freq: f64,
    #[serde(default = "scalar")]
    query_pre_attn_scalar: f32,
    #[serde(default = "pattern")]
    sliding_window_pattern: usize,
}

fn local() -> f64 {
    10_000.0
}
fn scalar() -> f32 {
    256.0
}
fn pattern() -> usize {
    6
}

/// What published configs leave out.
pub fn with_defaults(config: &Value) -> Value {
    let defaults = json!({
        "hidden_size": 1152, "num_hidden_layers": 26, "intermediate_size": 6912, "num_attention_heads": 4,
        "head_dim": 256, "rms_norm_eps": 1e-6, "vocab_size": 262_144, "num_key_value_heads": 1,
        "rope_theta": 1e6, "sliding_window": 512, "max_position_embeddings": 32_768,
    });
    let mut all = defaults.as_object().cloned().unwrap_or_default();
    all.extend(config.as_object().cloned().unwrap_or_default());
    Value::Object(all)
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<Sandwich>> {
    let base = &c.base;
    let eps = base.rms_norm_eps.unwrap_or(1e-6);
    let attention = base.per_layer(|i| {
        let global = (i + 1).is_multiple_of(c.sliding_window_pattern);
        let rope = base.rope(base.head_dim());
        let rope = match global {
            true => rope,
            false => RopeConfig { theta: c.rope_local_base_freq, scaling: None, ..rope },
        };
        Ok(AttentionConfig {
            qkv_bias: false,
            o_bias: false,
            scale: c.query_pre_attn_scalar.powf(-0.5),
            window: if global { None } else { Some(base.sliding()?) },
            qk_norm: Some(QkNorm { kind: QkNormKind::CentredHead, names: ["q_norm", "k_norm"], eps }),
            ..base.attention_of(&rope)?
        })
    })?;
    let parts = Parts::new(base, true, NormConfig::CentredRms { eps }, attention);
    let tied = !w.has("lm_head.weight");
    // The reference rounds this factor to bfloat16, whatever the type of the activations.
    let scale = bf16::from_f32((base.hidden_size as f32).sqrt()).to_f32();
    Ok(Decoder { embed_scale: Some(scale), ..load_layers(&Parts { tied, ..parts }, w)? })
}
