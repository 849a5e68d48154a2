//! Dense matrix products, row by row exact.
//!
//! Weights lie in panels of 16 rows, `[K][16]` in their own type, so that a lane is an output and needs no
//! horizontal sum. For output (m, n), with `acc = 0`:
//!
//! ```text
//! for each 64 inputs in order:  part = 0;  part = fma(w[n, k], x[m, k], part) for each k;  acc = acc + part
//! ```
//!
//! in float32, whatever else is in the call. The partial sums keep rounding chains short. MXFP8 is here as well,
//! since its codes are floats, too wide for the integer kernels: there a partial sum is a group's 32 inputs, and
//! `acc = fma(scale, part, acc)`.

mod element;

use half::{bf16, f16};

use self::element::{E4m3, Element, UNIT};
use super::buffer::Buffer;
use super::isa::Isa;
use super::lanes::{Kernel, Lanes, dispatch};
use super::pack::e8m0;
use super::pool;

/// Rows of a panel: a lane each.
const ROWS: usize = 16;
/// Inputs that share a scale in MXFP8.
const GROUP: usize = E4m3::PART;
/// Bytes of activations kept in L2 while a thread walks its panels.
const X_BLOCK: usize = 512 << 10;

/// Types of a dense weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    F32,
    F16,
    Bf16,
    Mxfp8,
}

/// A weight `[n, k]`, packed.
pub struct DMatrix {
    kind: Kind,
    n: usize,
    k: usize,
    buffer: Buffer,
    /// Exponents of MXFP8's groups, `[panels][k / 32][16]`.
    scales: Option<Buffer>,
}

/// A weight's elements in row-major order.
#[derive(Clone, Copy)]
pub enum Elements<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
    /// `words: [n, k / 4]` of four codes, `scales: [n, k / 32]`.
    Mxfp8 {
        words: &'a [u32],
        scales: &'a [u8],
    },
}

impl DMatrix {
    /// # Panics
    /// If there are not `n · k` elements, or MXFP8 has no whole groups.
    pub fn pack(n: usize, k: usize, elements: Elements<'_>) -> Self {
        match elements {
            Elements::F32(w) => Self::pack_as(Kind::F32, n, k, w),
            Elements::F16(w) => Self::pack_as(Kind::F16, n, k, w),
            Elements::Bf16(w) => Self::pack_as(Kind::Bf16, n, k, w),
            Elements::Mxfp8 { words, scales } => Self::pack_mxfp8(n, k, words, scales),
        }
    }

    fn pack_mxfp8(n: usize, k: usize, words: &[u32], scales: &[u8]) -> Self {
        assert!(k.is_multiple_of(GROUP), "{k} inputs in groups of {GROUP}");
        let codes: Vec<E4m3> = words.iter().flat_map(|w| w.to_le_bytes()).map(E4m3).collect();
        let groups = k / GROUP;
        assert_eq!(scales.len(), n * groups, "scales of a weight [{n}, {k}]");
        let mut packed = Buffer::shared(n.div_ceil(ROWS) * groups * ROWS);
        let panels = packed.as_mut_slice();
        for (i, (scale, codes)) in scales.iter().zip(codes.chunks_exact(GROUP)).enumerate() {
            let (row, group) = (i / groups, i % groups);
            let scale = if codes.iter().any(|c| c.is_nan()) { 255 } else { *scale };
            panels[(row / ROWS * groups + group) * ROWS + row % ROWS] = scale;
        }
        Self { scales: Some(packed), ..Self::pack_as(Kind::Mxfp8, n, k, &codes) }
    }

    fn pack_as<T: Element>(kind: Kind, n: usize, k: usize, w: &[T]) -> Self {
        assert_eq!(w.len(), n * k, "a weight [{n}, {k}]");
        let mut buffer = Buffer::shared(n.div_ceil(ROWS) * k * ROWS * size_of::<T>());
        for (rows, panel) in w.chunks(ROWS * k).zip(elements_mut::<T>(&mut buffer).chunks_exact_mut(k * ROWS))
        {
            for (lane, row) in rows.chunks_exact(k).enumerate() {
                for (x, to) in row.iter().zip(panel.as_chunks_mut::<ROWS>().0) {
                    to[lane] = *x;
                }
            }
        }
        Self { kind, n, k, buffer, scales: None }
    }

    pub fn n(&self) -> usize {
        self.n
    }

    pub fn k(&self) -> usize {
        self.k
    }

