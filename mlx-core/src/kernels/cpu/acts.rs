//! Activation rows quantized once per call, tile by tile, and shared by every matrix that they meet.
//!
//! Every group of a row gets its own scale. One plane is plain int8 (codes in -127..=127); two planes hold a
//! 16-bit code `256 · hi + lo` that the kernel multiplies as two int8 dots; three hold 24 bits: float accuracy,
//! still on integer dots. Planes are stored most significant first.
//!
//! ```text
//! tile of R rows = for each group:
//!     [R rows][planes][group] i8
//!     [R] f32 scale
//!     [R] f32 sum of the group's codes
//! ```

use super::buffer::Buffer;
use super::isa::{Isa, multiversion};
use super::pool;
use crate::projection::Width;

/// Rows of the largest tile.
pub(super) const TILE: usize = 8;

/// Groups whose largest magnitude is below this are taken as zero.
const TINY: f32 = 1e-30;

pub(super) const fn planes(width: Width) -> usize {
    match width {
        Width::A8 => 1,
        Width::A16 => 2,
        Width::A24 => 3,
    }
}

/// The largest code.
fn top(planes: usize) -> f32 {
    match planes {
        1 => 127.0,
        2 => 32_639.0,
        // Below 127 · 0x10101, so that rounding cannot pass it.
        _ => 8_355_000.0,
    }
}

/// Quantized rows. Reuse one: the memory stays.
pub struct Acts {
    pub(super) isa: Isa,
    pub(super) planes: usize,
    pub(super) group: usize,
    pub(super) m: usize,
    pub(super) k: usize,
    pub(super) buffer: Buffer,
}

/// Sizes of the tiles that `m` rows are cut into: eights, then a four, then one of 3, 2, 1.
pub(super) fn tiles(m: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rows = match m - at {
            0 => return None,
            left @ 1..=3 => left,
            4..=7 => 4,
            _ => TILE,
        };
        at += rows;
        Some((at - rows, rows))
    })
}

impl Acts {
    pub fn new() -> Self {
        Self { isa: Isa::detect(), planes: 1, group: 32, m: 0, k: 0, buffer: Buffer::alone(0) }
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.k / self.group * (self.planes * self.group + 8)
    }

    /// Quantizes `m` rows of `k`, which `row(i, out)` writes, one at a time and possibly on several threads.
    pub fn fill(
        &mut self,
        isa: Isa,
        width: Width,
        group: usize,
        (m, k): (usize, usize),
        row: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        assert!(k.is_multiple_of(group), "{k} inputs in groups of {group}");
        (self.isa, self.planes, self.group, self.m, self.k) = (isa, planes(width), group, m, k);
        let row_bytes = self.row_bytes();
        self.buffer.resize(m * row_bytes);
        let cut: Vec<(usize, usize)> = tiles(m).collect();
        let out = Rows(self.buffer.as_mut_slice().as_mut_ptr());
        let planes = self.planes;
        let fill_tile = |t: usize| {
            let (first, rows) = cut[t];
            // SAFETY: each task writes the rows of its own tile, and the buffer outlives the call.
            let out = unsafe { std::slice::from_raw_parts_mut(out.at(first * row_bytes), rows * row_bytes) };
            let mut values = vec![0.0; k];
            for i in 0..rows {
                row(first + i, &mut values);
                quantize_row(isa, planes, group, &values, rows, i, out);
            }
        };
        // A few rows are done before another thread is awake.
        match m {
            0..=16 => (0..cut.len()).for_each(fill_tile),
            _ => pool::run(cut.len(), fill_tile),
        }
    }
}

impl Default for Acts {
    fn default() -> Self {
        Self::new()
    }
}

/// The quantized bytes, for tasks that write disjoint tiles.
struct Rows(*mut u8);
// SAFETY: tasks write disjoint ranges.
unsafe impl Sync for Rows {}

impl Rows {
    /// # Safety
    /// `offset` must lie inside the buffer.
    unsafe fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(offset) }
    }
}

multiversion! {
    /// Row `i` of a tile of `rows`.
    fn quantize_row(isa; planes: usize, group: usize, x: &[f32], rows: usize, i: usize, tile: &mut [u8]) {
        let block = rows * (planes * group + 8);
        for (x, block) in x.chunks_exact(group).zip(tile.chunks_exact_mut(block)) {
            let (codes, rest) = block.split_at_mut(rows * planes * group);
            let codes = &mut codes[i * planes * group..][..planes * group];
            let (scale, sum) = match planes {
                1 => quantize_group::<1>(x, codes),
                2 => quantize_group::<2>(x, codes),
                _ => quantize_group::<3>(x, codes),
            };
            rest[i * 4..][..4].copy_from_slice(&scale.to_le_bytes());
            rest[(rows + i) * 4..][..4].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

/// Codes of one group; returns its scale and the sum of its codes.
#[inline(always)]
fn quantize_group<const PLANES: usize>(x: &[f32], out: &mut [u8]) -> (f32, f32) {
    let max = x.iter().fold(0u32, |a, v| a.max(v.to_bits() & 0x7fff_ffff));
    let largest = f32::from_bits(max);
    if 0x7f80_0000 <= max {
        // NaN or infinity in: NaN out, in this row alone.
        out.fill(0);
        return (f32::NAN, 0.0);
    }
    if largest < TINY {
        out.fill(0);
        return (0.0, 0.0);
    }
    let inverse = top(PLANES) / largest;
    let group = x.len();
    let mut sum = 0i32;
    let (first, rest) = out.split_at_mut(group);
    let mut codes = [0i32; 128];
    for (q, v) in codes.iter_mut().zip(x) {
        *q = round(v * inverse);
        sum += *q;
    }
    for plane in (1..PLANES).rev() {
        let out = &mut rest[(plane - 1) * group..][..group];
        for (q, out) in codes.iter_mut().zip(out) {
            let high = (*q + 128) >> 8;
            *out = (*q - (high << 8)) as u8;
            *q = high;
        }
    }
    for (q, out) in codes.iter().zip(first) {
        *out = *q as u8;
    }
    (largest / top(PLANES), sum as f32)
}

/// To the nearest whole number, ties to even; magnitudes stay below 2^23.
#[inline(always)]
fn round(x: f32) -> i32 {
    x.round_ties_even() as i32
}
