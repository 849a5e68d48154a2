//! What kernels are tested against: float64, and quantized matrices made at random.

use crate::quant::{QuantMode, QuantSpec};

/// SplitMix64.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    pub(super) fn normal(&mut self) -> f32 {
        let (u, v) = (self.uniform().max(1e-7), self.uniform());
        (-2.0 * u.ln()).sqrt() * (std::f32::consts::TAU * v).cos()
    }

    /// Rows as hidden states are: a few entries far larger than the rest.
    pub(super) fn activations(&mut self, m: usize, k: usize) -> Vec<f32> {
        (0..m * k).map(|_| self.normal() * if self.uniform() < 0.01 { 10.0 } else { 1.0 }).collect()
    }
}

/// A random quantized matrix: MLX's words, scales and biases, and its values in float64.
pub(super) struct Quantized {
    pub(super) words: Vec<u32>,
    pub(super) scales: Vec<f32>,
    pub(super) biases: Vec<f32>,
    pub(super) bytes: Vec<u8>,
    pub(super) values: Vec<f64>,
}

pub(super) fn quantized(rng: &mut Rng, spec: QuantSpec, n: usize, k: usize) -> Quantized {
    let (bits, group) = (spec.bits as usize, spec.group_size as usize);
    let words: Vec<u32> = (0..n * k * bits / 32).map(|_| rng.next() as u32).collect();
    let groups = n * k / group;
    // Exact in every scale type.
    let scales: Vec<f32> = (0..groups).map(|_| (1.0 + (rng.next() % 64) as f32) / 2048.0).collect();
    let biases: Vec<f32> = (0..groups).map(|_| ((rng.next() % 128) as f32 - 64.0) / 256.0).collect();
    let bytes: Vec<u8> = (0..groups)
        .map(|_| match spec.mode {
            QuantMode::Nvfp4 => 0x20 + (rng.next() % 24) as u8,
            _ => 118 + (rng.next() % 6) as u8,
        })
        .collect();
    let e2m1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let value = |i: usize| {
        let (row, col) = (i / k, i % k);
        let bit = col * bits;
        let at = row * k * bits / 32 + bit / 32;
        let both = u64::from(words[at]) | words.get(at + 1).map_or(0, |w| u64::from(*w) << 32);
        let code = both >> (bit % 32) & ((1 << bits) - 1);
        let g = i / group;
        let fp4 = || if code < 8 { e2m1[code as usize] } else { -e2m1[code as usize - 8] };
        match spec.mode {
            QuantMode::Affine => f64::from(scales[g]) * code as f64 + f64::from(biases[g]),
            QuantMode::Nvfp4 => {
                let (e, m) = (i32::from(bytes[g] >> 3 & 15), f64::from(bytes[g] & 7));
                fp4() * if e == 0 { m * 2f64.powi(-9) } else { (8.0 + m) * 2f64.powi(e - 10) }
            }
            _ => fp4() * 2f64.powi(i32::from(bytes[g]) - 127),
        }
    };
    let values = (0..n * k).map(value).collect();
    Quantized { words, scales, biases, bytes, values }
}

/// `x · wᵀ` in float64.
pub(super) fn matmul(x: &[f32], w: &[f64], k: usize) -> Vec<f64> {
    let dot = |x: &[f32], w: &[f64]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * w).sum();
    x.chunks_exact(k).flat_map(|x| w.chunks_exact(k).map(move |w| dot(x, w))).collect()
}

/// Root mean square of the error over that of the values.
pub(super) fn rms_error(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let error: f64 = got.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    let size: f64 = want.iter().map(|b| b * b).sum();
    (error / size).sqrt()
}

pub(super) fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}
