//! One test alone in its process, because MLX counts bytes for all threads together.

use mlx_core::quant::{self, QuantMode};
use mlx_core::{Array, Dtype, Output, custom, eval, memory};

/// One of two results takes the input over, as a layer's keys and values do beside its output.
fn in_place(x: Array) -> Array {
    let out = Output { from_input: Some(0), ..Output::new(x.shape(), Dtype::Float32) };
    let other = Output::new(&[1], Dtype::Float32);
    let run = |_: &[_], outs: &mut [mlx_core::ViewMut]| outs[1].as_mut_slice::<f32>()[0] += 1.0;
    custom("touch", &[&x], &[other, out], run).remove(1)
}

#[test]
fn memory_returns_to_where_it_started_and_updates_in_place_take_none() {
    let round = || {
        let a = Array::ones(&[256, 256], Dtype::Float32);
        let spec = QuantMode::Affine.defaults();
        let (words, scales, biases) = quant::quantize(&a, spec);
        let y = quant::quantized_matmul(&a, &words, &scales, biases.as_ref(), spec);
        eval([&in_place(y)]).unwrap();
    };
    round();
    let before = memory::active();
    (0..20).for_each(|_| round());
    assert!(memory::active() <= before, "leaked {} bytes", memory::active() - before);

    let held = &Array::zeros(&[1 << 20], Dtype::Float32) + 1.0;
    held.eval().unwrap();
    let (before, _) = (memory::active(), memory::reset_peak());
    let updated = in_place(in_place(held));
    updated.eval().unwrap();
    assert!(memory::peak() < before + (1 << 20), "an update in place allocated");
    assert_eq!(updated.to_vec::<f32>().unwrap()[0], 3.0);
}
