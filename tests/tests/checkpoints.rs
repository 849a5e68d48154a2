//! Folders as people have them: shards, an index, quantization told by keys or by shapes.

#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that fails")]

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use engine::lm::CausalLm;
use engine::lm::cache::SeqCache;
use engine::weights::{Tensor, checkpoint};
use mlx_core::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tests::goldens::{self, Case, Format};
use tests::model;

fn case(name: &str) -> Case {
    goldens::cases().into_iter().find(|case| case.name == name).unwrap()
}

fn write(path: &Path, tensors: &BTreeMap<String, Tensor>) {
    let dtype = |tensor: &Tensor| match tensor.dtype {
        Dtype::Float32 => safetensors::Dtype::F32,
        Dtype::Uint32 => safetensors::Dtype::U32,
        other => panic!("{other}"),
    };
    let views: HashMap<&String, TensorView<'_>> = tensors
        .iter()
        .map(|(name, t)| (name, TensorView::new(dtype(t), t.shape.clone(), t.bytes()).unwrap()))
        .collect();
    safetensors::serialize_to_file(views, None, path).unwrap();
}

/// The model in three shards with an index; a fourth file is not part of it.
fn sharded(folder: &Path) -> BTreeMap<String, Tensor> {
    let tensors = case("llama/tied").checkpoint();
    let mut map = serde_json::Map::new();
    for shard in 0..3 {
        let file = format!("model-0000{}-of-00003.safetensors", shard + 1);
        let part: BTreeMap<_, _> =
            tensors.iter().skip(shard).step_by(3).map(|(n, t)| (n.clone(), t.clone())).collect();
        map.extend(part.keys().map(|name| (name.clone(), Value::from(file.clone()))));
        write(&folder.join(file), &part);
    }
    let stray = Tensor::owned(vec![0; 4], vec![1], Dtype::Float32);
    write(&folder.join("model-extra.safetensors"), &BTreeMap::from([("stray".to_owned(), stray)]));
    fs::write(folder.join(INDEX), json!({"metadata": {}, "weight_map": map}).to_string()).unwrap();
    tensors
}

const INDEX: &str = "model.safetensors.index.json";

#[test]
fn the_index_says_what_a_checkpoint_is() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = sharded(dir.path());
    let opened = checkpoint::open(dir.path()).unwrap();
    assert_eq!(opened.keys().collect::<Vec<_>>(), tensors.keys().collect::<Vec<_>>());
    assert!(opened.iter().all(|(name, tensor)| tensor.bytes() == tensors[name].bytes()));
    // Without one, every file counts.
    fs::remove_file(dir.path().join(INDEX)).unwrap();
    assert!(checkpoint::open(dir.path()).unwrap().contains_key("stray"));
}

#[test]
fn what_a_folder_lacks_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = || checkpoint::open(dir.path()).err().map(|err| err.to_string()).unwrap_or_default();
    assert!(error().contains("no model*.safetensors file"), "{}", error());
    sharded(dir.path());
    let second = dir.path().join("model-00002-of-00003.safetensors");
    let whole = fs::read(&second).unwrap();
    fs::remove_file(&second).unwrap();
    assert!(error().contains("the shard model-00002-of-00003.safetensors, which is missing"), "{}", error());
    fs::write(&second, &whole[..whole.len() - 1]).unwrap();
    assert!(error().contains("model-00002-of-00003.safetensors is damaged"), "{}", error());
    fs::write(&second, whole).unwrap();
    let index = fs::read_to_string(dir.path().join(INDEX)).unwrap();
    let lying = index.replace("model.norm.weight", "model.other.weight");
    fs::write(dir.path().join(INDEX), lying).unwrap();
    assert!(error().contains("no tensor `model.other.weight`"), "{}", error());
    fs::write(dir.path().join(INDEX), "{").unwrap();
    assert!(error().contains(INDEX), "{}", error());
}

fn last_logits(lm: &dyn CausalLm, prompt: &[u32]) -> Vec<f32> {
    let all = model::extend(lm, &mut SeqCache::new(lm.layers()), prompt);
    all[all.len() - lm.vocab_size()..].to_vec()
}

#[test]
fn shapes_tell_the_format_where_no_key_does() {
    for name in
        ["llama/affine_2_32", "llama/affine_3_64", "llama/affine_4_128", "llama/affine_8_32", "llama/mxfp4"]
    {
        let case = case(name);
        let mut config = case.config().clone();
        let map = config.as_object_mut().unwrap();
        assert!(map.remove("quantization").is_some(), "{name}");
        map.remove("quantization_config");
        let (told, found) = (case.load().unwrap(), goldens::build(&config, case.checkpoint()).unwrap());
        let logits = |lm: &dyn CausalLm| last_logits(lm, &case.prompt);
        assert_eq!(logits(&*told), logits(&*found), "{name}");
    }
}

/// One matrix in another mode than the rest, which has no biases.
#[test]
fn a_path_may_have_a_format_of_its_own() {
    let plain = case("llama/tied");
    let mut tensors = plain.checkpoint();
    let path = "model.layers.1.mlp.up_proj";
    let whole = tensors.remove(&format!("{path}.weight")).unwrap();
    let values: Vec<f32> = whole.bytes().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let format = Format { group_size: 32, bits: 8, mode: "mxfp8".into() };
    tensors.extend(goldens::quantized(path, &values, &whole.shape, &format));
    assert!(!tensors.contains_key(&format!("{path}.biases")));
    let mut config = plain.config().clone();
    config["quantization"] =
        json!({"group_size": 64, "bits": 4, path: {"group_size": 32, "bits": 8, "mode": "mxfp8"}});
    let mixed = goldens::build(&config, tensors).unwrap();
    let exact = last_logits(&*plain.load().unwrap(), &plain.prompt);
    let distance = model::distance(&exact, &last_logits(&*mixed, &plain.prompt));
    let spread = exact.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    assert!(0.0 < distance && distance < 0.1 * spread, "{distance} of {spread}");
}
