//! Norms and nonlinearities of single rows, with the same bits on every instruction set: sums run in 16 lanes
//! that meet in one order, and every step is an IEEE operation or a fused multiply-add.

use super::isa::multiversion;
use crate::projection::Act;

multiversion! {
    /// `out = x / sqrt(mean(x²) + eps) · weight`.
    pub fn rms_norm(isa; x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        let mut lanes = [0f32; 16];
        let chunks = x.chunks_exact(16);
        for (lane, v) in lanes.iter_mut().zip(chunks.remainder()) {
            *lane = v * v;
        }
        for chunk in chunks {
            for (lane, v) in lanes.iter_mut().zip(chunk) {
                *lane = v.mul_add(*v, *lane);
            }
        }
        let scale = (tree(lanes) / x.len() as f32 + eps).sqrt().recip();
        for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * w;
        }
    }
}

multiversion! {
    /// `out = (x - mean(x)) / sqrt(variance(x) + eps) · weight + bias`; an empty weight or bias is left out.
    pub fn layer_norm(isa; x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
        let chunks = x.chunks_exact(16);
        let mut lanes = [0f32; 16];
        for (lane, v) in lanes.iter_mut().zip(chunks.remainder()) {
            *lane = *v;
        }
        for chunk in chunks.clone() {
            for (lane, v) in lanes.iter_mut().zip(chunk) {
                *lane += v;
            }
        }
        let mean = tree(lanes) / x.len() as f32;
        let mut lanes = [0f32; 16];
        for (lane, v) in lanes.iter_mut().zip(chunks.remainder()) {
            *lane = (v - mean) * (v - mean);
        }
        for chunk in chunks {
            for (lane, v) in lanes.iter_mut().zip(chunk) {
                *lane = (v - mean).mul_add(v - mean, *lane);
            }
        }
        let scale = (tree(lanes) / x.len() as f32 + eps).sqrt().recip();
        for (out, x) in out.iter_mut().zip(x) {
            *out = (x - mean) * scale;
        }
        for (out, w) in out.iter_mut().zip(weight) {
            *out *= w;
        }
        for (out, b) in out.iter_mut().zip(bias) {
            *out += b;
        }
    }
}

multiversion! {
    /// `out = act(gate) · up`; `out` may start as anything.
    pub fn glu(isa; act: Act, gate: &[f32], up: &[f32], out: &mut [f32]) {
        match act {
            Act::Silu => {
                for ((out, g), u) in out.iter_mut().zip(gate).zip(up) {
                    *out = g / (1.0 + exp(-g)) * u;
                }
            }
            Act::GeluTanh => {
                for ((out, g), u) in out.iter_mut().zip(gate).zip(up) {
                    // tanh(z) = 1 - 2 / (exp(2z) + 1)
                    let z = 0.797_884_6 * (0.044_715 * g * g).mul_add(*g, *g);
                    *out = g * (1.0 - 1.0 / (exp(2.0 * z) + 1.0)) * u;
                }
            }
            Act::Gelu => {
                for ((out, g), u) in out.iter_mut().zip(gate).zip(up) {
                    *out = 0.5 * g * (1.0 + erf(g * std::f32::consts::FRAC_1_SQRT_2)) * u;
                }
            }
        }
    }
}

multiversion! {
    /// `out += x`.
    pub fn add(isa; x: &[f32], out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out += x;
        }
    }
}

multiversion! {
    /// The first of the largest entries, and its log-probability under softmax; NaN if any entry is.
    pub fn pick(isa; x: &[f32], id: &mut u32, logprob: &mut f32) {
        let mut tops = [f32::NEG_INFINITY; 16];
        let mut bad = [false; 16];
        let chunks = x.chunks_exact(16);
        let rest = chunks.remainder();
        for chunk in chunks.clone() {
            for ((top, bad), v) in tops.iter_mut().zip(&mut bad).zip(chunk) {
                *top = if *v > *top { *v } else { *top };
                *bad |= v.is_nan();
            }
        }
        let top = tops.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sums = [0f32; 16];
        for chunk in chunks {
            for (sum, v) in sums.iter_mut().zip(chunk) {
                *sum += exp(v - top);
            }
        }
        for (sum, v) in sums.iter_mut().zip(rest) {
            *sum += exp(v - top);
        }
        let broken = bad.contains(&true) || rest.iter().any(|v| v.is_nan());
        *id = x.iter().position(|v| *v == top).unwrap_or(0) as u32;
        *logprob = if broken { f32::NAN } else { -tree(sums).ln() };
    }
}

/// Sum of 16 lanes: halves, quarters, …
#[inline(always)]
pub(super) fn tree(mut lanes: [f32; 16]) -> f32 {
    let mut width = 8;
    while 0 < width {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// ln(2)^i / i!: 2^f on [-1/2, 1/2].
const POWERS: [f32; 8] = [
    1.0,
    std::f32::consts::LN_2,
    0.240_226_5,
    0.055_504_11,
    0.009_618_129,
    0.001_333_355_8,
    0.000_154_035_3,
    0.000_015_252_734,
];

/// 2^x, clamped to the normal range; NaN stays NaN.
#[inline(always)]
pub(super) fn exp2(x: f32) -> f32 {
    // `clamp` keeps NaN.
    let x = x.clamp(-126.0, 127.0);
    let n = x.round_ties_even();
    let f = x - n;
    let mut p = POWERS[7];
    for c in POWERS[..7].iter().rev() {
        p = p.mul_add(f, *c);
    }
    p * f32::from_bits(((n as i32 + 127) << 23) as u32)
}

#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // x · log2(e) in two parts, so that large arguments keep their digits.
    const HIGH: f32 = std::f32::consts::LOG2_E;
    const LOW: f32 = 1.925_963_e-8;
    // Infinities have no low part; `exp2` is at its ends by then.
    let x = x.clamp(-88.0, 89.0);
    let high = x * HIGH;
    let low = x.mul_add(HIGH, -high) + x * LOW;
    exp2(high) * low.mul_add(std::f32::consts::LN_2, 1.0)
}

/// Abramowitz and Stegun 7.1.26 is too coarse here; this is their 7.1.28 taken further: an odd polynomial near
/// zero, and the complement through `exp` elsewhere (W. J. Cody, 1969).
#[inline(always)]
fn erf(x: f32) -> f32 {
    let a = x.abs();
    let t = 1.0 / 0.327_591_1f32.mul_add(a, 1.0);
    let poly = [1.061_405_4, -1.453_152, 1.421_413_8, -0.284_496_72, 0.254_829_6];
    let far = 1.0 - poly.iter().fold(0f32, |p, c| p.mul_add(t, *c)) * t * exp(-a * a);
    // Taylor series, exact to rounding below 1/2.
    let z = x * x;
    let series = [-1.0 / 1320.0, 1.0 / 216.0, -1.0 / 42.0, 0.1, -1.0 / 3.0, 1.0];
    let near = x * series.iter().fold(0f32, |p, c| p.mul_add(z, *c)) * std::f32::consts::FRAC_2_SQRT_PI;
    if a < 0.5 { near } else { far.copysign(x) }
}
