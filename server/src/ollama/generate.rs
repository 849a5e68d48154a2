//! `POST /api/chat` and `POST /api/generate`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::body::JsonBody;
use crate::chat::{self, Conversation, Rendered};
use crate::error::{Dialect, Problem, Result, json_response};
use crate::fields::{Fields, wrong};
use crate::grammar;
use crate::guard::Call;
use crate::openai::{self, Tools};
use crate::output::{Output, Piece};
use crate::params;
use crate::session::{Answers, End, Gathered, Plan, Step, ToolCall};
use crate::stream::{self, Shape, Sink};

pub async fn chat(State(app): State<Arc<App>>, call: Call, body: JsonBody) -> Result<Response> {
    let fields = body.fields();
    let writer = Writer::new(&app, &fields, Form::Chat)?;
    if fields.array("messages")?.unwrap_or_default().is_empty() {
        return Ok(writer.idle(&fields));
    }
    for (i, message) in fields.array("messages")?.unwrap_or_default().iter().enumerate() {
        no_images(message.get("images"), &format!("messages[{i}].images"))?;
    }
    let tools = Tools::read(&fields)?.offered();
    let conversation = Conversation {
        messages: openai::read_messages(&fields)?,
        tools: tools.clone(),
        kwargs: kwargs(&fields)?,
        ..Conversation::default()
    };
    let plan = plan(&app, &fields)?;
    let rendered = chat::render(&app, conversation).await?;
    let plan = Plan { output: Output { tools, ..plan.output }, ..plan };
    writer.run(&app, &call, ready(&app, &fields, plan, rendered).await?).await
}

pub async fn generate(State(app): State<Arc<App>>, call: Call, body: JsonBody) -> Result<Response> {
    let fields = body.fields();
    let writer = Writer::new(&app, &fields, Form::Generate)?;
    let prompt = fields.text("prompt")?.unwrap_or_default();
    if prompt.is_empty() {
        return Ok(writer.idle(&fields));
    }
    no_images(fields.get("images"), "images")?;
    for name in ["suffix", "template"] {
        if fields.text(name)?.is_some_and(|text| !text.is_empty()) {
            return Err(Problem::field(name, format!("`{name}` is not supported; leave it out")));
        }
    }
    let plan = plan(&app, &fields)?;
    let raw = fields.boolean("raw")?.unwrap_or(false) || !app.model.templates.exist();
    let mut rendered = match raw {
        true => {
            Rendered { text: prompt.to_owned(), tokens: chat::encode(&app, prompt.to_owned(), true).await? }
        }
        false => {
            let message = |role: &str, text: &str| json!({"role": role, "content": text});
            let system = fields.text("system")?.filter(|text| !text.is_empty());
            let mut messages: Vec<Value> = system.map(|text| message("system", text)).into_iter().collect();
            messages.push(message("user", prompt));
            let kwargs = kwargs(&fields)?;
            chat::render(&app, Conversation { messages, kwargs, ..Conversation::default() }).await?
        }
    };
    let context = openai::token_ids(&app, fields.array("context")?.unwrap_or_default(), "context")?;
    rendered.tokens.splice(0..0, context);
    writer.run(&app, &call, ready(&app, &fields, plan, rendered).await?).await
}

fn no_images(images: Option<&Value>, name: &str) -> Result<()> {
    match images.and_then(Value::as_array).is_none_or(Vec::is_empty) {
        true => Ok(()),
        false => {
            Err(Problem::field(name, format!("`{name}`: the model reads text, not images; leave them out")))
        }
    }
}

fn plan(app: &App, fields: &Fields<'_>) -> Result<Plan> {
    let none = Map::new();
    let options = fields.object("options")?.unwrap_or(&none);
    let options = Fields::root(options);
    let logprobs = fields.boolean("logprobs")?.unwrap_or(false);
    let limit = options.integer("num_predict", i64::MIN..=i64::MAX)?;
    Ok(Plan {
        n: 1,
        // Negative numbers go on to the end.
        max_tokens: match limit {
            Some(limit) => usize::try_from(limit).ok(),
            None => app.settings.defaults.max_tokens,
        },
        sampling: params::sampling(app, &options)?,
        seed: params::seed(&options, "seed")?,
        stop: options.strings("stop")?,
        logprobs: logprobs.then_some(fields.integer("top_logprobs", 0..=20)?.unwrap_or(0) as usize),
        ..Plan::default()
    })
}

/// The plan with its prompt, and with the grammar of the answer.
async fn ready(app: &Arc<App>, fields: &Fields<'_>, mut plan: Plan, rendered: Rendered) -> Result<Plan> {
    plan.output.prompt = rendered.text;
    plan.prompts = vec![rendered.tokens];
    plan.constraint = grammar::compile(app, shape(fields)?, &plan.output).await?;
    Ok(plan)
}

/// `"json"`, or a schema.
fn shape(fields: &Fields<'_>) -> Result<Option<grammar::Shape>> {
    match fields.get("format") {
        None => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" => Ok(Some(grammar::Shape::object("format"))),
        Some(schema @ Value::Object(_)) => Ok(Some(grammar::Shape::schema("format", schema.clone()))),
        Some(other) => Err(wrong("format", "\"json\" or a JSON schema", other)),
    }
}

