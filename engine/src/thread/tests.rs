//! The engine over a model that says what is asked of it.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlx_core::{Array, Dtype};

use super::*;
use crate::lm::Forward;
use crate::lm::cache::LayerSpec;
use crate::protocol::{Constraint, FinishReason, Priority, SamplingParams, TokenId, TokenSet};

const VOCAB: usize = 64;
/// A row that holds this token fails the forward.
const FAULT: TokenId = 63;

/// Counts: after token `t` comes `t + 1`.
struct Counting {
    forwards: Arc<AtomicUsize>,
}

impl CausalLm for Counting {
    fn layers(&self) -> &[LayerSpec] {
        &[]
    }
    fn vocab_size(&self) -> usize {
        VOCAB
    }
    fn embed(&self, ids: &Array) -> Array {
        ids.astype(Dtype::Float32).reshape(&[-1, 1])
    }
    fn forward(&self, h: Array, _: &mut Forward<'_>) -> Array {
        self.forwards.fetch_add(1, Ordering::Relaxed);
        let ids = h.to_vec::<f32>().expect("ids");
        assert!(!ids.contains(&(FAULT as f32)), "the model broke");
        h
    }
    fn logits(&self, h: &Array) -> Array {
        let vocab = Array::from_slice(&(0..VOCAB).map(|i| i as f32).collect::<Vec<_>>(), &[1, VOCAB as i32]);
        let off = &(&vocab - h) - &Array::scalar(1.0);
        -&(&off * &off)
    }
}

fn engine(limits: Limits) -> (EngineHandle, Arc<AtomicUsize>) {
    let forwards = Arc::new(AtomicUsize::new(0));
    let counting = Counting { forwards: forwards.clone() };
    let load = move || Ok::<_, Infallible>((Box::new(counting) as Box<dyn CausalLm>, ()));
    let options = EngineOptions { limits, ..EngineOptions::default() };
    let facts = |_: &()| ModelFacts { context_length: 100, identity: String::new() };
    let Ok((handle, ())) = EngineHandle::spawn(options, load, facts);
    (handle, forwards)
}

fn request(start: TokenId, max_tokens: usize) -> Request {
    Request { prompt: vec![0, start], max_tokens: Some(max_tokens), ..Request::default() }
}

/// The drawn tokens, and how the stream ended.
fn read(stream: Stream) -> (Vec<TokenId>, Result<FinishReason, Failure>) {
    let mut tokens = Vec::new();
    for event in stream {
        match event {
            Event::Prefill { .. } => {}
            Event::Token { id, .. } => tokens.push(id),
            Event::Finished(finish) => {
                assert_eq!(finish.generated_tokens, tokens.len());
                return (tokens, Ok(finish.reason));
            }
            Event::Failed(failure) => return (tokens, Err(failure)),
        }
    }
    panic!("a stream without an end");
}

#[test]
fn many_rows_run_together_and_each_ends_on_its_own() {
    let (engine, forwards) = engine(Limits::default());
    let streams: Vec<Stream> = (1..9).map(|n| engine.submit(request(n, n as usize))).collect();
    for (n, stream) in (1..9).zip(streams) {
        assert_eq!(read(stream), ((n + 1..2 * n + 1).collect(), Ok(FinishReason::Length)));
    }
    assert!(forwards.load(Ordering::Relaxed) < 36, "{forwards:?} forwards for 36 tokens");
    let stats = engine.stats();
    assert_eq!((stats.requests, stats.failed, stats.generated_tokens), (8, 0, 36));
}

#[test]
fn a_fault_ends_the_request_that_causes_it() {
    let (engine, _) = engine(Limits::default());
    // The second reaches the token that breaks the model; the others count past it in time.
    let streams =
        [engine.submit(request(1, 20)), engine.submit(request(60, 20)), engine.submit(request(20, 20))];
    let [a, b, c] = streams.map(read);
    assert_eq!(a, ((2..22).collect(), Ok(FinishReason::Length)));
    assert_eq!(b, (vec![61, 62, 63], Err(Failure::Internal("the model broke".into()))));
    assert_eq!(c, ((21..41).collect(), Ok(FinishReason::Length)));
    // And the engine goes on.
    assert_eq!(read(engine.submit(request(5, 1))).0, [6]);
}

#[test]
fn a_dropped_stream_is_cancelled() {
    let (engine, forwards) = engine(Limits { max_running: 1, ..Limits::default() });
    let mut first = engine.submit(Request { prompt: vec![0], ..Request::default() });
    let waiting = engine.submit(request(1, 3));
    let last = engine.submit(request(2, 3));
    first.next();
    drop(waiting);
    drop(first);
    assert_eq!(read(last).0, [3, 4, 5]);
    assert!(forwards.load(Ordering::Relaxed) < 60);
}

