//! `POST /v1/messages` and its count of tokens.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::blocks::Blocks;
use super::request;
use crate::app::App;
use crate::body::JsonBody;
use crate::chat;
use crate::error::{Dialect, Problem, Result, json_response};
use crate::fields::Fields;
use crate::grammar;
use crate::guard::Call;
use crate::ids;
use crate::output::Output;
use crate::params;
use crate::session::{Answers, End, Plan, Reason, Step, Usage};
use crate::stream::{self, Shape, Sink};

pub async fn create(State(app): State<Arc<App>>, call: Call, body: JsonBody) -> Result<Response> {
    let fields = body.fields();
    let model = app.resolve(fields.text("model")?)?;
    let (conversation, tools) = request::conversation(&fields)?;
    let streams = fields.boolean("stream")?.unwrap_or(false);
    let mut plan = plan(&app, &fields)?;
    let rendered = chat::render(&app, conversation).await?;
    plan.output = Output { tools: tools.offered(), prompt: rendered.text };
    plan.prompts = vec![rendered.tokens];
    plan.constraint = grammar::compile(&app, tools.forced(request::shape(&fields)?), &plan.output).await?;
    let bounded = plan.max_tokens.is_some();
    let message = Message { id: ids::fresh("msg_"), model, bounded, blocks: Blocks::default() };
    let answers = Answers::start(&app, &call, plan).await?;
    if !streams {
        return message.whole(answers).await;
    }
    let shape = Shape::sse(app.settings.keep_alive, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
    Ok(stream::respond(shape, |sink| message.stream(answers, sink)))
}

pub async fn count(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>> {
    let (conversation, _) = request::conversation(&body.fields())?;
    let rendered = chat::render(&app, conversation).await?;
    Ok(Json(json!({"input_tokens": rendered.tokens.len()})))
}

fn plan(app: &App, fields: &Fields<'_>) -> Result<Plan> {
    let one_call = match fields.get("tool_choice") {
        Some(choice) => {
            Fields::at(choice, "tool_choice")?.boolean("disable_parallel_tool_use")? == Some(true)
        }
        None => false,
    };
    let plan = params::read(app, fields, 1)?;
    Ok(Plan { n: 1, stop: fields.strings("stop_sequences")?, one_call, ..plan })
}

struct Message {
    id: String,
    model: String,
    /// Whether the request set a limit of its own.
    bounded: bool,
    blocks: Blocks,
}

impl Message {
    async fn whole(mut self, mut answers: Answers) -> Result<Response> {
        let mut last = None;
        while let Some(step) = answers.next().await {
            match step {
                Step::Prefill { .. } => {}
                Step::Pieces(_, pieces, _) => {
                    for piece in pieces {
                        self.blocks.push(piece);
                    }
                }
                Step::End(_, end) => last = Some(end),
                Step::Failed(problem) => return Err(problem),
            }
        }
        let end = last.ok_or_else(|| Problem::internal("the answer has no end"))?;
        self.blocks.close();
        let mut body = self.head(&end.usage);
        body["content"] = json!(self.blocks.done);
        let (reason, sequence) = self.stop(&end);
        body["stop_reason"] = json!(reason);
        body["stop_sequence"] = sequence;
        Ok(json_response(StatusCode::OK, &body))
    }

    async fn stream(mut self, mut answers: Answers, sink: Sink) {
        let mut begun = false;
        while let Some(step) = answers.next().await {
            // The first thing to happen tells how much of the prompt was remembered.
            if !begun && !matches!(step, Step::Failed(_)) {
                begun = true;
                let message = self.head(&answers.usage(0));
                sink.event("message_start", &json!({"type": "message_start", "message": message})).await;
                sink.event("ping", &json!({"type": "ping"})).await;
            }
            match step {
                Step::Prefill { .. } => {}
                Step::Pieces(_, pieces, _) => {
                    for piece in pieces {
                        send(&sink, self.blocks.push(piece)).await;
                    }
                }
                Step::End(_, end) => {
                    send(&sink, self.blocks.close()).await;
                    let (reason, sequence) = self.stop(&end);
                    let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
                    let usage = usage(&end.usage);
                    let events = vec![
                        json!({"type": "message_delta", "delta": delta, "usage": usage}),
                        json!({"type": "message_stop"}),
                    ];
                    send(&sink, events).await;
                }
                Step::Failed(problem) => return sink.event("error", &problem.body(Dialect::Anthropic)).await,
            }
        }
    }

    fn head(&self, used: &Usage) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": usage(used),
        })
    }

    fn stop(&self, end: &End) -> (&'static str, Value) {
        match &end.reason {
            Reason::Stop => ("end_turn", Value::Null),
            Reason::StopString(text) => ("stop_sequence", json!(text)),
            Reason::Length if self.bounded => ("max_tokens", Value::Null),
            Reason::Length => ("model_context_window_exceeded", Value::Null),
            Reason::Calls => ("tool_use", Value::Null),
        }
    }
}

/// Tokens that were remembered are not among the input tokens here.
fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt.saturating_sub(usage.cached), "output_tokens": usage.generated,
        "cache_creation_input_tokens": 0, "cache_read_input_tokens": usage.cached,
    })
}

async fn send(sink: &Sink, events: Vec<Value>) {
    for event in events {
        let name = event["type"].as_str().unwrap_or_default().to_owned();
        sink.event(&name, &event).await;
    }
}
