//! The service over a model that says what a script has it say.

mod anthropic;
mod http;
mod ollama;
mod openai;
mod responses;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use engine::ModelInfo;
use engine::lm::cache::LayerSpec;
use engine::lm::{CausalLm, Forward};
use engine::text::{ChatTemplates, Tokenizer};
use engine::thread::{EngineHandle, EngineOptions, ModelFacts};
use http_body_util::BodyExt;
use mlx_core::{Array, Dtype};
use serde_json::{Map, Value, json};
use tower::ServiceExt;

use crate::{App, Model, Settings, router};

/// Bytes stand for themselves below this id.
const EOS: u32 = 256;

/// After one token always comes the same other one.
struct Scripted {
    next: Vec<u32>,
    forwards: Arc<AtomicUsize>,
    pace: Duration,
    fault: Option<u32>,
}

impl CausalLm for Scripted {
    fn layers(&self) -> &[LayerSpec] {
        &[]
    }
    fn vocab_size(&self) -> usize {
        self.next.len()
    }
    fn embed(&self, ids: &Array) -> Array {
        ids.astype(Dtype::Float32).reshape(&[-1, 1])
    }
    fn forward(&self, h: Array, _: &mut Forward<'_>) -> Array {
        self.forwards.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(self.pace);
        h
    }
    fn logits(&self, h: &Array) -> Array {
        let ids = h.to_vec::<f32>().unwrap();
        assert!(!ids.iter().any(|id| self.fault == Some(*id as u32)), "the model broke");
        let row = |id: &f32| {
            let next = self.next[*id as usize];
            (0..self.vocab_size() as u32).map(move |v| if v == next { 20.0 } else { -0.01 * v as f32 })
        };
        let logits: Vec<f32> = ids.iter().flat_map(row).collect();
        Array::from_slice(&logits, &[ids.len() as i32, self.vocab_size() as i32])
    }
}

/// What is said after `go0`, `go1` and so on, in tokens. No token may be there twice.
#[derive(Clone, Default)]
pub struct Stage {
    scripts: Vec<Vec<Vec<u8>>>,
    pub context: usize,
    pub pace: Duration,
    /// The token that breaks the model: one of a script's, by its text.
    pub fault: Option<&'static str>,
    pub options: EngineOptions,
    pub settings: Settings,
}

impl Stage {
    pub fn new(scripts: &[&[&str]]) -> Self {
        let script = |script: &&[&str]| script.iter().map(|token| token.as_bytes().to_vec()).collect();
        Self::of_bytes(scripts.iter().map(script).collect())
    }

    pub fn of_bytes(scripts: Vec<Vec<Vec<u8>>>) -> Self {
        let mut settings = Settings::default();
        settings.defaults.temperature = 0.0;
        Self { scripts, context: 4096, settings, ..Self::default() }
    }

