//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::wire::{self, Head, Streaming};
use super::{Tools, messages};
use crate::app::App;
use crate::body::JsonBody;
use crate::chat::{self, Conversation};
use crate::error::{Dialect, Problem, Result, json_response};
use crate::fields::Fields;
use crate::grammar;
use crate::guard::Call;
use crate::output::{Output, Piece};
use crate::params;
use crate::session::{Answers, End, Gathered, Logprob, Plan, Step};
use crate::stream::{self, Shape, Sink};

pub async fn chat(State(app): State<Arc<App>>, call: Call, body: JsonBody) -> Result<Response> {
    let fields = body.fields();
    let head = Head::new("chatcmpl-", app.resolve(fields.text("model")?)?);
    let streaming = Streaming::read(&fields)?;
    let tools = Tools::read(&fields)?;
    let mut plan = plan(&app, &fields, &tools)?;
    let rendered = chat::render(&app, conversation(&fields, &plan.output.tools)?).await?;
    plan.output.prompt = rendered.text;
    plan.prompts = vec![rendered.tokens];
    plan.constraint = grammar::compile(&app, tools.forced(grammar::of_chat(&fields)?), &plan.output).await?;
    let n = plan.n;
    let answers = Answers::start(&app, &call, plan).await?;
    if !streaming.on {
        return whole(&head, answers, n).await;
    }
    let writer = Writer::new(head, streaming, answers.n_choices(), n);
    let shape = Shape::sse(app.settings.keep_alive, ": keepalive\n\n");
    Ok(stream::respond(shape, |sink| writer.run(answers, sink)))
}

fn plan(app: &App, fields: &Fields<'_>, tools: &Tools) -> Result<Plan> {
    let top = fields.integer("top_logprobs", -1..=20)?.filter(|top| 0 <= *top);
    let wanted = fields.boolean("logprobs")?.unwrap_or(false) || 0 < top.unwrap_or(0);
    Ok(Plan {
        logprobs: wanted.then_some(top.unwrap_or(0) as usize),
        output: Output { tools: tools.offered(), ..Output::default() },
        one_call: fields.boolean("parallel_tool_calls")? == Some(false),
        ..params::read(app, fields, 1)?
    })
}

fn conversation(fields: &Fields<'_>, tools: &[Value]) -> Result<Conversation> {
    let continues = fields.boolean("continue_final_message")?.unwrap_or(false);
    let prompts = fields.boolean("add_generation_prompt")?;
    if continues && prompts == Some(true) {
        let message = "`add_generation_prompt` and `continue_final_message` exclude each other";
        return Err(Problem::field("continue_final_message", message));
    }
    Ok(Conversation {
        messages: messages::read(fields)?,
        tools: tools.to_vec(),
        documents: fields.array("documents")?.map(<[Value]>::to_vec),
        kwargs: chat::template_kwargs(fields)?,
        add_generation_prompt: prompts.unwrap_or(!continues),
        continue_final_message: continues,
    })
}

/// The prompt of a chat request, for those who only want to see it.
pub fn prompt_of(fields: &Fields<'_>) -> Result<Conversation> {
    conversation(fields, &Tools::read(fields)?.offered())
}

async fn whole(head: &Head, answers: Answers, n: usize) -> Result<Response> {
    let answers = answers.gather().await?;
    let ends: Vec<End> = answers.iter().filter_map(|answer| answer.end.clone()).collect();
    let choice = |(i, answer): (usize, &Gathered)| {
        let reason = answer.end.as_ref().map(|end| end.reason.word());
        let logprobs = (!answer.logprobs.is_empty()).then(|| wire::chat_logprobs(&answer.logprobs));
        json!({"index": i, "message": wire::message(answer), "logprobs": logprobs, "finish_reason": reason})
    };
    let mut body = head.object("chat.completion", answers.iter().enumerate().map(choice).collect());
    body["usage"] = wire::usage(&ends, n);
    body["timings"] = wire::timings(&ends);
    Ok(json_response(StatusCode::OK, &body))
}

/// Writes an answer's chunks.
struct Writer {
    head: Head,
    streaming: Streaming,
    n: usize,
    /// Choices whose first chunk, the one with the role, is out.
    begun: Vec<bool>,
    ends: Vec<Option<End>>,
}

impl Writer {
    fn new(head: Head, streaming: Streaming, choices: usize, n: usize) -> Self {
        Self { head, streaming, n, begun: vec![false; choices], ends: vec![None; choices] }
    }

    async fn run(mut self, mut answers: Answers, sink: Sink) {
        while let Some(step) = answers.next().await {
            match step {
                Step::Prefill { done, total, .. } => sink.write(wire::prefill_beat(done, total)).await,
                Step::Pieces(i, pieces, logprobs) => self.pieces(&sink, i, pieces, &logprobs).await,
                Step::End(i, end) => {
                    self.begin(&sink, i).await;
                    self.chunk(&sink, i, json!({}), Value::Null, Some(end.reason.word())).await;
                    self.ends[i] = Some(end);
                }
                Step::Failed(problem) => return sink.data(&problem.body(Dialect::OpenAi)).await,
            }
        }
        if self.streaming.usage {
            let ends: Vec<End> = self.ends.into_iter().flatten().collect();
            let mut last = self.head.object("chat.completion.chunk", json!([]));
            last["usage"] = wire::usage(&ends, self.n);
            last["timings"] = wire::timings(&ends);
            sink.data(&last).await;
        }
        sink.write("data: [DONE]\n\n".into()).await;
    }

    async fn begin(&mut self, sink: &Sink, i: usize) {
        if !std::mem::replace(&mut self.begun[i], true) {
            self.chunk(sink, i, json!({"role": "assistant", "content": ""}), Value::Null, None).await;
        }
    }

    async fn pieces(&mut self, sink: &Sink, i: usize, pieces: Vec<Piece>, logprobs: &[Logprob]) {
        self.begin(sink, i).await;
        let mut logprobs = if logprobs.is_empty() { Value::Null } else { wire::chat_logprobs(logprobs) };
        for piece in pieces {
            let beside = if matches!(piece, Piece::Content(_)) { logprobs.take() } else { Value::Null };
            if let Some(delta) = delta(piece) {
                self.chunk(sink, i, delta, beside, None).await;
            }
        }
    }

    async fn chunk(&self, sink: &Sink, i: usize, delta: Value, logprobs: Value, finish: Option<&str>) {
        let choice = json!({"index": i, "delta": delta, "logprobs": logprobs, "finish_reason": finish});
        let mut chunk = self.head.object("chat.completion.chunk", json!([choice]));
        if self.streaming.usage {
            chunk["usage"] = Value::Null;
        }
        sink.data(&chunk).await;
    }
}

fn delta(piece: Piece) -> Option<Value> {
    Some(match piece {
        Piece::Content(text) => json!({"content": text}),
        Piece::Reasoning(text) => json!({"reasoning_content": text, "reasoning": text}),
        Piece::ToolStart { index, id, name } => {
            let function = json!({"name": name, "arguments": ""});
            json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
        }
        Piece::ToolArguments { index, fragment } => {
            json!({"tool_calls": [{"index": index, "function": {"arguments": fragment}}]})
        }
        Piece::ToolEnd { .. } => return None,
    })
}
