//! Anthropic's conversation in the form that templates know.

use serde_json::{Map, Value, json};

use crate::chat::{self, Conversation};
use crate::error::{Problem, Result};
use crate::fields::{Fields, wrong};
use crate::grammar::Shape;
use crate::openai::{Choice, MessageParts, Tools, join_parts};

const LINES: MessageParts = MessageParts { between: "\n" };

/// A line that one client changes with every request, which would keep prompts from being remembered.
const BILLING: &str = "x-anthropic-billing-header:";

pub fn conversation(fields: &Fields<'_>) -> Result<(Conversation, Tools)> {
    let tools = tools(fields)?;
    let mut messages = Vec::new();
    let mut system = system(fields.get("system"), "system")?;
    let list =
        fields.array("messages")?.ok_or_else(|| Problem::field("messages", "`messages` is missing"))?;
    if list.is_empty() {
        return Err(Problem::field("messages", "`messages` is empty; send at least one"));
    }
    for (i, item) in list.iter().enumerate() {
        let path = format!("messages[{i}]");
        let message = Fields::at(item, &path)?;
        match message.text("role")? {
            Some("user") => user(&message, &mut messages)?,
            Some("assistant") => messages.push(assistant(&message)?),
            // Before the first answer it belongs to the rest of the system text. Later it would change the
            // beginning of a conversation that is already remembered, and many templates refuse it.
            Some("system") => {
                let text = self::system(message.get("content"), &message.name("content"))?;
                match messages.iter().any(|m: &Value| m["role"] == "assistant") {
                    false => system.extend(text),
                    true => messages.push(reminder(&text.join("\n"))),
                }
            }
            role => {
                let name = message.name("role");
                let role = role.unwrap_or("nothing");
                let text = format!("`{name}` should be user, assistant or system, not `{role}`");
                return Err(Problem::field(name, text));
            }
        }
    }
    if !system.is_empty() {
        messages.insert(0, json!({"role": "system", "content": system.join("\n")}));
    }
    // An answer that was begun is gone on with.
    let continues =
        messages.last().is_some_and(|m| m["role"] == "assistant" && m.get("tool_calls").is_none());
    let conversation = Conversation {
        messages,
        tools: tools.offered(),
        kwargs: kwargs(fields)?,
        add_generation_prompt: !continues,
        continue_final_message: continues,
        ..Conversation::default()
    };
    Ok((conversation, tools))
}

fn reminder(text: &str) -> Value {
    json!({"role": "user", "content": format!("<system-reminder>\n{text}\n</system-reminder>")})
}

fn system(value: Option<&Value>, path: &str) -> Result<Vec<String>> {
    let texts = match value {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(blocks)) => {
            let one = |block: &Value| join_parts(std::slice::from_ref(block), path, LINES);
            blocks.iter().map(one).collect::<Result<Vec<String>>>()?
        }
        Some(other) => return Err(wrong(path, "a string or an array of text blocks", other)),
    };
    Ok(texts.into_iter().filter(|text| !text.is_empty() && !text.starts_with(BILLING)).collect())
}

/// The blocks of a message's content; a string is one block of text.
fn blocks(message: &Fields<'_>) -> Result<Vec<Value>> {
    match message.get("content") {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![json!({"type": "text", "text": text})]),
        Some(Value::Array(blocks)) => Ok(blocks.clone()),
        Some(other) => Err(wrong(&message.name("content"), "a string or an array of blocks", other)),
    }
}

/// Results of calls come first, each as a message of its own.
fn user(message: &Fields<'_>, messages: &mut Vec<Value>) -> Result<()> {
    let mut texts = Vec::new();
    for (i, block) in blocks(message)?.iter().enumerate() {
        let path = message.name(&format!("content[{i}]"));
        let fields = Fields::at(block, &path)?;
        match fields.text("type")?.unwrap_or("text") {
            "tool_result" => messages.push(result(&fields, messages)?),
            "document" => texts.push(document(&fields, &path)?),
            _ => texts.push(join_parts(std::slice::from_ref(block), &message.name("content"), LINES)?),
        }
    }
    if !texts.is_empty() {
        messages.push(json!({"role": "user", "content": texts.join("\n")}));
    }
    Ok(())
}

fn document(fields: &Fields<'_>, path: &str) -> Result<String> {
    let source = fields.get("source").filter(|source| source["type"] == "text");
    source.and_then(|source| source["data"].as_str()).map(str::to_owned).ok_or_else(|| {
        Problem::field(
            path,
            format!("`{path}`: the model reads documents of plain text only; leave this one out"),
        )
    })
}

