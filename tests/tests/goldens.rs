//! Our models and samplers against mlx-lm's numbers.

use std::collections::{BTreeMap, BTreeSet};

use engine::lm::cache::SeqCache;
use engine::protocol::SamplingParams;
use engine::sampling::{self, Rules};
use serde::Deserialize;
use tests::goldens::{self, Case};
use tests::{model, weights};

/// Of logits whose deviation is about 0.6; both sides compute in float32.
const TOLERANCE: f32 = 1e-4;

#[test]
fn every_tiny_model_computes_the_logits_of_mlx_lm() {
    check_all(|case| {
        let lm = case.load().map_err(|err| err.to_string())?;
        let logits = model::extend(&*lm, &mut SeqCache::new(lm.layers()), &case.prompt);
        let kept = &logits[logits.len() - case.logits.len()..];
        match model::distance(kept, &case.logits) {
            d if d <= TOLERANCE => Ok(()),
            d => Err(format!("logits are {d} off")),
        }
    });
}

#[test]
fn every_tiny_model_goes_on_as_mlx_lm_does() {
    check_all(|case| {
        let lm = case.load().map_err(|err| err.to_string())?;
        let vocab = lm.vocab_size();
        let cache = &mut SeqCache::new(lm.layers());
        let mut logits = model::extend(&*lm, cache, &case.prompt);
        for (step, (&want, &lead)) in case.greedy.iter().zip(&case.lead).enumerate() {
            let got = model::argmax(&logits[logits.len() - vocab..]);
            if got != want && lead < 2.0 * TOLERANCE {
                return Ok(());
            }
            if got != want {
                return Err(format!("token {step} is {got} instead of {want}, which led by {lead}"));
            }
            logits = model::extend(&*lm, cache, &[want]);
        }
        Ok(())
    });
}

/// Runs `check` over all cases and reports every failure at once.
fn check_all(check: impl Fn(&Case) -> Result<(), String>) {
    let failures: Vec<String> = goldens::cases()
        .iter()
        .filter_map(|case| check(case).err().map(|err| format!("{}: {err}", case.name)))
        .collect();
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[derive(Deserialize)]
struct Sampling {
    history: Vec<u32>,
    cases: Vec<SamplingCase>,
}

#[derive(Deserialize)]
struct SamplingCase {
    logits: String,
    reach: f32,
    params: BTreeMap<String, serde_json::Value>,
    logprobs: Vec<f32>,
    kept: BTreeSet<u32>,
}

/// At a high temperature the kept tokens are nearly equally likely, so enough draws show each of them, with its
/// log-probability, and no other.
#[test]
fn sampling_leaves_what_mlx_lm_leaves() {
    let text = std::fs::read_to_string(goldens::folder().join("sampling.json")).unwrap();
    let golden: Sampling = serde_json::from_str(&text).unwrap();
    for case in &golden.cases {
        let n = case.logprobs.len();
        let logits: Vec<f32> = (0..n).map(|i| weights::uniform(&case.logits, i) * case.reach).collect();
        let params = params(case);
        let mut drawn = BTreeSet::new();
        for seed in 0..60 * n as u64 {
            let params = SamplingParams { seed, ..params.clone() };
            let draw = sampling::draw(
                &mut logits.clone(),
                &golden.history,
                golden.history.len(),
                &params,
                Rules::default(),
            )
            .unwrap();
            let want = case.logprobs[draw.id as usize];
            assert!((draw.logprob - want).abs() < 2e-5, "{:?}: {draw:?}, expected {want}", case.params);
            drawn.insert(draw.id);
        }
        assert_eq!(drawn, case.kept, "{:?}", case.params);
    }
}

fn params(case: &SamplingCase) -> SamplingParams {
    let mut p = SamplingParams { temperature: 1e4, ..SamplingParams::default() };
    for (name, value) in &case.params {
        let number = || value.as_f64().expect("a number") as f32;
        let size = || value.as_u64().expect("a whole number") as usize;
        match name.as_str() {
            "top_p" => p.top_p = number(),
            "top_k" => p.top_k = size(),
            "min_p" => p.min_p = number(),
            "min_tokens_to_keep" => p.min_tokens_to_keep = size(),
            "xtc_probability" => p.xtc_probability = number(),
            "xtc_threshold" => p.xtc_threshold = number(),
            "xtc_special_tokens" => {
                p.xtc_special_tokens = serde_json::from_value(value.clone()).expect("the documented form")
            }
            "repetition_penalty" => p.repetition_penalty = number(),
            "repetition_context_size" => p.repetition_context_size = size(),
            "presence_penalty" => p.presence_penalty = number(),
            "presence_context_size" => p.presence_context_size = size(),
            "frequency_penalty" => p.frequency_penalty = number(),
            "frequency_context_size" => p.frequency_context_size = size(),
            "logit_bias" => {
                let bias: BTreeMap<String, f32> =
                    serde_json::from_value(value.clone()).expect("the documented form");
                p.logit_bias =
                    bias.into_iter().map(|(id, bias)| (id.parse().expect("an id"), bias)).collect();
            }
            other => panic!("sampling.json has a parameter `{other}` that the test does not know"),
        }
    }
    p
}
