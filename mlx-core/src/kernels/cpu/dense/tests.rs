use super::super::pack::e4m3;
use super::*;

/// Reproducible numbers in ±1 that follow no pattern.
fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn product(isa: Isa, ws: &[&DMatrix], x: &[f32], m: usize) -> Vec<Vec<f32>> {
    let k = ws[0].k();
    let mut rows = Rows::default();
    rows.fill(isa, (m, k), |i, out| out.copy_from_slice(&x[i * k..][..k]));
    let mut ys: Vec<Vec<f32>> = ws.iter().map(|w| vec![f32::NAN; m * w.n()]).collect();
    matmul(isa, ws, &rows, &mut ys.iter_mut().map(|y| &mut y[..]).collect::<Vec<_>>());
    ys
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// MXFP8 codes of every value but NaN, under scales from 2^-3 to 2^4, and the values that they stand for.
fn mxfp8(n: usize, k: usize) -> (DMatrix, Vec<f32>) {
    let codes: Vec<u8> =
        (0..n * k).map(|i| (i * 37 % 256) as u8).map(|c| c & !u8::from(c & 0x7f == 0x7f)).collect();
    let words: Vec<u32> = codes.as_chunks().0.iter().map(|c| u32::from_le_bytes(*c)).collect();
    let scales: Vec<u8> = (0..n * k / GROUP).map(|i| 124 + (i * 5 % 8) as u8).collect();
    let value = |(i, c): (usize, &u8)| e4m3(*c) * e8m0(scales[i / GROUP]);
    let values = codes.iter().enumerate().map(value).collect();
    (DMatrix::pack(n, k, Elements::Mxfp8 { words: &words, scales: &scales }), values)
}

/// The same numbers in every type, and the values that each keeps of them.
fn matrices(n: usize, k: usize) -> Vec<(DMatrix, Vec<f32>)> {
    let w = noise(n * k, 1);
    let half: Vec<f16> = w.iter().map(|x| f16::from_f32(*x)).collect();
    let brain: Vec<bf16> = w.iter().map(|x| bf16::from_f32(*x)).collect();
    let mut all = vec![
        (DMatrix::pack(n, k, Elements::F32(&w)), w),
        (DMatrix::pack(n, k, Elements::F16(&half)), half.iter().map(|x| x.to_f32()).collect()),
        (DMatrix::pack(n, k, Elements::Bf16(&brain)), brain.iter().map(|x| x.to_f32()).collect()),
    ];
    if k.is_multiple_of(GROUP) {
        all.push(mxfp8(n, k));
    }
    all
}

#[test]
fn a_row_is_the_same_in_any_company_and_on_any_instruction_set() {
    let top = 65;
    for (n, k) in [(72, 133), (37, 96), (5, 7), (200, 300)] {
        let x = noise(top * k, 2);
        for (w, _) in matrices(n, k) {
            let alone: Vec<u32> =
                (0..top).flat_map(|i| bits(&product(Isa::Portable, &[&w], &x[i * k..][..k], 1)[0])).collect();
            for isa in Isa::all() {
                for m in 1..=top {
                    let got = bits(&product(isa, &[&w], &x[..m * k], m)[0]);
                    assert!(got == alone[..m * n], "{isa:?} {:?} [{n}, {k}] with {m} rows", w.kind);
                }
            }
        }
    }
}

#[test]
fn close_to_the_product_in_float64() {
    let (n, k, m) = (40, 992, 11);
    let x = noise(m * k, 2);
    let matrices = matrices(n, k);
    let all: Vec<&DMatrix> = matrices.iter().map(|(w, _)| w).collect();
    for (got, (_, w)) in product(Isa::detect(), &all, &x, m).iter().zip(&matrices) {
        let want = |i: usize| -> f64 {
            let (row, column) = (&x[i / n * k..][..k], &w[i % n * k..][..k]);
            row.iter().zip(column).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
        };
        let square = |f: &dyn Fn(usize) -> f64| (0..m * n).map(|i| f(i) * f(i)).sum::<f64>().sqrt();
        let error = square(&|i| f64::from(got[i]) - want(i)) / square(&want);
        assert!(error < 1e-6, "relative error {error}");
    }
}

#[test]
fn rows_come_back_as_they_were() {
    for k in [19, 64] {
        for (w, values) in matrices(37, k) {
            for row in 0..37 {
                let mut out = vec![0.0; k];
                w.row(row, &mut out);
                assert_eq!(out, values[row * k..][..k], "{:?}", w.kind);
            }
        }
    }
}

#[test]
fn what_is_not_a_number_stays_in_its_row() {
    let (n, k) = (3, 64);
    let mut words = vec![0x3838_3838; n * k / 4];
    words[k / 4] = 0x3838_387f;
    let w = DMatrix::pack(n, k, Elements::Mxfp8 { words: &words, scales: &[127; 6] });
    let y = product(Isa::detect(), &[&w], &[1.0; 64], 1).remove(0);
    assert!(y[0] == 64.0 && y[1].is_nan() && y[2] == 64.0, "{y:?}");
}
