//! OpenAI's Responses surface: answers as items, kept for a while so that a conversation can go on from them.

mod input;
mod items;
mod store;

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::app::{App, at};
use crate::body::JsonBody;
use crate::chat;
use crate::error::{Dialect, Kind, Problem, Result, json_response};
use crate::fields::Fields;
use crate::grammar;
use crate::guard::Call;
use crate::ids;
use crate::output::Output;
use crate::params;
use crate::session::{Answers, End, Plan, Reason, Step, Usage};
use crate::stream::{self, Shape, Sink};

pub use input::Input;
pub use items::Items;
pub use store::Store;

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .merge(at(&["/v1/responses", "/responses"], &post(create)))
        .merge(at(&["/v1/responses/input_tokens", "/responses/input_tokens"], &post(count)))
        .merge(at(&["/v1/responses/{id}", "/responses/{id}"], &get(retrieve).delete(delete)))
        .merge(at(&["/v1/responses/{id}/input_items", "/responses/{id}/input_items"], &get(input_items)))
}

async fn create(State(app): State<Arc<App>>, call: Call, body: JsonBody) -> Result<Response> {
    let fields = body.fields();
    let model = app.resolve(fields.text("model")?)?;
    refuse(&fields)?;
    let input = Input::read(&fields, &app.responses)?;
    let streams = fields.boolean("stream")?.unwrap_or(false);
    let plan = Plan {
        n: 1,
        max_tokens: match fields.integer("max_output_tokens", 1..=i64::MAX)? {
            Some(max) => Some(max as usize),
            None => app.settings.defaults.max_tokens,
        },
        one_call: fields.boolean("parallel_tool_calls")? == Some(false),
        ..params::read(&app, &fields, 1)?
    };
    let rendered = chat::render(&app, input.conversation()).await?;
    let output = Output { tools: input.tools.offered(), prompt: rendered.text };
    let constraint = grammar::compile(&app, input.tools.forced(shape(&fields)?), &output).await?;
    let plan = Plan { prompts: vec![rendered.tokens], output, constraint, ..plan };
    let reply = Reply {
        head: head(&fields, model, &plan),
        items: Items::new(input.namespaces.clone()),
        keep: fields.boolean("store")?.unwrap_or(true).then(|| (app.clone(), input.items)),
    };
    let answers = Answers::start(&app, &call, plan).await?;
    if !streams {
        return reply.whole(answers).await;
    }
    let shape = Shape::sse(app.settings.keep_alive, ": keepalive\n\n");
    Ok(stream::respond(shape, |sink| reply.stream(answers, sink)))
}

/// What would change the answer, and can't be had.
fn refuse(fields: &Fields<'_>) -> Result<()> {
    if fields.boolean("background")? == Some(true) {
        return Err(Problem::field("background", "`background` is not supported; leave it out"));
    }
    Ok(())
}

fn shape(fields: &Fields<'_>) -> Result<Option<grammar::Shape>> {
    let Some(text) = fields.get("text") else { return Ok(None) };
    let format = Fields::at(text, "text")?.get("format");
    format.map_or(Ok(None), |format| grammar::Shape::read(format, "text.format"))
}

/// The response's object before it has any output.
fn head(fields: &Fields<'_>, model: String, plan: &Plan) -> Value {
    let given = |name: &str| fields.get(name).cloned();
    json!({
        "id": ids::fresh("resp_"), "object": "response", "created_at": ids::unix_time(), "status": "in_progress",
        "background": false, "error": null, "incomplete_details": null, "instructions": given("instructions"),
        "max_output_tokens": given("max_output_tokens"), "model": model, "output": [],
        "parallel_tool_calls": !plan.one_call, "previous_response_id": given("previous_response_id"),
        "reasoning": given("reasoning").unwrap_or_else(|| json!({"effort": null, "summary": null})),
        "store": given("store").unwrap_or(json!(true)), "temperature": plan.sampling.temperature,
        "text": given("text").unwrap_or_else(|| json!({"format": {"type": "text"}})),
        "tool_choice": given("tool_choice").unwrap_or(json!("auto")), "tools": given("tools").unwrap_or(json!([])),
        "top_p": plan.sampling.top_p, "truncation": "disabled", "usage": null,
        "metadata": given("metadata").unwrap_or_else(|| json!({})),
    })
}

