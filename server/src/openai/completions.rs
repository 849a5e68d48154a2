//! `POST /v1/completions`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use engine::protocol::TokenId;
use serde_json::{Value, json};

use super::wire::{self, Head, Streaming};
use crate::app::App;
use crate::body::JsonBody;
use crate::chat;
use crate::error::{Dialect, Problem, Result, json_response};
use crate::fields::{Fields, wrong};
use crate::grammar;
use crate::guard::Call;
use crate::output::Piece;
use crate::params;
use crate::session::{Answers, End, Logprob, Plan, Step};
use crate::stream::{self, Shape, Sink};

pub async fn completions(State(app): State<Arc<App>>, call: Call, body: JsonBody) -> Result<Response> {
    let fields = body.fields();
    let head = Head::new("cmpl-", app.resolve(fields.text("model")?)?);
    let streaming = Streaming::read(&fields)?;
    let mut plan = plan(&app, &fields)?;
    let echo = fields.boolean("echo")?.unwrap_or(false);
    if echo && plan.logprobs.is_some() {
        let message =
            "`echo` with `logprobs` needs the prompt's log-probabilities, which are not supported yet";
        return Err(Problem::field("echo", message));
    }
    plan.prompts = prompts(&app, &fields).await?;
    plan.constraint = grammar::compile(&app, grammar::of_chat(&fields)?, &plan.output).await?;
    let n = plan.n;
    let echoes: Vec<String> = plan.prompts.iter().map(|p| app.model.tokenizer.decode(p, true)).collect();
    let echo_of =
        move |i: usize| if echo { echoes.get(i / n).cloned().unwrap_or_default() } else { String::new() };
    let answers = Answers::start(&app, &call, plan).await?;
    if !streaming.on {
        return whole(&head, answers, n, echo_of).await;
    }
    let shown = (0..answers.n_choices()).map(|_| 0).collect();
    let writer = Writer { head, streaming, n, shown, ends: Vec::new() };
    let shape = Shape::sse(app.settings.keep_alive, ": keepalive\n\n");
    Ok(stream::respond(shape, |sink| writer.run(answers, sink, echo_of)))
}

fn plan(app: &App, fields: &Fields<'_>) -> Result<Plan> {
    if fields.get("suffix").is_some_and(|suffix| suffix != "") {
        return Err(Problem::field("suffix", "`suffix`: the model can't fill in the middle; leave it out"));
    }
    let plan = params::read(app, fields, 0)?;
    if fields.integer("best_of", 1..=i64::MAX)?.is_some_and(|best| best as usize != plan.n) {
        return Err(Problem::field(
            "best_of",
            "`best_of` should be the same as `n`; other values are not supported",
        ));
    }
    // OpenAI's is a count, mlx-lm's a flag.
    let logprobs = match fields.get("logprobs") {
        Some(Value::Bool(wanted)) => wanted.then_some(fields.integer("top_logprobs", -1..=20)?.unwrap_or(0)),
        _ => fields.integer("logprobs", 0..=20)?,
    };
    Ok(Plan { logprobs: logprobs.map(|n| n.max(0) as usize), ..plan })
}

/// A text, tokens, or a list of either.
async fn prompts(app: &Arc<App>, fields: &Fields<'_>) -> Result<Vec<Vec<TokenId>>> {
    let prompt = fields.get("prompt").ok_or_else(|| Problem::field("prompt", "`prompt` is missing"))?;
    let mut prompts = Vec::new();
    match prompt {
        Value::String(text) => prompts.push(chat::encode(app, text.clone(), true).await?),
        Value::Array(list) if list.first().is_some_and(Value::is_number) => {
            prompts.push(ids(app, list, "prompt")?)
        }
        Value::Array(list) => {
            for (i, item) in list.iter().enumerate() {
                let name = format!("prompt[{i}]");
                prompts.push(match item {
                    Value::String(text) => chat::encode(app, text.clone(), true).await?,
                    Value::Array(list) => ids(app, list, &name)?,
                    other => return Err(wrong(&name, "a string or an array of token ids", other)),
                });
            }
        }
        other => return Err(wrong("prompt", "a string or an array", other)),
    }
    if prompts.is_empty() {
        return Err(Problem::field("prompt", "`prompt` is empty; send at least one"));
    }
    if MOST_PROMPTS < prompts.len() {
        return Err(Problem::field("prompt", format!("`prompt` should hold at most {MOST_PROMPTS} prompts")));
    }
    Ok(prompts)
}

