//! Bytes of a checkpoint with a shape, before they are arrays.

use std::ops::Range;
use std::sync::Arc;

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

    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(file, range) => &file[range.clone()],
            Bytes::Owned(bytes) => bytes,
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

    /// A matrix with its axes swapped.
    pub fn transposed(&self) -> Self {
        let (rows, cols, size) = (self.shape[0], self.shape[1], self.dtype.size());
        let at = |i: usize| &self.bytes()[i * size..][..size];
        let order = (0..cols).flat_map(|col| (0..rows).map(move |row| row * cols + col));
        Self::owned(order.flat_map(at).copied().collect(), vec![cols, rows], self.dtype)
    }

    pub fn to_array(&self) -> Array {
        let shape: Vec<i32> = self.shape.iter().map(|&d| d as i32).collect();
        match &self.bytes {
            Bytes::Mapped(file, range) => {
                Array::from_owner(file.clone(), |f| f, range.clone(), &shape, self.dtype)
            }
            Bytes::Owned(bytes) => {
                Array::from_owner(bytes.clone(), |b| b, 0..bytes.len(), &shape, self.dtype)
            }
        }
    }
}
