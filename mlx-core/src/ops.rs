//! Graph ops. Each builds a node and panics with its name and the operands' shapes on misuse.

use std::ffi::c_int;
use std::ops::Range;

use crate::array::{Array, Dtype, Vector, build};
use crate::stream;

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $c:ident),* $(,)?) => {
        impl Array { $(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self) -> Self {
                // SAFETY: handles are valid for the call, here and in the other ops of this file.
                build(stringify!($name), &[self], |out, s| unsafe { mlx_sys::$c(out, self.raw(), s) })
            }
        )* }
    };
}
macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $c:ident),* $(,)?) => {
        impl Array { $(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self, other: &Array) -> Self {
                build(stringify!($name), &[self, other], |out, s| {
                    // SAFETY: see `unary`.
                    unsafe { mlx_sys::$c(out, self.raw(), other.raw(), s) }
                })
            }
        )* }
    };
}
macro_rules! reductions {
    ($($name:ident => $c:ident),* $(,)?) => {
        impl Array { $(
            #[track_caller]
            pub fn $name(&self, axis: i32, keepdims: bool) -> Self {
                build(stringify!($name), &[self], |out, s| {
                    // SAFETY: see `unary`.
                    unsafe { mlx_sys::$c(out, self.raw(), axis, keepdims, s) }
                })
            }
        )* }
    };
}

unary!(
    exp => mlx_exp, log => mlx_log, log1p => mlx_log1p, sqrt => mlx_sqrt, rsqrt => mlx_rsqrt,
    square => mlx_square, abs => mlx_abs, sin => mlx_sin, cos => mlx_cos, tanh => mlx_tanh, erf => mlx_erf,
    sigmoid => mlx_sigmoid, floor => mlx_floor, negative => mlx_negative, logical_not => mlx_logical_not,
    isnan => mlx_isnan, isinf => mlx_isinf,
);
binary!(
    plus => mlx_add, minus => mlx_subtract, times => mlx_multiply, over => mlx_divide,
    power => mlx_power, maximum => mlx_maximum, minimum => mlx_minimum, logaddexp => mlx_logaddexp,
    eq => mlx_equal, ne => mlx_not_equal, lt => mlx_less, le => mlx_less_equal, gt => mlx_greater,
    ge => mlx_greater_equal, logical_and => mlx_logical_and, logical_or => mlx_logical_or,
    /// Quotient rounded down, of integers too.
    floor_divide => mlx_floor_divide,
    remainder => mlx_remainder, bitwise_and => mlx_bitwise_and, bitwise_or => mlx_bitwise_or,
    bitwise_xor => mlx_bitwise_xor, left_shift => mlx_left_shift, right_shift => mlx_right_shift,
    /// Matrix product over the last two axes, broadcasting the others.
    matmul => mlx_matmul,
    outer => mlx_outer,
);
reductions!(
    sum => mlx_sum_axis, mean => mlx_mean_axis, max => mlx_max_axis, min => mlx_min_axis,
    argmax => mlx_argmax_axis, argmin => mlx_argmin_axis, any => mlx_any_axis, all => mlx_all_axis,
    prod => mlx_prod_axis, logsumexp => mlx_logsumexp_axis,
);

/// Factories.
impl Array {
    pub fn zeros(shape: &[i32], dtype: Dtype) -> Self {
        // SAFETY: see `unary`.
        build("zeros", &[], |out, s| unsafe {
            mlx_sys::mlx_zeros(out, shape.as_ptr(), shape.len(), dtype.raw(), s)
        })
    }

    pub fn ones(shape: &[i32], dtype: Dtype) -> Self {
        // SAFETY: see `unary`.
        build("ones", &[], |out, s| unsafe {
            mlx_sys::mlx_ones(out, shape.as_ptr(), shape.len(), dtype.raw(), s)
        })
    }

