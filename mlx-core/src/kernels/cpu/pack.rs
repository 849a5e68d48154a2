//! Quantized matrices in the layout that the kernels read.
//!
//! Rows are taken 16 at a time (a panel). A panel is a run of blocks, one per quantization group; a block
//! holds the group's codes for the 16 rows, then their scales, then (in affine formats) their biases:
//!
//! ```text
//! block = for each chunk of 32 inputs (16 in groups of 16):
//!             planes of codes, each [words][16 rows] u32
//!         [16] scales, [16] biases
//! ```
//!
//! A code of b bits is cut into planes of 4, 2 and 1 bits, so that every width unpacks by the same few shifts
//! into 8 vectors whose byte `i` of vector `v` is input `4v + i`. The size is the checkpoint's, plus zero rows
//! up to a multiple of 16.

use half::{bf16, f16};

use super::buffer::Buffer;
use super::pool;
use crate::quant::{QuantMode, QuantSpec};

/// Rows of a panel.
pub const ROWS: usize = 16;

/// How scales and biases are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScaleKind {
    F32,
    Bf16,
    F16,
    /// Exponents of powers of two, for FP4 codes; the bias follows from the scale.
    E8m0,
    /// 8-bit floats, likewise.
    E4m3,
}

impl ScaleKind {
    /// Bytes of a panel's scales (and biases) in one block.
    pub(super) const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 2 * ROWS * 4,
            Self::Bf16 | Self::F16 => 2 * ROWS * 2,
            Self::E8m0 | Self::E4m3 => ROWS,
        }
    }
}

/// Scales or biases as a checkpoint has them, `[n, k / group]`.
#[derive(Clone, Copy)]
pub enum Scales<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
    Bytes(&'a [u8]),
}

impl Scales<'_> {
    fn get(&self, i: usize) -> f32 {
        match self {
            Self::F32(s) => s[i],
            Self::Bf16(s) => s[i].to_f32(),
            Self::F16(s) => s[i].to_f32(),
            Self::Bytes(s) => f32::from(s[i]),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::F32(s) => s.len(),
            Self::Bf16(s) => s.len(),
            Self::F16(s) => s.len(),
            Self::Bytes(s) => s.len(),
        }
    }
}

/// A packed `[n, k]` matrix.
pub struct QMatrix {
    pub(super) spec: QuantSpec,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) kind: ScaleKind,
    pub(super) buffer: Buffer,
    /// Bytes of a block and of a panel.
    pub(super) block: usize,
    pub(super) panel: usize,
}

impl QMatrix {
    /// Packs `words: [n, k · bits / 32]`. `None` if the kernels lack the format.
    ///
    /// # Panics
    /// If the lengths are not those of the format.
    pub fn pack(
        spec: QuantSpec,
        (n, k): (usize, usize),
        words: &[u32],
        scales: Scales<'_>,
        biases: Option<Scales<'_>>,
    ) -> Option<Self> {
        let kind = match (spec.mode, &scales) {
            (QuantMode::Affine, Scales::F32(_)) => ScaleKind::F32,
            (QuantMode::Affine, Scales::Bf16(_)) => ScaleKind::Bf16,
            (QuantMode::Affine, Scales::F16(_)) => ScaleKind::F16,
            (QuantMode::Mxfp4, Scales::Bytes(_)) => ScaleKind::E8m0,
            (QuantMode::Nvfp4, Scales::Bytes(_)) => ScaleKind::E4m3,
            _ => return None,
        };
        let (bits, group) = (spec.bits as usize, spec.group_size as usize);
        let affine = spec.mode == QuantMode::Affine;
        if !k.is_multiple_of(group) || affine != biases.is_some() || !matches!(bits, 2..=6 | 8) {
            return None;
        }
        let groups = k / group;
        assert_eq!(words.len(), n * k * bits / 32, "words of a {n} x {k} matrix");
        assert_eq!(scales.len(), n * groups, "scales of a {n} x {k} matrix");
        let block = group * bits * ROWS / 8 + kind.block_bytes();
        let panel = groups * block;
        let panels = n.div_ceil(ROWS);
        let mut buffer = Buffer::shared(panels * panel);
        let out = Panels(buffer.as_mut_slice().as_mut_ptr());
        pool::run(panels, |p| {
            // SAFETY: each task writes its own panel, and the buffer outlives the call.
            let out = unsafe { std::slice::from_raw_parts_mut(out.at(p * panel), panel) };
            for row in p * ROWS..((p + 1) * ROWS).min(n) {
                let words = &words[row * k * bits / 32..][..k * bits / 32];
                for (g, (block, words)) in
                    out.chunks_exact_mut(block).zip(words.chunks_exact(group * bits / 32)).enumerate()
                {
                    let at = row * groups + g;
                    pack_codes(bits, group, words, row % ROWS, block);
                    put_scales(kind, &mut block[group * bits * ROWS / 8..], row % ROWS, &scales, &biases, at);
                }
            }
        });
        Some(Self { spec, n, k, kind, buffer, block, panel })
    }

