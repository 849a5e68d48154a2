//! Tiny models as GGUF files: what `goldens/gguf` says that conversion makes of them gives the same logits.

#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that fails")]

use std::collections::BTreeMap;
use std::fs;

use engine::lm::cache::SeqCache;
use engine::lm::{self, CausalLm};
use engine::weights::gguf::{Fallback, Gguf, GgufModel, SUPPORTED_ARCHITECTURES};
use engine::weights::{Preparation, QuantConfig, Weights};
use mlx_core::Dtype;
use mlx_core::projection::Width;
use serde::Deserialize;
use serde_json::Value;
use tests::{goldens, model, weights};

#[derive(Deserialize)]
struct File {
    /// The tiny model that has the numbers.
    case: String,
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Stored>,
}

#[derive(Deserialize)]
struct Stored {
    /// Tensors of the checkpoint, end to end.
    #[serde(default)]
    from: Vec<String>,
    /// Values that no tensor has.
    values: Option<Vec<f32>>,
    shape: Vec<usize>,
    /// Heads whose rows interleave the halves of rotary pairs.
    permuted: Option<usize>,
    #[serde(default)]
    plus: f32,
}

impl Stored {
    fn values(&self) -> Vec<f32> {
        if let Some(values) = &self.values {
            return values.clone();
        }
        let shape = if self.from.len() == 1 { &self.shape[..] } else { &self.shape[1..] };
        let values: Vec<f32> = self.from.iter().flat_map(|name| weights::tensor(name, shape)).collect();
        let values = self.permuted.map_or(values.clone(), |heads| self.permute(&values, heads));
        values.iter().map(|x| x + self.plus).collect()
    }

    /// Row `j · n / 2 + i` of a head becomes its row `2i + j`.
    fn permute(&self, values: &[f32], heads: usize) -> Vec<f32> {
        let (rows, cols) = (self.shape[0], self.shape[1..].iter().product::<usize>());
        let half = rows / heads / 2;
        let mut out = Vec::new();
        for head in 0..heads {
            for row in 0..2 * half {
                let from = head * 2 * half + row % 2 * half + row / 2;
                out.extend_from_slice(&values[from * cols..][..cols]);
            }
        }
        out
    }
}

impl File {
    fn bytes(&self) -> Vec<u8> {
        let string = |s: &str| [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat();
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            out.extend(string(key));
            let (kind, bytes) = match value {
                Value::String(s) => (8u32, string(s)),
                Value::Number(n) if n.is_u64() => (4, (n.as_u64().unwrap() as u32).to_le_bytes().to_vec()),
                other => (6, (other.as_f64().unwrap() as f32).to_le_bytes().to_vec()),
            };
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        }
        let mut data = Vec::new();
        for (name, tensor) in &self.tensors {
            out.extend(string(name));
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|dim| out.extend((*dim as u64).to_le_bytes()));
            out.extend(0u32.to_le_bytes());
            out.extend((data.len() as u64).to_le_bytes());
            tensor.values().iter().for_each(|x: &f32| data.extend(x.to_le_bytes()));
            data.resize(data.len().next_multiple_of(32), 0);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(data);
        out
    }

    fn load(&self) -> Result<Box<dyn CausalLm>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        fs::write(&path, self.bytes()).unwrap();
        let gguf = Gguf::open(&path).map_err(|err| err.to_string())?;
        let model = GgufModel::load(&gguf, Fallback::default()).map_err(|err| err.to_string())?;
        let preparation = Preparation { dtype: Dtype::Float32, width: Width::A24 };
        let quantization = QuantConfig::by_path(model.quantization);
        let weights = Weights::new(model.tensors, quantization, preparation, Box::new(|| ()));
        lm::build(&model.config, weights).map_err(|err| err.to_string())
    }
}

#[test]
fn a_gguf_of_each_architecture_computes_the_logits_of_its_checkpoint() {
    let cases = goldens::cases();
    let (mut seen, mut failures) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(goldens::folder().join("gguf")).unwrap() {
        let path = entry.unwrap().path();
        let file: File = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        seen.push(file.metadata["general.architecture"].as_str().unwrap().to_owned());
        let case = cases.iter().find(|case| case.name == file.case).unwrap();
        let result = file.load().and_then(|lm| {
            let logits = model::extend(&*lm, &mut SeqCache::new(lm.layers()), &case.prompt);
            match model::distance(&logits, &case.logits) {
                d if d <= 1e-4 => Ok(()),
                d => Err(format!("logits are {d} off")),
            }
        });
        failures.extend(result.err().map(|err| format!("{}: {err}", path.display())));
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    for name in SUPPORTED_ARCHITECTURES {
        assert!(seen.iter().any(|arch| arch == name), "goldens/gguf has no file of {name}");
    }
}
