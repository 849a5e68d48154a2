//! From a conversation to the tokens of a prompt.

use std::sync::Arc;

use engine::protocol::TokenId;
use engine::text::ChatInput;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::error::{Problem, Result};
use crate::fields::Fields;

/// Messages as chat templates have them, whatever dialect they came in.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// `role`, `content` as a string, `reasoning_content`, `tool_calls` with their arguments as objects,
    /// `tool_call_id` and `name`.
    pub messages: Vec<Value>,
    /// `{"type": "function", "function": {…}}` each.
    pub tools: Vec<Value>,
    pub documents: Option<Vec<Value>>,
    /// Over the server's own.
    pub kwargs: Map<String, Value>,
    pub add_generation_prompt: bool,
    pub continue_final_message: bool,
}

impl Default for Conversation {
    fn default() -> Self {
        Self {
            messages: Vec::new(),
            tools: Vec::new(),
            documents: None,
            kwargs: Map::new(),
            add_generation_prompt: true,
            continue_final_message: false,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Rendered {
    pub text: String,
    pub tokens: Vec<TokenId>,
}

/// Renders and tokenizes beside the threads that serve connections.
pub async fn render(app: &Arc<App>, conversation: Conversation) -> Result<Rendered> {
    let app = app.clone();
    let work = tokio::task::spawn_blocking(move || {
        let mut kwargs = app.settings.defaults.template_kwargs.clone();
        kwargs.extend(conversation.kwargs);
        let input = ChatInput {
            messages: conversation.messages,
            tools: (!conversation.tools.is_empty()).then_some(conversation.tools),
            documents: conversation.documents,
            add_generation_prompt: conversation.add_generation_prompt,
            continue_final_message: conversation.continue_final_message,
            kwargs,
            now: chrono::Local::now().naive_local(),
        };
        let text = app.model.templates.render(&input)?;
        let tokens = app.model.tokenizer.encode(&text, false)?;
        Ok(Rendered { text, tokens })
    });
    finished(work.await)
}

pub async fn encode(app: &Arc<App>, text: String, add_special: bool) -> Result<Vec<TokenId>> {
    let app = app.clone();
    let work = move || Ok(app.model.tokenizer.encode(&text, add_special)?);
    finished(tokio::task::spawn_blocking(work).await)
}

fn finished<T>(work: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    work.unwrap_or_else(|_| Err(Problem::internal("the tokenizer failed on this request")))
}

/// The ways in which requests ask for reasoning, as variables of the template.
pub fn template_kwargs(fields: &Fields<'_>) -> Result<Map<String, Value>> {
    let mut kwargs = Map::new();
    if let Some(effort) = fields.text("reasoning_effort")? {
        effort_kwargs(effort, &mut kwargs);
    }
    if let Some(thinking) = fields.boolean("enable_thinking")? {
        kwargs.insert("enable_thinking".into(), json!(thinking));
    }
    if let Some(given) = fields.object("chat_template_kwargs")? {
        kwargs.extend(given.clone());
    }
    Ok(kwargs)
}

/// Unknown efforts go to the template as they are.
pub fn effort_kwargs(effort: &str, kwargs: &mut Map<String, Value>) {
    match effort {
        "none" | "minimal" => kwargs.insert("enable_thinking".into(), json!(false)),
        effort => {
            kwargs.insert("enable_thinking".into(), json!(true));
            kwargs.insert("reasoning_effort".into(), json!(effort))
        }
    };
}
