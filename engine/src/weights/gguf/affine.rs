//! Block formats that are MLX quantized formats under another layout stay packed, without loss; the rest
//! can be quantized anew.

use half::f16;
use mlx_core::quant::{QuantMode, QuantSpec};

use super::blocks::{GgmlType, five_bits, half_at, q5_k_code, scale_min};

/// A matrix in MLX's layout: codes packed little end first along each row, a scale (and, in affine mode, a
/// bias) for each group of 32.
pub struct Affine {
    pub spec: QuantSpec,
    /// `[rows, cols · bits / 32]` uint32, as bytes.
    pub words: Vec<u8>,
    pub scales: Scales,
    pub biases: Option<Scales>,
}

/// `[rows, cols / 32]`, in the narrowest type that holds every value exactly.
pub enum Scales {
    F16(Vec<f16>),
    F32(Vec<f32>),
    /// Powers of two by exponent (MXFP4).
    E8m0(Vec<u8>),
}

/// The lossless form of a stored matrix, or `None` where MLX has no such format.
pub fn to_affine(kind: GgmlType, bytes: &[u8]) -> Option<Affine> {
    let (block, nbytes) = kind.block();
    let bits = match kind {
        GgmlType::Q4_0 | GgmlType::Q4_1 | GgmlType::Q4_K => 4,
        GgmlType::Q5_0 | GgmlType::Q5_1 | GgmlType::Q5_K => 5,
        GgmlType::Q8_0 => 8,
        GgmlType::MXFP4 => return Some(mxfp4(bytes)),
        _ => return None,
    };
    let groups = bytes.len() / nbytes * (block / 32);
    let mut out = Packer::new(bits, groups);
    for b in bytes.chunks_exact(nbytes) {
        let d = half_at(b, 0);
        match kind {
            GgmlType::Q4_0 => out.group(&nibble_codes(&b[2..18]), d, -8.0 * d),
            GgmlType::Q4_1 => out.group(&nibble_codes(&b[4..20]), d, half_at(b, 2)),
            GgmlType::Q5_0 => out.group(&five_bits(&b[2..6], &b[6..22]), d, -16.0 * d),
            GgmlType::Q5_1 => out.group(&five_bits(&b[4..8], &b[8..24]), d, half_at(b, 2)),
            GgmlType::Q8_0 => out.group(&std::array::from_fn(|i| b[2 + i] ^ 0x80), d, -128.0 * d),
            _ => k_block(kind, b, d, &mut out),
        }
    }
    Some(out.finish())
}

fn k_block(kind: GgmlType, b: &[u8], d: f32, out: &mut Packer) {
    let min = half_at(b, 2);
    for j in 0..8 {
        let (scale, m) = scale_min(&b[4..16], j);
        let code = |l: usize| match kind {
            GgmlType::Q4_K => b[16 + j / 2 * 32 + l] >> (j % 2 * 4) & 15,
            _ => q5_k_code(&b[16..48], &b[48..176], j, l),
        };
        out.group(&std::array::from_fn(code), d * f32::from(scale), -(min * f32::from(m)));
    }
}

fn nibble_codes(qs: &[u8]) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 })
}

/// The same codes and exponents as MLX's, in the order of the values.
fn mxfp4(bytes: &[u8]) -> Affine {
    let n = bytes.len() / 17;
    let (mut words, mut scales) = (Vec::with_capacity(n * 16), Vec::with_capacity(n));
    for b in bytes.chunks_exact(17) {
        scales.push(b[0]);
        words.extend(nibble_codes(&b[1..17]).chunks_exact(2).map(|pair| pair[0] | pair[1] << 4));
    }
    Affine { spec: QuantMode::Mxfp4.defaults(), words, scales: Scales::E8m0(scales), biases: None }
}

/// Quantizes rows of float32 to 8 bits in groups of 32, for formats that MLX lacks.
pub fn requantize(values: &[f32]) -> Affine {
    let mut out = Packer::new(8, values.len() / 32);
    for group in values.chunks_exact(32) {
        let min = group.iter().copied().fold(f32::INFINITY, f32::min);
        let max = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let scale = ((max - min) / 255.0).max(f32::MIN_POSITIVE);
        out.group(&std::array::from_fn(|i| ((group[i] - min) / scale).round() as u8), scale, min);
    }
    out.finish()
}

struct Packer {
    bits: usize,
    words: Vec<u8>,
    scales: Vec<f32>,
    biases: Vec<f32>,
}

impl Packer {
    fn new(bits: usize, groups: usize) -> Self {
        let vec = || Vec::with_capacity(groups);
        Self { bits, words: Vec::with_capacity(groups * bits * 4), scales: vec(), biases: vec() }
    }

    fn group(&mut self, codes: &[u8; 32], scale: f32, bias: f32) {
        match self.bits {
            8 => self.words.extend(codes),
            4 => self.words.extend(codes.chunks_exact(2).map(|pair| pair[0] | pair[1] << 4)),
            bits => {
                // Eight codes fill `bits` bytes.
                for eight in codes.chunks_exact(8) {
                    let packed = eight.iter().rev().fold(0u64, |acc, q| acc << bits | u64::from(*q));
                    self.words.extend(&packed.to_le_bytes()[..bits]);
                }
            }
        }
        self.scales.push(scale);
        self.biases.push(bias);
    }

    fn finish(self) -> Affine {
        let spec = QuantSpec { group_size: 32, bits: self.bits as i32, mode: QuantMode::Affine };
        let exact = |x: &f32| f16::from_f32(*x).to_f32() == *x;
        let narrow = self.scales.iter().chain(&self.biases).all(exact);
        let store = |x: Vec<f32>| match narrow {
            true => Scales::F16(x.iter().map(|x| f16::from_f32(*x)).collect()),
            false => Scales::F32(x),
        };
        Affine { spec, words: self.words, scales: store(self.scales), biases: Some(store(self.biases)) }
    }
}
