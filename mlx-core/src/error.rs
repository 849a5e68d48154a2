//! Failures that MLX reports, as values.
//!
//! mlx-c hands messages to one process-wide handler, whose default ends the process. Ours keeps the message
//! for the thread that made the call, and [`check`] picks it up there.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Once;

/// What MLX said of a failed evaluation or file operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("MLX: {0}")]
    Mlx(String),
    #[error("an array of {got} was read as {want}")]
    Dtype { want: crate::Dtype, got: crate::Dtype },
    /// A CPU kernel panicked while an array was computed.
    #[error("{0}")]
    Kernel(String),
    #[error("{path}: {message}")]
    File { path: String, message: String },
}

pub type Result<T> = std::result::Result<T, Error>;

/// How the message of a kernel's panic starts, which passes through MLX like any other.
pub(crate) const KERNEL: &str = "kernel ";

thread_local! {
    static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
}

extern "C" fn keep(message: *const c_char, _data: *mut c_void) {
    // SAFETY: mlx-c passes a null-terminated string that lives for the call.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    // mlx-c appends where in its own sources the message was raised, which helps nobody here.
    let message = message.split(" at /").next().unwrap_or_default().to_owned();
    MESSAGE.set(Some(message));
}

/// Must run before the first call into mlx-c on any thread; every way to make an array goes through it.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    // SAFETY: `keep` is a plain function without data, so nothing needs to be dropped.
    ONCE.call_once(|| unsafe { mlx_sys::mlx_set_error_handler(Some(keep), std::ptr::null_mut(), None) });
}

pub(crate) fn check(status: c_int) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    let message = MESSAGE.take().unwrap_or_else(|| "unknown error".into());
    Err(if message.starts_with(KERNEL) { Error::Kernel(message) } else { Error::Mlx(message) })
}
