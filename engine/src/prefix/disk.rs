//! Blocks in files, one each, so that a restart finds them.
//!
//! A file is written beside its name and renamed, by a thread of its own; its header carries the format's
//! version and a checksum. Whatever is wrong with a file, it is a miss, and removed. Nothing here ever fails a
//! request: the first fault of a folder is logged, and the answer is computed.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::SystemTime;

use mlx_core::{Array, Dtype};
use safetensors::tensor::{Dtype as StoredDtype, TensorView};
use safetensors::{SafeTensorError, SafeTensors};

use super::DiskOptions;
use super::index::Key;
use crate::lm::cache::LayerBlock;

/// Part of every file's header; files of another version are misses.
const VERSION: &str = "1";

/// Blocks on their way to the disk.
const QUEUE: usize = 8;

pub struct Disk {
    folder: PathBuf,
    jobs: flume::Sender<Job>,
    /// The writer's end, for those who must know that everything is on disk.
    writer: Option<thread::JoinHandle<()>>,
}

enum Job {
    Write { key: Key, tensors: Vec<Stored> },
    Clear,
}

struct Stored {
    name: String,
    dtype: StoredDtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Stored {
    fn view(&self) -> Result<(&str, TensorView<'_>), SafeTensorError> {
        TensorView::new(self.dtype, self.shape.clone(), &self.bytes).map(|view| (&*self.name, view))
    }
}

impl Disk {
    /// `None`, and a warning, if the folder can't be made.
    pub fn open(options: &DiskOptions, seed: Key) -> Option<Self> {
        let folder = options.folder.join(seed.to_string());
        if let Err(err) = fs::create_dir_all(&folder) {
            tracing::warn!(folder = %folder.display(), %err, "the prefix cache stays in memory");
            return None;
        }
        let (jobs, inbox) = flume::bounded(QUEUE);
        let writer =
            Writer { root: options.folder.clone(), folder: folder.clone(), max_bytes: options.max_bytes };
        let body = move || writer.run(&inbox);
        let writer = thread::Builder::new().name("prefix-disk".into()).spawn(body);
        Some(Self { folder, jobs, writer: Some(writer.expect("the system can start a thread")) })
    }

    /// Queues a block; `false` if the queue is full.
    pub fn write(&self, key: Key, block: &[Option<LayerBlock>]) -> bool {
        if self.jobs.is_full() {
            return false;
        }
        match stored(block) {
            Some(tensors) => self.jobs.try_send(Job::Write { key, tensors }).is_ok(),
            // What can't be stored needn't be tried again.
            None => true,
        }
    }

    pub fn clear(&self) {
        self.jobs.send(Job::Clear).ok();
    }

    /// A block of a model of `n_layers`; anything amiss with its file is a miss, and the file's end.
    pub fn read(&self, key: Key, n_layers: usize) -> Option<Vec<Option<LayerBlock>>> {
        let path = path(&self.folder, key);
        let bytes = fs::read(&path).ok()?;
        match parse(&bytes, n_layers) {
            Ok(block) => {
                // The time of use: what the writer removes first is what was used longest ago.
                File::options().append(true).open(&path).and_then(|f| f.set_modified(SystemTime::now())).ok();
                Some(block)
            }
            Err(why) => {
                tracing::warn!(file = %path.display(), why, "a damaged block of the prefix cache is removed");
                fs::remove_file(&path).ok();
                None
            }
        }
    }
}

impl Drop for Disk {
    /// Everything queued is written first.
    fn drop(&mut self) {
        let (jobs, _) = flume::bounded(1);
        self.jobs = jobs;
        if let Some(writer) = self.writer.take() {
            // A panic there has already been reported.
            writer.join().ok();
        }
    }
}

fn path(folder: &Path, key: Key) -> PathBuf {
    folder.join(format!("{key}.safetensors"))
}

fn stored(block: &[Option<LayerBlock>]) -> Option<Vec<Stored>> {
    let mut tensors = Vec::new();
    for (layer, arrays) in block.iter().enumerate() {
        for (i, array) in arrays.iter().flatten().enumerate() {
            tensors.push(Stored {
                name: format!("{layer}.{i}"),
                dtype: DTYPES.iter().find(|(ours, _)| *ours == array.dtype())?.1,
                shape: array.shape().iter().map(|n| *n as usize).collect(),
                bytes: array.to_bytes().ok()?,
            });
        }
    }
    Some(tensors)
}

const DTYPES: [(Dtype, StoredDtype); 5] = [
    (Dtype::Float32, StoredDtype::F32),
    (Dtype::Float16, StoredDtype::F16),
    (Dtype::Bfloat16, StoredDtype::BF16),
    (Dtype::Uint32, StoredDtype::U32),
    (Dtype::Uint8, StoredDtype::U8),
];

fn parse(bytes: &[u8], n_layers: usize) -> Result<Vec<Option<LayerBlock>>, &'static str> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|_| "no header")?;
    let metadata = header.metadata().as_ref().ok_or("no metadata")?;
    if metadata.get("forerun_prefix").is_none_or(|version| version != VERSION) {
        return Err("another version");
    }
    let file = SafeTensors::deserialize(bytes).map_err(|_| "truncated")?;
    let mut names: Vec<&str> = file.names().into_iter().collect();
    names.sort_unstable();
    let mut checksum = crc32fast::Hasher::new();
    let mut block: Vec<Option<LayerBlock>> = vec![None; n_layers];
    let mut found: Vec<(usize, usize, Array)> = Vec::new();
    for name in names {
        let view = file.tensor(name).map_err(|_| "a tensor is missing")?;
        checksum.update(view.data());
        let (layer, i) = name.split_once('.').ok_or("a foreign tensor")?;
        let (layer, i): (usize, usize) =
            (layer.parse().map_err(|_| "a foreign tensor")?, i.parse().map_err(|_| "a foreign tensor")?);
        let dtype = DTYPES.iter().find(|(_, theirs)| *theirs == view.dtype()).ok_or("a foreign type")?.0;
        let shape: Vec<i32> = view.shape().iter().map(|n| *n as i32).collect();
        found.push((layer, i, Array::from_bytes(view.data(), &shape, dtype)));
    }
    if metadata.get("crc32").is_none_or(|sum| *sum != format!("{:08x}", checksum.finalize())) {
        return Err("a wrong checksum");
    }
    found.sort_by_key(|(layer, i, _)| (*layer, *i));
    for (layer, _, array) in found {
        block.get_mut(layer).ok_or("a layer too many")?.get_or_insert_default().push(array);
    }
    Ok(block)
}

