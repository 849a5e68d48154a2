//! Apertus: q and k normed by head, a feed-forward block without a gate and with a learned nonlinearity. Papers: arXiv
//! 2509.14233, xIELU: 2411.13010. Reference: `mlx_lm/models/apertus.py`.

use mlx_core::Array;

use super::base::{Base, missing};
use super::blocks::PreNorm;
use super::decoder::{Decoder, Parts};
use crate::lm::nn::{Attention, AttentionConfig, FeedForward, Linear, QkNorm, QkNormKind, RmsNorm};
use crate::weights::{Result, Weights};

pub struct Mlp {
    up_proj: Linear,
    down_proj: Linear,
    act_fn: Xielu,
}

/// `a·x² + b·x` for positive inputs, `n·(exp(min(x, eps)) - 1) - n·x + b·x` for others.
struct Xielu {
    positive: Array,
    negative: Array,
    beta: Array,
    eps: Array,
}

pub fn load(c: &Base, w: Weights) -> Result<Decoder<PreNorm<Mlp>>> {
    let c = &Base { head_dim: None, attention_bias: None, ..c.clone() };
    let norm = c.rms()?;
    let qk_norm = QkNorm {
        kind: QkNormKind::Head,
        names: ["q_norm", "k_norm"],
        eps: c.rms_norm_eps.ok_or_else(|| missing("rms_norm_eps"))?,
    };
    let attention = c.per_layer(|_| Ok(AttentionConfig { qk_norm: Some(qk_norm), ..c.attention()? }))?;
    let dim = c.hidden_size;
    Decoder::load(&Parts::new(c, false, norm, attention), w, |w, attention| {
        Ok(PreNorm {
            input_layernorm: norm.load(w, "attention_layernorm", dim)?,
            self_attn: Attention::load(&w.at("self_attn"), attention)?,
            post_attention_layernorm: norm.load(w, "feedforward_layernorm", dim)?,
            mlp: Mlp::load(&w.at("mlp"), c)?,
        })
    })
}

impl Mlp {
    fn load(w: &Weights, c: &Base) -> Result<Self> {
        let (dim, hidden, bias) = (c.hidden_size, c.intermediate_size, c.mlp_bias.unwrap_or(false));
        Ok(Self {
            up_proj: w.linear("up_proj", dim, hidden, bias)?,
            down_proj: w.linear("down_proj", hidden, dim, bias)?,
            act_fn: Xielu::load(&w.at("act_fn"))?,
        })
    }

    fn hidden(&self, norm: Option<&RmsNorm>, x: &Array) -> Array {
        let x = norm.map_or_else(|| x.clone(), |norm| norm.forward(x));
        self.act_fn.forward(&self.up_proj.forward(&x))
    }
}

impl FeedForward for Mlp {
    fn forward(&self, norm: Option<&RmsNorm>, x: &Array) -> Array {
        self.down_proj.forward(&self.hidden(norm, x))
    }

    fn forward_add(&self, norm: Option<&RmsNorm>, x: &Array, residual: &Array) -> Array {
        self.down_proj.forward_add(&self.hidden(norm, x), residual)
    }
}

impl Xielu {
    fn load(w: &Weights) -> Result<Self> {
        let number = |name: &str| w.scalar(name);
        let beta = number("beta")?;
        let positive = number("alpha_p")?.softplus();
        let negative = &beta + &number("alpha_n")?.softplus();
        mlx_core::eval([&positive, &negative])?;
        Ok(Self { positive, negative, beta, eps: number("eps")? })
    }

    fn forward(&self, x: &Array) -> Array {
        let zero = Array::zeros(&[1], x.dtype());
        let linear = x * &self.beta;
        let above = &(&x.square() * &self.positive) + &linear;
        let curve = &x.minimum(&self.eps).exp() - &Array::ones(&[1], x.dtype());
        let below = &(&(&curve - x) * &self.negative) + &linear;
        x.gt(&zero).where_(&above, &below)
    }
}
