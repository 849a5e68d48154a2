//! Chat templates, rendered as transformers renders them.
//!
//! Templates are Jinja written for Python: string methods, `tojson` as `json.dumps`, `raise_exception`.
//! A template that fails is an error; nothing is ever rendered by another template in its place.

use std::path::Path;
use std::sync::LazyLock;

use chrono::NaiveDateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value as Json, json};

use super::tojson::tojson;
use super::tokenizer::read_json;
use super::{Result, TextError};

/// A conversation to render. Fields are the variables that templates see.
#[derive(Clone, Debug, Default)]
pub struct ChatInput {
    /// Objects with `role` and `content`.
    pub messages: Vec<Json>,
    pub tools: Option<Vec<Json>>,
    pub documents: Option<Vec<Json>>,
    /// Ends with what opens the assistant's answer.
    pub add_generation_prompt: bool,
    /// Ends inside the last message, for the model to go on.
    pub continue_final_message: bool,
    /// Further variables, such as `enable_thinking`.
    pub kwargs: Map<String, Json>,
    /// What `strftime_now` reads.
    pub now: NaiveDateTime,
}

/// One compiled template.
pub struct ChatTemplate {
    env: Environment<'static>,
    special: Map<String, Json>,
}

/// A model's templates: most have one, some a second for conversations with tools.
pub struct ChatTemplates {
    default: Option<ChatTemplate>,
    tool_use: Option<ChatTemplate>,
}

const NAME: &str = "chat";
const CONTINUE: &str = "\u{2}continue here\u{3}";

impl ChatTemplate {
    /// `special` holds `bos_token`, `eos_token` and others by name.
    pub fn new(source: &str, special: Map<String, Json>) -> Result<Self> {
        let mut env = Environment::new();
        env.set_syntax(SYNTAX.clone());
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_filter("tojson", tojson);
        env.add_function("raise_exception", |message: String| -> std::result::Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
        });
        env.add_template_owned(NAME, transparent_generation(source)).map_err(template_error)?;
        Ok(Self { env, special })
    }

    pub fn render(&self, input: &ChatInput) -> Result<String> {
        if !input.continue_final_message {
            return self.render_messages(input, &input.messages);
        }
        if input.add_generation_prompt {
            let message = "continuing the final message and adding a generation prompt exclude each other";
            return Err(TextError::Template(message.into()));
        }
        let mut messages = input.messages.clone();
        let content = messages.last_mut().and_then(|m| m.get_mut("content"));
        let Some(text) = content.and_then(last_text) else {
            let message = "the final message has no text to continue";
            return Err(TextError::Template(message.into()));
        };
        text.push_str(CONTINUE);
        let text = self.render_messages(input, &messages)?;
        match text.rfind(CONTINUE) {
            Some(at) => Ok(text[..at].to_owned()),
            None => Err(TextError::Template("the template leaves out the final message's end".into())),
        }
    }

    fn render_messages(&self, input: &ChatInput, messages: &[Json]) -> Result<String> {
        let mut variables = self.special.clone();
        variables.extend(input.kwargs.clone());
        variables.extend([
            ("messages".to_owned(), json!(messages)),
            ("tools".to_owned(), json!(input.tools)),
            ("documents".to_owned(), json!(input.documents)),
            ("add_generation_prompt".to_owned(), json!(input.add_generation_prompt)),
        ]);
        let now = input.now;
        let strftime = move |format: String| -> std::result::Result<String, Error> {
            let mut out = String::new();
            std::fmt::Write::write_fmt(&mut out, format_args!("{}", now.format(&format)))
                .map(|()| out)
                .map_err(|_| Error::new(ErrorKind::InvalidOperation, format!("bad time format `{format}`")))
        };
        let context = minijinja::context! {
            strftime_now => Value::from_function(strftime),
            ..Value::from(Serde(&variables))
        };
        let template = self.env.get_template(NAME).map_err(template_error)?;
        template.render(context).map_err(template_error)
    }
}

impl ChatTemplates {
    /// From one source, as GGUF metadata or a flag gives it.
    pub fn from_source(source: &str, special: Map<String, Json>) -> Result<Self> {
        Ok(Self { default: Some(ChatTemplate::new(source, special)?), tool_use: None })
    }

