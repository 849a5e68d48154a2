//! Log-probabilities of the tokens whose text is shown, given out when it is.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::protocol::TokenId;
use engine::text::Tokenizer;

use crate::output::Piece;

#[derive(Clone, Debug, PartialEq)]
pub struct Logprob {
    pub token: Top,
    /// The best first.
    pub top: Vec<Top>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Top {
    pub id: TokenId,
    pub bytes: Vec<u8>,
    pub logprob: f32,
}

impl Top {
    /// A part of a character is U+FFFD here; `bytes` has it as it is.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

pub(super) struct Logprobs {
    tokenizer: Arc<Tokenizer>,
    /// Whether text may leave as something else than content; the byte counts then say nothing.
    split: bool,
    waiting: VecDeque<(Logprob, usize)>,
    decoded: usize,
    shown: usize,
}

impl Logprobs {
    pub(super) fn new(tokenizer: Arc<Tokenizer>, split: bool) -> Self {
        Self { tokenizer, split, waiting: VecDeque::new(), decoded: 0, shown: 0 }
    }

    pub(super) fn drawn(&mut self, id: TokenId, logprob: f32, top: &[(TokenId, f32)]) {
        let token = |id, logprob| Top { id, bytes: self.tokenizer.token_bytes(id), logprob };
        let entry = Logprob {
            token: token(id, logprob),
            top: top.iter().map(|(id, logprob)| token(*id, *logprob)).collect(),
        };
        self.waiting.push_back((entry, self.decoded));
    }

    /// So many bytes of text came of the tokens drawn so far.
    pub(super) fn decoded(&mut self, bytes: usize) {
        self.decoded += bytes;
    }

    pub(super) fn release(&mut self, pieces: &[Piece]) -> Vec<Logprob> {
        let mut released = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Content(text) if self.split => {
                    if !text.is_empty() {
                        released.extend(self.waiting.drain(..).map(|(entry, _)| entry));
                    }
                }
                Piece::Content(text) => {
                    self.shown += text.len();
                    while let Some((entry, _)) = self.waiting.pop_front_if(|(_, start)| *start < self.shown) {
                        released.push(entry);
                    }
                }
                _ => self.waiting.clear(),
            }
        }
        released
    }
}
