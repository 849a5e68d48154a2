//! OpenAI's surface, with what mlx-lm and llama.cpp add to it.

mod chat;
mod completions;
mod messages;
mod models;
pub mod responses;
mod tools;
mod wire;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::app::{App, at};
use crate::body::JsonBody;
use crate::error::{Kind, Problem};

pub use chat::prompt_of;
pub use completions::ids as token_ids;
pub use messages::{MessageParts, join_parts, read as read_messages};
pub use tools::{Choice, Tools};
pub use wire::chat_logprobs;

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .merge(at(&["/v1/chat/completions", "/chat/completions"], &post(chat::chat)))
        .merge(at(&["/v1/completions", "/completions"], &post(completions::completions)))
        .merge(at(&["/v1/models", "/models"], &get(models::list)))
        // A model's name may hold slashes.
        .merge(at(&["/v1/models/{*name}", "/models/{*name}"], &get(models::one)))
        .merge(at(&["/v1/embeddings", "/embeddings"], &post(embeddings)))
        .merge(responses::routes())
}

async fn embeddings(_: JsonBody) -> Problem {
    Problem::new(Kind::Unsupported, "this server's model gives text, not embeddings; use an embedding server")
}
