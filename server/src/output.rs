//! What an answer's text is made of: content, reasoning between `<think>` tags, and calls as JSON between
//! `<tool_call>` tags.
//!
//! Tags are looked for only where they can be meant: reasoning where the vocabulary has the tag, calls where the
//! request has tools. Text that fails to be a call is content, so that nothing is lost.

use std::mem;

use engine::text::Tokenizer;
use serde_json::Value;

use crate::ids;

/// A part of an answer. Fragments of one call's arguments join to one JSON text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Content(String),
    Reasoning(String),
    ToolStart { index: usize, id: String, name: String },
    ToolArguments { index: usize, fragment: String },
    ToolEnd { index: usize },
}

/// How the answer to a request is to be read.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// The declared tools, as the template sees them.
    pub tools: Vec<Value>,
    /// The rendered prompt, whose end says whether the answer begins inside reasoning.
    pub prompt: String,
}

const THINK: &str = "<think>";
const THOUGHT: &str = "</think>";
pub const CALL: &str = "<tool_call>";
pub const CALLED: &str = "</tool_call>";

impl Output {
    pub fn splitter(&self, tokenizer: &Tokenizer) -> Splitter {
        self.split_by(tokenizer.token_id(THINK).is_some())
    }

    /// Whether the answer begins inside reasoning.
    pub fn is_open(&self) -> bool {
        self.prompt.rfind(THINK).is_some_and(|at| !self.prompt[at..].contains(THOUGHT))
    }

    fn split_by(&self, thinks: bool) -> Splitter {
        let open = thinks && self.is_open();
        let name = |tool: &Value| Some(tool["function"]["name"].as_str()?.to_owned());
        Splitter {
            thinks,
            tools: self.tools.iter().filter_map(name).collect(),
            state: if open { State::Reasoning } else { State::Content },
            held: String::new(),
            seen: 0,
            trim: open,
            calls: 0,
        }
    }
}

/// Splits text into pieces as it comes.
pub struct Splitter {
    thinks: bool,
    /// Names of the declared tools.
    tools: Vec<String>,
    state: State,
    /// Text that may yet become a tag, or is inside a call.
    held: String,
    /// Bytes of it that hold no tag's beginning, so that a long call is looked through once.
    seen: usize,
    /// Whether white space is dropped, as after a tag.
    trim: bool,
    calls: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Content,
    Reasoning,
    Call,
}

impl Splitter {
    /// Whether tags are looked for in the text.
    pub fn is_active(&self) -> bool {
        self.thinks || !self.tools.is_empty()
    }

    /// Whether what comes next is reasoning.
    pub fn is_reasoning(&self) -> bool {
        self.state == State::Reasoning
    }

    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.held.push_str(text);
        while let Some((at, tag)) = self.tag() {
            let rest = self.held.split_off(at + tag.len());
            self.held.truncate(at);
            let before = mem::replace(&mut self.held, rest);
            if self.state == State::Call {
                self.call(&mut pieces, &before, CALLED);
                self.state = State::Content;
            } else {
                self.text(&mut pieces, before);
                self.state = match tag {
                    THINK => State::Reasoning,
                    CALL => State::Call,
                    _ => State::Content,
                };
            }
            self.trim = true;
            self.seen = 0;
        }
        let keep = match self.state {
            State::Call => self.held.len(),
            _ => self.tags().iter().map(|tag| overlap(&self.held, tag)).max().unwrap_or(0),
        };
        if self.state == State::Call {
            self.seen = self.held.len() - overlap(&self.held, CALLED);
        }
        let rest = self.held.split_off(self.held.len() - keep);
        let text = mem::replace(&mut self.held, rest);
        self.text(&mut pieces, text);
        pieces
    }

    /// What was held back, when no more text comes.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let held = mem::take(&mut self.held);
        match self.state {
            State::Call => self.call(&mut pieces, &held, ""),
            _ => self.text(&mut pieces, held),
        }
        pieces
    }

    /// The tags that mean something now.
    fn tags(&self) -> &'static [&'static str] {
        match (self.state, self.thinks, !self.tools.is_empty()) {
            (State::Call, ..) => &[CALLED],
            (State::Content, true, true) => &[THINK, CALL],
            (State::Content, true, false) => &[THINK],
            (State::Content, false, true) => &[CALL],
            (State::Content, false, false) => &[],
            // A call may be made in the middle of a thought.
            (State::Reasoning, _, true) => &[THOUGHT, CALL],
            (State::Reasoning, _, false) => &[THOUGHT],
        }
    }

    /// The first tag in the text.
    fn tag(&self) -> Option<(usize, &'static str)> {
        let found =
            self.tags().iter().filter_map(|tag| Some((self.seen + self.held[self.seen..].find(tag)?, *tag)));
        found.min_by_key(|(at, _)| *at)
    }

    fn text(&mut self, pieces: &mut Vec<Piece>, text: String) {
        let text = if self.trim { text.trim_start().to_owned() } else { text };
        if text.is_empty() {
            return;
        }
        self.trim = false;
        pieces.push(match self.state {
            State::Reasoning => Piece::Reasoning(text),
            _ => Piece::Content(text),
        });
    }

    /// A call, or its text as content if it is none.
    fn call(&mut self, pieces: &mut Vec<Piece>, body: &str, end: &str) {
        let Some((name, arguments)) = self.parsed(body) else {
            tracing::warn!("what stands as a tool call is none; it is given as text");
            pieces.push(Piece::Content(format!("{CALL}{body}{end}")));
            return;
        };
        let index = self.calls;
        self.calls += 1;
        pieces.push(Piece::ToolStart { index, id: ids::fresh("call_"), name });
        pieces.push(Piece::ToolArguments { index, fragment: arguments });
        pieces.push(Piece::ToolEnd { index });
    }

    fn parsed(&self, body: &str) -> Option<(String, String)> {
        let call: Value = serde_json::from_str(body.trim()).ok()?;
        let name = call.get("name")?.as_str()?;
        let arguments = call.get("arguments").or(call.get("parameters"));
        let arguments = match arguments {
            None => "{}".to_owned(),
            Some(Value::String(text)) => serde_json::from_str::<Value>(text).ok()?.to_string(),
            Some(value @ Value::Object(_)) => value.to_string(),
            Some(_) => return None,
        };
        self.tools.iter().any(|tool| tool == name).then(|| (name.to_owned(), arguments))
    }
}

