//! An immutable, reference-counted handle of a lazily computed tensor.
//!
//! Building a graph cannot fail except by misuse, which panics with the op and the shapes; what can fail
//! while running (evaluation, reading, files) returns an error.

use std::any::Any;
use std::borrow::Cow;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use half::{bf16, f16};

use crate::error::{Error, Result, check, install};
use crate::stream;

/// A tensor. Cloning is O(1) and shares the buffer. Shapes are `i32`, as in MLX.
///
/// MLX streams and encoders belong to threads, so an array stays on the thread that made it:
///
/// ```compile_fail,E0277
/// let x = mlx_core::Array::scalar(1.0);
/// std::thread::spawn(move || x);
/// ```
pub struct Array {
    raw: mlx_sys::mlx_array,
    not_send: PhantomData<*const ()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Float16,
    Bfloat16,
    Float32,
    Float64,
}

impl Dtype {
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => 1,
            Self::Uint16 | Self::Int16 | Self::Float16 | Self::Bfloat16 => 2,
            Self::Uint32 | Self::Int32 | Self::Float32 => 4,
            Self::Uint64 | Self::Int64 | Self::Float64 => 8,
        }
    }

    pub fn is_float(self) -> bool {
        matches!(self, Self::Float16 | Self::Bfloat16 | Self::Float32 | Self::Float64)
    }

    pub(crate) fn raw(self) -> mlx_sys::mlx_dtype {
        match self {
            Self::Bool => mlx_sys::mlx_dtype__MLX_BOOL,
            Self::Uint8 => mlx_sys::mlx_dtype__MLX_UINT8,
            Self::Uint16 => mlx_sys::mlx_dtype__MLX_UINT16,
            Self::Uint32 => mlx_sys::mlx_dtype__MLX_UINT32,
            Self::Uint64 => mlx_sys::mlx_dtype__MLX_UINT64,
            Self::Int8 => mlx_sys::mlx_dtype__MLX_INT8,
            Self::Int16 => mlx_sys::mlx_dtype__MLX_INT16,
            Self::Int32 => mlx_sys::mlx_dtype__MLX_INT32,
            Self::Int64 => mlx_sys::mlx_dtype__MLX_INT64,
            Self::Float16 => mlx_sys::mlx_dtype__MLX_FLOAT16,
            Self::Bfloat16 => mlx_sys::mlx_dtype__MLX_BFLOAT16,
            Self::Float32 => mlx_sys::mlx_dtype__MLX_FLOAT32,
            Self::Float64 => mlx_sys::mlx_dtype__MLX_FLOAT64,
        }
    }

    fn from_raw(raw: mlx_sys::mlx_dtype) -> Self {
        let all = [
            Self::Bool,
            Self::Uint8,
            Self::Uint16,
            Self::Uint32,
            Self::Uint64,
            Self::Int8,
            Self::Int16,
            Self::Int32,
            Self::Int64,
            Self::Float16,
            Self::Bfloat16,
            Self::Float32,
            Self::Float64,
        ];
        all.into_iter().find(|d| d.raw() == raw).expect("no op here makes complex arrays")
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// A Rust type that an array's elements can be read and written as.
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    const DTYPE: Dtype;
}

/// Reading casts a buffer to the type, so only this crate may say which type fits which.
mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($t:ty => $d:ident),*) => { $(
        impl sealed::Sealed for $t {}
        impl Element for $t { const DTYPE: Dtype = Dtype::$d; }
    )* };
}
elements!(
    bool => Bool, u8 => Uint8, u16 => Uint16, u32 => Uint32, u64 => Uint64, i8 => Int8, i16 => Int16,
    i32 => Int32, i64 => Int64, f16 => Float16, bf16 => Bfloat16, f32 => Float32, f64 => Float64
);

impl Array {
    /// Copies `data` in row-major order.
    ///
    /// # Panics
    /// If the shape does not hold exactly as many elements.
    #[track_caller]
    pub fn from_slice<T: Element>(data: &[T], shape: &[i32]) -> Self {
        assert_eq!(data.len(), count(shape), "{} elements do not fill shape {shape:?}", data.len());
        // SAFETY: `data` holds as many elements of the type as the shape says, and mlx-c copies them.
        unsafe { Self::copied(data.as_ptr().cast(), shape, T::DTYPE) }
    }

