//! Decoders of the stored block formats, each in the reference decoder's order of operations, so that
//! every value equals its to the bit.

use std::fmt;

use half::{bf16, f16};

macro_rules! types {
    ($($name:ident = $id:literal, $block:literal, $nbytes:literal;)*) => {
        /// How a tensor is stored; names are GGML's.
        #[expect(non_camel_case_types, reason = "GGML's own names")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum GgmlType { $($name),* }

        impl GgmlType {
            pub const ALL: &[Self] = &[$(Self::$name),*];

            pub fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$name),)* _ => None }
            }

            /// Values in a block, and bytes of a block.
            pub fn block(self) -> (usize, usize) {
                match self { $(Self::$name => ($block, $nbytes)),* }
            }
        }
    };
}
types! {
    F32 = 0, 1, 4;
    F16 = 1, 1, 2;
    Q4_0 = 2, 32, 18;
    Q4_1 = 3, 32, 20;
    Q5_0 = 6, 32, 22;
    Q5_1 = 7, 32, 24;
    Q8_0 = 8, 32, 34;
    Q2_K = 10, 256, 84;
    Q3_K = 11, 256, 110;
    Q4_K = 12, 256, 144;
    Q5_K = 13, 256, 176;
    Q6_K = 14, 256, 210;
    IQ4_NL = 20, 32, 18;
    IQ4_XS = 23, 256, 136;
    BF16 = 30, 1, 2;
    MXFP4 = 39, 32, 17;
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl GgmlType {
    /// Bytes of a tensor, unless rows don't divide into blocks or the size overflows.
    pub fn nbytes(self, shape: &[usize]) -> Option<usize> {
        let (block, nbytes) = self.block();
        let cols = shape.last().copied().unwrap_or(1);
        let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
        cols.is_multiple_of(block).then(|| (count / block).checked_mul(nbytes)).flatten()
    }
}

/// Decodes whole blocks to float32.
///
/// # Panics
/// If `bytes` and `out` are not the same number of whole blocks.
pub fn decode(kind: GgmlType, bytes: &[u8], out: &mut [f32]) {
    let (block, nbytes) = kind.block();
    assert_eq!(bytes.len() / nbytes * block, out.len(), "{} bytes of {kind}", bytes.len());
    assert!(bytes.len().is_multiple_of(nbytes), "{} bytes of {kind}", bytes.len());
    let one: fn(&[u8], &mut [f32]) = match kind {
        GgmlType::F32 => |b, y| y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        GgmlType::F16 => |b, y| y[0] = half_at(b, 0),
        GgmlType::BF16 => |b, y| y[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        GgmlType::Q4_0 => q4_0,
        GgmlType::Q4_1 => q4_1,
        GgmlType::Q5_0 => q5_0,
        GgmlType::Q5_1 => q5_1,
        GgmlType::Q8_0 => q8_0,
        GgmlType::Q2_K => q2_k,
        GgmlType::Q3_K => q3_k,
        GgmlType::Q4_K => q4_k,
        GgmlType::Q5_K => q5_k,
        GgmlType::Q6_K => q6_k,
        GgmlType::IQ4_NL => iq4_nl,
        GgmlType::IQ4_XS => iq4_xs,
        GgmlType::MXFP4 => mxfp4,
    };
    for (b, y) in bytes.chunks_exact(nbytes).zip(out.chunks_exact_mut(block)) {
        one(b, y);
    }
}

pub(super) fn half_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

/// Low nibbles are the first half of a block, high ones the second.
fn nibbles(qs: &[u8], y: &mut [f32], value: impl Fn(u8) -> f32) {
    let (low, high) = y.split_at_mut(qs.len());
    for ((q, low), high) in qs.iter().zip(low).zip(high) {
        (*low, *high) = (value(q & 15), value(q >> 4));
    }
}

fn q4_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    nibbles(&b[2..18], y, |q| d * (f32::from(q) - 8.0));
}

fn q4_1(b: &[u8], y: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    nibbles(&b[4..20], y, |q| d * f32::from(q) + m);
}

/// Codes of 5 bits: nibbles, and a fifth bit from `qh`.
pub(super) fn five_bits(qh: &[u8], qs: &[u8]) -> [u8; 32] {
    let qh = u32::from_le_bytes([qh[0], qh[1], qh[2], qh[3]]);
    std::array::from_fn(|i| {
        let nibble = if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 };
        nibble | ((qh >> i & 1) as u8) << 4
    })
}

fn q5_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    let codes = five_bits(&b[2..6], &b[6..22]);
    y.iter_mut().zip(codes).for_each(|(y, q)| *y = d * (f32::from(q) - 16.0));
}

fn q5_1(b: &[u8], y: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    let codes = five_bits(&b[4..8], &b[8..24]);
    y.iter_mut().zip(codes).for_each(|(y, q)| *y = d * f32::from(q) + m);
}

fn q8_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    y.iter_mut().zip(&b[2..]).for_each(|(y, q)| *y = d * f32::from(*q as i8));
}

