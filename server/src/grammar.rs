//! Answers that must be JSON of a given shape: a grammar beside the row says which tokens may come next.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use engine::protocol::{Constraint, TokenId, TokenSet};
use engine::text::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

use crate::app::App;
use crate::error::{Problem, Result};
use crate::fields::{Fields, wrong};
use crate::output::{CALL, CALLED, Output};

/// The shape that a request asks for, and the field that asks.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    field: &'static str,
    form: Form,
}

#[derive(Clone, Debug, PartialEq)]
enum Form {
    Schema(Value),
    Lark(String),
}

impl Shape {
    /// Any object.
    pub fn object(field: &'static str) -> Self {
        Self::schema(field, json!({"type": "object"}))
    }

    pub fn schema(field: &'static str, schema: Value) -> Self {
        Self { field, form: Form::Schema(schema) }
    }

    /// One call of one of the tools, as the answer's text has it.
    pub fn call(tools: &[&Value]) -> Self {
        let call = |tool: &&Value| {
            let function = &tool["function"];
            let arguments = function.get("parameters").filter(|schema| schema.get("type").is_some());
            json!({
                "type": "object", "required": ["name", "arguments"], "additionalProperties": false,
                "properties": {
                    "name": {"const": function["name"]},
                    "arguments": arguments.cloned().unwrap_or_else(|| json!({"type": "object"})),
                },
            })
        };
        // Spaced as templates show calls to models.
        let style = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
        let any: Vec<Value> = tools.iter().map(call).collect();
        let schema = json!({"anyOf": any, "x-guidance": style});
        let lark = format!("start: \"{CALL}\\n\" call \"\\n{CALLED}\"\ncall: %json {schema}\n");
        Self { field: "tool_choice", form: Form::Lark(lark) }
    }

    /// Of a `{"type": …}` as several surfaces have it. OpenAI's chat has the schema one level down.
    pub fn read(format: &Value, field: &'static str) -> Result<Option<Self>> {
        let fields = Fields::at(format, field)?;
        let inner = format.get("json_schema").filter(|inner| !inner.is_null()).unwrap_or(format);
        let schema = inner.get("schema").filter(|schema| !schema.is_null());
        match (fields.text("type")?, schema) {
            (Some("text"), _) => Ok(None),
            (Some("json_object"), None) => Ok(Some(Self::object(field))),
            (Some("json_object" | "json_schema"), Some(schema)) => {
                Ok(Some(Self::schema(field, schema.clone())))
            }
            (Some("json_schema"), None) => Err(Problem::field(field, format!("`{field}` has no schema"))),
            (kind, _) => {
                let kind = kind.unwrap_or("nothing");
                let message =
                    format!("`{field}.type` should be text, json_object or json_schema, not `{kind}`");
                Err(Problem::field(field, message))
            }
        }
    }
}

/// Of `response_format`, and of the names that other servers have for the same.
pub fn of_chat(fields: &Fields<'_>) -> Result<Option<Shape>> {
    for name in ["grammar", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"] {
        if fields.get(name).is_some() {
            let message = format!("`{name}` is not supported; use `response_format` with a JSON schema");
            return Err(Problem::field(name, message));
        }
    }
    if let Some(format) = fields.get("response_format") {
        return Shape::read(format, "response_format");
    }
    for name in ["json_schema", "guided_json"] {
        if let Some(schema) = fields.get(name) {
            return match schema {
                Value::Object(_) => Ok(Some(Shape::schema(name, schema.clone()))),
                other => Err(wrong(name, "a JSON schema", other)),
            };
        }
    }
    Ok(None)
}

/// The model's vocabulary as grammars need it, made when it is first asked for.
#[derive(Default)]
pub struct Grammars {
    factory: OnceLock<std::result::Result<ParserFactory, String>>,
}