    pub fn n(&self) -> usize {
        self.n
    }

    pub fn k(&self) -> usize {
        self.k
    }

    pub fn group_size(&self) -> usize {
        self.spec.group_size as usize
    }

    pub fn nbytes(&self) -> usize {
        self.buffer.len()
    }

    pub(super) fn panels(&self) -> usize {
        self.n.div_ceil(ROWS)
    }

    /// Bytes of codes in a block.
    pub(super) fn code_bytes(&self) -> usize {
        self.block - self.kind.block_bytes()
    }

    /// Row `row`, dequantized: `scale · code + bias`, rounded once.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n && out.len() == self.k, "row {row} of {} x {}", self.n, self.k);
        let panel = &self.buffer.as_slice()[row / ROWS * self.panel..][..self.panel];
        let (group, codes) = (self.group_size(), self.code_bytes());
        let mut unpacked = [0u8; 128];
        for (block, out) in panel.chunks_exact(self.block).zip(out.chunks_exact_mut(group)) {
            unpack_codes(self.spec, &block[..codes], row % ROWS, &mut unpacked[..group]);
            let (scale, bias) = scale_bias(self.kind, &block[codes..], row % ROWS);
            for (y, q) in out.iter_mut().zip(&unpacked) {
                *y = scale.mul_add(f32::from(*q), bias);
            }
        }
    }
}

/// The packed bytes, for tasks that write disjoint panels.
struct Panels(*mut u8);
// SAFETY: tasks write disjoint ranges.
unsafe impl Sync for Panels {}

impl Panels {
    /// # Safety
    /// `offset` must lie inside the buffer.
    unsafe fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(offset) }
    }
}

/// Inputs of a chunk: all planes of a chunk follow each other.
pub(super) const fn chunk(group: usize) -> usize {
    if group < 32 { group } else { 32 }
}

/// Bits of a code in planes of 4, 2 and 1, low to high; 8-bit codes stay bytes.
const fn planes(bits: usize) -> (bool, bool, bool) {
    (bits & 4 != 0, bits & 2 != 0, bits & 1 != 0)
}

fn pack_codes(bits: usize, group: usize, words: &[u32], row: usize, out: &mut [u8]) {
    let mut put = |word: usize, x: u32| out[(word * ROWS + row) * 4..][..4].copy_from_slice(&x.to_le_bytes());
    match bits {
        8 => words.iter().enumerate().for_each(|(j, w)| put(j, *w)),
        4 => words.iter().enumerate().for_each(|(j, w)| put(j, spread(w & 0xffff) | spread(w >> 16) << 4)),
        _ => {
            let chunk = chunk(group);
            let mut codes = [0u8; 32];
            for c in 0..group / chunk {
                stream_codes(bits, words, c * chunk, &mut codes[..chunk]);
                pack_planes(bits, chunk, &codes, |word, x| put(c * chunk * bits / 32 + word, x));
            }
        }
    }
}

/// Four nibbles to the low nibbles of four bytes.
fn spread(x: u32) -> u32 {
    let x = (x | x << 8) & 0x00ff_00ff;
    (x | x << 4) & 0x0f0f_0f0f
}

/// Codes `from..` of a row's little-endian bit stream.
fn stream_codes(bits: usize, words: &[u32], from: usize, out: &mut [u8]) {
    for (i, q) in out.iter_mut().enumerate() {
        let at = (from + i) * bits;
        let low = u64::from(words[at / 32]);
        let high = words.get(at / 32 + 1).map_or(0, |w| u64::from(*w) << 32);
        *q = ((low | high) >> (at % 32)) as u8 & ((1 << bits) - 1) as u8;
    }
}

/// Words of one chunk. Input `i` is byte `i % 4` of vector `v = i / 4`.
fn pack_planes(bits: usize, chunk: usize, codes: &[u8], mut put: impl FnMut(usize, u32)) {
    let (four, two, one) = planes(bits);
    let vectors = chunk / 4;
    let mut word = 0;
    let mut shift = 0;
    // A plane of `width` bits holds `8 / width` vectors in a word.
    for (present, width) in [(four, 4), (two, 2), (one, 1)] {
        if !present {
            continue;
        }
        let per_word = 8 / width;
        for first in (0..vectors).step_by(per_word) {
            let mut x = 0u32;
            for v in first..(first + per_word).min(vectors) {
                for i in 0..4 {
                    let part = u32::from(codes[v * 4 + i]) >> shift & ((1 << width) - 1);
                    x |= part << (8 * i + (v - first) * width);
                }
            }
            put(word, x);
            word += 1;
        }
        shift += width;
    }
}

