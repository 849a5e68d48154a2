//! Grouped-query attention: arXiv 2305.13245.

use mlx_core::Array;
use mlx_core::attention::{AttentionSpec, Rope};
use mlx_core::projection::{self, LayerNorm, RmsNorm};

use super::{Linear, Norm};
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
    /// What the checkpoint calls the output projection.
    pub o_proj: &'static str,
    pub scale: f32,
    pub rope: Option<Rope>,
    /// Positions that a query sees, itself included; `None` sees all.
    pub window: Option<usize>,
    /// Scores become `cap · tanh(score / cap)`.
    pub softcap: Option<f32>,
    pub qk_norm: Option<QkNorm>,
}

/// Norms of q and k, before they are rotated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNorm {
    pub kind: QkNormKind,
    /// What the checkpoint calls them: of q, then of k.
    pub names: [&'static str; 2],
    pub eps: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNormKind {
    /// RMS over each head; heads share the weights.
    Head,
    /// [`Self::Head`], of which the checkpoint holds `weight - 1`.
    CentredHead,
    /// RMS over all heads together.
    Whole,
    /// Layer norm over each head, with weights of its own: `[H, D]`.
    Layer,
}

impl AttentionConfig {
    /// Plain attention: no biases, rotation, window or norms.
    pub fn new(dim: usize, n_heads: usize, n_kv_heads: usize, head_dim: usize) -> Self {
        Self {
            dim,
            n_heads,
            n_kv_heads,
            head_dim,
            qkv_bias: false,
            o_bias: false,
            o_proj: "o_proj",
            scale: (head_dim as f32).powf(-0.5),
            rope: None,
            window: None,
            softcap: None,
            qk_norm: None,
        }
    }

    pub fn layer(&self) -> LayerSpec {
        LayerSpec::Attention(KvSpec {
            n_heads: self.n_kv_heads,
            head_dim: self.head_dim,
            v_head_dim: self.head_dim,
            window: self.window,
        })
    }

    /// Entries of q, and of k or v.
    pub fn dims(&self) -> [usize; 2] {
        [self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim]
    }
}

pub struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    /// Norms that the attention op has no form for.
    qk_norm: Option<[Norm; 2]>,
    spec: AttentionSpec,
}

impl Attention {
    pub fn load(w: &Weights, c: AttentionConfig) -> Result<Self> {
        let [q_dim, kv_dim] = c.dims();
        let (qk_norm, head_norm) = match &c.qk_norm {
            Some(norm) => norm.load(w, &c)?,
            None => (None, None),
        };
        Ok(Self {
            q_proj: w.linear("q_proj", c.dim, q_dim, c.qkv_bias)?,
            k_proj: w.linear("k_proj", c.dim, kv_dim, c.qkv_bias)?,
            v_proj: w.linear("v_proj", c.dim, kv_dim, c.qkv_bias)?,
            o_proj: w.linear(c.o_proj, q_dim, c.dim, c.o_bias)?,
            qk_norm,
            spec: AttentionSpec {
                n_heads: c.n_heads as i32,
                n_kv_heads: c.n_kv_heads as i32,
                head_dim: c.head_dim as i32,
                v_head_dim: c.head_dim as i32,
                scale: c.scale,
                window: c.window.map(|w| w as i32),
                softcap: c.softcap,
                rope: c.rope,
                qk_norm: head_norm,
                sinks: None,
            },
        })
    }

    /// From a checkpoint that holds q, k and v as one matrix, `name`, in `groups` that each have a part of all three.
    pub fn load_fused(w: &Weights, name: &str, groups: usize, c: AttentionConfig) -> Result<Self> {
        let [q, kv] = c.dims().map(|dim| dim / groups.max(1));
        w.split(name, &[("q_proj", q), ("k_proj", kv), ("v_proj", kv)], groups)?;
        Self::load(w, c)
    }

    /// `attention(norm(x))`: `[N, D] → [N, D]`.
    pub fn forward(&self, norm: Option<&RmsNorm>, x: &Array, cache: &mut LayerView<'_>) -> Array {
        self.o_proj.forward(&self.heads(norm, x, None, cache))
    }

    /// `residual + attention(norm(x))`, all `[N, D]`.
    pub fn forward_add(
        &self,
        norm: Option<&RmsNorm>,
        x: &Array,
        residual: &Array,
        cache: &mut LayerView<'_>,
    ) -> Array {
        self.o_proj.forward_add(&self.heads(norm, x, None, cache), residual)
    }

    /// [`Self::forward_add`] with each token's query multiplied by `q_scale: [N, 1]`.
    pub fn forward_add_scaled(
        &self,
        norm: Option<&RmsNorm>,
        x: &Array,
        q_scale: Option<&Array>,
        cache: &mut LayerView<'_>,
    ) -> Array {
        self.o_proj.forward_add(&self.heads(norm, x, q_scale, cache), x)
    }

    /// What the heads gather, `[N, H·D]`.
    fn heads(
        &self,
        norm: Option<&RmsNorm>,
        x: &Array,
        q_scale: Option<&Array>,
        cache: &mut LayerView<'_>,
    ) -> Array {
        let projections = [&self.q_proj.weight, &self.k_proj.weight, &self.v_proj.weight];
        let [mut q, mut k, v] = projection::norm_project(x, norm, projections);
        if let Some([q_norm, k_norm]) = &self.qk_norm {
            (q, k) = (q_norm.forward(&q), k_norm.forward(&k));
        }
        if let Some(scale) = q_scale {
            q = &q * scale;
        }
        cache.attend(&q, &k, &v, &self.spec)
    }
}

impl QkNorm {
    /// Norms over what the attention op has a form for come second.
    #[expect(clippy::type_complexity, reason = "two places for one of two kinds of pairs")]
    fn load(
        &self,
        w: &Weights,
        c: &AttentionConfig,
    ) -> Result<(Option<[Norm; 2]>, Option<(RmsNorm, RmsNorm)>)> {
        let ([q_name, k_name], eps) = (self.names, self.eps);
        let [q_dim, kv_dim] = c.dims();
        let rms = |name, dim| w.rms_norm(name, dim, eps).map(Norm::Rms);
        let layer = |name: &str, n: usize| -> Result<Norm> {
            let weight = w.at(name).array("weight", &[n, c.head_dim])?.flatten(0, -1);
            Ok(Norm::Layer(LayerNorm { weight: Some(weight), bias: None, dim: c.head_dim, eps }))
        };
        let d = c.head_dim;
        Ok(match self.kind {
            QkNormKind::Head => (None, Some((w.rms_norm(q_name, d, eps)?, w.rms_norm(k_name, d, eps)?))),
            QkNormKind::CentredHead => {
                let norm = |name| w.centred_rms_norm(name, d, eps);
                (None, Some((norm(q_name)?, norm(k_name)?)))
            }
            QkNormKind::Whole => (Some([rms(q_name, q_dim)?, rms(k_name, kv_dim)?]), None),
            QkNormKind::Layer => (Some([layer(q_name, c.n_heads)?, layer(k_name, c.n_kv_heads)?]), None),
        })
    }
}
