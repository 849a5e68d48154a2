//! Attention of packed rows over their key/value buffers: normalise, rotate, append and attend, as one
//! operation, so that how a device does it never shows in a model.
//!
//! Rows are sequences: each has its own buffer and its own position. On the CPU all rows are one op of ours; on a
//! GPU a row composes MLX ops.

use std::sync::Arc;

use crate::fast::{self, Mask, Offset};
use crate::projection::RmsNorm;
use crate::{Array, Device, Dtype};

mod cpu;

pub use crate::kernels::cpu::attention::TILE;

/// Keys `[Hkv, capacity, D]` and values `[Hkv, capacity, Dv]` of one layer of one sequence. Index 0 holds
/// absolute position `start`; what lies past the sequence's length is not defined. On the CPU keys lie in tiles
/// of [`TILE`] positions, each transposed: buffers begin, end and are cut at multiples of it, on any device.
#[derive(Clone)]
pub struct KvBuffer {
    pub k: Array,
    pub v: Array,
    pub start: i32,
}

/// One sequence's share of the packed rows. The buffer has room for its tokens.
pub struct Row {
    pub tokens: i32,
    /// Absolute position of the first of `tokens`.
    pub position: i32,
    pub kv: KvBuffer,
}

/// What stays the same over all calls of a layer.
#[derive(Clone)]
pub struct AttentionSpec {
    pub n_heads: i32,
    pub n_kv_heads: i32,
    pub head_dim: i32,
    pub v_head_dim: i32,
    pub scale: f32,
    /// Positions that a query sees, itself included; `None` sees all up to itself.
    pub window: Option<i32>,
    /// Scores become `cap · tanh(score / cap)`.
    pub softcap: Option<f32>,
    pub rope: Option<Rope>,
    /// RMS norms of each head of q and of k, before the rotation unless that says otherwise.
    pub qk_norm: Option<(RmsNorm, RmsNorm)>,
    /// `[H]`: a logit per head that takes part in the softmax and has no value.
    pub sinks: Option<Array>,
}

/// Rotary positions: pair `i` of the first `2 · periods.len()` entries of a head turns by
/// `position / periods[i]` radians.
#[derive(Clone)]
pub struct Rope {
    /// Pairs are neighbours (`2i`, `2i + 1`) rather than halves (`i`, `i + n`).
    pub traditional: bool,
    pub periods: Arc<[f32]>,
    /// Factor on the rotated entries before they turn (YaRN, LongRoPE).
    pub mscale: f32,
    pub dynamic: Option<DynamicNtk>,
    /// Heads turn before they are normed, not after (Hunyuan).
    pub before_norms: bool,
    table: Array,
}

/// Past `max_position` the base grows with the token's own position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamicNtk {
    pub theta: f64,
    pub factor: f64,
    pub max_position: usize,
}

impl Rope {
    pub fn new(traditional: bool, periods: Vec<f32>, mscale: f32, dynamic: Option<DynamicNtk>) -> Self {
        let table = Array::from_slice(&periods, &[periods.len() as i32]);
        Self { traditional, periods: periods.into(), mscale, dynamic, before_norms: false, table }
    }

    /// The same rotation, before the norms.
    pub fn before_norms(self) -> Self {
        Self { before_norms: true, ..self }
    }

    /// Entries of a head that turn.
    pub fn dims(&self) -> i32 {
        2 * self.periods.len() as i32
    }

    /// The periods at `position`, where they differ from [`Self::periods`].
    pub fn dynamic_periods(&self, position: usize) -> Option<Vec<f32>> {
        self.dynamic?.periods(self.periods.len(), position)
    }
}

impl DynamicNtk {
    fn periods(&self, pairs: usize, position: usize) -> Option<Vec<f32>> {
        if position < self.max_position {
            return None;
        }
        let dims = 2.0 * pairs as f64;
        let length = (position + 1) as f64 / self.max_position as f64;
        let base = self.theta * (self.factor * length - (self.factor - 1.0)).powf(dims / (dims - 2.0));
        Some((0..pairs).map(|i| base.powf(2.0 * i as f64 / dims) as f32).collect())
    }
}

/// Appends `k: [N, Hkv·D]` and `v: [N, Hkv·Dv]` to the rows' buffers and attends `q: [N, H·D]`, each query over
/// what its row holds up to its own position. Returns `[N, H·Dv]` and the buffers, in the order of the rows.
///
/// # Panics
/// If shapes don't fit `spec`, or a buffer lacks room.
pub fn attend(
    q: &Array,
    k: &Array,
    v: &Array,
    rows: Vec<Row>,
    spec: &AttentionSpec,
) -> (Array, Vec<KvBuffer>) {
    match Device::default_device() {
        Device::Cpu => cpu::attend(q, k, v, rows, spec),
        Device::Gpu => composed(q, k, v, rows, spec),
    }
}

fn composed(q: &Array, k: &Array, v: &Array, rows: Vec<Row>, s: &AttentionSpec) -> (Array, Vec<KvBuffer>) {
    let mut outs = Vec::with_capacity(rows.len());
    let mut buffers = Vec::with_capacity(rows.len());
    let mut first = 0;
    for row in rows {
        let part = |x: &Array| x.slice(0, first..first + row.tokens);
        let (out, kv) = composed_row(&part(q), &part(k), &part(v), row.position, row.kv, s);
        outs.push(out);
        buffers.push(kv);
        first += row.tokens;
    }
    (Array::concat(&outs.iter().collect::<Vec<_>>(), 0), buffers)
}

