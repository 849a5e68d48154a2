//! The keys of config.json that nearly every decoder has, checked once.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::lm::nn::rope::RopeConfig;
use crate::lm::nn::{AttentionConfig, NormConfig};
use crate::weights::{LoadError, Result};

/// A model's own config flattens this one into itself. What has another default for each model is an option here.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Base {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: Option<usize>,
    pub head_dim: Option<usize>,
    pub rms_norm_eps: Option<f32>,
    pub layer_norm_eps: Option<f32>,
    pub rope_theta: Option<f64>,
    pub rope_traditional: Option<bool>,
    pub rope_scaling: Option<Map<String, Value>>,
    pub rope_parameters: Option<Map<String, Value>>,
    pub partial_rotary_factor: Option<f64>,
    pub max_position_embeddings: Option<usize>,
    pub attention_bias: Option<bool>,
    pub mlp_bias: Option<bool>,
    pub tie_word_embeddings: Option<bool>,
    pub layer_types: Option<Vec<String>>,
    pub sliding_window: Option<usize>,
}

impl Base {
    pub fn rms(&self) -> Result<NormConfig> {
        Ok(NormConfig::Rms { eps: self.rms_norm_eps.ok_or_else(|| missing("rms_norm_eps"))? })
    }

    pub fn head_dim(&self) -> usize {
        let n_heads = self.num_attention_heads;
        self.head_dim.or(self.hidden_size.checked_div(n_heads)).unwrap_or(0)
    }

    /// Attention with the shapes of this config and its rotation, and no window.
    pub fn attention(&self) -> Result<AttentionConfig> {
        self.attention_of(&self.rope(self.head_dim()))
    }

    /// [`Self::attention`] with a rotation that the model makes itself.
    pub fn attention_of(&self, rope: &RopeConfig) -> Result<AttentionConfig> {
        let (n_heads, head_dim) = (self.num_attention_heads, self.head_dim());
        let n_kv_heads = self.num_key_value_heads.unwrap_or(n_heads);
        if n_kv_heads == 0 || head_dim == 0 || !n_heads.is_multiple_of(n_kv_heads) {
            return Err(LoadError::Config(format!(
                "config.json: {n_heads} attention heads of {head_dim} cannot share {n_kv_heads} key/value heads"
            )));
        }
        if rope.dims == 0 || head_dim < rope.dims || !rope.dims.is_multiple_of(2) {
            return Err(LoadError::Config(format!(
                "config.json: {} entries of a head of {head_dim} cannot be rotated in pairs",
                rope.dims
            )));
        }
        let bias = self.attention_bias.unwrap_or(false);
        Ok(AttentionConfig {
            qkv_bias: bias,
            o_bias: bias,
            rope: Some(rope.build()?),
            ..AttentionConfig::new(self.hidden_size, n_heads, n_kv_heads, head_dim)
        })
    }

    pub fn rope(&self, dims: usize) -> RopeConfig {
        let inner = self.rope_parameters.as_ref();
        let theta = self.rope_theta.or_else(|| inner.and_then(|p| p.get("rope_theta")?.as_f64()));
        RopeConfig {
            dims,
            theta: theta.unwrap_or(10_000.0),
            traditional: self.rope_traditional.unwrap_or(false),
            scaling: self.rope_scaling.clone().or(inner.cloned()),
            max_position_embeddings: self.max_position_embeddings.unwrap_or(2048),
        }
    }

    /// The rotation of the first part of each head alone, by `partial_rotary_factor`.
    pub fn partial_rope(&self, default: f64) -> RopeConfig {
        let factor = self.partial_rotary_factor.unwrap_or(default);
        self.rope((self.head_dim() as f64 * factor) as usize)
    }

    /// The window of `layer` as `layer_types` has it.
    pub fn window(&self, layer: usize) -> Result<Option<usize>> {
        match self.layer_types.as_ref().and_then(|types| types.get(layer)).map(String::as_str) {
            None | Some("full_attention") => Ok(None),
            Some("sliding_attention") => self.sliding().map(Some),
            Some(other) => Err(LoadError::Config(format!("config.json: unknown layer type `{other}`"))),
        }
    }

    /// The size of the window where a layer has one.
    pub fn sliding(&self) -> Result<usize> {
        match self.sliding_window {
            Some(window) if 0 < window => Ok(window),
            _ => Err(LoadError::Config(
                "config.json: sliding_attention layers need a positive `sliding_window`".into(),
            )),
        }
    }

    /// What `f` makes of each layer's number.
    pub fn per_layer<T>(&self, f: impl FnMut(usize) -> Result<T>) -> Result<Vec<T>> {
        (0..self.num_hidden_layers).map(f).collect()
    }
}

pub fn missing(key: &str) -> LoadError {
    LoadError::Config(format!("config.json: missing field `{key}`"))
}
