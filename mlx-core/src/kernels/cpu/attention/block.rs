//! One block of key/value positions against a tile of queries that share a kv head.
//!
//! Keys are turned into tiles of 16 positions, `[D][16]`, so that a lane is a position and a score needs no
//! horizontal sum; that costs a few percent of a prefill, and at decode less than reading the keys. Lanes and
//! blocks are cut at absolute positions, so nothing of a query's result depends on what else is in the call.

use std::cell::Cell;
use std::ops::Range;

use super::storage::{Storage, Stored};
use crate::kernels::cpu::lanes::{Kernel, Lanes, exp2};

/// Positions to a block; blocks start at absolute multiples.
pub const BLOCK: usize = 128;
/// Positions whose keys are multiplied together: four vectors.
const GROUP: usize = 64;

/// One kv head's part of a buffer.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// `[capacity, D]`
    pub k: Stored<'a>,
    /// `[capacity, Dv]`
    pub v: Stored<'a>,
    /// Absolute position of index 0.
    pub start: usize,
}

/// How scores are made from dot products.
#[derive(Clone, Copy)]
pub struct Scores {
    pub scale: f32,
    pub softcap: Option<f32>,
}

/// Vectors of the softmax so far of one query: the largest exponent (base 2) and the sum of weights in the first
/// vector's first lanes, then the weighted values.
pub fn partial_len(v_dim: usize) -> usize {
    1 + v_dim.div_ceil(16)
}

/// A softmax of nothing, or of a sink alone.
pub fn begin(partial: &mut [[f32; 16]], sink: Option<f32>) {
    partial.fill([0.0; 16]);
    partial[0][0] = sink.map_or(f32::NEG_INFINITY, |s| s * std::f32::consts::LOG2_E);
    partial[0][1] = if sink.is_some() { 1.0 } else { 0.0 };
}

/// Adds the next block's.
#[inline(always)]
pub fn merge(into: &mut [[f32; 16]], [max, sum]: [f32; 2], out: &[[f32; 16]]) {
    let (state, values) = into.split_first_mut().expect("a partial result has a state");
    let top = if max > state[0] { max } else { state[0] };
    // Of hidden positions alone, all weights are zero whatever they are measured against.
    let base = if top == f32::NEG_INFINITY { 0.0 } else { top };
    let (old, new) = (exp2(state[0] - base), exp2(max - base));
    state[1] = state[1] * old + sum * new;
    for (a, b) in values.as_flattened_mut().iter_mut().zip(out.as_flattened()) {
        *a = *a * old + b * new;
    }
    state[0] = top;
}

pub fn finish(partial: &[[f32; 16]], out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(partial[1..].as_flattened()) {
        *out = x / partial[0][1];
    }
}

/// Queries of one job, packed for the kernel.
pub struct Queries {
    dim: usize,
    n: usize,
    /// Tiles of up to 8, `[D][tile]` each, end to end.
    packed: Vec<f32>,
    /// Absolute positions that each sees.
    seen: Vec<Range<usize>>,
}

impl Queries {
    pub fn new<'q>(
        dim: usize,
        queries: impl Iterator<Item = (&'q [f32], Range<usize>)>,
        widest: usize,
    ) -> Self {
        let (rows, seen): (Vec<&[f32]>, Vec<_>) = queries.unzip();
        let mut packed = Vec::with_capacity(rows.len() * dim);
        for (first, n) in tiles(rows.len(), widest) {
            for d in 0..dim {
                packed.extend(rows[first..first + n].iter().map(|q| q[d]));
            }
        }
        Self { dim, n: rows.len(), packed, seen }
    }
}

/// Tiles that `n` queries are cut into.
fn tiles(n: usize, widest: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let size = match n - first {
            0 => return None,
            left if 8 <= left && 8 <= widest => 8,
            left => left.min(4),
        };
        first += size;
        Some((first - size, size))
    })
}

thread_local! {
    static SCRATCH: Cell<Scratch> = const { Cell::new(Scratch::NEW) };
}

