//! Recurrences with a fixed-size state, token by token: however a sequence is cut into calls, each step does
//! the same arithmetic on the same values, so the cut never shows in a bit.
//!
//! Sums run over `LANES` partial sums that are added in one order, without fused multiply-adds, so that
//! vectors of any width give the same bits.

use std::sync::Mutex;

use super::pool;

const LANES: usize = 16;

/// One call of [`gated_delta`] for one sequence: `q, k: [T, Hk, Dk]`, `v: [T, Hv, Dv]`, `decay, beta: [T, Hv]`,
/// where `decay` is the factor itself. Value head `h` uses key head `h · Hk / Hv`.
#[derive(Clone, Copy)]
pub struct GatedDelta<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub decay: &'a [f32],
    pub beta: &'a [f32],
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
}

/// The gated delta rule, arXiv 2412.06464 (10): `S ← γS + β(v − γSk)kᵀ`, `y = Sq`, over `state: [Hv, Dv, Dk]`
/// into `y: [T, Hv, Dv]`.
///
/// # Panics
/// If a slice's length does not fit the dimensions.
pub fn gated_delta(x: GatedDelta<'_>, state: &mut [f32], y: &mut [f32]) {
    let (heads, dk, dv) = (x.value_heads, x.key_dim, x.value_dim);
    let tokens = x.decay.len() / heads;
    let keys = tokens * x.key_heads * dk;
    assert!(x.q.len() == keys && x.k.len() == keys && x.v.len() == y.len(), "gated delta operands");
    assert!(y.len() == tokens * heads * dv && x.beta.len() == x.decay.len(), "gated delta operands");
    assert!(state.len() == heads * dv * dk && heads % x.key_heads == 0, "gated delta state");
    by_head(heads, dv, state, y, |h, state, y| {
        for (t, y) in y.chunks_exact_mut(dv).enumerate() {
            let key = (t * x.key_heads + h * x.key_heads / heads) * dk;
            let (q, k) = (&x.q[key..key + dk], &x.k[key..key + dk]);
            let at = t * heads + h;
            let (decay, beta) = (x.decay[at], x.beta[at]);
            for (i, row) in state.chunks_exact_mut(dk).enumerate() {
                row.iter_mut().for_each(|s| *s *= decay);
                let delta = (x.v[at * dv + i] - dot(row, k)) * beta;
                row.iter_mut().zip(k).for_each(|(s, k)| *s += k * delta);
                y[i] = dot(row, q);
            }
        }
    });
}

/// One call of [`state_space`] for one sequence: `x: [T, H, P]`, `b, c: [T, G, N]`, `dt: [T, H]` after its
/// softplus, `a, d: [H]`. Head `h` uses group `h · G / H`.
#[derive(Clone, Copy)]
pub struct StateSpace<'a> {
    pub x: &'a [f32],
    pub b: &'a [f32],
    pub c: &'a [f32],
    pub dt: &'a [f32],
    /// Negative, as in `-exp(A_log)`.
    pub a: &'a [f32],
    pub d: &'a [f32],
    pub groups: usize,
    pub head_dim: usize,
    pub state_dim: usize,
}

/// Mamba 2, arXiv 2405.21060: `S ← exp(dt·a)S + dt·x·bᵀ`, `y = Sc + d·x`, over `state: [H, P, N]` into
/// `y: [T, H, P]`.
///
/// # Panics
/// If a slice's length does not fit the dimensions.
pub fn state_space(m: StateSpace<'_>, state: &mut [f32], y: &mut [f32]) {
    let (heads, p, n) = (m.a.len(), m.head_dim, m.state_dim);
    let tokens = m.dt.len() / heads;
    assert!(m.x.len() == tokens * heads * p && y.len() == m.x.len(), "state space operands");
    assert!(m.b.len() == tokens * m.groups * n && m.c.len() == m.b.len(), "state space operands");
    assert!(state.len() == heads * p * n && m.d.len() == heads && heads % m.groups == 0, "state space state");
    by_head(heads, p, state, y, |h, state, y| {
        for (t, y) in y.chunks_exact_mut(p).enumerate() {
            let group = (t * m.groups + h * m.groups / heads) * n;
            let (b, c) = (&m.b[group..group + n], &m.c[group..group + n]);
            let at = t * heads + h;
            let (dt, decay) = (m.dt[at], (m.dt[at] * m.a[h]).exp());
            for (i, row) in state.chunks_exact_mut(n).enumerate() {
                let x = m.x[at * p + i];
                let input = dt * x;
                row.iter_mut().zip(b).for_each(|(s, b)| *s = *s * decay + input * b);
                y[i] = dot(row, c) + m.d[h] * x;
            }
        }
    });
}

