//! OpenAI's messages, held to their types and brought into the form that templates know.

use serde_json::{Map, Value, json};

use crate::error::{Problem, Result};
use crate::fields::{Fields, wrong};

/// Reads `messages`.
pub fn read(fields: &Fields<'_>) -> Result<Vec<Value>> {
    let list = fields.array("messages")?;
    let list = list.ok_or_else(|| Problem::field("messages", "`messages` is missing"))?;
    if list.is_empty() {
        return Err(Problem::field("messages", "`messages` is empty; send at least one"));
    }
    let mut messages: Vec<Value> = Vec::with_capacity(list.len());
    for (i, item) in list.iter().enumerate() {
        let path = format!("messages[{i}]");
        let read = message(&Fields::at(item, &path)?, &messages)?;
        messages.push(read);
    }
    Ok(messages)
}

fn message(fields: &Fields<'_>, before: &[Value]) -> Result<Value> {
    let role = fields.text("role")?.ok_or_else(|| {
        let name = fields.name("role");
        Problem::field(name.clone(), format!("`{name}` is missing"))
    })?;
    let mut out = Map::new();
    let content = content(fields)?;
    match role {
        "system" | "developer" => out.insert("role".into(), json!("system")),
        "user" | "assistant" => out.insert("role".into(), json!(role)),
        "tool" | "function" => out.insert("role".into(), json!("tool")),
        other => {
            let name = fields.name("role");
            let message =
                format!("`{name}` should be system, developer, user, assistant or tool, not `{other}`");
            return Err(Problem::field(name, message));
        }
    };
    out.insert("content".into(), json!(content));
    if role == "assistant" {
        if let Some(reasoning) = ["reasoning_content", "reasoning", "thinking"]
            .into_iter()
            .find_map(|name| fields.get(name)?.as_str().filter(|text| !text.is_empty()))
        {
            out.insert("reasoning_content".into(), json!(reasoning));
        }
        let calls = calls(fields)?;
        if !calls.is_empty() {
            out.insert("tool_calls".into(), json!(calls));
        }
    }
    let id = fields.text("tool_call_id")?;
    if let Some(id) = id {
        out.insert("tool_call_id".into(), json!(id));
    }
    // Some templates name the function beside its result, which clients leave out.
    let named = fields.text("name")?.or(fields.text("tool_name")?);
    if let Some(name) = named.or_else(|| called(before, id?)) {
        out.insert("name".into(), json!(name));
    }
    Ok(Value::Object(out))
}

/// The function that the call with this id named.
fn called<'a>(before: &'a [Value], id: &str) -> Option<&'a str> {
    let calls = before.iter().rev().filter_map(|message| message.get("tool_calls")?.as_array()).flatten();
    calls.into_iter().find(|call| call["id"] == id)?["function"]["name"].as_str()
}

fn calls(fields: &Fields<'_>) -> Result<Vec<Value>> {
    let mut calls = Vec::new();
    for (i, item) in fields.array("tool_calls")?.unwrap_or_default().iter().enumerate() {
        let path = fields.name(&format!("tool_calls[{i}]"));
        let call = Fields::at(item, &path)?;
        let function = call.get("function").ok_or_else(|| {
            Problem::field(format!("{path}.function"), format!("`{path}.function` is missing"))
        })?;
        let path = format!("{path}.function");
        let function = Fields::at(function, &path)?;
        let name = function.text("name")?.unwrap_or_default();
        let function = json!({"name": name, "arguments": arguments(function.get("arguments"))});
        calls.push(json!({"type": "function", "id": call.text("id")?, "function": function}));
    }
    if let (true, Some(legacy)) = (calls.is_empty(), fields.object("function_call")?) {
        let function = json!({"name": legacy.get("name"), "arguments": arguments(legacy.get("arguments"))});
        calls.push(json!({"type": "function", "function": function}));
    }
    Ok(calls)
}

/// Templates want an object. A text that is none, as of a call that was cut off, stays a text.
fn arguments(given: Option<&Value>) -> Value {
    match given {
        None => json!({}),
        Some(Value::String(text)) if text.trim().is_empty() => json!({}),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(value @ Value::Object(_)) => value,
            _ => json!(text),
        },
        Some(other) => other.clone(),
    }
}

fn content(fields: &Fields<'_>) -> Result<String> {
    match fields.get("content") {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => join_parts(parts, &fields.name("content"), MessageParts { between: "" }),
        Some(other) => Err(wrong(&fields.name("content"), "a string or an array of parts", other)),
    }
}

/// How the texts of several parts become one.
#[derive(Clone, Copy)]
pub struct MessageParts {
    pub between: &'static str,
}

/// The text of content parts. Other kinds are refused by name.
pub fn join_parts(parts: &[Value], path: &str, style: MessageParts) -> Result<String> {
    let mut texts: Vec<String> = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let place = format!("{path}[{i}]");
        if let Some(text) = part.as_str() {
            texts.push(text.to_owned());
            continue;
        }
        let part = Fields::at(part, &place)?;
        match part.text("type")?.unwrap_or("text") {
            "text" | "input_text" | "output_text" | "summary_text" | "reasoning_text" => {
                texts.push(part.text("text")?.unwrap_or_default().to_owned());
            }
            "refusal" => texts.push(part.text("refusal")?.unwrap_or_default().to_owned()),
            other => {
                let message = format!("`{place}`: the model reads text, not `{other}`; leave this part out");
                return Err(Problem::field(place.clone(), message));
            }
        }
    }
    Ok(texts.join(style.between))
}
