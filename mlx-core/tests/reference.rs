//! Ops against the numbers of Python MLX 0.32.4 on its CPU backend.
#![expect(clippy::excessive_precision, reason = "the numbers are as the reference printed them")]

use mlx_core::fast::{self, Mask, Offset};
use mlx_core::quant::{self, Experts, QuantMode, QuantSpec};
use mlx_core::{Array, Dtype, random};

#[track_caller]
fn check(got: &Array, want: &[f32]) {
    let got = got.astype(Dtype::Float32).to_vec::<f32>().expect("float32 was asked for");
    assert_eq!(got.len(), want.len(), "{got:?}");
    for (a, b) in got.iter().zip(want) {
        assert!((a - b).abs() <= 2e-6 * b.abs().max(1.0), "{got:?} instead of {want:?}");
    }
}

fn x(values: &[f32], shape: &[i32]) -> Array {
    Array::from_slice(values, shape)
}

/// `(i · factor mod modulus − offset) / divisor` for each element.
fn pattern(shape: &[i32], factor: f32, modulus: f32, offset: f32, divisor: f32) -> Array {
    let n: i32 = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| (i as f32 * factor % modulus - offset) / divisor).collect();
    x(&values, shape)
}

#[test]
fn rotations() {
    let q = pattern(&[1, 1, 2, 8], 1.0, 16.0, 8.0, 4.0);
    check(
        &fast::rope(&q, 8, false, Some(10000.0), 1.0, Offset::Scalar(3), None),
        &[
            2.121105,
            -1.4501987,
            -1.4843273,
            -1.2492445,
            0.70775247,
            -1.2336627,
            -0.54476827,
            -0.25374886,
            0.7568025,
            -0.25650769,
            0.43961605,
            0.74299407,
            -0.65364361,
            1.2486808,
            1.5187948,
            1.7529861,
        ],
    );
    check(
        &fast::rope(&q, 4, true, Some(100.0), 0.5, Offset::Scalar(1), None),
        &[
            -0.91617036,
            -2.4946206,
            -1.4356514,
            -1.3234067,
            -1.0,
            -0.75,
            -0.5,
            -0.25,
            -0.21036774,
            0.13507557,
            0.42262703,
            0.79616988,
            1.0,
            1.25,
            1.5,
            1.75,
        ],
    );
    let (at, periods) = (Array::from_slice(&[2i32], &[1]), x(&[1.0, 2.0, 4.0, 8.0], &[4]));
    check(
        &fast::rope(&q, 8, false, None, 1.0, Offset::Array(&at), Some(&periods)),
        &[
            1.741591,
            -0.31442577,
            -1.0766611,
            -1.1492895,
            -1.4024479,
            -1.8778009,
            -1.1579297,
            -0.55148304,
            -0.14112,
            -1.2291844,
            -0.65661377,
            0.05690372,
            -0.9899925,
            0.33779526,
            1.4383526,
            1.9030926,
        ],
    );
}

#[test]
fn layer_norm() {
    let (weight, bias) = (x(&[1.0, 2.0, 3.0, 4.0], &[4]), x(&[0.5, 0.0, 0.0, 0.0], &[4]));
    let got = fast::layer_norm(&x(&[-2.0, -1.75, -1.5, -1.25], &[1, 4]), Some(&weight), Some(&bias), 1e-5);
    check(&got, &[-0.84155488, -0.89436996, 1.3415549, 5.3662195]);
}

#[test]
fn attention() {
    let q = pattern(&[1, 2, 2, 4], 1.0, 16.0, 7.0, 8.0);
    let k = pattern(&[1, 1, 3, 4], 1.0, 12.0, 5.0, 6.0);
    let v = pattern(&[1, 1, 3, 4], 1.0, 12.0, 0.0, 1.0);
    check(
        &fast::sdpa(&q, &k, &v, 0.5, Mask::Causal, None),
        &[
            1.1425503, 2.1425505, 3.1425505, 4.1425505, 3.3401852, 4.3401852, 5.3401852, 6.3401852,
            2.4107413, 3.4107413, 4.4107413, 5.4107409, 6.4375114, 7.4375114, 8.4375114, 9.4375114,
        ],
    );
    let mask = Array::from_slice(&[true, false, true, false, true, true], &[2, 3]);
    let sinks = x(&[0.25, -1.0], &[2]);
    check(
        &fast::sdpa(&q, &k, &v, 0.5, Mask::Array(&mask), Some(&sinks)),
        &[
            0.74954927, 1.4292688, 2.1089883, 2.7887077, 3.3693078, 3.9551425, 4.540977, 5.126812, 4.8393111,
            5.7071195, 6.5749278, 7.4427361, 6.4881158, 7.4165149, 8.3449144, 9.2733135,
        ],
    );
}

