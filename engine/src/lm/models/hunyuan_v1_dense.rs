//! Hunyuan: Llama whose heads are normed after they turned, with a base of the rotation that a number stretches.
//! Reference: `mlx_lm/models/hunyuan_v1_dense.py`.

use mlx_core::attention::Rope;
use serde::Deserialize;
use serde_json::Value;

use super::base::{Base, missing};
use super::blocks::PreNorm;
use super::decoder::Decoder;
use super::llama;
use crate::lm::nn::rope::RopeConfig;
use crate::lm::nn::{AttentionConfig, QkNorm, QkNormKind};
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    #[serde(default = "yes")]
    use_qk_norm: bool,
}

fn yes() -> bool {
    true
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<PreNorm>> {
    let base = &Base { mlp_bias: None, rope_traditional: None, ..c.base.clone() };
    let qk_norm = QkNorm {
        kind: QkNormKind::Head,
        names: ["query_layernorm", "key_layernorm"],
        eps: base.rms_norm_eps.ok_or_else(|| missing("rms_norm_eps"))?,
    };
    let rope = base.rope(base.head_dim());
    let dims = rope.dims as f64;
    let alpha = rope.scaling.as_ref().and_then(|s| s.get("alpha")).and_then(Value::as_f64).unwrap_or(1.0);
    let theta = rope.theta * alpha.powf(dims / (dims - 2.0));
    let rope = RopeConfig { theta, scaling: None, ..rope };
    let attention = base.per_layer(|_| {
        let plain = base.attention_of(&rope)?;
        Ok(AttentionConfig {
            rope: plain.rope.map(Rope::before_norms),
            qk_norm: c.use_qk_norm.then_some(qk_norm),
            ..plain
        })
    })?;
    llama::load_with(base, w, false, attention)
}
