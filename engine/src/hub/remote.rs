//! Models on the Hugging Face hub, through its own cache layout. A complete snapshot is used without asking
//! the network.

mod failure;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Repo, RepoType};
use serde_json::Value;

use self::failure::explained;
use super::{HubError, HubSettings, ModelFiles, Progress, Result, parts_of};

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

    /// The folder of this revision in the cache, if one was ever fetched.
    fn snapshot(&self, settings: &HubSettings) -> Option<PathBuf> {
        let repo = self.repo();
        let folder = settings.hf_cache.join(repo.folder_name());
        let named = fs::read_to_string(folder.join("refs").join(repo.revision()));
        // A commit names itself.
        let commit = named.unwrap_or_else(|_| repo.revision().to_owned());
        Some(folder.join("snapshots").join(commit.trim())).filter(|snapshot| snapshot.is_dir())
    }
}

pub(super) fn fetch(
    id: &Id,
    settings: &HubSettings,
    progress: &mut dyn FnMut(Progress),
) -> Result<ModelFiles> {
    let cached = id.snapshot(settings).and_then(|snapshot| complete(&snapshot));
    if let Some(files) = cached {
        return Ok(files);
    }
    if settings.offline {
        return Err(HubError::Offline { id: id.repo.clone(), why: "HF_HUB_OFFLINE is set".into() });
    }
    Download::begin(id, settings, progress)?.run()
}

/// The model in a snapshot, if no file of it is missing.
fn complete(snapshot: &Path) -> Option<ModelFiles> {
    let has = |name: &str| snapshot.join(name).exists();
    if !has("config.json") {
        let files =
            fs::read_dir(snapshot).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let parts = usual_gguf(&files.collect::<Vec<_>>())?;
        return parts.first().map(|first| ModelFiles::Gguf(snapshot.join(first)));
    }
    let tokenizer = has("tokenizer.json") || has("tokenizer.model");
    let weights = match shards(snapshot) {
        Some(shards) => shards.iter().all(|shard| has(shard)),
        None => has("model.safetensors"),
    };
    (tokenizer && weights).then(|| ModelFiles::Folder(snapshot.into()))
}

/// Files that the index names.
fn shards(folder: &Path) -> Option<BTreeSet<String>> {
    let index = fs::read(folder.join("model.safetensors.index.json")).ok()?;
    let index: Value = serde_json::from_slice(&index).ok()?;
    let files = index.get("weight_map")?.as_object()?.values();
    files.map(|file| file.as_str().map(str::to_owned)).collect()
}

/// Of several GGUF models, the one that most people take: all its parts, in order, if none is missing.
fn usual_gguf(names: &[String]) -> Option<Vec<String>> {
    let mut ggufs: Vec<&String> = names.iter().filter(|name| name.ends_with(".gguf")).collect();
    ggufs.sort();
    let of_kind = |kind: &str| ggufs.iter().find(|name| name.contains(kind));
    let chosen = ["Q4_K_M", "Q4_0", "Q8_0"].into_iter().find_map(of_kind).or(ggufs.first())?;
    let (base, count) = parts_of(Path::new(chosen));
    let parts: Vec<String> =
        ggufs.iter().filter(|name| parts_of(Path::new(name)).0 == base).map(|name| (*name).clone()).collect();
    (parts.len() == count).then_some(parts)
}

/// Configuration, tokenizer and templates; weights are chosen by the index.
fn is_needed(name: &str) -> bool {
    let kinds = [".json", ".jinja", ".txt", ".model", ".tiktoken"];
    !name.contains('/') && kinds.iter().any(|kind| name.ends_with(kind))
}

/// One model on its way into the cache.
struct Download<'a> {
    id: &'a Id,
    settings: &'a HubSettings,
    progress: &'a mut dyn FnMut(Progress),
    api: Api,
    repo: ApiRepo,
    /// All files of the repository.
    names: Vec<String>,
    snapshot: PathBuf,
}

