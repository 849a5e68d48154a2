//! Counters and histograms in Prometheus' text form, under the names that dashboards for vLLM and llama.cpp
//! already know.

use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::thread::Stats;

/// What one finished choice adds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observation {
    pub prompt_tokens: usize,
    pub cached_tokens: usize,
    pub generated_tokens: usize,
    pub first_token: Option<Duration>,
    pub prefill: Duration,
    pub decode: Duration,
    pub total: Duration,
    /// `None` if the client left.
    pub finish: Option<&'static str>,
    pub max_tokens: Option<usize>,
}

#[derive(Default)]
pub struct Metrics {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    prompt_tokens: u64,
    cached_tokens: u64,
    generated_tokens: u64,
    prefill_seconds: f64,
    decode_seconds: f64,
    finished: Vec<(&'static str, u64)>,
    responses: Vec<(u16, u64)>,
    histograms: [Histogram; HISTOGRAMS.len()],
}

#[derive(Default)]
struct Histogram {
    buckets: Vec<u64>,
    sum: f64,
    count: u64,
}

const TTFT: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const BETWEEN: &[f64] =
    &[0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];
const LONG: &[f64] =
    &[0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 480.0, 1920.0];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0,
    50_000.0, 100_000.0, 200_000.0,
];

const HISTOGRAMS: [(&str, &[f64]); 8] = [
    ("time_to_first_token_seconds", TTFT),
    ("inter_token_latency_seconds", BETWEEN),
    ("e2e_request_latency_seconds", LONG),
    ("request_prefill_time_seconds", LONG),
    ("request_decode_time_seconds", LONG),
    ("request_prompt_tokens", TOKENS),
    ("request_generation_tokens", TOKENS),
    ("request_params_max_tokens", TOKENS),
];

impl Metrics {
    pub fn observe(&self, o: &Observation) {
        let mut inner = self.locked();
        inner.prompt_tokens += o.prompt_tokens as u64;
        inner.cached_tokens += o.cached_tokens as u64;
        inner.generated_tokens += o.generated_tokens as u64;
        inner.prefill_seconds += o.prefill.as_secs_f64();
        inner.decode_seconds += o.decode.as_secs_f64();
        add(&mut inner.finished, o.finish.unwrap_or("abort"));
        let between =
            (1 < o.generated_tokens).then(|| o.decode.as_secs_f64() / (o.generated_tokens - 1) as f64);
        let values = [
            o.first_token.map(|d| d.as_secs_f64()),
            between,
            Some(o.total.as_secs_f64()),
            Some(o.prefill.as_secs_f64()),
            Some(o.decode.as_secs_f64()),
            Some(o.prompt_tokens as f64),
            Some(o.generated_tokens as f64),
            o.max_tokens.map(|n| n as f64),
        ];
        for ((histogram, (_, bounds)), value) in inner.histograms.iter_mut().zip(HISTOGRAMS).zip(values) {
            if let Some(value) = value {
                histogram.observe(bounds, value);
            }
        }
    }

    pub fn responded(&self, status: u16) {
        add(&mut self.locked().responses, status);
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The exposition, with what the engine counts.
    pub fn text(&self, model: &str, stats: &Stats) -> String {
        let inner = self.locked();
        let label = format!("model_name=\"{}\"", model.replace('\\', "\\\\").replace('"', "\\\""));
        let mut out = Page { text: String::new(), label };
        let counters = [
            ("vllm:prompt_tokens_total", inner.prompt_tokens as f64),
            ("vllm:prompt_tokens_cached_total", inner.cached_tokens as f64),
            ("vllm:generation_tokens_total", inner.generated_tokens as f64),
            ("vllm:num_preemptions_total", stats.preempted as f64),
            ("vllm:prefix_cache_queries_total", stats.prefix.query_tokens as f64),
            ("vllm:prefix_cache_hits_total", stats.prefix.hit_tokens as f64),
            ("llamacpp:prompt_tokens_total", inner.prompt_tokens as f64),
            ("llamacpp:prompt_seconds_total", inner.prefill_seconds),
            ("llamacpp:tokens_predicted_total", inner.generated_tokens as f64),
            ("llamacpp:tokens_predicted_seconds_total", inner.decode_seconds),
            ("llamacpp:n_decode_total", stats.steps as f64),
            ("forerun:requests_failed_total", stats.failed as f64),
            ("forerun:prefix_evictions_total", stats.prefix.evictions as f64),
        ];
        counters.into_iter().for_each(|(name, value)| out.single(name, "counter", value));
        let gauges = [
            ("vllm:num_requests_running", stats.running as f64),
            ("vllm:num_requests_waiting", stats.waiting as f64),
            ("llamacpp:requests_processing", stats.running as f64),
            ("llamacpp:requests_deferred", stats.waiting as f64),
            ("forerun:cache_bytes", stats.cache_bytes as f64),
            ("forerun:prefix_bytes", stats.prefix.bytes as f64),
            ("forerun:step_seconds", stats.step_time.as_secs_f64()),
        ];
        gauges.into_iter().for_each(|(name, value)| out.single(name, "gauge", value));
        out.labelled("vllm:request_success_total", "finished_reason", &inner.finished);
        out.labelled("forerun:http_responses_total", "code", &inner.responses);
        for ((name, bounds), histogram) in HISTOGRAMS.iter().zip(&inner.histograms) {
            out.histogram(&format!("vllm:{name}"), bounds, histogram);
        }
        out.text
    }
}

fn add<K: PartialEq>(counts: &mut Vec<(K, u64)>, key: K) {
    match counts.iter_mut().find(|(known, _)| *known == key) {
        Some((_, n)) => *n += 1,
        None => counts.push((key, 1)),
    }
}

impl Histogram {
    fn observe(&mut self, bounds: &[f64], value: f64) {
        self.buckets.resize(bounds.len(), 0);
        for (bucket, bound) in self.buckets.iter_mut().zip(bounds) {
            *bucket += u64::from(value <= *bound);
        }
        self.sum += value;
        self.count += 1;
    }
}

struct Page {
    text: String,
    label: String,
}

impl Page {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        self.text.write_fmt(line).ok();
        self.text.push('\n');
    }

    fn single(&mut self, name: &str, kind: &str, value: f64) {
        let label = self.label.clone();
        self.line(format_args!("# TYPE {name} {kind}"));
        self.line(format_args!("{name}{{{label}}} {value}"));
    }

    fn labelled<K: std::fmt::Display>(&mut self, name: &str, key: &str, counts: &[(K, u64)]) {
        let label = self.label.clone();
        self.line(format_args!("# TYPE {name} counter"));
        for (value, n) in counts {
            self.line(format_args!("{name}{{{label},{key}=\"{value}\"}} {n}"));
        }
    }

    fn histogram(&mut self, name: &str, bounds: &[f64], histogram: &Histogram) {
        let label = self.label.clone();
        self.line(format_args!("# TYPE {name} histogram"));
        for (i, bound) in bounds.iter().enumerate() {
            let n = histogram.buckets.get(i).unwrap_or(&0);
            self.line(format_args!("{name}_bucket{{{label},le=\"{bound}\"}} {n}"));
        }
        let (sum, count) = (histogram.sum, histogram.count);
        self.line(format_args!("{name}_bucket{{{label},le=\"+Inf\"}} {count}"));
        self.line(format_args!("{name}_sum{{{label}}} {sum}"));
        self.line(format_args!("{name}_count{{{label}}} {count}"));
    }
}
