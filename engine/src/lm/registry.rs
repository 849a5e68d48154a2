//! `model_type` → model. A name of a checkpoint that shares another's graph is a row here.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::CausalLm;
use super::models::llama;
use crate::weights::{LoadError, Result, Weights};

/// Every `model_type` that loads.
pub const SUPPORTED: &[&str] = &["llama", "mistral", "iquestcoder", "xverse"];

/// Builds the model that `config` (a config.json) names, consuming its weights.
pub fn build(config: &Value, weights: Weights) -> Result<Box<dyn CausalLm>> {
    let model_type = config.get("model_type").and_then(Value::as_str).ok_or_else(|| {
        LoadError::Config("config.json has no `model_type`; is this a language model's folder?".into())
    })?;
    match model_type {
        "llama" | "mistral" | "iquestcoder" | "xverse" => {
            Ok(Box::new(llama::Llama::load(&parse(config)?, weights)?))
        }
        other => Err(LoadError::ModelType { model_type: other.to_owned(), supported: SUPPORTED }),
    }
}

fn parse<T: DeserializeOwned>(config: &Value) -> Result<T> {
    T::deserialize(config).map_err(|err| LoadError::Config(format!("config.json: {err}")))
}
