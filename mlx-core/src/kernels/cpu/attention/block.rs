//! One block of key/value positions against a tile of queries that share a kv head.
//!
//! Keys lie in tiles of 16 positions, `[D][16]`, so that a lane is a position and a score needs no horizontal sum.
//! Lanes and blocks are cut at absolute positions, so nothing of a query's result depends on what else is in the
//! call.

use std::cell::Cell;
use std::ops::Range;

use super::storage::Storage;
use crate::kernels::cpu::lanes::{Kernel, Lanes, exp2};

/// Positions to a block; blocks start at absolute multiples.
pub const BLOCK: usize = 128;
/// Positions of a tile of keys: a lane each.
pub const LANES: usize = 16;

/// One kv head's part of a buffer.
#[derive(Clone, Copy)]
pub struct Head<'a, T> {
    /// `[capacity / 16, D, 16]`
    pub k: &'a [T],
    /// `[capacity, Dv]`
    pub v: &'a [T],
    /// Absolute position of index 0, a multiple of 16.
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
    /// `[BLOCK, Dv / 16]`
    values: Vec<[f32; 16]>,
    weights: Vec<[f32; BLOCK]>,
    /// `[queries]`: largest exponent and sum of weights.
    state: Vec<[f32; 2]>,
    out: Vec<[f32; 16]>,
}

impl Scratch {
    const NEW: Self = Self { values: vec![], weights: vec![], state: vec![], out: vec![] };

    fn grow(&mut self, queries: &Queries, chunks: usize) {
        fn at_least<T: Clone>(v: &mut Vec<T>, n: usize, zero: T) {
            if v.len() < n {
                v.resize(n, zero);
            }
        }
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
pub struct Blocks<'a, T> {
    pub head: Head<'a, T>,
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

impl<T: Storage> Kernel for Blocks<'_, T> {
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
            let part = Part::new(&head, at, used, q.dim, v_dim);
            let values = part.wide_values(l, &mut s.values);

            let mut packed = &q.packed[..];
            for (first, n) in tiles(q.n, widest(L::WIDE)) {
                let (tile, rest) = packed.split_at(n * q.dim);
                packed = rest;
                let weights = &mut s.weights[first..first + n];
                dots_of(l, tile, part.keys, part.tiles.clone(), weights);
                for (j, weights) in weights.iter_mut().enumerate() {
                    let seen = local(&q.seen[first + j]);
                    s.state[first + j] = soften(l, weights, seen, scores);
                }
                let out = &mut s.out[first * chunks..(first + n) * chunks];
                out.fill([0.0; 16]);
                let (weights, seen) = (&s.weights[first..first + n], |j| local(&q.seen[first + j]));
                match values {
                    Some(rows) => weigh_all(l, weights, seen, &part.values(rows, chunks), out),
                    None => weigh_all(l, weights, seen, &part.values(part.v.as_chunks().0, chunks), out),
                }
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

/// What a block holds that some query sees.
struct Part<'a, T> {
    /// Positions, counted from the block's first.
    used: Range<usize>,
    /// Tiles of keys that hold them.
    tiles: Range<usize>,
    /// `[tiles, D]`
    keys: &'a [[T; 16]],
    /// `[used, Dv]`
    v: &'a [T],
    v_dim: usize,
}

impl<'a, T: Storage> Part<'a, T> {
    fn new(head: &Head<'a, T>, at: usize, used: Range<usize>, dim: usize, v_dim: usize) -> Self {
        let tiles = used.start / LANES..used.end.div_ceil(LANES);
        // A buffer begins at a tile's border, so the first tile with a used position is whole.
        let index = |position: usize| at + position - head.start;
        let keys = &head.k[index(tiles.start * LANES) * dim..index(tiles.end * LANES) * dim];
        let v = &head.v[index(used.start) * v_dim..index(used.end) * v_dim];
        Self { used, tiles, keys: keys.as_chunks().0, v, v_dim }
    }

    /// The values as whole vectors of floats; `None` if the buffer's own rows will do.
    #[inline(always)]
    fn wide_values<'s, L: Lanes>(&self, l: L, space: &'s mut [[f32; 16]]) -> Option<&'s [[f32; 16]]> {
        if self.v_dim.is_multiple_of(16) {
            return None;
        }
        for (row, to) in self.v.chunks_exact(self.v_dim).zip(space.chunks_exact_mut(self.v_dim.div_ceil(16)))
        {
            let (whole, rest) = row.as_chunks::<16>();
            for (x, to) in whole.iter().zip(&mut *to) {
                l.store(T::load(l, x), to);
            }
            for (x, to) in rest.iter().zip(&mut to.as_flattened_mut()[whole.len() * 16..]) {
                *to = x.widen();
            }
        }
        Some(space)
    }

    fn values<'s, U>(&self, rows: &'s [[U; 16]], chunks: usize) -> Values<'s, U> {
        Values { rows, first: self.used.start, chunks }
    }
}

/// The values of a block, `chunks` vectors to a position; index 0 is the block's position `first`.
struct Values<'a, T> {
    rows: &'a [[T; 16]],
    first: usize,
    chunks: usize,
}