    pub fn full(shape: &[i32], value: f32, dtype: Dtype) -> Self {
        let value = Self::scalar(value);
        // SAFETY: see `unary`.
        build("full", &[], |out, s| unsafe {
            mlx_sys::mlx_full(out, shape.as_ptr(), shape.len(), value.raw(), dtype.raw(), s)
        })
    }

    /// `start, start + step, …` below `stop`.
    pub fn arange(start: f64, stop: f64, step: f64, dtype: Dtype) -> Self {
        // SAFETY: see `unary`.
        build("arange", &[], |out, s| unsafe { mlx_sys::mlx_arange(out, start, stop, step, dtype.raw(), s) })
    }
}

/// Shapes.
impl Array {
    #[track_caller]
    pub fn reshape(&self, shape: &[i32]) -> Self {
        // SAFETY: see `unary`.
        build("reshape", &[self], |out, s| unsafe {
            mlx_sys::mlx_reshape(out, self.raw(), shape.as_ptr(), shape.len(), s)
        })
    }

    #[track_caller]
    pub fn transpose(&self, axes: &[i32]) -> Self {
        // SAFETY: see `unary`.
        build("transpose", &[self], |out, s| unsafe {
            mlx_sys::mlx_transpose_axes(out, self.raw(), axes.as_ptr(), axes.len(), s)
        })
    }

    #[track_caller]
    pub fn swap_axes(&self, a: i32, b: i32) -> Self {
        // SAFETY: see `unary`.
        build("swap_axes", &[self], |out, s| unsafe { mlx_sys::mlx_swapaxes(out, self.raw(), a, b, s) })
    }

    #[track_caller]
    pub fn expand_dims(&self, axis: i32) -> Self {
        // SAFETY: see `unary`.
        build("expand_dims", &[self], |out, s| unsafe { mlx_sys::mlx_expand_dims(out, self.raw(), axis, s) })
    }

    #[track_caller]
    pub fn squeeze(&self, axes: &[i32]) -> Self {
        // SAFETY: see `unary`.
        build("squeeze", &[self], |out, s| unsafe {
            mlx_sys::mlx_squeeze_axes(out, self.raw(), axes.as_ptr(), axes.len(), s)
        })
    }

    #[track_caller]
    pub fn broadcast_to(&self, shape: &[i32]) -> Self {
        // SAFETY: see `unary`.
        build("broadcast_to", &[self], |out, s| unsafe {
            mlx_sys::mlx_broadcast_to(out, self.raw(), shape.as_ptr(), shape.len(), s)
        })
    }

    /// Repeats each entry of `axis` `n` times, in place.
    #[track_caller]
    pub fn repeat(&self, n: i32, axis: i32) -> Self {
        // SAFETY: see `unary`.
        build("repeat", &[self], |out, s| unsafe { mlx_sys::mlx_repeat_axis(out, self.raw(), n, axis, s) })
    }

    /// Axes `first` to `last` as one.
    #[track_caller]
    pub fn flatten(&self, first: i32, last: i32) -> Self {
        // SAFETY: see `unary`.
        build("flatten", &[self], |out, s| unsafe { mlx_sys::mlx_flatten(out, self.raw(), first, last, s) })
    }

    /// The whole, `repeats[i]` times along axis `i`.
    #[track_caller]
    pub fn tile(&self, repeats: &[i32]) -> Self {
        // SAFETY: see `unary`.
        build("tile", &[self], |out, s| unsafe {
            mlx_sys::mlx_tile(out, self.raw(), repeats.as_ptr(), repeats.len(), s)
        })
    }

    /// Keeps what lies on or below diagonal `k` of the last two axes, and zeros the rest.
    #[track_caller]
    pub fn tril(&self, k: i32) -> Self {
        // SAFETY: see `unary`.
        build("tril", &[self], |out, s| unsafe { mlx_sys::mlx_tril(out, self.raw(), k, s) })
    }

