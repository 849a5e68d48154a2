//! Attention of packed rows over their key/value buffers: normalise and rotate heads, append, attend.
//!
//! A query's result is merged block by block in the order of positions, so decoding gives the bits that a
//! prefill gives, however it is chunked and whatever the threads do.

mod block;
mod storage;

use std::ops::Range;
use std::sync::Mutex;

pub use storage::Storage;

use super::isa::Isa;
use super::lanes::dispatch;
use super::{pointwise, pool, rope};
use block::{BLOCK, Blocks, Head, LANES, Queries, Scores, begin, finish, merge, partial_len, widest};

/// Positions of a tile of keys. Buffers begin, end and are cut at multiples of it.
pub const TILE: usize = LANES;

/// What stays the same over all calls of a layer.
#[derive(Clone, Copy)]
pub struct Layer<'a> {
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub v_head_dim: usize,
    pub scale: f32,
    /// Positions that a query sees, itself included.
    pub window: Option<usize>,
    pub softcap: Option<f32>,
    /// `[H]`
    pub sinks: Option<&'a [f32]>,
    pub q_norm: Option<Norm<'a>>,
    pub k_norm: Option<Norm<'a>>,
}

#[derive(Clone, Copy)]
pub struct Norm<'a> {
    pub weight: &'a [f32],
    pub eps: f32,
}

/// How heads turn; the table is over all tokens of the call.
pub struct Turn<'a> {
    pub table: &'a rope::Table,
    pub traditional: bool,
    pub mscale: f32,
    /// Heads turn before they are normed, not after.
    pub before_norms: bool,
}

/// A row's tokens and buffers.
pub struct Span<'a, T> {
    pub tokens: usize,
    /// Absolute position of the first of `tokens`.
    pub position: usize,
    /// Absolute position of the buffers' index 0, a multiple of [`TILE`].
    pub start: usize,
    /// `[Hkv, capacity / 16, D, 16]`: tiles of [`TILE`] positions.
    pub k: &'a mut [T],
    /// `[Hkv, capacity, Dv]`
    pub v: &'a mut [T],
}

/// Query heads times positions of a job: enough to make the packing of keys cheap, few enough for the cache.
const JOB: usize = 48;
/// Blocks of a job where queries are too few to occupy the threads.
const RUN: usize = 4;

/// Appends `k: [N, Hkv·D]` and `v: [N, Hkv·Dv]` to the spans and attends `q: [N, H·D]`; `out` is `[N, H·Dv]`.
/// `q` and `k` are normalised and turned in place.
///
/// # Panics
/// If a slice has another size, or a buffer lacks room.
pub fn attend<T: Storage>(
    isa: Isa,
    layer: &Layer,
    turn: Option<&Turn>,
    [q, k]: [&mut [f32]; 2],
    v: &[f32],
    spans: &mut [Span<T>],
    out: &mut [f32],
) {
    let n: usize = spans.iter().map(|s| s.tokens).sum();
    assert_eq!(q.len(), n * layer.n_heads * layer.head_dim, "q is [N, H·D]");
    assert_eq!(k.len(), n * layer.n_kv_heads * layer.head_dim, "k is [N, Hkv·D]");
    assert_eq!(v.len(), n * layer.n_kv_heads * layer.v_head_dim, "v is [N, Hkv·Dv]");
    assert_eq!(out.len(), n * layer.n_heads * layer.v_head_dim, "out is [N, H·Dv]");
    if n == 0 {
        return;
    }
    prepare(isa, layer, turn, q, k, n);
    append(layer, k, v, spans);
    let spans: Vec<Buffers<T>> = spans.iter().map(Buffers::new).collect();
    run(isa, layer, q, &spans, out);
}

