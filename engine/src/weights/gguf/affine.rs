//! Block formats that are MLX quantized formats under another layout stay packed, without loss; the rest
//! are quantized anew, to 8 bits.

use half::f16;
use mlx_core::quant::{QuantMode, QuantSpec};

use super::blocks::{GgmlType, decode, five_bits, half_at, q5_k_code, scale_min};

/// Groups of a matrix in MLX's layout: codes packed little end first along each row, a scale (and, in affine mode, a
/// bias) for each group.
pub struct Packed {
    spec: QuantSpec,
    /// uint32, as bytes.
    words: Vec<u8>,
    /// The exponents of mxfp4 as they are.
    scales: Vec<f32>,
    biases: Vec<f32>,
}

/// The groups that one thread fills, in order.
pub struct Part<'a> {
    bits: usize,
    words: &'a mut [u8],
    scales: &'a mut [f32],
    biases: &'a mut [f32],
}

/// The MLX format that holds a stored one without loss.
pub fn spec_of(kind: GgmlType) -> Option<QuantSpec> {
    let affine = |bits| Some(QuantSpec { group_size: 32, bits, mode: QuantMode::Affine });
    match kind {
        GgmlType::Q4_0 | GgmlType::Q4_1 | GgmlType::Q4_K => affine(4),
        GgmlType::Q5_0 | GgmlType::Q5_1 | GgmlType::Q5_K => affine(5),
        GgmlType::Q8_0 => affine(8),
        GgmlType::MXFP4 => Some(QuantMode::Mxfp4.defaults()),
        _ => None,
    }
}

/// Whether halves hold every scale and bias exactly: a stored scale is a half, its bias a multiple that may be
/// too large for one.
pub fn is_narrow(kind: GgmlType, bytes: &[u8]) -> bool {
    let most = match kind {
        GgmlType::Q4_1 | GgmlType::Q5_1 => return true,
        GgmlType::Q4_0 => 8.0,
        GgmlType::Q5_0 => 16.0,
        GgmlType::Q8_0 => 128.0,
        _ => return false,
    };
    let fits = |b: &[u8]| (half_at(b, 0) * most).abs() <= f16::MAX.to_f32();
    bytes.chunks_exact(kind.block().1).all(fits)
}

/// Packs whole blocks.
pub fn pack(kind: GgmlType, bytes: &[u8], out: &mut Part<'_>) {
    for b in bytes.chunks_exact(kind.block().1) {
        let d = half_at(b, 0);
        match kind {
            GgmlType::Q4_0 => out.group(&nibble_codes(&b[2..18]), d, -8.0 * d),
            GgmlType::Q4_1 => out.group(&nibble_codes(&b[4..20]), d, half_at(b, 2)),
            GgmlType::Q5_0 => out.group(&five_bits(&b[2..6], &b[6..22]), d, -16.0 * d),
            GgmlType::Q5_1 => out.group(&five_bits(&b[4..8], &b[8..24]), d, half_at(b, 2)),
            GgmlType::Q8_0 => out.group(&std::array::from_fn(|i| b[2 + i] ^ 0x80), d, -128.0 * d),
            // The same codes and exponents as MLX's, in the order of the values.
            GgmlType::MXFP4 => out.group(&nibble_codes(&b[1..17]), f32::from(b[0]), 0.0),
            GgmlType::Q4_K | GgmlType::Q5_K => k_block(kind, b, d, out),
            _ => anew(kind, b, out),
        }
    }
}

fn k_block(kind: GgmlType, b: &[u8], d: f32, out: &mut Part<'_>) {
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

/// 8 bits in groups of 32, of a format that MLX lacks.
fn anew(kind: GgmlType, block: &[u8], out: &mut Part<'_>) {
    let mut values = [0.0; 256];
    let values = &mut values[..kind.block().0];
    decode(kind, block, values);
    for group in values.chunks_exact(32) {
        let min = group.iter().copied().fold(f32::INFINITY, f32::min);
        let max = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let scale = ((max - min) / 255.0).max(f32::MIN_POSITIVE);
        out.group(&std::array::from_fn(|i| ((group[i] - min) / scale).round() as u8), scale, min);
    }
}

fn nibble_codes(qs: &[u8]) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 })
}

impl Packed {
    pub fn new(spec: QuantSpec, groups: usize) -> Self {
        let biases = if spec.mode == QuantMode::Affine { groups } else { 0 };
        Self {
            spec,
            words: vec![0; groups * spec.bits as usize * 4],
            scales: vec![0.0; groups],
            biases: vec![0.0; biases],
        }
    }

    /// Parts of so many groups each, end to end.
    pub fn split(&mut self, groups: &[usize]) -> Vec<Part<'_>> {
        let bits = self.spec.bits as usize;
        let (mut words, mut scales, mut biases) =
            (self.words.as_mut_slice(), self.scales.as_mut_slice(), self.biases.as_mut_slice());
        let part = |n: &usize| Part {
            bits,
            words: words.split_off_mut(..n * bits * 4).unwrap_or_default(),
            scales: scales.split_off_mut(..*n).unwrap_or_default(),
            biases: biases.split_off_mut(..*n).unwrap_or_default(),
        };
        groups.iter().map(part).collect()
    }

    /// Words, scales, and in affine mode biases; the latter as halves if `narrow`, else as float32.
    pub fn into_bytes(self, narrow: bool) -> Vec<Vec<u8>> {
        let floats = |x: &[f32]| match narrow {
            true => x.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
            false => x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>(),
        };
        match self.spec.mode {
            QuantMode::Affine => vec![self.words, floats(&self.scales), floats(&self.biases)],
            _ => vec![self.words, self.scales.iter().map(|x| *x as u8).collect()],
        }
    }
}

impl Part<'_> {
    fn group(&mut self, codes: &[u8; 32], scale: f32, bias: f32) {
        let words = self.words.split_off_mut(..self.bits * 4).unwrap_or_default();
        match self.bits {
            8 => words.copy_from_slice(codes),
            4 => {
                let pairs: [u8; 16] = std::array::from_fn(|i| codes[2 * i] | codes[2 * i + 1] << 4);
                words.copy_from_slice(&pairs);
            }
            bits => {
                // Eight codes fill `bits` bytes.
                for (to, eight) in words.chunks_exact_mut(bits).zip(codes.chunks_exact(8)) {
                    let packed = eight.iter().rev().fold(0u64, |acc, q| acc << bits | u64::from(*q));
                    to.copy_from_slice(&packed.to_le_bytes()[..bits]);
                }
            }
        }
        if let Some(to) = self.scales.split_off_first_mut() {
            *to = scale;
        }
        if let Some(to) = self.biases.split_off_first_mut() {
            *to = bias;
        }
    }
}
