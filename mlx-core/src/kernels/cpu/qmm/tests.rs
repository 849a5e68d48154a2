use half::{bf16, f16};

use super::super::acts::Acts;
use super::super::isa::Isa;
use super::super::pack::{QMatrix, Scales};
use super::super::reference::{Quantized, Rng, matmul as exact, quantized, rms_error, same_bits};
use super::matmul;
use crate::projection::Width;
use crate::quant::{QuantMode, QuantSpec};

fn specs() -> Vec<QuantSpec> {
    let affine = |(bits, group_size)| QuantSpec { group_size, bits, mode: QuantMode::Affine };
    let mut specs: Vec<_> =
        [2, 3, 4, 5, 6, 8].into_iter().flat_map(|b| [(b, 32), (b, 64), (b, 128)]).map(affine).collect();
    specs.extend([QuantMode::Mxfp4.defaults(), QuantMode::Nvfp4.defaults()]);
    specs
}

fn pack(spec: QuantSpec, q: &Quantized, n: usize, k: usize) -> QMatrix {
    let affine = spec.mode == QuantMode::Affine;
    let scales = if affine { Scales::F32(&q.scales) } else { Scales::Bytes(&q.bytes) };
    QMatrix::pack(spec, (n, k), &q.words, scales, affine.then_some(Scales::F32(&q.biases))).unwrap()
}

fn run(isa: Isa, width: Width, w: &QMatrix, x: &[f32]) -> Vec<f32> {
    let m = x.len() / w.k;
    let mut acts = Acts::new();
    acts.fill(isa, width, w.group_size(), (m, w.k), |i, out| out.copy_from_slice(&x[i * w.k..][..w.k]));
    let mut y = vec![f32::NAN; m * w.n];
    matmul(&[w], &acts, &mut [&mut y]);
    y
}

/// The bits of a row alone are those of the row in any batch, on any instruction set, in every format.
#[test]
fn rows_are_exact_in_every_format_width_and_instruction_set() {
    for spec in specs() {
        let (n, k) = (23, 3 * spec.group_size as usize);
        let mut rng = Rng(spec.bits as u64 * 100 + spec.group_size as u64);
        let w = pack(spec, &quantized(&mut rng, spec, n, k), n, k);
        let mut x = rng.activations(19, k);
        x[3 * k..][..spec.group_size as usize].fill(0.0);
        for width in [Width::A8, Width::A16, Width::A24] {
            let alone: Vec<f32> = x.chunks_exact(k).flat_map(|x| run(Isa::detect(), width, &w, x)).collect();
            for isa in Isa::all() {
                for m in [1, 2, 3, 4, 5, 7, 8, 11, 19] {
                    let got = run(isa, width, &w, &x[..m * k]);
                    assert!(same_bits(&got, &alone[..m * n]), "{spec:?} {width:?} {isa:?} M = {m}");
                }
            }
        }
    }
}

#[test]
fn every_batch_size_up_to_65_keeps_its_rows() {
    let spec = QuantSpec { group_size: 32, bits: 4, mode: QuantMode::Affine };
    let (n, k) = (40, 96);
    let mut rng = Rng(7);
    let w = pack(spec, &quantized(&mut rng, spec, n, k), n, k);
    let x = rng.activations(65, k);
    let all = run(Isa::detect(), Width::A16, &w, &x);
    for m in 1..=65 {
        let from = 65 - m;
        let got = run(Isa::detect(), Width::A16, &w, &x[from * k..]);
        assert!(same_bits(&got, &all[from * n..]), "M = {m}");
    }
}

#[test]
fn errors_stay_within_the_width() {
    for spec in specs() {
        let (n, k) = (32, 12 * spec.group_size as usize);
        let mut rng = Rng(3 + spec.bits as u64);
        let q = quantized(&mut rng, spec, n, k);
        let w = pack(spec, &q, n, k);
        let x = rng.activations(9, k);
        let want = exact(&x, &q.values, k);
        for (width, limit) in [(Width::A8, 3e-2), (Width::A16, 1e-4), (Width::A24, 1e-6)] {
            let error = rms_error(&run(Isa::detect(), width, &w, &x), &want);
            assert!(error < limit, "{spec:?} {width:?}: {error}");
        }
    }
}

#[test]
fn packed_rows_are_the_matrix_and_take_no_more_room() {
    for spec in specs() {
        let (n, k) = (32, 2 * spec.group_size as usize);
        let q = quantized(&mut Rng(1), spec, n, k);
        let w = pack(spec, &q, n, k);
        let mut row = vec![0.0; k];
        for i in 0..n {
            w.row(i, &mut row);
            let want = &q.values[i * k..][..k];
            let close = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() <= b.abs() * 1e-7 + 1e-8;
            assert!(row.iter().zip(want).all(close), "{spec:?} row {i}: {row:?} {want:?}");
        }
        let scales = if spec.mode == QuantMode::Affine { 8 } else { 1 };
        assert_eq!(w.nbytes(), n * k * spec.bits as usize / 8 + n * k / spec.group_size as usize * scales);
    }
}

#[test]
fn narrow_scales_give_what_they_hold() {
    let spec = QuantSpec { group_size: 64, bits: 4, mode: QuantMode::Affine };
    let (n, k) = (20, 128);
    let mut rng = Rng(11);
    let q = quantized(&mut rng, spec, n, k);
    let x = rng.activations(5, k);
    let want = run(Isa::detect(), Width::A24, &pack(spec, &q, n, k), &x);
    let half = |x: &[f32]| x.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>();
    let brain = |x: &[f32]| x.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>();
    let (s16, b16, s_brain, b_brain) = (half(&q.scales), half(&q.biases), brain(&q.scales), brain(&q.biases));
    let f16s = QMatrix::pack(spec, (n, k), &q.words, Scales::F16(&s16), Some(Scales::F16(&b16))).unwrap();
    let bf16s =
        QMatrix::pack(spec, (n, k), &q.words, Scales::Bf16(&s_brain), Some(Scales::Bf16(&b_brain))).unwrap();
    for isa in Isa::all() {
        assert!(same_bits(&run(isa, Width::A24, &f16s, &x), &want), "f16 {isa:?}");
        assert!(same_bits(&run(isa, Width::A24, &bf16s, &x), &want), "bf16 {isa:?}");
    }
}

#[test]
fn bad_inputs_poison_their_row_only() {
    let spec = QuantSpec { group_size: 32, bits: 4, mode: QuantMode::Affine };
    let (n, k) = (16, 64);
    let mut rng = Rng(2);
    let w = pack(spec, &quantized(&mut rng, spec, n, k), n, k);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for isa in Isa::all() {
            let mut x = rng.activations(3, k);
            x[k + 40] = bad;
            let y = run(isa, Width::A16, &w, &x);
            assert!(y[n..2 * n].iter().all(|v| v.is_nan()));
            assert!(y[..n].iter().chain(&y[2 * n..]).all(|v| v.is_finite()));
        }
    }
}
