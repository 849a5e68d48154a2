//! Rotary position embeddings in every scaling that checkpoints name: arXiv 2104.09864.
//!
//! A scaling is a table of periods: pair `i` of a head at position `p` turns by `p / periods[i]` radians.
//! Equations and defaults are mlx-lm's (`rope_utils.py`), with the tables computed in double precision.

use mlx_core::attention::{DynamicNtk, Rope};
use serde_json::{Map, Value};

use crate::weights::{LoadError, Result};

/// The rotary settings of a config.json: `rope_theta` and `rope_scaling`, or both inside
/// `rope_parameters`, as transformers 5 writes them.
#[derive(Clone, Debug)]
pub struct RopeConfig {
    pub dims: usize,
    pub theta: f64,
    pub traditional: bool,
    pub scaling: Option<Map<String, Value>>,
    pub max_position_embeddings: usize,
}

impl RopeConfig {
    pub fn build(&self) -> Result<Rope> {
        let none = Map::new();
        let scaling = Scaling(self.scaling.as_ref().unwrap_or(&none));
        let half = self.dims / 2;
        let plain = |factor: f64| (0..half).map(|i| self.period(i) * factor).collect::<Vec<_>>();
        let (periods, mscale, dynamic) = match scaling.kind()? {
            "default" | "mrope" => (plain(1.0), 1.0, None),
            // Llama 3.1 as GGUF stores it: the scaling already worked out for each pair.
            "factors" => {
                let factors = scaling.numbers("factors", half)?;
                (factors.iter().enumerate().map(|(i, f)| self.period(i) * f).collect(), 1.0, None)
            }
            "linear" => (plain(scaling.number("factor")?), 1.0, None),
            "dynamic" => (plain(1.0), 1.0, Some(self.dynamic(&scaling)?)),
            "llama3" => (self.llama3(&scaling)?, 1.0, None),
            "yarn" | "deepseek_yarn" | "telechat3-yarn" => {
                let (periods, mscale) = self.yarn(&scaling)?;
                (periods, mscale, None)
            }
            "longrope" | "su" => {
                let (periods, mscale) = self.longrope(&scaling)?;
                (periods, mscale, None)
            }
            other => {
                return Err(LoadError::Config(format!(
                    "rope scaling `{other}` is not supported; known: default, linear, dynamic, llama3, yarn, \
                     longrope"
                )));
            }
        };
        let periods = periods.into_iter().map(|x| x as f32).collect();
        Ok(Rope::new(self.traditional, periods, mscale as f32, dynamic))
    }

    fn period(&self, pair: usize) -> f64 {
        self.theta.powf(2.0 * pair as f64 / self.dims as f64)
    }

    /// The base grows with the sequence, so a token's rotation depends on its own position alone; within a
    /// prompt chunk mlx-lm takes the base of the chunk's end, whatever its size happens to be.
    fn dynamic(&self, s: &Scaling<'_>) -> Result<DynamicNtk> {
        Ok(DynamicNtk {
            theta: self.theta,
            factor: s.number("factor")?,
            max_position: self.max_position_embeddings,
        })
    }

    /// Llama 3.1: long waves are stretched, short ones kept, those between blended.
    fn llama3(&self, s: &Scaling<'_>) -> Result<Vec<f64>> {
        let factor = s.number("factor")?;
        let low = s.number_or("low_freq_factor", 1.0)?;
        let high = s.number_or("high_freq_factor", 4.0)?;
        let original = s.number_or("original_max_position_embeddings", 8192.0)?;
        let scale = |period: f64| {
            let wave = std::f64::consts::TAU * period;
            if original / low < wave {
                period * factor
            } else if wave <= original / high {
                period
            } else {
                let smooth = (original / wave - low) / (high - low);
                period / ((1.0 - smooth) / factor + smooth)
            }
        };
        Ok((0..self.dims / 2).map(|i| scale(self.period(i))).collect())
    }

    /// YaRN, arXiv 2309.00071. Returns the periods and the factor on the rotated inputs.
    fn yarn(&self, s: &Scaling<'_>) -> Result<(Vec<f64>, f64)> {
        let factor = s.number("factor")?;
        let original = s.number_or("original_max_position_embeddings", 4096.0)?;
        let correction = |rotations: f64| {
            self.dims as f64 * (original / (rotations * std::f64::consts::TAU)).ln() / (2.0 * self.theta.ln())
        };
        let low = correction(s.number_or("beta_fast", 32.0)?).floor().max(0.0);
        let high = correction(s.number_or("beta_slow", 1.0)?).ceil().min(self.dims as f64 - 1.0);
        let high = if low == high { high + 0.001 } else { high };
        let blend = |i: usize| {
            let keep = 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            let (short, long) = (self.period(i), self.period(i) * factor);
            (long * short) / (long * keep + short * (1.0 - keep))
        };
        let magnitude = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
        let mscale = magnitude(s.number_or("mscale", 1.0)?) / magnitude(s.number_or("mscale_all_dim", 0.0)?);
        Ok(((0..self.dims / 2).map(blend).collect(), mscale))
    }

    /// LongRoPE, arXiv 2402.13753, with the long factors at every length, as mlx-lm has it.
    fn longrope(&self, s: &Scaling<'_>) -> Result<(Vec<f64>, f64)> {
        let original = s.number("original_max_position_embeddings")?;
        let factors = s.numbers("long_factor", self.dims / 2)?;
        let periods = factors.iter().enumerate().map(|(i, f)| self.period(i) * f).collect();
        let ratio = self.max_position_embeddings as f64 / original;
        let mscale = if ratio <= 1.0 { 1.0 } else { (1.0 + ratio.ln() / original.ln()).sqrt() };
        Ok((periods, mscale))
    }
}

/// The scaling object, read with errors that name the key.
struct Scaling<'a>(&'a Map<String, Value>);

impl Scaling<'_> {
    fn kind(&self) -> Result<&str> {
        match self.0.get("type").or(self.0.get("rope_type")) {
            None | Some(Value::Null) => Ok("default"),
            Some(Value::String(kind)) => Ok(kind),
            Some(other) => Err(wrong("rope_type", "a string", other)),
        }
    }

    fn number(&self, key: &str) -> Result<f64> {
        let missing = || LoadError::Config(format!("config.json: rope scaling lacks `{key}`"));
        let value = self.0.get(key).ok_or_else(missing)?;
        match value.as_f64() {
            Some(x) if x.is_finite() && 0.0 <= x => Ok(x),
            _ => Err(wrong(key, "a positive number", value)),
        }
    }

    fn number_or(&self, key: &str, default: f64) -> Result<f64> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(_) => self.number(key),
        }
    }

    /// One number for each of `n` pairs; a single number stands for all.
    fn numbers(&self, key: &str, n: usize) -> Result<Vec<f64>> {
        let value = self.0.get(key).unwrap_or(&Value::Null);
        let list = match value {
            Value::Array(list) => list.iter().map(Value::as_f64).collect::<Option<Vec<_>>>(),
            other => other.as_f64().map(|x| vec![x; n]),
        };
        list.filter(|list| list.len() == n).ok_or_else(|| wrong(key, &format!("{n} numbers"), value))
    }
}

fn wrong(key: &str, want: &str, got: &Value) -> LoadError {
    LoadError::Config(format!("config.json: rope scaling `{key}` should be {want}, not {got}"))
}
