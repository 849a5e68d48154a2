//! Asks grammars which tokens may come next, on a thread of its own, while the model computes.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use crate::protocol::{Constraint, SeqId, TokenId, TokenSet};

struct Question {
    id: SeqId,
    constraint: Box<dyn Constraint>,
    heard: Option<TokenId>,
}

type Answer = (Box<dyn Constraint>, Result<TokenSet, String>);

/// The way to the thread, which starts with the first question and ends with this value.
pub(super) struct Masks {
    worker: Option<Worker>,
    asked: usize,
}

struct Worker {
    questions: flume::Sender<Question>,
    answers: flume::Receiver<(SeqId, Answer)>,
}

impl Masks {
    pub(super) fn new() -> Self {
        Self { worker: None, asked: 0 }
    }

    /// `heard` is a token that was drawn since the last question.
    pub(super) fn ask(&mut self, id: SeqId, constraint: Box<dyn Constraint>, heard: Option<TokenId>) {
        let worker = self.worker.get_or_insert_with(start);
        if worker.questions.send(Question { id, constraint, heard }).is_ok() {
            self.asked += 1;
        }
    }

    /// Waits for the answers to all questions.
    pub(super) fn collect(&mut self) -> HashMap<SeqId, Answer> {
        let asked = std::mem::take(&mut self.asked);
        match &self.worker {
            Some(worker) => worker.answers.iter().take(asked).collect(),
            None => HashMap::new(),
        }
    }
}

fn start() -> Worker {
    let (questions, inbox) = flume::unbounded::<Question>();
    let (outbox, answers) = flume::unbounded();
    let body = move || {
        for Question { id, mut constraint, heard } in inbox {
            let work = AssertUnwindSafe(|| {
                heard.map_or(Ok(()), |token| constraint.accept(token))?;
                constraint.allowed()
            });
            let allowed = catch_unwind(work).unwrap_or_else(|_| Err("the grammar's engine panicked".into()));
            if outbox.send((id, (constraint, allowed))).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("grammars".into()).spawn(body).expect("the system can start a thread");
    Worker { questions, answers }
}
