//! The only place that reads the environment.

use std::env;
use std::path::PathBuf;

use engine::hub::HubSettings;

pub fn hub_settings() -> HubSettings {
    let hf_home = path("HF_HOME").unwrap_or_else(|| user_cache().join("huggingface"));
    let hf_cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
    let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| hf_home.join("token"));
    let token = text("HF_TOKEN").or_else(|| std::fs::read_to_string(token_file).ok());
    HubSettings {
        cache: cache(),
        hf_cache: hf_cache.unwrap_or_else(|| hf_home.join("hub")),
        hf_endpoint: text("HF_ENDPOINT").map(|url| url.trim_end_matches('/').to_owned()),
        hf_token: token.map(|t| t.trim().to_owned()).filter(|t| !t.is_empty()),
        offline: text("HF_HUB_OFFLINE")
            .is_some_and(|v| !matches!(v.to_lowercase().as_str(), "0" | "false" | "no" | "off")),
    }
}

/// `FORERUN_API_KEY`.
pub fn api_key() -> Option<String> {
    text("FORERUN_API_KEY")
}

/// Forerun's own cache, the one that the build uses too.
fn cache() -> PathBuf {
    if let Some(path) = path("FORERUN_CACHE_DIR") {
        return path;
    }
    match (path("XDG_CACHE_HOME"), cfg!(target_os = "macos")) {
        (Some(xdg), _) => xdg.join("forerun"),
        (None, true) => home().join("Library/Caches/forerun"),
        (None, false) => home().join(".cache/forerun"),
    }
}

/// Where the hub's own tools put their cache.
fn user_cache() -> PathBuf {
    path("XDG_CACHE_HOME").unwrap_or_else(|| home().join(".cache"))
}

fn home() -> PathBuf {
    env::home_dir().unwrap_or_else(env::temp_dir)
}

fn path(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

fn text(name: &str) -> Option<String> {
    env::var(name).ok().filter(|v| !v.is_empty())
}
