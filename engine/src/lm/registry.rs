//! `model_type` → model. A name of a checkpoint that shares another's graph is a row here.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::CausalLm;
use super::models::*;
use crate::weights::{LoadError, Result, Weights};

type Lm = Result<Box<dyn CausalLm>>;

/// Builds a model from its config.json, consuming its weights.
type Build = fn(&Value, Weights) -> Lm;

const MODELS: &[(&str, Build)] = &[
    ("llama", |c, w| boxed(llama::load(&parse(c)?, w))),
    ("mistral", |c, w| boxed(llama::load(&parse(c)?, w))),
    ("iquestcoder", |c, w| boxed(llama::load(&parse(c)?, w))),
    ("xverse", |c, w| boxed(llama::load(&parse(c)?, w))),
    ("apertus", |c, w| boxed(apertus::load(&parse(c)?, w))),
    ("cohere", |c, w| boxed(cohere::load(&parse(c)?, w))),
    ("cohere2", |c, w| boxed(cohere::load_cohere2(&parse(c)?, w))),
    ("ernie4_5", |c, w| boxed(ernie4_5::load(&parse(c)?, w))),
    ("exaone", |c, w| boxed(exaone::load(&parse(&exaone::with_usual_names(c))?, w))),
    ("exaone4", |c, w| boxed(exaone4::load(&parse(c)?, w))),
    ("gemma", |c, w| boxed(gemma::load(&parse(c)?, w))),
    ("gemma2", |c, w| boxed(gemma2::load(&parse(c)?, w))),
    ("gemma3", |c, w| {
        let vocab_size = c.get("vocab_size").cloned().unwrap_or(json!(262_208));
        let defaults = json!({ "num_attention_heads": 8, "num_key_value_heads": 4 });
        let (mut text, w) = multimodal::text_part(c, defaults, w)?;
        text["vocab_size"] = vocab_size;
        boxed(gemma3_text::load(&parse(&gemma3_text::with_defaults(&text))?, w))
    }),
    ("gemma3_text", |c, w| boxed(gemma3_text::load(&parse(&gemma3_text::with_defaults(c))?, w))),
    ("gemma4", gemma4),
    ("gemma4_unified", gemma4),
    ("gemma4_text", |c, w| boxed(gemma4_text::load(&parse(&gemma4_text::with_defaults(c))?, w))),
    ("glm", |c, w| boxed(glm::load(&parse(c)?, w))),
    ("glm4", |c, w| boxed(glm4::load(&parse(c)?, w))),
    ("glm4_moe", |c, w| boxed(glm4_moe::load(&parse(c)?, w))),
    ("gpt2", |c, w| boxed(gpt2::load(&parse(c)?, w))),
    ("gpt_oss", |c, w| boxed(gpt_oss::load(&parse(c)?, w))),
    ("gpt_neox", |c, w| boxed(gpt_neox::load(&parse(c)?, w))),
    ("granite", |c, w| boxed(granite::load(&parse(c)?, w))),
    ("helium", |c, w| boxed(helium::load(&parse(c)?, w))),
    ("hunyuan_v1_dense", |c, w| boxed(hunyuan_v1_dense::load(&parse(c)?, w))),
    ("internlm2", |c, w| boxed(internlm2::load(&parse(c)?, w))),
    ("internlm3", |c, w| boxed(internlm3::load(&parse(c)?, w))),
    ("llava", mistral3),
    ("mimo", |c, w| boxed(mimo::load(&parse(c)?, w))),
    ("minicpm", |c, w| boxed(minicpm::load(&parse(c)?, w))),
    ("ministral3", |c, w| boxed(ministral3::load(&parse(c)?, w))),
    ("mistral3", mistral3),
    ("mixtral", |c, w| boxed(mixtral::load(&parse(c)?, w))),
    ("nemotron", |c, w| boxed(nemotron::load(&parse(c)?, w))),
    ("olmo2", |c, w| boxed(olmo2::load(&parse(c)?, w))),
    ("olmo3", |c, w| boxed(olmo2::load_olmo3(&parse(c)?, w))),
    ("olmoe", |c, w| boxed(olmoe::load(&parse(c)?, w))),
    ("phi", |c, w| boxed(phi::load(&parse(c)?, w))),
    ("phi3", |c, w| boxed(phi3::load(&parse(c)?, w))),
    ("qwen2", |c, w| boxed(qwen2::load(&parse(c)?, w))),
    ("qwen2_moe", |c, w| boxed(qwen2_moe::load(&parse(c)?, w))),
    ("qwen2_vl", qwen2_vl),
    ("qwen2_5_vl", qwen2_vl),
    ("qwen3", |c, w| boxed(qwen3::load(&parse(c)?, w))),
    ("qwen3_moe", |c, w| boxed(qwen3_moe::load(&parse(c)?, w))),
    ("qwen3_vl", |c, w| {
        let (text, w) = multimodal::text_part(c, json!({}), w)?;
        boxed(qwen3::load(&parse(&text)?, w))
    }),
    ("seed_oss", |c, w| boxed(seed_oss::load(&parse(c)?, w))),
    ("smollm3", |c, w| boxed(smollm3::load(&parse(c)?, w))),
    ("stablelm", |c, w| boxed(stablelm::load(&parse(c)?, w))),
    ("starcoder2", |c, w| boxed(starcoder2::load(&parse(c)?, w))),
    ("telechat3", |c, w| boxed(telechat3::load(&parse(c)?, w))),
];