/// The integer codes of one row of a block; FP4 codes come as `2 · value + 12`.
pub(super) fn unpack_codes(spec: QuantSpec, block: &[u8], row: usize, out: &mut [u8]) {
    let bits = spec.bits as usize;
    let chunk = chunk(spec.group_size as usize);
    let word = |j: usize| {
        let at = (j * ROWS + row) * 4;
        u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
    };
    for (c, out) in out.chunks_exact_mut(chunk).enumerate() {
        let base = c * chunk * bits / 32;
        for (i, q) in out.iter_mut().enumerate() {
            let (v, byte) = (i / 4, i % 4);
            if bits == 8 {
                *q = (word(base + v) >> (8 * byte)) as u8;
                continue;
            }
            let (mut at, mut shift, mut code) = (base, 0, 0);
            let (four, two, one) = planes(bits);
            for (present, width) in [(four, 4), (two, 2), (one, 1)] {
                if present {
                    let per_word = 8 / width;
                    let part =
                        word(at + v / per_word) >> (8 * byte + v % per_word * width) & ((1 << width) - 1);
                    code |= part << shift;
                    at += (chunk / 4).div_ceil(per_word);
                    shift += width;
                }
            }
            *q = code as u8;
        }
        if spec.mode != QuantMode::Affine {
            out.iter_mut().for_each(|q| *q = FP4_CODES[usize::from(*q)]);
        }
    }
}

/// `2 · value + 12` of an e2m1 code, so that FP4 is affine: `scale / 2 · code - 6 · scale`.
pub(super) const FP4_CODES: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

fn put_scales(
    kind: ScaleKind,
    out: &mut [u8],
    row: usize,
    scales: &Scales<'_>,
    biases: &Option<Scales<'_>>,
    at: usize,
) {
    let bias = biases.as_ref().map_or(0.0, |b| b.get(at));
    let scale = scales.get(at);
    match kind {
        ScaleKind::F32 => {
            out[row * 4..][..4].copy_from_slice(&scale.to_le_bytes());
            out[(ROWS + row) * 4..][..4].copy_from_slice(&bias.to_le_bytes());
        }
        ScaleKind::Bf16 => {
            out[row * 2..][..2].copy_from_slice(&bf16::from_f32(scale).to_le_bytes());
            out[(ROWS + row) * 2..][..2].copy_from_slice(&bf16::from_f32(bias).to_le_bytes());
        }
        ScaleKind::F16 => {
            out[row * 2..][..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
            out[(ROWS + row) * 2..][..2].copy_from_slice(&f16::from_f32(bias).to_le_bytes());
        }
        ScaleKind::E8m0 | ScaleKind::E4m3 => out[row] = scale as u8,
    }
}

/// Scale and bias of one row of a block.
pub(super) fn scale_bias(kind: ScaleKind, scales: &[u8], row: usize) -> (f32, f32) {
    let at = |i: usize| match kind {
        ScaleKind::F32 => {
            f32::from_le_bytes([scales[4 * i], scales[4 * i + 1], scales[4 * i + 2], scales[4 * i + 3]])
        }
        ScaleKind::Bf16 => bf16::from_le_bytes([scales[2 * i], scales[2 * i + 1]]).to_f32(),
        ScaleKind::F16 => f16::from_le_bytes([scales[2 * i], scales[2 * i + 1]]).to_f32(),
        ScaleKind::E8m0 => e8m0(scales[i]) * 0.5,
        ScaleKind::E4m3 => e4m3(scales[i]) * 0.5,
    };
    match kind {
        ScaleKind::E8m0 | ScaleKind::E4m3 => (at(row), -12.0 * at(row)),
        _ => (at(row), at(ROWS + row)),
    }
}

/// 2^(e - 127); 255 is NaN.
pub(super) fn e8m0(e: u8) -> f32 {
    match e {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        e => f32::from_bits(u32::from(e) << 23),
    }
}

/// An 8-bit float of 4 exponent and 3 mantissa bits, biased by 7, without infinities.
pub(super) fn e4m3(x: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(x >> 3 & 15), f32::from(x & 7));
    let magnitude = match (exponent, x & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if x & 0x80 == 0 { magnitude } else { -magnitude }
}
