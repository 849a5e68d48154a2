//! How arrays compute: MLX through mlx-c, and our own CPU kernels behind the same functions.

mod array;
mod compile;
mod custom;
mod error;
mod operators;
mod ops;
mod stream;

pub mod attention;
pub mod experts;
pub mod fast;
pub mod file;
pub mod kernels;
pub mod memory;
pub mod projection;
pub mod quant;
pub mod random;

pub use array::{Array, Dtype, Element, async_eval, eval};
pub use compile::Compiled;
pub use custom::{Output, View, ViewMut, custom};
pub use error::{Error, Result};
pub use stream::{Device, Stream, synchronize};

/// Versions of MLX and mlx-c.
pub fn versions() -> (String, &'static str) {
    error::install();
    // SAFETY: the string is copied before it is freed.
    let mlx = unsafe {
        let mut string = mlx_sys::mlx_string_new();
        mlx_sys::mlx_version(&mut string);
        let text = std::ffi::CStr::from_ptr(mlx_sys::mlx_string_data(string)).to_string_lossy().into_owned();
        mlx_sys::mlx_string_free(string);
        text
    };
    (mlx, "0.7.0")
}

#[cfg(test)]
mod tests;