/// Bytes at the end of `text` that begin `tag`.
fn overlap(text: &str, tag: &str) -> usize {
    let most = text.len().min(tag.len() - 1);
    (1..=most).rev().find(|&n| text.as_bytes().ends_with(&tag.as_bytes()[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Content, reasoning, and calls of `text`, however it is cut.
    #[track_caller]
    fn check(
        prompt: &str,
        tools: &[&str],
        text: &str,
        content: &str,
        reasoning: &str,
        calls: &[(&str, &str)],
    ) {
        let tool = |name: &&str| json!({"type": "function", "function": {"name": name}});
        let output = Output { tools: tools.iter().map(tool).collect(), prompt: prompt.into() };
        for n in [1, 2, 3, 7, text.len().max(1)] {
            let mut splitter = output.split_by(true);
            let chars: Vec<char> = text.chars().collect();
            let mut pieces: Vec<Piece> =
                chars.chunks(n).flat_map(|part| splitter.push(&part.iter().collect::<String>())).collect();
            pieces.extend(splitter.finish());
            let mut all = crate::session::Gathered::default();
            all.add(pieces);
            let found: Vec<(&str, &str)> =
                all.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
            assert_eq!(
                (all.content.as_str(), all.reasoning.as_str(), &found[..]),
                (content, reasoning, calls),
                "by {n}"
            );
        }
    }

    const READ: &str = "<tool_call>\n{\"name\": \"read\", \"arguments\": {\"path\": \"a.rs\"}}\n</tool_call>";

    #[test]
    fn reasoning_is_told_from_content() {
        check("", &[], "<think>\nhmm 2+2</think>\n\nIt is 4 < 5.", "It is 4 < 5.", "hmm 2+2", &[]);
        check("go<think>\n", &[], "hmm</think>4", "4", "hmm", &[]);
        check("<think></think>", &[], "4 <thin", "4 <thin", "", &[]);
        check("go<think>", &[], "never ends", "", "never ends", &[]);
    }

    #[test]
    fn calls_are_told_from_content() {
        let read = ("read", "{\"path\":\"a.rs\"}");
        check("", &["read"], &format!("Reading.\n{READ}"), "Reading.\n", "", &[read]);
        check("", &["read"], &format!("{READ}\n{READ}"), "", "", &[read, read]);
        check("", &["read"], &format!("<think>so {READ}"), "", "so ", &[read]);
        // Without tools, and for a tool that isn't there, it is text.
        check("", &[], READ, READ, "", &[]);
        check("", &["write"], READ, READ, "", &[]);
        let cut = "<tool_call>\n{\"name\": \"read\", \"argum";
        check("", &["read"], cut, cut, "", &[]);
    }
}
