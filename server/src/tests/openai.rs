//! Chat and text completions.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Stage, events, go};

const CHAT: &str = "/v1/chat/completions";
const RED: &[&str] = &["red", " gr", "een", " bl", "ue", " black"];

fn contents(chunks: &[Value]) -> String {
    let deltas = chunks.iter().filter_map(|chunk| chunk["choices"].get(0)?["delta"]["content"].as_str());
    deltas.collect()
}

fn finishes(chunks: &[Value]) -> Vec<&str> {
    chunks.iter().filter_map(|chunk| chunk["choices"].get(0)?["finish_reason"].as_str()).collect()
}

#[tokio::test]
async fn a_whole_answer_has_openais_shape() {
    let show = Stage::new(&[RED]).open();
    let answer = show.ok(CHAT, go(json!({"model": "any", "unknown": {"x": 1}}))).await;
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("chat.completion"), &json!("any")));
    let message = json!({"role": "assistant", "content": "red green blue black", "refusal": null});
    let choice = json!({"index": 0, "message": message, "logprobs": null, "finish_reason": "stop"});
    assert_eq!(answer["choices"], json!([choice]));
    // `user: ` and `go0`; six tokens and the end.
    let usage = json!({
        "prompt_tokens": 7, "completion_tokens": 7, "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0},
    });
    assert_eq!(answer["usage"], usage);
    assert_eq!(answer["timings"]["predicted_n"], 7);
}

#[tokio::test]
async fn a_stream_has_one_role_one_finish_and_done() {
    let show = Stage::new(&[RED]).open();
    let chunks = show.events(CHAT, go(json!({"stream": true}))).await;
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(chunks.last(), Some(&json!("[DONE]")));
    assert_eq!(contents(&chunks), "red green blue black");
    assert_eq!(finishes(&chunks), ["stop"]);
    let chunks = &chunks[..chunks.len() - 1];
    for chunk in chunks {
        assert_eq!((&chunk["id"], &chunk["created"]), (&chunks[0]["id"], &chunks[0]["created"]));
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert!(chunk.get("usage").is_none());
    }
    assert!(chunks[1..].iter().all(|chunk| chunk["choices"][0]["delta"].get("role").is_none()));
    assert_eq!(chunks.last().unwrap()["choices"][0]["delta"], json!({}));

    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let chunks = show.events(CHAT, go(options)).await;
    let [.., usage, done] = &chunks[..] else { panic!("{chunks:?}") };
    assert_eq!(done, "[DONE]");
    assert_eq!((&usage["choices"], &usage["usage"]["total_tokens"]), (&json!([]), &json!(14)));
}

#[tokio::test]
async fn stop_strings_cut_the_text_and_never_show() {
    let show = Stage::new(&[RED, &["the E", "ND of", " it"]]).open();
    let stop = json!({"stop": ["zzz", "green blue"]});
    let answer = show.ok(CHAT, go(stop.clone())).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "red ");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    let mut streamed = go(stop);
    streamed["stream"] = json!(true);
    let chunks = show.events(CHAT, streamed).await;
    assert_eq!((contents(&chunks).as_str(), finishes(&chunks)), ("red ", vec!["stop"]));
    let one = show.ok(CHAT, go(json!({"stop": "green blue"}))).await;
    assert_eq!(one["choices"][0]["message"]["content"], "red ");

    let end = json!({"messages": [{"role": "user", "content": "go1"}], "stop": ["END!"], "stream": true});
    assert_eq!(contents(&show.events(CHAT, end).await), "the END of it");
}

#[tokio::test]
async fn characters_come_whole() {
    let text = "ok 🧪🏽 ňů";
    // Every token but the first ends inside a character.
    let show = Stage::of_bytes(vec![text.as_bytes().chunks(3).map(<[u8]>::to_vec).collect()]).open();
    assert_eq!(show.ok(CHAT, go(json!({}))).await["choices"][0]["message"]["content"], text);
    let chunks = show.events(CHAT, go(json!({"stream": true}))).await;
    assert_eq!(contents(&chunks), text);
    assert!(!chunks.iter().any(|chunk| chunk.to_string().contains('\u{FFFD}')));
    let cut = show.ok(CHAT, go(json!({"max_tokens": 2}))).await;
    assert_eq!(cut["choices"][0]["message"]["content"], "ok \u{FFFD}");
    let chunks = show.events(CHAT, go(json!({"max_tokens": 2, "stream": true}))).await;
    assert_eq!((contents(&chunks).as_str(), finishes(&chunks)), ("ok \u{FFFD}", vec!["length"]));
}

