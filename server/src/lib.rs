//! HTTP ⇄ engine: the wire formats of OpenAI, Anthropic and Ollama, and nothing else.

mod app;
mod serve;
mod settings;

mod body;
mod error;
mod fields;
mod guard;

mod admin;
mod anthropic;
mod ollama;
mod openai;

mod chat;
mod grammar;
mod output;
mod params;
mod session;
mod stream;

mod ids;
mod metrics;

#[cfg(test)]
mod tests;

pub use app::{App, Model, router};
pub use serve::serve;
pub use settings::{Defaults, Hosts, Settings};
