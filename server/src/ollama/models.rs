//! What Ollama's clients ask about models.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use crate::app::App;
use crate::body::JsonBody;
use crate::error::{Dialect, Problem, Result};
use crate::fields::Fields;
use crate::stream::{self, Shape};

/// Clients look at it to learn what a server can do.
const VERSION: &str = "0.13.0";

pub async fn version() -> Json<Value> {
    Json(json!({"version": VERSION}))
}

pub async fn tags(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"models": [row(&app)]}))
}

pub async fn ps(State(app): State<Arc<App>>) -> Json<Value> {
    let mut model = row(&app);
    // It stays for as long as the server runs.
    model["expires_at"] = json!("9999-12-31T23:59:59Z");
    model["size_vram"] = json!(app.model.size);
    model["context_length"] = json!(app.model.info.context_length);
    Json(json!({"models": [model]}))
}

pub async fn show(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>> {
    let fields = body.fields();
    app.resolve(fields.text("model")?.or(fields.text("name")?))?;
    let info = &app.model.info;
    let arch = &info.model_type;
    let mut about = json!({"general.architecture": arch, "general.basename": app.model.name});
    about[format!("{arch}.context_length")] = json!(info.context_length);
    about[format!("{arch}.vocab_size")] = json!(info.vocab_size);
    let defaults = &app.settings.defaults;
    Ok(Json(json!({
        "modelfile": format!("FROM {}\n", app.model.name),
        "parameters": format!("temperature {}\ntop_p {}\ntop_k {}", defaults.temperature, defaults.top_p, defaults.top_k),
        "template": "", "details": details(&app), "model_info": about,
        "capabilities": capabilities(&app), "modified_at": time(&app),
    })))
}

/// The model that is there is pulled at once; no other can be.
pub async fn pull(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    let fields = body.fields();
    let found = named(&app, &fields);
    let streams = fields.boolean("stream")?.unwrap_or(true);
    let lines = match found {
        Ok(()) => vec![json!({"status": "pulling manifest"}), json!({"status": "success"})],
        Err(problem) if streams => vec![problem.body(Dialect::Ollama)],
        Err(problem) => return Err(problem),
    };
    let lines = if streams { lines } else { lines.into_iter().rev().take(1).collect() };
    let shape = Shape::lines(app.settings.keep_alive, &json!({"status": "pulling"}));
    Ok(stream::respond(shape, |sink| async move {
        for line in lines {
            sink.line(&line).await;
        }
    }))
}

fn named(app: &App, fields: &Fields<'_>) -> Result<()> {
    let name = fields.text("model")?.or(fields.text("name")?);
    let name = name.ok_or_else(|| Problem::field("model", "`model` is missing"))?;
    if app.is_ours(name) { Ok(()) } else { Err(Problem::no_model(name)) }
}

fn row(app: &App) -> Value {
    json!({
        "name": app.model.name, "model": app.model.name, "modified_at": time(app), "size": app.model.size,
        "digest": digest(&app.model.name), "details": details(app), "capabilities": capabilities(app),
    })
}

/// Clients only compare it.
fn digest(name: &str) -> String {
    let hash =
        name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}").repeat(4)
}

fn details(app: &App) -> Value {
    let family = &app.model.info.model_type;
    json!({
        "parent_model": "", "format": "mlx", "family": family, "families": [family],
        "parameter_size": "", "quantization_level": "",
    })
}

fn capabilities(app: &App) -> Vec<&'static str> {
    let mut all = vec!["completion"];
    if app.model.templates.exist() {
        all.push("tools");
    }
    all
}

fn time(app: &App) -> Value {
    chrono::DateTime::from_timestamp(app.started as i64, 0)
        .map_or(Value::Null, |time| json!(time.to_rfc3339()))
}
