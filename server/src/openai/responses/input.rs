//! Input items in the form that templates know.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::store::Store;
use super::{Kind, Problem, Result};
use crate::chat::{Conversation, effort_kwargs, template_kwargs};
use crate::fields::{Fields, wrong};
use crate::openai::{Choice, MessageParts, Tools, join_parts};

const LINES: MessageParts = MessageParts { between: "\n" };

pub struct Input {
    /// As they came, those of the response before included.
    pub items: Vec<Value>,
    messages: Vec<Value>,
    kwargs: serde_json::Map<String, Value>,
    pub tools: Tools,
    /// The namespace of each tool that has one.
    pub namespaces: HashMap<String, String>,
}

impl Input {
    pub fn read(fields: &Fields<'_>, store: &Store) -> Result<Self> {
        let mut items = before(fields, store)?;
        match fields.get("input") {
            None => return Err(Problem::field("input", "`input` is missing")),
            Some(Value::String(text)) => {
                let content = json!([{"type": "input_text", "text": text}]);
                items.push(json!({"type": "message", "role": "user", "content": content}));
            }
            Some(Value::Array(list)) => items.extend(list.iter().cloned()),
            Some(other) => return Err(wrong("input", "a string or an array of items", other)),
        }
        let mut messages = Vec::new();
        if let Some(text) = fields.text("instructions")?.filter(|text| !text.is_empty()) {
            messages.push(json!({"role": "system", "content": text}));
        }
        for (i, value) in items.iter().enumerate() {
            let path = format!("input[{i}]");
            item(&Fields::at(value, &path)?, &mut messages)?;
        }
        if messages.is_empty() {
            return Err(Problem::field("input", "`input` is empty; send at least one item"));
        }
        let mut kwargs = template_kwargs(fields)?;
        if let Some(reasoning) = fields.get("reasoning")
            && let Some(effort) = Fields::at(reasoning, "reasoning")?.text("effort")?
        {
            effort_kwargs(effort, &mut kwargs);
        }
        let (tools, namespaces) = tools(fields)?;
        Ok(Self { items, messages: with_one_system(messages), kwargs, tools, namespaces })
    }

    pub fn conversation(&self) -> Conversation {
        Conversation {
            messages: self.messages.clone(),
            tools: self.tools.offered(),
            kwargs: self.kwargs.clone(),
            ..Conversation::default()
        }
    }
}

/// What the response named by `previous_response_id` had, and said.
fn before(fields: &Fields<'_>, store: &Store) -> Result<Vec<Value>> {
    let Some(id) = fields.text("previous_response_id")? else { return Ok(Vec::new()) };
    let stored = store.find(id).ok_or_else(|| Problem {
        param: Some("previous_response_id".into()),
        code: Some("previous_response_not_found"),
        ..Problem::new(Kind::Invalid, format!("response `{id}` is not kept here, or not any more"))
    })?;
    let said = stored.response["output"].as_array().into_iter().flatten();
    Ok(stored.input.iter().chain(said).cloned().collect())
}

/// The system messages that a conversation begins with, as one.
fn with_one_system(messages: Vec<Value>) -> Vec<Value> {
    let leading = messages.iter().take_while(|message| message["role"] == "system").count();
    let texts: Vec<&str> = messages[..leading].iter().filter_map(|m| m["content"].as_str()).collect();
    let joined = (!texts.is_empty()).then(|| json!({"role": "system", "content": texts.join("\n\n")}));
    joined.into_iter().chain(messages[leading..].iter().cloned()).collect()
}

