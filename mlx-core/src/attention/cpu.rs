//! Attention on the CPU: one op per layer, whose buffers are updated in place.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use half::{bf16, f16};

use super::{AttentionSpec, DynamicNtk, KvBuffer, Rope, Row};
use crate::kernels::cpu::attention::{self as kernel, Layer, Norm, Span, Storage, Turn};
use crate::kernels::cpu::buffer::onto_huge_pages;
use crate::kernels::cpu::isa::Isa;
use crate::kernels::cpu::rope::Table;
use crate::{Array, Element, Output, View, ViewMut, custom};

pub(super) fn attend(
    q: &Array,
    k: &Array,
    v: &Array,
    rows: Vec<Row>,
    spec: &AttentionSpec,
) -> (Array, Vec<KvBuffer>) {
    let n: i32 = rows.iter().map(|r| r.tokens).sum();
    check(q, k, v, &rows, spec, n);
    let mut inputs = vec![q, k, v];
    if let Some((q_norm, k_norm)) = &spec.qk_norm {
        inputs.extend([&q_norm.weight, &k_norm.weight]);
    }
    inputs.extend(&spec.sinks);
    let first_buffer = inputs.len();
    let mut outputs = vec![Output::new(&[n, spec.n_heads * spec.v_head_dim], q.dtype())];
    for row in &rows {
        for buffer in [&row.kv.k, &row.kv.v] {
            let from_input = Some(inputs.len());
            outputs.push(Output { from_input, ..Output::new(buffer.shape(), buffer.dtype()) });
            inputs.push(buffer);
        }
    }
    let call = Call::new(&rows, spec, first_buffer);
    let mut results =
        custom("attention", &inputs, &outputs, move |ins, outs| call.run(ins, outs)).into_iter();
    let mut next = || results.next().expect("one result for each output");
    let out = next();
    (out, rows.iter().map(|row| KvBuffer { k: next(), v: next(), start: row.kv.start }).collect())
}

fn check(q: &Array, k: &Array, v: &Array, rows: &[Row], s: &AttentionSpec, n: i32) {
    for (name, x, width) in [
        ("q", q, s.n_heads * s.head_dim),
        ("k", k, s.n_kv_heads * s.head_dim),
        ("v", v, s.n_kv_heads * s.v_head_dim),
    ] {
        assert!(x.shape() == [n, width], "{name} is {:?}, expected [{n}, {width}]", x.shape());
    }
    for row in rows {
        for (name, x, d) in [("keys", &row.kv.k, s.head_dim), ("values", &row.kv.v, s.v_head_dim)] {
            let shape = x.shape();
            let fits = shape.len() == 3
                && (shape[0], shape[2]) == (s.n_kv_heads, d)
                && row.kv.start <= row.position
                && row.position - row.kv.start + row.tokens <= shape[1];
            assert!(
                fits,
                "a buffer of {name} is {shape:?} from position {}, expected [{}, capacity, {d}] with room for {} at {}",
                row.kv.start, s.n_kv_heads, row.tokens, row.position
            );
        }
    }
}

/// Tokens to a look at where the buffers lie.
const LONG: usize = 1024;

/// What the op keeps: no arrays, since it runs on MLX's own thread.
struct Call {
    layer: Layer<'static>,
    norm_eps: Option<[f32; 2]>,
    has_sinks: bool,
    rope: Option<Turning>,
    /// Tokens, position and buffer start of each row.
    rows: Vec<[usize; 3]>,
    first_buffer: usize,
}

impl Call {
    fn new(rows: &[Row], s: &AttentionSpec, first_buffer: usize) -> Self {
        let layer = Layer {
            n_heads: s.n_heads as usize,
            n_kv_heads: s.n_kv_heads as usize,
            head_dim: s.head_dim as usize,
            v_head_dim: s.v_head_dim as usize,
            scale: s.scale,
            window: s.window.map(|w| w as usize),
            softcap: s.softcap,
            sinks: None,
            q_norm: None,
            k_norm: None,
        };
        Self {
            layer,
            norm_eps: s.qk_norm.as_ref().map(|(q, k)| [q.eps, k.eps]),
            has_sinks: s.sinks.is_some(),
            rope: s.rope.as_ref().map(Turning::new),
            rows: rows.iter().map(|r| [r.tokens, r.position, r.kv.start].map(|x| x as usize)).collect(),
            first_buffer,
        }
    }

    fn run(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        match &inputs[self.first_buffer..] {
            [] => {}
            [first, ..] if first.is::<f32>() => self.run_as::<f32>(inputs, outputs),
            [first, ..] if first.is::<bf16>() => self.run_as::<bf16>(inputs, outputs),
            _ => self.run_as::<f16>(inputs, outputs),
        }
    }

