//! Fusing a function of arrays: MLX traces it once per input shapes and types.

use std::any::Any;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::array::{Array, Vector};
use crate::error::{check, install};

/// A traced function.
pub struct Compiled {
    raw: mlx_sys::mlx_closure,
}

impl Compiled {
    /// `f` must be a pure function of its arguments: it runs once for each combination of shapes.
    pub fn new<F>(f: F) -> Self
    where
        F: Fn(&[Array]) -> Vec<Array> + 'static,
    {
        install();
        let payload = Box::into_raw(Box::new(f)).cast();
        // SAFETY: the payload is a boxed `F`, freed by `release::<F>` when MLX drops the closure.
        unsafe {
            let inner = mlx_sys::mlx_closure_new_func_payload(Some(trace::<F>), payload, Some(release::<F>));
            let mut raw = mlx_sys::mlx_closure_new();
            let status = mlx_sys::mlx_compile(&mut raw, inner, false);
            mlx_sys::mlx_closure_free(inner);
            check(status).unwrap_or_else(|err| panic!("compile: {err}"));
            Self { raw }
        }
    }

    /// # Panics
    /// As the function does, when it is traced.
    #[track_caller]
    pub fn call(&self, inputs: &[&Array]) -> Vec<Array> {
        let vector = Vector::new(inputs.iter().copied());
        let mut results = Vector::empty();
        // SAFETY: handles are valid for the call.
        let status = unsafe { mlx_sys::mlx_closure_apply(&mut results.raw, self.raw, vector.raw) };
        if let Some(panic) = PANIC.take() {
            resume_unwind(panic);
        }
        if let Err(err) = check(status) {
            panic!("compiled function of {inputs:?}: {err}");
        }
        results.to_arrays()
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        // SAFETY: freed once.
        unsafe { mlx_sys::mlx_closure_free(self.raw) };
    }
}

thread_local! {
    /// A panic of the traced function on its way past C++, which cannot unwind.
    static PANIC: Cell<Option<Box<dyn Any + Send>>> = const { Cell::new(None) };
}

unsafe extern "C" fn trace<F: Fn(&[Array]) -> Vec<Array>>(
    out: *mut mlx_sys::mlx_vector_array,
    inputs: mlx_sys::mlx_vector_array,
    payload: *mut c_void,
) -> c_int {
    // SAFETY: `payload` is the boxed `F`; the input vector is borrowed, so its handle must not be freed here.
    let (f, inputs) =
        unsafe { (&*payload.cast::<F>(), std::mem::ManuallyDrop::new(Vector { raw: inputs }).to_arrays()) };
    let results = catch_unwind(AssertUnwindSafe(|| f(&inputs)));
    match results {
        Ok(results) => {
            let vector = Vector::new(&results);
            // SAFETY: `out` is the vector that MLX reads the results from.
            unsafe { mlx_sys::mlx_vector_array_set(out, vector.raw) }
        }
        Err(panic) => {
            PANIC.set(Some(panic));
            1
        }
    }
}

unsafe extern "C" fn release<F>(payload: *mut c_void) {
    // SAFETY: made by `Box::into_raw` of the same type, and freed once.
    drop(unsafe { Box::from_raw(payload.cast::<F>()) });
}