#[tokio::test]
async fn lengths_are_held() {
    let many: Vec<String> = (0..200).map(|i| format!("w{i} ")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let show = Stage { context: 64, ..Stage::new(&[&many]) }.open();
    for name in ["max_tokens", "max_completion_tokens"] {
        let answer = show.ok(CHAT, go(json!({name: 3}))).await;
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], 3);
    }
    // Without a limit, and with one past the context, to its end.
    for body in [json!({}), json!({"max_tokens": 100_000}), json!({"max_tokens": null})] {
        let answer = show.ok(CHAT, go(body)).await;
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["total_tokens"], 64);
    }
}

#[tokio::test]
async fn a_prompt_past_the_context_names_both_numbers_and_computes_nothing() {
    let show = Stage { context: 64, ..Stage::new(&[RED]) }.open();
    let content = "x".repeat(74);
    let (status, body) = show.post(CHAT, json!({"messages": [{"role": "user", "content": content}]})).await;
    assert_eq!(status, 400);
    let error = &body["error"];
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("invalid_request_error"), &json!("context_length_exceeded"))
    );
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("maximum context length is 64") && message.contains("80 input tokens"),
        "{message}"
    );
    assert_eq!(show.forwards.load(Ordering::Relaxed), 0);
    show.ok(CHAT, go(json!({}))).await;
}

#[tokio::test]
async fn several_choices_have_their_own_indices() {
    let show = Stage::new(&[RED]).open();
    let answer = show.ok(CHAT, go(json!({"n": 2}))).await;
    let texts: Vec<&Value> =
        answer["choices"].as_array().unwrap().iter().map(|c| &c["message"]["content"]).collect();
    assert_eq!(texts, ["red green blue black"; 2]);
    assert_eq!(
        answer["usage"],
        json!({
            "prompt_tokens": 7, "completion_tokens": 14, "total_tokens": 21,
            "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0},
        })
    );
    let chunks = show.events(CHAT, go(json!({"n": 2, "stream": true}))).await;
    for i in 0..2 {
        let own: Vec<Value> = chunks.iter().filter(|c| c["choices"][0]["index"] == i).cloned().collect();
        assert_eq!((contents(&own).as_str(), finishes(&own)), ("red green blue black", vec!["stop"]));
    }
}

#[tokio::test]
async fn logprobs_tell_of_the_text_that_is_shown() {
    let show =
        Stage::of_bytes(vec![vec![b"caf".to_vec(), vec![0xC3], vec![0xA9, b'!'], b" tail".to_vec()]]).open();
    let answer = show.ok(CHAT, go(json!({"logprobs": true, "top_logprobs": 3, "stop": " tail"}))).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], "café!");
    let entries = choice["logprobs"]["content"].as_array().unwrap();
    let bytes: Vec<u8> = entries
        .iter()
        .flat_map(|e| e["bytes"].as_array().unwrap())
        .map(|b| b.as_u64().unwrap() as u8)
        .collect();
    assert_eq!(bytes, "café!".as_bytes());
    for entry in entries {
        let top: Vec<f64> = entry["top_logprobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| t["logprob"].as_f64().unwrap())
            .collect();
        assert_eq!(top.len(), 3);
        assert!(top.is_sorted_by(|a, b| a >= b) && top[0] <= 0.0, "{top:?}");
        assert_eq!(entry["top_logprobs"][0]["bytes"], entry["bytes"]);
    }
    let chunks = show.events(CHAT, go(json!({"logprobs": true, "stream": true}))).await;
    let streamed: usize = chunks
        .iter()
        .filter_map(|c| Some(c["choices"].get(0)?["logprobs"]["content"].as_array()?.len()))
        .sum();
    assert_eq!(streamed, 4);
}