const MOST_PROMPTS: usize = 512;

/// Token ids of this vocabulary.
pub fn ids(app: &App, list: &[Value], name: &str) -> Result<Vec<TokenId>> {
    let vocab = app.model.info.vocab_size as u64;
    let id = |value: &Value| match value.as_u64() {
        Some(id) if id < vocab => Ok(id as TokenId),
        Some(id) => {
            let message = format!("`{name}`: the vocabulary's ids end before {id}, at {vocab}");
            Err(Problem::field(name, message))
        }
        None => Err(wrong(name, "an array of token ids", value)),
    };
    list.iter().map(id).collect()
}

async fn whole(
    head: &Head,
    answers: Answers,
    n: usize,
    echo_of: impl Fn(usize) -> String,
) -> Result<Response> {
    let answers = answers.gather().await?;
    let ends: Vec<End> = answers.iter().filter_map(|answer| answer.end.clone()).collect();
    let mut choices = Vec::new();
    for (i, answer) in answers.iter().enumerate() {
        let logprobs = (!answer.logprobs.is_empty()).then(|| wire::text_logprobs(&answer.logprobs, 0));
        let reason = answer.end.as_ref().map(|end| end.reason.word());
        let text = echo_of(i) + &answer.content;
        choices.push(json!({"index": i, "text": text, "logprobs": logprobs, "finish_reason": reason}));
    }
    let mut body = head.object("text_completion", json!(choices));
    body["usage"] = wire::usage(&ends, n);
    body["timings"] = wire::timings(&ends);
    Ok(json_response(StatusCode::OK, &body))
}

struct Writer {
    head: Head,
    streaming: Streaming,
    n: usize,
    /// Characters of each choice that are out.
    shown: Vec<usize>,
    ends: Vec<(usize, End)>,
}

impl Writer {
    async fn run(mut self, mut answers: Answers, sink: Sink, echo_of: impl Fn(usize) -> String) {
        for i in 0..answers.n_choices() {
            let echo = echo_of(i);
            if !echo.is_empty() {
                self.text(&sink, i, &echo, &[]).await;
            }
        }
        while let Some(step) = answers.next().await {
            match step {
                Step::Prefill { done, total, .. } => sink.write(wire::prefill_beat(done, total)).await,
                Step::Pieces(i, pieces, logprobs) => {
                    let content = |piece| if let Piece::Content(text) = piece { Some(text) } else { None };
                    let text: String = pieces.into_iter().filter_map(content).collect();
                    self.text(&sink, i, &text, &logprobs).await;
                }
                Step::End(i, end) => {
                    self.chunk(&sink, i, "", Value::Null, Some(end.reason.word())).await;
                    self.ends.push((i, end));
                }
                Step::Failed(problem) => return sink.data(&problem.body(Dialect::OpenAi)).await,
            }
        }
        if self.streaming.usage {
            self.ends.sort_by_key(|(i, _)| *i);
            let ends: Vec<End> = self.ends.into_iter().map(|(_, end)| end).collect();
            let mut last = self.head.object("text_completion", json!([]));
            last["usage"] = wire::usage(&ends, self.n);
            last["timings"] = wire::timings(&ends);
            sink.data(&last).await;
        }
        sink.write("data: [DONE]\n\n".into()).await;
    }

    async fn text(&mut self, sink: &Sink, i: usize, text: &str, logprobs: &[Logprob]) {
        let beside = match logprobs {
            [] => Value::Null,
            some => wire::text_logprobs(some, self.shown[i]),
        };
        self.shown[i] += text.chars().count();
        self.chunk(sink, i, text, beside, None).await;
    }

    async fn chunk(&self, sink: &Sink, i: usize, text: &str, logprobs: Value, finish: Option<&str>) {
        let choice = json!({"index": i, "text": text, "logprobs": logprobs, "finish_reason": finish});
        let mut chunk = self.head.object("text_completion", json!([choice]));
        if self.streaming.usage {
            chunk["usage"] = Value::Null;
        }
        sink.data(&chunk).await;
    }
}
