//! Feed-forward blocks.

use mlx_core::Array;
use mlx_core::projection::{self, Act, RmsNorm};

use super::Linear;
use crate::weights::{Result, Weights};

/// `down(act(gate(x)) · up(x))`: GLU variants improve transformers, arXiv 2002.05202.
pub struct GatedMlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    act: Act,
}

impl GatedMlp {
    pub fn load(w: &Weights, dim: usize, hidden: usize, bias: bool, act: Act) -> Result<Self> {
        Ok(Self {
            gate_proj: w.linear("gate_proj", dim, hidden, bias)?,
            up_proj: w.linear("up_proj", dim, hidden, bias)?,
            down_proj: w.linear("down_proj", hidden, dim, bias)?,
            act,
        })
    }

    /// `residual + mlp(norm(x))`, all `[N, D]`.
    pub fn forward_add(&self, norm: Option<&RmsNorm>, x: &Array, residual: &Array) -> Array {
        let h = projection::glu(x, norm, &self.gate_proj.weight, &self.up_proj.weight, self.act);
        self.down_proj.forward_add(&h, residual)
    }
}