impl<'a> Download<'a> {
    fn begin(id: &'a Id, settings: &'a HubSettings, progress: &'a mut dyn FnMut(Progress)) -> Result<Self> {
        let mut builder = ApiBuilder::new()
            .with_cache_dir(settings.hf_cache.clone())
            .with_token(settings.hf_token.clone())
            .with_retries(3)
            .with_progress(false);
        if let Some(endpoint) = &settings.hf_endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        let failed = |err: ApiError| explained(id, settings, err);
        let api = builder.build().map_err(failed)?;
        let repo = api.repo(id.repo());
        let info = repo.info().map_err(failed)?;
        let snapshot = settings.hf_cache.join(id.repo().folder_name()).join("snapshots").join(&info.sha);
        let names = info.siblings.into_iter().map(|file| file.rfilename).collect();
        Ok(Self { id, settings, progress, api, repo, names, snapshot })
    }

    fn run(mut self) -> Result<ModelFiles> {
        if !self.names.iter().any(|name| name == "config.json") {
            let parts = usual_gguf(&self.names).ok_or_else(|| self.lacks("config.json"))?;
            let files: Vec<PathBuf> = parts.iter().map(|name| self.get(name)).collect::<Result<_>>()?;
            return files.into_iter().next().map(ModelFiles::Gguf).ok_or_else(|| self.lacks("config.json"));
        }
        let needed: Vec<String> = self.names.iter().filter(|name| is_needed(name)).cloned().collect();
        let mut folder = PathBuf::new();
        for name in &needed {
            folder = self.get(name)?.parent().map(Path::to_owned).unwrap_or_default();
        }
        let is_model = |name: &&String| name.starts_with("model") && name.ends_with(".safetensors");
        let weights: Vec<String> = match shards(&folder) {
            Some(shards) => shards.into_iter().collect(),
            None => self.names.iter().filter(is_model).cloned().collect(),
        };
        if weights.is_empty() {
            return Err(self.lacks("safetensors weights"));
        }
        for name in &weights {
            if !self.names.contains(name) {
                return Err(self.lacks(&format!("file {name}, which its index names")));
            }
            self.get(name)?;
        }
        Ok(ModelFiles::Folder(folder))
    }

    fn lacks(&self, what: &str) -> HubError {
        HubError::Incomplete { id: self.id.repo.clone(), what: what.to_owned() }
    }

    /// The path of a file in the snapshot; what came of it before is not fetched again.
    fn get(&mut self, name: &str) -> Result<PathBuf> {
        let there = self.snapshot.join(name);
        if there.exists() {
            return Ok(there);
        }
        self.download(name).map_err(|err| explained(self.id, self.settings, err))
    }

    fn download(&mut self, name: &str) -> std::result::Result<PathBuf, ApiError> {
        let meta = self.api.metadata(&self.repo.url(name))?;
        let blob = self.settings.hf_cache.join(self.id.repo().folder_name()).join("blobs").join(meta.etag());
        let part = blob.with_extension("part");
        let size = meta.size() as u64;
        if fs::metadata(&part).is_ok_and(|part| part.len() > size) {
            fs::remove_file(&part)?;
        }
        let state = Progress { file: name.to_owned(), done: 0, total: Some(size) };
        let path = self.repo.download_with_progress(name, Report { sink: self.progress, state })?;
        let got = fs::metadata(&path)?.len();
        if got == size {
            return Ok(path);
        }
        // A server that doesn't resume sends the whole file after the part that was there.
        fs::remove_file(&path)?;
        fs::remove_file(&blob).ok();
        Err(ApiError::InvalidResume)
    }
}

/// Reports the bytes of one file.
struct Report<'a> {
    sink: &'a mut dyn FnMut(Progress),
    state: Progress,
}

impl hf_hub::api::Progress for Report<'_> {
    fn init(&mut self, _: usize, _: &str) {
        self.state.done = 0;
    }

    fn update(&mut self, size: usize) {
        self.state.done += size as u64;
        (self.sink)(self.state.clone());
    }

    fn finish(&mut self) {}
}
