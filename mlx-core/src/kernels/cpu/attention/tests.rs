use half::{bf16, f16};

use super::*;

/// Reproducible numbers in about ±2, bell-shaped.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        let mut sum = 0.0;
        for _ in 0..4 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            sum += (self.0 >> 40) as f32 / (1 << 24) as f32 - 0.5;
        }
        2.0 * sum
    }
    fn many(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}

struct Case {
    layer: Layer<'static>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    tokens: usize,
}

impl Case {
    fn new(layer: Layer<'static>, tokens: usize) -> Self {
        let mut random = Random(7);
        let (d, dv) = (layer.head_dim, layer.v_head_dim);
        let q = random.many(tokens * layer.n_heads * d);
        let k = random.many(tokens * layer.n_kv_heads * d);
        let v = random.many(tokens * layer.n_kv_heads * dv);
        Self { layer, q, k, v, tokens }
    }

    /// All tokens in chunks of these sizes (the last one again and again), the buffers beginning at `start`.
    fn run<T: Storage>(&self, isa: Isa, chunks: &[usize]) -> Vec<f32> {
        let l = &self.layer;
        let capacity = (self.tokens + 5).next_multiple_of(TILE);
        let mut k = vec![T::narrow(f32::NAN); l.n_kv_heads * capacity * l.head_dim];
        let mut v = vec![T::narrow(f32::NAN); l.n_kv_heads * capacity * l.v_head_dim];
        let mut out = vec![0f32; self.tokens * l.n_heads * l.v_head_dim];
        let (mut at, mut i) = (0, 0);
        while at < self.tokens {
            let tokens = chunks[i.min(chunks.len() - 1)].min(self.tokens - at);
            let part = |x: &[f32]| {
                let width = x.len() / self.tokens;
                x[at * width..(at + tokens) * width].to_vec()
            };
            let (mut q, mut new_k) = (part(&self.q), part(&self.k));
            let width = l.n_heads * l.v_head_dim;
            let out = &mut out[at * width..(at + tokens) * width];
            let span = Span { tokens, position: at, start: 0, k: &mut k, v: &mut v };
            attend(isa, l, None, [&mut q, &mut new_k], &part(&self.v), &mut [span], out);
            at += tokens;
            i += 1;
        }
        out
    }

    /// In float64, from the definition.
    fn reference<T: Storage>(&self) -> Vec<f64> {
        let l = &self.layer;
        let stored = |x: &f32| f64::from(T::narrow(*x).widen());
        let (k, v): (Vec<f64>, Vec<f64>) =
            (self.k.iter().map(stored).collect(), self.v.iter().map(stored).collect());
        let mut out = vec![];
        for t in 0..self.tokens {
            for h in 0..l.n_heads {
                let kv = h / (l.n_heads / l.n_kv_heads);
                let q = &self.q[(t * l.n_heads + h) * l.head_dim..][..l.head_dim];
                let first = l.window.map_or(0, |w| (t + 1).saturating_sub(w));
                let score = |s: usize| {
                    let k = &k[(s * l.n_kv_heads + kv) * l.head_dim..][..l.head_dim];
                    let x = f64::from(l.scale) * q.iter().zip(k).map(|(q, k)| f64::from(*q) * k).sum::<f64>();
                    l.softcap.map_or(x, |cap| f64::from(cap) * (x / f64::from(cap)).tanh())
                };
                let weights: Vec<f64> = (first..=t).map(|s| score(s).exp()).collect();
                let sum = weights.iter().sum::<f64>() + l.sinks.map_or(0.0, |s| f64::from(s[h]).exp());
                out.extend((0..l.v_head_dim).map(|d| {
                    let value = |s: usize| v[(s * l.n_kv_heads + kv) * l.v_head_dim + d];
                    weights.iter().zip(first..).map(|(w, s)| w * value(s)).sum::<f64>() / sum
                }));
            }
        }
        out
    }
}

fn layer(n_heads: usize, n_kv_heads: usize, head_dim: usize, v_head_dim: usize) -> Layer<'static> {
    let scale = 1.5 / (head_dim as f32).sqrt();
    let (window, softcap, sinks, q_norm, k_norm) = (None, None, None, None, None);
    Layer { n_heads, n_kv_heads, head_dim, v_head_dim, scale, window, softcap, sinks, q_norm, k_norm }
}

