use super::quant::{QuantMode, QuantSpec};
use super::*;

fn x(values: &[f32], shape: &[i32]) -> Array {
    Array::from_slice(values, shape)
}

#[track_caller]
fn check(got: &Array, want: &[f32]) {
    let got = got.astype(Dtype::Float32).to_vec::<f32>().unwrap();
    assert_eq!(got.len(), want.len());
    for (a, b) in got.iter().zip(want) {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{got:?} instead of {want:?}");
    }
}

#[test]
fn arithmetic_keeps_the_type_of_the_array() {
    let a = x(&[1.0, 2.0, 3.0], &[3]).astype(Dtype::Bfloat16);
    let b = &(&a * 2.0) + 1.0;
    assert_eq!(b.dtype(), Dtype::Bfloat16);
    check(&b, &[3.0, 5.0, 7.0]);
}

#[test]
fn ops_compute_what_they_say() {
    let m = x(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    check(&m.transpose(&[1, 0]), &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    check(&m.slice(1, 1..3), &[2.0, 3.0, 5.0, 6.0]);
    check(&m.matmul(&m.transpose(&[1, 0])), &[14.0, 32.0, 32.0, 77.0]);
    check(&m.clone().slice_update(&x(&[9.0], &[1, 1]), &[1, 2]), &[1.0, 2.0, 3.0, 4.0, 5.0, 9.0]);
    check(&m.sum(1, false), &[6.0, 15.0]);
    check(&m.cumsum(1, false, true), &[1.0, 3.0, 6.0, 4.0, 9.0, 15.0]);
    check(&Array::concat(&[&m, &m], 1).slice(0, 0..1), &[1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    assert_eq!(m.argmax(1, false).to_vec::<u32>().unwrap(), [2, 2]);
    check(&m.take(&Array::from_slice(&[1u32], &[1]), 0), &[4.0, 5.0, 6.0]);
    check(&m.softmax(1, true).slice(0, 0..1), &[0.090_030_57, 0.244_728_48, 0.665_240_94]);
    check(&x(&[-1.0, 0.5], &[2]).silu(), &[-0.268_941_42, 0.311_229_67]);
    check(&x(&[-1.0, 0.5], &[2]).gelu(), &[-0.158_655_25, 0.345_731_23]);
    check(&x(&[-1.0, 0.5], &[2]).gelu_approx(), &[-0.158_808, 0.345_714]);
    check(&fast::rms_norm(&x(&[3.0, 4.0], &[1, 2]), None, 0.0), &[0.848_528_1, 1.131_370_8]);
    assert_eq!(m.split(&[1], 1).len(), 2);
}

#[test]
#[should_panic(expected = "matmul of [float32 [2, 3], float32 [2, 3]]")]
fn misuse_names_the_op_and_the_shapes() {
    let m = Array::zeros(&[2, 3], Dtype::Float32);
    m.matmul(&m);
}

#[test]
fn reading_as_another_type_is_an_error() {
    let err = Array::scalar(1.0).to_vec::<i32>().unwrap_err();
    assert_eq!(err, Error::Dtype { want: Dtype::Int32, got: Dtype::Float32 });
}

#[test]
fn every_quantization_mode_round_trips() {
    let values: Vec<f32> = (0..64 * 128).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let w = x(&values, &[64, 128]);
    let affine = [2, 3, 4, 5, 6, 8].map(|bits| QuantSpec::new(QuantMode::Affine, 32, bits).unwrap());
    let float = [QuantMode::Mxfp4, QuantMode::Mxfp8, QuantMode::Nvfp4].map(QuantMode::defaults);
    for spec in affine.into_iter().chain(float) {
        let (words, scales, biases) = quant::quantize(&w, spec);
        let back = quant::dequantize(&words, &scales, biases.as_ref(), spec, Dtype::Float32);
        let error = (&back - &w).abs().max(0, false).max(0, false).item::<f32>().unwrap();
        let step = if spec.mode == QuantMode::Affine { 2.0 / ((1 << spec.bits) - 1) as f32 } else { 0.2 };
        assert!(error <= step, "{spec:?}: {error}");

        let y = quant::quantized_matmul(&w.slice(0, 0..3), &words, &scales, biases.as_ref(), spec);
        let want = w.slice(0, 0..3).matmul(&back.transpose(&[1, 0]));
        check(&y, &want.to_vec::<f32>().unwrap());
    }
    assert!(QuantSpec::new(QuantMode::Affine, 48, 4).is_err());
    assert!(QuantSpec::new(QuantMode::Nvfp4, 32, 4).is_err());
}

#[test]
fn rust_ops_are_lazy_fuse_and_see_strided_inputs() {
    let double = |a: &Array| {
        let out = Output::new(a.shape(), Dtype::Float32);
        custom("double", &[a], &[out], |ins, outs| {
            let (x, y) = (ins[0].as_slice::<f32>(), outs[0].as_mut_slice::<f32>());
            y.iter_mut().zip(x).for_each(|(y, x)| *y = 2.0 * x);
        })
        .remove(0)
    };
    let m = x(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    check(&double(&double(&m.transpose(&[1, 0]))), &[4.0, 12.0, 8.0, 16.0]);
    let compiled = Compiled::new(move |xs| vec![&double(&(&xs[0] + 1.0)) * 0.5]);
    check(&compiled.call(&[&m])[0], &[2.0, 3.0, 4.0, 5.0]);
}

#[test]
fn a_buffer_is_updated_in_place_only_when_it_has_one_owner() {
    let bump = |a: Array| {
        let out = Output { from_input: Some(0), ..Output::new(a.shape(), Dtype::Float32) };
        custom("bump", &[&a], &[out], |_, outs| outs[0].as_mut_slice::<f32>()[0] += 1.0).remove(0)
    };
    let first = &Array::zeros(&[1024], Dtype::Float32) + 0.0;
    first.eval().unwrap();
    let held = bump(first.clone());
    held.eval().unwrap();
    assert_eq!(first.to_vec::<f32>().unwrap()[0], 0.0);
    assert_eq!(held.to_vec::<f32>().unwrap()[0], 1.0);
    let alone = bump(bump(held));
    alone.eval().unwrap();
    assert_eq!(alone.to_vec::<f32>().unwrap()[0], 3.0);
}

#[test]
fn a_kernel_that_panics_is_an_error_of_the_evaluation() {
    let a = Array::scalar(1.0);
    let out = Output::new(&[], Dtype::Float32);
    let bad = custom("bad", &[&a], &[out], |_, _| panic!("on purpose")).remove(0);
    let err = bad.eval().unwrap_err();
    assert_eq!(err, Error::Kernel("kernel `bad` failed: on purpose".into()));
    check(&(&a + 1.0), &[2.0]);
}

#[test]
fn a_failed_kernel_is_told_once_and_the_stream_goes_on() {
    let a = Array::scalar(1.0);
    let bad =
        || custom("bad", &[&a], &[Output::new(&[], Dtype::Float32)], |_, _| panic!("on purpose")).remove(0);
    let before = &a + 1.0;
    async_eval([&before]).unwrap();
    let failed = bad();
    // It may have run by the time this returns, and then fails here.
    let outcomes = [async_eval([&failed]), failed.eval()];
    assert_eq!(outcomes.iter().filter(|o| o.is_err()).count(), 1);
    check(&before, &[2.0]);
    check(&(&a + 2.0), &[3.0]);
    assert!((&bad() + 1.0).eval().is_err());
    check(&(&a + 3.0), &[4.0]);
}

#[test]
#[should_panic(expected = "an input was read that a result starts from")]
fn a_kernel_never_sees_one_buffer_as_input_and_as_result() {
    let a = &Array::ones(&[4], Dtype::Float32) + 1.0;
    let out = Output { from_input: Some(0), ..Output::new(&[4], Dtype::Float32) };
    let y = custom("alias", &[&a], &[out], |ins, outs| {
        outs[0].as_mut_slice::<f32>().copy_from_slice(ins[0].as_slice());
    })
    .remove(0);
    drop(a);
    panic!("{}", y.eval().unwrap_err());
}

#[test]
#[should_panic(expected = "grow of [float32 [4]] cannot make")]
fn a_result_starts_only_from_an_input_of_its_own_shape() {
    let a = Array::ones(&[4], Dtype::Float32);
    let out = Output { from_input: Some(0), ..Output::new(&[8], Dtype::Float32) };
    custom("grow", &[&a], &[out], |_, _| ());
}

#[test]
#[should_panic(expected = "matmul of [float32 [2, 3], float32 [2, 3]]")]
fn a_traced_function_panics_as_itself() {
    let m = Array::zeros(&[2, 3], Dtype::Float32);
    Compiled::new(|xs| vec![xs[0].matmul(&xs[0])]).call(&[&m]);
}

#[test]
#[should_panic(expected = "0.5 is not of the type of int32 [2]")]
fn a_fraction_beside_integers_is_misuse() {
    let _ = &Array::from_slice(&[1i32, 2], &[2]) * 0.5;
}

#[test]
fn booleans_are_read_as_booleans_whatever_the_bytes() {
    let a = Array::from_bytes(&[0, 1, 7, 255], &[4], Dtype::Bool);
    assert_eq!(a.to_vec::<bool>().unwrap(), [false, true, true, true]);
}

#[test]
fn streams_run_what_is_built_inside_them_and_see_each_other() {
    let thread_of = |x: &Array| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let out = Output { from_input: Some(0), ..Output::new(&[], Dtype::Float32) };
        let y = custom("where", &[x], &[out], move |_, _| {
            sender.send(std::thread::current().id()).expect("the test waits");
        })
        .remove(0);
        (y, receiver)
    };
    let stream = Stream::new(Device::Cpu).unwrap();
    let a = Array::scalar(2.0);
    let (b, first) = thread_of(&(&a + 1.0));
    let (c, second) = stream.run(|| thread_of(&(&b * 2.0)));
    check(&(&c + 1.0), &[7.0]);
    stream.synchronize().unwrap();
    assert_ne!(first.recv().unwrap(), second.recv().unwrap());
}

#[test]
fn foreign_memory_is_used_in_place_never_written_and_released_with_its_array() {
    for offset in [8, 0, 10] {
        let mut bytes = vec![0; offset];
        bytes.extend([1f32, 2.0].map(f32::to_le_bytes).as_flattened());
        let owner = std::sync::Arc::new(bytes);
        let weak = std::sync::Arc::downgrade(&owner);
        let a = Array::from_owner(owner.clone(), |o| o, offset..offset + 8, &[2], Dtype::Float32);
        let aligned = owner.as_ptr().addr().is_multiple_of(4) && offset == 8;
        assert_eq!(weak.strong_count(), if aligned { 2 } else { 1 }, "offset {offset}");
        let b = &a + 1.0;
        drop(a);
        check(&b, &[2.0, 3.0]);
        assert_eq!(owner[offset..], *[1f32, 2.0].map(f32::to_le_bytes).as_flattened());
        drop((b, owner));
        synchronize().unwrap();
        assert!(weak.upgrade().is_none());
    }
}
