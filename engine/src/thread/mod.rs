//! The array thread: it owns the model, the caches and the loop. Arrays never leave it; only commands go in
//! and events come out.

mod client;
mod engine;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use mlx_core::Dtype;

use crate::lm::CausalLm;
use crate::prefix::{PrefixOptions, PrefixStats};
use crate::protocol::{Event, Failure, Request};
use crate::schedule::Limits;
use engine::Engine;

/// How an engine runs its model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineOptions {
    pub limits: Limits,
    pub prefix: PrefixOptions,
    /// What keys and values are stored in; `None` takes the activations' type.
    pub kv_dtype: Option<Dtype>,
}

/// What a load gives beside the model, for the engine to know.
pub struct ModelFacts {
    pub context_length: usize,
    /// Names all that a cache's arrays depend on: model, layout, types.
    pub identity: String,
}

/// What the engine is doing and has done.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub running: usize,
    pub waiting: usize,
    pub steps: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub generated_tokens: u64,
    pub requests: u64,
    pub failed: u64,
    pub preempted: u64,
    /// Bytes that the caches of running sequences are accounted for.
    pub cache_bytes: usize,
    pub prefix: PrefixStats,
    /// When the last step ended; `None` before the first.
    pub last_step: Option<Instant>,
    /// The moving average of a step's time.
    pub step_time: Duration,
}

enum Command {
    Submit { requests: Vec<Request>, events: Vec<flume::Sender<Event>> },
    ClearPrefix { done: flume::Sender<()> },
}

/// The way in: cheap to clone, shared by any thread. Dropping the last one ends the thread and waits for it,
/// so that no array outlives the program's `main`.
#[derive(Clone)]
pub struct EngineHandle {
    thread: Arc<ArrayThread>,
    stats: SharedStats,
}

/// Written by the array thread after each step, read by whoever holds a handle.
type SharedStats = Arc<Mutex<Stats>>;

fn locked(stats: &SharedStats) -> MutexGuard<'_, Stats> {
    stats.lock().unwrap_or_else(PoisonError::into_inner)
}

struct ArrayThread {
    commands: Option<flume::Sender<Command>>,
    handle: Option<thread::JoinHandle<()>>,
}

impl Drop for ArrayThread {
    fn drop(&mut self) {
        self.commands.take();
        if let Some(handle) = self.handle.take() {
            // A panic there has already been reported.
            handle.join().ok();
        }
    }
}

/// The events of one request. Dropping it cancels the request at the next step.
pub struct Stream {
    events: flume::Receiver<Event>,
}

impl Stream {
    /// The next event, or `None` if none came in time or the stream has ended.
    pub fn next_within(&self, timeout: Duration) -> Option<Event> {
        self.events.recv_timeout(timeout).ok()
    }

    /// Waits for the next event without blocking a thread; `None` after the last.
    pub async fn recv(&self) -> Option<Event> {
        self.events.recv_async().await.ok()
    }
}

impl Iterator for Stream {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.events.recv().ok()
    }
}

impl EngineHandle {
    /// Loads the model *on* the new thread, since its arrays may never leave it, and waits until it is done.
    /// Returns what `load` gives beside the model.
    pub fn spawn<T, E>(
        options: EngineOptions,
        load: impl FnOnce() -> Result<(Box<dyn CausalLm>, T), E> + Send + 'static,
        facts: impl FnOnce(&T) -> ModelFacts + Send + 'static,
    ) -> Result<(Self, T), E>
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        let (commands, inbox) = flume::unbounded();
        let (ready_sender, ready) = flume::bounded(1);
        let stats = SharedStats::default();
        let shared = stats.clone();
        let body = move || match load() {
            Ok((lm, loaded)) => {
                let engine = Engine::new(lm, &options, &facts(&loaded), shared);
                if ready_sender.send(Ok(loaded)).is_ok() {
                    engine.serve(&inbox);
                }
            }
            Err(err) => {
                // The other end waits right below, unless its thread is gone.
                ready_sender.send(Err(err)).ok();
            }
        };
        let builder = thread::Builder::new().name("arrays".into());
        let handle = builder.spawn(body).expect("the system can start a thread");
        let thread = ArrayThread { commands: Some(commands), handle: Some(handle) };
        let loaded = ready.recv().expect("the array thread reports before it ends");
        Ok((Self { thread: Arc::new(thread), stats }, loaded?))
    }

    pub fn submit(&self, request: Request) -> Stream {
        self.submit_all(vec![request]).remove(0)
    }

    /// Submits requests of one and the same prompt, which is processed once for all of them.
    pub fn submit_all(&self, requests: Vec<Request>) -> Vec<Stream> {
        let bounds = requests.iter().map(|r| most_events(&r.prompt, r.max_tokens));
        let (events, streams): (Vec<_>, Vec<_>) = bounds.map(flume::bounded).unzip();
        if let Err(flume::SendError(Command::Submit { events, .. })) =
            self.commands().send(Command::Submit { requests, events })
        {
            for sender in events {
                sender.send(Event::Failed(Failure::Internal("the engine has ended".into()))).ok();
            }
        }
        streams.into_iter().map(|events| Stream { events }).collect()
    }

    pub fn stats(&self) -> Stats {
        locked(&self.stats).clone()
    }

    /// Whether the array thread still runs.
    pub fn is_alive(&self) -> bool {
        self.thread.handle.as_ref().is_some_and(|handle| !handle.is_finished())
    }

    /// Forgets all remembered prefixes, on disk as well. Waits for the end of the step.
    pub fn clear_prefix(&self) {
        let (done, waits) = flume::bounded(1);
        if self.commands().send(Command::ClearPrefix { done }).is_ok() {
            waits.recv().ok();
        }
    }

    fn commands(&self) -> &flume::Sender<Command> {
        self.thread.commands.as_ref().expect("only dropping takes it")
    }
}

/// A stream holds all that its request can say, so that a slow reader never holds up a step.
fn most_events(prompt: &[u32], max_tokens: Option<usize>) -> usize {
    const UNLIMITED: usize = 1 << 24;
    prompt.len() + max_tokens.unwrap_or(UNLIMITED).min(UNLIMITED) + 2
}

#[cfg(test)]
mod tests;
