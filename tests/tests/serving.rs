//! Over every tiny model: an answer is the same alone, in any company, and whatever was remembered.
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that fails")]

use engine::prefix::{DiskOptions, PrefixOptions};
use engine::protocol::{Event, Priority, Request, SamplingParams};
use engine::schedule::Limits;
use engine::thread::{EngineHandle, EngineOptions, ModelFacts, Stream};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tests::goldens::{self, Case};

const CONTEXT: usize = 900;

/// Tokens with their log-probabilities to the bit, and how many prompt tokens were remembered.
#[derive(Debug, PartialEq)]
struct Answer {
    tokens: Vec<(u32, u32)>,
    cached: usize,
}

fn engine(case: &Case, options: EngineOptions) -> EngineHandle {
    let (case, identity) = (case.clone(), case.name.clone());
    let load = move || case.load().map(|lm| (lm, ()));
    let facts = move |_: &()| ModelFacts { context_length: CONTEXT, identity };
    EngineHandle::spawn(options, load, facts).unwrap().0
}

fn read(stream: Stream) -> Answer {
    let mut tokens = Vec::new();
    for event in stream {
        match event {
            Event::Prefill { .. } => {}
            Event::Token { id, logprob, .. } => tokens.push((id, logprob.to_bits())),
            Event::Finished(finish) => return Answer { tokens, cached: finish.cached_tokens },
            Event::Failed(failure) => panic!("{failure}"),
        }
    }
    panic!("a stream without an end");
}

/// Conversations of two families, so that prefixes are shared across block borders.
fn requests(vocab: usize) -> Vec<Request> {
    let token = |seed: usize, i: usize| ((i * 7919 + seed * 104_729) % vocab) as u32;
    let prompt = |head: usize, at: usize, tail: usize, n: usize| -> Vec<u32> {
        (0..n).map(|i| token(if i < at { head } else { tail }, i)).collect()
    };
    let shapes =
        [(1, 300, 2, 310), (1, 300, 3, 525), (4, 0, 4, 17), (1, 512, 5, 520), (6, 0, 6, 1), (1, 300, 2, 310)];
    let request = |(i, (head, at, tail, n)): (usize, (usize, usize, usize, usize))| Request {
        prompt: prompt(head, at, tail, n),
        max_tokens: Some(3 + 4 * (i % 3)),
        priority: [Priority::Normal, Priority::Background, Priority::Interactive][i % 3],
        sampling: SamplingParams {
            temperature: [0.0, 1.0][i % 2],
            top_p: 0.95,
            repetition_penalty: [1.0, 1.1][i / 3 % 2],
            seed: 11,
            ..SamplingParams::default()
        },
        ..Request::default()
    };
    shapes.into_iter().enumerate().map(request).collect()
}

fn ask(engine: &EngineHandle, vocab: usize, order: &[usize], cancelled: usize) -> Vec<Answer> {
    let mut requests: Vec<Option<Request>> = requests(vocab).into_iter().map(Some).collect();
    let mut streams: Vec<(usize, Stream)> =
        order.iter().map(|&i| (i, engine.submit(requests[i].take().unwrap()))).collect();
    // A neighbour that leaves in the middle of its prefill or its answer.
    let extra = requests_again(vocab, cancelled).map(|request| engine.submit(request));
    if let Some(mut stream) = extra {
        stream.next();
    }
    streams.sort_by_key(|(i, _)| *i);
    streams.into_iter().map(|(_, stream)| read(stream)).collect()
}

fn requests_again(vocab: usize, which: usize) -> Option<Request> {
    requests(vocab).into_iter().nth(which)
}

fn limits() -> impl Strategy<Value = Limits> {
    (1usize..5, prop_oneof![1usize..40, 200usize..700], 1usize..300, any::<bool>()).prop_map(
        |(max_running, step_tokens, mixed_prefill, checkpoints)| Limits {
            max_running,
            step_tokens,
            mixed_prefill,
            checkpoints,
            ..Limits::default()
        },
    )
}

#[test]
fn company_and_memory_never_show_in_an_answer() {
    // Quantization is a matter of the projections, which the other tests see to; each graph runs once.
    for case in goldens::cases().into_iter().filter(|case| !case.name.contains("affine")) {
        let vocab = case.load().unwrap().vocab_size();
        let alone = engine(&case, EngineOptions::default());
        let want: Vec<Answer> = requests(vocab).into_iter().map(|r| read(alone.submit(r))).collect();
        drop(alone);
        let inputs = (limits(), Just((0..6).collect::<Vec<usize>>()).prop_shuffle(), 0usize..8);
        let mut runner = TestRunner::new(Config { cases: 1, failure_persistence: None, ..Config::default() });
        let run = runner
            .run(&inputs, |(limits, order, cancelled)| check(&case, vocab, &want, limits, &order, cancelled));
        run.unwrap_or_else(|err| panic!("{}: {err}", case.name));
    }
}

fn check(
    case: &Case,
    vocab: usize,
    want: &[Answer],
    limits: Limits,
    order: &[usize],
    cancelled: usize,
) -> Result<(), TestCaseError> {
    let folder = tempfile::tempdir().unwrap();
    let disk = DiskOptions { folder: folder.path().to_owned(), max_bytes: 1 << 30 };
    let prefix = PrefixOptions { ram_bytes: 1 << 28, disk: Some(disk) };
    let options = EngineOptions { limits, prefix, kv_dtype: None };
    let tokens = |answers: &[Answer]| answers.iter().map(|a| a.tokens.clone()).collect::<Vec<_>>();
    let start = |options: &EngineOptions| engine(case, options.clone());

    let warm = start(&options);
    prop_assert_eq!(tokens(&ask(&warm, vocab, order, cancelled)), tokens(want), "cold");
    let hits = ask(&warm, vocab, order, cancelled);
    prop_assert_eq!(tokens(&hits), tokens(want), "from memory");
    prop_assert!(hits[1].cached >= 256, "{} tokens of 525 were remembered", hits[1].cached);
    drop(warm);

    let restarted = start(&options);
    let hits = ask(&restarted, vocab, order, cancelled);
    prop_assert_eq!(tokens(&hits), tokens(want), "from disk");
    prop_assert!(restarted.stats().prefix.disk_hit_tokens >= 256);
    Ok(())
}
