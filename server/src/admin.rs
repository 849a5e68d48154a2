//! What is asked about the server and its model, rather than of the model.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::app::{App, at};
use crate::body::JsonBody;
use crate::chat;
use crate::error::{Problem, Result, json_response};
use crate::openai;

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(|| async { "Ollama is running, or rather Forerun, which speaks its API" }))
        .merge(at(&["/health", "/v1/health"], &get(health)))
        .route("/ping", get(|| async { StatusCode::OK }))
        .route("/version", get(|| async { Json(json!({"version": env!("CARGO_PKG_VERSION")})) }))
        .route("/metrics", get(metrics))
        .route("/props", get(props))
        .merge(at(&["/tokenize", "/v1/tokenize"], &post(tokenize)))
        .merge(at(&["/detokenize", "/v1/detokenize"], &post(detokenize)))
        .merge(at(&["/apply-template", "/v1/apply-template"], &post(apply_template)))
        .route("/tokenizer_info", get(tokenizer_info))
}

/// A step may take long while a prompt is processed, but not this long.
const STALLED: Duration = Duration::from_secs(120);

async fn health(State(app): State<Arc<App>>) -> Response {
    let stats = app.model.engine.stats();
    let busy = 0 < stats.running + stats.waiting;
    let since = stats.last_step.map_or(app.up, |last| last).elapsed();
    let problem = match () {
        () if !app.model.engine.is_alive() => Some("the engine has ended; restart the server"),
        () if busy && STALLED < since => Some("the engine makes no progress"),
        () => None,
    };
    match problem {
        None => json_response(
            StatusCode::OK,
            &json!({"status": "ok", "running": stats.running, "waiting": stats.waiting, "steps": stats.steps}),
        ),
        Some(message) => json_response(
            StatusCode::SERVICE_UNAVAILABLE,
            &json!({
                "status": "unavailable",
                "error": {"code": 503, "message": message, "type": "unavailable_error"},
            }),
        ),
    }
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let mut response = app.metrics.text(&app.model.name, &app.model.engine.stats()).into_response();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

async fn props(State(app): State<Arc<App>>) -> Json<Value> {
    let info = &app.model.info;
    Json(json!({
        "model": app.model.name, "model_alias": app.model.name, "n_ctx": info.context_length,
        "default_generation_settings": {"n_ctx": info.context_length, "params": {
            "temperature": app.settings.defaults.temperature, "top_p": app.settings.defaults.top_p,
            "top_k": app.settings.defaults.top_k, "min_p": app.settings.defaults.min_p,
        }},
        "bos_token": app.model.tokenizer.bos(), "eos_token": app.model.tokenizer.eos(),
        "modalities": {"vision": false, "audio": false},
        "build_info": concat!("forerun ", env!("CARGO_PKG_VERSION")),
    }))
}

/// llama.cpp's `content`, or vLLM's `prompt` or `messages`.
async fn tokenize(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>> {
    let fields = body.fields();
    let text = match fields.text("content")? {
        Some(text) => Some((text, fields.boolean("add_special")?.unwrap_or(false))),
        None => fields.text("prompt")?.map(|text| (text, true)),
    };
    let add_special = fields.boolean("add_special_tokens")?;
    let tokens = match text {
        Some((text, default)) => chat::encode(&app, text.to_owned(), add_special.unwrap_or(default)).await?,
        None if fields.get("messages").is_some() => {
            chat::render(&app, openai::prompt_of(&fields)?).await?.tokens
        }
        None => return Err(Problem::field("content", "`content` is missing; it is the text to tokenize")),
    };
    let listed = match fields.boolean("with_pieces")?.unwrap_or(false) {
        false => json!(tokens),
        true => tokens.iter().map(|id| json!({"id": id, "piece": piece(&app, *id)})).collect(),
    };
    let max = app.model.info.context_length;
    Ok(Json(json!({"tokens": listed, "count": tokens.len(), "max_model_len": max})))
}

/// Text, or bytes where it is none.
fn piece(app: &App, id: u32) -> Value {
    let bytes = app.model.tokenizer.token_bytes(id);
    String::from_utf8(bytes).map_or_else(|err| json!(err.into_bytes()), Value::String)
}

async fn detokenize(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>> {
    let tokens = body.fields().array("tokens")?;
    let tokens = tokens.ok_or_else(|| Problem::field("tokens", "`tokens` is missing"))?;
    let tokens = openai::token_ids(&app, tokens, "tokens")?;
    let text = app.model.tokenizer.decode(&tokens, false);
    Ok(Json(json!({"content": text, "prompt": text})))
}

async fn apply_template(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>> {
    let rendered = chat::render(&app, openai::prompt_of(&body.fields())?).await?;
    Ok(Json(json!({"prompt": rendered.text})))
}

async fn tokenizer_info(State(app): State<Arc<App>>) -> Json<Value> {
    let tokenizer = &app.model.tokenizer;
    Json(json!({
        "bos_token": tokenizer.bos(), "eos_token": tokenizer.eos(), "pad_token": tokenizer.eos(),
        "vocab_size": tokenizer.vocab_size(), "model_max_length": app.model.info.context_length,
    }))
}
