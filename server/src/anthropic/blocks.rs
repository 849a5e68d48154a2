//! An answer as content blocks: the events that tell of them, and the blocks themselves.
//!
//! Blocks never overlap: one is closed before the next is opened, and none is opened before it has content.

use serde_json::{Value, json};

use crate::output::Piece;

#[derive(Default)]
pub struct Blocks {
    pub done: Vec<Value>,
    open: Option<Open>,
}

enum Open {
    Text(String),
    Thinking(String),
    Tool { index: usize, id: String, name: String, arguments: String },
}

/// Clients send a thought back with its signature, and refuse an empty one.
const SIGNATURE: &str = "forerun";

impl Blocks {
    /// Takes a piece; returns its events.
    pub fn push(&mut self, piece: Piece) -> Vec<Value> {
        let mut events = Vec::new();
        match piece {
            Piece::Content(text) => self.text(&mut events, text),
            Piece::Reasoning(text) => self.thinking(&mut events, text),
            Piece::ToolStart { index, id, name } => {
                let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.begin(&mut events, Open::Tool { index, id, name, arguments: String::new() }, block);
            }
            Piece::ToolArguments { index, fragment } => {
                if let Some(Open::Tool { index: open, arguments, .. }) = &mut self.open
                    && *open == index
                {
                    arguments.push_str(&fragment);
                    let delta = json!({"type": "input_json_delta", "partial_json": fragment});
                    events.push(self.delta(delta));
                }
            }
            Piece::ToolEnd { .. } => events.extend(self.close()),
        }
        events
    }

    fn text(&mut self, events: &mut Vec<Value>, text: String) {
        // White space between two calls is no block of its own.
        if text.is_empty() || (text.trim().is_empty() && !matches!(self.open, Some(Open::Text(_)))) {
            return;
        }
        if !matches!(self.open, Some(Open::Text(_))) {
            self.begin(events, Open::Text(String::new()), json!({"type": "text", "text": ""}));
        }
        events.push(self.delta(json!({"type": "text_delta", "text": text})));
        if let Some(Open::Text(all)) = &mut self.open {
            all.push_str(&text);
        }
    }

    fn thinking(&mut self, events: &mut Vec<Value>, text: String) {
        if text.is_empty() {
            return;
        }
        if !matches!(self.open, Some(Open::Thinking(_))) {
            let block = json!({"type": "thinking", "thinking": "", "signature": ""});
            self.begin(events, Open::Thinking(String::new()), block);
        }
        events.push(self.delta(json!({"type": "thinking_delta", "thinking": text})));
        if let Some(Open::Thinking(all)) = &mut self.open {
            all.push_str(&text);
        }
    }

    fn begin(&mut self, events: &mut Vec<Value>, open: Open, block: Value) {
        events.extend(self.close());
        events.push(json!({"type": "content_block_start", "index": self.done.len(), "content_block": block}));
        self.open = Some(open);
    }

    fn delta(&self, delta: Value) -> Value {
        json!({"type": "content_block_delta", "index": self.done.len(), "delta": delta})
    }

    /// Ends the open block, if any.
    pub fn close(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        let block = match self.open.take() {
            None => return events,
            Some(Open::Text(text)) => json!({"type": "text", "text": text}),
            Some(Open::Thinking(text)) => {
                events.push(self.delta(json!({"type": "signature_delta", "signature": SIGNATURE})));
                json!({"type": "thinking", "thinking": text, "signature": SIGNATURE})
            }
            Some(Open::Tool { id, name, arguments, .. }) => {
                let input = serde_json::from_str(&arguments).ok().filter(Value::is_object);
                json!({"type": "tool_use", "id": id, "name": name, "input": input.unwrap_or_else(|| json!({}))})
            }
        };
        events.push(json!({"type": "content_block_stop", "index": self.done.len()}));
        self.done.push(block);
        events
    }
}
