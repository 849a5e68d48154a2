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

use mlx_core::projection::{Projection, RmsNorm, Width};
use mlx_core::{Array, Dtype};

use crate::lm::nn::{Embedding, Linear};

pub use quant::QuantConfig;
pub use tensor::Tensor;

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{0}")]
    Config(String),
    #[error("model type `{model_type}` is not supported; supported: {}", supported.join(", "))]
    ModelType { model_type: String, supported: &'static [&'static str] },
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