/// Compiles beside the threads that serve connections. An answer that begins inside reasoning is free until
/// its end.
pub async fn compile(
    app: &Arc<App>,
    shape: Option<Shape>,
    output: &Output,
) -> Result<Option<Box<dyn Constraint>>> {
    let Some(shape) = shape else { return Ok(None) };
    let (app, thinks) = (app.clone(), output.is_open());
    let work = move || {
        let refused = |message: String| Problem::field(shape.field, format!("`{}`: {message}", shape.field));
        let tokenizer = &app.model.tokenizer;
        let factory = app.grammars.factory.get_or_init(|| factory(tokenizer, app.model.info.vocab_size));
        let factory = factory.as_ref().map_err(|err| Problem::internal(err.clone()))?;
        let grammar = match shape.form {
            Form::Schema(schema) => TopLevelGrammar::from_json_schema(schema),
            Form::Lark(lark) => TopLevelGrammar::from_lark(lark),
        };
        let parser = factory.create_parser(grammar).map_err(|err| refused(err.to_string()))?;
        let mut matcher = Matcher::new(Ok(parser));
        if let Some(err) = matcher.get_error() {
            return Err(refused(err));
        }
        if let Some(warning) = matcher.grammar_warnings().first() {
            return Err(refused(warning.clone()));
        }
        let thought = tokenizer.token_id("</think>").filter(|_| thinks);
        let (ends, vocab) = (tokenizer.ends().clone(), app.model.info.vocab_size);
        Ok(Some(Box::new(Conforming { matcher, ends, vocab, thought }) as Box<dyn Constraint>))
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Problem::internal("the grammar failed on this request")))
}

fn factory(tokenizer: &Tokenizer, vocab: usize) -> std::result::Result<ParserFactory, String> {
    let vocab = vocab.max(tokenizer.vocab_size()) as u32;
    let end = tokenizer.ends().first().copied().ok_or("the model has no token that ends an answer")?;
    let word = |id: TokenId| match tokenizer.is_special(id) {
        // No text can hold this byte, so that no special token passes for text.
        true => [&[TokTrie::SPECIAL_TOKEN_MARKER], &tokenizer.token_bytes(id)[..]].concat(),
        false => tokenizer.token_bytes(id),
    };
    let words: Vec<Vec<u8>> = (0..vocab).map(word).collect();
    let trie = TokTrie::from(&TokRxInfo::new(vocab, end), &words);
    let env: TokEnv = Arc::new(Vocabulary { trie });
    let mut factory = ParserFactory::new_simple(&env).map_err(|err| err.to_string())?;
    factory.quiet();
    Ok(factory)
}

struct Vocabulary {
    trie: TokTrie,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(bytes)
    }
}

struct Conforming {
    matcher: Matcher,
    ends: BTreeSet<TokenId>,
    vocab: usize,
    /// The token that ends the reasoning before the answer, until it has come.
    thought: Option<TokenId>,
}

impl Constraint for Conforming {
    fn allowed(&mut self) -> std::result::Result<TokenSet, String> {
        if self.thought.is_some() {
            return Ok(TokenSet::from_words(vec![u32::MAX; self.vocab.div_ceil(32)]));
        }
        let mask = self.matcher.compute_mask_or_eos().map_err(|err| err.to_string())?;
        let mut words = mask.as_slice().to_vec();
        let bit = |id: TokenId| (id as usize / 32, 1u32 << (id % 32));
        // The grammar knows one end; all are as good.
        let may_end =
            self.ends.iter().any(|end| words.get(bit(*end).0).is_some_and(|word| word & bit(*end).1 != 0));
        for (at, mask) in self.ends.iter().map(|end| bit(*end)) {
            if let Some(word) = words.get_mut(at) {
                *word = if may_end { *word | mask } else { *word & !mask };
            }
        }
        Ok(TokenSet::from_words(words))
    }

    fn accept(&mut self, id: TokenId) -> std::result::Result<(), String> {
        if let Some(thought) = self.thought {
            self.thought = (id != thought).then_some(thought);
            return Ok(());
        }
        if self.ends.contains(&id) {
            return Ok(());
        }
        self.matcher.consume_token(id).map_err(|err| err.to_string())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        let (ends, vocab, thought) = (self.ends.clone(), self.vocab, self.thought);
        Box::new(Self { matcher: self.matcher.deep_clone(), ends, vocab, thought })
    }
}
