//! Sampling parameters, read from a request over the server's defaults.

use engine::protocol::SamplingParams;

use crate::app::App;
use crate::error::{Problem, Result};
use crate::fields::Fields;
use crate::session::Plan;

/// The names that OpenAI's surface and mlx-lm's use, in a plan that still lacks its prompts.
pub fn read(app: &App, fields: &Fields<'_>, least_tokens: i64) -> Result<Plan> {
    let longest = fields.integer("max_completion_tokens", least_tokens..=i64::MAX)?;
    let max_tokens = longest.or(fields.integer("max_tokens", least_tokens..=i64::MAX)?);
    let n = fields.integer("n", 1..=MOST_CHOICES)?.unwrap_or(1) as usize;
    let stop = fields.strings("stop")?;
    if MOST_STOPS < stop.len() {
        return Err(Problem::field("stop", format!("`stop` should have at most {MOST_STOPS} strings")));
    }
    if fields.text("adapters")?.is_some() {
        return Err(Problem::field("adapters", "`adapters` are not supported; leave it out"));
    }
    let sampling = sampling(app, fields)?;
    Ok(Plan {
        n,
        max_tokens: max_tokens.map(|n| n as usize).or(app.settings.defaults.max_tokens),
        min_tokens: fields.count("min_tokens")?.unwrap_or(0),
        sampling,
        seed: seed(fields, "seed")?,
        stop,
        ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
        ..Plan::default()
    })
}

const MOST_CHOICES: i64 = 128;
const MOST_STOPS: usize = 64;

pub fn sampling(app: &App, fields: &Fields<'_>) -> Result<SamplingParams> {
    let least = SamplingParams::default();
    let defaults = base(app)?;
    let any = 0.0..=f64::INFINITY;
    let share = 0.0..=1.0;
    let penalty = -2.0..=2.0;
    let repetition = match fields.number("repetition_penalty", any.clone())? {
        None => fields.number("repeat_penalty", any.clone())?,
        given => given,
    };
    let window = |name: &str| fields.count(name).map(|n| n.unwrap_or(least.repetition_context_size));
    Ok(SamplingParams {
        temperature: fields.number("temperature", any)?.unwrap_or(defaults.temperature),
        top_p: fields.number("top_p", share.clone())?.unwrap_or(defaults.top_p),
        top_k: fields.integer("top_k", -1..=i64::MAX)?.map_or(defaults.top_k, |k| k.max(0) as usize),
        min_p: fields.number("min_p", share.clone())?.unwrap_or(defaults.min_p),
        xtc_probability: fields.number("xtc_probability", share.clone())?.unwrap_or(0.0),
        xtc_threshold: fields.number("xtc_threshold", share)?.unwrap_or(least.xtc_threshold),
        // Both 0 and 1 turn it off.
        repetition_penalty: repetition
            .map_or(defaults.repetition_penalty, |p| if p == 0.0 { 1.0 } else { p }),
        repetition_context_size: match fields.count("repeat_last_n")? {
            Some(n) => n,
            None => window("repetition_context_size")?,
        },
        presence_penalty: fields.number("presence_penalty", penalty.clone())?.unwrap_or(0.0),
        presence_context_size: window("presence_context_size")?,
        frequency_penalty: fields.number("frequency_penalty", penalty)?.unwrap_or(0.0),
        frequency_context_size: window("frequency_context_size")?,
        logit_bias: logit_bias(app, fields)?,
        ..defaults
    })
}

/// The server's defaults.
pub fn base(app: &App) -> Result<SamplingParams> {
    let defaults = &app.settings.defaults;
    let tokenizer = &app.model.tokenizer;
    let mut xtc_special_tokens = tokenizer.encode("\n", false)?;
    xtc_special_tokens.extend(tokenizer.ends());
    Ok(SamplingParams {
        temperature: defaults.temperature,
        top_p: defaults.top_p,
        top_k: defaults.top_k,
        min_p: defaults.min_p,
        repetition_penalty: defaults.repetition_penalty,
        xtc_special_tokens,
        ..SamplingParams::default()
    })
}

/// -1 stands for none.
pub fn seed(fields: &Fields<'_>, name: &str) -> Result<Option<u64>> {
    let seed = fields.integer(name, i64::MIN..=i64::MAX)?;
    Ok(seed.filter(|seed| *seed != -1).map(|seed| seed as u64))
}

fn logit_bias(app: &App, fields: &Fields<'_>) -> Result<Vec<(u32, f32)>> {
    let Some(map) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let vocab = app.model.info.vocab_size;
    let entry = |(key, value): (&String, &serde_json::Value)| {
        let wrong = |message: String| Problem::field("logit_bias", message);
        let id: u32 = key.parse().map_err(|_| wrong(format!("`logit_bias`: `{key}` is not a token's id")))?;
        if vocab <= id as usize {
            return Err(wrong(format!("`logit_bias`: the vocabulary's ids end before {id}, at {vocab}")));
        }
        let bias = value.as_f64().ok_or_else(|| wrong(format!("`logit_bias.{key}` should be a number")))?;
        Ok((id, bias as f32))
    };
    map.iter().map(entry).collect()
}
