//! Anthropic's Messages surface.

mod blocks;
mod messages;
mod request;

#[cfg(test)]
pub use blocks::Blocks;
#[cfg(test)]
pub use request::conversation;

use std::sync::Arc;

use axum::Router;
use axum::routing::post;

use crate::app::App;

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count))
}
