//! Projections as ops: one evaluated primitive for a norm, the quantizing of its output and every matrix
//! that shares it.

use std::cell::RefCell;
use std::sync::Arc;

use super::cpu::acts::Acts;
use super::cpu::dense::{self, DMatrix, Rows};
use super::cpu::isa::Isa;
use super::cpu::matrix::Matrix;
use super::cpu::pack::QMatrix;
use super::cpu::{pointwise, pool, qmm};
use crate::projection::{Act, RmsNorm, Width};
use crate::{Array, Dtype, Output, View, custom};

/// What a matrix is multiplied with, besides the input.
pub(crate) struct Factor<'a> {
    pub(crate) weight: &'a Arc<Matrix>,
    pub(crate) bias: Option<&'a Array>,
    pub(crate) width: Width,
}

/// Rows that use more than one thread for pointwise work.
const MANY_ROWS: usize = 16;

thread_local! {
    /// Memory of the stream's thread, which runs one op at a time.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

#[derive(Default)]
struct Scratch {
    inputs: Prepared,
    gate: Vec<f32>,
    up: Vec<f32>,
}

/// An input as the kernels of its matrices take it.
#[derive(Default)]
struct Prepared {
    acts: Acts,
    rows: Rows,
}

/// Positions of the optional inputs behind the first.
struct Inputs<'a> {
    arrays: Vec<&'a Array>,
}

impl<'a> Inputs<'a> {
    fn add(&mut self, array: Option<&'a Array>) -> Option<usize> {
        array.map(|array| {
            self.arrays.push(array);
            self.arrays.len() - 1
        })
    }
}

/// `norm(x) · Wᵢᵀ + biasᵢ` for each factor, plus `residual` where given: `[N, in]` float32.
#[track_caller]
pub(crate) fn project(
    x: &Array,
    norm: Option<&RmsNorm>,
    factors: &[Factor<'_>],
    residual: Option<&Array>,
) -> Vec<Array> {
    let k = x.dim(-1) as usize;
    let m = x.size() / k.max(1);
    let mut inputs = Inputs { arrays: vec![x] };
    let norm_at = inputs.add(norm.map(|n| &n.weight));
    let residual_at = inputs.add(residual);
    let biases: Vec<Option<usize>> = factors.iter().map(|f| inputs.add(f.bias)).collect();
    let outputs: Vec<Output> = factors
        .iter()
        .map(|f| {
            assert_eq!(f.weight.k(), k, "a projection of {} inputs was given {x:?}", f.weight.k());
            let mut shape = x.shape().to_vec();
            *shape.last_mut().expect("rows have a width") = f.weight.n() as i32;
            Output::new(&shape, Dtype::Float32)
        })
        .collect();
    let weights: Vec<Arc<Matrix>> = factors.iter().map(|f| f.weight.clone()).collect();
    let (eps, width) = (norm.map_or(0.0, |n| n.eps), factors[0].width);
    custom("project", &inputs.arrays, &outputs, move |ins, outs| {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut ys: Vec<&mut [f32]> = outs.iter_mut().map(|o| o.as_mut_slice()).collect();
            let norm = norm_at.map(|i| (ins[i].as_slice::<f32>(), eps));
            multiply(&mut scratch.inputs, width, ins[0].as_slice(), (m, k), norm, &weights, &mut ys);
            for (y, bias) in ys.iter_mut().zip(&biases) {
                finish(y, bias.map(|i| &ins[i]), residual_at.map(|i| &ins[i]), m);
            }
        });
    })
}

