//! Gemma 4: layers with a window and layers that see all have heads of different widths; the last layers borrow keys
//! and values; small models add an embedding of each token to every layer. Reference: `mlx_lm/models/gemma4_text.py`.
//!
//! A token's embedding is followed by those for the layers, `[N, D + L·P]`: a forward sees no ids.

use mlx_core::Array;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::base::Base;
use super::decoder::{Decoder, Parts};
use crate::lm::cache::LayerSpec;
use crate::lm::nn::rope::RopeConfig;
use crate::lm::nn::{
    Act, Embedding, FeedForward, GatedMlp, KeysValues, Linear, NormConfig, RmsNorm, SharedAttention,
    SharedAttentionConfig,
};
use crate::lm::{CausalLm, Forward, LayerView};
use crate::weights::{LoadError, Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    base: Base,
    global_head_dim: Option<usize>,
    num_global_key_value_heads: Option<usize>,
    num_kv_shared_layers: usize,
    vocab_size_per_layer_input: usize,
    hidden_size_per_layer_input: usize,
    sliding_window_pattern: usize,
    attention_k_eq_v: bool,
    final_logit_softcapping: Option<f32>,
    use_double_wide_mlp: bool,
    enable_moe_block: bool,
}

/// What published configs leave out.
pub fn with_defaults(config: &Value) -> Value {
    let defaults = json!({
        "hidden_size": 1536, "num_hidden_layers": 35, "intermediate_size": 6144, "num_attention_heads": 8,
        "head_dim": 256, "global_head_dim": 512, "rms_norm_eps": 1e-6, "vocab_size": 262_144,
        "vocab_size_per_layer_input": 262_144, "num_key_value_heads": 1, "num_kv_shared_layers": 20,
        "hidden_size_per_layer_input": 256, "sliding_window": 512, "sliding_window_pattern": 5,
        "max_position_embeddings": 131_072, "attention_k_eq_v": false, "final_logit_softcapping": 30.0,
        "use_double_wide_mlp": true, "enable_moe_block": false,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
    });
    let mut all = defaults.as_object().cloned().unwrap_or_default();
    let given = config.as_object().into_iter().flat_map(Map::clone);
    all.extend(given.filter(|(key, value)| key == "final_logit_softcapping" || !value.is_null()));
    Value::Object(all)
}

pub struct Gemma4 {
    decoder: Decoder<Layer>,
    /// The cache of each layer: its own, or the one that it borrows.
    owners: Vec<usize>,
    specs: Vec<LayerSpec>,
    per_layer: Option<PerLayer>,
    dim: i32,
}

struct Layer {
    input_layernorm: RmsNorm,
    self_attn: SharedAttention,
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: RmsNorm,
    mlp: GatedMlp,
    post_feedforward_layernorm: RmsNorm,
    per_layer_input: Option<PerLayerInput>,
    layer_scalar: Array,
}

/// What a layer does with its own embedding of the token.
struct PerLayerInput {
    gate: Linear,
    projection: Linear,
    norm: RmsNorm,
}

/// Embeddings of tokens for each layer, `[N, L·P]`.
struct PerLayer {
    embed_tokens: Embedding,
    model_projection: Linear,
    projection_norm: RmsNorm,
    /// `P`
    width: i32,
    projection_scale: f32,
}

pub fn load(c: &Config, w: Weights) -> Result<Gemma4> {
    let base = &c.base;
    base.check()?;
    let owned = c.owned()?;
    let attention = base.per_layer(|i| c.attention(i))?;
    let owners = base.per_layer(|i| c.owner(i))?;
    let w = w.without(|name| {
        let layer = name.split_once("layers.").and_then(|(_, rest)| rest.split('.').next()?.parse().ok());
        let borrowed = [".self_attn.k_proj.", ".self_attn.v_proj.", ".self_attn.k_norm."];
        let ranges = ["input_max", "input_min", "output_max", "output_min"];
        (layer.is_some_and(|i: usize| owned <= i) && borrowed.iter().any(|part| name.contains(part)))
            || ranges.iter().any(|part| name.contains(part))
    });
    let model = w.at("model");
    let per_layer = match c.hidden_size_per_layer_input {
        0 => None,
        width => Some(PerLayer::load(c, &model, width)?),
    };
    let mut layers: Vec<Layer> = Vec::new();
    for (i, attention) in attention.iter().enumerate() {
        let owner = Some(owners[i]).filter(|owner| *owner != i).map(|owner| &layers[owner].self_attn);
        layers.push(Layer::load(c, &model.at("layers").at(i), i, attention.clone(), owner)?);
    }
    let norm = base.rms()?;
    let none = Base { num_hidden_layers: 0, ..base.clone() };
    let parts = Parts::new(&none, true, norm, Vec::new());
    drop(model);
    let decoder =
        Decoder::load(&parts, w, |_, _| -> Result<Layer> { unreachable!("no layers are asked for") })?;
    Ok(Gemma4 {
        decoder: Decoder { layers, softcap: c.final_logit_softcapping, ..decoder },
        specs: attention[..owned].iter().map(SharedAttentionConfig::layer).collect(),
        owners,
        per_layer,
        dim: base.hidden_size as i32,
    })
}

