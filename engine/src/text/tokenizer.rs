//! A tokenizer with what the engine asks of it: ids, ends, and streaming decoding.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tokenizers::DecoderWrapper;

use super::detokenize::{Detokenizer, Scheme};
use super::{GgufVocab, Result, TextError};
use crate::protocol::TokenId;

pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    scheme: Scheme,
    bos: Option<(TokenId, String)>,
    eos: Option<(TokenId, String)>,
    ends: BTreeSet<TokenId>,
    /// Tokens beside the vocabulary's own, and whether each marks structure rather than being text.
    added: HashMap<TokenId, bool>,
    /// Of GGUF vocabularies, whose tokenizer has no template for special tokens.
    add_bos: bool,
    add_eos: bool,
}

/// The library panics over some damaged files, which is an error here like any other.
fn contained<T>(f: impl FnOnce() -> tokenizers::Result<T>) -> std::result::Result<T, String> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result.map_err(|err| err.to_string()),
        Err(_) => Err("the tokenizer is damaged".into()),
    }
}

impl Tokenizer {
    /// From a folder's tokenizer.json, tokenizer_config.json, config.json and generation_config.json.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        if !path.exists() {
            return Err(TextError::NoTokenizer { path: folder.into() });
        }
        let file = |message: String| TextError::File { path: path.clone(), message };
        let inner = contained(|| tokenizers::Tokenizer::from_file(&path)).map_err(file)?;
        let config = read_json(&folder.join("tokenizer_config.json"))?.unwrap_or(Value::Null);
        let special = |key: &str| {
            let value = config.get(key)?;
            let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
            Some((inner.token_to_id(text)?, text.to_owned()))
        };
        let (bos, eos) = (special("bos_token"), special("eos_token"));
        let mut ends: BTreeSet<TokenId> = eos.iter().map(|(id, _)| *id).collect();
        for name in ["config.json", "generation_config.json"] {
            ends.extend(read_json(&folder.join(name))?.iter().flat_map(eos_ids));
        }
        let (scheme, added) = (Scheme::of(&inner), added(&inner));
        Ok(Self { inner, scheme, bos, eos, ends, added, add_bos: false, add_eos: false })
    }

    pub fn from_gguf(vocab: &GgufVocab) -> Result<Self> {
        let inner = vocab.build()?;
        let special = |id: Option<TokenId>| {
            let id = id?;
            Some((id, vocab.tokens.get(id as usize)?.clone()))
        };
        Ok(Self {
            scheme: Scheme::of(&inner),
            added: added(&inner),
            inner,
            bos: special(vocab.bos),
            eos: special(vocab.eos),
            ends: vocab.ends().into_iter().collect(),
            add_bos: vocab.add_bos,
            add_eos: vocab.add_eos,
        })
    }

    /// Token ids of `text`. `add_special` adds what the model's tokenizer adds by itself, such as BOS; a text
    /// that begins with BOS already, as a rendered chat does, never gets a second one.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<TokenId>> {
        let has_bos = self.bos.as_ref().is_some_and(|(_, bos)| text.starts_with(bos.as_str()));
        let add_special = add_special && !has_bos;
        let encoding =
            contained(|| self.inner.encode_fast(text, add_special)).map_err(TextError::Tokenize)?;
        let mut ids = encoding.get_ids().to_vec();
        if add_special && self.add_bos {
            ids.splice(0..0, self.bos_id());
        }
        if add_special && self.add_eos {
            ids.extend(self.eos.iter().map(|(id, _)| *id));
        }
        Ok(ids)
    }

    /// The text of `ids`: the same as a [`Detokenizer`]'s pieces joined.
    pub fn decode(&self, ids: &[TokenId], skip_special: bool) -> String {
        let mut detokenizer = Detokenizer::new(self, skip_special);
        let mut text: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
        text.push_str(&detokenizer.finish());
        text
    }

    /// Decodes one token after the other.
    pub fn detokenizer(self: &Arc<Self>, skip_special: bool) -> Detokenizer<Arc<Self>> {
        Detokenizer::new(self.clone(), skip_special)
    }

    pub fn token_id(&self, text: &str) -> Option<TokenId> {
        self.inner.token_to_id(text)
    }

    /// The vocabulary's own spelling, not its text.
    pub fn token(&self, id: TokenId) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The bytes that a token stands for, which need not be whole characters.
    pub fn token_bytes(&self, id: TokenId) -> Vec<u8> {
        super::detokenize::token_bytes(self, id)
    }

    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    pub fn bos_id(&self) -> Option<TokenId> {
        self.bos.as_ref().map(|(id, _)| *id)
    }

    pub fn bos(&self) -> Option<&str> {
        self.bos.as_ref().map(|(_, text)| text.as_str())
    }

    pub fn eos(&self) -> Option<&str> {
        self.eos.as_ref().map(|(_, text)| text.as_str())
    }

    /// Every id that ends a sequence: what config.json, generation_config.json and the tokenizer name.
    pub fn ends(&self) -> &BTreeSet<TokenId> {
        &self.ends
    }

    pub(super) fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    /// Whether the token marks structure rather than being text.
    pub fn is_special(&self, id: TokenId) -> bool {
        self.added.get(&id).copied().unwrap_or(false)
    }

    pub(super) fn is_added(&self, id: TokenId) -> bool {
        self.added.contains_key(&id)
    }

    /// One decode by the tokenizer's own decoder; where that fails, the vocabulary's own spelling.
    pub(super) fn decode_whole(&self, ids: &[TokenId]) -> String {
        contained(|| self.inner.decode(ids, false)).unwrap_or_else(|err| {
            tracing::warn!("the tokenizer cannot decode {ids:?}: {err}");
            ids.iter().filter_map(|id| self.token(*id)).collect()
        })
    }

    pub(super) fn decoder_json(tokenizer: &tokenizers::Tokenizer) -> Value {
        let decoder: Option<&DecoderWrapper> = tokenizer.get_decoder();
        decoder.and_then(|d| serde_json::to_value(d).ok()).unwrap_or(Value::Null)
    }
}

fn added(tokenizer: &tokenizers::Tokenizer) -> HashMap<TokenId, bool> {
    tokenizer.get_added_tokens_decoder().into_iter().map(|(id, token)| (id, token.special)).collect()
}

/// The ids in a config's `eos_token_id`, which may be one or a list, and in its text part's.
pub fn eos_ids(config: &Value) -> Vec<TokenId> {
    let id = |value: &Value| value.as_u64().and_then(|id| TokenId::try_from(id).ok());
    let of = |config: &Value| match config.get("eos_token_id") {
        Some(Value::Array(list)) => list.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    };
    let mut ids: Vec<TokenId> = of(config);
    ids.extend(config.get("text_config").iter().flat_map(|text| of(text)));
    ids
}

/// A JSON file, or `None` if there is none.
pub(crate) fn read_json(path: &Path) -> Result<Option<Value>> {
    let file = |message: String| TextError::File { path: path.into(), message };
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|err| file(err.to_string())),
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(file(err.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_tokenizer_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let model = r#""model":{"type":"BPE","vocab":{"a":0},"merges":[]}"#;
        for decoder in [r#""decoder":{"type":"Sequence"}"#, r#""decoder":{"type":"Strip"}"#, r#""decoder":3"#]
        {
            fs::write(
                folder.path().join("tokenizer.json"),
                format!(r#"{{"version":"1.0",{decoder},{model}}}"#),
            )
            .unwrap();
            let err = Tokenizer::from_folder(folder.path()).err().expect(decoder);
            assert!(matches!(err, TextError::File { .. }), "{err}");
        }
    }
}