    /// Keeps what lies on or above diagonal `k` of the last two axes, and zeros the rest.
    #[track_caller]
    pub fn triu(&self, k: i32) -> Self {
        // SAFETY: see `unary`.
        build("triu", &[self], |out, s| unsafe { mlx_sys::mlx_triu(out, self.raw(), k, s) })
    }

    /// Entries `range` of `axis` (negative axes count from the end).
    #[track_caller]
    pub fn slice(&self, axis: i32, range: Range<i32>) -> Self {
        self.slice_step(axis, range, 1)
    }

    /// Every `step`th of the entries `range` of `axis`.
    #[track_caller]
    pub fn slice_step(&self, axis: i32, range: Range<i32>, step: i32) -> Self {
        let n = self.ndim();
        let axis = if axis < 0 { axis + n as i32 } else { axis } as usize;
        assert!(
            axis < n && n <= MAX_DIMS && 0 <= range.start && range.start <= range.end && 0 < step,
            "slice {range:?} of axis {axis} of {self:?}"
        );
        assert!(range.end <= self.shape()[axis], "slice {range:?} of axis {axis} of {self:?}");
        let (mut start, mut stop, mut steps) = ([0; MAX_DIMS], [0; MAX_DIMS], ONES);
        stop[..n].copy_from_slice(self.shape());
        (start[axis], stop[axis], steps[axis]) = (range.start, range.end, step);
        // SAFETY: see `unary`; the three arrays have `n` entries.
        build("slice", &[self], |out, s| unsafe {
            let raw = self.raw();
            mlx_sys::mlx_slice(out, raw, start.as_ptr(), n, stop.as_ptr(), n, steps.as_ptr(), n, s)
        })
    }

    /// Writes `update` into `self` with its first element at `start`. Consumes the handle, so that MLX writes
    /// in place when it was the only one.
    #[track_caller]
    pub fn slice_update(self, update: &Array, start: &[i32]) -> Self {
        let n = self.ndim();
        assert!(
            start.len() == n && update.ndim() == n,
            "slice_update of {self:?} by {update:?} at {start:?}"
        );
        let stop: Vec<i32> = start.iter().zip(update.shape()).map(|(a, b)| a + b).collect();
        let fits = stop.iter().zip(self.shape()).all(|(stop, dim)| stop <= dim);
        assert!(fits && start.iter().all(|&s| 0 <= s), "slice_update of {self:?} by {update:?} at {start:?}");
        // SAFETY: see `unary`; the three arrays have `n` entries.
        build("slice_update", &[&self, update], |out, s| unsafe {
            let (to, by) = (self.raw(), update.raw());
            mlx_sys::mlx_slice_update(out, to, by, start.as_ptr(), n, stop.as_ptr(), n, ONES.as_ptr(), n, s)
        })
    }

    #[track_caller]
    pub fn concat(parts: &[&Array], axis: i32) -> Self {
        if let [one] = parts {
            return (*one).clone();
        }
        let vector = Vector::new(parts.iter().copied());
        // SAFETY: see `unary`.
        build("concat", parts, |out, s| unsafe { mlx_sys::mlx_concatenate_axis(out, vector.raw, axis, s) })
    }

    #[track_caller]
    pub fn stack(parts: &[&Array], axis: i32) -> Self {
        let vector = Vector::new(parts.iter().copied());
        // SAFETY: see `unary`.
        build("stack", parts, |out, s| unsafe { mlx_sys::mlx_stack_axis(out, vector.raw, axis, s) })
    }

    /// Pads `axis` with zeros.
    #[track_caller]
    pub fn pad(&self, axis: i32, before: i32, after: i32) -> Self {
        let zero = Self::zeros(&[], self.dtype());
        // SAFETY: see `unary`.
        build("pad", &[self], |out, s| unsafe {
            let mode = c"constant".as_ptr();
            mlx_sys::mlx_pad(out, self.raw(), &axis, 1, &before, 1, &after, 1, zero.raw(), mode, s)
        })
    }