fn gemma4(c: &Value, w: Weights) -> Lm {
    let defaults = json!({ "num_attention_heads": 8, "num_key_value_heads": 1 });
    let (mut text, w) = multimodal::text_part(c, defaults, w)?;
    if let Some(vocab_size) = c.get("vocab_size") {
        text["vocab_size"] = vocab_size.clone();
    }
    boxed(gemma4_text::load(&parse(&gemma4_text::with_defaults(&text))?, w))
}

fn qwen2_vl(c: &Value, w: Weights) -> Lm {
    let (text, w) = multimodal::text_part(c, json!({}), w)?;
    boxed(qwen2::load(&parse(&text)?, w))
}

fn mistral3(c: &Value, w: Weights) -> Lm {
    let (text, w) = multimodal::text_part(c, json!({ "tie_word_embeddings": false }), w)?;
    match text.get("model_type").and_then(Value::as_str) {
        Some("ministral3") => boxed(ministral3::load(&parse(&text)?, w)),
        _ => boxed(llama::load(&parse(&text)?, w)),
    }
}

/// Every `model_type` that loads.
pub const SUPPORTED: &[&str] = &names();

const fn names() -> [&'static str; MODELS.len()] {
    let mut names = [""; MODELS.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = MODELS[i].0;
        i += 1;
    }
    names
}

/// Fails with the supported types, likest first, if `config` (a config.json) names another.
pub fn check(config: &Value) -> Result<()> {
    find(config).map(|_| ())
}

/// Builds the model that `config` names, consuming its weights.
pub fn build(config: &Value, weights: Weights) -> Lm {
    find(config)?(config, weights)
}

fn find(config: &Value) -> Result<Build> {
    let model_type = config.get("model_type").and_then(Value::as_str).ok_or_else(|| {
        LoadError::Config("config.json has no `model_type`; is this a language model's folder?".into())
    })?;
    let found = MODELS.iter().find(|(name, _)| *name == model_type);
    found.map(|(_, build)| *build).ok_or_else(|| {
        let mut supported = SUPPORTED.to_vec();
        supported.sort_by_key(|name| edits(name, model_type));
        LoadError::ModelType { model_type: model_type.to_owned(), supported }
    })
}

/// Letters to add, drop or change to make one name of the other (Levenshtein, 1966).
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let changed = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = changed.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

fn boxed<M: CausalLm + 'static>(model: Result<M>) -> Lm {
    Ok(Box::new(model?))
}

fn parse<T: DeserializeOwned>(config: &Value) -> Result<T> {
    T::deserialize(config).map_err(|err| LoadError::Config(format!("config.json: {err}")))
}
