//! Files of weights: mapped rather than read, and written whole or not at all.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::Mmap;
use safetensors::SafeTensorError;

use crate::{Array, Dtype, Error, Result, eval};

/// Writes a safetensors file: under another name first, so that `path` is never half a file.
///
/// # Errors
/// If an array fails to compute, a name is given twice, or the file system refuses.
pub fn save<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (&'a str, &'a Array)>,
    metadata: HashMap<String, String>,
) -> Result<()> {
    let fail = |message: String| Error::File { path: path.display().to_string(), message };
    let (names, arrays): (Vec<&str>, Vec<Array>) =
        tensors.into_iter().map(|(name, array)| (name, array.contiguous())).unzip();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|w| w[0] == w[1]) {
        return Err(fail(format!("two tensors are named `{}`", twice[0])));
    }
    eval(&arrays)?;
    let views = names.into_iter().zip(arrays.iter().map(Stored::new));
    let partial = partial_path(path);
    let written = safetensors::serialize_to_file(views, Some(metadata), &partial)
        .map_err(|err| match err {
            SafeTensorError::IoError(err) => err,
            err => io::Error::other(err.to_string()),
        })
        .and_then(|()| File::open(&partial)?.sync_all())
        .and_then(|()| fs::rename(&partial, path));
    written.map_err(|err| {
        // It may not exist, and the first error is the one to tell.
        let _ = fs::remove_file(&partial);
        fail(err.to_string())
    })
}

/// A name beside `path` that no other writer uses.
fn partial_path(path: &Path) -> std::path::PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{n}.partial", std::process::id()));
    path.with_file_name(name)
}

/// A computed row-major array as the writer wants it.
struct Stored<'a> {
    shape: Vec<usize>,
    array: &'a Array,
}

impl<'a> Stored<'a> {
    fn new(array: &'a Array) -> Self {
        Self { shape: array.shape().iter().map(|&d| d as usize).collect(), array }
    }
}

impl safetensors::View for Stored<'_> {
    fn dtype(&self) -> safetensors::Dtype {
        use safetensors::Dtype as S;
        match self.array.dtype() {
            Dtype::Bool => S::BOOL,
            Dtype::Uint8 => S::U8,
            Dtype::Uint16 => S::U16,
            Dtype::Uint32 => S::U32,
            Dtype::Uint64 => S::U64,
            Dtype::Int8 => S::I8,
            Dtype::Int16 => S::I16,
            Dtype::Int32 => S::I32,
            Dtype::Int64 => S::I64,
            Dtype::Float16 => S::F16,
            Dtype::Bfloat16 => S::BF16,
            Dtype::Float32 => S::F32,
            Dtype::Float64 => S::F64,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.array.bytes())
    }

    fn data_len(&self) -> usize {
        self.array.nbytes()
    }
}

/// Maps a whole file for reading.
pub fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the mapping is read-only. Another process that truncates the file while it is mapped makes an
    // access fault, which no program that maps weights can prevent.
    unsafe { Mmap::map(file) }
}

/// Tells the system that the pages of `bytes` won't be read again soon, so that weights which were copied
/// into another layout don't count twice. Only a hint.
pub fn forget(bytes: &[u8]) {
    #[cfg(unix)]
    {
        const PAGE: usize = 16 << 10;
        let start = bytes.as_ptr().addr().next_multiple_of(PAGE);
        let end = bytes.as_ptr_range().end.addr() & !(PAGE - 1);
        if start < end {
            let at = bytes.as_ptr().with_addr(start).cast_mut().cast();
            // SAFETY: whole pages inside a live mapping of a file; the advice may drop them from memory, and
            // the next access reads the file again.
            unsafe { libc::madvise(at, end - start, libc::MADV_DONTNEED) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_read_back_by_the_format_s_own_library() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let a = Array::arange(0.0, 6.0, 1.0, Dtype::Float32).reshape(&[2, 3]);
        let half = a.astype(Dtype::Bfloat16);
        let flags = Array::from_slice(&[true, false], &[2]);
        let tensors = [("a.t", &a.transpose(&[1, 0])), ("half", &half), ("flags", &flags)];
        let metadata = HashMap::from([("format".to_owned(), "mlx".to_owned())]);
        fs::write(&path, "what was there before").unwrap();
        save(&path, tensors, metadata.clone()).unwrap();

        let map = map(&File::open(&path).unwrap()).unwrap();
        let (_, header) = safetensors::SafeTensors::read_metadata(&map).unwrap();
        assert_eq!(header.metadata().as_ref(), Some(&metadata));
        let file = safetensors::SafeTensors::deserialize(&map).unwrap();
        let transposed = file.tensor("a.t").unwrap();
        assert_eq!((transposed.dtype(), transposed.shape()), (safetensors::Dtype::F32, &[3, 2][..]));
        assert_eq!(transposed.data(), [0f32, 3.0, 1.0, 4.0, 2.0, 5.0].map(f32::to_le_bytes).as_flattened());
        assert_eq!(file.tensor("half").unwrap().data()[2..6], [0x80, 0x3f, 0x00, 0x40]);
        assert_eq!(file.tensor("flags").unwrap().data(), [1, 0]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_save_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        fs::write(&path, "before").unwrap();
        let a = Array::scalar(1.0);
        let err = save(&path, [("x", &a), ("x", &a)], HashMap::new()).unwrap_err();
        assert!(err.to_string().ends_with("two tensors are named `x`"), "{err}");
        let output = crate::Output::new(&[], Dtype::Float32);
        let bad = crate::custom("bad", &[&a], &[output], |_, _| panic!("on purpose")).remove(0);
        assert!(matches!(save(&path, [("x", &bad)], HashMap::new()), Err(Error::Kernel(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        let nowhere = folder.path().join("missing/model.safetensors");
        let err = save(&nowhere, [("x", &a)], HashMap::new()).unwrap_err().to_string();
        assert!(err.contains("missing/model.safetensors: No such file"), "{err}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