impl Config {
    /// Layers that have keys and values of their own.
    fn owned(&self) -> Result<usize> {
        let n = self.base.num_hidden_layers;
        if self.enable_moe_block {
            let message = "config.json: `enable_moe_block` is not supported yet; use a dense Gemma 4";
            return Err(LoadError::Config(message.into()));
        }
        if 1 << 24 < self.hidden_size_per_layer_input || 1 << 28 < self.vocab_size_per_layer_input {
            let message = "config.json: the sizes for per-layer inputs are out of range";
            return Err(LoadError::Config(message.into()));
        }
        n.checked_sub(self.num_kv_shared_layers).filter(|owned| 0 < *owned).ok_or_else(|| {
            LoadError::Config(format!(
                "config.json: `num_kv_shared_layers` is {}, expected fewer than the {n} layers",
                self.num_kv_shared_layers
            ))
        })
    }

    fn is_sliding(&self, layer: usize) -> Result<bool> {
        match &self.base.layer_types {
            Some(_) => Ok(self.base.window(layer)?.is_some()),
            None => Ok(!(layer + 1).is_multiple_of(self.sliding_window_pattern)),
        }
    }

    /// Where the keys and values of `layer` are: those of the last layer of its kind that has some.
    fn owner(&self, layer: usize) -> Result<usize> {
        let owned = self.owned()?;
        if layer < owned {
            return Ok(layer);
        }
        let sliding = self.is_sliding(layer)?;
        let owner = (0..owned).rev().find(|i| self.is_sliding(*i).is_ok_and(|kind| kind == sliding));
        owner.ok_or_else(|| {
            LoadError::Config(format!(
                "config.json: layer {layer} borrows keys and values, but no layer of its type has any"
            ))
        })
    }

    fn attention(&self, layer: usize) -> Result<SharedAttentionConfig> {
        let sliding = self.is_sliding(layer)?;
        let head_dim = match self.global_head_dim {
            Some(dim) if !sliding && dim != 0 => dim,
            _ => self.base.head_dim(),
        };
        let k_eq_v = self.attention_k_eq_v && !sliding;
        let n_kv_heads = self.num_global_key_value_heads.filter(|_| k_eq_v);
        let kind = if sliding { "sliding_attention" } else { "full_attention" };
        let settings = self.base.rope_parameters.as_ref().and_then(|all| all.get(kind)?.as_object()).cloned();
        let base = Base {
            head_dim: Some(head_dim),
            num_key_value_heads: n_kv_heads.or(self.base.num_key_value_heads),
            rope_theta: None,
            rope_scaling: None,
            rope_parameters: settings,
            ..self.base.clone()
        };
        base.check()?;
        let rope: RopeConfig = base.rope(head_dim);
        let plain = base.attention_of(&rope)?;
        Ok(SharedAttentionConfig {
            dim: base.hidden_size,
            n_heads: plain.n_heads,
            n_kv_heads: plain.n_kv_heads,
            head_dim,
            scale: 1.0,
            eps: base.rms_norm_eps.unwrap_or(1e-6),
            rope: rope.build()?,
            window: if sliding { Some(base.sliding()?) } else { None },
            k_eq_v,
        })
    }
}

impl Layer {
    fn load(
        c: &Config,
        w: &Weights,
        layer: usize,
        attention: SharedAttentionConfig,
        owner: Option<&SharedAttention>,
    ) -> Result<Self> {
        let (base, eps) = (&c.base, attention.eps);
        let wide = c.use_double_wide_mlp && c.num_kv_shared_layers != 0 && c.owned()? <= layer;
        let hidden = base.intermediate_size * if wide { 2 } else { 1 };
        let norm = |name| w.rms_norm(name, base.hidden_size, eps);
        let per_layer_input = match c.hidden_size_per_layer_input {
            0 => None,
            width => Some(PerLayerInput {
                gate: w.linear("per_layer_input_gate", base.hidden_size, width, false)?,
                projection: w.linear("per_layer_projection", width, base.hidden_size, false)?,
                norm: norm("post_per_layer_input_norm")?,
            }),
        };
        Ok(Self {
            input_layernorm: norm("input_layernorm")?,
            self_attn: SharedAttention::load(&w.at("self_attn"), attention, owner)?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            pre_feedforward_layernorm: norm("pre_feedforward_layernorm")?,
            mlp: GatedMlp::load(&w.at("mlp"), base.hidden_size, hidden, false, Act::GeluTanh)?,
            post_feedforward_layernorm: norm("post_feedforward_layernorm")?,
            per_layer_input,
            layer_scalar: w.array("layer_scalar", &[1])?,
        })
    }