    /// Copies little-endian bytes in row-major order.
    ///
    /// # Panics
    /// If the shape does not need exactly as many bytes.
    #[track_caller]
    pub fn from_bytes(data: &[u8], shape: &[i32], dtype: Dtype) -> Self {
        assert_eq!(data.len(), count(shape) * dtype.size(), "{} bytes for {dtype} {shape:?}", data.len());
        if dtype == Dtype::Bool {
            // Any other value of a byte would be undefined behaviour once it is read as `bool`.
            let bools: Vec<bool> = data.iter().map(|&b| b != 0).collect();
            return Self::from_slice(&bools, shape);
        }
        // SAFETY: as above; mlx-c copies bytes, so alignment does not matter.
        unsafe { Self::copied(data.as_ptr().cast(), shape, dtype) }
    }

    /// # Safety
    /// `data` must hold as many elements of `dtype` as `shape` says.
    unsafe fn copied(data: *const c_void, shape: &[i32], dtype: Dtype) -> Self {
        install();
        // SAFETY: the caller's promise; an empty shape is a scalar.
        let raw =
            unsafe { mlx_sys::mlx_array_new_data(data, shape.as_ptr(), shape.len() as c_int, dtype.raw()) };
        Self::from_raw(raw)
    }

    /// Uses memory that `owner` keeps alive, without a copy unless it is not aligned for `dtype`, starts less
    /// than 8 bytes into the owner's, or holds booleans.
    ///
    /// # Panics
    /// If the shape does not need exactly as many bytes.
    #[track_caller]
    pub fn from_owner<O>(
        owner: Arc<O>,
        bytes: fn(&O) -> &[u8],
        range: std::ops::Range<usize>,
        shape: &[i32],
        dtype: Dtype,
    ) -> Self
    where
        O: Any + Send + Sync,
    {
        let header = range.start;
        let data = &bytes(&owner)[range];
        let aligned = data.as_ptr().addr().is_multiple_of(dtype.size());
        if !aligned || data.is_empty() || header < 8 || dtype == Dtype::Bool {
            return Self::from_bytes(data, shape, dtype);
        }
        assert_eq!(data.len(), count(shape) * dtype.size(), "{} bytes for {dtype} {shape:?}", data.len());
        install();
        unsafe extern "C" fn release<O>(owner: *mut c_void) {
            // SAFETY: the pointer came from `Arc::into_raw` of the same type, once.
            drop(unsafe { Arc::from_raw(owner.cast_const().cast::<O>()) });
        }
        let (pointer, data_len) = (data.as_ptr().cast_mut().cast(), data.len());
        let payload = Arc::into_raw(owner).cast_mut().cast();
        // SAFETY: the bytes live until `release` runs, once, and 8 bytes before them are the owner's too. MLX
        // takes over for an op's result only buffers that its allocator made, so these are never written.
        let raw = unsafe {
            let (shape, ndim) = (shape.as_ptr(), shape.len());
            forerun_array_over(pointer, shape, ndim, dtype.raw(), payload, release::<O>)
        };
        assert!(!raw.ctx.is_null(), "MLX holds {} more bytes", data_len);
        Self::from_raw(raw)
    }

    /// A float32 scalar.
    pub fn scalar(value: f32) -> Self {
        Self::from_slice(&[value], &[])
    }

    /// A scalar of this array's type, so that arithmetic with it keeps the type.
    ///
    /// # Panics
    /// If the type cannot hold the value, as integers cannot hold fractions.
    #[track_caller]
    pub(crate) fn constant(&self, value: f32) -> Self {
        match self.dtype() {
            Dtype::Float32 => Self::scalar(value),
            Dtype::Bfloat16 => Self::from_slice(&[bf16::from_f32(value)], &[]),
            Dtype::Float16 => Self::from_slice(&[f16::from_f32(value)], &[]),
            Dtype::Float64 => Self::from_slice(&[f64::from(value)], &[]),
            dtype => {
                assert!(
                    value.fract() == 0.0 && dtype != Dtype::Bool,
                    "{value} is not of the type of {self:?}"
                );
                Self::scalar(value).astype(dtype)
            }
        }
    }

