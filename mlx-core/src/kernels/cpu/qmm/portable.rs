//! The same sums in plain Rust.

use super::super::pack::{ROWS, scale_bias, unpack_codes};
use super::Tile;

/// # Safety
/// The tile's pointers must lead to a panel, to its activations and to its output.
pub(super) unsafe fn tile(t: &Tile<'_>) {
    let (w, x) = (t.w, t.x);
    let (group, planes) = (x.group, x.planes);
    let x_block = t.rows * (planes * group + 8);
    let mut codes = [[0u8; 128]; ROWS];
    let mut acc = [[0f32; ROWS]; super::super::acts::TILE];
    for g in 0..w.k / group {
        // SAFETY: block `g` of the panel, and the same group of the activations.
        let (block, acts) = unsafe {
            (
                std::slice::from_raw_parts(t.weights.add(g * w.block), w.block),
                std::slice::from_raw_parts(t.acts.add(g * x_block), x_block),
            )
        };
        let (packed, scales) = block.split_at(w.code_bytes());
        for (row, codes) in codes.iter_mut().enumerate() {
            unpack_codes(w.spec, packed, row, &mut codes[..group]);
        }
        let float = |i: usize| f32::from_le_bytes([acts[i], acts[i + 1], acts[i + 2], acts[i + 3]]);
        for (m, acc) in acc.iter_mut().enumerate().take(t.rows) {
            let at = t.rows * planes * group + 4 * m;
            let (x_scale, sum) = (float(at), float(at + 4 * t.rows));
            let x_codes = &acts[m * planes * group..][..planes * group];
            for (row, acc) in acc.iter_mut().enumerate() {
                let (scale, bias) = scale_bias(w.kind, scales, row);
                let dot = dot(&codes[row][..group], x_codes, planes);
                *acc = x_scale.mul_add(scale.mul_add(dot, bias * sum), *acc);
            }
        }
    }
    for (m, acc) in acc.iter().enumerate().take(t.rows) {
        for (i, y) in acc.iter().enumerate().take(t.columns) {
            // SAFETY: column `i` of row `m` of the tile.
            unsafe { *t.y.add(m * w.n + i) = *y };
        }
    }
}

fn dot(w: &[u8], x: &[u8], planes: usize) -> f32 {
    let plane = |p: usize| {
        let x = &x[p * w.len()..][..w.len()];
        w.iter().zip(x).map(|(w, x)| i32::from(*w) * i32::from(*x as i8)).sum::<i32>()
    };
    match planes {
        1 => plane(0) as f32,
        2 => ((plane(0) << 8) + plane(1)) as f32,
        _ => 65_536f32.mul_add(plane(0) as f32, ((plane(1) << 8) + plane(2)) as f32),
    }
}
