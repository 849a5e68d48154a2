//! Ops whose body is a Rust function: lazily evaluated like any other, on the CPU stream's own thread.

use std::ffi::{CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::array::{Array, Dtype, Element, Vector};
use crate::error::{KERNEL, check, install};
use crate::stream;

/// The shape and type of a result.
#[derive(Clone, Debug)]
pub struct Output {
    pub shape: Vec<i32>,
    pub dtype: Dtype,
    /// The input of the same shape and type whose contents the result starts with. Its buffer is taken over
    /// if nobody else holds it, which makes an update in place; otherwise it is copied. Either way the kernel
    /// finds the contents in the result only.
    pub from_input: Option<usize>,
}

impl Output {
    pub fn new(shape: &[i32], dtype: Dtype) -> Self {
        Self { shape: shape.to_vec(), dtype, from_input: None }
    }
}

/// A row-major tensor inside a running op.
#[repr(transparent)]
pub struct View(RawView);

/// A result to fill.
#[repr(transparent)]
pub struct ViewMut(RawView);

#[repr(C)]
struct RawView {
    data: *mut c_void,
    shape: *const c_int,
    ndim: usize,
    size: usize,
    dtype: mlx_sys::mlx_dtype,
}

impl RawView {
    fn shape(&self) -> &[i32] {
        match self.ndim {
            0 => &[],
            // SAFETY: MLX gives `ndim` ints that live for the run.
            n => unsafe { std::slice::from_raw_parts(self.shape, n) },
        }
    }

    #[track_caller]
    fn pointer<T: Element>(&self) -> *mut T {
        assert_eq!(self.dtype, T::DTYPE.raw(), "a view was read as {}", T::DTYPE);
        if self.size == 0 {
            return std::ptr::NonNull::dangling().as_ptr();
        }
        assert!(!self.data.is_null(), "an input was read that a result starts from: its contents are there");
        self.data.cast()
    }
}

impl View {
    pub fn shape(&self) -> &[i32] {
        self.0.shape()
    }

    /// Whether the elements are of this type.
    pub fn is<T: Element>(&self) -> bool {
        self.0.dtype == T::DTYPE.raw()
    }

    /// # Panics
    /// If the elements are of another type.
    #[track_caller]
    pub fn as_slice<T: Element>(&self) -> &[T] {
        // SAFETY: MLX gives `size` row-major elements of the checked type that live for the run.
        unsafe { std::slice::from_raw_parts(self.0.pointer(), self.0.size) }
    }
}

impl ViewMut {
    pub fn shape(&self) -> &[i32] {
        self.0.shape()
    }

    /// Whether the elements are of this type.
    pub fn is<T: Element>(&self) -> bool {
        self.0.dtype == T::DTYPE.raw()
    }

    /// # Panics
    /// If the elements are of another type.
    #[track_caller]
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        // SAFETY: as above, and results are distinct buffers that only this run writes.
        unsafe { std::slice::from_raw_parts_mut(self.0.pointer(), self.0.size) }
    }
}

#[repr(C)]
struct RawOutput {
    shape: *const c_int,
    ndim: usize,
    dtype: mlx_sys::mlx_dtype,
    from_input: c_int,
}

type RawRun = extern "C" fn(*mut c_void, *const RawView, usize, *const RawView, usize) -> *mut c_char;

unsafe extern "C" {
    fn forerun_custom_op(
        results: *mut mlx_sys::mlx_vector_array,
        name: *const c_char,
        inputs: mlx_sys::mlx_vector_array,
        outputs: *const RawOutput,
        num_outputs: usize,
        run: RawRun,
        context: *mut c_void,
        drop: extern "C" fn(*mut c_void),
        stream: mlx_sys::mlx_stream,
    ) -> c_int;
}

struct Context<F> {
    name: &'static str,
    run: F,
}