/// `act(norm(x) · Gᵀ) · (norm(x) · Uᵀ)`: `[N, in] → [N, hidden]` float32.
#[track_caller]
pub(crate) fn glu(x: &Array, norm: Option<&RmsNorm>, gate: &Factor<'_>, up: &Factor<'_>, act: Act) -> Array {
    let k = x.dim(-1) as usize;
    let (m, hidden) = (x.size() / k.max(1), gate.weight.n());
    assert!(
        gate.weight.k() == k && up.weight.k() == k && up.weight.n() == hidden,
        "a gated unit was given {x:?}"
    );
    let mut inputs = Inputs { arrays: vec![x] };
    let norm_at = inputs.add(norm.map(|n| &n.weight));
    let (gate_bias, up_bias) = (inputs.add(gate.bias), inputs.add(up.bias));
    let mut shape = x.shape().to_vec();
    *shape.last_mut().expect("rows have a width") = hidden as i32;
    let weights = [gate.weight.clone(), up.weight.clone()];
    let (eps, width) = (norm.map_or(0.0, |n| n.eps), gate.width);
    let output = Output::new(&shape, Dtype::Float32);
    custom("glu", &inputs.arrays, &[output], move |ins, outs| {
        SCRATCH.with_borrow_mut(|Scratch { inputs, gate, up }| {
            gate.resize(m * hidden, 0.0);
            up.resize(m * hidden, 0.0);
            let norm = norm_at.map(|i| (ins[i].as_slice::<f32>(), eps));
            multiply(
                inputs,
                width,
                ins[0].as_slice(),
                (m, k),
                norm,
                &weights,
                &mut [&mut gate[..], &mut up[..]],
            );
            finish(gate, gate_bias.map(|i| &ins[i]), None, m);
            finish(up, up_bias.map(|i| &ins[i]), None, m);
            let out = outs[0].as_mut_slice::<f32>();
            by_row(out, m, |i, out| {
                let row = i * hidden..(i + 1) * hidden;
                pointwise::glu(Isa::detect(), act, &gate[row.clone()], &up[row], out);
            });
        });
    })
    .remove(0)
}

/// `x / rms(x) · weight` over the last axis, float32.
pub(crate) fn rms_norm(x: &Array, weight: &Array, eps: f32) -> Array {
    let k = x.dim(-1) as usize;
    let m = x.size() / k.max(1);
    custom("rms_norm", &[x, weight], &[Output::new(x.shape(), Dtype::Float32)], move |ins, outs| {
        let (x, weight) = (ins[0].as_slice::<f32>(), ins[1].as_slice::<f32>());
        by_row(outs[0].as_mut_slice(), m, |i, out| {
            pointwise::rms_norm(Isa::detect(), &x[i * k..][..k], weight, eps, out);
        });
    })
    .remove(0)
}

/// Layer norm of each `dim` entries of the rows of `x: [N, W]` float32, with weights and biases of `[W]`.
pub(crate) fn layer_norm(
    x: &Array,
    weight: Option<&Array>,
    bias: Option<&Array>,
    dim: usize,
    eps: f32,
) -> Array {
    let width = x.dim(-1) as usize;
    let m = x.size() / width.max(1);
    let mut inputs = Inputs { arrays: vec![x] };
    let (weight_at, bias_at) = (inputs.add(weight), inputs.add(bias));
    custom("layer_norm", &inputs.arrays, &[Output::new(x.shape(), Dtype::Float32)], move |ins, outs| {
        let x = ins[0].as_slice::<f32>();
        let row = |at: Option<usize>| at.map(|at| ins[at].as_slice::<f32>());
        let (weight, bias) = (row(weight_at), row(bias_at));
        let part = |of: Option<&[f32]>, first: usize| of.map_or(0..0, |_| first..first + dim);
        by_row(outs[0].as_mut_slice(), m, |i, out| {
            let row = x[i * width..][..width].chunks_exact(dim);
            for (j, (x, out)) in row.zip(out.chunks_exact_mut(dim)).enumerate() {
                let weight = &weight.unwrap_or_default()[part(weight, j * dim)];
                let bias = &bias.unwrap_or_default()[part(bias, j * dim)];
                pointwise::layer_norm(Isa::detect(), x, weight, bias, eps, out);
            }
        });
    })
    .remove(0)
}

/// Rows `ids: [N]` of the matrix: `[N, in]` float32. An id past the end is an error of the evaluation.
pub(crate) fn rows(weight: &Arc<Matrix>, ids: &Array) -> Array {
    let (n, k) = (weight.n(), weight.k());
    let shape = [ids.size() as i32, k as i32];
    let weight = weight.clone();
    let ids = ids.astype(Dtype::Uint32);
    custom("rows", &[&ids], &[Output::new(&shape, Dtype::Float32)], move |ins, outs| {
        let ids = ins[0].as_slice::<u32>();
        by_row(outs[0].as_mut_slice(), ids.len(), |i, out| {
            let id = ids[i] as usize;
            assert!(id < n, "id {id} is past the table's {n} rows");
            weight.row(id, out);
        });
    })
    .remove(0)
}