/// Space that blocks share, kept by the thread. What an earlier job left there is never part of a result.
struct Scratch {
    /// `[BLOCK / 64][D]`
    keys: Vec<[[f32; 16]; 4]>,
    /// `[BLOCK, Dv / 16]`
    values: Vec<[f32; 16]>,
    weights: Vec<[f32; BLOCK]>,
    /// `[queries]`: largest exponent and sum of weights.
    state: Vec<[f32; 2]>,
    out: Vec<[f32; 16]>,
}

impl Scratch {
    const NEW: Self = Self { keys: vec![], values: vec![], weights: vec![], state: vec![], out: vec![] };

    fn grow(&mut self, queries: &Queries, chunks: usize) {
        fn at_least<T: Clone>(v: &mut Vec<T>, n: usize, zero: T) {
            if v.len() < n {
                v.resize(n, zero);
            }
        }
        at_least(&mut self.keys, BLOCK / GROUP * queries.dim, [[0.0; 16]; 4]);
        at_least(&mut self.values, BLOCK * chunks, [0.0; 16]);
        at_least(&mut self.weights, queries.n, [0.0; BLOCK]);
        at_least(&mut self.state, queries.n, [0.0; 2]);
        at_least(&mut self.out, queries.n * chunks, [0.0; 16]);
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::NEW
    }
}

/// Adds block after block of `blocks` to the queries' partial results, each query over what it sees.
pub struct Blocks<'a> {
    pub head: Head<'a>,
    pub v_dim: usize,
    pub scores: Scores,
    pub queries: &'a Queries,
    pub blocks: Range<usize>,
    /// `[queries, partial_len]` if `merged`, else `[blocks, queries, partial_len]`; begun.
    pub partials: &'a mut [[f32; 16]],
    pub merged: bool,
}

/// Tile width that suits an instruction set.
pub fn widest(wide: bool) -> usize {
    if wide { 8 } else { 4 }
}

impl Kernel for Blocks<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { head, v_dim, scores, queries: q, blocks, partials, merged } = self;
        let chunks = v_dim.div_ceil(16);
        let mut s = SCRATCH.take();
        s.grow(q, chunks);
        for (i, block) in blocks.enumerate() {
            let at = block * BLOCK;
            let local = |seen: &Range<usize>| {
                seen.start.clamp(at, at + BLOCK) - at..seen.end.clamp(at, at + BLOCK) - at
            };
            let used = q.seen.iter().map(local).filter(|r| !r.is_empty());
            let Some(used) = used.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)) else { continue };
            let place = Place { at, used: used.clone(), start: head.start };
            match head.k {
                Stored::F32(k) => pack_keys(l, k, &place, q.dim, &mut s.keys),
                Stored::Bf16(k) => pack_keys(l, k, &place, q.dim, &mut s.keys),
                Stored::F16(k) => pack_keys(l, k, &place, q.dim, &mut s.keys),
            }
            let values = Values::new(head.v, &place, v_dim, &mut s.values);

            let mut packed = &q.packed[..];
            for (first, n) in tiles(q.n, widest(L::WIDE)) {
                let (tile, rest) = packed.split_at(n * q.dim);
                packed = rest;
                let weights = &mut s.weights[first..first + n];
                dots_of(l, n, tile, &s.keys, used.clone(), weights);
                for (j, weights) in weights.iter_mut().enumerate() {
                    let seen = local(&q.seen[first + j]);
                    s.state[first + j] = soften(l, weights, seen, scores);
                }
                let out = &mut s.out[first * chunks..(first + n) * chunks];
                out.fill([0.0; 16]);
                weigh_all(l, &s.weights[first..first + n], |j| local(&q.seen[first + j]), &values, out);
            }
            let first = if merged { 0 } else { i * q.n };
            let results = s.state.iter().zip(s.out.chunks_exact(chunks)).take(q.n);
            let partials = partials.chunks_exact_mut(1 + chunks).skip(first);
            for (((state, out), seen), partial) in results.zip(&q.seen).zip(partials) {
                if !local(seen).is_empty() {
                    merge(partial, *state, out);
                }
            }
        }
        SCRATCH.set(s);
    }
}

/// Where a block lies.
struct Place {
    at: usize,
    /// Its positions that some query sees, counted from `at`.
    used: Range<usize>,
    /// Absolute position of the buffer's index 0.
    start: usize,
}

