//! Over every tiny model: a checkpoint or config that isn't what it should be is an error which names the part.

use std::collections::{BTreeMap, BTreeSet};

use engine::weights::Tensor;
use serde_json::{Value, json};
use tests::goldens::{self, Case};

/// Tensors outside of the layers, and those of one layer: a layer is as good as any other.
fn chosen(checkpoint: &BTreeMap<String, Tensor>) -> Vec<String> {
    let other = |name: &str| (1..100).any(|i| name.contains(&format!(".{i}.")) && !name.contains(".norms."));
    checkpoint.keys().filter(|name| !other(name)).cloned().collect()
}

/// The matrix that a tensor belongs to. Of a fused matrix that lacks its scales the parts are named.
fn stem(name: &str) -> &str {
    let path = name.rsplit_once('.').map_or(name, |(path, _)| path);
    match name.ends_with(".scales") {
        true => path.rsplit_once('.').map_or(path, |(path, _)| path),
        false => path.split_once(".norms.").map_or(path, |(path, _)| path),
    }
}

fn error(config: &Value, tensors: BTreeMap<String, Tensor>) -> Option<String> {
    goldens::build(config, tensors).err().map(|err| err.to_string())
}

/// Families whose checkpoints mean the embedding when they hold no output projection.
const MEAN_THE_EMBEDDING: &[&str] = &["minicpm", "gemma3_text", "gemma3"];

/// Many tied checkpoints were saved with the matrix twice.
#[test]
fn a_tied_checkpoint_may_hold_its_embedding_twice() {
    let mut tied = 0;
    for case in goldens::cases() {
        let mut tensors = case.checkpoint();
        let is_embedding = |name: &&String| {
            ["embed_tokens.weight", "wte.weight", "tok_embeddings.weight"]
                .iter()
                .any(|end| name.ends_with(end))
        };
        let Some(weight) = tensors.keys().find(is_embedding).cloned() else { continue };
        let root = if weight.starts_with("language_model.") { "language_model." } else { "" };
        let head = match case.name.split('/').next() {
            Some("internlm2") => "output",
            Some("gpt_neox") => "embed_out",
            _ => "lm_head",
        };
        if tensors.keys().any(|name| name.contains(&format!("{head}.weight"))) {
            continue;
        }
        let path = weight.trim_end_matches("weight");
        for kind in ["weight", "scales", "biases"] {
            if let Some(copy) = tensors.get(&format!("{path}{kind}")).cloned() {
                tensors.insert(format!("{root}{head}.{kind}"), copy);
            }
        }
        assert_eq!(error(case.config(), tensors), None, "{}", case.name);
        tied += 1;
    }
    assert!(20 < tied, "{tied} tied cases");
}

#[test]
fn a_missing_tensor_is_named() {
    for case in goldens::cases() {
        let checkpoint = case.checkpoint();
        for name in chosen(&checkpoint) {
            let mut tensors = checkpoint.clone();
            tensors.remove(&name);
            match error(case.config(), tensors) {
                Some(err) => assert!(err.contains(stem(&name)), "{} without {name}: {err}", case.name),
                None => {
                    let family = case.name.split('/').next().unwrap_or_default();
                    let by_choice = MEAN_THE_EMBEDDING.contains(&family) && name.contains("lm_head.");
                    assert!(by_choice, "{} loads without {name}", case.name);
                }
            }
        }
    }
}

#[test]
fn a_tensor_of_another_shape_is_named_with_the_shape_expected() {
    for case in goldens::cases() {
        let checkpoint = case.checkpoint();
        for name in chosen(&checkpoint) {
            let mut tensors = checkpoint.clone();
            let tensor = tensors[&name].clone();
            let mut shape = if tensor.shape.is_empty() { vec![1] } else { tensor.shape.clone() };
            shape[0] += 1;
            let bytes = vec![0; shape.iter().product::<usize>() * tensor.dtype.size()];
            tensors.insert(name.clone(), Tensor::owned(bytes, shape, tensor.dtype));
            let err = error(case.config(), tensors)
                .unwrap_or_else(|| panic!("{} loads with another {name}", case.name));
            assert!(err.contains(stem(&name)) && err.contains("expected"), "{}, {name}: {err}", case.name);
        }
    }
}

#[test]
fn a_tensor_that_no_model_has_is_named() {
    for case in goldens::cases() {
        let mut tensors = case.checkpoint();
        tensors.insert(
            "model.surprise.weight".into(),
            Tensor::owned(vec![0; 4], vec![1], mlx_core::Dtype::Float32),
        );
        let err = error(case.config(), tensors)
            .unwrap_or_else(|| panic!("{} loads with one more tensor", case.name));
        assert!(err.contains("surprise.weight"), "{}: {err}", case.name);
    }
}

/// The first case of each family, with the part of its config that describes the language model.
fn families() -> Vec<Case> {
    let mut seen = BTreeSet::new();
    let family = |case: &Case| case.name.split('/').next().unwrap_or_default().to_owned();
    goldens::cases().into_iter().filter(|case| seen.insert(family(case))).collect()
}

fn text(config: &mut Value) -> &mut Value {
    match config.get("text_config").is_some() {
        true => &mut config["text_config"],
        false => config,
    }
}

#[test]
fn no_value_in_a_config_is_a_panic() {
    let values =
        [json!(0), json!(-1), json!(3), json!(1u64 << 40), json!("x"), json!(null), json!({}), json!([])];
    for case in families() {
        let tensors = case.checkpoint();
        let keys: Vec<String> = text(&mut case.config().clone())
            .as_object()
            .into_iter()
            .flat_map(|map| map.keys().cloned())
            .collect();
        for key in keys {
            for value in &values {
                let mut config = case.config().clone();
                text(&mut config)[&key] = value.clone();
                if let Some(err) = error(&config, tensors.clone()) {
                    assert!(!err.is_empty(), "{}: {key} {value}", case.name);
                }
            }
        }
    }
}

#[test]
fn a_key_that_is_needed_is_named() {
    for case in families() {
        for key in ["hidden_size", "num_attention_heads", "n_embd", "n_head"] {
            let mut config = case.config().clone();
            let Some(map) = text(&mut config).as_object_mut() else { continue };
            if map.insert(key.into(), json!("many")).is_none() {
                continue;
            }
            let err = error(&config, case.checkpoint()).unwrap_or_default();
            assert!(err.starts_with("config.json"), "{} with a wrong {key}: {err:?}", case.name);
        }
    }
}

#[test]
fn an_unknown_model_is_told_the_likest_name_first() {
    let check = |model_type: &str, likest: &str| {
        let err = error(&json!({ "model_type": model_type }), BTreeMap::new()).unwrap_or_default();
        assert!(err.contains(&format!("supported: {likest},")), "{model_type}: {err}");
    };
    check("qwen3_0", "qwen3");
    check("lama", "llama");
    check("gemma3_txt", "gemma3_text");
}
