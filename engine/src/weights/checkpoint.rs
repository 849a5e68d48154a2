//! A folder of safetensors files, mapped and checked, not read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlx_core::Dtype;
use safetensors::SafeTensors;
use serde::Deserialize;

use super::tensor::Tensor;

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path}: no model*.safetensors file; is this a model's folder?", path = path.display())]
    NoWeights { path: PathBuf },
    #[error("{path} names the shard {shard}, which is missing; download it beside the others", path = path.display())]
    MissingShard { path: PathBuf, shard: String },
    #[error("{path} is damaged: {message}; download it again", path = path.display())]
    Damaged { path: PathBuf, message: String },
    #[error("{path}: tensor `{name}` is stored as {dtype}, which is not supported", path = path.display())]
    Dtype { path: PathBuf, name: String, dtype: String },
}

type Result<T> = std::result::Result<T, CheckpointError>;

/// The part of `model.safetensors.index.json` that matters.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// All tensors of `folder`, by name. With an index, exactly the shards that it names; otherwise every
/// `model*.safetensors`.
pub fn open(folder: &Path) -> Result<BTreeMap<String, Tensor>> {
    let index_path = folder.join("model.safetensors.index.json");
    let index = match fs::read(&index_path) {
        Ok(bytes) => {
            let damaged = |err: serde_json::Error| CheckpointError::Damaged {
                path: index_path.clone(),
                message: err.to_string(),
            };
            Some(serde_json::from_slice::<Index>(&bytes).map_err(damaged)?)
        }
        Err(_) => None,
    };
    let files = match &index {
        Some(index) => shards(folder, &index_path, index)?,
        None => model_files(folder)?,
    };
    let mut tensors = BTreeMap::new();
    for file in &files {
        for (name, tensor) in open_file(file)? {
            if tensors.insert(name.clone(), tensor).is_some() {
                let message = format!("tensor `{name}` is in two files");
                return Err(CheckpointError::Damaged { path: file.clone(), message });
            }
        }
    }
    let lacking =
        index.iter().flat_map(|i| i.weight_map.iter()).find(|(name, _)| !tensors.contains_key(*name));
    if let Some((name, shard)) = lacking {
        let message = format!("it has no tensor `{name}`, which the index expects there");
        return Err(CheckpointError::Damaged { path: folder.join(shard), message });
    }
    Ok(tensors)
}

fn shards(folder: &Path, index_path: &Path, index: &Index) -> Result<Vec<PathBuf>> {
    let names: BTreeSet<&String> = index.weight_map.values().collect();
    let shard = |name: &String| {
        // A name from a file must not lead out of the folder.
        let plain = Path::new(name).file_name().is_some_and(|file| file == name.as_str());
        let path = folder.join(name);
        match plain && path.exists() {
            true => Ok(path),
            false => Err(CheckpointError::MissingShard { path: index_path.into(), shard: name.clone() }),
        }
    };
    names.into_iter().map(shard).collect()
}

fn model_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let io = |source| CheckpointError::Io { path: folder.into(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if name.starts_with("model") && name.ends_with(".safetensors") {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() { Err(CheckpointError::NoWeights { path: folder.into() }) } else { Ok(files) }
}

/// The tensors of one file. The header's offsets, shapes and types are validated by the `safetensors` crate.
pub fn open_file(path: &Path) -> Result<Vec<(String, Tensor)>> {
    let io = |source| CheckpointError::Io { path: path.into(), source };
    let map = Arc::new(mlx_core::file::map(&File::open(path).map_err(io)?).map_err(io)?);
    let damaged = |err: safetensors::SafeTensorError| CheckpointError::Damaged {
        path: path.into(),
        message: err.to_string(),
    };
    let file = SafeTensors::deserialize(&map).map_err(damaged)?;
    let start = map.as_ptr().addr();
    let tensor = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
        let dtype = dtype(view.dtype()).ok_or_else(|| CheckpointError::Dtype {
            path: path.into(),
            name: name.to_owned(),
            dtype: view.dtype().to_string(),
        })?;
        let at = view.data().as_ptr().addr() - start;
        let tensor = Tensor::mapped(map.clone(), at..at + view.data().len(), view.shape().to_vec(), dtype);
        Ok((name.to_owned(), tensor))
    };
    file.iter().map(tensor).collect()
}

/// 8-bit floats are kept as bytes, as MLX loads them.
fn dtype(stored: safetensors::Dtype) -> Option<Dtype> {
    use safetensors::Dtype as S;
    Some(match stored {
        S::BOOL => Dtype::Bool,
        S::U8 | S::F8_E4M3 | S::F8_E5M2 | S::F8_E8M0 => Dtype::Uint8,
        S::I8 => Dtype::Int8,
        S::U16 => Dtype::Uint16,
        S::I16 => Dtype::Int16,
        S::U32 => Dtype::Uint32,
        S::I32 => Dtype::Int32,
        S::U64 => Dtype::Uint64,
        S::I64 => Dtype::Int64,
        S::F16 => Dtype::Float16,
        S::BF16 => Dtype::Bfloat16,
        S::F32 => Dtype::Float32,
        S::F64 => Dtype::Float64,
        _ => return None,
    })
}