#[tokio::test]
async fn what_cannot_be_names_its_field() {
    let show = Stage::new(&[RED]).open();
    let bad = [
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": "x"}), "max_tokens"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"top_p": 2}), "top_p"),
        (json!({"top_logprobs": 99}), "top_logprobs"),
        (json!({"n": "1"}), "n"),
        (json!({"stop": [1]}), "stop"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (json!({"logit_bias": {"99999": 1}}), "logit_bias"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": [1]}), "messages[0]"),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content"),
        (json!({"messages": [{"role": "king", "content": ""}]}), "messages[0].role"),
        (json!({"messages": [{"content": ""}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": "bad"}]}), "messages"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content[0]",
        ),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "poem"}}}}),
            "response_format",
        ),
        (json!({"response_format": 5}), "response_format"),
        (json!({"guided_regex": "a+"}), "guided_regex"),
        (json!({"adapters": "x"}), "adapters"),
        (json!({"response_format": {"type": "poem"}}), "response_format"),
    ];
    for (fields, name) in bad {
        let (status, body) = show.post(CHAT, go(fields.clone())).await;
        assert_eq!(status, 400, "{fields}: {body}");
        assert_eq!(body["error"]["param"], name, "{fields}: {body}");
        assert_eq!(body["error"]["type"], "invalid_request_error");
        assert!(body["error"]["message"].is_string());
    }
    let (_, body) = show.post(CHAT, go(json!({"messages": [{"role": "user", "content": "bad"}]}))).await;
    assert!(body["error"]["message"].as_str().unwrap().contains("no bad words"), "{body}");
    show.ok(CHAT, go(json!({"temperature": null, "tool_choice": null, "stop": null, "seed": null}))).await;
}

#[tokio::test]
async fn histories_are_read_in_every_form() {
    let show = Stage::new(&[RED]).open();
    let call = |arguments: Value| json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}});
    for (content, arguments) in
        [(json!(null), json!("{\"a\": 1}")), (json!(""), json!("")), (json!("x"), json!("{"))]
    {
        let messages = json!([
            {"role": "developer", "content": "be good"},
            {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": content, "tool_calls": [call(arguments)], "reasoning": "hm"},
            {"role": "tool", "tool_call_id": "c1", "content": null},
            {"role": "user", "content": "go0"},
        ]);
        let body = json!({"messages": messages});
        let prompt = show.ok("/apply-template", body.clone()).await;
        let shown = content.as_str().unwrap_or_default();
        let expect = format!("system: be good;user: one two;assistant: {shown};tool: ;user: go0");
        assert_eq!(prompt["prompt"], json!(expect));
        show.ok(CHAT, body).await;
    }
}

