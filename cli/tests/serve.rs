//! The server as people run it: the default model, over TCP.

#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that fails")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A running server, ended with the test.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_forerun"))
            .args(["serve", "--port", "0", "--log-level", "warn"])
            .args(args)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let address = line.rsplit_once("http://").unwrap_or_else(|| panic!("{line}")).1.to_owned();
        // Whoever writes there must not be held up.
        std::thread::spawn(move || lines.for_each(|line| eprintln!("{}", line.unwrap_or_default())));
        Self { child, address }
    }

    fn open(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let n = body.len();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.address).unwrap();
        write!(stream, "Connection: close\r\nContent-Length: {n}\r\n\r\n{body}").unwrap();
        stream
    }

    /// Everything that is answered.
    fn read(&self, method: &str, path: &str, body: &str) -> String {
        let mut text = String::new();
        self.open(method, path, body).read_to_string(&mut text).unwrap();
        text
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let text = self.read("POST", path, &body.to_string());
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

const SAID: &str = "The capital of France is Paris.";

fn ask(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "What is the capital of France?"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn the_default_model_answers_on_every_surface() {
    let server = Server::start(&["--compat", "mlx-lm"]);
    let chat = server.post("/v1/chat/completions", &ask(json!({})));
    assert_eq!(chat["choices"][0]["message"]["content"], SAID);
    assert_eq!(
        (&chat["usage"]["prompt_tokens"], &chat["usage"]["completion_tokens"]),
        (&json!(37), &json!(8))
    );
    let message = server.post("/v1/messages", &ask(json!({"max_tokens": 50})));
    assert_eq!(message["content"][0]["text"], SAID);
    let response = server.post("/v1/responses", &json!({"input": "What is the capital of France?"}));
    assert_eq!(response["output"][0]["content"][0]["text"], SAID);
    let line = server.post("/api/chat", &ask(json!({"stream": false})));
    assert_eq!(line["message"]["content"], SAID);
    // Nine at once, of which each is the same as alone.
    let texts: Vec<String> = std::thread::scope(|scope| {
        let ask = |i: usize| {
            let body = ask(json!({"stream": i.is_multiple_of(2), "n": 1 + i % 3}));
            scope.spawn(|| server.read("POST", "/v1/chat/completions", &{ body }.to_string()))
        };
        let all: Vec<_> = (0..9).map(ask).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(texts.iter().all(|text| text.contains(" Paris") && text.contains("stop")), "{texts:?}");
}

#[test]
fn a_long_prompt_that_comes_again_is_remembered() {
    let server = Server::start(&["--temp", "0"]);
    let content = "The cat sat on the mat. ".repeat(60);
    let body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 4});
    let [first, second] = [(); 2].map(|()| server.post("/v1/chat/completions", &body));
    assert_eq!(first["choices"][0]["message"], second["choices"][0]["message"]);
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!((cached(&first), cached(&second)), (0, 256));
    let again = server.post("/v1/messages", &body)["usage"].clone();
    let sum = again["input_tokens"].as_u64().unwrap() + again["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(
        (again["cache_read_input_tokens"].as_u64(), Some(sum)),
        (Some(256), first["usage"]["prompt_tokens"].as_u64())
    );
}

#[test]
fn a_schema_holds_whatever_the_seed() {
    let server = Server::start(&[]);
    let schema = json!({
        "type": "object", "required": ["a", "k"], "additionalProperties": false,
        "properties": {"a": {"type": "integer"}, "k": {"enum": ["x", "y"]}},
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let free = server.post("/v1/chat/completions", &ask(json!({"temperature": 0})));
    std::thread::scope(|scope| {
        for seed in 0..20 {
            let body = ask(json!({"response_format": format, "seed": seed, "max_tokens": 60}));
            let server = &server;
            scope.spawn(move || {
                let answer = server.post("/v1/chat/completions", &body);
                let choice = &answer["choices"][0];
                if choice["finish_reason"] == "length" {
                    return;
                }
                let text = choice["message"]["content"].as_str().unwrap();
                let value: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("{text:?}"));
                assert!(value["a"].is_i64() || value["a"].is_u64() || value["a"].is_number(), "{text}");
                assert!(value["k"] == "x" || value["k"] == "y", "{text}");
                assert_eq!(value.as_object().unwrap().len(), 2, "{text}");
            });
        }
        let again = server.post("/v1/chat/completions", &ask(json!({"temperature": 0})));
        assert_eq!(again["choices"], free["choices"]);
    });
}

#[test]
fn a_client_that_hangs_up_is_forgotten() {
    let server = Server::start(&[]);
    let long = |stream: bool| {
        let messages = json!([{"role": "user", "content": "Count to one thousand."}]);
        let body = json!({"messages": messages, "stream": stream, "ignore_eos": true, "max_tokens": 4000});
        server.open("POST", "/v1/chat/completions", &body.to_string())
    };
    let gauge = |name: &str| -> f64 {
        let text = server.read("GET", "/metrics", "");
        let line = text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    let mut streaming = long(true);
    streaming.read_exact(&mut [0; 600]).unwrap();
    let waiting = long(false);
    let until = |running: f64| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while gauge("vllm:num_requests_running{") != running {
            assert!(Instant::now() < deadline, "never {running} running");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until(2.0);
    drop(streaming);
    until(1.0);
    drop(waiting);
    until(0.0);
}

#[cfg(unix)]
#[test]
fn it_ends_when_asked_and_says_what_is_wrong() {
    let mut server = Server::start(&["--api-key", "k"]);
    assert!(server.read("GET", "/v1/models", "").starts_with("HTTP/1.1 401 "));
    let refused = Command::new(env!("CARGO_BIN_EXE_forerun"))
        .args(["serve", "--port", server.address.rsplit_once(':').unwrap().1])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr.contains("cannot listen on 127.0.0.1:"), "{stderr}");
    let mut idle = server.open("GET", "/health", "");
    idle.read_exact(&mut [0; 8]).unwrap();
    let status = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap();
    assert!(status.success());
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn flags_that_cannot_be_are_refused() {
    for (args, part) in [
        (&["--top-p", "2"][..], "--top-p"),
        (&["--draft-model", "x"], "--draft-model"),
        (&["--chat-template-args", "["], "--chat-template-args"),
        (&["--host", "no such host"], "--host"),
        (&["--model", "nonsense", "--port", "0"], "`nonsense`"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_forerun")).arg("serve").args(args).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.contains(part), "{args:?}: {stderr}");
    }
}

/// Where the build keeps what it fetches.
fn cache() -> PathBuf {
    let text = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || std::env::home_dir().unwrap();
    text("FORERUN_CACHE_DIR").unwrap_or_else(|| match text("XDG_CACHE_HOME") {
        Some(xdg) => xdg.join("forerun"),
        None if cfg!(target_os = "macos") => home().join("Library/Caches/forerun"),
        None => home().join(".cache/forerun"),
    })
}

#[test]
fn the_python_clients_find_what_they_know() {
    let server = Server::start(&["--temp", "0"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/clients/run");
    let url = format!("http://{}", server.address);
    let output = Command::new(script).arg(url).arg(cache()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) {
        eprintln!("skipped: {stderr}");
        return;
    }
    assert!(output.status.success(), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n");
}
