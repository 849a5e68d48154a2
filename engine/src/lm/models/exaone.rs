//! EXAONE 3: Llama with the names of GPT-2. Paper: arXiv 2408.03541. Reference: `mlx_lm/models/exaone.py`.

use serde::Deserialize;
use serde_json::{Value, json};

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::{Decoder, Names, Parts};
use crate::lm::nn::{Act, Attention, AttentionConfig, GatedMlp, NormConfig};
use crate::weights::{Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    layer_norm_epsilon: f32,
}

/// The config with the number of layers under its usual name.
pub fn with_usual_names(config: &Value) -> Value {
    let mut config = config.clone();
    if let Some(n) = config.get("num_layers").cloned() {
        config["num_hidden_layers"] = json!(n);
    }
    config
}

pub fn load(c: &Config, w: Weights) -> Result<Decoder<PreNorm>> {
    let base = &c.base;
    let norm = NormConfig::Rms { eps: c.layer_norm_epsilon };
    let attention = base.per_layer(|_| Ok(AttentionConfig { o_proj: "out_proj", ..base.attention()? }))?;
    let names =
        Names { root: "transformer", embed_tokens: "wte", layers: "h", norm: "ln_f", lm_head: "lm_head" };
    let parts = Parts { names, ..Parts::new(base, true, norm, attention) };
    let (dim, hidden, bias) = (base.hidden_size, base.intermediate_size, base.mlp_bias.unwrap_or(false));
    Decoder::load(&parts, w, |w, attention| {
        let mlp = ["c_fc_0", "c_fc_1", "c_proj"];
        Ok(PreNorm {
            input_layernorm: norm.load(w, "ln_1", dim)?,
            self_attn: Attention::load(&w.at("attn").at("attention"), attention)?,
            post_attention_layernorm: norm.load(w, "ln_2", dim)?,
            mlp: GatedMlp::load_named(&w.at("mlp"), mlp, [dim, hidden], bias, Act::Silu)?,
        })
    })
}