struct Writer {
    root: PathBuf,
    folder: PathBuf,
    max_bytes: u64,
}

impl Writer {
    fn run(&self, inbox: &flume::Receiver<Job>) {
        let mut warned = false;
        let mut since_trim = u64::MAX / 2;
        for job in inbox {
            let outcome = match job {
                Job::Write { key, tensors } => {
                    since_trim += tensors.iter().map(|t| t.bytes.len() as u64).sum::<u64>();
                    self.write(key, &tensors)
                }
                Job::Clear => {
                    fs::remove_dir_all(&self.folder).and_then(|()| fs::create_dir_all(&self.folder))
                }
            };
            if let Err(err) = outcome
                && !std::mem::replace(&mut warned, true)
            {
                tracing::warn!(folder = %self.folder.display(), %err, "blocks of the prefix cache can't be written");
            }
            if self.max_bytes / 16 < since_trim {
                since_trim = 0;
                self.trim();
            }
        }
    }

    fn write(&self, key: Key, tensors: &[Stored]) -> io::Result<()> {
        let path = path(&self.folder, key);
        let mut sorted: Vec<&Stored> = tensors.iter().collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        let mut checksum = crc32fast::Hasher::new();
        sorted.iter().for_each(|t| checksum.update(&t.bytes));
        let metadata = HashMap::from([
            ("forerun_prefix".to_owned(), VERSION.to_owned()),
            ("crc32".to_owned(), format!("{:08x}", checksum.finalize())),
        ]);
        let views =
            tensors.iter().map(Stored::view).collect::<Result<Vec<_>, _>>().map_err(io::Error::other)?;
        let bytes = safetensors::serialize(views, Some(metadata)).map_err(io::Error::other)?;
        let staging = path.with_extension(format!("{}.tmp", std::process::id()));
        fs::write(&staging, bytes).and_then(|()| fs::rename(&staging, &path)).inspect_err(|_| {
            fs::remove_file(&staging).ok();
        })
    }

    /// Removes what was used longest ago, of all models, until the rest fits; and what a killed writer left.
    fn trim(&self) {
        let mut files = Vec::new();
        let folders = fs::read_dir(&self.root).into_iter().flatten().flatten();
        for folder in folders.filter(|f| f.file_type().is_ok_and(|t| t.is_dir())) {
            for file in fs::read_dir(folder.path()).into_iter().flatten().flatten() {
                let Ok(metadata) = file.metadata() else { continue };
                let path = file.path();
                match path.extension().and_then(|e| e.to_str()) {
                    Some("safetensors") => {
                        files.push((
                            metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                            metadata.len(),
                            path,
                        ));
                    }
                    Some("tmp") if !self.is_fresh(&metadata) => drop(fs::remove_file(path)),
                    _ => {}
                }
            }
        }
        files.sort();
        let mut total: u64 = files.iter().map(|(_, len, _)| len).sum();
        for (_, len, path) in files {
            if total <= self.max_bytes {
                return;
            }
            if fs::remove_file(path).is_ok() {
                total -= len;
            }
        }
    }

    /// Whether a file may still be in another process's hands.
    fn is_fresh(&self, metadata: &fs::Metadata) -> bool {
        let age = metadata.modified().ok().and_then(|time| time.elapsed().ok());
        age.is_none_or(|age| age.as_secs() < 600)
    }
}
