//! Whole answers, for responses that are not streamed.

use super::{Answers, End, Logprob, Step};
use crate::error::Result;
use crate::output::Piece;

/// One finished answer.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    pub content: String,
    pub reasoning: String,
    pub calls: Vec<ToolCall>,
    pub logprobs: Vec<Logprob>,
    pub end: Option<End>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// JSON, or the beginning of it if the answer was cut.
    pub arguments: String,
}

impl Gathered {
    pub fn add(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Content(text) => self.content.push_str(&text),
                Piece::Reasoning(text) => self.reasoning.push_str(&text),
                Piece::ToolStart { id, name, .. } => {
                    self.calls.push(ToolCall { id, name, arguments: String::new() });
                }
                Piece::ToolArguments { index, fragment } => {
                    if let Some(call) = self.calls.get_mut(index) {
                        call.arguments.push_str(&fragment);
                    }
                }
                Piece::ToolEnd { .. } => {}
            }
        }
    }
}

impl Answers {
    /// Waits for all choices, in the order of their indices.
    pub async fn gather(mut self) -> Result<Vec<Gathered>> {
        let mut all = vec![Gathered::default(); self.n_choices()];
        while let Some(step) = self.next().await {
            match step {
                Step::Prefill { .. } => {}
                Step::Pieces(i, pieces, logprobs) => {
                    all[i].add(pieces);
                    all[i].logprobs.extend(logprobs);
                }
                Step::End(i, end) => all[i].end = Some(end),
                Step::Failed(problem) => return Err(problem),
            }
        }
        Ok(all)
    }
}
