//! Ollama's surface.

use serde_json::{Value, json};

use super::{Show, Stage, go};

const RED: &[&str] = &["red", " gr", "een"];

async fn lines(show: &Show, path: &str, body: Value) -> Vec<Value> {
    show.stream(path, body).await.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn chats_stream_by_default() {
    let show = Stage::new(&[RED]).open();
    let lines = lines(&show, "/api/chat", go(json!({"model": "scripted:latest"}))).await;
    let text: String = lines.iter().filter_map(|line| line["message"]["content"].as_str()).collect();
    assert_eq!(text, "red green");
    let (last, rest) = lines.split_last().unwrap();
    assert!(rest.iter().all(|line| line["done"] == false && line["model"] == "scripted:latest"));
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("stop")));
    assert_eq!((&last["prompt_eval_count"], &last["eval_count"]), (&json!(7), &json!(4)));
    assert!(0 < last["total_duration"].as_u64().unwrap());
    let whole = show.ok("/api/chat", go(json!({"stream": false, "options": {"num_predict": 2}}))).await;
    assert_eq!((&whole["message"]["content"], &whole["done_reason"]), (&json!("red gr"), &json!("length")));
    let endless = show.ok("/api/chat", go(json!({"stream": false, "options": {"num_predict": -1}}))).await;
    assert_eq!(endless["message"]["content"], "red green");
}

#[tokio::test]
async fn generate_answers_a_prompt() {
    let show = Stage::new(&[RED]).open();
    let body = |more: Value| {
        let mut body = json!({"model": "scripted", "prompt": "go0", "stream": false});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let answer = show.ok("/api/generate", body(json!({"system": "s"}))).await;
    assert_eq!((&answer["response"], &answer["prompt_eval_count"]), (&json!("red green"), &json!(17)));
    let raw = show.ok("/api/generate", body(json!({"raw": true, "options": {"stop": ["een"]}}))).await;
    assert_eq!((&raw["response"], &raw["prompt_eval_count"]), (&json!("red gr"), &json!(1)));
    let idle = show.ok("/api/generate", json!({"model": "scripted"})).await;
    assert_eq!((&idle["done"], &idle["done_reason"]), (&json!(true), &json!("load")));
    let gone = show.ok("/api/chat", json!({"model": "scripted", "messages": [], "keep_alive": 0})).await;
    assert_eq!(gone["done_reason"], "unload");
    for refused in [json!({"format": "yaml"}), json!({"suffix": "x"}), json!({"images": ["AAAA"]})] {
        let (status, answer) = show.post("/api/generate", body(refused)).await;
        assert!(status == 400 && answer["error"].is_string(), "{answer}");
    }
}

#[tokio::test]
async fn the_model_is_listed_and_shown() {
    let show = Stage::new(&[RED]).open();
    assert_eq!(show.get("/api/tags").await.1["models"][0]["name"], "scripted");
    assert_eq!(show.get("/api/ps").await.1["models"][0]["context_length"], 4096);
    assert!(show.get("/api/version").await.1["version"].is_string());
    for name in ["model", "name"] {
        let shown = show.ok("/api/show", json!({name: "scripted"})).await;
        assert_eq!(shown["model_info"]["script.context_length"], 4096);
        assert!(shown["capabilities"].as_array().unwrap().contains(&json!("completion")));
    }
    let pulled = lines(&show, "/api/pull", json!({"model": "scripted"})).await;
    assert_eq!(pulled.last(), Some(&json!({"status": "success"})));
    let (status, body) = show.post("/api/pull", json!({"model": "other", "stream": false})).await;
    assert_eq!((status.as_u16(), body), (404, json!({"error": "model 'other' not found"})));
    assert_eq!(show.post("/api/embed", json!({"model": "scripted", "input": "x"})).await.0, 501);
    let root = super::text_of(show.send(axum::http::Request::get("/").body("".into()).unwrap()).await).await;
    assert!(root.contains("Ollama is running"));
}