    /// From a folder: chat_template.jinja, chat_template.json, or tokenizer_config.json.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let config = read_json(&folder.join("tokenizer_config.json"))?.unwrap_or(Json::Null);
        let special = special_tokens(&config);
        let compile = |source: Option<&str>| {
            source.map(|source| ChatTemplate::new(source, special.clone())).transpose()
        };
        if let Ok(source) = std::fs::read_to_string(folder.join("chat_template.jinja")) {
            return Ok(Self { default: compile(Some(&source))?, tool_use: None });
        }
        let json = read_json(&folder.join("chat_template.json"))?;
        let template = json.as_ref().unwrap_or(&config).get("chat_template");
        let named = |name: &str| {
            let list = template?.as_array()?;
            list.iter().find(|t| t["name"] == name)?["template"].as_str()
        };
        let default = template.and_then(Json::as_str).or(named("default"));
        Ok(Self { default: compile(default)?, tool_use: compile(named("tool_use"))? })
    }

    /// Of a model that has none.
    pub fn none() -> Self {
        Self { default: None, tool_use: None }
    }

    pub fn exist(&self) -> bool {
        self.default.is_some() || self.tool_use.is_some()
    }

    /// Renders by the template for the input. If it refuses the conversation and a system (or developer)
    /// message stands past the beginning, tries once more with all of them joined in front.
    pub fn render(&self, input: &ChatInput) -> Result<String> {
        let for_tools = self.tool_use.as_ref().filter(|_| input.tools.is_some());
        let template = for_tools.or(self.default.as_ref()).or(self.tool_use.as_ref());
        let template = template.ok_or(TextError::NoTemplate)?;
        template.render(input).or_else(|err| match with_leading_system(&input.messages) {
            Some(messages) => template.render(&ChatInput { messages, ..input.clone() }).map_err(|_| err),
            None => Err(err),
        })
    }
}

/// The conversation with one system message in front, or `None` if it is like that already.
fn with_leading_system(messages: &[Json]) -> Option<Vec<Json>> {
    let is_system = |m: &Json| m["role"] == "system" || m["role"] == "developer";
    let plain = messages.iter().skip(1).all(|m| !is_system(m))
        && messages.first().is_none_or(|m| m["role"] != "developer");
    let (system, mut rest): (Vec<Json>, Vec<Json>) = messages.iter().cloned().partition(is_system);
    if plain || system.is_empty() {
        return None;
    }
    let texts: Option<Vec<&str>> = system.iter().map(|m| m["content"].as_str()).collect();
    rest.insert(0, json!({"role": "system", "content": texts?.join("\n\n")}));
    Some(rest)
}

fn last_text(content: &mut Json) -> Option<&mut String> {
    match content {
        Json::String(text) => Some(text),
        Json::Array(parts) => match parts.last_mut()?.get_mut("text")? {
            Json::String(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// `bos_token` and the like, as strings.
fn special_tokens(config: &Json) -> Map<String, Json> {
    let names = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
    let text = |value: &Json| value.as_str().or_else(|| value.get("content")?.as_str()).map(|s| json!(s));
    names.iter().filter_map(|name| Some(((*name).to_owned(), text(config.get(name)?)?))).collect()
}

/// transformers marks the assistant's tokens by a `generation` block, which renders as its contents.
fn transparent_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let Some(length) = rest[at + 2..].find("%}") else { break };
        let tag = &rest[at..at + length + 4];
        let word = tag[2..tag.len() - 2].trim_matches(['-', '+']).trim();
        out.push_str(&rest[..at]);
        match word {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = &rest[at + tag.len()..];
    }
    out.push_str(rest);
    out
}

/// Marks a message that the template itself raised.
const RAISED: &str = "raised: ";

fn template_error(err: Error) -> TextError {
    let detail = err.detail().unwrap_or_default();
    let message = match (detail.strip_prefix(RAISED), err.line()) {
        (Some(raised), _) => raised.to_owned(),
        (None, Some(line)) => format!("line {line}: {}", described(&err)),
        (None, None) => described(&err),
    };
    TextError::Template(message)
}

fn described(err: &Error) -> String {
    err.detail().map_or_else(|| err.kind().to_string(), |detail| format!("{}: {detail}", err.kind()))
}

static SYNTAX: LazyLock<SyntaxConfig> = LazyLock::new(|| {
    let builder = &mut SyntaxConfig::builder();
    builder.trim_blocks(true).lstrip_blocks(true);
    builder.build().expect("the default delimiters with other white space rules are valid")
});

#[cfg(test)]
mod tests;