async fn count(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>> {
    let input = Input::read(&body.fields(), &app.responses)?;
    let rendered = chat::render(&app, input.conversation()).await?;
    Ok(Json(json!({"object": "response.input_tokens", "input_tokens": rendered.tokens.len()})))
}

async fn retrieve(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>> {
    app.responses.find(&id).map(|stored| Json(stored.response.clone())).ok_or_else(|| absent(&id))
}

async fn delete(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>> {
    match app.responses.remove(&id) {
        true => Ok(Json(json!({"id": id, "object": "response", "deleted": true}))),
        false => Err(absent(&id)),
    }
}

async fn input_items(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>> {
    let stored = app.responses.find(&id).ok_or_else(|| absent(&id))?;
    let of = |item: Option<&Value>| item.and_then(|item| item.get("id").cloned());
    let (first, last) = (of(stored.input.first()), of(stored.input.last()));
    Ok(Json(json!({
        "object": "list", "data": stored.input, "first_id": first, "last_id": last, "has_more": false,
    })))
}

fn absent(id: &str) -> Problem {
    Problem::new(Kind::NotFound, format!("response `{id}` is not kept here, or not any more"))
}

/// One response in the making.
struct Reply {
    head: Value,
    items: Items,
    /// Where it is kept, and the items that led to it.
    keep: Option<(Arc<App>, Vec<Value>)>,
}

impl Reply {
    async fn whole(mut self, mut answers: Answers) -> Result<Response> {
        while let Some(step) = answers.next().await {
            match step {
                Step::Prefill { .. } => {}
                Step::Pieces(_, pieces, _) => {
                    for piece in pieces {
                        self.items.push(piece);
                    }
                }
                Step::End(_, end) => {
                    self.items.close(is_cut(&end));
                    let (_, response) = self.finished(&end);
                    return Ok(json_response(StatusCode::OK, &response));
                }
                Step::Failed(problem) => return Err(problem),
            }
        }
        Err(Problem::internal("the answer has no end"))
    }

    async fn stream(mut self, mut answers: Answers, sink: Sink) {
        let mut out = Events { sink, number: 0 };
        for kind in ["response.created", "response.in_progress"] {
            out.send(json!({"type": kind, "response": self.head})).await;
        }
        while let Some(step) = answers.next().await {
            match step {
                Step::Prefill { done, total } => out.sink.write(super::wire::prefill_beat(done, total)).await,
                Step::Pieces(_, pieces, _) => {
                    for piece in pieces {
                        out.send_all(self.items.push(piece)).await;
                    }
                }
                Step::End(_, end) => {
                    out.send_all(self.items.close(is_cut(&end))).await;
                    let (kind, response) = self.finished(&end);
                    out.send(json!({"type": kind, "response": response})).await;
                }
                Step::Failed(problem) => {
                    self.head["status"] = json!("failed");
                    let code = problem.code.unwrap_or("server_error");
                    let message = problem.message(Dialect::OpenAi);
                    self.head["error"] = json!({"code": code, "message": message});
                    out.send(json!({"type": "response.failed", "response": self.head})).await;
                    return;
                }
            }
        }
    }

    /// The last event's name and the whole response, which is kept if that was asked for.
    fn finished(&mut self, end: &End) -> (&'static str, Value) {
        let mut response = self.head.clone();
        let kind = match is_cut(end) {
            true => {
                response["status"] = json!("incomplete");
                response["incomplete_details"] = json!({"reason": "max_output_tokens"});
                "response.incomplete"
            }
            false => {
                response["status"] = json!("completed");
                "response.completed"
            }
        };
        response["output"] = json!(self.items.done);
        response["usage"] = usage(&end.usage);
        if let Some((app, input)) = self.keep.take() {
            app.responses.keep(input, response.clone());
        }
        (kind, response)
    }
}

fn is_cut(end: &End) -> bool {
    end.reason == Reason::Length
}

fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt, "output_tokens": usage.generated,
        "total_tokens": usage.prompt + usage.generated,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
    })
}

/// Numbers the events as they go out.
struct Events {
    sink: Sink,
    number: usize,
}

impl Events {
    async fn send(&mut self, mut event: Value) {
        let name = event["type"].as_str().unwrap_or_default().to_owned();
        event["sequence_number"] = json!(self.number);
        self.number += 1;
        self.sink.event(&name, &event).await;
    }

    async fn send_all(&mut self, events: Vec<Value>) {
        for event in events {
            self.send(event).await;
        }
    }
}
