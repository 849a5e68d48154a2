//! The numbers of `goldens/tiny`: each folder there is a tiny model, with what mlx-lm computes from it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use engine::lm::{self, CausalLm};
use engine::weights::{LoadError, Preparation, QuantConfig, Tensor, Weights};
use mlx_core::projection::Width;
use mlx_core::quant::{QuantMode, QuantSpec, quantize};
use mlx_core::{Array, Dtype};
use safetensors::SafeTensors;
use serde::Deserialize;
use serde_json::Value;

use crate::weights;

/// A tiny model and its golden numbers.
#[derive(Clone)]
pub struct Case {
    /// `family/case`
    pub name: String,
    pub prompt: Vec<u32>,
    /// Logits of the last `n` prompt positions, `[n, vocab]`.
    pub logits: Vec<f32>,
    /// The greedy tokens that follow the prompt.
    pub greedy: Vec<u32>,
    /// How far each greedy token's logit was ahead of the next.
    pub lead: Vec<f32>,
    stored: Stored,
}

#[derive(Clone, Deserialize)]
struct Stored {
    config: Value,
    tensors: BTreeMap<String, Vec<usize>>,
    quantized: BTreeMap<String, Format>,
}

#[derive(Clone, Deserialize)]
pub struct Format {
    pub group_size: i32,
    pub bits: i32,
    pub mode: String,
}

/// The folder that holds all goldens.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens")
}

/// Every case, ordered by name.
pub fn cases() -> Vec<Case> {
    let mut folders: Vec<PathBuf> = subfolders(&folder().join("tiny")).flat_map(|f| subfolders(&f)).collect();
    folders.sort();
    assert!(!folders.is_empty(), "tests/goldens/tiny holds no case");
    folders.iter().map(|folder| Case::read(folder)).collect()
}

fn subfolders(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(folder).unwrap_or_else(|err| panic!("{}: {err}", folder.display()));
    entries.map(|entry| entry.expect("a folder's entries can be read").path()).filter(|path| path.is_dir())
}

impl Case {
    fn read(folder: &Path) -> Self {
        let read = |file: &str| {
            let path = folder.join(file);
            fs::read(&path).unwrap_or_else(|err| panic!("{}: {err}", path.display()))
        };
        let bytes = read("expected.safetensors");
        let expected = SafeTensors::deserialize(&bytes).expect("goldens are valid safetensors");
        let words = |name: &str| {
            let data = expected.tensor(name).expect("a golden holds all its arrays").data().to_vec();
            data.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect::<Vec<u32>>()
        };
        let floats = |name: &str| words(name).into_iter().map(f32::from_bits).collect();
        let parts = folder.iter().rev().take(2).map(|part| part.to_string_lossy()).collect::<Vec<_>>();
        Self {
            name: format!("{}/{}", parts[1], parts[0]),
            prompt: words("prompt"),
            logits: floats("logits"),
            greedy: words("greedy"),
            lead: floats("lead"),
            stored: serde_json::from_slice(&read("case.json")).expect("case.json has the documented form"),
        }
    }

    /// Builds the model from the weight formula, in float32.
    pub fn load(&self) -> Result<Box<dyn CausalLm>, LoadError> {
        build(&self.stored.config, self.checkpoint())
    }

    pub fn config(&self) -> &Value {
        &self.stored.config
    }

    /// The tensors as a checkpoint holds them.
    pub fn checkpoint(&self) -> BTreeMap<String, Tensor> {
        let mut checkpoint = BTreeMap::new();
        for (name, shape) in &self.stored.tensors {
            let values = weights::tensor(name, shape);
            match name.strip_suffix(".weight").and_then(|path| Some((path, self.stored.quantized.get(path)?)))
            {
                Some((path, format)) => checkpoint.extend(quantized(path, &values, shape, format)),
                None => {
                    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                    checkpoint.insert(name.clone(), Tensor::owned(bytes, shape.clone(), Dtype::Float32));
                }
            }
        }
        checkpoint
    }
}

/// Builds a model as [`Case::load`] does.
pub fn build(config: &Value, tensors: BTreeMap<String, Tensor>) -> Result<Box<dyn CausalLm>, LoadError> {
    let preparation = Preparation { dtype: Dtype::Float32, width: Width::A24 };
    let quantization = QuantConfig::parse(config)?;
    lm::build(config, Weights::new(tensors, quantization, preparation, Box::new(|| ())))
}

/// The tensors of a quantized matrix.
///
/// # Panics
/// If there is no such format.
pub fn quantized(path: &str, values: &[f32], shape: &[usize], format: &Format) -> Vec<(String, Tensor)> {
    let mode = QuantMode::parse(&format.mode).expect("a golden names a known mode");
    let spec = QuantSpec::new(mode, format.group_size, format.bits).expect("a golden names a known format");
    let dims: Vec<i32> = shape.iter().map(|&d| d as i32).collect();
    let (words, scales, biases) = quantize(&Array::from_slice(values, &dims), spec);
    let mut parts =
        vec![(format!("{path}.weight"), stored(&words)), (format!("{path}.scales"), stored(&scales))];
    parts.extend(biases.map(|biases| (format!("{path}.biases"), stored(&biases))));
    parts
}

fn stored(array: &Array) -> Tensor {
    let computed = "quantizing a small matrix cannot fail";
    let bytes = match array.dtype() {
        Dtype::Uint32 => {
            array.to_vec::<u32>().expect(computed).iter().flat_map(|x| x.to_le_bytes()).collect()
        }
        Dtype::Uint8 => array.to_vec::<u8>().expect(computed),
        Dtype::Float32 => {
            array.to_vec::<f32>().expect(computed).iter().flat_map(|x| x.to_le_bytes()).collect()
        }
        other => panic!("quantizing float32 gave {other}"),
    };
    Tensor::owned(bytes, array.shape().iter().map(|&d| d as usize).collect(), array.dtype())
}
