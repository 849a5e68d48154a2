//! Quantized matrices in every format that MLX has: words of codes, scales by group and, in affine mode,
//! biases by group. Codes are packed little end first along a row.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;

use crate::array::{Array, Dtype, Vector, build};
use crate::fast::raw;
use crate::{error, stream};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuantMode {
    /// `scale · code + bias`, both of the float type of the checkpoint.
    Affine,
    /// OCP microscaling: e2m1 codes, e8m0 scales, groups of 32.
    Mxfp4,
    /// OCP microscaling: e4m3 codes, e8m0 scales, groups of 32.
    Mxfp8,
    /// e2m1 codes, e4m3 scales, groups of 16.
    Nvfp4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantSpec {
    pub group_size: i32,
    pub bits: i32,
    pub mode: QuantMode,
}

/// A combination that MLX has no kernels for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bits}-bit {mode} quantization in groups of {group_size} does not exist; {known}")]
pub struct Unsupported {
    bits: i32,
    mode: QuantMode,
    group_size: i32,
    known: &'static str,
}

impl QuantMode {
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Affine, Self::Mxfp4, Self::Mxfp8, Self::Nvfp4].into_iter().find(|m| m.to_string() == name)
    }

    fn c_name(self) -> &'static CStr {
        match self {
            Self::Affine => c"affine",
            Self::Mxfp4 => c"mxfp4",
            Self::Mxfp8 => c"mxfp8",
            Self::Nvfp4 => c"nvfp4",
        }
    }

    /// Group size and bits where a checkpoint names only the mode.
    pub fn defaults(self) -> QuantSpec {
        let (group_size, bits) = match self {
            Self::Affine => (64, 4),
            Self::Mxfp4 => (32, 4),
            Self::Mxfp8 => (32, 8),
            Self::Nvfp4 => (16, 4),
        };
        QuantSpec { group_size, bits, mode: self }
    }
}

impl fmt::Display for QuantMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.c_name().to_str().expect("mode names are ASCII"))
    }
}

impl QuantSpec {
    pub fn new(mode: QuantMode, group_size: i32, bits: i32) -> Result<Self, Unsupported> {
        let spec = Self { group_size, bits, mode };
        let (ok, known) = match mode {
            QuantMode::Affine => (
                [32, 64, 128].contains(&group_size) && [2, 3, 4, 5, 6, 8].contains(&bits),
                "affine has 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128",
            ),
            _ => (spec == mode.defaults(), "this mode has one size only"),
        };
        if ok { Ok(spec) } else { Err(Unsupported { bits, mode, group_size, known }) }
    }

    fn group(self) -> mlx_sys::mlx_optional_int {
        mlx_sys::mlx_optional_int { value: self.group_size, has_value: true }
    }

    fn width(self) -> mlx_sys::mlx_optional_int {
        mlx_sys::mlx_optional_int { value: self.bits, has_value: true }
    }
}

/// Words, scales and (affine) biases of `w: [out, in]`.
#[track_caller]
pub fn quantize(w: &Array, spec: QuantSpec) -> (Array, Array, Option<Array>) {
    let mut results = Vector::empty();
    // SAFETY: handles are valid for the call, here and below.
    let status = unsafe {
        let (mode, s) = (spec.mode.c_name().as_ptr(), stream::current());
        mlx_sys::mlx_quantize(&mut results.raw, w.raw(), spec.group(), spec.width(), mode, raw(None), s)
    };
    if let Err(err) = error::check(status) {
        panic!("quantize of {w:?} as {spec:?}: {err}");
    }
    let mut results = results.to_arrays().into_iter();
    let mut next = || results.next().expect("quantize gives words and scales");
    (next(), next(), results.next())
}

/// The matrix as `dtype`.
#[track_caller]
pub fn dequantize(
    words: &Array,
    scales: &Array,
    biases: Option<&Array>,
    spec: QuantSpec,
    dtype: Dtype,
) -> Array {
    let dtype = mlx_sys::mlx_optional_dtype { value: dtype.raw(), has_value: true };
    // SAFETY: see `quantize`.
    build("dequantize", &[words, scales], |out, s| unsafe {
        let (w, sc, b) = (words.raw(), scales.raw(), raw(biases));
        let mode = spec.mode.c_name().as_ptr();
        mlx_sys::mlx_dequantize(out, w, sc, b, spec.group(), spec.width(), mode, raw(None), dtype, s)
    })
}

/// `x · Wᵀ`: `x: [.., in]`, `[.., out]`.
#[track_caller]
pub fn quantized_matmul(
    x: &Array,
    words: &Array,
    scales: &Array,
    biases: Option<&Array>,
    spec: QuantSpec,
) -> Array {
    // SAFETY: see `quantize`.
    build("quantized_matmul", &[x, words, scales], |out, s| unsafe {
        let (x, w, sc, b) = (x.raw(), words.raw(), scales.raw(), raw(biases));
        let mode = spec.mode.c_name().as_ptr();
        mlx_sys::mlx_quantized_matmul(out, x, w, sc, b, true, spec.group(), spec.width(), mode, s)
    })
}

/// What [`gather_qmm`] multiplies by: stacked matrices `[E, out, …]`.
pub struct Experts<'a> {
    pub words: &'a Array,
    pub scales: &'a Array,
    pub biases: Option<&'a Array>,
    /// NVFP4's scale of each expert, `[E]`.
    pub global_scale: Option<&'a Array>,
    pub spec: QuantSpec,
}

/// `x[lhs] · W[rhs]ᵀ` for each pair of indices; `sorted` promises that `rhs` ascends.
#[track_caller]
pub fn gather_qmm(
    x: &Array,
    e: &Experts<'_>,
    lhs: Option<&Array>,
    rhs: Option<&Array>,
    sorted: bool,
) -> Array {
    // SAFETY: see `quantize`.
    build("gather_qmm", &[x, e.words, e.scales], |out, s| unsafe {
        let (w, sc, b, g) = (e.words.raw(), e.scales.raw(), raw(e.biases), raw(e.global_scale));
        let mode = e.spec.mode.c_name().as_ptr();
        let (group, bits) = (e.spec.group_size, e.spec.bits);
        forerun_gather_qmm(out, x.raw(), w, sc, b, raw(lhs), raw(rhs), group, bits, mode, g, sorted, s)
    })
}

/// `x[lhs] · w[rhs]` for each pair of indices, dense.
#[track_caller]
pub fn gather_mm(x: &Array, w: &Array, lhs: Option<&Array>, rhs: Option<&Array>, sorted: bool) -> Array {
    // SAFETY: see `quantize`.
    build("gather_mm", &[x, w], |out, s| unsafe {
        mlx_sys::mlx_gather_mm(out, x.raw(), w.raw(), raw(lhs), raw(rhs), sorted, s)
    })
}

unsafe extern "C" {
    fn forerun_gather_qmm(
        result: *mut mlx_sys::mlx_array,
        x: mlx_sys::mlx_array,
        w: mlx_sys::mlx_array,
        scales: mlx_sys::mlx_array,
        biases: mlx_sys::mlx_array,
        lhs: mlx_sys::mlx_array,
        rhs: mlx_sys::mlx_array,
        group_size: c_int,
        bits: c_int,
        mode: *const c_char,
        global_scale: mlx_sys::mlx_array,
        sorted: bool,
        stream: mlx_sys::mlx_stream,
    ) -> c_int;
}
