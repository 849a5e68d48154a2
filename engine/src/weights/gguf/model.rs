//! A GGUF file as the checkpoint it was made from: config.json keys, tensor names and row orders.

use std::collections::BTreeMap;

use mlx_core::quant::QuantSpec;
use serde_json::{Map, Value, json};

use super::architecture::{Architecture, SUPPORTED_ARCHITECTURES};
use super::blocks::{GgmlType, decode};
use super::convert::{Layout, convert};
use super::{Gguf, GgufError, Result};
use crate::weights::tensor::Tensor;

/// What to do with block formats that MLX has no counterpart of (Q2_K, Q3_K, Q6_K, IQ4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Quantize the decoded values to 8 bits: close to the file in size and in value.
    #[default]
    Affine8,
    /// Keep the decoded values in bfloat16: twice the size.
    Bfloat16,
}

/// A checkpoint as a folder would hold it.
pub struct GgufModel {
    /// The keys of config.json.
    pub config: Value,
    pub tensors: BTreeMap<String, Tensor>,
    /// How the matrix at a path (`model.layers.0.mlp.up_proj`) is quantized.
    pub quantization: BTreeMap<String, QuantSpec>,
}

impl GgufModel {
    /// Tensors are converted when they are used, each on all cores, and what is dropped then is given back: a
    /// load holds one converted matrix at a time.
    pub fn load(gguf: &Gguf, fallback: Fallback) -> Result<Self> {
        let name = gguf.string("general.architecture")?;
        let Some(arch) = Architecture::find(name) else {
            let known = SUPPORTED_ARCHITECTURES.join(", ");
            return Err(GgufError::Architecture { name: name.to_owned(), known });
        };
        let config = config(gguf, arch)?;
        let (mut tensors, mut quantization) = (BTreeMap::new(), BTreeMap::new());
        for (name, info) in gguf.tensors() {
            if ROPE_FACTORS.contains(&name.as_str()) {
                continue;
            }
            let path = checkpoint_name(arch, name)?;
            let converted = convert(&path, info, layout(gguf, arch, name)?, fallback)?;
            if let Some(spec) = converted.spec {
                quantization.insert(path.trim_end_matches(".weight").to_owned(), spec);
            }
            for (suffix, tensor) in converted.tensors {
                let stem = path.strip_suffix(".weight").filter(|_| suffix != "weight");
                tensors.insert(stem.map_or(path.clone(), |stem| format!("{stem}.{suffix}")), tensor);
            }
        }
        Ok(Self { config, tensors, quantization })
    }
}

/// Tensors that a config holds.
const ROPE_FACTORS: &[&str] = &["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

fn layout(gguf: &Gguf, arch: &Architecture, name: &str) -> Result<Layout> {
    let block = name.rsplit('.').nth(1).unwrap_or_default();
    if arch.whole_norms && block.ends_with("norm") {
        return Ok(Layout::WholeNorm);
    }
    let key = match block {
        "attn_q" if arch.permuted => "attention.head_count",
        "attn_k" if arch.permuted => "attention.head_count_kv",
        _ => return Ok(Layout::Same),
    };
    let heads = |key: &str| gguf.integer(&format!("{}.{key}", arch.name));
    Ok(Layout::Permuted(heads(key).or_else(|_| heads("attention.head_count"))? as usize))
}

fn checkpoint_name(arch: &Architecture, name: &str) -> Result<String> {
    arch.checkpoint_name(name).ok_or_else(|| GgufError::Tensor {
        name: name.to_owned(),
        message: format!("is not part of the architecture {}", arch.name),
    })
}

fn config(gguf: &Gguf, arch: &Architecture) -> Result<Value> {
    let key = |name: &str| format!("{}.{name}", arch.name);
    let integer = |name: &str| gguf.integer(&key(name));
    let n_heads = integer("attention.head_count")?;
    let mut config = json!({
        "model_type": arch.model_type,
        "hidden_size": integer("embedding_length")?,
        "num_hidden_layers": integer("block_count")?,
        "intermediate_size": integer("feed_forward_length")?,
        "num_attention_heads": n_heads,
        "num_key_value_heads": integer("attention.head_count_kv").unwrap_or(n_heads),
        "rope_theta": gguf.number(&key("rope.freq_base")).unwrap_or(10_000.0),
        "max_position_embeddings": integer("context_length")?,
        "tie_word_embeddings": !gguf.tensors().contains_key("output.weight"),
        "attention_bias": gguf.tensors().contains_key("blk.0.attn_q.bias"),
        "mlp_bias": gguf.tensors().contains_key("blk.0.ffn_up.bias"),
    });
    let (rms, layer) = (key("attention.layer_norm_rms_epsilon"), key("attention.layer_norm_epsilon"));
    match gguf.number(&layer) {
        Ok(eps) => config["layer_norm_eps"] = json!(eps),
        Err(_) => config["rms_norm_eps"] = json!(gguf.number(&rms)?),
    }
    let embedding = gguf.tensors().get("token_embd.weight");
    let rows = embedding.and_then(|t| t.shape.first());
    let missing = || GgufError::Tensor { name: "token_embd.weight".into(), message: "is missing".into() };
    config["vocab_size"] = json!(rows.ok_or_else(missing)?);
    let rotated = || integer("rope.dimension_count").ok().filter(|_| arch.permuted);
    if let Some(head_dim) = integer("attention.key_length").ok().or_else(rotated) {
        config["head_dim"] = json!(head_dim);
    }
    if let Some(scaling) = rope_scaling(gguf, arch.name)? {
        config["rope_scaling"] = Value::Object(scaling);
    }
    if let Value::Object(config) = &mut config {
        arch.configure(gguf, config)?;
    }
    Ok(config)
}

fn rope_scaling(gguf: &Gguf, arch: &str) -> Result<Option<Map<String, Value>>> {
    let key = |name: &str| format!("{arch}.rope.scaling.{name}");
    let mut scaling = Map::new();
    if let Some(factors) = rope_factors(gguf, "rope_freqs.weight")? {
        scaling.insert("rope_type".into(), json!("factors"));
        scaling.insert("factors".into(), factors);
        return Ok(Some(scaling));
    }
    if let Some(factors) = rope_factors(gguf, "rope_factors_long.weight")? {
        scaling.insert("rope_type".into(), json!("longrope"));
        scaling.insert("long_factor".into(), factors);
        if let Ok(original) = gguf.integer(&key("original_context_length")) {
            scaling.insert("original_max_position_embeddings".into(), json!(original));
        }
        return Ok(Some(scaling));
    }
    match gguf.string(&key("type")) {
        Err(_) | Ok("none") => return Ok(None),
        Ok(kind) => scaling.insert("rope_type".into(), json!(kind)),
    };
    scaling.insert("factor".into(), json!(gguf.number(&key("factor"))?));
    if let Ok(original) = gguf.integer(&key("original_context_length")) {
        scaling.insert("original_max_position_embeddings".into(), json!(original));
    }
    Ok(Some(scaling))
}

/// A tensor of factors as a list.
fn rope_factors(gguf: &Gguf, name: &str) -> Result<Option<Value>> {
    let Some(factors) = gguf.tensors().get(name) else { return Ok(None) };
    if factors.kind != GgmlType::F32 {
        let message = format!("is {} instead of F32", factors.kind);
        return Err(GgufError::Tensor { name: name.into(), message });
    }
    let mut values = vec![0.0; factors.shape.iter().product()];
    decode(factors.kind, factors.bytes(), &mut values);
    Ok(Some(json!(values)))
}
