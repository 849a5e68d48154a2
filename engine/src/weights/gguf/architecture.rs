//! What a GGUF's `general.architecture` means: names of tensors, keys of config.json, and what conversion did to the
//! weights. Keys and names are those of the `gguf` Python package.

use serde_json::{Map, Value, json};

use super::{Gguf, Result};

/// One architecture, as differences from Llama.
pub(super) struct Architecture {
    /// `general.architecture`, and the prefix of its keys.
    pub name: &'static str,
    pub model_type: &'static str,
    /// Names in a layer that differ from [`USUAL`], GGUF's to ours.
    names: &'static [(&'static str, &'static str)],
    /// Rows of q and k interleave the halves of each rotary pair.
    pub permuted: bool,
    /// Norms hold their whole weight, where the checkpoint holds `weight - 1`.
    pub whole_norms: bool,
    /// Keys of config.json besides the usual ones.
    config: fn(&Keys<'_>, &mut Map<String, Value>) -> Result<()>,
}

const PLAIN: Architecture = Architecture {
    name: "llama",
    model_type: "llama",
    names: &[],
    permuted: false,
    whole_norms: false,
    config: |_, _| Ok(()),
};

const USUAL: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

const POST_NORMS: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

pub(super) const ARCHITECTURES: &[Architecture] = &[
    Architecture { permuted: true, ..PLAIN },
    Architecture { name: "qwen2", model_type: "qwen2", ..PLAIN },
    Architecture { name: "qwen3", model_type: "qwen3", ..PLAIN },
    Architecture { name: "gemma", model_type: "gemma", whole_norms: true, ..PLAIN },
    Architecture {
        name: "gemma2",
        model_type: "gemma2",
        names: POST_NORMS,
        whole_norms: true,
        config: |keys, config| {
            keys.copy("attn_logit_softcapping", "attn_logit_softcapping", config);
            keys.copy("final_logit_softcapping", "final_logit_softcapping", config);
            // The file doesn't say: 27B scales by the width that heads would have if they shared the model's.
            keys.score_scale(46, config);
            Ok(())
        },
        ..PLAIN
    },
    Architecture {
        name: "gemma3",
        model_type: "gemma3_text",
        names: POST_NORMS,
        whole_norms: true,
        config: |keys, config| {
            keys.copy("attention.sliding_window", "sliding_window", config);
            keys.score_scale(62, config);
            Ok(())
        },
        ..PLAIN
    },
    Architecture {
        name: "phi3",
        model_type: "phi3",
        names: &[("ffn_up", "mlp.gate_up_proj")],
        config: |keys, config| {
            keys.copy("rope.scaling.original_context_length", "original_max_position_embeddings", config);
            keys.partial_rotary(config);
            Ok(())
        },
        ..PLAIN
    },
    Architecture {
        name: "granite",
        model_type: "granite",
        permuted: true,
        config: |keys, config| {
            keys.copy("logit_scale", "logits_scaling", config);
            keys.copy("attention.scale", "attention_multiplier", config);
            keys.copy("embedding_scale", "embedding_multiplier", config);
            keys.copy("residual_scale", "residual_multiplier", config);
            Ok(())
        },
        ..PLAIN
    },
    Architecture {
        name: "glm4",
        model_type: "glm4",
        names: &[
            ("post_attention_norm", "post_self_attn_layernorm"),
            ("post_ffw_norm", "post_mlp_layernorm"),
            ("ffn_up", "mlp.gate_up_proj"),
        ],
        config: |keys, config| {
            keys.partial_rotary(config);
            Ok(())
        },
        ..PLAIN
    },
    Architecture { name: "olmo2", model_type: "olmo2", names: POST_NORMS, ..PLAIN },
    Architecture { name: "smollm3", model_type: "smollm3", permuted: true, ..PLAIN },
    Architecture {
        name: "stablelm",
        model_type: "stablelm",
        names: &[("attn_q_norm", "self_attn.q_layernorm"), ("attn_k_norm", "self_attn.k_layernorm")],
        config: |keys, config| {
            keys.partial_rotary(config);
            let layer = |name: &str| keys.gguf.tensors().contains_key(&format!("blk.0.{name}"));
            config.insert("use_qkv_bias".into(), json!(layer("attn_q.bias")));
            config.insert("qk_layernorm".into(), json!(layer("attn_q_norm.weight")));
            config.insert("use_parallel_residual".into(), json!(!layer("ffn_norm.weight")));
            Ok(())
        },
        ..PLAIN
    },
    Architecture {
        name: "starcoder2",
        model_type: "starcoder2",
        names: &[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")],
        config: |keys, config| {
            keys.copy("attention.layer_norm_epsilon", "norm_epsilon", config);
            Ok(())
        },
        ..PLAIN
    },
];

/// What `general.architecture` may be.
pub const SUPPORTED_ARCHITECTURES: &[&str] = &names();

const fn names() -> [&'static str; ARCHITECTURES.len()] {
    let mut names = [""; ARCHITECTURES.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = ARCHITECTURES[i].name;
        i += 1;
    }
    names
}

impl Architecture {
    pub fn find(name: &str) -> Option<&'static Self> {
        ARCHITECTURES.iter().find(|arch| arch.name == name)
    }

    /// The path in a checkpoint of GGUF's tensor `name`.
    pub fn checkpoint_name(&self, name: &str) -> Option<String> {
        let (stem, kind) = name.rsplit_once('.').filter(|(_, kind)| matches!(*kind, "weight" | "bias"))?;
        let whole = match stem {
            "token_embd" => Some("model.embed_tokens"),
            "output_norm" => Some("model.norm"),
            "output" => Some("lm_head"),
            _ => None,
        };
        if let Some(whole) = whole {
            return Some(format!("{whole}.{kind}"));
        }
        let (layer, block) = stem.strip_prefix("blk.")?.split_once('.')?;
        let (_, path) = self.names.iter().chain(USUAL).find(|(gguf, _)| *gguf == block)?;
        Some(format!("model.layers.{layer}.{path}.{kind}"))
    }

    /// Adds the keys of config.json that only this architecture has.
    pub fn configure(&self, gguf: &Gguf, config: &mut Map<String, Value>) -> Result<()> {
        (self.config)(&Keys { gguf, arch: self.name }, config)
    }
}

/// A file's metadata under its architecture.
struct Keys<'a> {
    gguf: &'a Gguf,
    arch: &'a str,
}