    fn forward(
        &self,
        x: &Array,
        own: Option<&Array>,
        lent: Option<&KeysValues>,
        cache: &mut LayerView<'_>,
    ) -> (Array, KeysValues) {
        let (r, kv) = self.self_attn.forward(&self.input_layernorm.forward(x), lent, cache);
        let h = x + &self.post_attention_layernorm.forward(&r);
        let r = FeedForward::forward(&self.mlp, Some(&self.pre_feedforward_layernorm), &h);
        let mut h = &h + &self.post_feedforward_layernorm.forward(&r);
        if let (Some(input), Some(own)) = (&self.per_layer_input, own) {
            let gated = &input.gate.forward(&h).gelu_approx() * own;
            h = &h + &input.norm.forward(&input.projection.forward(&gated));
        }
        (&h * &self.layer_scalar, kv)
    }
}

impl PerLayer {
    fn load(c: &Config, w: &Weights, width: usize) -> Result<Self> {
        let (base, all) = (&c.base, c.base.num_hidden_layers * width);
        let NormConfig::Rms { eps } = base.rms()? else { unreachable!("`rms` gives an RMS norm") };
        Ok(Self {
            embed_tokens: w.embedding("embed_tokens_per_layer", c.vocab_size_per_layer_input, all)?,
            model_projection: w.linear("per_layer_model_projection", base.hidden_size, all, false)?,
            projection_norm: w.rms_norm("per_layer_projection_norm", width, eps)?,
            width: width as i32,
            projection_scale: (base.hidden_size as f32).powf(-0.5),
        })
    }

    /// `[N]` ids to `[N, L·P]`.
    fn embed(&self, ids: &Array) -> Array {
        &self.embed_tokens.forward(ids) * (self.width as f32).sqrt()
    }

    /// What the layers get, `[N, L·P]`, of a token's scaled embedding `h: [N, D]` and of its own for them.
    fn forward(&self, h: &Array, own: &Array) -> Array {
        let projected = &self.model_projection.forward(h) * self.projection_scale;
        let normed = self.projection_norm.forward(&projected.reshape(&[-1, self.width]));
        &(&normed.reshape(own.shape()) + own) * std::f32::consts::FRAC_1_SQRT_2
    }
}

impl CausalLm for Gemma4 {
    fn layers(&self) -> &[LayerSpec] {
        &self.specs
    }
    fn vocab_size(&self) -> usize {
        self.decoder.vocab_size
    }
    fn embed(&self, ids: &Array) -> Array {
        let h = &self.decoder.embed_tokens.forward(ids) * (self.dim as f32).sqrt();
        match &self.per_layer {
            Some(per_layer) => Array::concat(&[&h, &per_layer.embed(ids)], -1),
            None => h,
        }
    }
    fn forward(&self, h: Array, cx: &mut Forward<'_>) -> Array {
        let width = h.dim(-1);
        let own = self.per_layer.as_ref().map(|per_layer| {
            per_layer.forward(&h.slice(1, 0..self.dim).contiguous(), &h.slice(1, self.dim..width))
        });
        let mut h = h.slice(1, 0..self.dim).contiguous();
        let mut lent: Vec<KeysValues> = Vec::with_capacity(self.owners.len());
        for (i, (layer, owner)) in self.decoder.layers.iter().zip(&self.owners).enumerate() {
            let own = self.per_layer.as_ref().zip(own.as_ref()).map(|(per_layer, own)| {
                let first = i as i32 * per_layer.width;
                own.slice(1, first..first + per_layer.width)
            });
            let (out, kv) = layer.forward(&h, own.as_ref(), lent.get(*owner), &mut cx.layer(*owner));
            lent.push(kv);
            h = out;
            cx.tap(i, &h);
        }
        self.decoder.norm.forward(&h)
    }
    fn logits(&self, h: &Array) -> Array {
        self.decoder.logits_of(h)
    }
}
