//! The default model written out as mlx-lm has its checkpoints: a folder with float32 scales.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use engine::hub::ModelFiles;
use engine::weights::Tensor;
use engine::weights::gguf::{Fallback, Gguf, GgufModel};
use mlx_core::Dtype;
use safetensors::tensor::{Dtype as StoredDtype, TensorView};
use serde_json::json;

/// Writes config.json and model.safetensors of a GGUF file, but for its tokenizer.
pub fn folder(files: &ModelFiles, to: &Path) {
    let ModelFiles::Gguf(path) = files else { panic!("the default model is a GGUF file") };
    let gguf = Arc::new(Gguf::open(path).unwrap_or_else(|err| panic!("{err}")));
    let model = GgufModel::load(&gguf, Fallback::default()).unwrap_or_else(|err| panic!("{err}"));
    let mut config = model.config;
    let mut quantization = json!({"group_size": 32, "bits": 4});
    for (path, spec) in &model.quantization {
        quantization[path] = json!({"group_size": spec.group_size, "bits": spec.bits});
    }
    config["quantization"] = quantization;
    fs::write(to.join("config.json"), config.to_string()).expect("a temporary folder takes a file");

    let stored: Vec<(String, StoredDtype, Vec<usize>, Vec<u8>)> =
        model.tensors.into_iter().map(|(name, tensor)| stored(name, &tensor)).collect();
    let views: HashMap<&str, TensorView<'_>> = stored
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            (&**name, TensorView::new(*dtype, shape.clone(), bytes).expect("the sizes agree"))
        })
        .collect();
    safetensors::serialize_to_file(views, None, &to.join("model.safetensors"))
        .expect("a temporary folder takes a file");
}

/// As float32 what is a half, everything else as it is.
fn stored(name: String, tensor: &Tensor) -> (String, StoredDtype, Vec<usize>, Vec<u8>) {
    let half = |bytes: &[u8]| half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32().to_le_bytes();
    let (dtype, bytes) = match tensor.dtype {
        Dtype::Float16 => (StoredDtype::F32, tensor.bytes().chunks_exact(2).flat_map(half).collect()),
        Dtype::Float32 => (StoredDtype::F32, tensor.bytes().to_vec()),
        Dtype::Uint32 => (StoredDtype::U32, tensor.bytes().to_vec()),
        other => panic!("`{name}` is {other}"),
    };
    (name, dtype, tensor.shape.clone(), bytes)
}