impl Keys<'_> {
    /// Copies a number, if it is there.
    fn copy(&self, key: &str, to: &str, config: &mut Map<String, Value>) {
        let key = format!("{}.{key}", self.arch);
        if let Ok(x) = self.gguf.integer(&key) {
            config.insert(to.into(), json!(x));
        } else if let Ok(x) = self.gguf.number(&key) {
            config.insert(to.into(), json!(x));
        }
    }

    /// The part of a head that is rotated, which the file gives as a number of entries.
    fn partial_rotary(&self, config: &mut Map<String, Value>) {
        let number = |key: &str| config.get(key).and_then(Value::as_f64);
        let shared = number("hidden_size").zip(number("num_attention_heads")).map(|(dim, heads)| dim / heads);
        let rotated = self.gguf.number(&format!("{}.rope.dimension_count", self.arch));
        if let (Ok(rotated), Some(head_dim)) = (rotated, number("head_dim").or(shared)) {
            config.insert("partial_rotary_factor".into(), json!(rotated / head_dim));
        }
    }

    /// `query_pre_attn_scalar`: the width of a head, except in the model of `layers` layers.
    fn score_scale(&self, layers: u64, config: &mut Map<String, Value>) {
        let number = |key: &str| config.get(key).and_then(Value::as_f64);
        let scalar = match number("num_hidden_layers") == Some(layers as f64) {
            true => number("hidden_size").zip(number("num_attention_heads")).map(|(dim, heads)| dim / heads),
            false => number("head_dim"),
        };
        if let Some(scalar) = scalar {
            config.insert("query_pre_attn_scalar".into(), json!(scalar));
        }
    }
}
