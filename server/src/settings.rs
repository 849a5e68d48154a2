//! What the command line decides about the server.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Map, Value};

#[derive(Clone, Debug)]
pub struct Settings {
    /// Asked of every request but `/health` and pre-flights.
    pub api_key: Option<String>,
    /// `*` lets every page in.
    pub allowed_origins: Vec<String>,
    pub hosts: Hosts,
    /// Refuses names that are not this model's, instead of answering in its place.
    pub strict_models: bool,
    /// Further names that the model answers to.
    pub aliases: Vec<String>,
    /// For requests that leave them out.
    pub defaults: Defaults,
    /// The longest that a stream stays silent.
    pub keep_alive: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            api_key: None,
            allowed_origins: vec!["*".into()],
            hosts: Hosts::Any,
            strict_models: false,
            aliases: Vec::new(),
            defaults: Defaults::default(),
            keep_alive: Duration::from_secs(5),
        }
    }
}

/// Sampling where a request says nothing: flags over the model's generation_config.json over these.
#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: usize,
    pub min_p: f32,
    pub repetition_penalty: f32,
    /// `None` goes on to the end of the context.
    pub max_tokens: Option<usize>,
    /// Variables for the chat template.
    pub template_kwargs: Map<String, Value>,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            max_tokens: None,
            template_kwargs: Map::new(),
        }
    }
}

/// Which `Host` headers are answered. A page of any site can have its own name point to this machine; its
/// requests then carry that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosts {
    Any,
    /// Addresses, `localhost`, and these names.
    Local(Vec<String>),
}

impl Hosts {
    pub fn allow(&self, host: &str) -> bool {
        let Self::Local(names) = self else { return true };
        let name = match host.strip_prefix('[') {
            Some(v6) => v6.split(']').next().unwrap_or_default(),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        name.parse::<IpAddr>().is_ok()
            || name == "localhost"
            || name.ends_with(".localhost")
            || names.iter().any(|known| known.eq_ignore_ascii_case(&name))
    }
}