#[tokio::test]
async fn a_silent_stream_is_kept_alive() {
    let mut stage = Stage { pace: Duration::from_millis(400), ..Stage::new(&[RED]) };
    stage.settings.keep_alive = Duration::from_millis(50);
    let show = stage.open();
    let started = Instant::now();
    let response = show.raw(CHAT, go(json!({"stream": true, "max_tokens": 1})).to_string()).await;
    assert!(started.elapsed() < Duration::from_millis(200), "{:?} to the headers", started.elapsed());
    let text = super::text_of(response).await;
    let before = &text[..text.find("data: ").unwrap()];
    assert!(3 <= before.matches(": keepalive\n\n").count(), "{text}");
    assert!(before.contains(": keepalive 7/7\n\n"), "{text}");
    assert_eq!(contents(&events(&text)), "red");
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_row() {
    let many: Vec<String> = (0..2000).map(|i| format!("w{i} ")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let show = Stage { pace: Duration::from_millis(2), ..Stage::new(&[&many]) }.open();
    let response = show.raw(CHAT, go(json!({"stream": true})).to_string()).await;
    let mut body = response.into_body();
    for _ in 0..4 {
        http_body_util::BodyExt::frame(&mut body).await.unwrap().unwrap();
    }
    drop(body);
    let idle = || show.app.model.engine.stats().running == 0;
    let deadline = Instant::now() + Duration::from_secs(5);
    while !idle() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(idle());
    let text =
        super::text_of(show.send(axum::http::Request::get("/metrics").body("".into()).unwrap()).await).await;
    assert!(text.contains("finished_reason=\"abort\"} 1"), "{text}");
}

#[tokio::test]
async fn a_fault_ends_its_own_answer_only() {
    let show = Stage { fault: Some("een"), ..Stage::new(&[RED, &["fine"]]) }.open();
    let (status, body) = show.post(CHAT, go(json!({}))).await;
    assert_eq!((status.as_u16(), &body["error"]["type"]), (500, &json!("server_error")));
    let chunks = show.events(CHAT, go(json!({"stream": true}))).await;
    assert_eq!(chunks.last().unwrap()["error"]["type"], "server_error", "{chunks:?}");
    let other = json!({"messages": [{"role": "user", "content": "go1"}]});
    assert_eq!(show.ok(CHAT, other).await["choices"][0]["message"]["content"], "fine");
}

#[tokio::test]
async fn completions_take_texts_and_tokens() {
    let show = Stage::new(&[RED, &["fine"]]).open();
    let path = "/v1/completions";
    let answer = show.ok(path, json!({"prompt": "go0", "echo": true})).await;
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["choices"][0]["text"], "go0red green blue black");
    let answer = show.ok(path, json!({"prompt": ["go0", "go1"], "n": 2})).await;
    let texts: Vec<&str> =
        answer["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["red green blue black", "red green blue black", "fine", "fine"]);
    assert_eq!(answer["usage"]["prompt_tokens"], 2);
    let ids = show.ok("/tokenize", json!({"content": "go1"})).await["tokens"].clone();
    assert_eq!(show.ok(path, json!({"prompt": ids})).await["choices"][0]["text"], "fine");
    assert_eq!(show.ok(path, json!({"prompt": [ids]})).await["choices"][0]["text"], "fine");
    let answer = show.ok(path, json!({"prompt": "go1", "logprobs": 2})).await;
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!((&logprobs["tokens"], &logprobs["text_offset"]), (&json!(["fine"]), &json!([0])));
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
    let none = show.ok(path, json!({"prompt": "go1", "max_tokens": 0, "echo": true})).await;
    assert_eq!(
        (&none["choices"][0]["text"], &none["choices"][0]["finish_reason"]),
        (&json!("go1"), &json!("length"))
    );
    let chunks = show.events(path, json!({"prompt": "go0", "stream": true, "echo": true})).await;
    let text: String = chunks.iter().filter_map(|c| c["choices"].get(0)?["text"].as_str()).collect();
    assert_eq!(text, "go0red green blue black");
    for (body, name) in [
        (json!({}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": {"a": 1}}), "prompt"),
        (json!({"prompt": [99_999]}), "prompt"),
        (json!({"prompt": "go0", "suffix": "x"}), "suffix"),
        (json!({"prompt": "go0", "best_of": 3}), "best_of"),
    ] {
        let (status, answer) = show.post(path, body.clone()).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(name)), "{body}: {answer}");
    }
}

#[tokio::test]
async fn parameters_reach_the_model() {
    let show = Stage::new(&[RED, &["fine"]]).open();
    let id = show.ok("/tokenize", json!({"content": "<eos>"})).await["tokens"][0].clone();
    let biased = show.ok(CHAT, go(json!({"logit_bias": {id.to_string(): 100}}))).await;
    assert_eq!(biased["choices"][0]["message"]["content"], "");
    let hot = |seed: i64| go(json!({"temperature": 50.0, "seed": seed, "max_tokens": 8}));
    let text = |answer: Value| answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let (a, b, c) = (show.ok(CHAT, hot(1)).await, show.ok(CHAT, hot(1)).await, show.ok(CHAT, hot(2)).await);
    let (a, b, c) = (text(a), text(b), text(c));
    assert_eq!(a, b);
    assert_ne!(a, c);
}

const SPEAKS: &[&str] =
    &["<tool", "_call>", "{\"name\": \"f\", ", "\"arguments\": {\"a\"", ": [1]}}</tool_", "call>"];

#[tokio::test]
async fn calls_are_calls_streamed_or_not() {
    let show = Stage::new(&[SPEAKS]).open();
    let tools =
        json!([{"type": "function", "function": {"name": "f", "parameters": {}}}, {"type": "web_search"}]);
    let body = json!({"messages": [{"role": "user", "content": "go0"}], "tools": tools});
    let answer = show.ok(CHAT, body.clone()).await;
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &json!(null))
    );
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(
        (&call["type"], &call["function"]),
        (&json!("function"), &json!({"name": "f", "arguments": "{\"a\":[1]}"}))
    );
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let chunks = show.events(CHAT, streamed).await;
    let calls: Vec<&Value> =
        chunks.iter().filter_map(|c| c["choices"].get(0)?["delta"].get("tool_calls")).collect();
    assert_eq!(calls[0][0]["function"], json!({"name": "f", "arguments": ""}));
    assert!(calls[0][0]["id"].is_string() && calls[1..].iter().all(|call| call[0].get("id").is_none()));
    let arguments: String =
        calls.iter().filter_map(|call| call[0]["function"]["arguments"].as_str()).collect();
    assert_eq!((arguments.as_str(), finishes(&chunks)), ("{\"a\":[1]}", vec!["tool_calls"]));
    assert_eq!(contents(&chunks), "");

    let message = show.ok(
        "/v1/messages",
        json!({
            "messages": body["messages"], "max_tokens": 50, "tools": [{"name": "f", "input_schema": {}}],
        }),
    );
    let message = message.await;
    assert_eq!(
        (&message["stop_reason"], &message["content"][0]["input"]),
        (&json!("tool_use"), &json!({"a": [1]}))
    );
    let line = show.ok("/api/chat", {
        let mut body = body.clone();
        body["stream"] = json!(false);
        body
    });
    assert_eq!(line.await["message"]["tool_calls"][0]["function"]["arguments"], json!({"a": [1]}));
    // Cut off, it is no call.
    let mut cut = body.clone();
    cut["max_tokens"] = json!(4);
    let answer = show.ok(CHAT, cut).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert!(answer["choices"][0]["message"].get("tool_calls").is_none());
    // Without tools it is text.
    let text = show.ok(CHAT, go(json!({}))).await;
    assert_eq!(text["choices"][0]["message"]["content"], SPEAKS.concat());
}

