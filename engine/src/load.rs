//! From files to a running engine.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlx_core::projection::Width;
use mlx_core::{Device, Dtype};
use serde_json::{Map, Value, json};

use crate::hub::ModelFiles;
use crate::lm::{self, CausalLm};
use crate::text::{ChatTemplates, GgufVocab, TextError, Tokenizer};
use crate::thread::{EngineHandle, EngineOptions, ModelFacts};
use crate::weights::gguf::{Fallback, Gguf, GgufModel};
use crate::weights::{LoadError, Preparation, QuantConfig, Weights, checkpoint};

#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// The type of activations; by default float32 on the CPU and the checkpoint's own on a GPU.
    pub dtype: Option<Dtype>,
    /// Digits of an activation in the CPU kernels.
    pub width: Width,
    /// For GGUF formats that MLX has no counterpart of.
    pub gguf_fallback: Fallback,
    /// Takes the place of the model's own chat template.
    pub chat_template: Option<String>,
    pub engine: EngineOptions,
}

/// A model ready to answer. Everything here may cross threads; the arrays stay where they are.
pub struct Loaded {
    pub engine: EngineHandle,
    pub tokenizer: Arc<Tokenizer>,
    pub templates: Arc<ChatTemplates>,
    pub info: ModelInfo,
}

#[derive(Clone, Debug)]
pub struct ModelInfo {
    pub model_type: String,
    pub context_length: usize,
    pub vocab_size: usize,
}

/// Parts of the load that are done, of all.
pub type LoadProgress = dyn Fn(usize, usize) + Send + Sync;

/// Loads tokenizer and weights side by side and starts the engine. `progress` counts tensors.
pub fn load(
    files: &ModelFiles,
    options: &LoadOptions,
    progress: Arc<LoadProgress>,
) -> Result<Loaded, LoadError> {
    match files {
        ModelFiles::Folder(folder) => load_folder(folder, options, progress),
        ModelFiles::Gguf(path) => load_gguf(path, options, progress),
    }
}

fn load_folder(
    folder: &Path,
    options: &LoadOptions,
    progress: Arc<LoadProgress>,
) -> Result<Loaded, LoadError> {
    let config = read_config(&folder.join("config.json"))?;
    lm::check(&config)?;
    let tensors = checkpoint::open(folder)?;
    let quantization = QuantConfig::parse(&config)?;
    let text = {
        let folder = folder.to_owned();
        let template = options.chat_template.clone();
        std::thread::spawn(move || {
            let tokenizer = Tokenizer::from_folder(&folder)?;
            let templates = match template {
                Some(source) => ChatTemplates::from_source(&source, special(&tokenizer))?,
                None => ChatTemplates::from_folder(&folder)?,
            };
            Ok((tokenizer, templates))
        })
    };
    let weights = Source { tensors, quantization, config, identity: identity(folder) };
    start(weights, text, options, progress)
}

fn load_gguf(path: &Path, options: &LoadOptions, progress: Arc<LoadProgress>) -> Result<Loaded, LoadError> {
    let gguf = Arc::new(Gguf::open(path)?);
    let text = {
        let (gguf, template) = (gguf.clone(), options.chat_template.clone());
        std::thread::spawn(move || {
            let vocab = gguf_vocab(&gguf)?;
            let tokenizer = Tokenizer::from_gguf(&vocab)?;
            let templates = match template.or(vocab.chat_template) {
                Some(source) => ChatTemplates::from_source(&source, special(&tokenizer))?,
                None => ChatTemplates::none(),
            };
            Ok((tokenizer, templates))
        })
    };
    let model = GgufModel::load(&gguf, options.gguf_fallback)?;
    let quantization = QuantConfig::by_path(model.quantization);
    let (tensors, config) = (model.tensors, model.config);
    start(Source { tensors, quantization, config, identity: identity(path) }, text, options, progress)
}

struct Source {
    tensors: std::collections::BTreeMap<String, crate::weights::Tensor>,
    quantization: QuantConfig,
    config: Value,
    identity: String,
}

/// Changes whenever the files of a model do: names, sizes and times of change.
fn identity(model: &Path) -> String {
    let files = match std::fs::read_dir(model) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(_) => vec![model.to_owned()],
    };
    let mut known: Vec<String> = files
        .iter()
        .filter_map(|file| {
            let metadata = std::fs::metadata(file).ok()?;
            Some(format!("{} {} {:?}", file.display(), metadata.len(), metadata.modified().ok()?))
        })
        .collect();
    known.sort();
    known.join("; ")
}

type Text = std::thread::JoinHandle<Result<(Tokenizer, ChatTemplates), TextError>>;

