//! Parts that several of OpenAI's answers have.

use serde_json::{Value, json};

use crate::error::Result;
use crate::fields::Fields;
use crate::ids;
use crate::session::{End, Gathered, Logprob, ToolCall, Top, Usage};

/// What all chunks of an answer share.
#[derive(Clone)]
pub struct Head {
    pub id: String,
    pub created: u64,
    pub model: String,
}

impl Head {
    pub fn new(prefix: &str, model: String) -> Self {
        Self { id: ids::fresh(prefix), created: ids::unix_time(), model }
    }

    pub fn object(&self, kind: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": kind, "created": self.created, "model": self.model,
            "system_fingerprint": concat!("forerun-", env!("CARGO_PKG_VERSION")), "choices": choices,
        })
    }
}

/// Usage of all choices; the prompt is counted once for each of its `n`.
pub fn usage(ends: &[End], n: usize) -> Value {
    let usages: Vec<Usage> = ends.iter().map(|end| end.usage).collect();
    let firsts = || usages.iter().step_by(n.max(1));
    let prompt: usize = firsts().map(|u| u.prompt).sum();
    let cached: usize = firsts().map(|u| u.cached).sum();
    let generated: usize = usages.iter().map(|u| u.generated).sum();
    let reasoning: usize = usages.iter().map(|u| u.reasoning).sum();
    json!({
        "prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    })
}

/// llama.cpp's figures, of the first choice.
pub fn timings(ends: &[End]) -> Value {
    let Some(end) = ends.first() else { return Value::Null };
    let per = |ms: f64, n: usize| if n == 0 { 0.0 } else { ms / n as f64 };
    let rate = |ms: f64, n: usize| if ms <= 0.0 { 0.0 } else { n as f64 * 1e3 / ms };
    let (prompt, made) = (end.usage.prompt.saturating_sub(end.usage.cached), end.usage.generated);
    let prompt_ms = end.timings.prompt.as_secs_f64() * 1e3;
    let made_ms = end.timings.generation.as_secs_f64() * 1e3;
    json!({
        "cache_n": end.usage.cached, "prompt_n": prompt, "prompt_ms": prompt_ms,
        "prompt_per_token_ms": per(prompt_ms, prompt), "prompt_per_second": rate(prompt_ms, prompt),
        "predicted_n": made, "predicted_ms": made_ms, "predicted_per_token_ms": per(made_ms, made),
        "predicted_per_second": rate(made_ms, made),
    })
}

/// `logprobs` of a chat's choice; mlx-lm's `id` stays beside OpenAI's fields.
pub fn chat_logprobs(entries: &[Logprob]) -> Value {
    let token = |top: &Top| json!({"id": top.id, "token": top.text(), "logprob": finite(top.logprob), "bytes": top.bytes});
    let entry = |entry: &Logprob| {
        let mut value = token(&entry.token);
        value["top_logprobs"] = entry.top.iter().map(token).collect();
        value
    };
    json!({"content": entries.iter().map(entry).collect::<Value>(), "refusal": null})
}

/// `logprobs` of a text completion whose shown text began at `offset` characters.
pub fn text_logprobs(entries: &[Logprob], mut offset: usize) -> Value {
    let (mut tokens, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for entry in entries {
        let text = entry.token.text();
        offsets.push(offset);
        offset += text.chars().count();
        tokens.push(text);
        logprobs.push(finite(entry.token.logprob));
        let mut top = serde_json::Map::new();
        for token in &entry.top {
            top.entry(token.text()).or_insert_with(|| json!(finite(token.logprob)));
        }
        tops.push(Value::Object(top));
    }
    json!({"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets})
}

/// JSON has no infinity; OpenAI writes this for what cannot be.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

/// A whole answer as an assistant's message.
pub fn message(answer: &Gathered) -> Value {
    let content = match answer.content.is_empty() && !answer.calls.is_empty() {
        true => Value::Null,
        false => json!(answer.content),
    };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !answer.reasoning.is_empty() {
        // Clients read either name, and none shows both.
        message["reasoning_content"] = json!(answer.reasoning);
        message["reasoning"] = json!(answer.reasoning);
    }
    if !answer.calls.is_empty() {
        let call = |call: &ToolCall| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"id": call.id, "type": "function", "function": function})
        };
        message["tool_calls"] = answer.calls.iter().map(call).collect();
    }
    message
}

/// Whether and how an answer is streamed.
#[derive(Clone, Copy, Default)]
pub struct Streaming {
    pub on: bool,
    pub usage: bool,
}

impl Streaming {
    pub fn read(fields: &Fields<'_>) -> Result<Self> {
        let on = fields.boolean("stream")?.unwrap_or(false);
        let usage = match fields.get("stream_options") {
            Some(options) => {
                let options = Fields::at(options, "stream_options")?;
                options.boolean("include_usage")?.unwrap_or(false)
            }
            None => false,
        };
        Ok(Self { on, usage })
    }
}

/// The comment that mlx-lm sends while a prompt is processed.
pub fn prefill_beat(done: usize, total: usize) -> String {
    format!(": keepalive {done}/{total}\n\n")
}
