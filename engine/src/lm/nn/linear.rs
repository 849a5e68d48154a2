//! Projections. Dense or quantized, and how it is laid out for the device, is settled at load.

use mlx_core::projection::{self, Projection};
use mlx_core::{Array, Dtype};

/// `y = x · Wᵀ + b`.
pub struct Linear {
    pub(super) weight: Projection,
}

impl Linear {
    pub fn new(weight: Projection) -> Self {
        Self { weight }
    }

    /// `[N, in] → [N, out]`
    pub fn forward(&self, x: &Array) -> Array {
        self.weight.forward(x)
    }

    /// `residual + x · Wᵀ + b`
    pub fn forward_add(&self, x: &Array, residual: &Array) -> Array {
        projection::project_add(x, &self.weight, residual)
    }
}

/// A table of vectors by id.
pub struct Embedding {
    weight: Projection,
    /// The type that activations have throughout the model.
    dtype: Dtype,
}

impl Embedding {
    pub fn new(weight: Projection, dtype: Dtype) -> Self {
        Self { weight, dtype }
    }

    /// `[N]` ids to `[N, D]`.
    pub fn forward(&self, ids: &Array) -> Array {
        self.weight.rows(ids, self.dtype)
    }

    /// The tied output projection, `[N, D] → [N, vocab]`.
    pub fn as_linear(&self) -> Linear {
        Linear { weight: self.weight.clone() }
    }
}