    pub fn nbytes(&self) -> usize {
        self.buffer.len() + self.scales.as_ref().map_or(0, Buffer::len)
    }

    /// Writes one row as floats.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        match self.kind {
            Kind::F32 => self.row_of::<f32>(row, out),
            Kind::F16 => self.row_of::<f16>(row, out),
            Kind::Bf16 => self.row_of::<bf16>(row, out),
            Kind::Mxfp8 => {
                self.row_of::<E4m3>(row, out);
                for (out, scales) in out.chunks_exact_mut(GROUP).zip(self.group_scales(row / ROWS)) {
                    let scale = e8m0(scales[row % ROWS]);
                    out.iter_mut().for_each(|x| *x = *x * UNIT * scale);
                }
            }
        }
    }

    fn row_of<T: Element>(&self, row: usize, out: &mut [f32]) {
        for (x, out) in self.panel::<T>(row / ROWS).iter().zip(out) {
            *out = x[row % ROWS].widen();
        }
    }

    fn panels(&self) -> usize {
        self.n.div_ceil(ROWS)
    }

    /// `[k]` vectors.
    fn panel<T: Element>(&self, i: usize) -> &[[T; ROWS]] {
        let all = elements::<T>(&self.buffer).as_chunks::<ROWS>().0;
        &all[i * self.k..(i + 1) * self.k]
    }

    /// The scales of a panel's groups; none where the type has none.
    fn group_scales(&self, panel: usize) -> &[[u8; ROWS]] {
        let Some(scales) = &self.scales else { return &[] };
        let groups = self.k / GROUP;
        &scales.as_slice().as_chunks::<ROWS>().0[panel * groups..(panel + 1) * groups]
    }
}

fn elements<T: Element>(buffer: &Buffer) -> &[T] {
    // SAFETY: buffers are aligned for any element and hold numbers, of which every pattern of bits is one.
    unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast(), buffer.len() / size_of::<T>()) }
}

fn elements_mut<T: Element>(buffer: &mut Buffer) -> &mut [T] {
    let bytes = buffer.as_mut_slice();
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// Rows of activations, tile by tile `[K][rows]`. Reuse one: the memory stays.
#[derive(Default)]
pub struct Rows {
    m: usize,
    k: usize,
    widest: usize,
    packed: Vec<f32>,
}

/// Tiles that `m` rows are cut into.
fn tiles(m: usize, widest: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rows = match m - at {
            0 => return None,
            left if 8 <= left && 8 <= widest => 8,
            left => left.min(4),
        };
        at += rows;
        Some((at - rows, rows))
    })
}

impl Rows {
    /// Takes `m` rows of `k`, which `row(i, out)` writes, possibly on several threads.
    pub fn fill(&mut self, isa: Isa, (m, k): (usize, usize), row: impl Fn(usize, &mut [f32]) + Sync) {
        let widest = if isa == Isa::Avx512 { 8 } else { 4 };
        (self.m, self.k, self.widest) = (m, k, widest);
        self.packed.resize(m * k, 0.0);
        let mut parts = Vec::new();
        let mut rest = &mut self.packed[..];
        for (first, rows) in tiles(m, widest) {
            let part;
            (part, rest) = rest.split_at_mut(rows * k);
            parts.push(std::sync::Mutex::new((first, rows, part)));
        }
        pool::run(parts.len(), |i| {
            let mut part = parts[i].lock().expect("each tile is filled once");
            let (first, rows, part) = &mut *part;
            if *rows == 1 {
                return row(*first, part);
            }
            let mut one = vec![0.0; k];
            for r in 0..*rows {
                row(*first + r, &mut one);
                part.iter_mut().skip(r).step_by(*rows).zip(&one).for_each(|(to, x)| *to = *x);
            }
        });
    }
}

/// An output `[m, n]` that tasks write disjoint columns of.
struct Out(*mut f32);
// SAFETY: tasks write disjoint columns.
unsafe impl Sync for Out {}
// SAFETY: as above.
unsafe impl Send for Out {}