    pub(crate) fn from_raw(raw: mlx_sys::mlx_array) -> Self {
        Self { raw, not_send: PhantomData }
    }

    pub(crate) fn raw(&self) -> mlx_sys::mlx_array {
        self.raw
    }

    pub fn shape(&self) -> &[i32] {
        let n = self.ndim();
        if n == 0 {
            return &[];
        }
        // SAFETY: MLX keeps `ndim` ints for as long as the array lives.
        unsafe { std::slice::from_raw_parts(mlx_sys::mlx_array_shape(self.raw), n) }
    }

    /// Length of an axis, counted from the end when negative.
    #[track_caller]
    pub fn dim(&self, axis: i32) -> i32 {
        let shape = self.shape();
        let i = if axis < 0 { axis + shape.len() as i32 } else { axis };
        *shape.get(i as usize).unwrap_or_else(|| panic!("axis {axis} of an array of shape {shape:?}"))
    }

    pub fn ndim(&self) -> usize {
        // SAFETY: the handle is valid for the life of `self`, here and below.
        unsafe { mlx_sys::mlx_array_ndim(self.raw) }
    }

    /// Number of elements.
    pub fn size(&self) -> usize {
        // SAFETY: see `ndim`.
        unsafe { mlx_sys::mlx_array_size(self.raw) }
    }

    pub fn nbytes(&self) -> usize {
        self.size() * self.dtype().size()
    }

    pub fn dtype(&self) -> Dtype {
        // SAFETY: see `ndim`.
        Dtype::from_raw(unsafe { mlx_sys::mlx_array_dtype(self.raw) })
    }

    /// Computes the array, and waits.
    pub fn eval(&self) -> Result<()> {
        // SAFETY: see `ndim`.
        check(unsafe { mlx_sys::mlx_array_eval(self.raw) })
    }

    /// Computes and copies all elements in row-major order. The type must be the array's own.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if self.dtype() != T::DTYPE {
            return Err(Error::Dtype { want: T::DTYPE, got: self.dtype() });
        }
        let x = self.contiguous();
        x.eval()?;
        if x.size() == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: the array is computed, row-major and of this type, so the pointer leads to `size` elements.
        let data = unsafe { std::slice::from_raw_parts(x.data().cast::<T>(), x.size()) };
        Ok(data.to_vec())
    }

    /// Computes and copies all elements, as bytes in row-major order.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let x = self.contiguous();
        x.eval()?;
        Ok(x.bytes().to_vec())
    }

    /// The computed elements in row-major order, without a copy where they lie so. The type must be the
    /// array's own.
    pub fn host<T: Element>(&self) -> Result<Cow<'_, [T]>> {
        if self.dtype() != T::DTYPE {
            return Err(Error::Dtype { want: T::DTYPE, got: self.dtype() });
        }
        self.eval()?;
        if !self.is_row_major() || self.size() == 0 {
            return self.to_vec().map(Cow::Owned);
        }
        // SAFETY: the array is computed, row-major and of this type, and arrays are immutable: MLX writes in
        // place only what nobody else holds.
        Ok(Cow::Borrowed(unsafe { std::slice::from_raw_parts(self.data().cast::<T>(), self.size()) }))
    }

    /// The bytes of a computed row-major array.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self.nbytes() {
            0 => &[],
            // SAFETY: as in `host`; any initialised memory can be read as bytes.
            n => unsafe { std::slice::from_raw_parts(self.data().cast(), n) },
        }
    }

    /// Whether a computed array's elements lie one after the other.
    fn is_row_major(&self) -> bool {
        let shape = self.shape();
        // SAFETY: MLX keeps `ndim` strides for as long as the array lives.
        let stride = |i: usize| unsafe { *mlx_sys::mlx_array_strides(self.raw).add(i) };
        let mut expected = 1;
        (0..shape.len()).rev().all(|i| {
            let ok = shape[i] == 1 || stride(i) == expected;
            expected *= shape[i] as usize;
            ok
        })
    }

    /// The only element.
    ///
    /// # Panics
    /// If there is more than one.
    pub fn item<T: Element>(&self) -> Result<T> {
        assert_eq!(self.size(), 1, "item of an array of shape {:?}", self.shape());
        Ok(self.to_vec()?[0])
    }

    /// The computed buffer. Typed accessors of mlx-c only cast, so any of them does.
    fn data(&self) -> *const c_void {
        // SAFETY: callers evaluated the array.
        unsafe { mlx_sys::mlx_array_data_uint8(self.raw).cast() }
    }
}

