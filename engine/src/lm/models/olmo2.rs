//! OLMo 2 and 3: norms after each sublayer, and q and k normed over all heads. Papers: arXiv 2501.00656. Reference:
//! `mlx_lm/models/olmo2.py`, `olmo3.py`.

use super::base::{Base, missing};
use super::blocks::PostNorm;
use super::decoder::{Decoder, Parts};
use crate::lm::nn::rope::RopeConfig;
use crate::lm::nn::{Act, Attention, AttentionConfig, GatedMlp, QkNorm, QkNormKind};
use crate::weights::{Result, Weights};

pub fn load(c: &Base, w: Weights) -> Result<Decoder<PostNorm>> {
    let attention = c.per_layer(|_| c.attention())?;
    load_with(c, w, true, attention)
}

/// Layers with a window, which rotate without scaling; every fourth sees all unless `layer_types` says otherwise.
pub fn load_olmo3(c: &Base, w: Weights) -> Result<Decoder<PostNorm>> {
    let rope = c.rope(c.head_dim());
    let local = RopeConfig { scaling: None, ..rope.clone() };
    let attention = c.per_layer(|i| {
        let window = match c.layer_types {
            Some(_) => c.window(i)?,
            None if (i + 1).is_multiple_of(4) => None,
            None => Some(c.sliding()?),
        };
        let rope = if window.is_some() { &local } else { &rope };
        Ok(AttentionConfig { window, ..c.attention_of(rope)? })
    })?;
    let no_bias = Base { mlp_bias: None, ..c.clone() };
    load_with(&no_bias, w, false, attention)
}

fn load_with(c: &Base, w: Weights, tied: bool, attention: Vec<AttentionConfig>) -> Result<Decoder<PostNorm>> {
    let norm = c.rms()?;
    let eps = c.rms_norm_eps.ok_or_else(|| missing("rms_norm_eps"))?;
    let qk_norm = Some(QkNorm { kind: QkNormKind::Whole, names: ["q_norm", "k_norm"], eps });
    Decoder::load(&Parts::new(c, tied, norm, attention), w, |w, attention| {
        let bias = c.mlp_bias.unwrap_or(false);
        let mlp = GatedMlp::load(&w.at("mlp"), c.hidden_size, c.intermediate_size, bias, Act::Silu)?;
        let attention = Attention::load(&w.at("self_attn"), AttentionConfig { qk_norm, ..attention })?;
        PostNorm::load(w, norm, c.hidden_size, attention, mlp)
    })
}
