//! GPT-2: learned positions, layer norms, biases everywhere. Reference: `mlx_lm/models/gpt2.py`.

use mlx_core::Array;
use serde::Deserialize;

use super::base::Base;
use super::blocks::PreNorm;
use super::decoder::{Decoder, Names, Parts};
use crate::lm::cache::LayerSpec;
use crate::lm::nn::{Attention, AttentionConfig, Embedding, NormConfig, PlainMlp, PlainMlpConfig};
use crate::lm::{CausalLm, Forward};
use crate::weights::{LoadError, Result, Weights};

#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    vocab_size: usize,
    n_embd: usize,
    n_head: usize,
    n_layer: usize,
    n_positions: usize,
    layer_norm_epsilon: f32,
}

pub struct Gpt2 {
    decoder: Decoder<PreNorm<PlainMlp>>,
    wpe: Embedding,
    n_positions: usize,
}

pub fn load(c: &Config, w: Weights) -> Result<Gpt2> {
    let dim = c.n_embd;
    if c.n_head == 0 || !dim.is_multiple_of(c.n_head) || c.n_positions == 0 {
        return Err(LoadError::Config(format!(
            "config.json: `n_embd` {dim} cannot be shared by {} heads over {} positions",
            c.n_head, c.n_positions
        )));
    }
    let w = adapt(c, w);
    let base = &Base {
        vocab_size: c.vocab_size,
        hidden_size: dim,
        intermediate_size: 4 * dim,
        num_hidden_layers: c.n_layer,
        num_attention_heads: c.n_head,
        ..Base::default()
    };
    let attention = AttentionConfig {
        qkv_bias: true,
        o_bias: true,
        o_proj: "c_proj",
        ..AttentionConfig::new(dim, c.n_head, c.n_head, dim / c.n_head)
    };
    let norm = NormConfig::Layer { eps: c.layer_norm_epsilon, bias: true };
    let mlp = PlainMlpConfig {
        dim,
        hidden: 4 * dim,
        names: ["c_fc", "c_proj"],
        bias: true,
        act: Array::gelu_approx,
    };
    let names = Names { embed_tokens: "wte", layers: "h", norm: "ln_f", ..Names::USUAL };
    let parts = Parts { names, ..Parts::new(base, true, norm, vec![attention; c.n_layer]) };
    let wpe = w.at("model").embedding("wpe", c.n_positions, dim)?;
    let decoder = Decoder::load(&parts, w, |w, attention| {
        Ok(PreNorm {
            input_layernorm: norm.load(w, "ln_1", dim)?,
            self_attn: Attention::load_fused(&w.at("attn"), "c_attn", 1, attention)?,
            post_attention_layernorm: norm.load(w, "ln_2", dim)?,
            mlp: PlainMlp::load(&w.at("mlp"), &mlp)?,
        })
    })?;
    Ok(Gpt2 { decoder, wpe, n_positions: c.n_positions })
}

/// Published checkpoints hold matrices as `[in, out]`, and masks.
fn adapt(c: &Config, w: Weights) -> Weights {
    if w.at("model").has("wte.weight") {
        return w;
    }
    for i in 0..c.n_layer {
        for name in ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"] {
            w.at("h").at(i).at(name).transpose("weight");
        }
    }
    w.renamed(|name| (!name.ends_with(".attn.bias")).then(|| format!("model.{name}")))
}

impl CausalLm for Gpt2 {
    fn layers(&self) -> &[LayerSpec] {
        self.decoder.layers()
    }
    fn vocab_size(&self) -> usize {
        self.decoder.vocab_size()
    }
    fn embed(&self, ids: &Array) -> Array {
        self.decoder.embed(ids)
    }
    fn forward(&self, h: Array, cx: &mut Forward<'_>) -> Array {
        // Past the last position there is nothing to add; the last one stands for all that follow.
        let positions: Vec<u32> =
            cx.positions().into_iter().map(|p| p.min(self.n_positions - 1) as u32).collect();
        let positions = Array::from_slice(&positions, &[positions.len() as i32]);
        self.decoder.forward(&h + &self.wpe.forward(&positions), cx)
    }
    fn logits(&self, h: &Array) -> Array {
        self.decoder.logits(h)
    }
}
