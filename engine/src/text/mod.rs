//! Text to tokens and back: tokenizers, chat templates, streaming decoding. No arrays.

mod detokenize;
mod pretokenize;
mod template;
mod tojson;
mod tokenizer;
mod vocab;

pub use detokenize::Detokenizer;
pub use template::{ChatInput, ChatTemplate, ChatTemplates};
pub use tokenizer::{Tokenizer, eos_ids};
pub use vocab::GgufVocab;

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("{path}: no tokenizer.json; a model needs one beside its weights", path = path.display())]
    NoTokenizer { path: PathBuf },
    #[error("{path}: {message}", path = path.display())]
    File { path: PathBuf, message: String },
    #[error("the GGUF file's vocabulary: {0}")]
    Vocab(String),
    #[error("tokenizer: {0}")]
    Tokenize(String),
    #[error("the model has no chat template; give --ignore-chat-template to send the prompt as it is")]
    NoTemplate,
    /// The template refused the conversation, or uses something that does not exist.
    #[error("chat template: {0}")]
    Template(String),
}

pub type Result<T> = std::result::Result<T, TextError>;
