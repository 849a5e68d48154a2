//! Our own kernels for the CPU, where MLX's are slow, as ops that evaluate like any other.

pub mod cpu;
mod project;

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::Device;

pub use cpu::pool::set_threads;
pub(crate) use project::{Factor, glu, layer_norm, pick, project, rms_norm, rows};

/// Whether ops of this thread run our kernels.
pub(crate) fn on_cpu() -> bool {
    Device::default_device() == Device::Cpu
}

/// Threads that build graphs may be several, and a test reads what they counted.
static FALLBACKS: Mutex<BTreeMap<&'static str, usize>> = Mutex::new(BTreeMap::new());

/// Counts a call that our kernels lack the format for, and that MLX's own op serves instead.
pub(crate) fn count_fallback(op: &'static str) {
    let mut counts = FALLBACKS.lock().unwrap_or_else(|e| e.into_inner());
    *counts.entry(op).or_insert(0) += 1;
}

/// Turns one row of logits into log-probabilities. The largest entry's is, to the bit, what
/// [`pick`](crate::projection::pick) gives it on the CPU.
pub fn log_softmax(x: &mut [f32]) {
    let (mut id, mut logprob) = (0, 0.0);
    cpu::pointwise::pick(cpu::isa::Isa::detect(), x, &mut id, &mut logprob);
    let Some(&top) = x.get(id as usize) else { return };
    x.iter_mut().for_each(|v| *v = (*v - top) + logprob);
}

/// Calls on the CPU that MLX's own ops served, by op, since the start.
pub fn fallbacks() -> BTreeMap<&'static str, usize> {
    FALLBACKS.lock().unwrap_or_else(|e| e.into_inner()).clone()
}
