//! GGUF files against the reference decoder, and files that are not what they say.

#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that fails")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use engine::hub::ModelFiles;
use engine::weights::gguf::{Fallback, GgmlType, Gguf, GgufModel, Packed, decode, is_narrow, pack, spec_of};
use mlx_core::quant::{QuantMode, QuantSpec, dequantize};
use mlx_core::{Array, Dtype};
use proptest::prelude::*;
use safetensors::SafeTensors;
use sha2::{Digest, Sha256};
use tests::{fixtures, goldens};

/// Calls `check` with each format's blocks and the reference's values.
fn for_each_format(check: impl Fn(GgmlType, &[u8], &[f32])) {
    let bytes = fs::read(goldens::folder().join("gguf_blocks.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut seen = 0;
    for kind in GgmlType::ALL {
        let Ok(blocks) = file.tensor(&format!("{kind}.blocks")) else { continue };
        let values = file.tensor(&format!("{kind}.values")).unwrap();
        let values: Vec<f32> = values.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        check(*kind, blocks.data(), &values);
        seen += 1;
    }
    assert_eq!(seen, 13, "every block format has a golden");
}

#[test]
fn every_format_decodes_as_the_reference_to_the_bit() {
    for_each_format(|kind, blocks, want| {
        let mut got = vec![f32::NAN; want.len()];
        decode(kind, blocks, &mut got);
        for (i, (a, b)) in got.iter().zip(want).enumerate() {
            assert_eq!(a.to_bits(), b.to_bits(), "{kind} value {i}: {a} instead of {b}");
        }
    });
}

#[test]
fn what_stays_packed_holds_the_same_values() {
    let packed = std::cell::Cell::new(0);
    for_each_format(|kind, blocks, want| {
        let Some(spec) = spec_of(kind) else { return };
        let mut whole = Packed::new(spec, want.len() / 32);
        // In two parts, as two threads do it.
        let cut = blocks.len() / kind.block().1 / 2 * kind.block().1;
        let groups = cut / kind.block().1 * kind.block().0 / 32;
        let mut parts = whole.split(&[groups, want.len() / 32 - groups]);
        pack(kind, &blocks[..cut], &mut parts[0]);
        pack(kind, &blocks[cut..], &mut parts[1]);
        let got = dequantized(&whole.into_bytes(is_narrow(kind, blocks)), spec, kind, blocks, want.len());
        for (i, (a, b)) in got.iter().zip(want).enumerate() {
            let near =
                (a - b).abs() <= 2e-6 * b.abs().max(want.iter().fold(0.0, |m, x| x.abs().max(m)) * 0.1);
            assert!(near, "{kind} value {i}: {a} instead of {b}");
        }
        packed.set(packed.get() + 1);
    });
    assert_eq!(packed.get(), 8, "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and MXFP4 map onto MLX formats");
}

/// By MLX's own decoder.
fn dequantized(parts: &[Vec<u8>], spec: QuantSpec, kind: GgmlType, blocks: &[u8], n: usize) -> Vec<f32> {
    let words = Array::from_bytes(&parts[0], &[1, (n * spec.bits as usize / 32) as i32], Dtype::Uint32);
    let dtype = match spec.mode {
        QuantMode::Affine if is_narrow(kind, blocks) => Dtype::Float16,
        QuantMode::Affine => Dtype::Float32,
        _ => Dtype::Uint8,
    };
    let scales = |bytes: &Vec<u8>| {
        let stored = Array::from_bytes(bytes, &[1, (n / 32) as i32], dtype);
        if spec.mode == QuantMode::Affine { stored.astype(Dtype::Float32) } else { stored }
    };
    let biases = parts.get(2).map(scales);
    assert_eq!(biases.is_some(), spec.mode == QuantMode::Affine);
    let out = dequantize(&words, &scales(&parts[1]), biases.as_ref(), spec, Dtype::Float32);
    out.to_vec().unwrap()
}

/// A scale whose bias is past what a half holds, in the last block only.
#[test]
fn halves_are_used_only_where_they_are_exact() {
    let block = |scale: f32| [&half::f16::from_f32(scale).to_le_bytes()[..], &[7; 32]].concat();
    let (small, large) = (block(1.5), block(600.0));
    assert!(is_narrow(GgmlType::Q8_0, &small));
    assert!(!is_narrow(GgmlType::Q8_0, &[small, large].concat()));
}

fn default_model() -> Gguf {
    match fixtures::default_model() {
        ModelFiles::Gguf(path) => Gguf::open(&path).unwrap(),
        ModelFiles::Folder(path) => panic!("the default model is a folder: {}", path.display()),
    }
}

#[test]
fn the_default_model_decodes_whole_as_the_reference() {
    let text = fs::read_to_string(goldens::folder().join("smollm2/gguf.json")).unwrap();
    let hashes: BTreeMap<String, String> = serde_json::from_str(&text).unwrap();
    let gguf = default_model();
    assert_eq!(gguf.tensors().len(), hashes.len());
    for (name, tensor) in gguf.tensors() {
        let mut values = vec![0.0; tensor.shape.iter().product()];
        decode(tensor.kind, tensor.bytes(), &mut values);
        let mut hash = Sha256::new();
        values.iter().for_each(|x| hash.update(x.to_le_bytes()));
        let hex: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, hashes[name], "{name}");
    }
    let model = GgufModel::load(&gguf, Fallback::Affine8).unwrap();
    assert_eq!(model.quantization.len(), 211, "every matrix stays packed");
}

/// A file with one F32 tensor of 32 values and two metadata entries.
fn small_file() -> Vec<u8> {
    let string = |out: &mut Vec<u8>, s: &str| {
        out.extend((s.len() as u64).to_le_bytes());
        out.extend(s.as_bytes());
    };
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend(1u64.to_le_bytes());
    out.extend(2u64.to_le_bytes());
    string(&mut out, "general.architecture");
    out.extend(8u32.to_le_bytes());
    string(&mut out, "llama");
    string(&mut out, "tokenizer.ggml.tokens");
    out.extend(9u32.to_le_bytes());
    out.extend(8u32.to_le_bytes());
    out.extend(2u64.to_le_bytes());
    string(&mut out, "a");
    string(&mut out, "b");
    string(&mut out, "t");
    out.extend(1u32.to_le_bytes());
    out.extend(32u64.to_le_bytes());
    out.extend(0u32.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    out.resize(out.len().next_multiple_of(32), 0);
    (0..32).for_each(|i| out.extend((i as f32).to_le_bytes()));
    out
}

fn open(dir: &Path, bytes: &[u8]) -> Result<Gguf, String> {
    let path = dir.join("file.gguf");
    fs::write(&path, bytes).unwrap();
    Gguf::open(&path).map_err(|err| err.to_string())
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let whole = small_file();
    let gguf = open(dir.path(), &whole).unwrap();
    assert_eq!(
        (gguf.tensors()["t"].shape.as_slice(), gguf.string("general.architecture").unwrap()),
        (&[32][..], "llama")
    );
    for n in 0..whole.len() {
        assert!(open(dir.path(), &whole[..n]).is_err(), "cut at {n}");
    }
}

#[test]
fn lies_about_sizes_and_offsets_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let check = |at: usize, bytes: &[u8], part: &str| {
        let mut file = small_file();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        let err = open(dir.path(), &file).err().unwrap_or_else(|| panic!("{part}: opened"));
        assert!(err.contains(part), "{err}");
    };
    check(0, b"GGUX", "does not begin");
    check(4, &9u32.to_le_bytes(), "version 9");
    check(4, &3u32.to_be_bytes(), "big-endian");
    check(8, &u64::MAX.to_le_bytes(), "exceeds the file");
    check(16, &(u64::MAX / 2).to_le_bytes(), "exceeds the file");
    check(24, &u64::MAX.to_le_bytes(), "exceeds the file");
    let file = small_file();
    let tensor = file.windows(9).position(|w| w == b"\x01\0\0\0\0\0\0\0t").unwrap() + 9;
    check(tensor, &77u32.to_le_bytes(), "77 dimensions");
    check(tensor + 4, &(1u64 << 60).to_le_bytes(), "t");
    check(tensor + 4, &0u64.to_le_bytes(), "is empty");
    check(tensor + 12, &99u32.to_le_bytes(), "type 99");
    check(tensor + 16, &u64::MAX.to_le_bytes(), "past the end");
    check(tensor + 16, &64u64.to_le_bytes(), "past the end");
}

#[test]
fn a_missing_part_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let string = |s: &str| [(s.len() as u64).to_le_bytes().to_vec(), s.as_bytes().to_vec()].concat();
    let entry = |key: &str, value: u16| {
        [string(key), 2u32.to_le_bytes().to_vec(), value.to_le_bytes().to_vec()].concat()
    };
    let head = [
        b"GGUF".to_vec(),
        3u32.to_le_bytes().to_vec(),
        0u64.to_le_bytes().to_vec(),
        2u64.to_le_bytes().to_vec(),
    ]
    .concat();
    let file = [head, entry("split.no", 0), entry("split.count", 2), vec![0; 64]].concat();
    let path = dir.path().join("m-00001-of-00002.gguf");
    fs::write(&path, file).unwrap();
    let err = Gguf::open(&path).err().unwrap().to_string();
    assert!(err.contains("m-00002-of-00002.gguf"), "{err}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a few bytes are changed to, a file opens or is an error; what opens can be read.
    #[test]
    fn damaged_files_never_panic(edits in prop::collection::vec((0usize..300, any::<u8>()), 1..6), cut in 0usize..400) {
        let dir = tempfile::tempdir().unwrap();
        let mut file = small_file();
        for (at, byte) in edits {
            let n = file.len();
            file[at % n] = byte;
        }
        file.truncate(cut.max(4));
        if let Ok(gguf) = open(dir.path(), &file) {
            gguf.tensors().values().for_each(|t| assert!(t.bytes().iter().map(|b| u64::from(*b)).sum::<u64>() < u64::MAX));
            drop(GgufModel::load(&gguf, Fallback::default()));
        }
    }
}