    /// Row-major, copied only if it is not.
    pub fn contiguous(&self) -> Self {
        // SAFETY: see `unary`.
        build("contiguous", &[self], |out, s| unsafe { mlx_sys::mlx_contiguous(out, self.raw(), false, s) })
    }
}

/// Types.
impl Array {
    pub fn astype(&self, dtype: Dtype) -> Self {
        if self.dtype() == dtype {
            return self.clone();
        }
        // SAFETY: see `unary`.
        build("astype", &[self], |out, s| unsafe { mlx_sys::mlx_astype(out, self.raw(), dtype.raw(), s) })
    }

    /// Decodes bytes as 8-bit floats (e4m3).
    #[track_caller]
    pub fn from_fp8(&self, dtype: Dtype) -> Self {
        // SAFETY: see `unary`.
        build("from_fp8", &[self], |out, s| unsafe { mlx_sys::mlx_from_fp8(out, self.raw(), dtype.raw(), s) })
    }

    /// The same bytes as another type, which is not boolean: not every byte is one.
    #[track_caller]
    pub fn view(&self, dtype: Dtype) -> Self {
        assert_ne!(dtype, Dtype::Bool, "view of {self:?}");
        // SAFETY: see `unary`.
        build("view", &[self], |out, s| unsafe { mlx_sys::mlx_view(out, self.raw(), dtype.raw(), s) })
    }
}

/// Nonlinearities.
impl Array {
    /// To the nearest whole number, halves to the even one.
    pub fn round(&self) -> Self {
        // SAFETY: see `unary`.
        build("round", &[self], |out, s| unsafe { mlx_sys::mlx_round(out, self.raw(), 0, s) })
    }

    pub fn silu(&self) -> Self {
        self * &self.sigmoid()
    }

    pub fn relu(&self) -> Self {
        self.maximum(&self.constant(0.0))
    }

    /// Exact, by the error function.
    pub fn gelu(&self) -> Self {
        &(self * &(&(self * std::f32::consts::FRAC_1_SQRT_2).erf() + 1.0)) * 0.5
    }

    /// The tanh approximation.
    pub fn gelu_approx(&self) -> Self {
        const SQRT_2_OVER_PI: f32 = 0.797_884_6;
        let inner = &(self + &(&(self * &self.square()) * 0.044_715)) * SQRT_2_OVER_PI;
        &(self * &(&inner.tanh() + 1.0)) * 0.5
    }

    pub fn softplus(&self) -> Self {
        self.logaddexp(&self.constant(0.0))
    }

    pub fn clip(&self, min: f32, max: f32) -> Self {
        self.maximum(&self.constant(min)).minimum(&self.constant(max))
    }

    /// `precise` sums in float32 whatever the type.
    #[track_caller]
    pub fn softmax(&self, axis: i32, precise: bool) -> Self {
        // SAFETY: see `unary`.
        build("softmax", &[self], |out, s| unsafe {
            mlx_sys::mlx_softmax_axis(out, self.raw(), axis, precise, s)
        })
    }
}

/// Order, choice and gathers.
impl Array {
    #[track_caller]
    fn by_axis(
        &self,
        op: &str,
        axis: i32,
        f: unsafe extern "C" fn(
            *mut mlx_sys::mlx_array,
            mlx_sys::mlx_array,
            c_int,
            mlx_sys::mlx_stream,
        ) -> c_int,
    ) -> Self {
        // SAFETY: see `unary`.
        build(op, &[self], |out, s| unsafe { f(out, self.raw(), axis, s) })
    }

    #[track_caller]
    pub fn sort(&self, axis: i32) -> Self {
        self.by_axis("sort", axis, mlx_sys::mlx_sort_axis)
    }

    #[track_caller]
    pub fn argsort(&self, axis: i32) -> Self {
        self.by_axis("argsort", axis, mlx_sys::mlx_argsort_axis)
    }