/// Turns the used positions' keys into `[group][D][4][16]`.
#[inline(always)]
fn pack_keys<L: Lanes, T: Storage>(l: L, k: &[T], place: &Place, dim: usize, keys: &mut [[[f32; 16]; 4]]) {
    let Place { at, used, start } = place;
    for tile in used.start / 16..used.end.div_ceil(16) {
        let (group, w) = (&mut keys[tile / 4 * dim..][..dim], tile % 4);
        let lanes = (16 * tile).max(used.start)..(16 * tile + 16).min(used.end);
        let row = |t: usize| &k[(at + t - start) * dim..][..dim];
        for d in (0..dim / 16 * 16).step_by(16) {
            let mut rows = [l.splat(0.0); 16];
            for (i, lane) in rows.iter_mut().enumerate() {
                if lanes.contains(&(16 * tile + i)) {
                    let mut wide = [0f32; 16];
                    T::widen(&row(16 * tile + i)[d..d + 16], &mut wide);
                    *lane = l.load(&wide);
                }
            }
            for (v, to) in l.transpose(rows).into_iter().zip(&mut group[d..d + 16]) {
                l.store(v, &mut to[w]);
            }
        }
        for (d, to) in group.iter_mut().enumerate().skip(dim / 16 * 16) {
            to[w] = [0.0; 16];
            for t in lanes.clone() {
                let mut x = [0f32];
                T::widen(&row(t)[d..=d], &mut x);
                to[w][t % 16] = x[0];
            }
        }
    }
}

/// The values of a block, `chunks` vectors to a position; index 0 is the block's position `first`.
struct Values<'a> {
    rows: &'a [[f32; 16]],
    first: usize,
    chunks: usize,
}

impl<'a> Values<'a> {
    /// Takes the buffer's own rows if they are whole vectors of floats, else widens them into `space`.
    #[inline(always)]
    fn new(v: Stored<'a>, place: &Place, dim: usize, space: &'a mut [[f32; 16]]) -> Self {
        let (chunks, first) = (dim.div_ceil(16), place.used.start);
        let from = (place.at + first - place.start) * dim;
        let range = from..from + place.used.len() * dim;
        match v {
            Stored::F32(v) if dim.is_multiple_of(16) => {
                return Self { rows: v[range].as_chunks().0, first, chunks };
            }
            Stored::F32(v) => widen_rows(&v[range], dim, space),
            Stored::Bf16(v) => widen_rows(&v[range], dim, space),
            Stored::F16(v) => widen_rows(&v[range], dim, space),
        }
        Self { rows: space, first, chunks }
    }
}

#[inline(always)]
fn widen_rows<T: Storage>(rows: &[T], dim: usize, to: &mut [[f32; 16]]) {
    for (row, to) in rows.chunks_exact(dim).zip(to.chunks_exact_mut(dim.div_ceil(16))) {
        T::widen(row, &mut to.as_flattened_mut()[..dim]);
    }
}

/// Dot products of `n` queries with the used groups of keys.
#[inline(always)]
fn dots_of<L: Lanes>(
    l: L,
    n: usize,
    queries: &[f32],
    keys: &[[[f32; 16]; 4]],
    used: Range<usize>,
    out: &mut [[f32; BLOCK]],
) {
    match (n, L::WIDE) {
        (8, _) => dots::<L, 8, 1>(l, queries, keys, used, out),
        (4, true) => dots::<L, 4, 4>(l, queries, keys, used, out),
        (3, true) => dots::<L, 3, 4>(l, queries, keys, used, out),
        (2, true) => dots::<L, 2, 4>(l, queries, keys, used, out),
        (_, true) => dots::<L, 1, 4>(l, queries, keys, used, out),
        (4, _) => dots::<L, 4, 1>(l, queries, keys, used, out),
        (3, _) => dots::<L, 3, 1>(l, queries, keys, used, out),
        (2, _) => dots::<L, 2, 2>(l, queries, keys, used, out),
        _ => dots::<L, 1, 4>(l, queries, keys, used, out),
    }
}

