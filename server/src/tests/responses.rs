//! The Responses surface.

use serde_json::{Value, json};

use super::Stage;

const PATH: &str = "/v1/responses";
const RED: &[&str] = &["red", " gr", "een"];

#[tokio::test]
async fn a_whole_response_is_kept_and_gone_on_from() {
    let show = Stage::new(&[RED, &["fine"]]).open();
    let first = show.ok(PATH, json!({"model": "m", "input": "go0", "instructions": "be good"})).await;
    assert_eq!((&first["object"], &first["status"]), (&json!("response"), &json!("completed")));
    let item = &first["output"][0];
    assert!(item["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(
        item["content"][0],
        json!({"type": "output_text", "text": "red green", "annotations": [], "logprobs": []})
    );
    // `system: be good;user: ` and `go0`.
    assert_eq!(
        first["usage"],
        json!({
            "input_tokens": 23, "output_tokens": 4, "total_tokens": 27,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        })
    );
    let id = first["id"].as_str().unwrap();
    let (_, kept) = show.get(&format!("{PATH}/{id}")).await;
    assert_eq!(kept, first);

    let second = show.ok(PATH, json!({"input": "go1", "previous_response_id": id})).await;
    assert_eq!(second["output"][0]["content"][0]["text"], "fine");
    // `user: go0;assistant: red green;user: go1`
    assert_eq!(second["usage"]["input_tokens"], 7 + 1 + 20 + 1 + 7);
    let path = format!("{PATH}/{}/input_items", second["id"].as_str().unwrap());
    let (_, items) = show.get(&path).await;
    assert_eq!(items["data"].as_array().unwrap().len(), 3);

    let gone = axum::http::Request::delete(format!("{PATH}/{id}")).body("".into()).unwrap();
    assert_eq!(show.send(gone).await.status(), 200);
    assert_eq!(show.get(&format!("{PATH}/{id}")).await.0, 404);
    let (status, body) = show.post(PATH, json!({"input": "x", "previous_response_id": id})).await;
    assert_eq!((status.as_u16(), &body["error"]["param"]), (400, &json!("previous_response_id")));
    let passing = show.ok(PATH, json!({"input": "go0", "store": false})).await;
    assert_eq!(show.get(&format!("{PATH}/{}", passing["id"].as_str().unwrap())).await.0, 404);
}

#[tokio::test]
async fn events_are_numbered_and_join_to_the_response() {
    let show = Stage::new(&[RED]).open();
    let events = show.events(PATH, json!({"input": "go0", "stream": true})).await;
    let kinds: Vec<&str> =
        events.iter().map(|e| e["type"].as_str().unwrap().trim_start_matches("response.")).collect();
    assert_eq!(
        kinds,
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ]
    );
    assert!(events.iter().enumerate().all(|(i, event)| event["sequence_number"] == i));
    let text: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    let response = &events.last().unwrap()["response"];
    assert_eq!(response["output"][0]["content"][0]["text"], json!(text));
    assert_eq!(events[2]["item"]["id"], response["output"][0]["id"]);
    let cut = show.events(PATH, json!({"input": "go0", "stream": true, "max_output_tokens": 2})).await;
    let last = cut.last().unwrap();
    assert_eq!(
        (&last["type"], &last["response"]["status"]),
        (&json!("response.incomplete"), &json!("incomplete"))
    );
    assert_eq!(last["response"]["incomplete_details"]["reason"], "max_output_tokens");
}

#[tokio::test]
async fn what_codex_sends_is_read() {
    let show = Stage::new(&[RED]).open();
    let tools = json!([
        {"type": "function", "name": "shell", "description": "d", "parameters": {"type": "object"}, "strict": false},
        {"type": "web_search"}, {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
        {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "close", "parameters": {}}]},
    ]);
    let input = json!([
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "A"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "B"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": null},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "C"}]},
        {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{\"cmd\": 1}"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "D"}]},
        {"type": "something_new", "x": 1},
        {"role": "user", "content": "go0"},
    ]);
    let body = json!({
        "input": input, "tools": tools, "tool_choice": "auto", "parallel_tool_calls": true, "store": false,
        "reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"], "client_metadata": {},
        "prompt_cache_key": "k",
    });
    let answer = show.ok(PATH, body.clone()).await;
    assert_eq!(answer["output"][0]["content"][0]["text"], "red green");
    let store = super::super::openai::responses::Store::default();
    let fields = crate::fields::Fields::root(body.as_object().unwrap());
    let input = crate::openai::responses::Input::read(&fields, &store).unwrap();
    let text = crate::chat::render(&show.app, input.conversation()).await.unwrap().text;
    assert!(text.ends_with("system: A;user: B;assistant: C;tool: D;user: go0"), "{text}");
    assert!(text.contains("shell") && text.contains("close") && !text.contains("apply_patch"), "{text}");
}

#[test]
fn calls_in_a_namespace_say_so() {
    use crate::openai::responses::Items;
    use crate::output::Piece;
    let mut items = Items::new([("close".to_owned(), "agents".to_owned())].into());
    let pieces = [
        Piece::Reasoning("hm".into()),
        Piece::ToolStart { index: 0, id: "call_1".into(), name: "close".into() },
        Piece::ToolArguments { index: 0, fragment: "{}".into() },
        Piece::ToolEnd { index: 0 },
    ];
    let events: Vec<Value> = pieces.into_iter().flat_map(|piece| items.push(piece)).collect();
    let call = &items.done[1];
    assert_eq!(
        *call,
        json!({
            "id": call["id"], "type": "function_call", "status": "completed", "call_id": "call_1", "name": "close",
            "arguments": "{}", "namespace": "agents",
        })
    );
    assert!(call["id"].as_str().unwrap().starts_with("fc_"));
    assert_eq!(items.done[0]["summary"][0]["text"], "hm");
    assert_eq!(events.last().unwrap()["item"], *call);
}

#[tokio::test]
async fn failures_are_told_in_the_stream() {
    let show = Stage { fault: Some(" gr"), ..Stage::new(&[RED]) }.open();
    let events = show.events(PATH, json!({"input": "go0", "stream": true})).await;
    let last = events.last().unwrap();
    assert_eq!(
        (&last["type"], &last["response"]["error"]["code"]),
        (&json!("response.failed"), &json!("server_error"))
    );
    for (body, name) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": 5}), "input"),
        (json!({"input": "x", "background": true}), "background"),
        (json!({"input": "x", "text": {"format": {"type": "poem"}}}), "text.format"),
    ] {
        let (status, answer) = show.post(PATH, body.clone()).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(name)), "{body}");
    }
}