fn kwargs(fields: &Fields<'_>) -> Result<Map<String, Value>> {
    let mut kwargs = Map::new();
    match fields.get("think") {
        None => {}
        Some(Value::Bool(think)) => {
            kwargs.insert("enable_thinking".into(), json!(think));
        }
        Some(Value::String(effort)) => chat::effort_kwargs(effort, &mut kwargs),
        Some(other) => return Err(wrong("think", "true, false or an effort", other)),
    }
    Ok(kwargs)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Chat,
    Generate,
}

struct Writer {
    form: Form,
    model: String,
    streams: bool,
    started: Instant,
}

impl Writer {
    fn new(app: &App, fields: &Fields<'_>, form: Form) -> Result<Self> {
        let model = app.resolve(fields.text("model")?)?;
        let streams = fields.boolean("stream")?.unwrap_or(true);
        Ok(Self { form, model, streams, started: Instant::now() })
    }

    /// An empty request loads the model, or lets it go.
    fn idle(&self, fields: &Fields<'_>) -> Response {
        let unload = fields.get("keep_alive").is_some_and(|keep| *keep == json!(0) || *keep == json!("0"));
        let mut line = self.line(&Gathered::default(), true);
        line["done_reason"] = json!(if unload { "unload" } else { "load" });
        json_response(StatusCode::OK, &line)
    }

    async fn run(self, app: &Arc<App>, call: &Call, plan: Plan) -> Result<Response> {
        let answers = Answers::start(app, call, plan).await?;
        if self.streams {
            let beat = self.line(&Gathered::default(), false);
            let shape = Shape::lines(app.settings.keep_alive, &beat);
            return Ok(stream::respond(shape, |sink| self.stream(answers, sink)));
        }
        let answer = answers.gather().await?.pop().unwrap_or_default();
        let mut line = self.line(&answer, true);
        if let Some(end) = &answer.end {
            self.ended(&mut line, end);
        }
        Ok(json_response(StatusCode::OK, &line))
    }

    async fn stream(self, mut answers: Answers, sink: Sink) {
        // Calls go out whole, when their arguments are.
        let mut calls = Gathered::default();
        while let Some(step) = answers.next().await {
            match step {
                Step::Prefill { .. } => {}
                Step::Pieces(_, pieces, logprobs) => {
                    let mut now = Gathered { logprobs, ..Gathered::default() };
                    for piece in pieces {
                        match piece {
                            Piece::ToolEnd { index } => now.calls.extend(calls.calls.get(index).cloned()),
                            Piece::Content(_) | Piece::Reasoning(_) => now.add(vec![piece]),
                            call => calls.add(vec![call]),
                        }
                    }
                    if !now.content.is_empty() || !now.reasoning.is_empty() || !now.calls.is_empty() {
                        sink.line(&self.line(&now, false)).await;
                    }
                }
                Step::End(_, end) => {
                    let mut line = self.line(&Gathered::default(), true);
                    self.ended(&mut line, &end);
                    sink.line(&line).await;
                }
                Step::Failed(problem) => return sink.line(&problem.body(Dialect::Ollama)).await,
            }
        }
    }

    fn line(&self, answer: &Gathered, done: bool) -> Value {
        let mut line = json!({"model": self.model, "created_at": chrono::Utc::now().to_rfc3339()});
        match self.form {
            Form::Chat => {
                let mut message = json!({"role": "assistant", "content": answer.content});
                if !answer.reasoning.is_empty() {
                    message["thinking"] = json!(answer.reasoning);
                }
                if !answer.calls.is_empty() {
                    message["tool_calls"] = calls(answer);
                }
                line["message"] = message;
            }
            Form::Generate => {
                line["response"] = json!(answer.content);
                if !answer.reasoning.is_empty() {
                    line["thinking"] = json!(answer.reasoning);
                }
            }
        }
        if !answer.logprobs.is_empty() {
            line["logprobs"] = openai::chat_logprobs(&answer.logprobs)["content"].take();
        }
        line["done"] = json!(done);
        line
    }

    fn ended(&self, line: &mut Value, end: &End) {
        line["done_reason"] = json!(if end.reason.word() == "length" { "length" } else { "stop" });
        line["total_duration"] = json!(self.started.elapsed().as_nanos() as u64);
        line["load_duration"] = json!(0);
        line["prompt_eval_count"] = json!(end.usage.prompt);
        line["prompt_eval_duration"] = json!(end.timings.prompt.as_nanos() as u64);
        line["eval_count"] = json!(end.usage.generated);
        line["eval_duration"] = json!(end.timings.generation.as_nanos() as u64);
    }
}

fn calls(answer: &Gathered) -> Value {
    let call = |(i, call): (usize, &ToolCall)| {
        let arguments = serde_json::from_str(&call.arguments).ok().filter(Value::is_object);
        let arguments = arguments.unwrap_or_else(|| json!({}));
        json!({"id": call.id, "function": {"index": i, "name": call.name, "arguments": arguments}})
    };
    answer.calls.iter().enumerate().map(call).collect()
}