/// `W` key vectors at once, so that enough sums run side by side.
#[inline(always)]
fn dots<L: Lanes, const N: usize, const W: usize>(
    l: L,
    queries: &[f32],
    keys: &[[[f32; 16]; 4]],
    used: Range<usize>,
    out: &mut [[f32; BLOCK]],
) {
    let queries = queries.as_chunks::<N>().0;
    let out = out.first_chunk_mut::<N>().expect("a tile has N queries");
    for group in used.start / GROUP..used.end.div_ceil(GROUP) {
        let keys = &keys[group * queries.len()..][..queries.len()];
        for w in 0..4 / W {
            let mut sums = [[l.splat(0.0); N]; W];
            for (k, q) in keys.iter().zip(queries) {
                for (i, sums) in sums.iter_mut().enumerate() {
                    let k = l.load(&k[w * W + i]);
                    for (sum, q) in sums.iter_mut().zip(q) {
                        *sum = l.fma(k, l.splat(*q), *sum);
                    }
                }
            }
            for (i, sums) in sums.iter().enumerate() {
                for (sum, out) in sums.iter().zip(out.iter_mut()) {
                    l.store(*sum, &mut out.as_chunks_mut().0[group * 4 + w * W + i]);
                }
            }
        }
    }
}

/// Dot products → softmax weights of the seen positions; returns the largest exponent and the sum of weights.
#[inline(always)]
fn soften<L: Lanes>(l: L, dots: &mut [f32; BLOCK], seen: Range<usize>, scores: Scores) -> [f32; 2] {
    const HIDDEN: f32 = f32::NEG_INFINITY;
    let used = seen.start / 16..seen.end.div_ceil(16);
    dots[used.start * 16..seen.start.max(used.start * 16)].fill(HIDDEN);
    dots[seen.end.min(used.end * 16)..used.end * 16].fill(HIDDEN);
    let tiles = &mut dots.as_chunks_mut::<16>().0[used];

    let log2e = std::f32::consts::LOG2_E;
    let mut max = l.splat(HIDDEN);
    for tile in &mut *tiles {
        let mut x = l.load(tile);
        if let Some(cap) = scores.softcap {
            let (scale, cap) = (l.splat(scores.scale / cap), l.splat(cap * log2e));
            let mut z = [0f32; 16];
            l.store(l.mul(x, scale), &mut z);
            x = l.mul(l.load(&z.map(tanh)), cap);
            // A hidden position's capped score is finite: hide it again.
            let mut capped = [0f32; 16];
            l.store(x, &mut capped);
            for (x, was) in capped.iter_mut().zip(&*tile) {
                *x = if *was == HIDDEN { HIDDEN } else { *x };
            }
            x = l.load(&capped);
        } else {
            x = l.mul(x, l.splat(scores.scale * log2e));
        }
        max = l.max(x, max);
        l.store(x, tile);
    }
    let mut lanes = [0f32; 16];
    l.store(max, &mut lanes);
    let top = lanes.into_iter().fold(HIDDEN, |a, b| if b > a { b } else { a });
    let base = l.splat(if top == HIDDEN { 0.0 } else { top });
    let mut sum = l.splat(0.0);
    for tile in tiles {
        let weight = l.exp2(l.sub(l.load(tile), base));
        sum = l.add(sum, weight);
        l.store(weight, tile);
    }
    l.store(sum, &mut lanes);
    [top, tree(lanes)]
}

/// Odd polynomial near zero (Cephes), and through the exponential elsewhere.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    let (a, z) = (x.abs(), x * x);
    let series = [-0.005_704_988_7, 0.020_639_088, -0.053_739_715, 0.133_314_42, -0.333_332_8];
    let near = (series.iter().fold(0f32, |p, c| p.mul_add(z, *c)) * z).mul_add(x, x);
    let far = 1.0 - 2.0 * (1.0 / (1.0 + exp2(a.min(60.0) * (2.0 * std::f32::consts::LOG2_E))));
    // `min` drops a NaN, `near` keeps it.
    if a >= 0.625 { far.copysign(x) } else { near }
}

