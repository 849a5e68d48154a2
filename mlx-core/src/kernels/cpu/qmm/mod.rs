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

/// Picks the `kernel` instance for a format, a width and a row count. What else differs, the group and the type
/// of the scales, is decided once a group, which costs nothing beside its dots.
#[cfg(target_arch = "x86_64")]
macro_rules! dispatch {
    ($tile:ident) => {{
        use crate::quant::QuantMode;
        macro_rules! rows {
            ($bits:literal, $fp4:literal, $planes:literal) => {
                match $tile.rows {
                    1 => kernel::<1, $bits, $fp4, $planes>($tile),
                    2 => kernel::<2, $bits, $fp4, $planes>($tile),
                    3 => kernel::<3, $bits, $fp4, $planes>($tile),
                    4 => kernel::<4, $bits, $fp4, $planes>($tile),
                    _ => kernel::<8, $bits, $fp4, $planes>($tile),
                }
            };
        }
        macro_rules! widths {
            ($bits:literal, $fp4:literal) => {
                match $tile.x.planes {
                    1 => rows!($bits, $fp4, 1),
                    2 => rows!($bits, $fp4, 2),
                    _ => rows!($bits, $fp4, 3),
                }
            };
        }
        match ($tile.w.spec.mode, $tile.w.spec.bits) {
            (QuantMode::Affine, 2) => widths!(2, false),
            (QuantMode::Affine, 3) => widths!(3, false),
            (QuantMode::Affine, 4) => widths!(4, false),
            (QuantMode::Affine, 5) => widths!(5, false),
            (QuantMode::Affine, 6) => widths!(6, false),
            (QuantMode::Affine, _) => widths!(8, false),
            _ => widths!(4, true),
        }
    }};
}
#[cfg(target_arch = "x86_64")]
use dispatch;
