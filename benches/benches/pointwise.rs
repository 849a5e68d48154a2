//! The kernels between products, for one row of the default model: norm, rotation and gated unit. Throughput is in
//! elements.

use std::borrow::Cow;
use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mlx_core::kernels::cpu::isa::Isa;
use mlx_core::kernels::cpu::{pointwise, rope};
use mlx_core::projection::Act;

const WIDTH: usize = 576;
const HIDDEN: usize = 1536;
const HEAD: usize = 64;

fn wave(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.37).sin()).collect()
}

fn bench(c: &mut Criterion, name: &str, width: usize, mut f: impl FnMut(&mut [f32])) {
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(width as u64));
    let mut out = wave(width);
    group.bench_function("row", |b| {
        b.iter(|| {
            f(&mut out);
            black_box(&mut out);
        });
    });
}

fn pointwise(c: &mut Criterion) {
    let isa = Isa::detect();
    let (x, weight, hidden) = (wave(WIDTH), wave(WIDTH), wave(HIDDEN));
    bench(c, "rms norm", WIDTH, |out| pointwise::rms_norm(isa, &x, &weight, 1e-5, out));
    for act in [Act::Silu, Act::Gelu, Act::GeluTanh] {
        bench(c, &format!("glu {act:?}"), HIDDEN, |out| pointwise::glu(isa, act, &hidden, &hidden, out));
    }
    let periods: Vec<f32> = (0..HEAD / 2).map(|i| 10_000f32.powf(2.0 * i as f32 / HEAD as f32)).collect();
    let table = rope::Table::new(&[1000], HEAD / 2, |_| Cow::Borrowed(&periods[..]));
    bench(c, "rope", WIDTH, |out| table.rotate(out, HEAD, 0, false, 1.0));
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_millis(100))
        .measurement_time(std::time::Duration::from_millis(300));
    targets = pointwise
}
criterion_main!(benches);
