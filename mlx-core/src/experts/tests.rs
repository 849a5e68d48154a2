use super::*;

fn wave(shape: &[i32], seed: f32) -> Array {
    let n: i32 = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| (i as f32 * (0.37 + seed)).sin()).collect();
    Array::from_slice(&values, shape)
}

const E: i32 = 8;
const D: i32 = 16;
const H: i32 = 12;

fn experts(packed: bool, gating: Gating, bias: bool) -> Experts {
    let stack = |n_in: i32, n_out: i32, seed: f32| {
        let (weight, bias) = (wave(&[E, n_out, n_in], seed), bias.then(|| wave(&[E, n_out], seed + 0.5)));
        match packed {
            true => BiasedStack::new(StackParts::Dense(weight), bias, Width::A24).unwrap(),
            false => BiasedStack { stack: Stack { weight: StackWeight::Dense(weight), n: E as usize }, bias },
        }
    };
    Experts {
        gate: stack(D, H, 0.1),
        up: stack(D, H, 0.2),
        down: stack(H, D, 0.3),
        gating,
        width: Width::A24,
    }
}

fn routings() -> Vec<Routing> {
    let plain =
        Routing { k: 3, scores: Scores::Softmax, normalize: false, scale: 1.0, bias: None, groups: None };
    let bias: Arc<[f32]> = (0..E).map(|i| (i as f32 * 1.7).cos() * 0.3).collect();
    vec![
        plain.clone(),
        Routing { normalize: true, scale: 2.5, ..plain.clone() },
        Routing { scores: Scores::SoftmaxOfChosen, ..plain.clone() },
        Routing { scores: Scores::Sigmoid, bias: Some(bias.clone()), ..plain.clone() },
        Routing {
            scores: Scores::Sigmoid,
            bias: Some(bias),
            groups: Some(Groups { n: 4, kept: 2 }),
            ..plain
        },
    ]
}

/// What a GPU composes of MLX's ops, computed here on the CPU, is what our own op computes.
#[test]
fn the_op_agrees_with_the_composition_of_ops() {
    let (x, logits) = (wave(&[5, D], 0.7), wave(&[5, E], 0.9));
    for gating in [Gating::Glu(Act::Silu), Gating::ClampedSwiglu { alpha: 1.702, limit: 0.8 }] {
        for (bias, routing) in routings().iter().flat_map(|r| [(false, r), (true, r)]) {
            let run =
                |packed| experts(packed, gating, bias).forward(&x, &logits, routing).to_vec::<f32>().unwrap();
            let (got, want) = (run(true), run(false));
            for (a, b) in got.iter().zip(&want) {
                assert!((a - b).abs() < 1e-5, "{routing:?} {gating:?}: {a} instead of {b}");
            }
        }
    }
}

#[test]
fn equal_scores_choose_the_first_experts() {
    for routing in routings().into_iter().filter(|r| r.bias.is_none()) {
        let chosen: Vec<usize> = routing.choose(&[0.5; E as usize]).into_iter().map(|(e, _)| e).collect();
        assert_eq!(chosen, [0, 1, 2]);
    }
}
