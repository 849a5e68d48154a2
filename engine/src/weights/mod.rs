//! A checkpoint being consumed: names to tensors, whatever file they come from.
//!
//! A model *takes* tensors by path, and [`Weights::finish`] fails if any are left, so that a checkpoint is
//! either understood whole or refused. Dense or quantized is decided here, from what the checkpoint holds.

pub mod checkpoint;
pub mod gguf;
mod quant;
mod tensor;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use mlx_core::projection::{LayerNorm, Projection, RmsNorm, Width};
use mlx_core::{Array, Dtype};

use crate::lm::nn::{Embedding, Linear};

pub use quant::QuantConfig;
pub use tensor::Tensor;

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{0}")]
    Config(String),
    #[error("model type `{model_type}` is not supported; supported: {}", supported.join(", "))]
    ModelType { model_type: String, supported: Vec<&'static str> },
    #[error("the checkpoint has no tensor `{name}`")]
    Missing { name: String },
    #[error("`{name}` has shape {got:?}, expected {want:?}")]
    Shape { name: String, want: Vec<usize>, got: Vec<usize> },
    #[error("{} tensors of the checkpoint are not part of the model: {}", names.len(), some(names))]
    Unused { names: Vec<String> },
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::CheckpointError),
    #[error(transparent)]
    Gguf(#[from] gguf::GgufError),
    #[error(transparent)]
    Text(#[from] crate::text::TextError),
    #[error(transparent)]
    Device(#[from] mlx_core::Error),
}

pub type Result<T> = std::result::Result<T, LoadError>;

/// A projection that was packed has no more use for the file's pages.
fn copied<'a>(projection: &Projection, tensors: impl IntoIterator<Item = &'a Tensor>) {
    if projection.is_packed() {
        tensors.into_iter().for_each(Tensor::forget);
    }
}

/// The first few names.
fn some(names: &[String]) -> String {
    let shown = names.iter().take(5).map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    if 5 < names.len() { format!("{shown}, …") } else { shown }
}

/// How matrices are prepared for the device.
#[derive(Clone, Copy, Debug)]
pub struct Preparation {
    /// The type of activations, and of everything that is not quantized.
    pub dtype: Dtype,
    /// Digits of an activation in the CPU kernels.
    pub width: Width,
}

/// A cursor into a checkpoint: cheap to clone, `at` descends one path component.
#[derive(Clone)]
pub struct Weights {
    store: Rc<Store>,
    path: String,
}

struct Store {
    tensors: RefCell<BTreeMap<String, Tensor>>,
    quantization: QuantConfig,
    preparation: Preparation,
    /// Called for each tensor that is taken.
    taken: Box<dyn Fn()>,
}

impl Weights {
    pub fn new(
        tensors: BTreeMap<String, Tensor>,
        quantization: QuantConfig,
        preparation: Preparation,
        taken: Box<dyn Fn()>,
    ) -> Self {
        let tensors = RefCell::new(tensors);
        Self { store: Rc::new(Store { tensors, quantization, preparation, taken }), path: String::new() }
    }

    pub fn at(&self, name: impl fmt::Display) -> Self {
        Self { store: self.store.clone(), path: self.join(&name.to_string()) }
    }

    fn join(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub fn has(&self, name: &str) -> bool {
        self.store.tensors.borrow().contains_key(&self.join(name))
    }

    /// Forgets tensors that the model is known not to use.
    pub fn without(self, unused: impl Fn(&str) -> bool) -> Self {
        self.store.tensors.borrow_mut().retain(|name, _| !unused(name));
        self
    }

    /// Gives tensors the names that `rename` has for them; `None` forgets one.
    pub fn renamed(self, rename: impl Fn(&str) -> Option<String>) -> Self {
        let tensors = self.store.tensors.take();
        let renamed = tensors.into_iter().filter_map(|(name, tensor)| Some((rename(&name)?, tensor)));
        self.store.tensors.replace(renamed.collect());
        self
    }

    /// The stored tensor, whose shape must be `shape`.
    fn take(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let name = self.join(name);
        let Some(tensor) = self.store.tensors.borrow_mut().remove(&name) else {
            return Err(LoadError::Missing { name });
        };
        if tensor.shape != shape {
            return Err(LoadError::Shape { name, want: shape.to_vec(), got: tensor.shape.clone() });
        }
        (self.store.taken)();
        Ok(tensor)
    }

    /// A float tensor as the activations' type.
    pub fn array(&self, name: &str, shape: &[usize]) -> Result<Array> {
        let array = self.take(name, shape)?.to_array().astype(self.store.preparation.dtype);
        array.eval()?;
        Ok(array)
    }

    /// A single number, as `[]`; checkpoints may hold it as `[1]`.
    pub fn scalar(&self, name: &str) -> Result<Array> {
        let stored = self.store.tensors.borrow().get(&self.join(name)).map(|t| t.shape.clone());
        let shape = stored.filter(|shape| shape == &[1]).unwrap_or_default();
        Ok(self.array(name, &shape)?.reshape(&[]))
    }

    /// `[n_out, n_in]` with an optional bias, dense or quantized as stored.
    fn projection(&self, n_in: usize, n_out: usize, bias: bool) -> Result<Projection> {
        let bias = bias.then(|| self.array("bias", &[n_out])).transpose()?;
        let width = self.store.preparation.width;
        if !self.has("scales") {
            let weight = self.take("weight", &[n_out, n_in])?;
            let projection = Projection::dense(weight.to_array(), bias, width)?;
            copied(&projection, [&weight]);
            return Ok(projection);
        }
        let shape = |name: &str| {
            self.store.tensors.borrow().get(&self.join(name)).map(|t| (t.shape.clone(), t.dtype))
        };
        let spec = self.store.quantization.spec(&self.path, n_in, shape("weight"), shape("scales"))?;
        let groups = [n_out, n_in / spec.group_size as usize];
        let words = self.take("weight", &[n_out, n_in * spec.bits as usize / 32])?;
        let scales = self.take("scales", &groups)?;
        let biases = match spec.mode {
            mlx_core::quant::QuantMode::Affine => Some(self.take("biases", &groups)?),
            _ => None,
        };
        let biases_array = biases.as_ref().map(Tensor::to_array);
        let projection =
            Projection::quantized(words.to_array(), scales.to_array(), biases_array, spec, bias, width)?;
        copied(&projection, [&words, &scales].into_iter().chain(&biases));
        Ok(projection)
    }

    pub fn linear(&self, name: &str, n_in: usize, n_out: usize, bias: bool) -> Result<Linear> {
        Ok(Linear::new(self.at(name).projection(n_in, n_out, bias)?))
    }

    pub fn embedding(&self, name: &str, n: usize, dim: usize) -> Result<Embedding> {
        Ok(Embedding::new(self.at(name).projection(dim, n, false)?, self.store.preparation.dtype))
    }

    pub fn rms_norm(&self, name: &str, dim: usize, eps: f32) -> Result<RmsNorm> {
        Ok(RmsNorm { weight: self.at(name).array("weight", &[dim])?, eps })
    }

    /// An RMS norm of which the checkpoint holds `weight - 1`.
    pub fn centred_rms_norm(&self, name: &str, dim: usize, eps: f32) -> Result<RmsNorm> {
        let norm = self.rms_norm(name, dim, eps)?;
        let weight = norm.weight + 1.0;
        weight.eval()?;
        Ok(RmsNorm { weight, eps })
    }

    pub fn layer_norm(&self, name: &str, dim: usize, eps: f32, bias: bool) -> Result<LayerNorm> {
        let w = self.at(name);
        let bias = bias.then(|| w.array("bias", &[dim])).transpose()?;
        Ok(LayerNorm { weight: Some(w.array("weight", &[dim])?), bias, dim, eps })
    }

    /// Replaces the matrix `name`, and all that belongs to it, by `parts`: each one's name and its rows in each of
    /// `repeats` equal groups of the whole's rows.
    pub fn split(&self, name: &str, parts: &[(&str, usize)], repeats: usize) -> Result<()> {
        let group: usize = parts.iter().map(|(_, n)| n).sum();
        for kind in ["weight", "scales", "biases", "bias"] {
            let name = self.at(name).join(kind);
            let Some(whole) = self.store.tensors.borrow_mut().remove(&name) else { continue };
            if whole.shape.first() != Some(&(group * repeats)) {
                let mut want = whole.shape.clone();
                want[..1].fill(group * repeats);
                return Err(LoadError::Shape { name, want, got: whole.shape });
            }
            let mut first = 0;
            for (part, n) in parts {
                let ranges = (0..repeats).map(|i| i * group + first..i * group + first + n);
                let rows = whole.rows(&ranges.collect::<Vec<_>>());
                self.store.tensors.borrow_mut().insert(self.at(part).join(kind), rows);
                first += n;
            }
        }
        Ok(())
    }

    /// Replaces the vectors `name.0.weight`, `name.1.weight`, … by one matrix, `to.weight`.
    pub fn stack(&self, name: &str, n: usize, dim: usize, to: &str) -> Result<()> {
        let rows = (0..n).map(|i| self.at(name).at(i).take("weight", &[dim]));
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let Some(dtype) = rows.first().map(|row| row.dtype) else { return Ok(()) };
        let bytes = rows.iter().flat_map(|row| row.bytes().to_vec()).collect();
        let whole = Tensor::owned(bytes, vec![n, dim], dtype);
        self.store.tensors.borrow_mut().insert(self.at(to).join("weight"), whole);
        Ok(())
    }

    /// Swaps the axes of the matrix `name`, which a checkpoint holds as `[in, out]`.
    pub fn transpose(&self, name: &str) {
        let mut tensors = self.store.tensors.borrow_mut();
        if let Some(tensor) = tensors.get_mut(&self.join(name)).filter(|t| t.shape.len() == 2) {
            *tensor = tensor.transposed();
        }
    }

    /// `layers.0`, `layers.1`, … each built by `f`.
    pub fn layers<T>(&self, name: &str, n: usize, f: impl Fn(usize, Weights) -> Result<T>) -> Result<Vec<T>> {
        (0..n).map(|i| f(i, self.at(name).at(i))).collect()
    }

    /// Fails if the model left tensors behind.
    pub fn finish(self) -> Result<()> {
        let names: Vec<String> = self.store.tensors.borrow().keys().cloned().collect();
        if names.is_empty() { Ok(()) } else { Err(LoadError::Unused { names }) }
    }
}