/// Builds an op that computes `outputs` from `inputs` by `run`, which is dropped with the graph. A panic in
/// `run` becomes an error of the evaluation that waits for it (see [`crate::async_eval`]); the results are then
/// zeros.
///
/// `run` sees inputs in row-major order. It must write every element of each result that does not start as an
/// input's contents.
///
/// # Panics
/// If a result starts from an input that does not exist or has another shape or type.
#[track_caller]
pub fn custom<F>(name: &'static str, inputs: &[&Array], outputs: &[Output], run: F) -> Vec<Array>
where
    F: Fn(&[View], &mut [ViewMut]) + Send + Sync + 'static,
{
    install();
    for output in outputs {
        let fits = output.from_input.is_none_or(|i| {
            inputs.get(i).is_some_and(|a| a.shape() == output.shape && a.dtype() == output.dtype)
        });
        assert!(fits && output.shape.iter().all(|&d| 0 <= d), "{name} of {inputs:?} cannot make {output:?}");
    }
    let raw_outputs: Vec<RawOutput> = outputs
        .iter()
        .map(|o| RawOutput {
            shape: o.shape.as_ptr(),
            ndim: o.shape.len(),
            dtype: o.dtype.raw(),
            from_input: o.from_input.map_or(-1, |i| i as c_int),
        })
        .collect();
    let vector = Vector::new(inputs.iter().copied());
    let mut results = Vector::empty();
    let c_name = CString::new(name).expect("an op's name has no null byte");
    let context = Box::into_raw(Box::new(Context { name, run })).cast();
    // SAFETY: all pointers live for the call; `context` is handed over and freed by `release::<F>` once.
    let status = unsafe {
        forerun_custom_op(
            &mut results.raw,
            c_name.as_ptr(),
            vector.raw,
            raw_outputs.as_ptr(),
            raw_outputs.len(),
            call::<F>,
            context,
            release::<F>,
            stream::current(),
        )
    };
    if let Err(err) = check(status) {
        panic!("{name} of {inputs:?}: {err}");
    }
    results.to_arrays()
}

extern "C" fn call<F: Fn(&[View], &mut [ViewMut])>(
    context: *mut c_void,
    inputs: *const RawView,
    n_inputs: usize,
    outputs: *const RawView,
    n_outputs: usize,
) -> *mut c_char {
    // SAFETY: the context is a `Context<F>` that MLX holds during the run; the views are two C arrays of the
    // given lengths, of a type that `View` and `ViewMut` wrap transparently, used by this run alone.
    let (context, inputs, outputs) = unsafe {
        (
            &*context.cast::<Context<F>>(),
            slice(inputs.cast::<View>(), n_inputs),
            slice_mut(outputs.cast_mut().cast::<ViewMut>(), n_outputs),
        )
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| (context.run)(inputs, outputs)));
    let Err(panic) = outcome else { return std::ptr::null_mut() };
    let message = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_else(|| "panicked".to_owned());
    let text = format!("{KERNEL}`{}` failed: {message}", context.name).replace('\0', " ");
    let text = CString::new(text).expect("null bytes were replaced");
    // SAFETY: copies a null-terminated string into memory of `malloc`, which the C++ side frees.
    unsafe { libc::strdup(text.as_ptr()) }
}

extern "C" fn release<F>(context: *mut c_void) {
    // SAFETY: made by `Box::into_raw` of the same type in `custom`, and freed once.
    drop(unsafe { Box::from_raw(context.cast::<Context<F>>()) });
}

/// # Safety
/// As `slice::from_raw_parts`, but the pointer may be null when `n` is 0.
unsafe fn slice<'a, T>(data: *const T, n: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    if n == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data, n) } }
}

/// # Safety
/// As `slice::from_raw_parts_mut`, but the pointer may be null when `n` is 0.
unsafe fn slice_mut<'a, T>(data: *mut T, n: usize) -> &'a mut [T] {
    // SAFETY: the caller's promise.
    if n == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(data, n) } }
}
