//! Mixtures of experts: each row goes through the few feed-forward units that a router picks for it.
//!
//! On the CPU routing and experts are one op over our own kernels: rows are grouped by expert, so that each weight
//! is read once, and a row's results are added in the order of its own choice, so that nothing depends on the
//! other rows. On a GPU it composes MLX's gathered products.

use std::sync::Arc;

use crate::kernels;
use crate::projection::{Act, Projection, Width};
use crate::quant::{self, QuantSpec};
use crate::{Array, Dtype, Result};

/// How a row of router logits becomes experts and weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// Experts to a row.
    pub k: usize,
    pub scores: Scores,
    /// Whether the chosen scores are divided by their sum.
    pub normalize: bool,
    /// A factor on the weights.
    pub scale: f32,
    /// `[E]`: added to the scores for the choice alone.
    pub bias: Option<Arc<[f32]>>,
    pub groups: Option<Groups>,
}

/// Experts in equal groups, of which a row may use the best few alone: DeepSeek-V3, arXiv 2412.19437.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    pub n: usize,
    /// Groups that a row may use: those whose two best experts together rank highest.
    pub kept: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// Over all experts.
    Softmax,
    /// Over the chosen ones.
    SoftmaxOfChosen,
    Sigmoid,
}

impl Routing {
    /// The chosen experts of a row, the best first and the first of equals, with their weights.
    pub fn choose(&self, logits: &[f32]) -> Vec<(usize, f32)> {
        let scores: Vec<f32> = match self.scores {
            Scores::Softmax => softmax(logits),
            Scores::SoftmaxOfChosen => logits.to_vec(),
            Scores::Sigmoid => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        };
        let biased = |e: usize| scores[e] + self.bias.as_ref().map_or(0.0, |bias| bias[e]);
        let mut ranks: Vec<f32> = (0..scores.len()).map(biased).collect();
        if let Some(groups) = self.groups {
            groups.limit(&mut ranks);
        }
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| ranks[*b].total_cmp(&ranks[*a]).then(a.cmp(b)));
        order.truncate(self.k);
        let mut weights: Vec<f32> = order.iter().map(|e| scores[*e]).collect();
        if self.scores == Scores::SoftmaxOfChosen {
            weights = softmax(&weights);
        }
        if self.normalize {
            let sum: f32 = weights.iter().sum();
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        order.into_iter().zip(weights.into_iter().map(|w| w * self.scale)).collect()
    }

    /// [`Self::choose`] of every row of `[N, E]`, as ops: `[N, k]` each.
    fn choose_all(&self, logits: &Array) -> [Array; 2] {
        let scores = match self.scores {
            Scores::Softmax => logits.softmax(-1, true),
            Scores::SoftmaxOfChosen => logits.clone(),
            Scores::Sigmoid => logits.sigmoid(),
        };
        let mut rank = match &self.bias {
            Some(bias) => &scores + &Array::from_slice(bias, &[bias.len() as i32]),
            None => scores.clone(),
        };
        if let Some(groups) = self.groups {
            rank = groups.limited(&rank);
        }
        let chosen = (-&rank).argsort(-1).slice(-1, 0..self.k as i32);
        let mut weights = scores.take_along_axis(&chosen, -1);
        if self.scores == Scores::SoftmaxOfChosen {
            weights = weights.softmax(-1, true);
        }
        if self.normalize {
            weights = &weights / &weights.sum(-1, true);
        }
        [chosen, &weights * self.scale]
    }
}

impl Groups {
    /// Takes the experts of the other groups to zero, as the reference does, not out of the running.
    fn limit(self, ranks: &mut [f32]) {
        let size = ranks.len() / self.n;
        let of_group = |g: usize| {
            let mut best = ranks[g * size..(g + 1) * size].to_vec();
            best.sort_by(|a, b| b.total_cmp(a));
            best.iter().take(2).sum::<f32>()
        };
        let scores: Vec<f32> = (0..self.n).map(of_group).collect();
        let mut order: Vec<usize> = (0..self.n).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        for g in &order[self.kept.min(self.n)..] {
            ranks[g * size..(g + 1) * size].fill(0.0);
        }
    }

    /// [`Self::limit`] of every row of `[N, E]`, as ops.
    fn limited(self, ranks: &Array) -> Array {
        let (n, e) = (ranks.dim(0), ranks.dim(1));
        let (groups, size) = (self.n as i32, e / self.n as i32);
        let ranks = ranks.reshape(&[n, groups, size]);
        let best = ranks.sort(-1).slice(-1, (size - 2).max(0)..size).sum(-1, false);
        let dropped = best.argsort(-1).slice(-1, 0..groups - self.kept.min(self.n) as i32).expand_dims(-1);
        let zero = Array::zeros(&[1, 1, 1], ranks.dtype());
        let dropped = dropped.broadcast_to(&[n, dropped.dim(1), size]);
        ranks.put_along_axis(&dropped, &zero.broadcast_to(dropped.shape()), 1).reshape(&[n, e])
    }
}

fn softmax(x: &[f32]) -> Vec<f32> {
    let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = x.iter().map(|x| (x - top).exp()).collect();
    let sum: f32 = weights.iter().sum();
    weights.into_iter().map(|w| w / sum).collect()
}

/// How gate and up meet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gating {
    /// `act(gate) · up`
    Glu(Act),
    /// `g · sigmoid(alpha · g) · (u + 1)` with `g = min(gate, limit)` and `u` kept within `±limit`: gpt-oss.
    ClampedSwiglu { alpha: f32, limit: f32 },
}

