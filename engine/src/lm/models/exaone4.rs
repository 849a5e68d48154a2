//! EXAONE 4: norms after each sublayer, q and k normed by head; layers with a window rotate, those that see all
//! don't. Paper: arXiv 2507.11407. Reference: `mlx_lm/models/exaone4.py`.

use serde::Deserialize;

use super::base::{Base, missing};
use super::blocks::PostNorm;
use super::decoder::{Decoder, Parts};
use crate::lm::nn::{Act, Attention, AttentionConfig, GatedMlp, QkNorm, QkNormKind};
use crate::weights::{LoadError, Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    /// `L` for a layer with a window and `G` for one without, repeated over the layers.
    sliding_window_pattern: Option<String>,
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<PostNorm>> {
    let base = &c.base;
    let norm = base.rms()?;
    let eps = base.rms_norm_eps.ok_or_else(|| missing("rms_norm_eps"))?;
    let pattern = c.sliding_window_pattern.as_deref().unwrap_or_default().as_bytes();
    let attention = base.per_layer(|i| {
        let all = base.attention()?;
        let all = AttentionConfig {
            qkv_bias: false,
            o_bias: false,
            qk_norm: Some(QkNorm { kind: QkNormKind::Head, names: ["q_norm", "k_norm"], eps }),
            ..all
        };
        match pattern.get(i % pattern.len().max(1)) {
            None => Ok(all),
            Some(b'L') => Ok(AttentionConfig { window: Some(base.sliding()?), ..all }),
            Some(b'G') => Ok(AttentionConfig { rope: None, ..all }),
            Some(_) => Err(LoadError::Config(
                "config.json: `sliding_window_pattern` should hold the letters L and G alone".into(),
            )),
        }
    })?;
    Decoder::load(&Parts::new(base, false, norm, attention), w, |w, attention| {
        let (dim, hidden) = (base.hidden_size, base.intermediate_size);
        let mlp = GatedMlp::load(&w.at("mlp"), dim, hidden, false, Act::Silu)?;
        PostNorm::load(w, norm, dim, Attention::load(&w.at("self_attn"), attention)?, mlp)
    })
}
