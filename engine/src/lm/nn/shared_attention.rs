//! Attention whose keys and values later layers use again, instead of their own: arXiv 2405.12981.
//!
//! A layer that borrows them appends them once more where they already are, which changes nothing, so that the
//! attention op needs no second form.

use mlx_core::attention::{AttentionSpec, Rope};
use mlx_core::projection::RmsNorm;
use mlx_core::{Array, Dtype};

use super::Linear;
use crate::lm::LayerView;
use crate::lm::cache::{KvSpec, LayerSpec};
use crate::weights::{Result, Weights};

/// Keys and values of the step's tokens, before norms and rotation of the keys.
#[derive(Clone)]
pub struct KeysValues {
    k: Array,
    v: Array,
}

#[derive(Clone)]
pub struct SharedAttentionConfig {
    pub dim: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub scale: f32,
    pub eps: f32,
    pub rope: Rope,
    pub window: Option<usize>,
    /// Values are the keys.
    pub k_eq_v: bool,
}

pub struct SharedAttention {
    q_proj: Linear,
    own: Option<Own>,
    o_proj: Linear,
    spec: AttentionSpec,
}

/// The part that a borrower lacks.
struct Own {
    k_proj: Linear,
    v_proj: Option<Linear>,
    v_norm: RmsNorm,
}

impl SharedAttentionConfig {
    pub fn layer(&self) -> LayerSpec {
        LayerSpec::Attention(KvSpec {
            n_heads: self.n_kv_heads,
            head_dim: self.head_dim,
            v_head_dim: self.head_dim,
            window: self.window,
        })
    }
}

impl SharedAttention {
    /// With keys and values of its own, or those of `owner`.
    pub fn load(w: &Weights, c: SharedAttentionConfig, owner: Option<&Self>) -> Result<Self> {
        let (q_dim, kv_dim) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
        let own = || -> Result<Own> {
            Ok(Own {
                k_proj: w.linear("k_proj", c.dim, kv_dim, false)?,
                v_proj: match c.k_eq_v {
                    true => None,
                    false => Some(w.linear("v_proj", c.dim, kv_dim, false)?),
                },
                v_norm: RmsNorm { weight: Array::ones(&[c.head_dim as i32], Dtype::Float32), eps: c.eps },
            })
        };
        let q_norm = w.rms_norm("q_norm", c.head_dim, c.eps)?;
        let k_norm = match owner.and_then(|owner| owner.spec.qk_norm.as_ref()) {
            Some((_, k_norm)) => k_norm.clone(),
            None => w.rms_norm("k_norm", c.head_dim, c.eps)?,
        };
        Ok(Self {
            q_proj: w.linear("q_proj", c.dim, q_dim, false)?,
            own: if owner.is_some() { None } else { Some(own()?) },
            o_proj: w.linear("o_proj", q_dim, c.dim, false)?,
            spec: AttentionSpec {
                n_heads: c.n_heads as i32,
                n_kv_heads: c.n_kv_heads as i32,
                head_dim: c.head_dim as i32,
                v_head_dim: c.head_dim as i32,
                scale: c.scale,
                window: c.window.map(|w| w as i32),
                softcap: None,
                rope: Some(c.rope),
                qk_norm: Some((q_norm, k_norm)),
                sinks: None,
            },
        })
    }

    /// `attention(x)`, `[N, D] → [N, D]`, and what borrowers of its keys and values are lent. `cache` is the owner's.
    pub fn forward(
        &self,
        x: &Array,
        lent: Option<&KeysValues>,
        cache: &mut LayerView<'_>,
    ) -> (Array, KeysValues) {
        let kv = match (&self.own, lent) {
            (Some(own), _) => own.forward(x, self.spec.head_dim),
            (None, lent) => lent.expect("a borrower stands behind its owner").clone(),
        };
        let heads = cache.attend(&self.q_proj.forward(x), &kv.k, &kv.v, &self.spec);
        (self.o_proj.forward(&heads), kv)
    }
}

impl Own {
    fn forward(&self, x: &Array, head_dim: i32) -> KeysValues {
        let k = self.k_proj.forward(x);
        let v = self.v_proj.as_ref().map_or_else(|| k.clone(), |v_proj| v_proj.forward(x));
        let v = self.v_norm.forward(&v.reshape(&[-1, head_dim])).reshape(k.shape());
        KeysValues { k, v }
    }
}
