//! A GGUF file as the checkpoint it was made from: config.json keys, tensor names and row orders.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlx_core::Dtype;
use mlx_core::quant::QuantSpec;
use serde_json::{Map, Value, json};

use super::affine::{Scales, requantize, to_affine};
use super::architecture::{Architecture, SUPPORTED_ARCHITECTURES};
use super::blocks::{GgmlType, decode};
use super::{Gguf, GgufError, Result, TensorInfo};
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
    /// Converts every tensor, on all cores. `progress` gets the bytes done and in all.
    pub fn load(gguf: &Gguf, fallback: Fallback, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Self> {
        let name = gguf.string("general.architecture")?;
        let Some(arch) = Architecture::find(name) else {
            let known = SUPPORTED_ARCHITECTURES.join(", ");
            return Err(GgufError::Architecture { name: name.to_owned(), known });
        };
        let config = config(gguf, arch)?;
        let jobs = gguf
            .tensors()
            .iter()
            .filter(|(name, _)| !ROPE_FACTORS.contains(&name.as_str()))
            .map(|(name, info)| Ok((checkpoint_name(arch, name)?, info, layout(gguf, arch, name)?)))
            .collect::<Result<Vec<_>>>()?;
        let parts = convert_all(&jobs, fallback, progress)?;

        let (mut tensors, mut quantization) = (BTreeMap::new(), BTreeMap::new());
        for (path, part) in parts {
            if let Some(spec) = part.spec {
                quantization.insert(path.trim_end_matches(".weight").to_owned(), spec);
            }
            for (suffix, tensor) in part.tensors {
                let stem = path.strip_suffix(".weight").filter(|_| suffix != "weight");
                tensors.insert(stem.map_or(path.clone(), |stem| format!("{stem}.{suffix}")), tensor);
            }
        }
        Ok(Self { config, tensors, quantization })
    }
}

struct Converted {
    spec: Option<QuantSpec>,
    tensors: Vec<(&'static str, Tensor)>,
}

/// Tensors that a config holds.
const ROPE_FACTORS: &[&str] = &["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

/// How a file's tensor differs from the checkpoint's.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    Same,
    /// So many heads' rows interleave the halves of rotary pairs.
    Permuted(usize),
    /// A norm's whole weight, where the checkpoint holds `weight - 1`.
    WholeNorm,
}

/// The path in a checkpoint, the stored tensor, and how it is laid out.
type Job<'a> = (String, &'a TensorInfo, Layout);