fn item(fields: &Fields<'_>, messages: &mut Vec<Value>) -> Result<()> {
    match fields.text("type")?.unwrap_or("message") {
        "message" => message(fields, messages)?,
        "reasoning" => {
            let text = match (texts(fields, "content")?, texts(fields, "summary")?) {
                (content, summary) if content.is_empty() => summary,
                (content, _) => content,
            };
            if !text.is_empty() {
                assistant(messages)["reasoning_content"] = json!(text);
            }
        }
        "function_call" | "custom_tool_call" => {
            let given = fields.get("arguments").or(fields.get("input"));
            let arguments = match given {
                Some(Value::String(text)) => match serde_json::from_str::<Value>(text) {
                    Ok(value @ Value::Object(_)) => value,
                    _ if fields.get("input").is_some() => json!({"input": text}),
                    _ => json!({}),
                },
                Some(value @ Value::Object(_)) => value.clone(),
                _ => json!({}),
            };
            let function = json!({"name": fields.text("name")?, "arguments": arguments});
            let call = json!({"id": fields.text("call_id")?, "type": "function", "function": function});
            let turn = assistant(messages);
            match turn["tool_calls"].as_array_mut() {
                Some(calls) => calls.push(call),
                None => turn["tool_calls"] = json!([call]),
            }
        }
        "function_call_output" | "custom_tool_call_output" => {
            let id = fields.text("call_id")?.unwrap_or_default();
            let calls = messages.iter().filter_map(|m| m.get("tool_calls")?.as_array()).flatten();
            let name =
                calls.into_iter().find(|call| call["id"] == id).map(|call| call["function"]["name"].clone());
            let mut message =
                json!({"role": "tool", "tool_call_id": id, "content": texts(fields, "output")?});
            if let Some(name) = name {
                message["name"] = name;
            }
            messages.push(message);
        }
        kind => tracing::debug!(kind, "an input item is passed over"),
    }
    Ok(())
}

fn message(fields: &Fields<'_>, messages: &mut Vec<Value>) -> Result<()> {
    let content = texts(fields, "content")?;
    match fields.text("role")? {
        Some("user") => messages.push(json!({"role": "user", "content": content})),
        Some("system" | "developer") => messages.push(json!({"role": "system", "content": content})),
        Some("assistant") => {
            let turn = assistant(messages);
            let before = turn["content"].as_str().unwrap_or_default();
            turn["content"] = json!(format!("{before}{content}"));
        }
        role => {
            let name = fields.name("role");
            let role = role.unwrap_or("nothing");
            let message = format!("`{name}` should be user, system, developer or assistant, not `{role}`");
            return Err(Problem::field(name, message));
        }
    }
    Ok(())
}

/// The assistant's turn that is being told of: its thoughts, words and calls are items of their own.
fn assistant(messages: &mut Vec<Value>) -> &mut Value {
    if messages.last().is_none_or(|message| message["role"] != "assistant") {
        messages.push(json!({"role": "assistant", "content": ""}));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

fn texts(fields: &Fields<'_>, name: &str) -> Result<String> {
    match fields.get(name) {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => join_parts(parts, &fields.name(name), LINES),
        Some(other) => Err(wrong(&fields.name(name), "a string or an array of parts", other)),
    }
}

/// Functions, those in namespaces included; other kinds belong to services that this server does not have.
fn tools(fields: &Fields<'_>) -> Result<(Tools, HashMap<String, String>)> {
    let (mut list, mut namespaces) = (Vec::new(), HashMap::new());
    for (i, value) in fields.array("tools")?.unwrap_or_default().iter().enumerate() {
        let path = format!("tools[{i}]");
        let tool = Fields::at(value, &path)?;
        match tool.text("type")? {
            None | Some("function") => list.push(function(&tool)?),
            Some("namespace") => {
                let namespace = tool.text("name")?.unwrap_or_default();
                for (j, inner) in tool.array("tools")?.unwrap_or_default().iter().enumerate() {
                    let path = format!("{path}.tools[{j}]");
                    let inner = function(&Fields::at(inner, &path)?)?;
                    let name = inner["function"]["name"].as_str().unwrap_or_default().to_owned();
                    namespaces.insert(name, namespace.to_owned());
                    list.push(inner);
                }
            }
            Some(kind) => tracing::debug!(kind, "a tool is passed over"),
        }
    }
    let choice = match fields.get("tool_choice") {
        None => Choice::Auto,
        Some(_) => Tools::choice(fields)?,
    };
    Ok((Tools { list, choice }.checked()?, namespaces))
}

fn function(tool: &Fields<'_>) -> Result<Value> {
    let name = tool.text("name")?.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| {
        let name = tool.name("name");
        Problem::field(name.clone(), format!("`{name}` is missing"))
    })?;
    let parameters = tool.object("parameters")?.cloned().unwrap_or_default();
    let description = tool.text("description")?.unwrap_or_default();
    let function = json!({"name": name, "description": description, "parameters": parameters});
    Ok(json!({"type": "function", "function": function}))
}
