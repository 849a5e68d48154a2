//! GGUF, versions 2 and 3: one file that holds weights, configuration and vocabulary.
//!
//! Everything that the file says of itself (counts, lengths, offsets) is checked against the file before
//! use, so that a truncated or hostile file is an error and never a panic or a huge allocation.
//! Format: `ggml/docs/gguf.md`.

mod affine;
mod architecture;
mod blocks;
mod convert;
mod model;
mod reader;

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

pub use affine::{Packed, is_narrow, pack, spec_of};
pub use architecture::SUPPORTED_ARCHITECTURES;
pub use blocks::{GgmlType, decode};
pub use model::{Fallback, GgufModel};
pub use reader::Value;

#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a GGUF file: {message}", path = path.display())]
    Format { path: PathBuf, message: String },
    #[error("{path}: the part {missing} of a model in {count} files is missing; download it beside the others", path = path.display(), missing = missing.display())]
    MissingPart { path: PathBuf, missing: PathBuf, count: usize },
    #[error("GGUF metadata has no `{0}`")]
    MissingKey(String),
    #[error("GGUF metadata `{key}` should be {want}")]
    WrongType { key: String, want: &'static str },
    #[error(
        "tensor `{name}` is stored as {kind}, which is not supported; convert the file to Q4_K_M, Q8_0 or F16"
    )]
    UnsupportedType { name: String, kind: String },
    #[error("GGUF architecture `{name}` is not supported; supported: {known}")]
    Architecture { name: String, known: String },
    #[error("tensor `{name}`: {message}")]
    Tensor { name: String, message: String },
}

pub type Result<T> = std::result::Result<T, GgufError>;

/// An open file, or all files of a split model as one.
pub struct Gguf {
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, TensorInfo>,
}

/// Where a tensor is and how it is stored.
#[derive(Clone)]
pub struct TensorInfo {
    /// Row-major: the last axis is contiguous.
    pub shape: Vec<usize>,
    pub kind: GgmlType,
    file: Arc<Mmap>,
    range: Range<usize>,
}

impl TensorInfo {
    pub fn bytes(&self) -> &[u8] {
        &self.file[self.range.clone()]
    }

    /// The memory that [`Self::bytes`] lies in.
    pub fn mapping(&self) -> (&Arc<Mmap>, Range<usize>) {
        (&self.file, self.range.clone())
    }

    /// Length of a row, the last axis.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}

impl Gguf {
    /// Opens a file; of a split model, any part opens all.
    pub fn open(path: &Path) -> Result<Self> {
        let (mut gguf, parts) = Self::open_one(path)?;
        for part in parts {
            if !part.exists() {
                let count = gguf.integer("split.count").unwrap_or(0) as usize;
                return Err(GgufError::MissingPart { path: path.into(), missing: part, count });
            }
            let (other, _) = Self::open_one(&part)?;
            gguf.tensors.extend(other.tensors);
            for (key, value) in other.metadata {
                gguf.metadata.entry(key).or_insert(value);
            }
        }
        Ok(gguf)
    }

    /// One file, and the paths of the other parts if it is one of several.
    fn open_one(path: &Path) -> Result<(Self, Vec<PathBuf>)> {
        let io = |source| GgufError::Io { path: path.into(), source };
        let file = File::open(path).map_err(io)?;
        let map = Arc::new(mlx_core::file::map(&file).map_err(io)?);
        let gguf = Self::parse(path, map)?;
        let others = gguf.other_parts(path);
        Ok((gguf, others))
    }

    fn parse(path: &Path, map: Arc<Mmap>) -> Result<Self> {
        let format = |message| GgufError::Format { path: path.into(), message };
        let header = reader::parse(&map).map_err(format)?;
        let mut tensors = BTreeMap::new();
        for t in header.tensors {
            let kind = GgmlType::from_id(t.kind).ok_or_else(|| GgufError::UnsupportedType {
                name: t.name.clone(),
                kind: format!("type {}", t.kind),
            })?;
            if t.shape.contains(&0) {
                return Err(format(format!("tensor `{}` of shape {:?} is empty", t.name, t.shape)));
            }
            let nbytes = kind.nbytes(&t.shape).ok_or_else(|| {
                format(format!(
                    "tensor `{}` of shape {:?} does not divide into {kind} blocks",
                    t.name, t.shape
                ))
            })?;
            let range = header
                .data_start
                .checked_add(t.offset)
                .and_then(|start| Some(start..start.checked_add(nbytes)?))
                .filter(|range| range.end <= map.len())
                .ok_or_else(|| format(format!("tensor `{}` lies past the end of the file", t.name)))?;
            let info = TensorInfo { shape: t.shape, kind, file: map.clone(), range };
            if tensors.insert(t.name.clone(), info).is_some() {
                return Err(format(format!("two tensors are named `{}`", t.name)));
            }
        }
        Ok(Self { metadata: header.metadata, tensors })
    }

    /// Names follow `base-00001-of-00003.gguf`.
    fn other_parts(&self, path: &Path) -> Vec<PathBuf> {
        let count = self.integer("split.count").unwrap_or(1).min(99_999) as usize;
        let number = self.integer("split.no").unwrap_or(0) as usize;
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let suffix = |i: usize| format!("-{:05}-of-{count:05}.gguf", i + 1);
        match name.strip_suffix(&suffix(number)) {
            Some(base) if 1 < count => (0..count)
                .filter(|i| *i != number)
                .map(|i| path.with_file_name(format!("{base}{}", suffix(i))))
                .collect(),
            _ => Vec::new(),
        }
    }

    pub fn metadata(&self) -> &BTreeMap<String, Value> {
        &self.metadata
    }

    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    fn get(&self, key: &str) -> Result<&Value> {
        self.metadata.get(key).ok_or_else(|| GgufError::MissingKey(key.to_owned()))
    }

    pub fn string(&self, key: &str) -> Result<&str> {
        match self.get(key)? {
            Value::String(s) => Ok(s),
            _ => Err(GgufError::WrongType { key: key.to_owned(), want: "a string" }),
        }
    }

    pub fn integer(&self, key: &str) -> Result<u64> {
        let wrong = || GgufError::WrongType { key: key.to_owned(), want: "a whole number" };
        self.get(key)?.as_u64().ok_or_else(wrong)
    }

    pub fn number(&self, key: &str) -> Result<f64> {
        let wrong = || GgufError::WrongType { key: key.to_owned(), want: "a number" };
        self.get(key)?.as_f64().ok_or_else(wrong)
    }

    pub fn boolean(&self, key: &str) -> Result<bool> {
        match self.get(key)? {
            Value::Bool(b) => Ok(*b),
            _ => Err(GgufError::WrongType { key: key.to_owned(), want: "true or false" }),
        }
    }

    pub fn strings(&self, key: &str) -> Result<&[String]> {
        match self.get(key)? {
            Value::Strings(list) => Ok(list),
            _ => Err(GgufError::WrongType { key: key.to_owned(), want: "a list of strings" }),
        }
    }

    pub fn integers(&self, key: &str) -> Result<Vec<i64>> {
        match self.get(key)? {
            Value::Integers(list) => Ok(list.clone()),
            _ => Err(GgufError::WrongType { key: key.to_owned(), want: "a list of whole numbers" }),
        }
    }

    pub fn numbers(&self, key: &str) -> Result<Vec<f64>> {
        match self.get(key)? {
            Value::Floats(list) => Ok(list.clone()),
            Value::Integers(list) => Ok(list.iter().map(|&x| x as f64).collect()),
            _ => Err(GgufError::WrongType { key: key.to_owned(), want: "a list of numbers" }),
        }
    }
}
