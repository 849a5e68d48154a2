//! Feed-forward blocks.

use mlx_core::Array;
use mlx_core::projection::{self, Act, RmsNorm};

use super::Linear;
use crate::weights::{Result, Weights};

/// What stands after attention in a layer. Inputs and results are `[N, D]`.
pub trait FeedForward {
    /// `mlp(norm(x))`
    fn forward(&self, norm: Option<&RmsNorm>, x: &Array) -> Array;
    /// `residual + mlp(norm(x))`
    fn forward_add(&self, norm: Option<&RmsNorm>, x: &Array, residual: &Array) -> Array;
}

/// `down(act(gate(x)) · up(x))`: GLU variants improve transformers, arXiv 2002.05202.
pub struct GatedMlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    act: Act,
}

impl GatedMlp {
    pub fn load(w: &Weights, dim: usize, hidden: usize, bias: bool, act: Act) -> Result<Self> {
        Self::load_named(w, ["gate_proj", "up_proj", "down_proj"], [dim, hidden], bias, act)
    }

    /// With the checkpoint's own names for gate, up and down.
    pub fn load_named(
        w: &Weights,
        names: [&str; 3],
        [dim, hidden]: [usize; 2],
        bias: bool,
        act: Act,
    ) -> Result<Self> {
        Ok(Self {
            gate_proj: w.linear(names[0], dim, hidden, bias)?,
            up_proj: w.linear(names[1], dim, hidden, bias)?,
            down_proj: w.linear(names[2], hidden, dim, bias)?,
            act,
        })
    }

    /// From a checkpoint that holds gate and up as one matrix, `gate_up_proj`.
    pub fn load_fused(w: &Weights, dim: usize, hidden: usize, act: Act) -> Result<Self> {
        w.split("gate_up_proj", &[("gate_proj", hidden), ("up_proj", hidden)], 1)?;
        Self::load(w, dim, hidden, false, act)
    }

    fn hidden(&self, norm: Option<&RmsNorm>, x: &Array) -> Array {
        projection::glu(x, norm, &self.gate_proj.weight, &self.up_proj.weight, self.act)
    }

    /// `residual + mlp(norm(x))`, all `[N, D]`.
    pub fn forward_add(&self, norm: Option<&RmsNorm>, x: &Array, residual: &Array) -> Array {
        self.down_proj.forward_add(&self.hidden(norm, x), residual)
    }
}

impl FeedForward for GatedMlp {
    fn forward(&self, norm: Option<&RmsNorm>, x: &Array) -> Array {
        self.down_proj.forward(&self.hidden(norm, x))
    }

    fn forward_add(&self, norm: Option<&RmsNorm>, x: &Array, residual: &Array) -> Array {
        self.forward_add(norm, x, residual)
    }
}

/// `down(act(up(x)))`
pub struct PlainMlp {
    up: Linear,
    down: Linear,
    act: fn(&Array) -> Array,
}

/// What a [`PlainMlp`] is made of.
pub struct PlainMlpConfig {
    pub dim: usize,
    pub hidden: usize,
    /// Names of the matrices: up, then down.
    pub names: [&'static str; 2],
    pub bias: bool,
    pub act: fn(&Array) -> Array,
}

impl PlainMlp {
    pub fn load(w: &Weights, c: &PlainMlpConfig) -> Result<Self> {
        Ok(Self {
            up: w.linear(c.names[0], c.dim, c.hidden, c.bias)?,
            down: w.linear(c.names[1], c.hidden, c.dim, c.bias)?,
            act: c.act,
        })
    }

    fn hidden(&self, norm: Option<&RmsNorm>, x: &Array) -> Array {
        let [up] = projection::norm_project(x, norm, [&self.up.weight]);
        (self.act)(&up)
    }
}

impl FeedForward for PlainMlp {
    fn forward(&self, norm: Option<&RmsNorm>, x: &Array) -> Array {
        self.down.forward(&self.hidden(norm, x))
    }

    fn forward_add(&self, norm: Option<&RmsNorm>, x: &Array, residual: &Array) -> Array {
        self.down.forward_add(&self.hidden(norm, x), residual)
    }
}

/// `max(x, 0)²`: arXiv 2109.08668.
pub fn relu_squared(x: &Array) -> Array {
    x.relu().square()
}
