//! Checkpoints of models that see or hear: their language model, without the rest.
//!
//! References: `mlx_lm/models/gemma3.py`, `mistral3.py`, `qwen2_vl.py`, `qwen3_vl.py`.

use serde_json::{Map, Value};

use crate::weights::{LoadError, Result, Weights};

/// Parts of a checkpoint that serve other inputs than text.
const IGNORED: &[&str] =
    &["vision_tower.", "visual.", "multi_modal_projector.", "vision_model.", "audio_tower."];

/// The config of the language model, with `defaults` for what it leaves out, and its weights. Text keys stand in
/// `text_config`, or beside the others in older files.
pub fn text_part(config: &Value, defaults: Value, w: Weights) -> Result<(Value, Weights)> {
    let text = match config.get("text_config") {
        None => config,
        Some(text @ Value::Object(_)) => text,
        Some(other) => {
            let message = format!("config.json: `text_config` should be an object, not {other}");
            return Err(LoadError::Config(message));
        }
    };
    let mut all = defaults.as_object().cloned().unwrap_or_default();
    let given = text.as_object().into_iter().flat_map(Map::clone);
    all.extend(given.filter(|(_, value)| !value.is_null()));
    Ok((Value::Object(all), w.renamed(text_name).at("language_model")))
}

/// Names as MLX conversions have them; published checkpoints nest the towers the other way round, or not at all.
fn text_name(name: &str) -> Option<String> {
    let inner = name.strip_prefix("model.").unwrap_or(name);
    if IGNORED.iter().any(|part| inner.starts_with(part)) {
        return None;
    }
    if let Some(rest) = name.strip_prefix("model.language_model.") {
        return Some(format!("language_model.model.{rest}"));
    }
    Some(match name.starts_with("language_model.") {
        true => name.to_owned(),
        false => format!("language_model.{name}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_nesting_meet() {
        let check = |name: &str, want: Option<&str>| assert_eq!(text_name(name).as_deref(), want, "{name}");
        let norm = Some("language_model.model.norm.weight");
        check("language_model.model.norm.weight", norm);
        check("model.language_model.norm.weight", norm);
        check("model.norm.weight", norm);
        check("lm_head.weight", Some("language_model.lm_head.weight"));
        check("model.visual.blocks.0.norm1.weight", None);
        check("vision_tower.patch_embed.weight", None);
    }
}
