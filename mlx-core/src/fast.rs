//! MLX's fused ops.

use std::ffi::c_int;

use crate::array::{Array, Vector, build};
use crate::{error, stream};

/// Where a rotation starts: one position for all rows, or one for each.
pub enum Offset<'a> {
    Scalar(i32),
    /// `[B]` int32.
    Array(&'a Array),
}

/// Which positions a query sees.
pub enum Mask<'a> {
    None,
    /// Queries are the last positions.
    Causal,
    /// Broadcasts to `[B, H, T, S]`: true where a query sees, or a term to add to the scores.
    Array(&'a Array),
}

/// `x / rms(x) · weight` over the last axis.
#[track_caller]
pub fn rms_norm(x: &Array, weight: Option<&Array>, eps: f32) -> Array {
    // SAFETY: handles are valid for the call, here and below; a null handle means none.
    build("rms_norm", &[x, weight.unwrap_or(x)], |out, s| unsafe {
        mlx_sys::mlx_fast_rms_norm(out, x.raw(), raw(weight), eps, s)
    })
}

#[track_caller]
pub fn layer_norm(x: &Array, weight: Option<&Array>, bias: Option<&Array>, eps: f32) -> Array {
    // SAFETY: see `rms_norm`.
    build("layer_norm", &[x], |out, s| unsafe {
        mlx_sys::mlx_fast_layer_norm(out, x.raw(), raw(weight), raw(bias), eps, s)
    })
}

/// Rotates the first `dims` entries of the last axis of `x: [B, …, T, D]`. Give `base` or `freqs` (periods,
/// `[dims / 2]`), not both.
#[track_caller]
pub fn rope(
    x: &Array,
    dims: i32,
    traditional: bool,
    base: Option<f32>,
    scale: f32,
    offset: Offset<'_>,
    freqs: Option<&Array>,
) -> Array {
    let base = mlx_sys::mlx_optional_float { value: base.unwrap_or(0.0), has_value: base.is_some() };
    let freqs = raw(freqs);
    // SAFETY: see `rms_norm`.
    build("rope", &[x], |out, s| unsafe {
        match offset {
            Offset::Scalar(at) => {
                mlx_sys::mlx_fast_rope(out, x.raw(), dims, traditional, base, scale, at, freqs, s)
            }
            Offset::Array(at) => mlx_sys::mlx_fast_rope_dynamic(
                out,
                x.raw(),
                dims,
                traditional,
                base,
                scale,
                at.raw(),
                freqs,
                s,
            ),
        }
    })
}

/// Attention of `q: [B, H, T, D]` over `k, v: [B, Hkv, S, D]`; `sinks: [H]`.
#[track_caller]
pub fn sdpa(q: &Array, k: &Array, v: &Array, scale: f32, mask: Mask<'_>, sinks: Option<&Array>) -> Array {
    let (mode, mask) = match mask {
        Mask::None => (c"", None),
        Mask::Causal => (c"causal", None),
        Mask::Array(mask) => (c"array", Some(mask)),
    };
    // SAFETY: see `rms_norm`.
    build("scaled_dot_product_attention", &[q, k, v], |out, s| unsafe {
        let (q, k, v) = (q.raw(), k.raw(), v.raw());
        let mode = mode.as_ptr();
        mlx_sys::mlx_fast_scaled_dot_product_attention(
            out,
            q,
            k,
            v,
            scale,
            mode,
            raw(mask),
            raw(sinks),
            false,
            s,
        )
    })
}

/// The gated delta rule, arXiv 2412.06464: `q, k: [B, T, Hk, Dk]`, `v: [B, T, Hv, Dv]`, `gates, beta:
/// [B, T, Hv]`, `state: [B, Hv, Dv, Dk]`. Returns the outputs and the new state.
#[track_caller]
pub fn gated_delta_update(
    q: &Array,
    k: &Array,
    v: &Array,
    gates: &Array,
    beta: &Array,
    state: Option<&Array>,
) -> (Array, Array) {
    let mut results = Vector::empty();
    // SAFETY: see `rms_norm`.
    let status = unsafe {
        let (q, k, v) = (q.raw(), k.raw(), v.raw());
        let s = stream::current();
        forerun_gated_delta_update(
            &mut results.raw,
            q,
            k,
            v,
            gates.raw(),
            beta.raw(),
            raw(state),
            raw(None),
            s,
        )
    };
    if let Err(err) = error::check(status) {
        panic!("gated_delta_update of {:?}: {err}", [q, k, v, gates, beta]);
    }
    let [out, state] = results.to_arrays().try_into().expect("the op has two results");
    (out, state)
}

/// A null handle for an absent operand.
pub(crate) fn raw(x: Option<&Array>) -> mlx_sys::mlx_array {
    x.map_or(mlx_sys::mlx_array { ctx: std::ptr::null_mut() }, Array::raw)
}

unsafe extern "C" {
    fn forerun_gated_delta_update(
        results: *mut mlx_sys::mlx_vector_array,
        queries: mlx_sys::mlx_array,
        keys: mlx_sys::mlx_array,
        values: mlx_sys::mlx_array,
        gates: mlx_sys::mlx_array,
        beta: mlx_sys::mlx_array,
        state: mlx_sys::mlx_array,
        mask: mlx_sys::mlx_array,
        stream: mlx_sys::mlx_stream,
    ) -> c_int;
}