unsafe extern "C" {
    fn forerun_array_over(
        data: *mut c_void,
        shape: *const c_int,
        ndim: usize,
        dtype: mlx_sys::mlx_dtype,
        payload: *mut c_void,
        release: unsafe extern "C" fn(*mut c_void),
    ) -> mlx_sys::mlx_array;
}

/// Computes several arrays together, and waits.
pub fn eval<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    let vector = Vector::new(arrays);
    // SAFETY: the vector is alive for the call.
    check(unsafe { mlx_sys::mlx_eval(vector.raw) })
}

/// Starts to compute several arrays and returns at once.
///
/// # Errors
/// MLX tells the failure of an op once, at the next launch or wait on its stream: an error here may be that of
/// an earlier launch, so whatever is in flight on the stream has failed with it.
pub fn async_eval<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    let vector = Vector::new(arrays);
    // SAFETY: the vector is alive for the call.
    check(unsafe { mlx_sys::mlx_async_eval(vector.raw) })
}

fn count(shape: &[i32]) -> usize {
    shape.iter().map(|&d| usize::try_from(d).expect("a dimension is not negative")).product()
}

impl Clone for Array {
    fn clone(&self) -> Self {
        // SAFETY: a new handle of the same array.
        unsafe {
            let mut raw = mlx_sys::mlx_array_new();
            mlx_sys::mlx_array_set(&mut raw, self.raw);
            Self::from_raw(raw)
        }
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: the handle is freed once.
        unsafe { mlx_sys::mlx_array_free(self.raw) };
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype(), self.shape())
    }
}

/// An owned `mlx_vector_array`.
pub(crate) struct Vector {
    pub(crate) raw: mlx_sys::mlx_vector_array,
}

impl Vector {
    pub(crate) fn new<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Self {
        let raws: Vec<_> = arrays.into_iter().map(|a| a.raw).collect();
        // SAFETY: mlx-c copies the handles' contents.
        Self { raw: unsafe { mlx_sys::mlx_vector_array_new_data(raws.as_ptr(), raws.len()) } }
    }

    pub(crate) fn empty() -> Self {
        // SAFETY: a plain constructor.
        Self { raw: unsafe { mlx_sys::mlx_vector_array_new() } }
    }

    pub(crate) fn to_arrays(&self) -> Vec<Array> {
        // SAFETY: indices are below the size, and each handle made here is owned by its array.
        unsafe {
            let n = mlx_sys::mlx_vector_array_size(self.raw);
            let get = |i| {
                let mut raw = mlx_sys::mlx_array_new();
                mlx_sys::mlx_vector_array_get(&mut raw, self.raw, i);
                Array::from_raw(raw)
            };
            (0..n).map(get).collect()
        }
    }
}

impl Drop for Vector {
    fn drop(&mut self) {
        // SAFETY: freed once.
        unsafe { mlx_sys::mlx_vector_array_free(self.raw) };
    }
}

/// Runs one mlx-c call that fills an array; panics with the op and its operands' shapes.
#[track_caller]
pub(crate) fn build(
    op: &str,
    operands: &[&Array],
    call: impl FnOnce(*mut mlx_sys::mlx_array, mlx_sys::mlx_stream) -> c_int,
) -> Array {
    install();
    // SAFETY: a plain constructor.
    let mut raw = unsafe { mlx_sys::mlx_array_new() };
    if let Err(err) = check(call(&mut raw, stream::current())) {
        panic!("{op} of {operands:?}: {err}");
    }
    Array::from_raw(raw)
}
