//! Llama and those that share its graph: pre-norm blocks, grouped-query attention, SwiGLU.
//!
//! Papers: arXiv 2302.13971, 2407.21783. Reference: `mlx_lm/models/llama.py`.

use mlx_core::Array;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::lm::cache::LayerSpec;
use crate::lm::nn::rope::RopeConfig;
use crate::lm::nn::{Act, Attention, AttentionConfig, Embedding, GatedMlp, Linear, RmsNorm};
use crate::lm::{CausalLm, Forward, LayerView};
use crate::weights::{LoadError, Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    rms_norm_eps: f32,
    rope_theta: Option<f64>,
    #[serde(default)]
    rope_traditional: bool,
    rope_scaling: Option<Map<String, Value>>,
    rope_parameters: Option<Map<String, Value>>,
    max_position_embeddings: Option<usize>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default = "yes")]
    tie_word_embeddings: bool,
    layer_types: Option<Vec<String>>,
    sliding_window: Option<usize>,
}

fn yes() -> bool {
    true
}

pub struct Llama {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    lm_head: Linear,
    specs: Vec<LayerSpec>,
    vocab_size: usize,
}

struct Block {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
}

impl Llama {
    pub fn load(c: &Config, w: Weights) -> Result<Self> {
        let w = adapt(c, w);
        let model = w.at("model");
        let attention = (0..c.num_hidden_layers).map(|i| c.attention(i)).collect::<Result<Vec<_>>>()?;
        let embed_tokens = model.embedding("embed_tokens", c.vocab_size, c.hidden_size)?;
        let lm = Self {
            lm_head: match c.tie_word_embeddings {
                true => embed_tokens.as_linear(),
                false => w.linear("lm_head", c.hidden_size, c.vocab_size, false)?,
            },
            embed_tokens,
            layers: model.layers("layers", c.num_hidden_layers, |i, w| Block::load(c, &attention[i], &w))?,
            norm: model.rms_norm("norm", c.hidden_size, c.rms_norm_eps)?,
            specs: attention.iter().map(AttentionConfig::layer).collect(),
            vocab_size: c.vocab_size,
        };
        w.finish()?;
        Ok(lm)
    }
}

impl CausalLm for Llama {
    fn layers(&self) -> &[LayerSpec] {
        &self.specs
    }
    fn vocab_size(&self) -> usize {
        self.vocab_size
    }
    fn embed(&self, ids: &Array) -> Array {
        self.embed_tokens.forward(ids)
    }
    fn forward(&self, h: Array, cx: &mut Forward<'_>) -> Array {
        self.norm.forward(&cx.through(&self.layers, h, Block::forward))
    }
    fn logits(&self, h: &Array) -> Array {
        self.lm_head.forward(h)
    }
}

impl Block {
    fn load(c: &Config, attention: &AttentionConfig, w: &Weights) -> Result<Self> {
        let norm = |name| w.rms_norm(name, c.hidden_size, c.rms_norm_eps);
        Ok(Self {
            input_layernorm: norm("input_layernorm")?,
            self_attn: Attention::load(&w.at("self_attn"), attention.clone())?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            mlp: GatedMlp::load(&w.at("mlp"), c.hidden_size, c.intermediate_size, c.mlp_bias, Act::Silu)?,
        })
    }

    fn forward(&self, x: Array, cache: &mut LayerView<'_>) -> Array {
        let h = self.self_attn.forward_add(Some(&self.input_layernorm), &x, &x, cache);
        self.mlp.forward_add(Some(&self.post_attention_layernorm), &h, &h)
    }
}

impl Config {
    fn attention(&self, layer: usize) -> Result<AttentionConfig> {
        let n_heads = self.num_attention_heads;
        let head_dim = self.head_dim.or(self.hidden_size.checked_div(n_heads)).unwrap_or(0);
        let n_kv_heads = self.num_key_value_heads.unwrap_or(n_heads);
        if n_kv_heads == 0 || head_dim == 0 || !n_heads.is_multiple_of(n_kv_heads) {
            return Err(LoadError::Config(format!(
                "config.json: {n_heads} attention heads of {head_dim} cannot share {n_kv_heads} key/value heads"
            )));
        }
        Ok(AttentionConfig {
            dim: self.hidden_size,
            n_heads,
            n_kv_heads,
            head_dim,
            qkv_bias: self.attention_bias,
            o_bias: self.attention_bias,
            scale: (head_dim as f32).powf(-0.5),
            rope: Some(self.rope(head_dim).build()?),
            window: self.window(layer)?,
        })
    }

    fn rope(&self, dims: usize) -> RopeConfig {
        let inner = self.rope_parameters.as_ref();
        let theta = self.rope_theta.or_else(|| inner.and_then(|p| p.get("rope_theta")?.as_f64()));
        RopeConfig {
            dims,
            theta: theta.unwrap_or(10_000.0),
            traditional: self.rope_traditional,
            scaling: self.rope_scaling.clone().or(inner.cloned()),
            max_position_embeddings: self.max_position_embeddings.unwrap_or(2048),
        }
    }

    fn window(&self, layer: usize) -> Result<Option<usize>> {
        match self.layer_types.as_ref().and_then(|types| types.get(layer)).map(String::as_str) {
            None | Some("full_attention") => Ok(None),
            Some("sliding_attention") => match self.sliding_window {
                Some(window) if 0 < window => Ok(Some(window)),
                _ => Err(LoadError::Config(
                    "config.json: sliding_attention layers need a positive `sliding_window`".into(),
                )),
            },
            Some(other) => Err(LoadError::Config(format!("config.json: unknown layer type `{other}`"))),
        }
    }
}

/// Checkpoint quirks. Early Llama conversions carry precomputed `rotary_emb.inv_freq`; tied checkpoints may
/// hold a copy of the embedding as `lm_head`.
fn adapt(c: &Config, w: Weights) -> Weights {
    w.without(|name| {
        name.contains("self_attn.rotary_emb.inv_freq")
            || (c.tie_word_embeddings && name.starts_with("lm_head."))
    })
}
