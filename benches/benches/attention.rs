//! The attention kernel alone, at the default model's shape: 9 query heads over 3 kv heads of 64. Throughput is
//! in multiply-adds: two for each query head, seen position and entry of a head.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::bf16;
use mlx_core::kernels::cpu::attention::{Layer, Span, Storage, TILE, attend};
use mlx_core::kernels::cpu::isa::Isa;

const LAYER: Layer = Layer {
    n_heads: 9,
    n_kv_heads: 3,
    head_dim: 64,
    v_head_dim: 64,
    scale: 0.125,
    window: None,
    softcap: None,
    sinks: None,
    q_norm: None,
    k_norm: None,
};

fn wave(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.37).sin()).collect()
}

/// `tokens` new positions after `past` ones.
fn bench<T: Storage>(c: &mut Criterion, name: &str, past: usize, tokens: usize) {
    let (heads, kv_heads, d) = (LAYER.n_heads, LAYER.n_kv_heads, LAYER.head_dim);
    let stored: Vec<T> =
        wave(kv_heads * (past + tokens).next_multiple_of(TILE) * d).into_iter().map(T::narrow).collect();
    let (mut k, mut v) = (stored.clone(), stored);
    let (mut q, mut new, value) =
        (wave(tokens * heads * d), wave(tokens * kv_heads * d), wave(tokens * kv_heads * d));
    let mut out = vec![0f32; q.len()];
    let seen: usize = (past + 1..=past + tokens).sum();
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements((2 * heads * d * seen) as u64));
    group.bench_function(BenchmarkId::from_parameter(format!("{tokens} after {past}")), |b| {
        b.iter(|| {
            let span = Span { tokens, position: past, start: 0, k: &mut k, v: &mut v };
            attend(Isa::detect(), &LAYER, None, [&mut q, &mut new], &value, &mut [span], &mut out);
            black_box(&mut out);
        });
    });
}

fn attention(c: &mut Criterion) {
    for (past, tokens) in [(255, 1), (4095, 1), (32_767, 1), (252, 4), (0, 512), (3584, 512)] {
        bench::<f32>(c, "attention f32", past, tokens);
        bench::<bf16>(c, "attention bf16", past, tokens);
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_millis(200))
        .measurement_time(std::time::Duration::from_millis(800));
    targets = attention
}
criterion_main!(benches);
