//! Tokens to text, one at a time: a character that several tokens share appears once, whole.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::LazyLock;

use serde_json::Value;

use super::Tokenizer;
use crate::protocol::TokenId;

/// How a vocabulary spells text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// GPT-2's alphabet: a printable character for every byte.
    ByteLevel,
    /// SentencePiece: `▁` for a space, `<0x0A>` for a byte that has no piece.
    ByteFallback { strip_first_space: bool },
    /// Anything else: what the tokenizer's own decoder makes of a growing list.
    Other,
}

impl Scheme {
    /// Some checkpoints pair a byte-level alphabet with SentencePiece's decoder, so the alphabet decides.
    pub(super) fn of(tokenizer: &tokenizers::Tokenizer) -> Self {
        let pre =
            tokenizer.get_pre_tokenizer().and_then(|p| serde_json::to_value(p).ok()).unwrap_or(Value::Null);
        let decoder = Tokenizer::decoder_json(tokenizer);
        if mentions(&pre, "ByteLevel") || mentions(&decoder, "ByteLevel") {
            Self::ByteLevel
        } else if mentions(&decoder, "ByteFallback") && !mentions(&decoder, "Metaspace") {
            Self::ByteFallback { strip_first_space: mentions(&decoder, "Strip") }
        } else {
            Self::Other
        }
    }
}

/// Whether a component, or one in its sequence, is of the type.
fn mentions(component: &Value, kind: &str) -> bool {
    let nested = ["pretokenizers", "decoders"].iter().filter_map(|key| component.get(key)?.as_array());
    component.get("type").and_then(Value::as_str) == Some(kind)
        || nested.flatten().any(|inner| mentions(inner, kind))
}

/// Decodes a stream of tokens. Pieces joined are the text; no piece ends inside a character.
pub struct Detokenizer<T> {
    tokenizer: T,
    skip_special: bool,
    /// Bytes of a character whose rest has not come yet.
    pending: Vec<u8>,
    /// Of [`Scheme::Other`]: the last tokens, and how much of their text was given out.
    window: Vec<TokenId>,
    given: usize,
    started: bool,
}

impl<T: Deref<Target = Tokenizer>> Detokenizer<T> {
    pub(super) fn new(tokenizer: T, skip_special: bool) -> Self {
        let (pending, window) = (Vec::new(), Vec::new());
        Self { tokenizer, skip_special, pending, window, given: 0, started: false }
    }

    /// The text that `id` completes, possibly none.
    pub fn push(&mut self, id: TokenId) -> String {
        if self.skip_special && self.tokenizer.is_special(id) {
            return String::new();
        }
        match *self.tokenizer.scheme() {
            Scheme::ByteLevel => {
                let token = self.tokenizer.token(id).unwrap_or_default();
                match self.tokenizer.is_added(id) {
                    true => self.pending.extend(token.bytes()),
                    false => byte_level(&token, &mut self.pending),
                }
                self.complete()
            }
            Scheme::ByteFallback { strip_first_space } => {
                let token = self.tokenizer.token(id).unwrap_or_default();
                match byte_piece(&token) {
                    Some(byte) => self.pending.push(byte),
                    None => {
                        let text = token.replace('▁', " ");
                        let strip = strip_first_space && !self.started && self.pending.is_empty();
                        let text = text.strip_prefix(' ').filter(|_| strip).unwrap_or(&text);
                        self.pending.extend(text.bytes());
                    }
                }
                self.started = true;
                self.complete()
            }
            Scheme::Other => {
                self.window.push(id);
                self.grown(false)
            }
        }
    }

    /// What is left when no more tokens come; a character that stayed incomplete is U+FFFD.
    pub fn finish(&mut self) -> String {
        let mut text = String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned();
        if !self.window.is_empty() {
            text.push_str(&self.grown(true));
        }
        text
    }

    /// Takes the complete characters out of `pending`. Bytes that can never become one are U+FFFD.
    fn complete(&mut self) -> String {
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(valid) => {
                    text.push_str(valid);
                    self.pending.clear();
                    return text;
                }
                Err(err) => {
                    let valid = err.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.pending[..valid]));
                    match err.error_len() {
                        Some(bad) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            self.pending.drain(..valid + bad);
                        }
                        None => {
                            self.pending.drain(..valid);
                            return text;
                        }
                    }
                }
            }
        }
    }

    /// What the window's text has gained. Once its text ends in a whole character, all but the last token,
    /// which the next one's spelling may depend on, leave the window.
    fn grown(&mut self, last: bool) -> String {
        let text = self.tokenizer.decode_whole(&self.window);
        if text.ends_with(char::REPLACEMENT_CHARACTER) && !last {
            return String::new();
        }
        let new = text.get(self.given..).unwrap_or_default().to_owned();
        if KEEP < self.window.len() {
            self.window.drain(..self.window.len() - 1);
            self.given = self.tokenizer.decode_whole(&self.window).len();
        } else {
            self.given = text.len();
        }
        new
    }
}

/// Tokens that a window may hold before it is cut.
const KEEP: usize = 32;

/// What one token adds to a text, apart from its neighbours.
pub(super) fn token_bytes(tokenizer: &Tokenizer, id: TokenId) -> Vec<u8> {
    let token = tokenizer.token(id).unwrap_or_default();
    if tokenizer.is_added(id) {
        return token.into_bytes();
    }
    match *tokenizer.scheme() {
        Scheme::ByteLevel => {
            let mut bytes = Vec::new();
            byte_level(&token, &mut bytes);
            bytes
        }
        Scheme::ByteFallback { .. } => match byte_piece(&token) {
            Some(byte) => vec![byte],
            None => token.replace('▁', " ").into_bytes(),
        },
        Scheme::Other => tokenizer.decode_whole(&[id]).into_bytes(),
    }
}

fn byte_piece(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}

/// Bytes of a token in GPT-2's alphabet; a token with a foreign character is its own text.
fn byte_level(token: &str, out: &mut Vec<u8>) {
    static ALPHABET: LazyLock<HashMap<char, u8>> = LazyLock::new(alphabet);
    let start = out.len();
    for c in token.chars() {
        match ALPHABET.get(&c) {
            Some(byte) => out.push(*byte),
            None => {
                out.truncate(start);
                out.extend(token.bytes());
                return;
            }
        }
    }
}

/// Printable Latin-1 stands for itself, every other byte for the next character from U+0100 on.
fn alphabet() -> HashMap<char, u8> {
    let plain = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let shifted = (0..=255).filter(|b| !plain(*b)).zip(0x100..);
    let shifted = shifted.map(|(b, c)| (char::from_u32(c).expect("below the surrogates"), b));
    (0..=255).filter(|b| plain(*b)).map(|b| (char::from(b), b)).chain(shifted).collect()
}

#[cfg(test)]
mod tests;