#[tokio::test]
async fn a_schema_holds_on_every_surface() {
    let show = Stage::new(&[RED]).open();
    let schema = json!({"enum": ["fine"]});
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": schema}});
    let chat = show.ok(CHAT, go(json!({"response_format": format, "n": 2}))).await;
    for choice in chat["choices"].as_array().unwrap() {
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!("\"fine\""), &json!("stop"))
        );
    }
    let flat = json!({"type": "json_schema", "name": "n", "schema": schema});
    let message =
        show.ok("/v1/messages", go(json!({"max_tokens": 50, "output_config": {"format": flat}}))).await;
    assert_eq!(message["content"][0]["text"], "\"fine\"");
    let response = show.ok("/v1/responses", json!({"input": "go0", "text": {"format": flat}})).await;
    assert_eq!(response["output"][0]["content"][0]["text"], "\"fine\"");
    let line = show.ok("/api/chat", go(json!({"stream": false, "format": schema}))).await;
    assert_eq!(line["message"]["content"], "\"fine\"");
    // And the next request is free again.
    assert_eq!(show.ok(CHAT, go(json!({}))).await["choices"][0]["message"]["content"], RED.concat());
}

#[tokio::test]
async fn a_call_can_be_forced() {
    let show = Stage::new(&[RED]).open();
    let tool = |name: &str, value: &str| {
        let parameters = json!({
            "type": "object", "properties": {"a": {"enum": [value]}}, "required": ["a"], "additionalProperties": false,
        });
        json!({"type": "function", "function": {"name": name, "parameters": parameters}})
    };
    let tools = json!([tool("f", "x"), tool("g", "y")]);
    for (choice, name, arguments) in [
        (json!("required"), "f", "{\"a\":\"x\"}"),
        (json!({"type": "function", "function": {"name": "g"}}), "g", "{\"a\":\"y\"}"),
    ] {
        let answer = show.ok(CHAT, go(json!({"tools": tools, "tool_choice": choice}))).await;
        let function = json!({"name": name, "arguments": arguments});
        assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"], function, "{answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    }
    let own = json!([{"name": "f", "input_schema": tools[0]["function"]["parameters"]}]);
    let choice = json!({"type": "tool", "name": "f"});
    let message =
        show.ok("/v1/messages", go(json!({"max_tokens": 90, "tools": own, "tool_choice": choice}))).await;
    assert_eq!(
        (&message["stop_reason"], &message["content"][0]["input"]),
        (&json!("tool_use"), &json!({"a": "x"}))
    );
    let unknown = json!({"tools": tools, "tool_choice": {"type": "function", "function": {"name": "h"}}});
    assert_eq!(show.post(CHAT, go(unknown)).await.1["error"]["param"], "tool_choice");
}

#[tokio::test]
async fn schemas_of_common_libraries_are_taken() {
    let show = Stage::new(&[RED]).open();
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#", "title": "Answer", "type": "object",
        "$defs": {"Step": {"title": "Step", "type": "object", "required": ["text"], "additionalProperties": false,
                           "properties": {"text": {"title": "Text", "type": "string", "description": "d"}}}},
        "properties": {
            "steps": {"type": "array", "items": {"$ref": "#/$defs/Step"}, "default": []},
            "at": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
        },
        "required": ["steps", "at"], "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    show.ok(CHAT, go(json!({"response_format": format, "max_tokens": 3}))).await;
}
