//! Which tools a request declares, and which of them it wants called.

use serde_json::{Value, json};

use crate::error::{Problem, Result};
use crate::fields::{Fields, wrong};
use crate::grammar::Shape;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    Auto,
    None,
    Required,
    Named(String),
}

#[derive(Clone, Debug)]
pub struct Tools {
    /// As templates have them: `{"type": "function", "function": {…}}`.
    pub list: Vec<Value>,
    pub choice: Choice,
}

impl Tools {
    /// Of a chat completion.
    pub fn read(fields: &Fields<'_>) -> Result<Self> {
        let mut list = Vec::new();
        for (i, item) in fields.array("tools")?.unwrap_or_default().iter().enumerate() {
            let path = format!("tools[{i}]");
            let tool = Fields::at(item, &path)?;
            // Other kinds belong to services that this server does not have.
            if tool.text("type")?.unwrap_or("function") == "function" {
                let function = tool.get("function");
                let function = function.ok_or_else(|| {
                    Problem::field(format!("{path}.function"), format!("`{path}.function` is missing"))
                })?;
                list.push(function_tool(function, &format!("{path}.function"))?);
            }
        }
        for (i, item) in fields.array("functions")?.unwrap_or_default().iter().enumerate() {
            list.push(function_tool(item, &format!("functions[{i}]"))?);
        }
        Self { list, choice: Self::choice(fields)? }.checked()
    }

    pub fn choice(fields: &Fields<'_>) -> Result<Choice> {
        match fields.get("tool_choice") {
            Some(choice) => read_choice(choice),
            None => match fields.get("function_call") {
                Some(legacy @ Value::Object(_)) => Ok(Choice::Named(name_of(legacy, "function_call")?)),
                Some(legacy) => read_choice(legacy),
                None => Ok(Choice::Auto),
            },
        }
    }

    pub fn checked(self) -> Result<Self> {
        let names = || self.list.iter().filter_map(|tool| tool["function"]["name"].as_str());
        match &self.choice {
            Choice::Auto | Choice::None => Ok(self),
            Choice::Named(name) if !names().any(|known| known == name) => {
                let message = format!("`tool_choice` names `{name}`, which is not among the tools");
                Err(Problem::field("tool_choice", message))
            }
            Choice::Required if self.list.is_empty() => {
                Err(Problem::field("tool_choice", "`tool_choice` asks for a call, but there are no tools"))
            }
            Choice::Required | Choice::Named(_) => Ok(self),
        }
    }

    /// What holds the answer to a call, or else to `shape`.
    pub fn forced(&self, shape: Option<Shape>) -> Option<Shape> {
        let tools: Vec<&Value> = match &self.choice {
            Choice::Auto | Choice::None => return shape,
            Choice::Required => self.list.iter().collect(),
            Choice::Named(name) => {
                self.list.iter().filter(|tool| tool["function"]["name"] == **name).collect()
            }
        };
        Some(Shape::call(&tools))
    }

    /// Those that the prompt tells of.
    pub fn offered(&self) -> Vec<Value> {
        if self.choice == Choice::None { Vec::new() } else { self.list.clone() }
    }
}

fn function_tool(function: &Value, path: &str) -> Result<Value> {
    let fields = Fields::at(function, path)?;
    let name = fields.text("name")?.filter(|name| !name.is_empty());
    name.ok_or_else(|| Problem::field(format!("{path}.name"), format!("`{path}.name` is missing")))?;
    Ok(json!({"type": "function", "function": function}))
}

fn read_choice(value: &Value) -> Result<Choice> {
    match value {
        Value::String(word) => match word.as_str() {
            "auto" => Ok(Choice::Auto),
            "none" => Ok(Choice::None),
            "required" | "any" => Ok(Choice::Required),
            other => {
                let message = format!("`tool_choice` should be auto, none or required, not `{other}`");
                Err(Problem::field("tool_choice", message))
            }
        },
        Value::Object(map) => match map.get("type").and_then(Value::as_str) {
            Some("allowed_tools") => {
                let inner = map.get("allowed_tools").unwrap_or(value);
                Ok(if inner["mode"] == "required" { Choice::Required } else { Choice::Auto })
            }
            _ => Ok(Choice::Named(name_of(map.get("function").unwrap_or(value), "tool_choice")?)),
        },
        other => Err(wrong("tool_choice", "a string or an object", other)),
    }
}

fn name_of(value: &Value, path: &str) -> Result<String> {
    let name = value.get("name").and_then(Value::as_str);
    name.map(str::to_owned).ok_or_else(|| Problem::field(path, format!("`{path}` names no function")))
}