fn start(
    source: Source,
    text: Text,
    options: &LoadOptions,
    progress: Arc<LoadProgress>,
) -> Result<Loaded, LoadError> {
    let info = info(&source.config);
    let requested = options.dtype;
    let width = options.width;
    let identity = source.identity.clone();
    let context_length = info.context_length;
    let build = move || -> Result<(Box<dyn CausalLm>, usize), LoadError> {
        let dtype = requested.unwrap_or_else(|| default_dtype(&source.config));
        let total = source.tensors.len();
        let left = Arc::new(AtomicUsize::new(0));
        let taken = move || progress(left.fetch_add(1, Ordering::Relaxed) + 1, total);
        let preparation = Preparation { dtype, width };
        let weights = Weights::new(source.tensors, source.quantization, preparation, Box::new(taken));
        let model = lm::build(&source.config, weights)?;
        mlx_core::memory::clear_cache();
        let vocab_size = model.vocab_size();
        Ok((model, vocab_size))
    };
    let identity = format!("{identity} {requested:?} {width:?} MLX {}", mlx_core::versions().0);
    let facts = move |_: &usize| ModelFacts { context_length, identity };
    // On the CPU activations are float32; halves hold keys and values as well, and are read in half the time.
    let cpu = Device::default_device() == Device::Cpu;
    let engine = EngineOptions {
        kv_dtype: options.engine.kv_dtype.or(cpu.then_some(Dtype::Float16)),
        ..options.engine.clone()
    };
    let started = EngineHandle::spawn(engine, build, facts);
    let (tokenizer, templates) = text.join().expect("reading a tokenizer does not panic")?;
    let (engine, vocab_size) = started?;
    Ok(Loaded {
        engine,
        tokenizer: Arc::new(tokenizer),
        templates: Arc::new(templates),
        info: ModelInfo { vocab_size, ..info },
    })
}

fn read_config(path: &Path) -> Result<Value, LoadError> {
    let err = |message: String| LoadError::Config(format!("{}: {message}", path.display()));
    let bytes = std::fs::read(path).map_err(|e| err(e.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|e| err(e.to_string()))
}

fn info(config: &Value) -> ModelInfo {
    let context = config.get("max_position_embeddings").and_then(Value::as_u64);
    ModelInfo {
        model_type: config.get("model_type").and_then(Value::as_str).unwrap_or_default().to_owned(),
        context_length: context.map_or(DEFAULT_CONTEXT, |n| n as usize),
        vocab_size: 0,
    }
}

/// Where a config names no length.
const DEFAULT_CONTEXT: usize = 32_768;

fn default_dtype(config: &Value) -> Dtype {
    if Device::default_device() == Device::Cpu {
        return Dtype::Float32;
    }
    match config.get("torch_dtype").or(config.get("dtype")).and_then(Value::as_str) {
        Some("float32") => Dtype::Float32,
        Some("float16") => Dtype::Float16,
        _ => Dtype::Bfloat16,
    }
}

fn special(tokenizer: &Tokenizer) -> Map<String, Value> {
    let names = [("bos_token", tokenizer.bos()), ("eos_token", tokenizer.eos())];
    names.into_iter().filter_map(|(name, text)| Some((name.to_owned(), json!(text?)))).collect()
}

/// The `tokenizer.*` keys.
fn gguf_vocab(gguf: &Gguf) -> Result<GgufVocab, TextError> {
    let wrong = |err: crate::weights::gguf::GgufError| TextError::Vocab(err.to_string());
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| gguf.integer(&key(name)).ok().and_then(|id| id.try_into().ok());
    let flag = |name: &str, default: bool| gguf.boolean(&key(name)).unwrap_or(default);
    let model = gguf.string(&key("model")).map_err(wrong)?.to_owned();
    let sentencepiece = model == "llama";
    Ok(GgufVocab {
        pre: gguf.string(&key("pre")).unwrap_or("gpt-2").to_owned(),
        tokens: gguf.strings(&key("tokens")).map_err(wrong)?.to_vec(),
        scores: gguf.numbers(&key("scores")).unwrap_or_default().into_iter().map(|x| x as f32).collect(),
        token_types: gguf.integers(&key("token_type")).unwrap_or_default(),
        merges: gguf.strings(&key("merges")).unwrap_or_default().to_vec(),
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        unknown: id("unknown_token_id"),
        other_ends: [id("eot_token_id"), id("eom_token_id")].into_iter().flatten().collect(),
        add_bos: flag("add_bos_token", sentencepiece),
        add_eos: flag("add_eos_token", false),
        add_space_prefix: flag("add_space_prefix", sentencepiece),
        chat_template: gguf.string("tokenizer.chat_template").ok().map(str::to_owned),
        model,
    })
}
