//! Quantized matrix products on integer dots.
//!
//! For output (m, n), with `acc = 0`, for each group g in order:
//!
//! ```text
//! dot = Σ code_w[n, k] · code_x[m, k]          exact, int32
//!       (three planes: fma(65536, f32(top plane), f32(lower two)))
//! p   = fma(scale_w[n, g], f32(dot), bias_w[n, g] · sum_x[m, g])
//! acc = fma(scale_x[m, g], p, acc)
//! ```
//!
//! The integer part is exact, so its order is free; the float part is two fused multiply-adds and one multiply
//! per group, in one order.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
#[cfg(test)]
mod tests;

use super::acts::{Acts, tiles};
use super::isa::Isa;
use super::pack::{QMatrix, ROWS};
use super::pool;

/// Bytes of activations kept in L2 while a thread walks its panels. Weights larger than the caches are read
/// again for each block of rows.
const X_BLOCK: usize = 512 << 10;

/// One tile: 16 columns by `rows` rows, all of K.
struct Tile<'a> {
    w: &'a QMatrix,
    x: &'a Acts,
    rows: usize,
    /// The panel, and the tile's activations.
    weights: *const u8,
    acts: *const u8,
    /// Output of the tile's first row and column; rows are `w.n` apart.
    y: *mut f32,
    /// Columns that exist, 16 but for the last panel.
    columns: usize,
}

/// An output `[m, n]` that tasks write disjoint columns of.
struct Out(*mut f32);
// SAFETY: tasks write disjoint columns.
unsafe impl Sync for Out {}
// SAFETY: as above.
unsafe impl Send for Out {}

/// `ys[i] = x · wsᵢᵀ`, all from the same activations, as one job on all cores.
///
/// # Panics
/// If the activations were not quantized for the matrices' group size and inputs, or an output has another
/// size.
pub fn matmul(ws: &[&QMatrix], x: &Acts, ys: &mut [&mut [f32]]) {
    assert_eq!(ws.len(), ys.len());
    let outs: Vec<Out> = ws
        .iter()
        .zip(ys.iter_mut())
        .map(|(w, y)| {
            assert!(x.group == w.group_size() && x.k == w.k, "activations for another matrix");
            assert_eq!(y.len(), x.m * w.n, "output of {} rows by {}", x.m, w.n);
            Out(y.as_mut_ptr())
        })
        .collect();
    let total: usize = ws.iter().map(|w| w.panels()).sum();
    // A thread reads one stream for as long as the work stays even.
    let per_task = total.div_ceil(pool::threads() * 4).max(1);
    pool::run(total.div_ceil(per_task), |task| {
        let (from, to) = (task * per_task, ((task + 1) * per_task).min(total));
        let mut first = 0;
        for (w, out) in ws.iter().zip(&outs) {
            let n = w.panels();
            let range = from.clamp(first, first + n) - first..to.clamp(first, first + n) - first;
            if !range.is_empty() {
                // SAFETY: tasks take disjoint panels, and sizes were checked above.
                unsafe { panels(w, x, out, range) };
            }
            first += n;
        }
    });
}

/// # Safety
/// `out` must hold `x.m · w.n` floats whose columns of these panels nobody else touches meanwhile.
unsafe fn panels(w: &QMatrix, x: &Acts, out: &Out, panels: std::ops::Range<usize>) {
    let row_bytes = x.row_bytes();
    let block_rows = (X_BLOCK / row_bytes.max(1)).max(8) & !7;
    for first in (0..x.m).step_by(block_rows) {
        let rows = block_rows.min(x.m - first);
        for p in panels.clone() {
            for (at, tile_rows) in tiles(rows) {
                let m = first + at;
                // SAFETY: rows and panels lie inside their buffers.
                let tile = unsafe {
                    Tile {
                        w,
                        x,
                        rows: tile_rows,
                        weights: w.buffer.as_ptr().add(p * w.panel),
                        acts: x.buffer.as_ptr().add(m * row_bytes),
                        y: out.0.add(m * w.n + p * ROWS),
                        columns: (w.n - p * ROWS).min(ROWS),
                    }
                };
                // SAFETY: the tile is as described, and `Acts::fill` checked the instruction set.
                unsafe {
                    match x.isa {
                        #[cfg(target_arch = "x86_64")]
                        Isa::Avx512 => avx512::tile(&tile),
                        #[cfg(target_arch = "x86_64")]
                        Isa::Avx2 => avx2::tile(&tile),
                        _ => portable::tile(&tile),
                    }
                }
            }
        }
    }
}

/// Scale types as constants, for the kernels' instances.
const F32: u8 = 0;
const BF16: u8 = 1;
const F16: u8 = 2;
const E8M0: u8 = 3;
const E4M3: u8 = 4;

/// Picks the `kernel` instance for a format and row count.
#[cfg(target_arch = "x86_64")]
macro_rules! dispatch {
    ($tile:ident) => {{
        use super::super::pack::ScaleKind as S;
        use crate::quant::QuantMode;
        macro_rules! rows {
            ($bits:literal, $group:literal, $planes:literal, $scale:ident) => {
                match $tile.rows {
                    1 => kernel::<1, $bits, $group, $planes, $scale>($tile),
                    2 => kernel::<2, $bits, $group, $planes, $scale>($tile),
                    3 => kernel::<3, $bits, $group, $planes, $scale>($tile),
                    4 => kernel::<4, $bits, $group, $planes, $scale>($tile),
                    _ => kernel::<8, $bits, $group, $planes, $scale>($tile),
                }
            };
        }
        macro_rules! widths {
            ($bits:literal, $group:literal, $scale:ident) => {
                match $tile.x.planes {
                    1 => rows!($bits, $group, 1, $scale),
                    2 => rows!($bits, $group, 2, $scale),
                    _ => rows!($bits, $group, 3, $scale),
                }
            };
        }
        macro_rules! scales {
            ($bits:literal, $group:literal) => {
                match $tile.w.kind {
                    S::F32 => widths!($bits, $group, F32),
                    S::Bf16 => widths!($bits, $group, BF16),
                    _ => widths!($bits, $group, F16),
                }
            };
        }
        macro_rules! groups {
            ($bits:literal) => {
                match $tile.w.group_size() {
                    32 => scales!($bits, 32),
                    64 => scales!($bits, 64),
                    _ => scales!($bits, 128),
                }
            };
        }
        match ($tile.w.spec.mode, $tile.w.spec.bits) {
            (QuantMode::Affine, 2) => groups!(2),
            (QuantMode::Affine, 3) => groups!(3),
            (QuantMode::Affine, 4) => groups!(4),
            (QuantMode::Affine, 5) => groups!(5),
            (QuantMode::Affine, 6) => groups!(6),
            (QuantMode::Affine, _) => groups!(8),
            (QuantMode::Nvfp4, _) => widths!(4, 16, E4M3),
            (_, _) => widths!(4, 32, E8M0),
        }
    }};
}
#[cfg(target_arch = "x86_64")]
use dispatch;
