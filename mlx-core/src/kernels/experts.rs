//! Routing and experts as one evaluated primitive.

use std::cell::RefCell;
use std::sync::Arc;

use super::cpu::isa::Isa;
use super::cpu::matrix::Matrix;
use super::cpu::pointwise;
use super::project::{Prepared, by_row, multiply};
use crate::experts::{Gating, Routing};
use crate::projection::Width;
use crate::{Array, Dtype, Output, custom};

/// One matrix of one expert.
pub(crate) struct Expert {
    pub(crate) weight: Arc<Matrix>,
    pub(crate) bias: Option<Vec<f32>>,
}

/// What an op keeps of a layer: gate, up and down of each expert.
pub(crate) struct ExpertsCall {
    pub(crate) experts: [Arc<[Expert]>; 3],
    pub(crate) gating: Gating,
    pub(crate) width: Width,
}

thread_local! {
    /// Memory of the stream's thread, which runs one op at a time.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

#[derive(Default)]
struct Scratch {
    inputs: Prepared,
    x: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    down: Vec<f32>,
}

/// `x: [N, D]` and `logits: [N, E]`, float32, to `[N, D]`.
#[track_caller]
pub(crate) fn experts(x: &Array, logits: &Array, routing: &Routing, call: ExpertsCall) -> Array {
    let (n, dim, routing) = (x.dim(0) as usize, x.dim(1) as usize, routing.clone());
    let e = call.experts[0].len();
    assert!(logits.shape() == [n as i32, e as i32], "{e} experts were given logits {logits:?} for {x:?}");
    custom("experts", &[x, logits], &[Output::new(x.shape(), Dtype::Float32)], move |ins, outs| {
        let (x, logits) = (ins[0].as_slice::<f32>(), ins[1].as_slice::<f32>());
        let routes: Vec<Vec<(usize, f32)>> =
            (0..n).map(|i| routing.choose(&logits[i * e..(i + 1) * e])).collect();
        let k = routing.k.min(e);
        // What each choice of each row gives: `[N, k, D]`.
        let mut parts = vec![0f32; n * k * dim];
        SCRATCH.with_borrow_mut(|scratch| {
            for expert in 0..e {
                let rows: Vec<(usize, usize)> = (0..n)
                    .filter_map(|i| Some((i, routes[i].iter().position(|(id, _)| *id == expert)?)))
                    .collect();
                if !rows.is_empty() {
                    call.run(expert, x, dim, &rows, scratch);
                    for (y, (i, slot)) in scratch.down.chunks_exact(dim).zip(rows) {
                        parts[(i * k + slot) * dim..][..dim].copy_from_slice(y);
                    }
                }
            }
        });
        by_row(outs[0].as_mut_slice(), n, |i, out| {
            out.fill(0.0);
            for (part, (_, weight)) in parts[i * k * dim..].chunks_exact(dim).zip(&routes[i]) {
                out.iter_mut().zip(part).for_each(|(out, x)| *out += x * weight);
            }
        });
    })
    .remove(0)
}

impl ExpertsCall {
    /// Leaves the expert's results for `rows` in `scratch.down`.
    fn run(&self, expert: usize, x: &[f32], dim: usize, rows: &[(usize, usize)], scratch: &mut Scratch) {
        let m = rows.len();
        let [gate, up, down] = self.experts.each_ref().map(|stack| &stack[expert]);
        let hidden = gate.weight.n();
        scratch.x.clear();
        rows.iter().for_each(|(i, _)| scratch.x.extend_from_slice(&x[i * dim..(i + 1) * dim]));
        scratch.gate.resize(m * hidden, 0.0);
        scratch.up.resize(m * hidden, 0.0);
        scratch.down.resize(m * dim, 0.0);
        let weights = [gate.weight.clone(), up.weight.clone()];
        let ys = &mut [&mut scratch.gate[..], &mut scratch.up[..]];
        multiply(&mut scratch.inputs, self.width, &scratch.x, (m, dim), None, &weights, ys);
        add_bias(&mut scratch.gate, gate.bias.as_deref());
        add_bias(&mut scratch.up, up.bias.as_deref());
        self.gate(&mut scratch.gate, &scratch.up);
        let ys = &mut [&mut scratch.down[..]];
        let weights = [down.weight.clone()];
        multiply(&mut scratch.inputs, self.width, &scratch.gate, (m, hidden), None, &weights, ys);
        add_bias(&mut scratch.down, down.bias.as_deref());
    }

    fn gate(&self, gate: &mut [f32], up: &[f32]) {
        let isa = Isa::detect();
        match self.gating {
            Gating::Glu(act) => {
                let from = gate.to_vec();
                pointwise::glu(isa, act, &from, up, gate);
            }
            Gating::ClampedSwiglu { alpha, limit } => pointwise::clamped_swiglu(isa, alpha, limit, up, gate),
        }
    }
}

fn add_bias(y: &mut [f32], bias: Option<&[f32]>) {
    if let Some(bias) = bias {
        y.chunks_exact_mut(bias.len()).for_each(|row| pointwise::add(Isa::detect(), bias, row));
    }
}