/// Sum of 16 lanes: halves, quarters, …
#[inline(always)]
fn tree(mut lanes: [f32; 16]) -> f32 {
    let mut width = 8;
    while 0 < width {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Weighted values, position after position. Only what a query sees is touched, so a value that is not finite
/// stays with those that see it.
#[inline(always)]
fn weigh_all<L: Lanes>(
    l: L,
    weights: &[[f32; BLOCK]],
    seen: impl Fn(usize) -> Range<usize>,
    values: &Values,
    out: &mut [[f32; 16]],
) {
    let (n, chunks) = (weights.len(), values.chunks);
    let from = (0..n).map(&seen).map(|r| r.start).max().unwrap_or(0);
    let to = (0..n).map(&seen).map(|r| r.end).min().unwrap_or(0).max(from);
    for (j, out) in out.chunks_exact_mut(chunks).enumerate() {
        let seen = seen(j);
        weigh::<L, 1, 4>(l, &weights[j..=j], seen.start..seen.end.min(from), values, out);
    }
    weigh_tile(l, weights, from..to, values, out);
    for (j, out) in out.chunks_exact_mut(chunks).enumerate() {
        let seen = seen(j);
        weigh::<L, 1, 4>(l, &weights[j..=j], seen.start.max(to)..seen.end, values, out);
    }
}

#[inline(always)]
fn weigh_tile<L: Lanes>(
    l: L,
    weights: &[[f32; BLOCK]],
    range: Range<usize>,
    values: &Values,
    out: &mut [[f32; 16]],
) {
    match (weights.len(), L::WIDE) {
        (8, _) => weigh::<L, 8, 2>(l, weights, range, values, out),
        (4, true) => weigh::<L, 4, 4>(l, weights, range, values, out),
        (3, true) => weigh::<L, 3, 4>(l, weights, range, values, out),
        (2, true) => weigh::<L, 2, 4>(l, weights, range, values, out),
        (4, _) => weigh::<L, 4, 1>(l, weights, range, values, out),
        (3, _) => weigh::<L, 3, 1>(l, weights, range, values, out),
        (2, _) => weigh::<L, 2, 2>(l, weights, range, values, out),
        _ => weigh::<L, 1, 4>(l, weights, range, values, out),
    }
}

/// `C` vectors of a value at once, then what is left one by one.
#[inline(always)]
fn weigh<L: Lanes, const N: usize, const C: usize>(
    l: L,
    weights: &[[f32; BLOCK]],
    range: Range<usize>,
    values: &Values,
    out: &mut [[f32; 16]],
) {
    if range.is_empty() {
        return;
    }
    let whole = values.chunks / C * C;
    for c in (0..whole).step_by(C) {
        weigh_chunks::<L, N, C>(l, weights, range.clone(), values, c, out);
    }
    for c in whole..values.chunks {
        weigh_chunks::<L, N, 1>(l, weights, range.clone(), values, c, out);
    }
}

#[inline(always)]
fn weigh_chunks<L: Lanes, const N: usize, const C: usize>(
    l: L,
    weights: &[[f32; BLOCK]],
    range: Range<usize>,
    values: &Values,
    first: usize,
    out: &mut [[f32; 16]],
) {
    let weights = weights.first_chunk::<N>().expect("a tile has N queries");
    let chunks = values.chunks;
    let mut sums = [[l.splat(0.0); C]; N];
    for (j, sums) in sums.iter_mut().enumerate() {
        for (sum, out) in sums.iter_mut().zip(&out[j * chunks + first..]) {
            *sum = l.load(out);
        }
    }
    let rows = values.rows[(range.start - values.first) * chunks..(range.end - values.first) * chunks]
        .chunks_exact(chunks);
    for (t, row) in range.zip(rows) {
        let row = row[first..].first_chunk::<C>().expect("C chunks are left");
        for (c, value) in row.iter().enumerate() {
            let value = l.load(value);
            for (sums, weights) in sums.iter_mut().zip(weights) {
                sums[c] = l.fma(value, l.splat(weights[t]), sums[c]);
            }
        }
    }
    for (j, sums) in sums.iter().enumerate() {
        for (sum, out) in sums.iter().zip(&mut out[j * chunks + first..]) {
            l.store(*sum, out);
        }
    }
}