/// Dot products of queries with tiles of keys, `keys: [tiles, D]`.
#[inline(always)]
fn dots_of<L: Lanes, T: Storage>(
    l: L,
    queries: &[f32],
    keys: &[[T; 16]],
    tiles: Range<usize>,
    out: &mut [[f32; BLOCK]],
) {
    match (out.len(), L::WIDE) {
        (8, _) => dots::<L, T, 8, 1>(l, queries, keys, tiles, out),
        (4, true) => dots::<L, T, 4, 4>(l, queries, keys, tiles, out),
        (3, true) => dots::<L, T, 3, 4>(l, queries, keys, tiles, out),
        (2, true) => dots::<L, T, 2, 4>(l, queries, keys, tiles, out),
        (_, true) => dots::<L, T, 1, 4>(l, queries, keys, tiles, out),
        (4, _) => dots::<L, T, 4, 1>(l, queries, keys, tiles, out),
        (3, _) => dots::<L, T, 3, 1>(l, queries, keys, tiles, out),
        (2, _) => dots::<L, T, 2, 2>(l, queries, keys, tiles, out),
        _ => dots::<L, T, 1, 4>(l, queries, keys, tiles, out),
    }
}

/// `W` tiles of keys at once, so that enough sums run side by side, then what is left one by one.
#[inline(always)]
fn dots<L: Lanes, T: Storage, const N: usize, const W: usize>(
    l: L,
    queries: &[f32],
    keys: &[[T; 16]],
    tiles: Range<usize>,
    out: &mut [[f32; BLOCK]],
) {
    let queries = queries.as_chunks::<N>().0;
    let out = out.first_chunk_mut::<N>().expect("a tile has N queries");
    let whole = tiles.start + tiles.len() / W * W;
    let from = |tile: usize| &keys[(tile - tiles.start) * queries.len()..];
    for tile in (tiles.start..whole).step_by(W) {
        dots_at::<L, T, N, W>(l, queries, from(tile), tile, out);
    }
    for tile in whole..tiles.end {
        dots_at::<L, T, N, 1>(l, queries, from(tile), tile, out);
    }
}

#[inline(always)]
fn dots_at<L: Lanes, T: Storage, const N: usize, const W: usize>(
    l: L,
    queries: &[[f32; N]],
    keys: &[[T; 16]],
    tile: usize,
    out: &mut [[f32; BLOCK]; N],
) {
    let dim = queries.len();
    let keys: [&[[T; 16]]; W] = std::array::from_fn(|w| &keys[w * dim..(w + 1) * dim]);
    let mut sums = [[l.splat(0.0); N]; W];
    for (d, q) in queries.iter().enumerate() {
        for (keys, sums) in keys.iter().zip(&mut sums) {
            let k = T::load(l, &keys[d]);
            for (sum, q) in sums.iter_mut().zip(q) {
                *sum = l.fma(k, l.splat(*q), *sum);
            }
        }
    }
    for (w, sums) in sums.iter().enumerate() {
        for (sum, out) in sums.iter().zip(out.iter_mut()) {
            l.store(*sum, &mut out.as_chunks_mut().0[tile + w]);
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
fn weigh_all<L: Lanes, T: Storage>(
    l: L,
    weights: &[[f32; BLOCK]],
    seen: impl Fn(usize) -> Range<usize>,
    values: &Values<T>,
    out: &mut [[f32; 16]],
) {
    let (n, chunks) = (weights.len(), values.chunks);
    let from = (0..n).map(&seen).map(|r| r.start).max().unwrap_or(0);
    let to = (0..n).map(&seen).map(|r| r.end).min().unwrap_or(0).max(from);
    for (j, out) in out.chunks_exact_mut(chunks).enumerate() {
        let seen = seen(j);
        weigh::<L, T, 1, 4>(l, &weights[j..=j], seen.start..seen.end.min(from), values, out);
    }
    weigh_tile(l, weights, from..to, values, out);
    for (j, out) in out.chunks_exact_mut(chunks).enumerate() {
        let seen = seen(j);
        weigh::<L, T, 1, 4>(l, &weights[j..=j], seen.start.max(to)..seen.end, values, out);
    }
}

#[inline(always)]
fn weigh_tile<L: Lanes, T: Storage>(
    l: L,
    weights: &[[f32; BLOCK]],
    range: Range<usize>,
    values: &Values<T>,
    out: &mut [[f32; 16]],
) {
    match (weights.len(), L::WIDE) {
        (8, _) => weigh::<L, T, 8, 2>(l, weights, range, values, out),
        (4, true) => weigh::<L, T, 4, 4>(l, weights, range, values, out),
        (3, true) => weigh::<L, T, 3, 4>(l, weights, range, values, out),
        (2, true) => weigh::<L, T, 2, 4>(l, weights, range, values, out),
        (4, _) => weigh::<L, T, 4, 1>(l, weights, range, values, out),
        (3, _) => weigh::<L, T, 3, 1>(l, weights, range, values, out),
        (2, _) => weigh::<L, T, 2, 2>(l, weights, range, values, out),
        _ => weigh::<L, T, 1, 4>(l, weights, range, values, out),
    }
}

/// `C` vectors of a value at once, then what is left one by one.
#[inline(always)]
fn weigh<L: Lanes, T: Storage, const N: usize, const C: usize>(
    l: L,
    weights: &[[f32; BLOCK]],
    range: Range<usize>,
    values: &Values<T>,
    out: &mut [[f32; 16]],
) {
    if range.is_empty() {
        return;
    }
    let whole = values.chunks / C * C;
    for c in (0..whole).step_by(C) {
        weigh_chunks::<L, T, N, C>(l, weights, range.clone(), values, c, out);
    }
    for c in whole..values.chunks {
        weigh_chunks::<L, T, N, 1>(l, weights, range.clone(), values, c, out);
    }
}

#[inline(always)]
fn weigh_chunks<L: Lanes, T: Storage, const N: usize, const C: usize>(
    l: L,
    weights: &[[f32; BLOCK]],
    range: Range<usize>,
    values: &Values<T>,
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
            let value = T::load(l, value);
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
