//! The default model, from its package to its answers, against mlx-lm's run of the same weights.

use std::sync::Arc;

use engine::lm::{self, CausalLm};
use engine::protocol::{Event, Request};
use engine::text::ChatInput;
use engine::thread::{EngineHandle, EngineOptions, ModelFacts};
use engine::weights::{LoadError, Preparation, QuantConfig, Weights, checkpoint};
use engine::{LoadOptions, Loaded};
use mlx_core::Dtype;
use mlx_core::projection::Width;
use serde::Deserialize;
use serde_json::json;
use tests::{export, fixtures, goldens};

#[derive(Deserialize)]
struct Answer {
    question: String,
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    text: String,
    /// How far each token's log-probability was ahead of the next.
    lead: Vec<f32>,
    logprob: Vec<f32>,
}

/// What 16-bit activations, keys and values may move a log-probability by, beside mlx-lm's float32.
const TOLERANCE: f32 = 1e-2;

#[test]
fn the_default_model_answers_as_in_mlx_lm() {
    let model =
        engine::load(&fixtures::default_model(), &LoadOptions::default(), Arc::new(|_, _| ())).unwrap();
    let golden = std::fs::read_to_string(goldens::folder().join("smollm2/greedy.json")).unwrap();
    let answers: Vec<Answer> = serde_json::from_str(&golden).unwrap();
    // All at once, so that rows of every age share the forwards.
    let streams: Vec<_> = answers.iter().map(|answer| model.engine.submit(request(&model, answer))).collect();
    for (answer, stream) in answers.iter().zip(streams) {
        let events: Vec<(u32, f32)> = stream
            .filter_map(|event| match event {
                Event::Token { id, logprob, .. } => Some((id, logprob)),
                Event::Failed(message) => panic!("{}: {message}", answer.question),
                Event::Prefill { .. } | Event::Finished(_) => None,
            })
            .collect();
        check(&model, answer, &events);
    }
}

fn request(model: &Loaded, answer: &Answer) -> Request {
    let chat = ChatInput {
        messages: vec![json!({"role": "user", "content": answer.question})],
        add_generation_prompt: true,
        ..ChatInput::default()
    };
    let text = model.templates.render(&chat).expect("the template takes a question");
    let prompt = model.tokenizer.encode(&text, false).expect("any text can be encoded");
    assert_eq!(prompt, answer.prompt, "{}", answer.question);
    Request {
        prompt,
        max_tokens: Some(64),
        stop_ids: model.tokenizer.ends().iter().copied().collect(),
        ..Request::default()
    }
}

fn check(model: &Loaded, answer: &Answer, events: &[(u32, f32)]) {
    for (step, (id, logprob)) in events.iter().enumerate() {
        let (want, lead) = (answer.tokens[step], answer.lead[step]);
        assert_eq!(*id, want, "{}: token {step}, which led by {lead}", answer.question);
        let off = (logprob - answer.logprob[step]).abs();
        assert!(off < TOLERANCE, "{}: the log-probability of token {step} is {off} off", answer.question);
    }
    assert_eq!(events.len(), answer.tokens.len(), "{}", answer.question);
    let ids: Vec<u32> = events.iter().map(|(id, _)| *id).collect();
    assert_eq!(model.tokenizer.decode(&ids, true), answer.text);
}

/// The same weights as a folder: its index of tensors, its quantization keys, its float32 scales.
#[test]
fn the_default_model_as_a_folder_answers_as_in_mlx_lm() {
    let folder = tempfile::tempdir().unwrap();
    export::folder(&fixtures::default_model(), folder.path());
    let root = folder.path().to_owned();
    let load = move || -> Result<(Box<dyn CausalLm>, ()), LoadError> {
        let config = serde_json::from_slice(&std::fs::read(root.join("config.json")).unwrap()).unwrap();
        let preparation = Preparation { dtype: Dtype::Float32, width: Width::default() };
        let quantization = QuantConfig::parse(&config)?;
        let weights = Weights::new(checkpoint::open(&root)?, quantization, preparation, Box::new(|| ()));
        let lm = lm::build(&config, weights)?;
        Ok((lm, ()))
    };
    let facts = |_: &()| ModelFacts { context_length: 2048, identity: String::new() };
    let (engine, ()) = EngineHandle::spawn(EngineOptions::default(), load, facts).unwrap();
    let golden = std::fs::read_to_string(goldens::folder().join("smollm2/greedy.json")).unwrap();
    let answers: Vec<Answer> = serde_json::from_str(&golden).unwrap();
    for answer in answers.iter().take(5) {
        let request = Request {
            prompt: answer.prompt.clone(),
            max_tokens: Some(answer.tokens.len()),
            ..Request::default()
        };
        let token = |event| match event {
            Event::Token { id, .. } => Some(id),
            Event::Failed(failure) => panic!("{failure}"),
            _ => None,
        };
        let tokens: Vec<u32> = engine.submit(request).filter_map(token).collect();
        assert_eq!(tokens, answer.tokens, "{}", answer.question);
    }
}