/// `ys[i] = x · wsᵢᵀ`, all from the same rows, as one job on all cores.
///
/// # Panics
/// If the rows are not as wide as the matrices, or an output has another size.
pub fn matmul(isa: Isa, ws: &[&DMatrix], x: &Rows, ys: &mut [&mut [f32]]) {
    assert_eq!(ws.len(), ys.len());
    let outs: Vec<Out> = ws
        .iter()
        .zip(ys.iter_mut())
        .map(|(w, y)| {
            assert_eq!(x.k, w.k, "rows for another matrix");
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
            let panels = from.clamp(first, first + n) - first..to.clamp(first, first + n) - first;
            first += n;
            if panels.is_empty() {
                continue;
            }
            match w.kind {
                Kind::F32 => dispatch(isa, Panels::<f32> { w, x, out, panels, of: Default::default() }),
                Kind::F16 => dispatch(isa, Panels::<f16> { w, x, out, panels, of: Default::default() }),
                Kind::Bf16 => dispatch(isa, Panels::<bf16> { w, x, out, panels, of: Default::default() }),
                Kind::Mxfp8 => dispatch(isa, Panels::<E4m3> { w, x, out, panels, of: Default::default() }),
            }
        }
    });
}

/// Neighbouring panels of a weight against all rows.
struct Panels<'a, T> {
    w: &'a DMatrix,
    x: &'a Rows,
    out: &'a Out,
    panels: std::ops::Range<usize>,
    of: std::marker::PhantomData<T>,
}

impl<T: Element> Kernel for Panels<'_, T> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { x, panels, .. } = &self;
        let block = (X_BLOCK / (4 * x.k).max(1)).max(8) & !7;
        for first in (0..x.m).step_by(block) {
            let rows = block.min(x.m - first);
            // Few rows take several panels at once, so that enough sums run side by side.
            let wide = if rows <= 2 && L::WIDE { 4 } else { 1 };
            let mut p = panels.start;
            while p < panels.end {
                let many = wide <= panels.end - p;
                for (at, n) in tiles(rows, x.widest) {
                    let m = first + at;
                    let tile = &x.packed[m * x.k..(m + n) * x.k];
                    match (n, many && 1 < wide) {
                        (8, _) => self.tile::<L, 8, 1>(l, m, tile, p),
                        (4, _) => self.tile::<L, 4, 1>(l, m, tile, p),
                        (3, _) => self.tile::<L, 3, 1>(l, m, tile, p),
                        (2, true) => self.tile::<L, 2, 4>(l, m, tile, p),
                        (2, false) => self.tile::<L, 2, 1>(l, m, tile, p),
                        (_, true) => self.tile::<L, 1, 4>(l, m, tile, p),
                        (_, false) => self.tile::<L, 1, 1>(l, m, tile, p),
                    }
                }
                p += if many { wide } else { 1 };
            }
        }
    }
}

impl<T: Element> Panels<'_, T> {
    /// `M` rows by `P` panels, all of K.
    #[inline(always)]
    fn tile<L: Lanes, const M: usize, const P: usize>(&self, l: L, m: usize, x: &[f32], panel: usize) {
        let weights: [&[[T; ROWS]]; P] = std::array::from_fn(|p| self.w.panel::<T>(panel + p));
        let x = x.as_chunks::<M>().0;
        let mut acc = [[l.splat(0.0); M]; P];
        for from in (0..x.len()).step_by(T::PART) {
            let to = (from + T::PART).min(x.len());
            let mut part = [[l.splat(0.0); M]; P];
            let mut weights: [_; P] = std::array::from_fn(|p| weights[p][from..to].iter());
            for x in &x[from..to] {
                for (weights, part) in weights.iter_mut().zip(&mut part) {
                    let Some(w) = weights.next() else { break };
                    let w = T::load(l, w);
                    for (part, x) in part.iter_mut().zip(x) {
                        *part = l.fma(w, l.splat(*x), *part);
                    }
                }
            }
            for (p, (acc, part)) in acc.iter_mut().zip(&part).enumerate() {
                if T::SCALED {
                    let scale = l.load(&self.w.group_scales(panel + p)[from / T::PART].map(e8m0));
                    for (acc, part) in acc.iter_mut().zip(part) {
                        *acc = l.fma(scale, l.mul(*part, l.splat(UNIT)), *acc);
                    }
                } else {
                    acc.iter_mut().zip(part).for_each(|(acc, part)| *acc = l.add(*acc, *part));
                }
            }
        }
        for (p, acc) in acc.iter().enumerate() {
            let column = (panel + p) * ROWS;
            let columns = (self.w.n - column).min(ROWS);
            for (i, acc) in acc.iter().enumerate() {
                let mut lanes = [0f32; ROWS];
                l.store(*acc, &mut lanes);
                // SAFETY: rows and columns lie inside the output, whose size was checked, and nobody else has these columns.
                unsafe {
                    let y = self.out.0.add((m + i) * self.w.n + column);
                    std::ptr::copy_nonoverlapping(lanes.as_ptr(), y, columns);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