fn convert_all(
    jobs: &[Job<'_>],
    fallback: Fallback,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Vec<(String, Converted)>> {
    let total: u64 = jobs.iter().map(|job| job.1.bytes().len() as u64).sum();
    let (next, done) = (AtomicUsize::new(0), std::sync::atomic::AtomicU64::new(0));
    let results = Mutex::new(Vec::with_capacity(jobs.len()));
    let work = || {
        while let Some((path, info, layout)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let converted = convert(path, info, *layout, fallback);
            if let Ok(Converted { spec: Some(_), .. }) = converted {
                mlx_core::file::forget(info.bytes());
            }
            let n = info.bytes().len() as u64;
            progress(done.fetch_add(n, Ordering::Relaxed) + n, total);
            let mut results = results.lock().expect("no converter panics while it holds the lock");
            results.push((path.clone(), converted));
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        (0..threads.min(16)).for_each(|_| {
            scope.spawn(work);
        });
    });
    let results = results.into_inner().expect("no converter panicked");
    results.into_iter().map(|(path, converted)| Ok((path, converted?))).collect()
}

fn convert(path: &str, info: &TensorInfo, layout: Layout, fallback: Fallback) -> Result<Converted> {
    let unpermuted;
    let bytes = match layout {
        Layout::WholeNorm => return Ok(centred(info)),
        Layout::Permuted(heads) => {
            unpermuted = unpermute(info, heads).ok_or_else(|| GgufError::Tensor {
                name: path.into(),
                message: format!("{heads} heads do not divide its rows {:?}", info.shape),
            })?;
            &unpermuted
        }
        Layout::Same => info.bytes(),
    };
    let plain = |dtype| {
        let tensor = match layout {
            Layout::Permuted(_) => Tensor::owned(bytes.to_vec(), info.shape.clone(), dtype),
            _ => {
                let (file, range) = info.mapping();
                Tensor::mapped(file.clone(), range, info.shape.clone(), dtype)
            }
        };
        Converted { spec: None, tensors: vec![("weight", tensor)] }
    };
    match info.kind {
        GgmlType::F32 => return Ok(plain(Dtype::Float32)),
        GgmlType::F16 => return Ok(plain(Dtype::Float16)),
        GgmlType::BF16 => return Ok(plain(Dtype::Bfloat16)),
        _ => {}
    }
    let decoded = || {
        let mut values = vec![0.0; info.shape.iter().product()];
        decode(info.kind, bytes, &mut values);
        values
    };
    let affine = match (to_affine(info.kind, bytes), fallback) {
        (Some(affine), _) => affine,
        (None, Fallback::Affine8) => requantize(&decoded()),
        (None, Fallback::Bfloat16) => {
            let bytes = decoded().iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect();
            let tensor = Tensor::owned(bytes, info.shape.clone(), Dtype::Bfloat16);
            return Ok(Converted { spec: None, tensors: vec![("weight", tensor)] });
        }
    };
    let shape = |cols: usize| {
        let mut shape = info.shape.clone();
        *shape.last_mut().expect("a block format has rows") = cols;
        shape
    };
    let groups = shape(info.cols() / 32);
    let word_cols = info.cols() * affine.spec.bits as usize / 32;
    let mut tensors = vec![
        ("weight", Tensor::owned(affine.words, shape(word_cols), Dtype::Uint32)),
        ("scales", stored(affine.scales, &groups)),
    ];
    tensors.extend(affine.biases.map(|biases| ("biases", stored(biases, &groups))));
    Ok(Converted { spec: Some(affine.spec), tensors })
}

fn stored(scales: Scales, shape: &[usize]) -> Tensor {
    let (bytes, dtype) = match scales {
        Scales::F16(x) => (x.iter().flat_map(|x| x.to_le_bytes()).collect(), Dtype::Float16),
        Scales::F32(x) => (x.iter().flat_map(|x| x.to_le_bytes()).collect(), Dtype::Float32),
        Scales::E8m0(x) => (x, Dtype::Uint8),
    };
    Tensor::owned(bytes, shape.to_vec(), dtype)
}

/// Rows in a checkpoint's order. GGUF's llama layout interleaves the halves of each head's rotary pairs:
/// row `2i + j` of a head is the checkpoint's row `j · n / 2 + i`.
fn unpermute(info: &TensorInfo, heads: usize) -> Option<Vec<u8>> {
    let rows = info.shape[0];
    if rows == 0 || heads == 0 || !rows.is_multiple_of(heads.checked_mul(2)?) {
        return None;
    }
    let (stride, per_head) = (info.bytes().len() / rows, rows / heads);
    let mut out = Vec::with_capacity(info.bytes().len());
    for row in 0..rows {
        let (head, r) = (row / per_head, row % per_head);
        let (j, i) = (r / (per_head / 2), r % (per_head / 2));
        let from = (head * per_head + 2 * i + j) * stride;
        out.extend_from_slice(&info.bytes()[from..from + stride]);
    }
    Some(out)
}

/// A norm's weights less one.
fn centred(info: &TensorInfo) -> Converted {
    let mut values = vec![0.0; info.shape.iter().product()];
    decode(info.kind, info.bytes(), &mut values);
    let bytes = values.iter().flat_map(|x| (x - 1.0).to_le_bytes()).collect();
    let tensor = Tensor::owned(bytes, info.shape.clone(), Dtype::Float32);
    Converted { spec: None, tensors: vec![("weight", tensor)] }
}

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
