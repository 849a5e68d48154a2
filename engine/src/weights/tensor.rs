//! Bytes of a checkpoint with a shape, before they are arrays.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use memmap2::Mmap;
use mlx_core::{Array, Dtype};

/// A stored tensor: cheap to clone, `Send`, and not read until it is used.
#[derive(Clone)]
pub struct Tensor {
    pub shape: Vec<usize>,
    pub dtype: Dtype,
    bytes: Bytes,
}

#[derive(Clone)]
enum Bytes {
    Mapped(Arc<Mmap>, Range<usize>),
    Owned(Arc<Vec<u8>>),
    /// One of those that are computed together.
    Deferred(Arc<Deferred>, usize),
}

/// Bytes of several tensors, computed when one of them is read first.
struct Deferred {
    compute: Box<dyn Fn() -> Vec<Vec<u8>> + Send + Sync>,
    computed: OnceLock<Vec<Arc<Vec<u8>>>>,
}

impl Deferred {
    fn bytes(&self, part: usize) -> &Arc<Vec<u8>> {
        let all = || (self.compute)().into_iter().map(Arc::new).collect();
        &self.computed.get_or_init(all)[part]
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        const LARGE: usize = 1 << 20;
        let bytes = self.computed.take().iter().flatten().map(|part| part.len()).sum::<usize>();
        if LARGE <= bytes {
            mlx_core::memory::trim();
        }
    }
}

impl Tensor {
    /// # Panics
    /// If the shape needs another number of bytes; parsers check it before.
    pub fn mapped(file: Arc<Mmap>, range: Range<usize>, shape: Vec<usize>, dtype: Dtype) -> Self {
        assert_eq!(range.len(), shape.iter().product::<usize>() * dtype.size());
        Self { shape, dtype, bytes: Bytes::Mapped(file, range) }
    }

    /// # Panics
    /// If the shape needs another number of bytes.
    pub fn owned(bytes: Vec<u8>, shape: Vec<usize>, dtype: Dtype) -> Self {
        assert_eq!(bytes.len(), shape.iter().product::<usize>() * dtype.size());
        Self { shape, dtype, bytes: Bytes::Owned(Arc::new(bytes)) }
    }

    /// Tensors of these shapes and types, whose bytes `compute` gives when one of them is read first. They are kept
    /// until all of the tensors are dropped.
    pub fn deferred(
        parts: Vec<(Vec<usize>, Dtype)>,
        compute: impl Fn() -> Vec<Vec<u8>> + Send + Sync + 'static,
    ) -> Vec<Self> {
        let deferred = Arc::new(Deferred { compute: Box::new(compute), computed: OnceLock::new() });
        let tensor = |(i, (shape, dtype))| Self { shape, dtype, bytes: Bytes::Deferred(deferred.clone(), i) };
        parts.into_iter().enumerate().map(tensor).collect()
    }

    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(file, range) => &file[range.clone()],
            Bytes::Owned(bytes) => bytes,
            Bytes::Deferred(deferred, part) => deferred.bytes(*part),
        }
    }

    /// Says that what was copied of a mapped file needn't stay in memory.
    pub fn forget(&self) {
        if let Bytes::Mapped(file, range) = &self.bytes {
            mlx_core::file::forget(&file[range.clone()]);
        }
    }

    /// Rows `ranges` of the first axis, end to end. One range shares the bytes.
    ///
    /// # Panics
    /// If a range reaches past the last row.
    pub fn rows(&self, ranges: &[Range<usize>]) -> Self {
        let n = self.shape[0];
        let stride = self.bytes().len() / n.max(1);
        let mut shape = self.shape.clone();
        shape[0] = ranges.iter().map(|r| r.len()).sum();
        if let ([rows], Bytes::Mapped(file, range)) = (ranges, &self.bytes) {
            assert!(rows.end <= n, "rows {rows:?} of {n}");
            let at = range.start + rows.start * stride..range.start + rows.end * stride;
            return Self::mapped(file.clone(), at, shape, self.dtype);
        }
        let rows = |r: &Range<usize>| &self.bytes()[r.start * stride..r.end * stride];
        Self::owned(ranges.iter().flat_map(rows).copied().collect(), shape, self.dtype)
    }

    /// Tensors of one shape and type along a new first axis; `None` if they differ.
    pub fn stacked(parts: &[Self]) -> Option<Self> {
        let first = parts.first()?;
        let mut bytes = Vec::with_capacity(parts.len() * first.bytes().len());
        for part in parts {
            if part.shape != first.shape || part.dtype != first.dtype {
                return None;
            }
            bytes.extend_from_slice(part.bytes());
            part.forget();
        }
        let shape = [&[parts.len()][..], &first.shape].concat();
        Some(Self::owned(bytes, shape, first.dtype))
    }

    /// Every `step`-th entry from `first` on, along `axis`.
    pub fn every(&self, first: usize, step: usize, axis: usize) -> Self {
        let inner: usize = self.shape[axis + 1..].iter().product::<usize>() * self.dtype.size();
        let n = self.shape[axis];
        let rows = self.bytes().chunks_exact(inner.max(1)).enumerate();
        let bytes = rows.filter(|(i, _)| i % n % step == first).flat_map(|(_, row)| row).copied().collect();
        let mut shape = self.shape.clone();
        shape[axis] = (n + step - 1 - first) / step;
        Self::owned(bytes, shape, self.dtype)
    }

    /// The same bytes, as another shape and type of the same size.
    ///
    /// # Panics
    /// If the sizes differ.
    pub fn viewed(&self, shape: Vec<usize>, dtype: Dtype) -> Self {
        assert_eq!(self.bytes().len(), shape.iter().product::<usize>() * dtype.size());
        Self { shape, dtype, bytes: self.bytes.clone() }
    }

    /// A matrix with its axes swapped.
    pub fn transposed(&self) -> Self {
        let (rows, cols, size) = (self.shape[0], self.shape[1], self.dtype.size());
        let at = |i: usize| &self.bytes()[i * size..][..size];
        let order = (0..cols).flat_map(|col| (0..rows).map(move |row| row * cols + col));
        Self::owned(order.flat_map(at).copied().collect(), vec![cols, rows], self.dtype)
    }

    pub fn to_array(&self) -> Array {
        let shape: Vec<i32> = self.shape.iter().map(|&d| d as i32).collect();
        let owned = match &self.bytes {
            Bytes::Mapped(file, range) => {
                return Array::from_owner(file.clone(), |f| f, range.clone(), &shape, self.dtype);
            }
            Bytes::Owned(bytes) => bytes,
            Bytes::Deferred(deferred, part) => deferred.bytes(*part),
        };
        Array::from_owner(owned.clone(), |b| b, 0..owned.len(), &shape, self.dtype)
    }
}
