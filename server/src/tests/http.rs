//! What every request passes, and what is asked about the server.

use std::io::Write;

use axum::body::Body;
use axum::http::{Method, Request};
use serde_json::{Value, json};

use super::{Stage, go, text_of};
use crate::{Hosts, Settings};

const CHAT: &str = "/v1/chat/completions";

fn request(method: Method, path: &str) -> axum::http::request::Builder {
    Request::builder().method(method).uri(path)
}

#[tokio::test]
async fn unknown_paths_and_methods_say_so_in_each_dialect() {
    let show = Stage::new(&[&["hi"]]).open();
    let (status, body) = show.get("/v1/nothing").await;
    assert_eq!((status.as_u16(), &body["error"]["type"]), (404, &json!("invalid_request_error")));
    let (status, body) = show.get("/v1/messages/nothing").await;
    assert_eq!((status.as_u16(), &body["error"]["type"]), (404, &json!("not_found_error")));
    assert!(body["request_id"].as_str().unwrap().starts_with("req_"));
    let (status, body) = show.get("/api/nothing").await;
    assert_eq!(status, 404);
    assert!(body["error"].is_string());
    for path in [CHAT, "/v1/messages", "/api/chat", "/v1/responses", "/tokenize"] {
        assert_eq!(show.get(path).await.0, 405, "{path}");
    }
    assert_eq!(show.forwards.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[tokio::test]
async fn bodies_are_checked() {
    let show = Stage::new(&[&["hi"]]).open();
    for body in ["", "{", "[1]", "\"x\"", "5", "{\"messages\": \"\u{0}\"}", "{\"a\":\"\\ud800\"}"] {
        let response = show.raw(CHAT, body.to_owned()).await;
        assert_eq!(response.status(), 400, "{body}");
        let error: Value = serde_json::from_str(&text_of(response).await).unwrap();
        assert!(error["error"]["message"].is_string());
    }
    // A length that is only told is enough to refuse.
    let told = request(Method::POST, CHAT).header("content-length", (65u64 << 20).to_string());
    let response = show.send(told.body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), 413);
    let text = text_of(response).await;
    assert!(text.contains("68157440") && text.contains("67108864"), "{text}");
}

#[tokio::test]
async fn compressed_bodies_are_unpacked() {
    let show = Stage::new(&[&["hi"]]).open();
    let json = go(json!({})).to_string();
    let level = flate2::Compression::default();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), level);
    gzip.write_all(json.as_bytes()).unwrap();
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), level);
    zlib.write_all(json.as_bytes()).unwrap();
    let mut bare = flate2::write::DeflateEncoder::new(Vec::new(), level);
    bare.write_all(json.as_bytes()).unwrap();
    let bodies = [
        ("gzip", gzip.finish().unwrap(), 200),
        ("deflate", zlib.finish().unwrap(), 200),
        ("deflate", bare.finish().unwrap(), 200),
        ("gzip", json.clone().into_bytes(), 400),
        ("zstd", json.into_bytes(), 415),
    ];
    for (encoding, body, expect) in bodies {
        let sent = request(Method::POST, CHAT).header("content-encoding", encoding);
        assert_eq!(show.send(sent.body(body.into()).unwrap()).await.status(), expect, "{encoding}");
    }
}

#[tokio::test]
async fn a_key_opens_everything_but_health() {
    let settings = Settings { api_key: Some("secret".into()), ..Settings::default() };
    let show = Stage { settings, ..Stage::new(&[&["hi"]]) }.open();
    let with = async |header: &str, value: &str| {
        let sent = request(Method::GET, "/v1/models").header(header, value);
        show.send(sent.body(Body::empty()).unwrap()).await.status().as_u16()
    };
    assert_eq!(with("x-other", "secret").await, 401);
    assert_eq!(with("authorization", "Bearer wrong").await, 401);
    assert_eq!(with("authorization", "Basic secret").await, 401);
    assert_eq!(with("x-api-key", "secre").await, 401);
    assert_eq!(with("authorization", "Bearer secret").await, 200);
    assert_eq!(with("authorization", "bearer secret").await, 200);
    assert_eq!(with("x-api-key", "secret").await, 200);
    assert_eq!(show.get("/health").await.0, 200);
    let (status, body) = show.post("/v1/messages", json!({})).await;
    assert_eq!((status.as_u16(), &body["error"]["type"]), (401, &json!("authentication_error")));
    let (_, body) = show.get("/v1/models").await;
    assert_eq!(body["error"]["code"], "invalid_api_key");
    let options = show.send(request(Method::OPTIONS, CHAT).body(Body::empty()).unwrap()).await;
    assert_eq!(options.status(), 204);
}

