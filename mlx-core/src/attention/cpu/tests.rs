//! Against the composition of MLX's own ops.

use super::super::{TILE, composed};
use super::*;
use crate::Dtype;
use crate::projection::RmsNorm;

fn wave(shape: &[i32], seed: f32) -> Array {
    let n: i32 = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| (i as f32 * (0.37 + seed)).sin() * 1.5).collect();
    Array::from_slice(&values, shape)
}

fn spec() -> AttentionSpec {
    AttentionSpec {
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 16,
        v_head_dim: 16,
        scale: 0.3,
        window: None,
        softcap: None,
        rope: None,
        qk_norm: None,
        sinks: None,
    }
}

fn periods(n: usize) -> Vec<f32> {
    (0..n).map(|i| 10_000f32.powf(i as f32 / n as f32)).collect()
}

fn specs() -> Vec<AttentionSpec> {
    let rope =
        |traditional, pairs, mscale, dynamic| Some(Rope::new(traditional, periods(pairs), mscale, dynamic));
    let norm = |seed| RmsNorm { weight: wave(&[16], seed), eps: 1e-5 };
    let dynamic = DynamicNtk { theta: 10_000.0, factor: 2.0, max_position: 20 };
    vec![
        spec(),
        AttentionSpec { rope: rope(false, 8, 1.0, None), ..spec() },
        AttentionSpec { rope: rope(true, 4, 1.25, None), window: Some(9), ..spec() },
        AttentionSpec { rope: rope(false, 8, 1.0, Some(dynamic)), ..spec() },
        AttentionSpec { qk_norm: Some((norm(0.1), norm(0.2))), rope: rope(false, 8, 1.0, None), ..spec() },
        AttentionSpec { v_head_dim: 8, sinks: Some(wave(&[4], 0.3)), ..spec() },
        AttentionSpec { softcap: Some(3.0), ..spec() },
    ]
}

/// Keys in rows to keys in tiles, or back.
fn turned(k: &Array, into_tiles: bool) -> Array {
    let (heads, capacity, d) = (k.dim(0), k.dim(1), k.dim(2));
    let shape = match into_tiles {
        true => [heads, capacity / TILE as i32, TILE as i32, d],
        false => [heads, capacity / TILE as i32, d, TILE as i32],
    };
    k.reshape(&shape).transpose(&[0, 1, 3, 2]).reshape(&[heads, capacity, d])
}

/// As [`attend`], over buffers of rows.
fn attend_rows(
    q: &Array,
    k: &Array,
    v: &Array,
    mut rows: Vec<Row>,
    spec: &AttentionSpec,
) -> (Array, Vec<KvBuffer>) {
    rows.iter_mut().for_each(|row| row.kv.k = turned(&row.kv.k, true));
    let (out, mut buffers) = attend(q, k, v, rows, spec);
    buffers.iter_mut().for_each(|kv| kv.k = turned(&kv.k, false));
    (out, buffers)
}

type Attend = fn(&Array, &Array, &Array, Vec<Row>, &AttentionSpec) -> (Array, Vec<KvBuffer>);

/// Two rows, a prefill and then a step with one and three tokens; the first row's buffers begin at 16.
fn outputs(attend: Attend, s: &AttentionSpec, dtype: Dtype) -> Vec<f32> {
    let mut all = vec![];
    let buffer = |d| wave(&[s.n_kv_heads, 64, d], 0.7).astype(dtype);
    let mut kv: Vec<KvBuffer> =
        [16, 0].map(|start| KvBuffer { k: buffer(s.head_dim), v: buffer(s.v_head_dim), start }).into();
    for (step, counts) in [(0, [[5, 20], [18, 0]]), (1, [[1, 25], [3, 18]])] {
        let n = counts.iter().map(|c| c[0]).sum();
        let x = |width, seed| wave(&[n, width], seed + step as f32).astype(dtype);
        let rows = kv.drain(..).zip(counts);
        let rows = rows.map(|(kv, [tokens, position])| Row { tokens, position, kv }).collect();
        let [q, k, v] = [
            x(s.n_heads * s.head_dim, 0.01),
            x(s.n_kv_heads * s.head_dim, 0.02),
            x(s.n_kv_heads * s.v_head_dim, 0.03),
        ];
        let (out, buffers) = attend(&q, &k, &v, rows, s);
        kv = buffers;
        assert_eq!(out.dtype(), dtype);
        all.extend(out.astype(Dtype::Float32).to_vec::<f32>().unwrap());
    }
    for (kv, end) in kv.iter().zip([10, 21]) {
        for x in [&kv.k, &kv.v] {
            all.extend(x.slice(1, 0..end).astype(Dtype::Float32).to_vec::<f32>().unwrap());
        }
    }
    all
}

#[test]
fn agrees_with_the_composition_of_ops() {
    for (i, s) in specs().iter().enumerate() {
        for (dtype, tolerance) in [(Dtype::Float32, 2e-6), (Dtype::Bfloat16, 3e-2), (Dtype::Float16, 4e-3)] {
            let (got, want) = (outputs(attend_rows, s, dtype), outputs(composed, s, dtype));
            let worst =
                got.iter().zip(&want).map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0, f32::max);
            assert_eq!(got.len(), want.len());
            assert!(worst <= tolerance, "case {i} in {dtype:?}: {worst}");
        }
    }
}

/// A buffer that somebody else still holds keeps its contents.
#[test]
fn a_buffer_held_elsewhere_is_copied() {
    let s = spec();
    let k = wave(&[2, 16, 16], 0.1);
    let before = k.to_vec::<f32>().unwrap();
    let kv = KvBuffer { k: k.clone(), v: wave(&[2, 16, 16], 0.2), start: 0 };
    let row = Row { tokens: 1, position: 3, kv };
    let (_, buffers) =
        attend(&wave(&[1, 64], 0.3), &wave(&[1, 32], 0.4), &wave(&[1, 32], 0.5), vec![row], &s);
    let rows = |k: &Array| turned(k, false).to_vec::<f32>().unwrap();
    let (after, was) = (rows(&buffers[0].k), rows(&k));
    assert_eq!(k.to_vec::<f32>().unwrap(), before);
    assert_eq!(after[..3 * 16], was[..3 * 16]);
    assert_ne!(after[3 * 16..4 * 16], was[3 * 16..4 * 16]);
}

#[test]
#[should_panic(
    expected = "a buffer of keys is [2, 16, 16] from position 0, expected [2, capacity, 16] with room for 1 at 16"
)]
fn a_full_buffer_is_named() {
    let kv = KvBuffer { k: wave(&[2, 16, 16], 0.1), v: wave(&[2, 16, 16], 0.2), start: 0 };
    let row = Row { tokens: 1, position: 16, kv };
    attend(&wave(&[1, 64], 0.3), &wave(&[1, 32], 0.4), &wave(&[1, 32], 0.5), vec![row], &spec());
}