impl Gating {
    fn forward(self, gate: &Array, up: &Array) -> Array {
        match self {
            Self::Glu(act) => &act.forward(gate) * up,
            Self::ClampedSwiglu { alpha, limit } => {
                let gate = gate.clip(f32::NEG_INFINITY, limit);
                &(&gate * &(&gate * alpha).sigmoid()) * &(&up.clip(-limit, limit) + 1.0)
            }
        }
    }
}

/// One matrix of every expert.
pub struct Stack {
    weight: StackWeight,
    n: usize,
}

enum StackWeight {
    /// `[E, out, in]`
    Dense(Array),
    Quantized {
        words: Array,
        scales: Array,
        biases: Option<Array>,
        spec: QuantSpec,
    },
    /// In the layout of our CPU kernels.
    Packed(Arc<[kernels::Expert]>),
}

/// The parts of a [`Stack`], each with the experts as its first axis.
pub enum StackParts {
    Dense(Array),
    Quantized { words: Array, scales: Array, biases: Option<Array>, spec: QuantSpec },
}

/// A bias of every expert, `[E, out]`, stays beside its matrix.
pub struct BiasedStack {
    stack: Stack,
    bias: Option<Array>,
}

impl BiasedStack {
    /// Prepares `parts` for the device.
    pub fn new(parts: StackParts, bias: Option<Array>, width: Width) -> Result<Self> {
        let n = match &parts {
            StackParts::Dense(w) => w.dim(0),
            StackParts::Quantized { words, .. } => words.dim(0),
        };
        let weight = match (kernels::on_cpu(), parts) {
            (true, parts) => StackWeight::Packed(pack(&parts, bias.as_ref(), n, width)?),
            (false, StackParts::Dense(w)) => StackWeight::Dense(w),
            (false, StackParts::Quantized { words, scales, biases, spec }) => {
                StackWeight::Quantized { words, scales, biases, spec }
            }
        };
        Ok(Self { stack: Stack { weight, n: n as usize }, bias })
    }

    fn packed(&self) -> Option<&Arc<[kernels::Expert]>> {
        match &self.stack.weight {
            StackWeight::Packed(experts) => Some(experts),
            _ => None,
        }
    }

    /// `x: [N, k or 1, 1, in]` by the experts `chosen: [N, k]`: `[N, k, 1, out]`.
    fn gathered(&self, x: &Array, chosen: &Array) -> Array {
        let y = match &self.stack.weight {
            StackWeight::Dense(w) => {
                quant::gather_mm(x, &w.astype(x.dtype()).swap_axes(-1, -2), None, Some(chosen), false)
            }
            StackWeight::Quantized { words, scales, biases, spec } => {
                let biases = biases.as_ref();
                let experts = quant::Experts { words, scales, biases, spec: *spec, global_scale: None };
                quant::gather_qmm(x, &experts, None, Some(chosen), false)
            }
            StackWeight::Packed(_) => unreachable!("packed experts have an op of their own"),
        };
        match &self.bias {
            Some(bias) => &y + &bias.astype(y.dtype()).take(chosen, 0).expand_dims(-2),
            None => y,
        }
    }
}

fn pack(parts: &StackParts, bias: Option<&Array>, n: i32, width: Width) -> Result<Arc<[kernels::Expert]>> {
    let of = |x: &Array, e: i32| x.slice(0, e..e + 1).squeeze(&[0]);
    (0..n)
        .map(|e| {
            let projection = match parts {
                StackParts::Dense(w) => Projection::dense(of(w, e), None, width)?,
                StackParts::Quantized { words, scales, biases, spec } => {
                    let biases = biases.as_ref().map(|b| of(b, e));
                    Projection::quantized(of(words, e), of(scales, e), biases, *spec, None, width)?
                }
            };
            let bias = bias.map(|b| of(b, e).astype(Dtype::Float32).to_vec()).transpose()?;
            projection.into_expert(bias)
        })
        .collect()
}

/// The experts of one layer.
pub struct Experts {
    pub gate: BiasedStack,
    pub up: BiasedStack,
    pub down: BiasedStack,
    pub gating: Gating,
    pub width: Width,
}

impl Experts {
    pub fn n(&self) -> usize {
        self.gate.stack.n
    }

    /// `x: [N, D]` through the experts that `logits: [N, E]` choose: `[N, D]`, in the type of `x`.
    pub fn forward(&self, x: &Array, logits: &Array, routing: &Routing) -> Array {
        let logits = logits.astype(Dtype::Float32);
        if let (Some(gate), Some(up), Some(down)) = (self.gate.packed(), self.up.packed(), self.down.packed())
        {
            let experts = [gate, up, down].map(Arc::clone);
            let call = kernels::ExpertsCall { experts, gating: self.gating, width: self.width };
            return kernels::experts(&x.astype(Dtype::Float32), &logits, routing, call).astype(x.dtype());
        }
        let [chosen, weights] = routing.choose_all(&logits);
        // [N, 1, 1, D]
        let h = x.expand_dims(-2).expand_dims(-2);
        let h = self.gating.forward(&self.gate.gathered(&h, &chosen), &self.up.gathered(&h, &chosen));
        // [N, k, 1, D] → [N, k, D]
        let y = self.down.gathered(&h, &chosen).squeeze(&[-2]);
        (&y * &weights.astype(x.dtype()).expand_dims(-1)).sum(-2, false)
    }
}

#[cfg(test)]
mod tests;
