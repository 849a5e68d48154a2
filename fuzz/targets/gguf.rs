//! A GGUF file, its tensors and what they convert to.
#![no_main]

use engine::weights::gguf::{Fallback, Gguf, GgufModel};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: fuzz::contain_panics(), |bytes: &[u8]| {
    let path = fuzz::write("model.gguf", bytes);
    let Ok(gguf) = Gguf::open(&path) else { return };
    for info in gguf.tensors().values() {
        assert!(info.bytes().len() <= bytes.len());
    }
    drop(GgufModel::load(&gguf, Fallback::default()));
});