    fn run_as<T: Storage + Element>(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let (mut q, mut k) = (floats(&inputs[0]).into_owned(), floats(&inputs[1]).into_owned());
        let v = floats(&inputs[2]);
        let mut rest = inputs[3..self.first_buffer].iter().map(floats);
        let mut weight = |there: bool| if there { rest.next() } else { None };
        let weights = [weight(self.norm_eps.is_some()), weight(self.norm_eps.is_some())];
        let sinks = weight(self.has_sinks);
        let norm = |i: usize| Some(Norm { weight: weights[i].as_deref()?, eps: self.norm_eps?[i] });
        let layer = Layer { q_norm: norm(0), k_norm: norm(1), sinks: sinks.as_deref(), ..self.layer };

        let table = self.rope.as_ref().map(|rope| (rope, rope.table(&self.rows)));
        let turn = table.as_ref().map(|(rope, table)| rope.turn(table));
        let (out, buffers) = outputs.split_first_mut().expect("the first output is the result");
        let spans = buffers.chunks_exact_mut(2).zip(&self.rows);
        let mut spans: Vec<Span<T>> = spans
            .map(|(kv, &[tokens, position, start])| {
                let [k, v] = kv else { unreachable!("chunks of two") };
                let (k, v) = (k.as_mut_slice(), v.as_mut_slice());
                // Seldom, since it is a call into the system, and where it costs little beside the work.
                if position / LONG < (position + tokens) / LONG {
                    onto_huge_pages(k);
                    onto_huge_pages(v);
                }
                Span { tokens, position, start, k, v }
            })
            .collect();
        let mut run = |out: &mut [f32]| {
            kernel::attend(Isa::detect(), &layer, turn.as_ref(), [&mut q, &mut k], &v, &mut spans, out);
        };
        if out.is::<f32>() {
            return run(out.as_mut_slice());
        }
        let mut wide = vec![0f32; out.shape().iter().product::<i32>() as usize];
        run(&mut wide);
        if out.is::<bf16>() {
            narrow::<bf16>(&wide, out.as_mut_slice());
        } else {
            narrow::<f16>(&wide, out.as_mut_slice());
        }
    }
}

fn floats<'a>(view: &'a View) -> Cow<'a, [f32]> {
    fn wide<T: Storage>(x: &[T]) -> Vec<f32> {
        x.iter().map(|x| x.widen()).collect()
    }
    if view.is::<f32>() {
        Cow::Borrowed(view.as_slice())
    } else if view.is::<bf16>() {
        Cow::Owned(wide::<bf16>(view.as_slice()))
    } else {
        Cow::Owned(wide::<f16>(view.as_slice()))
    }
}

fn narrow<T: Storage>(from: &[f32], to: &mut [T]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = T::narrow(*from);
    }
}

/// A [`Rope`] without its array.
struct Turning {
    traditional: bool,
    mscale: f32,
    periods: Arc<[f32]>,
    dynamic: Option<DynamicNtk>,
    before_norms: bool,
}

/// Layers of a step turn alike: the tables of the last few are kept.
static TABLES: Mutex<VecDeque<Arc<Known>>> = Mutex::new(VecDeque::new());
const KEPT: usize = 4;

struct Known {
    periods: Arc<[f32]>,
    dynamic: Option<DynamicNtk>,
    positions: Vec<usize>,
    table: Table,
}

impl Turning {
    fn new(rope: &Rope) -> Self {
        Self {
            traditional: rope.traditional,
            mscale: rope.mscale,
            periods: rope.periods.clone(),
            dynamic: rope.dynamic,
            before_norms: rope.before_norms,
        }
    }

    fn turn<'a>(&self, known: &'a Known) -> Turn<'a> {
        Turn {
            table: &known.table,
            traditional: self.traditional,
            mscale: self.mscale,
            before_norms: self.before_norms,
        }
    }

    fn table(&self, rows: &[[usize; 3]]) -> Arc<Known> {
        let positions = rows.iter().flat_map(|&[tokens, position, _]| position..position + tokens);
        let mut tables = TABLES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let same = |known: &&Arc<Known>| {
            known.periods == self.periods
                && known.dynamic == self.dynamic
                && known.positions.iter().copied().eq(positions.clone())
        };
        if let Some(known) = tables.iter().find(same) {
            return known.clone();
        }
        let positions: Vec<usize> = positions.collect();
        let pairs = self.periods.len();
        let table = Table::new(&positions, pairs, |position| {
            let dynamic = self.dynamic.and_then(|d| d.periods(pairs, position));
            dynamic.map_or(Cow::Borrowed(&*self.periods), Cow::Owned)
        });
        let known =
            Arc::new(Known { periods: self.periods.clone(), dynamic: self.dynamic, positions, table });
        tables.truncate(KEPT - 1);
        tables.push_front(known.clone());
        known
    }
}

#[cfg(test)]
mod tests;