#[tokio::test]
async fn origins_and_hosts_are_held_to_the_lists() {
    let origin =
        |name: &str| request(Method::GET, "/v1/models").header("origin", name).body(Body::empty()).unwrap();
    let open = Stage::new(&[&["hi"]]).open();
    let headers = open.send(origin("http://a")).await.headers().clone();
    assert_eq!(headers["access-control-allow-origin"], "*");
    let settings = Settings {
        allowed_origins: vec!["http://a".into()],
        hosts: Hosts::Local(vec!["my.box".into()]),
        ..Settings::default()
    };
    let show = Stage { settings, ..Stage::new(&[&["hi"]]) }.open();
    let headers = show.send(origin("http://a")).await.headers().clone();
    assert_eq!(headers["access-control-allow-origin"], "http://a");
    assert_eq!(headers["vary"], "Origin");
    let headers = show.send(origin("http://b")).await.headers().clone();
    assert!(headers.get("access-control-allow-origin").is_none());
    for (host, expect) in [
        ("localhost:8080", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("MY.box:1", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:80", 403),
    ] {
        let sent = request(Method::GET, "/v1/models").header("host", host).body(Body::empty()).unwrap();
        assert_eq!(show.send(sent).await.status(), expect, "{host}");
    }
}

#[tokio::test]
async fn requests_have_names() {
    let show = Stage::new(&[&["hi"]]).open();
    let id = async |given: Option<&str>| {
        let mut sent = request(Method::GET, "/health");
        if let Some(given) = given {
            sent = sent.header("x-request-id", given);
        }
        let headers = show.send(sent.body(Body::empty()).unwrap()).await.headers().clone();
        assert_eq!(headers["x-request-id"], headers["request-id"]);
        headers["request-id"].to_str().unwrap().to_owned()
    };
    assert_eq!(id(Some("mine")).await, "mine");
    let (a, b) = (id(None).await, id(None).await);
    assert!(a.starts_with("req_") && a != b, "{a} {b}");
    assert!(id(Some(&"x".repeat(500))).await.starts_with("req_"));
}

#[tokio::test]
async fn the_server_tells_of_itself() {
    let show = Stage::new(&[&["hi"]]).open();
    assert_eq!(show.get("/health").await.1["status"], "ok");
    show.ok(CHAT, go(json!({}))).await;
    let metrics = show.send(request(Method::GET, "/metrics").body(Body::empty()).unwrap()).await;
    assert_eq!(metrics.headers()["content-type"], "text/plain; version=0.0.4");
    let text = text_of(metrics).await;
    for line in [
        "vllm:prompt_tokens_total{model_name=\"scripted\"} 7",
        "vllm:generation_tokens_total{model_name=\"scripted\"} 2",
        "vllm:request_success_total{model_name=\"scripted\",finished_reason=\"stop\"} 1",
        "vllm:time_to_first_token_seconds_count{model_name=\"scripted\"} 1",
        "vllm:e2e_request_latency_seconds_bucket{model_name=\"scripted\",le=\"+Inf\"} 1",
        "llamacpp:tokens_predicted_total{model_name=\"scripted\"} 2",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    let head = show.send(request(Method::HEAD, "/metrics").body(Body::empty()).unwrap()).await;
    assert_eq!(head.status(), 200);
    assert_eq!(show.get("/props").await.1["n_ctx"], 4096);
}

#[tokio::test]
async fn models_are_listed_and_named() {
    let settings = Settings { strict_models: true, aliases: vec!["a/b".into()], ..Settings::default() };
    let show = Stage { settings, ..Stage::new(&[&["hi"]]) }.open();
    let (_, list) = show.get("/v1/models").await;
    let ids: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|row| &row["id"]).collect();
    assert_eq!(ids, ["scripted", "a/b"]);
    assert_eq!((&list["first_id"], &list["has_more"]), (&json!("scripted"), &json!(false)));
    assert_eq!(list["data"][0]["context_length"], 4096);
    assert_eq!(show.get("/v1/models/a/b").await.1["id"], "a/b");
    assert_eq!(show.get("/v1/models/nope").await.1["error"]["code"], "model_not_found");
    for (name, expect) in [("scripted", 200), ("default_model", 200), ("a/b", 200), ("org/other", 404)] {
        assert_eq!(show.post(CHAT, go(json!({"model": name}))).await.0, expect, "{name}");
    }
    let lenient = Stage::new(&[&["hi"]]).open();
    assert_eq!(lenient.ok(CHAT, go(json!({"model": "gpt-4"}))).await["model"], "gpt-4");
}

#[tokio::test]
async fn text_becomes_tokens_and_back() {
    let show = Stage::new(&[&["hi"]]).open();
    let answer = show.ok("/tokenize", json!({"content": "ab go0", "with_pieces": true})).await;
    assert_eq!(answer["count"], 4);
    assert_eq!(answer["tokens"][3]["piece"], "go0");
    let tokens = show.ok("/tokenize", json!({"content": "ab go0"})).await["tokens"].clone();
    assert_eq!(show.ok("/detokenize", json!({"tokens": tokens})).await["content"], "ab go0");
    assert_eq!(show.post("/detokenize", json!({"tokens": ["x"]})).await.0, 400);
    let prompt = show.ok("/apply-template", go(json!({}))).await;
    assert_eq!(prompt["prompt"], "user: go0");
}
