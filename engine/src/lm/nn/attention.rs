//! Grouped-query attention: arXiv 2305.13245.

use mlx_core::Array;
use mlx_core::attention::{AttentionSpec, Rope};
use mlx_core::projection::{self, RmsNorm};

use super::Linear;
use crate::lm::LayerView;
use crate::lm::cache::{KvSpec, LayerSpec};
use crate::weights::{Result, Weights};

/// Shapes and options of one attention block.
#[derive(Clone)]
pub struct AttentionConfig {
    pub dim: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub qkv_bias: bool,
    pub o_bias: bool,
    pub scale: f32,
    pub rope: Option<Rope>,
    /// Positions that a query sees, itself included; `None` sees all.
    pub window: Option<usize>,
}

impl AttentionConfig {
    pub fn layer(&self) -> LayerSpec {
        LayerSpec::Attention(KvSpec {
            n_heads: self.n_kv_heads,
            head_dim: self.head_dim,
            v_head_dim: self.head_dim,
            window: self.window,
        })
    }
}

pub struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    spec: AttentionSpec,
}

impl Attention {
    pub fn load(w: &Weights, c: AttentionConfig) -> Result<Self> {
        let (q_dim, kv_dim) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
        Ok(Self {
            q_proj: w.linear("q_proj", c.dim, q_dim, c.qkv_bias)?,
            k_proj: w.linear("k_proj", c.dim, kv_dim, c.qkv_bias)?,
            v_proj: w.linear("v_proj", c.dim, kv_dim, c.qkv_bias)?,
            o_proj: w.linear("o_proj", q_dim, c.dim, c.o_bias)?,
            spec: AttentionSpec {
                n_heads: c.n_heads as i32,
                n_kv_heads: c.n_kv_heads as i32,
                head_dim: c.head_dim as i32,
                v_head_dim: c.head_dim as i32,
                scale: c.scale,
                window: c.window.map(|w| w as i32),
                softcap: None,
                rope: c.rope,
                qk_norm: None,
                sinks: None,
            },
        })
    }

    /// `residual + attention(norm(x))`, all `[N, D]`.
    pub fn forward_add(
        &self,
        norm: Option<&RmsNorm>,
        x: &Array,
        residual: &Array,
        cache: &mut LayerView<'_>,
    ) -> Array {
        let projections = [&self.q_proj.weight, &self.k_proj.weight, &self.v_proj.weight];
        let [q, k, v] = projection::norm_project(x, norm, projections);
        self.o_proj.forward_add(&cache.attend(&q, &k, &v, &self.spec), residual)
    }
}