fn q2_k(b: &[u8], y: &mut [f32]) {
    let (scales, qs, d, min) = (&b[..16], &b[16..80], half_at(b, 80), half_at(b, 82));
    for (i, y) in y.chunks_exact_mut(16).enumerate() {
        // 128 values share 32 bytes, two bits at a time.
        let (part, shift, half) = (i / 8, i % 8 / 2 * 2, i % 2);
        let (scale, offset) = (d * f32::from(scales[i] & 15), min * f32::from(scales[i] >> 4));
        let qs = &qs[part * 32 + half * 16..][..16];
        y.iter_mut().zip(qs).for_each(|(y, q)| *y = scale * f32::from(q >> shift & 3) - offset);
    }
}

fn q3_k(b: &[u8], y: &mut [f32]) {
    let (hmask, qs, d) = (&b[..32], &b[32..96], half_at(b, 108));
    let scales = q3_k_scales(&b[96..108]);
    for (i, y) in y.chunks_exact_mut(16).enumerate() {
        let (part, shift, half) = (i / 8, i % 8 / 2 * 2, i % 2);
        let scale = d * f32::from(scales[i]);
        let bit = part * 4 + shift / 2;
        for (l, y) in y.iter_mut().enumerate() {
            let low = (qs[part * 32 + half * 16 + l] >> shift & 3) as i8;
            let high = hmask[half * 16 + l] >> bit & 1;
            *y = scale * f32::from(low - if high == 0 { 4 } else { 0 });
        }
    }
}

/// Sixteen 6-bit scales, offset by 32: four low bits in the first 8 bytes, two high bits in the last 4.
fn q3_k_scales(b: &[u8]) -> [i8; 16] {
    std::array::from_fn(|i| {
        let low = if i < 8 { b[i] & 15 } else { b[i - 8] >> 4 };
        let high = b[8 + i % 4] >> (i / 4 * 2) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// Scale and minimum `j` of a Q4_K or Q5_K block, 6 bits each in 12 bytes.
pub(super) fn scale_min(s: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4)
    }
}

fn q4_k(b: &[u8], y: &mut [f32]) {
    let (d, min, qs) = (half_at(b, 0), half_at(b, 2), &b[16..144]);
    for (j, y) in y.chunks_exact_mut(32).enumerate() {
        let (scale, m) = scale_min(&b[4..16], j);
        let (scale, m) = (d * f32::from(scale), min * f32::from(m));
        let qs = &qs[j / 2 * 32..][..32];
        y.iter_mut().zip(qs).for_each(|(y, q)| *y = scale * f32::from(q >> (j % 2 * 4) & 15) - m);
    }
}

/// Code `l` of sub-block `j` of a Q5_K block.
pub(super) fn q5_k_code(qh: &[u8], qs: &[u8], j: usize, l: usize) -> u8 {
    let nibble = qs[j / 2 * 32 + l] >> (j % 2 * 4) & 15;
    nibble | (qh[l] >> j & 1) << 4
}

fn q5_k(b: &[u8], y: &mut [f32]) {
    let (d, min, qh, qs) = (half_at(b, 0), half_at(b, 2), &b[16..48], &b[48..176]);
    for (j, y) in y.chunks_exact_mut(32).enumerate() {
        let (scale, m) = scale_min(&b[4..16], j);
        let (scale, m) = (d * f32::from(scale), min * f32::from(m));
        for (l, y) in y.iter_mut().enumerate() {
            *y = scale * f32::from(q5_k_code(qh, qs, j, l)) - m;
        }
    }
}

fn q6_k(b: &[u8], y: &mut [f32]) {
    let (ql, qh, scales, d) = (&b[..128], &b[128..192], &b[192..208], half_at(b, 208));
    for (i, y) in y.chunks_exact_mut(16).enumerate() {
        // Two parts of 128 values; in each, four runs of 32 share bytes of `qh`, and two share bytes of `ql`.
        let (part, run, half) = (i / 8, i % 8 / 2, i % 2);
        let scale = d * f32::from(scales[i] as i8);
        for (l, y) in y.iter_mut().enumerate() {
            let l = half * 16 + l;
            let low = ql[part * 64 + run % 2 * 32 + l] >> (run / 2 * 4) & 15;
            let high = qh[part * 32 + l] >> (run * 2) & 3;
            *y = scale * f32::from((low | high << 4) as i8 - 32);
        }
    }
}

const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn iq4_nl(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    nibbles(&b[2..18], y, |q| d * f32::from(IQ4_VALUES[usize::from(q)]));
}

fn iq4_xs(b: &[u8], y: &mut [f32]) {
    let (d, high) = (half_at(b, 0), u16::from_le_bytes([b[2], b[3]]));
    for (i, y) in y.chunks_exact_mut(32).enumerate() {
        let low = b[4 + i / 2] >> (i % 2 * 4) & 15;
        let scale = (low | ((high >> (2 * i) & 3) as u8) << 4) as i8 - 32;
        let scale = d * f32::from(scale);
        nibbles(&b[8 + i * 16..][..16], y, |q| scale * f32::from(IQ4_VALUES[usize::from(q)]));
    }
}

/// Twice the e2m1 values; the scale is halved to match.
const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

fn mxfp4(b: &[u8], y: &mut [f32]) {
    let scale = e8m0_half(b[0]);
    nibbles(&b[1..17], y, |q| scale * f32::from(E2M1_DOUBLED[usize::from(q)]));
}

/// 2^(e - 128), subnormal for the smallest two.
fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}
