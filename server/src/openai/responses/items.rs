//! An answer as output items: the events that tell of them, and the items themselves.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::ids;
use crate::output::Piece;

pub struct Items {
    pub done: Vec<Value>,
    open: Option<Open>,
    namespaces: HashMap<String, String>,
}

struct Open {
    id: String,
    kind: Of,
    text: String,
}

enum Of {
    Message,
    Reasoning,
    Call { index: usize, call_id: String, name: String },
}

impl Items {
    pub fn new(namespaces: HashMap<String, String>) -> Self {
        Self { done: Vec::new(), open: None, namespaces }
    }

    /// Takes a piece; returns its events.
    pub fn push(&mut self, piece: Piece) -> Vec<Value> {
        let mut events = Vec::new();
        match piece {
            Piece::Content(text) => {
                let is_open = matches!(&self.open, Some(Open { kind: Of::Message, .. }));
                if text.is_empty() || (text.trim().is_empty() && !is_open) {
                    return events;
                }
                if !is_open {
                    self.begin(&mut events, "msg_", Of::Message);
                }
                self.grow(&mut events, &text);
            }
            Piece::Reasoning(text) => {
                if text.is_empty() {
                    return events;
                }
                if !matches!(&self.open, Some(Open { kind: Of::Reasoning, .. })) {
                    self.begin(&mut events, "rs_", Of::Reasoning);
                }
                self.grow(&mut events, &text);
            }
            Piece::ToolStart { index, id, name } => {
                self.begin(&mut events, "fc_", Of::Call { index, call_id: id, name });
            }
            Piece::ToolArguments { index, fragment } => {
                if matches!(&self.open, Some(Open { kind: Of::Call { index: open, .. }, .. }) if *open == index)
                {
                    self.grow(&mut events, &fragment);
                }
            }
            Piece::ToolEnd { .. } => events.extend(self.close(false)),
        }
        events
    }

    fn begin(&mut self, events: &mut Vec<Value>, prefix: &str, kind: Of) {
        events.extend(self.close(false));
        let at = self.done.len();
        let open = Open { id: ids::fresh(prefix), kind, text: String::new() };
        events.push(json!({
            "type": "response.output_item.added", "output_index": at, "item": self.item(&open, "in_progress", true),
        }));
        match open.kind {
            Of::Message => events.push(json!({
                "type": "response.content_part.added", "item_id": open.id, "output_index": at, "content_index": 0,
                "part": text_part(""),
            })),
            Of::Reasoning => events.push(json!({
                "type": "response.reasoning_summary_part.added", "item_id": open.id, "output_index": at,
                "summary_index": 0, "part": {"type": "summary_text", "text": ""},
            })),
            Of::Call { .. } => {}
        }
        self.open = Some(open);
    }

    fn grow(&mut self, events: &mut Vec<Value>, text: &str) {
        let at = self.done.len();
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        let mut event = json!({"type": "", "item_id": open.id, "output_index": at, "delta": text});
        match open.kind {
            Of::Message => {
                event["type"] = json!("response.output_text.delta");
                event["content_index"] = json!(0);
                event["logprobs"] = json!([]);
            }
            Of::Reasoning => {
                event["type"] = json!("response.reasoning_summary_text.delta");
                event["summary_index"] = json!(0);
            }
            Of::Call { .. } => event["type"] = json!("response.function_call_arguments.delta"),
        }
        events.push(event);
    }

    /// Ends the open item, if any.
    pub fn close(&mut self, cut: bool) -> Vec<Value> {
        let Some(open) = self.open.take() else { return Vec::new() };
        let (at, id, text) = (self.done.len(), &open.id, &open.text);
        let item = self.item(&open, if cut { "incomplete" } else { "completed" }, false);
        let mut events = match &open.kind {
            Of::Message => vec![
                json!({
                    "type": "response.output_text.done", "item_id": id, "output_index": at, "content_index": 0,
                    "text": text, "logprobs": [],
                }),
                json!({
                    "type": "response.content_part.done", "item_id": id, "output_index": at, "content_index": 0,
                    "part": text_part(text),
                }),
            ],
            Of::Reasoning => vec![
                json!({
                    "type": "response.reasoning_summary_text.done", "item_id": id, "output_index": at,
                    "summary_index": 0, "text": text,
                }),
                json!({
                    "type": "response.reasoning_summary_part.done", "item_id": id, "output_index": at,
                    "summary_index": 0, "part": {"type": "summary_text", "text": text},
                }),
            ],
            Of::Call { name, .. } => vec![json!({
                "type": "response.function_call_arguments.done", "item_id": id, "output_index": at, "name": name,
                "arguments": text,
            })],
        };
        events.push(json!({"type": "response.output_item.done", "output_index": at, "item": item}));
        self.done.push(item);
        events
    }

    fn item(&self, open: &Open, status: &str, empty: bool) -> Value {
        match &open.kind {
            Of::Message => {
                let content = if empty { json!([]) } else { json!([text_part(&open.text)]) };
                json!({
                    "id": open.id, "type": "message", "status": status, "role": "assistant", "content": content,
                })
            }
            Of::Reasoning => {
                let summary = json!([{"type": "summary_text", "text": open.text}]);
                let summary = if empty { json!([]) } else { summary };
                json!({"id": open.id, "type": "reasoning", "summary": summary, "encrypted_content": null})
            }
            Of::Call { call_id, name, .. } => {
                let mut item = json!({
                    "id": open.id, "type": "function_call", "status": status, "call_id": call_id, "name": name,
                    "arguments": open.text,
                });
                if let Some(namespace) = self.namespaces.get(name) {
                    item["namespace"] = json!(namespace);
                }
                item
            }
        }
    }
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}