/// Normalises and turns the heads of each token.
fn prepare(isa: Isa, layer: &Layer, turn: Option<&Turn>, q: &mut [f32], k: &mut [f32], n: usize) {
    let d = layer.head_dim;
    let per_job = n.div_ceil(4 * pool::threads()).max(8);
    let tokens = q.chunks_mut(per_job * layer.n_heads * d).zip(k.chunks_mut(per_job * layer.n_kv_heads * d));
    let jobs: Vec<_> = tokens.map(Mutex::new).collect();
    let rotate = |x: &mut [f32], token: usize, first: bool| {
        if let Some(turn) = turn.filter(|turn| turn.before_norms == first) {
            turn.table.rotate(x, d, token, turn.traditional, turn.mscale);
        }
    };
    let one = |x: &mut [f32], norm: Option<Norm>, token: usize| {
        rotate(x, token, true);
        if let Some(norm) = norm {
            let mut row = vec![0.0; d];
            for head in x.chunks_exact_mut(d) {
                pointwise::rms_norm(isa, head, norm.weight, norm.eps, &mut row);
                head.copy_from_slice(&row);
            }
        }
        rotate(x, token, false);
    };
    pool::run(jobs.len(), |i| {
        let mut job = jobs[i].lock().expect("each job runs once");
        let (q, k) = &mut *job;
        let rows = q.chunks_exact_mut(layer.n_heads * d).zip(k.chunks_exact_mut(layer.n_kv_heads * d));
        for (t, (q, k)) in rows.enumerate() {
            one(q, layer.q_norm, i * per_job + t);
            one(k, layer.k_norm, i * per_job + t);
        }
    });
}

fn append<T: Storage>(layer: &Layer, k: &[f32], v: &[f32], spans: &mut [Span<T>]) {
    let mut first = 0;
    for span in spans {
        let at = span.position.checked_sub(span.start).expect("a span begins after its buffer's start");
        assert!(span.start.is_multiple_of(TILE), "a buffer begins at {}, inside a tile", span.start);
        let heads = |to: usize, d: usize| {
            let capacity = to / (layer.n_kv_heads * d).max(1);
            assert!(
                at + span.tokens <= capacity && capacity.is_multiple_of(TILE),
                "a buffer of {capacity} lacks room for {} at {at}",
                span.tokens
            );
            capacity * d
        };
        let new =
            |x: &[f32], head: usize, t: usize, d: usize| ((first + t) * layer.n_kv_heads + head) * d..x.len();
        let d = layer.head_dim;
        let len = heads(span.k.len(), d);
        for (head, to) in span.k.chunks_exact_mut(len).enumerate() {
            for t in 0..span.tokens {
                let tile = &mut to[(at + t) / TILE * TILE * d..][..TILE * d];
                for (x, to) in k[new(k, head, t, d)].iter().zip(tile.as_chunks_mut::<TILE>().0) {
                    to[(at + t) % TILE] = T::narrow(*x);
                }
            }
        }
        let d = layer.v_head_dim;
        let len = heads(span.v.len(), d);
        for (head, to) in span.v.chunks_exact_mut(len).enumerate() {
            for (t, to) in to[at * d..(at + span.tokens) * d].chunks_exact_mut(d).enumerate() {
                to.iter_mut().zip(&v[new(v, head, t, d)]).for_each(|(to, x)| *to = T::narrow(*x));
            }
        }
        first += span.tokens;
    }
}

/// A span whose buffers are written.
struct Buffers<'a, T> {
    tokens: usize,
    position: usize,
    start: usize,
    k: &'a [T],
    v: &'a [T],
}

impl<'a, T: Storage> Buffers<'a, T> {
    fn new(span: &'a Span<T>) -> Self {
        Self { tokens: span.tokens, position: span.position, start: span.start, k: span.k, v: span.v }
    }

    fn head(&self, layer: &Layer, head: usize) -> Head<'a, T> {
        let part = |x: &'a [T]| &x[x.len() / layer.n_kv_heads * head..][..x.len() / layer.n_kv_heads];
        Head { k: part(self.k), v: part(self.v), start: self.start }
    }
}

/// Neighbouring tokens of a span and all query heads of one kv head.
struct Tile {
    span: usize,
    kv_head: usize,
    /// Packed row of the first token, and its position.
    first: usize,
    position: usize,
    tokens: usize,
    blocks: Range<usize>,
}

fn tiles<T: Storage>(layer: &Layer, spans: &[Buffers<T>]) -> Vec<Tile> {
    let group = layer.n_heads / layer.n_kv_heads;
    let step = (JOB / group).max(1);
    let (mut tiles, mut row) = (vec![], 0);
    for (i, span) in spans.iter().enumerate() {
        for kv_head in 0..layer.n_kv_heads {
            for t in (0..span.tokens).step_by(step) {
                let (tokens, position) = (step.min(span.tokens - t), span.position + t);
                let blocks =
                    seen(layer, span.start, position).start / BLOCK..(position + tokens).div_ceil(BLOCK);
                tiles.push(Tile { span: i, kv_head, first: row + t, position, tokens, blocks });
            }
        }
        row += span.tokens;
    }
    tiles
}