/// A causal depthwise convolution of `x: [T, C]` by `weight: [C, W]` into `y: [T, C]`, where
/// `window: [W − 1, C]` holds the inputs before `x` and then the last ones of it.
///
/// # Panics
/// If a slice's length does not fit the dimensions.
pub fn short_conv(x: &[f32], weight: &[f32], bias: Option<&[f32]>, window: &mut [f32], y: &mut [f32]) {
    let channels = bias.map_or_else(|| channels(weight.len(), window.len()), <[f32]>::len);
    let width = weight.len() / channels;
    assert!(x.len() == y.len() && x.len().is_multiple_of(channels), "convolution of {} values", x.len());
    assert!(weight.len() == width * channels && window.len() == (width - 1) * channels, "convolution window");
    let past = width - 1;
    for (t, y) in y.chunks_exact_mut(channels).enumerate() {
        match bias {
            Some(bias) => y.copy_from_slice(bias),
            None => y.fill(0.0),
        }
        for j in 0..width {
            // Tap j of token t is input t + j of the window followed by x.
            let at = t + j;
            let tap = if at < past { &window[at * channels..] } else { &x[(at - past) * channels..] };
            for (c, (y, x)) in y.iter_mut().zip(tap).enumerate() {
                *y += weight[c * width + j] * x;
            }
        }
    }
    let fresh = x.len().min(window.len());
    window.copy_within(fresh.., 0);
    let kept = window.len() - fresh;
    window[kept..].copy_from_slice(&x[x.len() - fresh..]);
}

/// `C` from `C·W` and `C·(W − 1)`.
fn channels(weight: usize, window: usize) -> usize {
    assert!(window < weight, "a window of {window} values for {weight} weights");
    weight - window
}

/// Calls `run(head, state, y)` for each head on the pool, with `y: [T, dim]` gathered from `[T, heads, dim]`.
fn by_head(
    heads: usize,
    dim: usize,
    state: &mut [f32],
    y: &mut [f32],
    run: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
) {
    let rows = y.len() / heads;
    // Each head is taken once, so no lock is ever waited for.
    let jobs: Vec<_> =
        state.chunks_exact_mut(state.len() / heads).map(|s| Mutex::new((s, vec![0.0; rows]))).collect();
    pool::run(heads, |h| {
        let mut job = jobs[h].lock().unwrap_or_else(|e| e.into_inner());
        let (state, y) = &mut *job;
        run(h, state, y);
    });
    for (h, job) in jobs.into_iter().enumerate() {
        let (_, values) = job.into_inner().unwrap_or_else(|e| e.into_inner());
        for (t, values) in values.chunks_exact(dim).enumerate() {
            let at = (t * heads + h) * dim;
            y[at..at + dim].copy_from_slice(values);
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    let (a_lanes, a_rest) = a.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for i in 0..LANES {
            sums[i] += a[i] * b[i];
        }
    }
    for (i, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[i] += a * b;
    }
    let mut n = LANES / 2;
    while 0 < n {
        for i in 0..n {
            sums[i] += sums[i + n];
        }
        n /= 2;
    }
    sums[0]
}

#[cfg(test)]
#[path = "recurrent/tests.rs"]
mod tests;