#[test]
fn pointwise_and_shapes() {
    let w = x(&[1.0, 2.0, 3.0, -1.0], &[2, 2, 1]);
    check(&pattern(&[1, 4, 2], 1.0, 8.0, 0.0, 1.0).conv1d(&w, 2), &[4.0, 0.0, 10.0, 4.0, 16.0, 8.0]);
    let s = x(&[0.5, -2.0, 3.0, 1.0], &[4]);
    check(&s.softplus(), &[0.97407699, 0.126928, 3.0485873, 1.3132617]);
    check(&x(&[0.5, 1.5, -2.5, 2.4], &[4]).round(), &[0.0, 2.0, -2.0, 2.0]);
    let bytes = Array::from_slice(&[0x38u8, 0x40, 0xc4, 0x01], &[4]);
    check(&bytes.from_fp8(Dtype::Float32), &[1.0, 2.0, -3.0, 0.001953125]);

    // These follow from their definitions.
    let m = x(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    check(&m.tril(0), &[1.0, 0.0, 3.0, 4.0]);
    check(&m.triu(1), &[0.0, 2.0, 0.0, 0.0]);
    check(&m.tile(&[1, 2]), &[1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]);
    assert_eq!(m.flatten(0, 1).shape(), [4]);
    check(&s.slice_step(0, 0..4, 2), &[0.5, 3.0]);
    check(&s.topk(2, 0).sort(0), &[1.0, 3.0]);
    check(&(1.0 - &s), &[0.5, 3.0, -2.0, 0.0]);
    let words = Array::from_slice(&[7u32, 12], &[2]);
    check(&words.floor_divide(&Array::from_slice(&[4u32], &[1])), &[1.0, 3.0]);
    check(&words.right_shift(&Array::from_slice(&[1u32], &[1])), &[3.0, 6.0]);
    assert_eq!(s.gt(&x(&[0.0], &[1])).all(0, false).to_vec::<bool>().unwrap(), [false]);
}

#[test]
fn quantized_codes_and_experts() {
    let w = pattern(&[2, 64], 37.0, 101.0, 50.0, 50.0);
    let codes = |mode: QuantMode| {
        let (words, scales, _) = quant::quantize(&w, mode.defaults());
        (words.to_vec::<u32>().unwrap()[..4].to_vec(), scales.to_vec::<u8>().unwrap()[..4].to_vec())
    };
    assert_eq!(codes(QuantMode::Mxfp8), (vec![4117752056, 1643279319, 4151045494, 16019941], vec![119; 4]));
    assert_eq!(
        codes(QuantMode::Nvfp4),
        (vec![761914815, 240841927, 2941022934, 3074253285], vec![35, 35, 34, 34])
    );

    let spec = QuantSpec::new(QuantMode::Affine, 64, 8).unwrap();
    let experts = pattern(&[3, 4, 64], 29.0, 97.0, 48.0, 48.0);
    let (words, scales, biases) = quant::quantize(&experts, spec);
    let xs = pattern(&[2, 1, 64], 1.0, 7.0, 3.0, 3.0);
    let chosen = Array::from_slice(&[2u32, 0], &[2]);
    let stacked =
        Experts { words: &words, scales: &scales, biases: biases.as_ref(), global_scale: None, spec };
    let loose = |got: &Array, want: [f32; 8]| {
        let error = (got - &x(&want, &[2, 1, 4])).abs().flatten(0, 2).max(0, false).item::<f32>().unwrap();
        assert!(error < 1e-4, "{error}");
    };
    loose(
        &quant::gather_qmm(&xs, &stacked, None, Some(&chosen), false),
        [-0.59964442, -2.9055121, -1.1522312, 0.60723531, 2.1154854, -0.073491037, 1.089637, -1.1128609],
    );
    loose(
        &quant::gather_mm(&xs, &experts.swap_axes(-1, -2), None, Some(&chosen), false),
        [-0.60416508, -2.8958337, -1.1458337, 0.60416704, 2.1250017, -0.076388538, 1.0902772, -1.111111],
    );
}

#[test]
fn random_streams() {
    let key = random::key(7);
    let (a, b) = random::split(&key);
    assert_eq!(a.to_vec::<u32>().unwrap(), [966301609, 989289821]);
    assert_eq!(b.to_vec::<u32>().unwrap(), [1948237315, 1058547403]);
    let f32s = Dtype::Float32;
    check(&random::uniform(-1.0, 2.0, &[3], f32s, &key), &[-0.32504612, 0.27848125, 0.36082804]);
    check(&random::normal(1.0, 2.0, &[3], f32s, &key), &[-0.51093245, 0.62768412, 0.76690531]);
    check(&random::gumbel(&[3], f32s, &key), &[-0.39993194, 0.15906675, 0.23506567]);
    let logits = x(&[0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 2.0, 2.0], &[4, 3]);
    check(&random::categorical(&logits, -1, &key), &[2.0, 2.0, 0.0, 2.0]);
    assert_eq!(random::bits(&[3], &key).dtype(), Dtype::Uint32);
}