/// The positions that a query sees.
fn seen(layer: &Layer, start: usize, position: usize) -> Range<usize> {
    layer.window.map_or(0, |w| (position + 1).saturating_sub(w)).max(start)..position + 1
}

fn run<T: Storage>(isa: Isa, layer: &Layer, q: &[f32], spans: &[Buffers<T>], out: &mut [f32]) {
    let tiles = tiles(layer, spans);
    let (group, dv) = (layer.n_heads / layer.n_kv_heads, layer.v_head_dim);
    let queries: Vec<Queries> =
        tiles.iter().map(|tile| queries(isa, layer, q, spans[tile.span].start, tile)).collect();

    // With few tiles, blocks are jobs of their own, whose results wait to be merged in order.
    let split = tiles.len() < 4 * pool::threads();
    let len = partial_len(dv);
    let size = |tile: &Tile| tile.tokens * group * len * if split { tile.blocks.len() } else { 1 };
    let mut partials = vec![[0f32; 16]; tiles.iter().map(size).sum()];
    let mut jobs = vec![];
    let mut rest = &mut partials[..];
    for (i, tile) in tiles.iter().enumerate() {
        let (run, unit) = if split { (RUN, tile.tokens * group * len) } else { (tile.blocks.len(), 0) };
        for first in tile.blocks.clone().step_by(run) {
            let blocks = first..(first + run).min(tile.blocks.end);
            let part;
            (part, rest) = rest.split_at_mut(if split { unit * blocks.len() } else { size(tile) });
            jobs.push(Mutex::new((i, blocks, part)));
        }
    }
    pool::run(jobs.len(), |j| {
        // The last tiles see most: they go first.
        let mut job = jobs[jobs.len() - 1 - j].lock().expect("each job runs once");
        let (i, blocks, partials) = &mut *job;
        let tile = &tiles[*i];
        for (q, partial) in partials.chunks_exact_mut(len).enumerate() {
            let head = tile.kv_head * group + q % group;
            begin(partial, layer.sinks.filter(|_| !split).map(|s| s[head]));
        }
        let kernel = Blocks {
            head: spans[tile.span].head(layer, tile.kv_head),
            v_dim: dv,
            scores: Scores { scale: layer.scale, softcap: layer.softcap },
            queries: &queries[*i],
            blocks: blocks.clone(),
            partials,
            merged: !split,
        };
        dispatch(isa, kernel);
    });
    drop(jobs);

    let mut rest = &partials[..];
    let mut all = vec![[0f32; 16]; len];
    for tile in &tiles {
        let part;
        (part, rest) = rest.split_at(size(tile));
        let n = tile.tokens * group;
        for i in 0..n {
            let (t, head) = (i / group, tile.kv_head * group + i % group);
            let out = &mut out[((tile.first + t) * layer.n_heads + head) * dv..][..dv];
            if split {
                begin(&mut all, layer.sinks.map(|s| s[head]));
                let sees = seen(layer, spans[tile.span].start, tile.position + t);
                let blocks = sees.start / BLOCK..sees.end.div_ceil(BLOCK);
                for (b, block) in tile.blocks.clone().zip(part.chunks_exact(len).skip(i).step_by(n)) {
                    if !blocks.contains(&b) {
                        continue;
                    }
                    merge(&mut all, [block[0][0], block[0][1]], &block[1..]);
                }
                finish(&all, out);
            } else {
                finish(&part[i * len..][..len], out);
            }
        }
    }
}

fn queries(isa: Isa, layer: &Layer, q: &[f32], start: usize, tile: &Tile) -> Queries {
    let (group, d) = (layer.n_heads / layer.n_kv_heads, layer.head_dim);
    let each = (0..tile.tokens * group).map(|i| {
        let (t, head) = (i / group, tile.kv_head * group + i % group);
        let row = &q[((tile.first + t) * layer.n_heads + head) * d..][..d];
        (row, seen(layer, start, tile.position + t))
    });
    Queries::new(d, each, widest(isa == Isa::Avx512))
}

#[cfg(test)]
mod tests;
