//! Random arrays by explicit key, so that a value depends on nothing but the key.

use crate::array::{Array, Dtype, build};
use crate::error::{check, install};
use crate::stream;

/// A key, `[2]` uint32.
pub fn key(seed: u64) -> Array {
    install();
    // SAFETY: plain constructors, here and below; handles are valid for the call.
    unsafe {
        let mut raw = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_random_key(&mut raw, seed);
        check(status).expect("a key is two words");
        Array::from_raw(raw)
    }
}

/// Two independent keys.
pub fn split(key: &Array) -> (Array, Array) {
    // SAFETY: see `key`.
    unsafe {
        let (mut a, mut b) = (mlx_sys::mlx_array_new(), mlx_sys::mlx_array_new());
        let status = mlx_sys::mlx_random_split(&mut a, &mut b, key.raw(), stream::current());
        check(status).unwrap_or_else(|err| panic!("split of {key:?}: {err}"));
        (Array::from_raw(a), Array::from_raw(b))
    }
}

/// Uniform in `[low, high)`.
pub fn uniform(low: f32, high: f32, shape: &[i32], dtype: Dtype, key: &Array) -> Array {
    let (low, high) = (Array::scalar(low), Array::scalar(high));
    // SAFETY: see `key`.
    build("uniform", &[key], |out, s| unsafe {
        let (low, high) = (low.raw(), high.raw());
        mlx_sys::mlx_random_uniform(out, low, high, shape.as_ptr(), shape.len(), dtype.raw(), key.raw(), s)
    })
}

pub fn normal(mean: f32, std: f32, shape: &[i32], dtype: Dtype, key: &Array) -> Array {
    // SAFETY: see `key`.
    build("normal", &[key], |out, s| unsafe {
        mlx_sys::mlx_random_normal(out, shape.as_ptr(), shape.len(), dtype.raw(), mean, std, key.raw(), s)
    })
}

/// Draws from `softmax(logits)` over `axis`.
pub fn categorical(logits: &Array, axis: i32, key: &Array) -> Array {
    // SAFETY: see `key`.
    build("categorical", &[logits, key], |out, s| unsafe {
        mlx_sys::mlx_random_categorical(out, logits.raw(), axis, key.raw(), s)
    })
}

/// Gumbel noise: `argmax(logits + gumbel)` draws from `softmax(logits)`.
pub fn gumbel(shape: &[i32], dtype: Dtype, key: &Array) -> Array {
    // SAFETY: see `key`.
    build("gumbel", &[key], |out, s| unsafe {
        mlx_sys::mlx_random_gumbel(out, shape.as_ptr(), shape.len(), dtype.raw(), key.raw(), s)
    })
}

/// Uniform uint32.
pub fn bits(shape: &[i32], key: &Array) -> Array {
    // SAFETY: see `key`.
    build("bits", &[key], |out, s| unsafe {
        mlx_sys::mlx_random_bits(out, shape.as_ptr(), shape.len(), 4, key.raw(), s)
    })
}