fn result(fields: &Fields<'_>, before: &[Value]) -> Result<Value> {
    let id = fields.text("tool_use_id")?.unwrap_or_default();
    let path = fields.name("content");
    let text = match fields.get("content") {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let parts: Vec<Value> =
                parts.iter().filter(|part| part["type"] != "tool_reference").cloned().collect();
            join_parts(&parts, &path, LINES)?
        }
        Some(other) => return Err(wrong(&path, "a string or an array of blocks", other)),
    };
    let failed = fields.boolean("is_error")?.unwrap_or(false) && !text.to_lowercase().contains("error");
    let text = if failed { format!("Error: {text}") } else { text };
    let calls = before.iter().filter_map(|m| m.get("tool_calls")?.as_array()).flatten();
    let name = calls.into_iter().find(|call| call["id"] == id).map(|call| call["function"]["name"].clone());
    let mut message = json!({"role": "tool", "tool_call_id": id, "content": text});
    if let Some(name) = name {
        message["name"] = name;
    }
    Ok(message)
}

fn assistant(message: &Fields<'_>) -> Result<Value> {
    let (mut texts, mut thoughts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for (i, block) in blocks(message)?.iter().enumerate() {
        let path = message.name(&format!("content[{i}]"));
        let fields = Fields::at(block, &path)?;
        match fields.text("type")?.unwrap_or("text") {
            "text" => texts.push(fields.text("text")?.unwrap_or_default().to_owned()),
            "thinking" => thoughts.push(fields.text("thinking")?.unwrap_or_default().to_owned()),
            "tool_use" => {
                let input = fields.get("input").cloned().unwrap_or_else(|| json!({}));
                let function = json!({"name": fields.text("name")?, "arguments": input});
                calls.push(json!({"id": fields.text("id")?, "type": "function", "function": function}));
            }
            // What Anthropic's own servers did, or hid.
            _ => {}
        }
    }
    let mut out = json!({"role": "assistant", "content": texts.join("\n")});
    let thoughts = thoughts.join("\n");
    if !thoughts.is_empty() {
        out["reasoning_content"] = json!(thoughts);
    }
    if !calls.is_empty() {
        out["tool_calls"] = json!(calls);
    }
    Ok(out)
}

fn tools(fields: &Fields<'_>) -> Result<Tools> {
    let mut list = Vec::new();
    for (i, item) in fields.array("tools")?.unwrap_or_default().iter().enumerate() {
        let path = format!("tools[{i}]");
        let tool = Fields::at(item, &path)?;
        let ours = matches!(tool.text("type")?, None | Some("custom"));
        // Tools that are looked up later are not the prompt's business, nor those of Anthropic's servers.
        if !ours || tool.boolean("defer_loading")?.unwrap_or(false) {
            continue;
        }
        let name = tool.text("name")?;
        let name =
            name.ok_or_else(|| Problem::field(tool.name("name"), format!("`{path}.name` is missing")))?;
        let schema = tool.object("input_schema")?.cloned().unwrap_or_default();
        let description = tool.text("description")?.unwrap_or_default();
        let function = json!({"name": name, "description": description, "parameters": schema});
        list.push(json!({"type": "function", "function": function}));
    }
    let choice = match fields.get("tool_choice") {
        None => Choice::Auto,
        Some(value) => {
            let choice = Fields::at(value, "tool_choice")?;
            match (choice.text("type")?, choice.text("name")?) {
                (None | Some("auto"), _) => Choice::Auto,
                (Some("none"), _) => Choice::None,
                (Some("any"), _) => Choice::Required,
                (Some("tool"), Some(name)) => Choice::Named(name.to_owned()),
                _ => {
                    let message = "`tool_choice.type` should be auto, any, tool (with a name) or none";
                    return Err(Problem::field("tool_choice", message));
                }
            }
        }
    };
    Tools { list, choice }.checked()
}

fn kwargs(fields: &Fields<'_>) -> Result<Map<String, Value>> {
    let mut kwargs = chat::template_kwargs(fields)?;
    if let Some(config) = fields.get("output_config") {
        let config = Fields::at(config, "output_config")?;
        if let Some(effort) = config.text("effort")? {
            chat::effort_kwargs(effort, &mut kwargs);
        }
    }
    if let Some(thinking) = fields.get("thinking") {
        let kind = Fields::at(thinking, "thinking")?.text("type")?;
        kwargs.insert("enable_thinking".into(), json!(kind != Some("disabled")));
    }
    Ok(kwargs)
}

/// The shape that the answer must have.
pub fn shape(fields: &Fields<'_>) -> Result<Option<Shape>> {
    let Some(config) = fields.get("output_config") else { return Ok(None) };
    let format = Fields::at(config, "output_config")?.get("format");
    format.map_or(Ok(None), |format| Shape::read(format, "output_config.format"))
}
