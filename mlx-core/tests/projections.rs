//! Every format that a checkpoint can have runs on our own kernels and gives the product that its decoded
//! weights give. In a process of its own, since the counts of fallbacks are the process's.
#![cfg(not(target_os = "macos"))]
#![expect(clippy::unwrap_used, reason = "a test may stop at the first failure")]

use mlx_core::projection::{Projection, RmsNorm, Width, glu, norm_project, project_add};
use mlx_core::quant::{self, QuantMode, QuantSpec};
use mlx_core::{Array, Dtype, kernels, projection::Act};

const N: i32 = 40;
const K: i32 = 256;

fn wave(shape: &[i32], step: f32) -> Array {
    let n: i32 = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| (i as f32 * step).sin()).collect();
    Array::from_slice(&values, shape)
}

fn specs() -> Vec<QuantSpec> {
    let sizes = [2, 3, 4, 5, 6, 8].into_iter().flat_map(|bits| [32, 64, 128].map(|group| (group, bits)));
    let affine = sizes.map(|(group, bits)| QuantSpec::new(QuantMode::Affine, group, bits).unwrap());
    affine.chain([QuantMode::Mxfp4, QuantMode::Mxfp8, QuantMode::Nvfp4].map(QuantMode::defaults)).collect()
}

/// Projections in every format, and the float32 matrix that each stands for.
fn all() -> Vec<(String, Projection, Array)> {
    let w = wave(&[N, K], 0.37);
    let mut all = Vec::new();
    for dtype in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16] {
        let w = w.astype(dtype);
        let dense = Projection::dense(w.clone(), None, Width::A24).unwrap();
        all.push((format!("dense {dtype:?}"), dense, w.astype(Dtype::Float32)));
        for spec in specs() {
            let (words, scales, biases) = quant::quantize(&w, spec);
            // In float32: decoding in the scales' own type rounds each weight.
            let affine = spec.mode == QuantMode::Affine;
            let wide = |x: &Array| if affine { x.astype(Dtype::Float32) } else { x.clone() };
            let wide_biases = biases.as_ref().map(wide);
            let decoded =
                quant::dequantize(&words, &wide(&scales), wide_biases.as_ref(), spec, Dtype::Float32);
            let packed = Projection::quantized(words, scales, biases, spec, None, Width::A24).unwrap();
            all.push((format!("{spec:?} {dtype:?}"), packed, decoded));
        }
    }
    all
}

#[track_caller]
fn close(name: &str, got: &Array, want: &Array, tolerance: f32) {
    let (got, want) = (got.to_vec::<f32>().unwrap(), want.to_vec::<f32>().unwrap());
    let rms = |x: &mut dyn Iterator<Item = f32>| x.map(|v| v * v).sum::<f32>().sqrt();
    let error = rms(&mut got.iter().zip(&want).map(|(a, b)| a - b)) / rms(&mut want.iter().copied());
    assert!(got.len() == want.len() && error < tolerance, "{name}: {error}");
}

#[test]
fn no_format_falls_back() {
    let before = kernels::fallbacks();
    let x = wave(&[5, K], 0.73);
    let ids = Array::from_slice(&[3u32, 0, 39], &[3]);
    for (name, projection, decoded) in all() {
        assert!(projection.is_packed(), "{name}");
        close(&name, &projection.forward(&x), &x.matmul(&decoded.transpose(&[1, 0])), 2e-6);
        close(&name, &projection.rows(&ids, Dtype::Float32), &decoded.take(&ids, 0), 1e-6);
    }
    assert_eq!(kernels::fallbacks(), before);
}

#[test]
fn formats_mix_within_a_call() {
    let before = kernels::fallbacks();
    let x = wave(&[3, K], 0.73);
    let norm = RmsNorm { weight: wave(&[K], 0.11), eps: 1e-5 };
    let normed = norm.forward(&x);
    let all = all();
    let named = |name: &str| all.iter().find(|(n, ..)| n.contains(name)).unwrap();
    let (_, dense, _) = named("dense Bfloat16");
    for (name, other, _) in &all {
        let [a, b] = norm_project(&x, Some(&norm), [dense, other]);
        close(name, &a, &dense.forward(&normed), 1e-6);
        close(name, &b, &other.forward(&normed), 1e-6);
        let gated = &Act::Silu.forward(&dense.forward(&normed)) * &other.forward(&normed);
        close(name, &glu(&x, Some(&norm), dense, other, Act::Silu), &gated, 1e-5);
        let residual = wave(&[3, N], 0.2);
        close(name, &project_add(&x, other, &residual), &(&residual + &other.forward(&x)), 1e-6);
    }
    assert_eq!(kernels::fallbacks(), before);
}