fn layers() -> Vec<Layer<'static>> {
    vec![
        layer(9, 3, 64, 64),
        layer(4, 4, 16, 16),
        layer(2, 1, 40, 24),
        layer(8, 1, 7, 5),
        Layer { window: Some(50), ..layer(4, 2, 32, 32) },
        Layer { window: Some(3), sinks: Some(&[0.5, -1.0, 3.0, 0.0]), ..layer(4, 2, 32, 32) },
        Layer { softcap: Some(2.0), ..layer(4, 2, 32, 48) },
    ]
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[track_caller]
fn close(got: &[f32], want: &[f64]) {
    let power = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let error = power(&mut got.iter().zip(want).map(|(a, b)| f64::from(*a) - b));
    let size = power(&mut want.iter().copied());
    assert!(error <= 1e-6 * size, "relative error {}", error / size);
}

#[test]
fn agrees_with_the_definition() {
    for layer in layers() {
        let case = Case::new(layer, 301);
        close(&case.run::<f32>(Isa::detect(), &[301]), &case.reference::<f32>());
        close(&case.run::<bf16>(Isa::detect(), &[301]), &case.reference::<bf16>());
        close(&case.run::<f16>(Isa::detect(), &[301]), &case.reference::<f16>());
    }
}

#[test]
fn chunks_and_instruction_sets_do_not_change_a_bit() {
    for layer in layers() {
        let case = Case::new(layer, 270);
        let want = bits(&case.run::<f32>(Isa::Portable, &[270]));
        let want16 = bits(&case.run::<bf16>(Isa::Portable, &[270]));
        for isa in Isa::all().filter(|isa| *isa != Isa::Portable) {
            for chunks in [&[270][..], &[1], &[100, 1, 2, 3, 5, 17, 1], &[256, 7]] {
                assert!(want == bits(&case.run::<f32>(isa, chunks)), "{isa:?} {chunks:?}");
                assert!(want16 == bits(&case.run::<bf16>(isa, chunks)), "bf16 {isa:?} {chunks:?}");
            }
        }
    }
}

/// A window's buffer may have dropped positions, at any place, and rows share a call.
#[test]
fn a_buffer_may_start_anywhere_and_rows_share_a_call() {
    let layer = Layer { window: Some(40), ..layer(4, 2, 32, 32) };
    let case = Case::new(layer, 200);
    let want = case.run::<f32>(Isa::detect(), &[200]);
    let (rows, kv_heads, d) = (200, 2, 32);
    let tail = |x: &[f32], from: usize| x[from * x.len() / rows..].to_vec();
    let place = |s: usize, i: usize, tiled: bool| match tiled {
        true => (s / TILE * d + i) * TILE + s % TILE,
        false => s * d + i,
    };
    let buffer = |x: &[f32], start: usize, tiled: bool| {
        let mut to = vec![f32::NAN; kv_heads * 256 * d];
        for s in start..190 {
            for h in 0..kv_heads {
                for i in 0..d {
                    to[h * 256 * d + place(s - start, i, tiled)] = x[(s * kv_heads + h) * d + i];
                }
            }
        }
        to
    };
    let twice = |x: Vec<f32>| [x.clone(), x].concat();
    let (mut q, mut k, v) = (twice(tail(&case.q, 190)), twice(tail(&case.k, 190)), twice(tail(&case.v, 190)));
    let (mut k1, mut v1) = (buffer(&case.k, 144, true), buffer(&case.v, 144, false));
    let (mut k2, mut v2) = (buffer(&case.k, 0, true), buffer(&case.v, 0, false));
    let mut out = vec![0f32; q.len()];
    let spans = &mut [
        Span { tokens: 10, position: 190, start: 144, k: &mut k1, v: &mut v1 },
        Span { tokens: 10, position: 190, start: 0, k: &mut k2, v: &mut v2 },
    ];
    attend(Isa::detect(), &layer, None, [&mut q, &mut k], &v, spans, &mut out);
    assert_eq!(bits(&out), bits(&twice(tail(&want, 190))));
}

#[test]
fn what_is_not_finite_stays_with_those_who_see_it() {
    let mut case = Case::new(layer(2, 1, 16, 16), 150);
    let clean = case.run::<f32>(Isa::detect(), &[150]);
    case.v[140 * 16] = f32::INFINITY;
    case.k[141 * 16] = f32::NAN;
    let got = case.run::<f32>(Isa::detect(), &[150]);
    let row = |x: &[f32], t: usize| x[t * 32..(t + 1) * 32].to_vec();
    for t in 0..140 {
        assert_eq!(bits(&row(&got, t)), bits(&row(&clean, t)), "token {t}");
    }
    assert!(!row(&got, 140)[0].is_finite());
    assert!(row(&got, 141).iter().all(|x| x.is_nan()));
}
