//! Matrix products alone, at the default model's widest layer: one decoding row, a few, and a prompt. Throughput is in
//! multiply-adds, two operations each. The weights fit in the last-level cache of a server and aren't a measure of
//! memory; `peers.py` is.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::{bf16, f16};
use mlx_core::kernels::cpu::acts::Acts;
use mlx_core::kernels::cpu::dense::{self, DMatrix, Elements, Rows};
use mlx_core::kernels::cpu::isa::Isa;
use mlx_core::kernels::cpu::pack::{QMatrix, Scales};
use mlx_core::kernels::cpu::qmm;
use mlx_core::projection::Width;
use mlx_core::quant::{QuantMode, QuantSpec};

const N: usize = 1536;
const K: usize = 576;
const BATCHES: [usize; 4] = [1, 4, 8, 512];

fn wave(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.37).sin()).collect()
}

/// Makes `product` of `m` rows into an output, for each batch.
fn bench(c: &mut Criterion, name: &str, mut product: impl FnMut(usize, &[f32], &mut [f32])) {
    let mut group = c.benchmark_group(name);
    for m in BATCHES {
        let (x, mut y) = (wave(m * K), vec![0f32; m * N]);
        group.throughput(Throughput::Elements((2 * m * N * K) as u64));
        group.bench_function(BenchmarkId::from_parameter(m), |b| {
            b.iter(|| {
                product(m, &x, &mut y);
                black_box(&mut y);
            });
        });
    }
}

fn quantized(c: &mut Criterion) {
    let affine = |bits| QuantSpec { group_size: 32, bits, mode: QuantMode::Affine };
    for (name, spec) in [
        ("qmm 4 bits", affine(4)),
        ("qmm 6 bits", affine(6)),
        ("qmm 8 bits", affine(8)),
        ("qmm mxfp4", QuantMode::Mxfp4.defaults()),
    ] {
        let groups = N * K / 32;
        let words: Vec<u32> =
            (0..groups * spec.bits as usize).map(|i| (i as u32).wrapping_mul(0x9e37_79b9)).collect();
        let (floats, bytes) = (wave(groups), vec![127; groups]);
        let w = match spec.mode {
            QuantMode::Affine => {
                QMatrix::pack(spec, (N, K), &words, Scales::F32(&floats), Some(Scales::F32(&floats)))
            }
            _ => QMatrix::pack(spec, (N, K), &words, Scales::Bytes(&bytes), None),
        };
        let w = w.expect("the kernels have the format");
        let mut acts = Acts::new();
        bench(c, name, |m, x, y| {
            acts.fill(Isa::detect(), Width::A16, 32, (m, K), |i, out| out.copy_from_slice(&x[i * K..][..K]));
            qmm::matmul(&[&w], &acts, &mut [y]);
        });
    }
}

fn floats(c: &mut Criterion) {
    let w = wave(N * K);
    let (half, brain): (Vec<f16>, Vec<bf16>) =
        w.iter().map(|x| (f16::from_f32(*x), bf16::from_f32(*x))).unzip();
    let words: Vec<u32> =
        (0..N * K / 4).map(|i| (i as u32).wrapping_mul(0x9e37_79b9) & 0x7777_7777).collect();
    let scales = vec![127; N * K / 32];
    for (name, elements) in [
        ("dense f32", Elements::F32(&w)),
        ("dense f16", Elements::F16(&half)),
        ("dense bf16", Elements::Bf16(&brain)),
        ("dense mxfp8", Elements::Mxfp8 { words: &words, scales: &scales }),
    ] {
        let w = DMatrix::pack(N, K, elements);
        let mut rows = Rows::default();
        bench(c, name, |m, x, y| {
            rows.fill(Isa::detect(), (m, K), |i, out| out.copy_from_slice(&x[i * K..][..K]));
            dense::matmul(Isa::detect(), &[&w], &rows, &mut [y]);
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_millis(100))
        .measurement_time(std::time::Duration::from_millis(400));
    targets = quantized, floats
}
criterion_main!(benches);
