//! The routes, and what all of them share.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::http::Method;
use axum::middleware;
use engine::text::{ChatTemplates, Tokenizer};
use engine::thread::EngineHandle;
use engine::{Loaded, ModelInfo};

use crate::error::{Kind, Problem};
use crate::grammar::Grammars;
use crate::metrics::Metrics;
use crate::settings::Settings;
use crate::{admin, anthropic, guard, ollama, openai};

/// The model that is served.
pub struct Model {
    pub name: String,
    pub engine: EngineHandle,
    pub tokenizer: Arc<Tokenizer>,
    pub templates: Arc<ChatTemplates>,
    pub info: ModelInfo,
    /// Bytes on disk.
    pub size: u64,
}

impl Model {
    pub fn new(name: &str, loaded: Loaded, size: u64) -> Self {
        let Loaded { engine, tokenizer, templates, info } = loaded;
        Self { name: name.to_owned(), engine, tokenizer, templates, info, size }
    }
}

pub struct App {
    pub model: Model,
    pub settings: Settings,
    pub metrics: Metrics,
    pub grammars: Grammars,
    pub responses: openai::responses::Store,
    /// In seconds since 1970.
    pub started: u64,
    pub up: Instant,
}

impl App {
    pub fn new(model: Model, settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            model,
            settings,
            metrics: Metrics::default(),
            grammars: Grammars::default(),
            responses: openai::responses::Store::default(),
            started: crate::ids::unix_time(),
            up: Instant::now(),
        })
    }

    /// Whether a request may name the model so; gives the name to answer with.
    pub fn resolve(&self, asked: Option<&str>) -> Result<String, Problem> {
        let Some(asked) = asked.filter(|name| !name.is_empty()) else { return Ok(self.model.name.clone()) };
        if !self.settings.strict_models || self.is_ours(asked) {
            return Ok(asked.to_owned());
        }
        Err(Problem::no_model(asked))
    }

    /// Whether this is one of the model's names.
    pub fn is_ours(&self, name: &str) -> bool {
        let name = name.strip_suffix(":latest").unwrap_or(name);
        name == "default_model" || name == self.model.name || self.settings.aliases.iter().any(|a| a == name)
    }
}

/// The whole service.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .merge(admin::routes())
        .merge(openai::routes())
        .merge(anthropic::routes())
        .merge(ollama::routes())
        .fallback(|method: Method, uri: axum::http::Uri| async move {
            Problem::new(Kind::NotFound, format!("no such path: {method} {}", uri.path()))
        })
        .method_not_allowed_fallback(|method: Method, uri: axum::http::Uri| async move {
            Problem::new(Kind::Method, format!("{} does not take {method}", uri.path()))
        })
        .layer(middleware::from_fn_with_state(app.clone(), guard::guard))
        .with_state(app)
}

/// A route by several paths.
pub(crate) fn at<S: Clone + Send + Sync + 'static>(
    paths: &[&str],
    method: &axum::routing::MethodRouter<S>,
) -> Router<S> {
    paths.iter().fold(Router::new(), |router, path| router.route(path, method.clone()))
}
