//! Anthropic's surface.

use serde_json::{Value, json};

use super::{Stage, go};
use crate::error::Dialect;

const PATH: &str = "/v1/messages";
const RED: &[&str] = &["red", " gr", "een", " bl", "ue"];

#[tokio::test]
async fn a_whole_message_has_its_blocks_and_usage() {
    let show = Stage::new(&[RED]).open();
    let answer = show
        .ok(PATH, go(json!({"model": "claude-x", "max_tokens": 100, "thinking": {"type": "adaptive"}})))
        .await;
    assert!(answer["id"].as_str().unwrap().starts_with("msg_"));
    let expect = json!({
        "id": answer["id"], "type": "message", "role": "assistant", "model": "claude-x",
        "content": [{"type": "text", "text": "red green blue"}], "stop_reason": "end_turn", "stop_sequence": null,
        "usage": {
            "input_tokens": 7, "output_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        },
    });
    assert_eq!(answer, expect);
    let cut = show.ok(PATH, go(json!({"max_tokens": 2}))).await;
    assert_eq!((&cut["stop_reason"], &cut["content"][0]["text"]), (&json!("max_tokens"), &json!("red gr")));
    let stopped = show.ok(PATH, go(json!({"stop_sequences": ["zz", "n b"]}))).await;
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!("n b"))
    );
    assert_eq!(stopped["content"][0]["text"], "red gree");
}

#[tokio::test]
async fn events_come_in_order_and_say_the_same() {
    let show = Stage::new(&[RED]).open();
    let events = show.events("/v1/messages?beta=true", go(json!({"max_tokens": 9, "stream": true}))).await;
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let deltas = ["content_block_delta"; 5];
    let expect = [
        &["message_start", "ping", "content_block_start"][..],
        &deltas,
        &["content_block_stop", "message_delta", "message_stop"],
    ];
    assert_eq!(kinds, expect.concat());
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], 7);
    let text: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(text, "red green blue");
    let end = &events[events.len() - 2];
    assert_eq!(
        (&end["delta"]["stop_reason"], &end["usage"]["output_tokens"]),
        (&json!("end_turn"), &json!(6))
    );
}

async fn prompt(show: &super::Show, body: Value) -> String {
    use crate::fields::Fields;
    let (conversation, _) = crate::anthropic::conversation(&Fields::root(body.as_object().unwrap())).unwrap();
    crate::chat::render(&show.app, conversation).await.unwrap().text
}

#[tokio::test]
async fn conversations_are_read() {
    let show = Stage::new(&[RED]).open();
    let body = json!({
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc;"},
            {"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "B"},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x-anthropic-billing-header: mine"}]},
            {"role": "system", "content": "C"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "?"},
                {"type": "text", "text": "calling"}, {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "text", "text": "and"},
                {"type": "tool_result", "tool_use_id": "t1", "is_error": true, "content": [{"type": "text", "text": "no file"}]},
            ]},
            {"role": "system", "content": "late"},
            {"role": "user", "content": "go0"},
        ],
    });
    let expect = "system: A\nB\nC;user: x-anthropic-billing-header: mine;assistant: calling;tool: Error: no file;\
                  user: and;user: <system-reminder>\nlate\n</system-reminder>;user: go0";
    assert_eq!(prompt(&show, body.clone()).await, expect);
    let count = show.ok("/v1/messages/count_tokens", body.clone()).await;
    let answer = show.ok(PATH, body).await;
    assert_eq!(count["input_tokens"], answer["usage"]["input_tokens"]);
}

#[tokio::test]
async fn tools_are_offered_and_an_answer_is_gone_on_with() {
    let show = Stage::new(&[RED]).open();
    let tools = json!([
        {"name": "f", "description": "d", "input_schema": {"type": "object"}},
        {"name": "later", "defer_loading": true, "input_schema": {}},
        {"type": "web_search_20250305", "name": "web_search"},
    ]);
    let text = prompt(&show, go(json!({"tools": tools}))).await;
    assert!(
        text.contains("\"name\": \"f\"") && !text.contains("later") && !text.contains("web_search"),
        "{text}"
    );
    let none = prompt(&show, go(json!({"tools": tools, "tool_choice": {"type": "none"}}))).await;
    assert_eq!(none, "user: go0");
    let begun =
        json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "so go0"}]});
    assert_eq!(prompt(&show, begun).await, "user: x;assistant: so go0");
}

#[tokio::test]
async fn errors_are_in_anthropics_words() {
    let show = Stage { context: 64, ..Stage::new(&[RED]) }.open();
    let long = json!({"messages": [{"role": "user", "content": "x".repeat(74)}], "max_tokens": 5});
    let (status, body) = show.post(PATH, long).await;
    assert_eq!((status.as_u16(), &body["type"]), (400, &json!("error")));
    let error =
        json!({"type": "invalid_request_error", "message": "prompt is too long: 80 tokens > 64 maximum"});
    assert_eq!(body["error"], error);
    for (fields, name) in [
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}), "image"),
        (json!({"max_tokens": -5}), "max_tokens"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"output_config": {"format": {"type": "poem"}}}), "output_config.format"),
    ] {
        let (status, body) = show.post(PATH, go(fields.clone())).await;
        let message = body["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(name), "{fields}: {body}");
    }
    assert_eq!(Dialect::of("/v1/messages/count_tokens"), Dialect::Anthropic);
    assert_eq!(Dialect::of("/v1/messagesx"), Dialect::OpenAi);
}

#[test]
fn blocks_never_overlap() {
    use crate::anthropic::Blocks;
    use crate::output::Piece::{Content, Reasoning, ToolArguments, ToolEnd, ToolStart};
    let start = |index: usize| ToolStart { index, id: format!("t{index}"), name: "f".into() };
    let argument = |index, text: &str| ToolArguments { index, fragment: text.into() };
    let pieces = vec![
        Reasoning("hm".into()),
        Content("\n".into()),
        start(0),
        argument(0, "{\"a\""),
        argument(0, ":1}"),
        ToolEnd { index: 0 },
        Content("\n".into()),
        start(1),
        argument(1, "{\"cut"),
    ];
    let mut blocks = Blocks::default();
    let mut events: Vec<Value> = pieces.into_iter().flat_map(|piece| blocks.push(piece)).collect();
    events.extend(blocks.close());
    let mut open = None;
    for event in &events {
        match event["type"].as_str().unwrap() {
            "content_block_start" => assert_eq!(open.replace(event["index"].clone()), None),
            "content_block_delta" => assert_eq!(open.as_ref(), Some(&event["index"])),
            _ => assert_eq!(open.take().as_ref(), Some(&event["index"])),
        }
    }
    assert_eq!(open, None);
    let done = json!([
        {"type": "thinking", "thinking": "hm", "signature": "forerun"},
        {"type": "tool_use", "id": "t0", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
    ]);
    assert_eq!(json!(blocks.done), done);
}
