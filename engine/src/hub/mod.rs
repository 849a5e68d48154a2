//! A name → files. Folders and GGUF files are used as they are; Hugging Face ids share its cache; the
//! built-in model comes from a package.

mod package;
mod remote;

use std::path::{Path, PathBuf};

/// The model that is used where none is named.
pub const DEFAULT_MODEL: &str = "smollm2-135m";

/// Where things are, as the command line found it in the environment.
#[derive(Clone, Debug, Default)]
pub struct HubSettings {
    /// Forerun's own cache.
    pub cache: PathBuf,
    /// `HF_HUB_CACHE`, else `HF_HOME/hub`, else `~/.cache/huggingface/hub`.
    pub hf_cache: PathBuf,
    /// `HF_ENDPOINT`.
    pub hf_endpoint: Option<String>,
    /// `HF_TOKEN`, or what `huggingface-cli login` stored.
    pub hf_token: Option<String>,
    /// `HF_HUB_OFFLINE`.
    pub offline: bool,
}

/// The files of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelFiles {
    /// config.json, tokenizer.json, *.safetensors.
    Folder(PathBuf),
    /// Everything in one file.
    Gguf(PathBuf),
}

/// What a download is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub file: String,
    /// Bytes so far.
    pub done: u64,
    /// Bytes in all, where known.
    pub total: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("no model `{0}`: give a folder, a .gguf file, a Hugging Face id (org/name), or {DEFAULT_MODEL}")]
    Unknown(String),
    #[error("{}: no config.json and no .gguf file; is this a model's folder?", .0.display())]
    NotAModel(PathBuf),
    #[error("{}: {} .gguf files; name one of them", .folder.display(), .count)]
    SeveralGguf { folder: PathBuf, count: usize },
    #[error("`{id}` is not in the cache, and {why}; connect to the network and try again")]
    Offline { id: String, why: String },
    #[error("`{id}` does not exist on the hub: check its name")]
    NotFound { id: String },
    #[error(
        "the hub shows `{id}` to nobody without a login: check its name, and if it is gated or private, accept \
         its terms on its page and set HF_TOKEN"
    )]
    NeedsLogin { id: String },
    #[error("the hub refuses HF_TOKEN for `{id}`: make a new token in your account's settings")]
    BadToken { id: String },
    #[error("`{id}` is gated: accept its terms on the hub's page, and set HF_TOKEN")]
    Gated { id: String },
    #[error("the hub, asked for `{id}`, {why}; try again in a while")]
    Refused { id: String, why: String },
    #[error("`{id}` is being fetched by another program; wait for it (its lock is {})", path.display())]
    Busy { id: String, path: PathBuf },
    #[error("`{id}` has no {what}, so it can't be run")]
    Incomplete { id: String, what: String },
    #[error("{path}: {message}", path = path.display())]
    Io { path: PathBuf, message: String },
    #[error("{0}")]
    Package(String),
}

impl HubError {
    /// An error of the file system at or below `path`, with its mend.
    fn io(path: &Path, err: &std::io::Error) -> Self {
        use std::io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        let mend = match err.kind() {
            StorageFull | QuotaExceeded => {
                "; free space there, or use another folder (HF_HUB_CACHE, FORERUN_CACHE_DIR)"
            }
            PermissionDenied | ReadOnlyFilesystem => {
                "; make it writable, or use another folder (HF_HUB_CACHE, FORERUN_CACHE_DIR)"
            }
            _ => "",
        };
        Self::Io { path: path.into(), message: format!("{err}{mend}") }
    }
}

pub type Result<T> = std::result::Result<T, HubError>;

/// Finds the files of a model, downloading what is not there yet.
pub fn resolve(name: &str, settings: &HubSettings, progress: &mut dyn FnMut(Progress)) -> Result<ModelFiles> {
    let path = Path::new(name);
    if path.is_dir() {
        return folder(path);
    }
    if path.is_file() {
        return match path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) {
            true => Ok(ModelFiles::Gguf(path.into())),
            false => Err(HubError::Unknown(name.to_owned())),
        };
    }
    if name.eq_ignore_ascii_case(DEFAULT_MODEL) {
        return package::smollm2(settings, progress).map(ModelFiles::Gguf);
    }
    match remote::Id::parse(name) {
        Some(id) => remote::fetch(&id, settings, progress),
        None => Err(HubError::Unknown(name.to_owned())),
    }
}

fn folder(path: &Path) -> Result<ModelFiles> {
    if path.join("config.json").exists() {
        return Ok(ModelFiles::Folder(path.into()));
    }
    let io = |err: std::io::Error| HubError::io(path, &err);
    let mut ggufs = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        let file = entry.map_err(io)?.path();
        if file.extension().is_some_and(|e| e == "gguf") {
            ggufs.push(file);
        }
    }
    ggufs.sort();
    // The parts of a split model are one model.
    ggufs.dedup_by_key(|file| parts_of(file).0);
    match ggufs.as_slice() {
        [] => Err(HubError::NotAModel(path.into())),
        [one] => Ok(ModelFiles::Gguf(one.clone())),
        several => Err(HubError::SeveralGguf { folder: path.into(), count: several.len() }),
    }
}

/// `name` and 3 of `name-00002-of-00003.gguf`; of any other file its whole name and 1.
fn parts_of(path: &Path) -> (String, usize) {
    let stem = path.with_extension("").to_string_lossy().into_owned();
    let is_count = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
    let split = stem.rsplit_once("-of-").and_then(|(rest, n)| Some((rest.rsplit_once('-')?, n)));
    match split {
        Some(((base, i), n)) if is_count(i) && is_count(n) => (base.to_owned(), n.parse().unwrap_or(1)),
        _ => (stem, 1),
    }
}

#[cfg(test)]
mod tests;