    pub fn open(self) -> Show {
        let (tokenizer, next, fault) = self.vocabulary();
        let forwards = Arc::new(AtomicUsize::new(0));
        let lm = Scripted { next, forwards: forwards.clone(), pace: self.pace, fault };
        let vocab_size = lm.vocab_size();
        let load = move || Ok::<_, Infallible>((Box::new(lm) as Box<dyn CausalLm>, ()));
        let context_length = self.context;
        let facts = move |_: &()| ModelFacts { context_length, identity: String::new() };
        let Ok((engine, ())) = EngineHandle::spawn(self.options, load, facts);
        let template = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}\
                        {% if not loop.first %};{% endif %}{% if m.content == 'bad' %}{{ raise_exception('no bad words') }}\
                        {% endif %}{{ m.role }}: {{ m.content }}{% endfor %}";
        let model = Model {
            name: "scripted".into(),
            engine,
            tokenizer: Arc::new(tokenizer),
            templates: Arc::new(ChatTemplates::from_source(template, Map::new()).unwrap()),
            info: ModelInfo { model_type: "script".into(), context_length, vocab_size },
            size: 7,
        };
        let app = App::new(model, self.settings);
        Show { router: router(app.clone()), app, forwards }
    }

    /// The tokenizer, each token's successor, and the fault's id.
    fn vocabulary(&self) -> (Tokenizer, Vec<u32>, Option<u32>) {
        let alphabet = alphabet();
        let spell = |bytes: &[u8]| bytes.iter().map(|b| alphabet[b]).collect::<String>();
        let mut vocab: Map<String, Value> = (0..=255u8).map(|b| (spell(&[b]), json!(b))).collect();
        let mut next = vec![EOS; 257];
        let mut added = vec![json!({"id": EOS, "content": "<eos>", "special": true})];
        let mut fault = None;
        vocab.insert("<eos>".into(), json!(EOS));
        for (i, script) in self.scripts.iter().enumerate() {
            let start = next.len() as u32;
            let name = format!("go{i}");
            added.push(json!({"id": start, "content": name, "special": false}));
            vocab.insert(name, json!(start));
            next.push(start + 1);
            for token in script {
                let id = next.len() as u32;
                let old = vocab.insert(spell(token), json!(id));
                assert!(old.is_none_or(|old| old.as_u64() < Some(256)), "{token:?} is there twice");
                fault = fault.or((self.fault.map(str::as_bytes) == Some(token)).then_some(id));
                next.push(id + 1);
            }
            *next.last_mut().unwrap() = EOS;
        }
        for token in &mut added {
            for flag in ["single_word", "lstrip", "rstrip", "normalized"] {
                token[flag] = json!(false);
            }
        }
        let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
        let tokenizer = json!({
            "version": "1.0", "added_tokens": added, "normalizer": null, "pre_tokenizer": level, "decoder": level,
            "post_processor": null, "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        std::fs::write(folder.path().join("config.json"), json!({"eos_token_id": EOS}).to_string()).unwrap();
        (Tokenizer::from_folder(folder.path()).unwrap(), next, fault)
    }
}

/// The spelling of bytes in byte-level vocabularies.
fn alphabet() -> HashMap<u8, char> {
    let plain = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let shifted = (0..=255u8).filter(|b| !plain(*b)).zip(0x100u32..);
    let shifted = shifted.map(|(b, c)| (b, char::from_u32(c).unwrap()));
    (0..=255u8).filter(|b| plain(*b)).map(|b| (b, char::from(b))).chain(shifted).collect()
}

pub struct Show {
    pub router: Router,
    pub app: Arc<App>,
    pub forwards: Arc<AtomicUsize>,
}

impl Show {
    pub async fn send(&self, request: Request<Body>) -> Response {
        self.router.clone().oneshot(request).await.unwrap()
    }

    pub async fn raw(&self, path: &str, body: impl Into<Body>) -> Response {
        self.send(Request::post(path).body(body.into()).unwrap()).await
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Value) {
        json_of(self.send(Request::get(path).body(Body::empty()).unwrap()).await).await
    }

    pub async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        json_of(self.raw(path, body.to_string()).await).await
    }

    /// The body of an answer that should be one.
    pub async fn ok(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.post(path, body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// The body of a stream, as text.
    pub async fn stream(&self, path: &str, body: Value) -> String {
        let response = self.raw(path, body.to_string()).await;
        assert_eq!(response.status(), 200);
        text_of(response).await
    }

    /// The data of a stream's events, comments left out. `[DONE]` is a string.
    pub async fn events(&self, path: &str, body: Value) -> Vec<Value> {
        events(&self.stream(path, body).await)
    }
}

pub fn events(text: &str) -> Vec<Value> {
    let mut found = Vec::new();
    for block in text.split("\n\n").filter(|block| !block.is_empty() && !block.starts_with(':')) {
        let (mut name, mut data) = (None, None);
        for line in block.lines() {
            match line.split_once(": ") {
                Some(("event", value)) => name = Some(value.to_owned()),
                Some(("data", value)) => data = Some(value),
                _ => panic!("{line:?} is no part of an event"),
            }
        }
        let data = data.unwrap();
        let data = serde_json::from_str(data).unwrap_or_else(|_| json!(data));
        if let Some(name) = name {
            assert_eq!(data["type"], json!(name), "an event's name and type");
        }
        found.push(data);
    }
    found
}

pub async fn text_of(response: Response) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

async fn json_of(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    let text = text_of(response).await;
    (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: {text:?} is not JSON")))
}

/// A chat request that starts script 0, with more fields.
pub fn go(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "go0"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}
