//! How a checkpoint is quantized, as config.json says it, or as the shapes of its tensors show.

use std::collections::BTreeMap;

use mlx_core::Dtype;
use mlx_core::quant::{QuantMode, QuantSpec};
use serde_json::{Map, Value};

use super::{LoadError, Result};

/// `quantization` of config.json: one format for all matrices that have `.scales`, and others by path.
#[derive(Clone, Debug, Default)]
pub struct QuantConfig {
    default: Option<QuantSpec>,
    by_path: BTreeMap<String, QuantSpec>,
}

type Stored = Option<(Vec<usize>, Dtype)>;

impl QuantConfig {
    /// One format per matrix.
    pub fn by_path(by_path: BTreeMap<String, QuantSpec>) -> Self {
        Self { default: None, by_path }
    }

    /// Reads `quantization`, or `quantization_config` where it has the same form.
    pub fn parse(config: &Value) -> Result<Self> {
        let Some(value) = config.get("quantization").or(config.get("quantization_config")) else {
            return Ok(Self::default());
        };
        let Value::Object(map) = value else {
            return match value {
                Value::Null => Ok(Self::default()),
                _ => Err(LoadError::Config("config.json: `quantization` should be an object".into())),
            };
        };
        if let Some(method) = map.get("quant_method").and_then(Value::as_str)
            && !map.contains_key("group_size")
            && QuantMode::parse(method).is_none()
        {
            return Err(LoadError::Config(format!(
                "config.json: weights quantized by `{method}` are not supported; use an MLX conversion of the \
                 model, or its unquantized checkpoint"
            )));
        }
        let default =
            (map.contains_key("group_size") || map.contains_key("mode") || map.contains_key("bits"))
                .then(|| spec("quantization", map))
                .transpose()?;
        let nested = map.iter().filter_map(|(path, value)| Some((path, value.as_object()?)));
        let by_path =
            nested.map(|(path, map)| Ok((path.clone(), spec(path, map)?))).collect::<Result<_>>()?;
        Ok(Self { default, by_path })
    }

    /// The format of the matrix at `path`, which has scales. An entry for the path wins, then what the shapes
    /// of its words and scales say, given its `n_in` columns.
    pub(super) fn spec(&self, path: &str, n_in: usize, words: Stored, scales: Stored) -> Result<QuantSpec> {
        let (Some((words, words_type)), Some((scales, scales_type))) = (words, scales) else {
            return Err(LoadError::Missing { name: format!("{path}.weight") });
        };
        if words_type != Dtype::Uint32 {
            return Err(LoadError::Config(format!(
                "`{path}.weight` has scales, but is {words_type} instead of packed uint32"
            )));
        }
        if let Some(spec) = self.by_path.get(path) {
            return Ok(*spec);
        }
        let last = |shape: &[usize]| shape.last().copied().unwrap_or(0).max(1);
        let group_size = (n_in / last(&scales)) as i32;
        let bits = (last(&words) * 32 / n_in.max(1)) as i32;
        if let Some(spec) = self.default.filter(|s| s.group_size == group_size && s.bits == bits) {
            return Ok(spec);
        }
        let mode = match (scales_type, bits, group_size) {
            (Dtype::Uint8, 4, 16) => QuantMode::Nvfp4,
            (Dtype::Uint8, 4, _) => QuantMode::Mxfp4,
            (Dtype::Uint8, _, _) => QuantMode::Mxfp8,
            _ => QuantMode::Affine,
        };
        QuantSpec::new(mode, group_size, bits).map_err(|err| LoadError::Config(format!("`{path}`: {err}")))
    }
}

fn spec(path: &str, map: &Map<String, Value>) -> Result<QuantSpec> {
    let bad = |what: String| LoadError::Config(format!("config.json: quantization of `{path}`: {what}"));
    let mode = match map.get("mode") {
        None | Some(Value::Null) => QuantMode::Affine,
        Some(mode) => mode
            .as_str()
            .and_then(QuantMode::parse)
            .ok_or_else(|| bad(format!("mode {mode} is not affine, mxfp4, mxfp8 or nvfp4")))?,
    };
    let integer = |key: &str, default: i32| match map.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => value
            .as_i64()
            .and_then(|x| i32::try_from(x).ok())
            .ok_or_else(|| bad(format!("`{key}` should be a whole number, not {value}"))),
    };
    let defaults = mode.defaults();
    let (group_size, bits) = (integer("group_size", defaults.group_size)?, integer("bits", defaults.bits)?);
    QuantSpec::new(mode, group_size, bits).map_err(|err| bad(err.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(quantization: Value) -> Result<QuantConfig> {
        QuantConfig::parse(&json!({ "quantization": quantization }))
    }

    fn look(
        config: &QuantConfig,
        path: &str,
        n_in: usize,
        words: usize,
        groups: usize,
        t: Dtype,
    ) -> Result<QuantSpec> {
        config.spec(path, n_in, Some((vec![8, words], Dtype::Uint32)), Some((vec![8, groups], t)))
    }

    #[test]
    fn an_override_wins_and_shapes_settle_the_rest() {
        let config = parse(json!({
            "group_size": 64, "bits": 4, "a": {"group_size": 32, "bits": 8}, "b": false,
        }))
        .unwrap();
        let affine = |group_size, bits| QuantSpec { group_size, bits, mode: QuantMode::Affine };
        assert_eq!(look(&config, "x", 128, 16, 2, Dtype::Float32).unwrap(), affine(64, 4));
        assert_eq!(look(&config, "a", 128, 32, 4, Dtype::Float32).unwrap(), affine(32, 8));
        assert_eq!(look(&config, "y", 128, 24, 4, Dtype::Float32).unwrap(), affine(32, 6));
        let none = QuantConfig::default();
        assert_eq!(look(&none, "x", 128, 16, 4, Dtype::Uint8).unwrap(), QuantMode::Mxfp4.defaults());
        assert_eq!(look(&none, "x", 128, 16, 8, Dtype::Uint8).unwrap(), QuantMode::Nvfp4.defaults());
        assert!(look(&none, "x", 128, 28, 4, Dtype::Float32).is_err());
    }

    #[test]
    fn foreign_and_impossible_formats_are_named() {
        let err = QuantConfig::parse(&json!({"quantization_config": {"quant_method": "awq", "bits": 4}}));
        assert!(err.unwrap_err().to_string().contains("`awq`"));
        assert!(parse(json!({"group_size": 48, "bits": 4})).is_err());
        assert!(parse(json!({"group_size": "x", "bits": 4})).is_err());
        assert!(parse(json!({"mode": "int9"})).is_err());
        assert!(parse(json!(null)).is_ok());
    }
}