#[test]
fn what_cannot_run_is_refused_with_the_figures() {
    let (engine, _) = engine(Limits::default());
    let message = |request| match read(engine.submit(request)).1 {
        Err(Failure::Invalid(message)) => message,
        other => panic!("{other:?}"),
    };
    let long = Request { prompt: vec![1; 100], ..Request::default() };
    assert_eq!(message(long), "the prompt has 100 tokens, but the model's context holds 100; shorten it");
    let long = Request { prompt: vec![1; 60], max_tokens: Some(50), ..Request::default() };
    assert!(message(long).contains("60 tokens and 50 more are over the model's context of 100"));
    assert_eq!(message(Request::default()), "the prompt is empty");
    assert!(message(request(1, 0)).contains("at least 1"));
}

#[test]
fn a_full_queue_says_so() {
    let (engine, _) = engine(Limits { max_running: 1, max_waiting: 1, ..Limits::default() });
    let streams: Vec<Stream> = (0..20).map(|_| engine.submit(request(1, 40))).collect();
    let ends: Vec<_> = streams.into_iter().map(|s| read(s).1).collect();
    let busy = |end: &Result<_, Failure>| matches!(end, Err(Failure::Busy(_)));
    assert!(ends.iter().any(busy) && ends[0].is_ok(), "{ends:?}");
}

#[test]
fn several_answers_share_one_prefill() {
    let (engine, forwards) = engine(Limits::default());
    let one = |seed| Request {
        prompt: vec![7; 50],
        max_tokens: Some(8),
        sampling: SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() },
        ..Request::default()
    };
    let alone: Vec<_> = (0..3).map(|seed| read(engine.submit(one(seed)))).collect();
    let before = forwards.load(Ordering::Relaxed);
    let together: Vec<_> = engine.submit_all((0..3).map(one).collect()).into_iter().map(read).collect();
    assert_eq!(alone, together);
    assert_eq!(forwards.load(Ordering::Relaxed) - before, 9, "one prefill of all but a token, then 8 steps");
}

#[test]
fn stop_ids_wait_for_the_least_number_of_tokens() {
    let (engine, _) = engine(Limits::default());
    let stop = |min_tokens| Request { stop_ids: vec![4], min_tokens, ..request(2, 9) };
    assert_eq!(read(engine.submit(stop(0))), (vec![3, 4], Ok(FinishReason::Stop)));
    // The next best of a forbidden 4 is the first of its equally near neighbours.
    let (tokens, end) = read(engine.submit(stop(3)));
    assert_eq!((tokens, end), (vec![3, 3, 3, 4], Ok(FinishReason::Stop)));
}

/// Allows even tokens only, and counts what it hears.
struct Even {
    heard: Arc<AtomicUsize>,
}

impl Constraint for Even {
    fn allowed(&mut self) -> Result<TokenSet, String> {
        Ok((0..VOCAB as u32).filter(|id| id.is_multiple_of(2)).collect())
    }
    fn accept(&mut self, id: TokenId) -> Result<(), String> {
        self.heard.fetch_add(1, Ordering::Relaxed);
        if id.is_multiple_of(2) { Ok(()) } else { Err(format!("{id} is odd")) }
    }
    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Self { heard: self.heard.clone() })
    }
}

#[test]
fn a_constraint_rules_its_own_row_only() {
    let (engine, _) = engine(Limits::default());
    let heard = Arc::new(AtomicUsize::new(0));
    let constraint = Some(Box::new(Even { heard: heard.clone() }) as Box<dyn Constraint>);
    let free = engine.submit(request(11, 5));
    let even = engine.submit(Request { constraint, top_logprobs: 2, ..request(11, 5) });
    assert_eq!(read(free).0, [12, 13, 14, 15, 16]);
    let tokens = read(even).0;
    assert!(tokens.len() == 5 && tokens.iter().all(|id| id.is_multiple_of(2)), "{tokens:?}");
    assert_eq!(heard.load(Ordering::Relaxed), 4);
}

#[test]
fn the_first_in_rank_goes_first() {
    let (engine, _) = engine(Limits { max_running: 1, ..Limits::default() });
    let hold = engine.submit(request(1, 50));
    let submit = |priority| engine.submit(Request { priority, ..request(1, 1) });
    let (background, interactive) = (submit(Priority::Background), submit(Priority::Interactive));
    for stream in [hold, background] {
        assert!(read(stream).1.is_ok());
    }
    // It had to be over before the background request could begin.
    assert!(interactive.events.len() >= 2);
}