/// The largest entry of each row of `x: [N, V]` float32, as `[N]` ids and `[N]` log-probabilities.
pub(crate) fn pick(x: &Array) -> [Array; 2] {
    let (n, v) = (x.dim(0), x.dim(1) as usize);
    let outputs = [Output::new(&[n], Dtype::Uint32), Output::new(&[n], Dtype::Float32)];
    let results = custom("pick", &[x], &outputs, move |ins, outs| {
        let [ids, logprobs] = outs else { unreachable!("two outputs were asked for") };
        let rows = ins[0].as_slice::<f32>().chunks_exact(v);
        let (ids, logprobs) = (ids.as_mut_slice::<u32>(), logprobs.as_mut_slice::<f32>());
        for ((row, id), logprob) in rows.zip(ids).zip(logprobs) {
            pointwise::pick(Isa::detect(), row, id, logprob);
        }
    });
    results.try_into().expect("two outputs were asked for")
}

/// All products of one input; matrices of one group size share its quantized form, dense ones its rows.
fn multiply<W: AsRef<Matrix>>(
    inputs: &mut Prepared,
    width: Width,
    x: &[f32],
    (m, k): (usize, usize),
    norm: Option<(&[f32], f32)>,
    weights: &[W],
    ys: &mut [&mut [f32]],
) {
    let isa = Isa::detect();
    let row = |i: usize, out: &mut [f32]| {
        let x = &x[i * k..][..k];
        match norm {
            Some((weight, eps)) => pointwise::rms_norm(isa, x, weight, eps, out),
            None => out.copy_from_slice(x),
        }
    };
    let (mut quantized, mut dense) =
        (Vec::<(&QMatrix, &mut [f32])>::new(), Vec::<(&DMatrix, &mut [f32])>::new());
    for (weight, y) in weights.iter().zip(ys) {
        match weight.as_ref() {
            Matrix::Quantized(w) => quantized.push((w, y)),
            Matrix::Dense(w) => dense.push((w, y)),
        }
    }
    while let Some(group) = quantized.first().map(|(w, _)| w.group_size()) {
        let of_group = quantized.extract_if(.., |(w, _)| w.group_size() == group);
        let (weights, mut ys): (Vec<&QMatrix>, Vec<&mut [f32]>) = of_group.unzip();
        inputs.acts.fill(isa, width, group, (m, k), row);
        qmm::matmul(&weights, &inputs.acts, &mut ys);
    }
    if !dense.is_empty() {
        let (weights, mut ys): (Vec<&DMatrix>, Vec<&mut [f32]>) = dense.into_iter().unzip();
        inputs.rows.fill(isa, (m, k), row);
        dense::matmul(isa, &weights, &inputs.rows, &mut ys);
    }
}

/// Adds a bias to every row, and a residual row to each.
fn finish(y: &mut [f32], bias: Option<&View>, residual: Option<&View>, m: usize) {
    let (bias, residual) = (bias.map(|v| v.as_slice::<f32>()), residual.map(|v| v.as_slice::<f32>()));
    if bias.is_none() && residual.is_none() {
        return;
    }
    let isa = Isa::detect();
    by_row(y, m, |i, y| {
        if let Some(bias) = bias {
            pointwise::add(isa, bias, y);
        }
        if let Some(residual) = residual {
            pointwise::add(isa, &residual[i * y.len()..][..y.len()], y);
        }
    });
}

/// Calls `f` with each of `m` equal parts of `out`, on all cores if they are many.
fn by_row(out: &mut [f32], m: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    struct Base(*mut f32);
    // SAFETY: tasks write disjoint rows.
    unsafe impl Sync for Base {}
    impl Base {
        /// # Safety
        /// Row `i` must exist, and no other task may have it.
        #[expect(clippy::mut_from_ref, reason = "tasks take disjoint rows of one output")]
        unsafe fn row(&self, i: usize, width: usize) -> &mut [f32] {
            // SAFETY: the caller's promise.
            unsafe { std::slice::from_raw_parts_mut(self.0.add(i * width), width) }
        }
    }
    if m == 0 {
        return;
    }
    let width = out.len() / m;
    if m < MANY_ROWS {
        return out.chunks_exact_mut(width.max(1)).enumerate().for_each(|(i, row)| f(i, row));
    }
    let base = Base(out.as_mut_ptr());
    // SAFETY: each index runs once, and `m` rows of `width` are there.
    pool::run(m, |i| f(i, unsafe { base.row(i, width) }));
}
