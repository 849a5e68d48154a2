//! A folder's config.json, index and tensors. The input is its parts, a line of `---` between them.
#![no_main]

use engine::lm;
use engine::weights::{QuantConfig, checkpoint};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: fuzz::contain_panics(), |bytes: &[u8]| {
    let mut parts = bytes.splitn(3, |byte| *byte == 0xff);
    let (config, index, tensors) = (parts.next(), parts.next(), parts.next());
    if let Some(Ok(config)) = config.map(serde_json::from_slice::<serde_json::Value>) {
        drop((lm::check(&config), QuantConfig::parse(&config)));
    }
    let folder = fuzz::scratch();
    fuzz::write("model.safetensors", tensors.unwrap_or_default());
    match index {
        Some(index) if !index.is_empty() => drop(fuzz::write("model.safetensors.index.json", index)),
        _ => drop(std::fs::remove_file(folder.join("model.safetensors.index.json"))),
    }
    if let Ok(found) = checkpoint::open(folder) {
        for tensor in found.values() {
            assert!(tensor.bytes().len() <= bytes.len());
        }
    }
});
