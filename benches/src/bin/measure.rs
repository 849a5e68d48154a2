//! One measure of the engine, as a line of JSON: `measure MODEL MEASURE [THREADS]`. `peers.py` runs it beside
//! the peers, a process a measure, so that memory is the measure's own.
//!
//! `decode@D` and `prefill@N` are tokens per second of one request, decoding 128 (32 past a context of 1024)
//! after D tokens and reading N; `rows@R` is R requests decoding together; `verify@W` is tokens per second of
//! forwards of W tokens at context 32.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::hub::ModelFiles;
use engine::lm::cache::SeqCache;
use engine::lm::{self, CausalLm, Row};
use engine::protocol::{Event, Finish, Request};
use engine::weights::gguf::{Fallback, Gguf, GgufModel};
use engine::weights::{LoadError, Preparation, QuantConfig, Weights};
use engine::{LoadOptions, Loaded};
use mlx_core::projection::Width;
use mlx_core::{Array, Dtype};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match measure(&args) {
        Ok(tokens_per_s) => {
            println!(
                r#"{{"engine": "forerun", "measure": "{}", "tokens_per_s": {tokens_per_s:.3}}}"#,
                args[1]
            );
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("measure: {message}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &[String]) -> Result<f64, String> {
    const USAGE: &str = "usage: measure MODEL.gguf decode@D|prefill@N|rows@R|verify@W [THREADS]";
    let (model, name, n) = match args {
        [model, measure, ..] => {
            let (name, n) = measure.split_once('@').ok_or(USAGE)?;
            (Path::new(model), name, n.parse::<usize>().map_err(|_| USAGE)?)
        }
        _ => return Err(USAGE.into()),
    };
    if let Some(threads) = args.get(2) {
        mlx_core::kernels::set_threads(threads.parse().map_err(|_| USAGE)?);
    }
    let engine = || load(model).map_err(|err| err.to_string());
    match name {
        "decode" => decode(&engine()?, 1, n, if 1024 <= n { 300 } else { 128 }),
        "rows" => decode(&engine()?, n, 32, 64),
        "prefill" => prefill(&engine()?, n),
        "verify" => verify(model, n).map_err(|err| err.to_string()),
        _ => Err(USAGE.into()),
    }
}

fn load(model: &Path) -> Result<Loaded, LoadError> {
    engine::load(&ModelFiles::Gguf(model.into()), &LoadOptions::default(), Arc::new(|_, _| ()))
}

fn request(prompt: usize, max_tokens: usize) -> Request {
    let prompt = (0..prompt as u32).map(|i| 1000 + i * 7919 % 40_000).collect();
    Request { prompt, max_tokens: Some(max_tokens), stop_ids: Vec::new(), ..Request::default() }
}

/// Tokens per second of all `rows` together, from the moment that all of them decode.
fn decode(model: &Loaded, rows: usize, prompt: usize, n: usize) -> Result<f64, String> {
    finish(model.engine.submit(request(8, 4)))?;
    let streams: Vec<_> = (0..rows).map(|_| model.engine.submit(request(prompt, n))).collect();
    let readers: Vec<_> = streams
        .into_iter()
        .map(|stream| {
            std::thread::spawn(move || {
                let token = |event: Event| matches!(event, Event::Token { .. }).then(Instant::now);
                stream.filter_map(token).collect::<Vec<Instant>>()
            })
        })
        .collect();
    let times: Vec<Vec<Instant>> = readers
        .into_iter()
        .map(|reader| reader.join().map_err(|_| "a reader panicked"))
        .collect::<Result<_, _>>()?;
    let start = times.iter().filter_map(|row| row.first()).max().ok_or("no token came")?;
    let end = times.iter().filter_map(|row| row.last()).min().ok_or("no token came")?;
    let drawn = times.iter().flatten().filter(|t| start < *t && *t <= end).count();
    Ok(drawn as f64 / (*end - *start).as_secs_f64())
}

fn prefill(model: &Loaded, n: usize) -> Result<f64, String> {
    finish(model.engine.submit(request(8, 1)))?;
    let finished = finish(model.engine.submit(request(n, 1)))?;
    Ok(n as f64 / finished.prompt_time.as_secs_f64())
}

fn finish(stream: impl Iterator<Item = Event>) -> Result<Finish, String> {
    for event in stream {
        match event {
            Event::Finished(finish) => return Ok(finish),
            Event::Failed(failure) => return Err(failure.to_string()),
            Event::Prefill { .. } | Event::Token { .. } => {}
        }
    }
    Err("the engine ended".into())
}

/// Forwards of `width` tokens in a round that is dropped, logits of every one included.
fn verify(model: &Path, width: usize) -> Result<f64, LoadError> {
    let lm = build(model)?;
    let mut cache = SeqCache::new(lm.layers());
    let tokens = request(32 + width, 1).prompt;
    forward(&*lm, &mut cache, &tokens[..32])?;
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..32 {
        let start = Instant::now();
        let mut round = cache.begin();
        forward(&*lm, &mut round, &tokens[32..])?;
        drop(round);
        times.push(start.elapsed());
    }
    times.sort();
    Ok(width as f64 / times[times.len() / 2].as_secs_f64())
}

fn build(model: &Path) -> Result<Box<dyn CausalLm>, LoadError> {
    let model = GgufModel::load(&Arc::new(Gguf::open(model)?), Fallback::default())?;
    let preparation = Preparation { dtype: Dtype::Float32, width: Width::default() };
    let quantization = QuantConfig::by_path(model.quantization);
    lm::build(&model.config, Weights::new(model.tensors, quantization, preparation, Box::new(|| ())))
}

fn forward(lm: &dyn CausalLm, cache: &mut SeqCache, tokens: &[u32]) -> Result<(), mlx_core::Error> {
    let h = lm.embed(&Array::from_slice(tokens, &[tokens.len() as i32]));
    let hidden = lm::run(lm, h, &mut [Row { cache, tokens: tokens.len() }], &[]);
    lm.logits(&hidden.last).argmax(-1, true).eval()
}