fn composed_row(
    q: &Array,
    k: &Array,
    v: &Array,
    position: i32,
    kv: KvBuffer,
    s: &AttentionSpec,
) -> (Array, KvBuffer) {
    let t = q.dim(0);
    // [T, H·D] → [1, H, T, D]
    let heads = |x: &Array, n: i32, d: i32| x.reshape(&[1, t, n, d]).transpose(&[0, 2, 1, 3]);
    let mut q = heads(q, s.n_heads, s.head_dim);
    let mut k = heads(k, s.n_kv_heads, s.head_dim);
    let v = heads(v, s.n_kv_heads, s.v_head_dim);
    let turn_first = s.rope.as_ref().filter(|rope| rope.before_norms);
    if let Some(rope) = turn_first {
        (q, k) = (rotate(&q, rope, position), rotate(&k, rope, position));
    }
    if let Some((q_norm, k_norm)) = &s.qk_norm {
        (q, k) = (q_norm.forward(&q), k_norm.forward(&k));
    }
    if let (Some(rope), None) = (&s.rope, turn_first) {
        (q, k) = (rotate(&q, rope, position), rotate(&k, rope, position));
    }

    let at = position - kv.start;
    let write = |to: Array, x: &Array| {
        let x = x.astype(to.dtype());
        to.slice_update(&x.squeeze(&[0]), &[0, at, 0])
    };
    let kv = KvBuffer { k: write(kv.k, &k), v: write(kv.v, &v), start: kv.start };
    let end = at + t;
    let first = s.window.map_or(0, |w| (at + 1 - w).max(0));
    let seen = |x: &Array| x.slice(1, first..end).expand_dims(0);
    let (keys, values) = (seen(&kv.k), seen(&kv.v));

    let mask = window_mask(t, at - first, s.window);
    let y = match s.softcap {
        None => {
            let mask = match (&mask, t) {
                (Some(mask), _) => Mask::Array(mask),
                (None, 1) => Mask::None,
                (None, _) => Mask::Causal,
            };
            let sinks = s.sinks.as_ref().map(|x| x.astype(q.dtype()));
            fast::sdpa(&q, &keys, &values, s.scale, mask, sinks.as_ref())
        }
        Some(cap) => capped(&q, &keys, &values, mask.unwrap_or_else(|| causal(t, at - first)), cap, s),
    };
    // [1, H, T, Dv] → [T, H·Dv]
    let y = y.transpose(&[0, 2, 1, 3]).reshape(&[t, s.n_heads * s.v_head_dim]);
    (y, kv)
}

/// `[T, past + T]`: the positions that each query sees, or `None` where a window cuts nothing.
fn window_mask(t: i32, past: i32, window: Option<i32>) -> Option<Array> {
    let window = window.filter(|w| *w < past + t && 1 < t)?;
    let (query, key) = positions(t, past);
    Some(key.le(&query).logical_and(&query.lt(&(&key + window as f32))))
}

fn causal(t: i32, past: i32) -> Array {
    let (query, key) = positions(t, past);
    key.le(&query)
}

fn positions(t: i32, past: i32) -> (Array, Array) {
    let query = Array::arange(f64::from(past), f64::from(past + t), 1.0, Dtype::Float32);
    let key = Array::arange(0.0, f64::from(past + t), 1.0, Dtype::Float32);
    (query.expand_dims(1), key.expand_dims(0))
}

/// MLX's fused attention has no soft cap, so the scores are materialised, as mlx-lm does for gemma2.
fn capped(q: &Array, k: &Array, v: &Array, mask: Array, cap: f32, s: &AttentionSpec) -> Array {
    assert!(s.sinks.is_none(), "no model has both attention sinks and a soft cap");
    let (t, groups) = (q.dim(2), s.n_heads / s.n_kv_heads);
    let q = (q * s.scale).reshape(&[1, s.n_kv_heads, groups, t, s.head_dim]);
    let scores = q.matmul(&k.expand_dims(2).swap_axes(-1, -2));
    let scores = &(&scores * (1.0 / cap)).tanh() * cap;
    let hidden = Array::full(&[1], f32::NEG_INFINITY, scores.dtype());
    let weights = mask.where_(&scores, &hidden).softmax(-1, true);
    weights.matmul(&v.expand_dims(2)).reshape(&[1, s.n_heads, t, s.v_head_dim])
}

/// Rotates `x: [1, H, T, D]` whose first token is at `position`.
fn rotate(x: &Array, rope: &Rope, position: i32) -> Array {
    let x = &match rope.mscale {
        1.0 => x.clone(),
        m if rope.dims() == x.dim(-1) => x * m,
        m => {
            let d = rope.dims();
            Array::concat(&[&(&x.slice(-1, 0..d) * m), &x.slice(-1, d..x.dim(-1))], -1)
        }
    };
    let turn = |x: &Array, periods: &Array, position: i32| {
        fast::rope(x, rope.dims(), rope.traditional, None, 1.0, Offset::Scalar(position), Some(periods))
    };
    let t = x.dim(2);
    let plain = rope.dynamic.map_or(t, |d| (d.max_position as i32 - position).clamp(0, t));
    if plain == t {
        return turn(x, &rope.table, position);
    }
    let mut parts = vec![turn(&x.slice(2, 0..plain), &rope.table, position)];
    for i in plain..t {
        let periods = rope.dynamic_periods((position + i) as usize).expect("past the maximum position");
        let periods = Array::from_slice(&periods, &[periods.len() as i32]);
        parts.push(turn(&x.slice(2, i..i + 1), &periods, position + i));
    }
    Array::concat(&parts.iter().filter(|p| p.dim(2) != 0).collect::<Vec<_>>(), 2)
}
