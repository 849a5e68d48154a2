//! Models on the Hugging Face hub, through its own cache layout. A complete snapshot is used without asking
//! the network.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use serde_json::Value;

use super::{HubError, HubSettings, ModelFiles, Progress, Result};

/// `org/name`, perhaps with `@revision`.
pub(super) struct Id {
    repo: String,
    revision: Option<String>,
}

impl Id {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (repo, revision) = match name.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision.to_owned())),
            None => (name, None),
        };
        let part = |s: &str| {
            let ok = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !s.is_empty() && !s.starts_with('.') && s.chars().all(ok)
        };
        let (org, model) = repo.split_once('/')?;
        let valid = part(org) && part(model) && revision.as_deref() != Some("");
        valid.then(|| Self { repo: repo.to_owned(), revision })
    }

    fn repo(&self) -> Repo {
        let revision = self.revision.clone().unwrap_or_else(|| "main".into());
        Repo::with_revision(self.repo.clone(), RepoType::Model, revision)
    }
}

pub(super) fn fetch(
    id: &Id,
    settings: &HubSettings,
    progress: &mut dyn FnMut(Progress),
) -> Result<ModelFiles> {
    let cache = Cache::new(settings.hf_cache.clone());
    let cached = complete(&cache.repo(id.repo()));
    if let Some(files) = cached {
        return Ok(files);
    }
    if settings.offline {
        return Err(HubError::Offline { id: id.repo.clone(), why: "HF_HUB_OFFLINE is set".into() });
    }
    download(id, settings, progress)
}

/// The snapshot in the cache, if no file of it is missing.
fn complete(repo: &CacheRepo) -> Option<ModelFiles> {
    let config = repo.get("config.json")?;
    let folder = config.parent()?;
    let has = |name: &str| folder.join(name).exists();
    let tokenizer = has("tokenizer.json") || has("tokenizer.model");
    let weights = match shards(folder) {
        Some(shards) => shards.iter().all(|shard| has(shard)),
        None => has("model.safetensors"),
    };
    (tokenizer && weights).then(|| ModelFiles::Folder(folder.into()))
}

/// Files that the index names.
fn shards(folder: &Path) -> Option<BTreeSet<String>> {
    let index = fs::read(folder.join("model.safetensors.index.json")).ok()?;
    let index: Value = serde_json::from_slice(&index).ok()?;
    let files = index.get("weight_map")?.as_object()?.values();
    files.map(|file| file.as_str().map(str::to_owned)).collect()
}

fn download(id: &Id, settings: &HubSettings, progress: &mut dyn FnMut(Progress)) -> Result<ModelFiles> {
    let failed = |err: ApiError| explained(&id.repo, &err);
    let mut builder = ApiBuilder::new()
        .with_cache_dir(settings.hf_cache.clone())
        .with_token(settings.hf_token.clone())
        .with_retries(3)
        .with_progress(false);
    if let Some(endpoint) = &settings.hf_endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    let repo = builder.build().map_err(failed)?.repo(id.repo());
    let listed = repo.info().map_err(failed)?.siblings;
    let names: Vec<String> = listed.into_iter().map(|file| file.rfilename).collect();
    let has = |name: &str| names.iter().any(|n| n == name);
    if !has("config.json") {
        return only_gguf(id, &repo, &names, progress);
    }
    let mut folder = PathBuf::new();
    for name in names.iter().filter(|name| is_needed(name)) {
        let path = get(&repo, name, progress).map_err(failed)?;
        folder = path.parent().map(Path::to_owned).unwrap_or_default();
    }
    let weights: Vec<String> = match shards(&folder) {
        Some(shards) => shards.into_iter().collect(),
        None => {
            let model = |name: &&String| name.starts_with("model") && name.ends_with(".safetensors");
            names.iter().filter(model).cloned().collect()
        }
    };
    if weights.is_empty() {
        return Err(HubError::Incomplete { id: id.repo.clone(), what: "safetensors weights" });
    }
    for name in &weights {
        get(&repo, name, progress).map_err(failed)?;
    }
    Ok(ModelFiles::Folder(folder))
}

/// Configuration, tokenizer and templates; weights are chosen by the index.
fn is_needed(name: &str) -> bool {
    let kinds = [".json", ".jinja", ".txt", ".model", ".tiktoken"];
    !name.contains('/') && kinds.iter().any(|kind| name.ends_with(kind))
}

fn only_gguf(
    id: &Id,
    repo: &ApiRepo,
    names: &[String],
    progress: &mut dyn FnMut(Progress),
) -> Result<ModelFiles> {
    let ggufs: Vec<&String> = names.iter().filter(|name| name.ends_with(".gguf")).collect();
    // Of several, the one that most people take.
    let usual = ["Q4_K_M", "Q4_0", "Q8_0"];
    let chosen =
        usual.iter().find_map(|kind| ggufs.iter().find(|name| name.contains(kind))).or(ggufs.first());
    let name = chosen.ok_or(HubError::Incomplete { id: id.repo.clone(), what: "config.json" })?;
    get(repo, name, progress).map(ModelFiles::Gguf).map_err(|err| explained(&id.repo, &err))
}

fn get(
    repo: &ApiRepo,
    name: &str,
    progress: &mut dyn FnMut(Progress),
) -> std::result::Result<PathBuf, ApiError> {
    /// Reports the bytes of one file.
    struct Report<'a> {
        sink: &'a mut dyn FnMut(Progress),
        state: Progress,
    }
    impl hf_hub::api::Progress for Report<'_> {
        fn init(&mut self, size: usize, filename: &str) {
            self.state = Progress { file: filename.to_owned(), done: 0, total: Some(size as u64) };
        }
        fn update(&mut self, size: usize) {
            self.state.done += size as u64;
            (self.sink)(self.state.clone());
        }
        fn finish(&mut self) {}
    }
    let state = Progress { file: name.to_owned(), done: 0, total: None };
    repo.download_with_progress(name, Report { sink: progress, state })
}

fn explained(id: &str, err: &ApiError) -> HubError {
    let inner = match err {
        ApiError::TooManyRetries(inner) => inner,
        other => other,
    };
    let status = match inner {
        ApiError::RequestError(err) => match **err {
            ureq::Error::StatusCode(code) => Some(code),
            _ => None,
        },
        _ => None,
    };
    let id = id.to_owned();
    match status {
        Some(401 | 404) => HubError::NotFound { id },
        Some(403) => HubError::Gated { id },
        Some(code) => HubError::Offline { id, why: format!("the hub answered with status {code}") },
        None => HubError::Offline { id, why: inner.to_string() },
    }
}
