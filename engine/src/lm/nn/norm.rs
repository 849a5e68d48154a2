//! Norms of a row, of either kind.

use mlx_core::Array;
use mlx_core::projection::{LayerNorm, RmsNorm};

use crate::weights::{Result, Weights};

pub enum Norm {
    Rms(RmsNorm),
    Layer(LayerNorm),
}

/// Which norm a model has, before it is loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormConfig {
    Rms {
        eps: f32,
    },
    /// The checkpoint holds `weight - 1`.
    CentredRms {
        eps: f32,
    },
    Layer {
        eps: f32,
        bias: bool,
    },
    /// The checkpoint holds `weight - 1`.
    CentredLayer {
        eps: f32,
    },
}

impl NormConfig {
    pub fn load(self, w: &Weights, name: &str, dim: usize) -> Result<Norm> {
        Ok(match self {
            Self::Rms { eps } => Norm::Rms(w.rms_norm(name, dim, eps)?),
            Self::CentredRms { eps } => Norm::Rms(w.centred_rms_norm(name, dim, eps)?),
            Self::Layer { eps, bias } => Norm::Layer(w.layer_norm(name, dim, eps, bias)?),
            Self::CentredLayer { eps } => {
                let norm = w.layer_norm(name, dim, eps, true)?;
                let weight = norm.weight.map(|weight| weight + 1.0);
                Norm::Layer(LayerNorm { weight, ..norm })
            }
        })
    }
}

impl Norm {
    /// `[N, D] → [N, D]`
    pub fn forward(&self, x: &Array) -> Array {
        match self {
            Self::Rms(norm) => norm.forward(x),
            Self::Layer(norm) => norm.forward(x),
        }
    }

    /// The input and norm that a projection is to fuse: it has a form for one of them only.
    pub fn split(&self, x: &Array) -> (Array, Option<&RmsNorm>) {
        match self {
            Self::Rms(norm) => (x.clone(), Some(norm)),
            Self::Layer(norm) => (norm.forward(x), None),
        }
    }
}
