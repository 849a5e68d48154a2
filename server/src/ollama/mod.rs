//! Ollama's surface: lines of JSON, durations in nanoseconds.

mod generate;
mod models;

use std::sync::Arc;

use axum::Router;
use axum::routing::{delete, get, head, post};

use crate::app::App;
use crate::error::{Kind, Problem};

pub fn routes() -> Router<Arc<App>> {
    let absent = || async {
        Problem::new(Kind::Unsupported, "this server holds one model, which it was started with")
    };
    let vectors =
        || async { Problem::new(Kind::Unsupported, "this server's model gives text, not embeddings") };
    Router::new()
        .route("/api/hello", head(|| async {}).get(|| async {}))
        .route("/api/chat", post(generate::chat))
        .route("/api/generate", post(generate::generate))
        .route("/api/tags", get(models::tags))
        .route("/api/ps", get(models::ps))
        .route("/api/show", post(models::show))
        .route("/api/version", get(models::version))
        .route("/api/pull", post(models::pull))
        .route("/api/delete", delete(absent))
        .route("/api/copy", post(absent))
        .route("/api/create", post(absent))
        .route("/api/push", post(absent))
        .route("/api/embed", post(vectors))
        .route("/api/embeddings", post(vectors))
}