    /// Indices such that the `kth` entry is where sorting would put it.
    #[track_caller]
    pub fn argpartition(&self, kth: i32, axis: i32) -> Self {
        // SAFETY: see `unary`.
        build("argpartition", &[self], |out, s| unsafe {
            mlx_sys::mlx_argpartition_axis(out, self.raw(), kth, axis, s)
        })
    }

    /// The `k` largest entries, in no order.
    #[track_caller]
    pub fn topk(&self, k: i32, axis: i32) -> Self {
        // SAFETY: see `unary`.
        build("topk", &[self], |out, s| unsafe { mlx_sys::mlx_topk_axis(out, self.raw(), k, axis, s) })
    }

    #[track_caller]
    pub fn cumsum(&self, axis: i32, reverse: bool, inclusive: bool) -> Self {
        // SAFETY: see `unary`.
        build("cumsum", &[self], |out, s| unsafe {
            mlx_sys::mlx_cumsum_axis(out, self.raw(), axis, reverse, inclusive, NO_DTYPE, s)
        })
    }

    /// `self ? a : b`, element by element.
    #[track_caller]
    pub fn where_(&self, a: &Array, b: &Array) -> Self {
        // SAFETY: see `unary`.
        build("where", &[self, a, b], |out, s| unsafe {
            mlx_sys::mlx_where(out, self.raw(), a.raw(), b.raw(), s)
        })
    }

    /// Entries `indices` of `axis`.
    #[track_caller]
    pub fn take(&self, indices: &Array, axis: i32) -> Self {
        // SAFETY: see `unary`.
        build("take", &[self, indices], |out, s| unsafe {
            mlx_sys::mlx_take_axis(out, self.raw(), indices.raw(), axis, s)
        })
    }

    #[track_caller]
    pub fn take_along_axis(&self, indices: &Array, axis: i32) -> Self {
        // SAFETY: see `unary`.
        build("take_along_axis", &[self, indices], |out, s| unsafe {
            mlx_sys::mlx_take_along_axis(out, self.raw(), indices.raw(), axis, s)
        })
    }

    #[track_caller]
    pub fn put_along_axis(&self, indices: &Array, values: &Array, axis: i32) -> Self {
        // SAFETY: see `unary`.
        build("put_along_axis", &[self, indices, values], |out, s| unsafe {
            mlx_sys::mlx_put_along_axis(out, self.raw(), indices.raw(), values.raw(), axis, s)
        })
    }

    /// Causal-free convolution over axis 1: `[B, T, C]` by `[out, width, C / groups]`.
    #[track_caller]
    pub fn conv1d(&self, weight: &Array, groups: i32) -> Self {
        // SAFETY: see `unary`.
        build("conv1d", &[self, weight], |out, s| unsafe {
            mlx_sys::mlx_conv1d(out, self.raw(), weight.raw(), 1, 0, 1, groups, s)
        })
    }

    /// Splits `axis` at the given indices.
    #[track_caller]
    pub fn split(&self, indices: &[i32], axis: i32) -> Vec<Self> {
        let mut parts = Vector::empty();
        // SAFETY: see `unary`.
        let status = unsafe {
            let s = stream::current();
            mlx_sys::mlx_split_sections(&mut parts.raw, self.raw(), indices.as_ptr(), indices.len(), axis, s)
        };
        if let Err(err) = crate::error::check(status) {
            panic!("split of {self:?} at {indices:?}: {err}");
        }
        parts.to_arrays()
    }
}

/// MLX arrays of language models have at most this many axes.
const MAX_DIMS: usize = 8;
const ONES: [i32; MAX_DIMS] = [1; MAX_DIMS];
const NO_DTYPE: mlx_sys::mlx_optional_dtype = mlx_sys::mlx_optional_dtype { value: 0, has_value: false };
