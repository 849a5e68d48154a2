//! `model_type` → model. A name of a checkpoint that shares another's graph is a row here.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::CausalLm;
use super::models::llama;
use crate::weights::{LoadError, Result, Weights};

/// Every `model_type` that loads.
pub const SUPPORTED: &[&str] = &["llama", "mistral", "iquestcoder", "xverse"];

/// Fails with the supported types if `config` (a config.json) names another.
pub fn check(config: &Value) -> Result<()> {
    let model_type = config.get("model_type").and_then(Value::as_str).ok_or_else(|| {
        LoadError::Config("config.json has no `model_type`; is this a language model's folder?".into())
    })?;
    match SUPPORTED.contains(&model_type) {
        true => Ok(()),
        false => Err(LoadError::ModelType { model_type: model_type.to_owned(), supported: SUPPORTED }),
    }
}

/// Builds the model that `config` names, consuming its weights.
pub fn build(config: &Value, weights: Weights) -> Result<Box<dyn CausalLm>> {
    check(config)?;
    // Every supported type shares one graph so far.
    Ok(Box::new(llama::Llama::load(&parse(config)?, weights)?))
}

fn parse<T: DeserializeOwned>(config: &Value) -> Result<T> {
    T::deserialize(config).map_err(|err| LoadError::Config(format!("config.json: {err}")))
}
