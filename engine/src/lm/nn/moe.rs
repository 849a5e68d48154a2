//! Mixtures of experts: arXiv 1701.06538.

use mlx_core::experts::{Experts, Gating, Routing};
use mlx_core::projection::RmsNorm;
use mlx_core::{Array, Dtype};

use super::{FeedForward, GatedMlp, Linear};
use crate::weights::{LoadError, Result, Weights};

/// Shapes and names of one layer's experts.
pub struct MoeConfig {
    pub dim: usize,
    pub hidden: usize,
    pub n_experts: usize,
    /// What the checkpoint calls the router.
    pub router: &'static str,
    /// Under which it holds the stacked experts.
    pub experts: &'static str,
    pub router_bias: bool,
    pub bias: bool,
    /// What the checkpoint calls the numbers that are added to scores for the choice alone.
    pub score_bias: Option<&'static str>,
    pub gating: Gating,
    pub routing: Routing,
}

pub struct Moe {
    router: Linear,
    experts: Experts,
    routing: Routing,
    shared: Option<Shared>,
}

/// An expert that every row goes through.
struct Shared {
    mlp: GatedMlp,
    /// Its weight is the sigmoid of this.
    gate: Option<Linear>,
}

impl Moe {
    pub fn load(w: &Weights, c: MoeConfig) -> Result<Self> {
        if c.routing.k == 0 || c.n_experts < c.routing.k {
            return Err(LoadError::Config(format!(
                "config.json: a token can't go to {} of {} experts",
                c.routing.k, c.n_experts
            )));
        }
        let mut routing = c.routing;
        if let Some(name) = c.score_bias {
            let bias = w.array(name, &[c.n_experts])?.astype(Dtype::Float32);
            routing.bias = Some(bias.to_vec()?.into());
        }
        let groups = routing.groups.map_or(1, |g| g.n);
        if groups == 0 || !c.n_experts.is_multiple_of(groups) {
            return Err(LoadError::Config(format!(
                "config.json: {} experts can't be in {groups} equal groups",
                c.n_experts
            )));
        }
        let stacks = w.at(c.experts);
        let stack = |name, n_in, n_out| stacks.experts(name, c.n_experts, [n_in, n_out], c.bias);
        Ok(Self {
            router: w.linear(c.router, c.dim, c.n_experts, c.router_bias)?,
            experts: Experts {
                gate: stack("gate_proj", c.dim, c.hidden)?,
                up: stack("up_proj", c.dim, c.hidden)?,
                down: stack("down_proj", c.hidden, c.dim)?,
                gating: c.gating,
                width: w.width(),
            },
            routing,
            shared: None,
        })
    }

    /// With an expert for all rows, and the matrix that weighs it.
    pub fn with_shared(mut self, mlp: GatedMlp, gate: Option<Linear>) -> Self {
        self.shared = Some(Shared { mlp, gate });
        self
    }
}

impl FeedForward for Moe {
    fn forward(&self, norm: Option<&RmsNorm>, x: &Array) -> Array {
        let x = norm.map_or_else(|| x.clone(), |norm| norm.forward(x));
        let y = self.experts.forward(&x, &self.router.forward(&x), &self.routing);
        match &self.shared {
            None => y,
            Some(Shared { mlp, gate: None }) => &y + &mlp.forward(None, &x),
            Some(Shared { mlp, gate: Some(gate) }) => {
                &y + &(&gate.forward(&x).sigmoid() * &mlp.forward(None, &x))
            }
        }
    }

    fn forward_add(&self, norm: Option<&RmsNorm>, x: &Array, residual: &Array) -> Array {
        residual + &self.forward(norm, x)
    }
}

/// For models of which some layers have experts and some don't.
impl FeedForward for Box<dyn FeedForward> {
    fn forward(&self, norm: Option<&RmsNorm>, x: &Array) -> Array {
        (**self).forward(norm, x)
    }

    fn forward_add(&self, norm: Option<&RmsNorm>, x: &Array, residual: &Array) -> Array {
        (**self).forward_add(norm, x, residual)
    }
}
