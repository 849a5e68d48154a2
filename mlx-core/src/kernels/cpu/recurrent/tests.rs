use super::*;
use crate::{Array, fast};

/// Values in `-1..1` that repeat only after 2³² steps.
fn values(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn positive(n: usize, seed: u32) -> Vec<f32> {
    values(n, seed).iter().map(|x| 0.5 + 0.45 * x).collect()
}

#[track_caller]
fn close(got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len());
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= tolerance, "{worst} off");
}

/// The operands of `tokens`, cut out of longer ones.
fn cut(x: &[f32], tokens: std::ops::Range<usize>, total: usize) -> &[f32] {
    let width = x.len() / total;
    &x[tokens.start * width..tokens.end * width]
}

const T: usize = 11;
const CUTS: [&[usize]; 4] = [&[11], &[1, 10], &[4, 3, 4], &[1; 11]];

/// Runs `step` over each way to cut the tokens, and checks that all give the bits of the first.
fn check_cuts(state_len: usize, y_len: usize, step: impl Fn(std::ops::Range<usize>, &mut [f32], &mut [f32])) {
    let run = |cuts: &[usize]| {
        let (mut state, mut y, mut at) = (values(state_len, 9), vec![0.0; y_len], 0);
        let width = y_len / T;
        for n in cuts {
            step(at..at + n, &mut state, &mut y[at * width..(at + n) * width]);
            at += n;
        }
        (state, y)
    };
    let whole = run(CUTS[0]);
    for cuts in CUTS {
        assert!(run(cuts) == whole, "cut into {cuts:?}");
    }
}

#[test]
fn gated_delta_is_mlx_s_and_does_not_depend_on_the_cut() {
    let (hk, hv, dk, dv) = (2, 4, 32, 24);
    let scaled = |n, seed| values(n, seed).iter().map(|x| x * 0.3).collect::<Vec<f32>>();
    let (q, k, v) = (scaled(T * hk * dk, 1), scaled(T * hk * dk, 2), values(T * hv * dv, 3));
    let (decay, beta) = (positive(T * hv, 4), positive(T * hv, 5));
    let call = |r: std::ops::Range<usize>, state: &mut [f32], y: &mut [f32]| {
        let x = GatedDelta {
            q: cut(&q, r.clone(), T),
            k: cut(&k, r.clone(), T),
            v: cut(&v, r.clone(), T),
            decay: cut(&decay, r.clone(), T),
            beta: cut(&beta, r, T),
            key_heads: hk,
            value_heads: hv,
            key_dim: dk,
            value_dim: dv,
        };
        gated_delta(x, state, y);
    };
    check_cuts(hv * dv * dk, T * hv * dv, call);

    let (mut state, mut y) = (values(hv * dv * dk, 9), vec![0.0; T * hv * dv]);
    let array = |x: &[f32], shape: &[usize]| {
        Array::from_slice(x, &shape.iter().map(|&d| d as i32).collect::<Vec<_>>())
    };
    let initial = array(&state, &[1, hv, dv, dk]);
    call(0..T, &mut state, &mut y);
    let (want, want_state) = fast::gated_delta_update(
        &array(&q, &[1, T, hk, dk]),
        &array(&k, &[1, T, hk, dk]),
        &array(&v, &[1, T, hv, dv]),
        &array(&decay, &[1, T, hv]),
        &array(&beta, &[1, T, hv]),
        Some(&initial),
    );
    close(&y, &want.to_vec::<f32>().unwrap(), 2e-5);
    close(&state, &want_state.to_vec::<f32>().unwrap(), 2e-5);
}

#[test]
fn state_space_is_its_definition_and_does_not_depend_on_the_cut() {
    let (heads, groups, p, n) = (4, 2, 8, 20);
    let (x, b, c) = (values(T * heads * p, 1), values(T * groups * n, 2), values(T * groups * n, 3));
    let (dt, a, d) = (positive(T * heads, 4), values(heads, 5), values(heads, 6));
    let a: Vec<f32> = a.iter().map(|a| a - 1.5).collect();
    let call = |r: std::ops::Range<usize>, state: &mut [f32], y: &mut [f32]| {
        let (x, b, c) = (cut(&x, r.clone(), T), cut(&b, r.clone(), T), cut(&c, r.clone(), T));
        let (dt, a, d) = (cut(&dt, r, T), &a, &d);
        state_space(StateSpace { x, b, c, dt, a, d, groups, head_dim: p, state_dim: n }, state, y);
    };
    check_cuts(heads * p * n, T * heads * p, call);

    let (mut state, mut y) = (values(heads * p * n, 9), vec![0.0; T * heads * p]);
    let mut wide: Vec<f64> = state.iter().map(|&s| f64::from(s)).collect();
    call(0..T, &mut state, &mut y);
    let mut want = Vec::new();
    for t in 0..T {
        for h in 0..heads {
            let (g, dt) = (h / (heads / groups), f64::from(dt[t * heads + h]));
            for i in 0..p {
                let x = f64::from(x[(t * heads + h) * p + i]);
                let mut sum = f64::from(d[h]) * x;
                for j in 0..n {
                    let (b, c) = (b[(t * groups + g) * n + j], c[(t * groups + g) * n + j]);
                    let s = &mut wide[(h * p + i) * n + j];
                    *s = *s * (dt * f64::from(a[h])).exp() + dt * x * f64::from(b);
                    sum += *s * f64::from(c);
                }
                want.push(sum as f32);
            }
        }
    }
    close(&y, &want, 5e-6);
    close(&state, &wide.iter().map(|&s| s as f32).collect::<Vec<_>>(), 5e-6);
}

#[test]
fn short_conv_is_its_definition_and_does_not_depend_on_the_cut() {
    let (channels, width) = (5, 4);
    let (x, weight, bias) = (values(T * channels, 1), values(channels * width, 2), values(channels, 3));
    let call = |r: std::ops::Range<usize>, window: &mut [f32], y: &mut [f32]| {
        short_conv(cut(&x, r, T), &weight, Some(&bias), window, y);
    };
    check_cuts((width - 1) * channels, T * channels, call);

    let window = values((width - 1) * channels, 9);
    let padded = [window.clone(), x.clone()].concat();
    let want: Vec<f32> = (0..T * channels)
        .map(|i| {
            let (t, c) = (i / channels, i % channels);
            let tap = |j| f64::from(weight[c * width + j]) * f64::from(padded[(t + j) * channels + c]);
            (f64::from(bias[c]) + (0..width).map(tap).sum::<f64>()) as f32
        })
        .collect();
    let (mut kept, mut y) = (window, vec![0.0; T * channels]);
    call(0..T, &mut kept, &mut y);
    close(&y, &want, 1e-6);
    assert_eq!(kept, padded[T * channels..]);
    let mut plain = vec![0.0; T * channels];
    short_conv(&x, &weight, None, &mut values((width - 1) * channels, 9), &mut plain);
    let with_bias: Vec<f32> = plain.iter().enumerate().map(|(i, y)| y + bias[i % channels]).collect();
    close(&with_bias, &want, 1e-6);
}
