//! `GET /v1/models`, in a form that OpenAI's and Anthropic's clients both read.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::{Problem, Result};

pub async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let names = std::iter::once(&app.model.name).chain(&app.settings.aliases);
    let data: Vec<Value> = names.map(|name| row(&app, name)).collect();
    let (first, last) = (data.first(), data.last());
    let id = |row: Option<&Value>| row.map(|row| row["id"].clone());
    Json(json!({
        "object": "list", "first_id": id(first), "last_id": id(last), "has_more": false, "data": data,
    }))
}

pub async fn one(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Json<Value>> {
    match app.is_ours(&name) {
        true => Ok(Json(row(&app, &name))),
        false => Err(Problem::no_model(&name)),
    }
}

fn row(app: &App, name: &str) -> Value {
    let info = &app.model.info;
    let created_at = chrono::DateTime::from_timestamp(app.started as i64, 0).map(|time| time.to_rfc3339());
    let mut capabilities = vec!["streaming", "completion"];
    if app.model.templates.exist() {
        capabilities.push("chat");
    }
    json!({
        "id": name, "object": "model", "created": app.started, "owned_by": "forerun",
        "type": "model", "display_name": name, "created_at": created_at,
        "context_length": info.context_length, "max_model_len": info.context_length, "max_input_tokens": info.context_length,
        "loaded": true, "state": "ready", "bytes_on_disk": app.model.size,
        "capabilities": capabilities, "input_modalities": ["text"],
        "meta": {"architecture": info.model_type, "vocab_size": info.vocab_size, "context_length": info.context_length},
    })
}
