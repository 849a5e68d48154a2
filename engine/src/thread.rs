//! The array thread: it owns the model, the caches and the loop. Arrays never leave it; only commands go in
//! and events come out.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::executor::Executor;
use crate::lm::CausalLm;
use crate::protocol::{Event, Finish, FinishReason, Request, SeqId};
use crate::sampling::Draw;
use crate::schedule::{Limits, Scheduler, Sequence, StepPlan};

enum Command {
    Submit { request: Request, events: mpsc::Sender<Event> },
}

/// The way in: cheap to clone, shared by any thread. Dropping the last one ends the thread and waits for it,
/// so that no array outlives the program's `main`.
#[derive(Clone)]
pub struct EngineHandle {
    thread: Arc<ArrayThread>,
}

struct ArrayThread {
    commands: Option<mpsc::Sender<Command>>,
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
    events: mpsc::Receiver<Event>,
}

impl Stream {
    /// The next event, or `None` if none came in time or the stream has ended.
    pub fn next_within(&self, timeout: Duration) -> Option<Event> {
        self.events.recv_timeout(timeout).ok()
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
        limits: Limits,
        load: impl FnOnce() -> Result<(Box<dyn CausalLm>, T), E> + Send + 'static,
        context_length: impl FnOnce(&T) -> usize + Send + 'static,
    ) -> Result<(Self, T), E>
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        let (commands, inbox) = mpsc::channel();
        let (ready_sender, ready) = mpsc::channel();
        let body = move || match load() {
            Ok((lm, loaded)) => {
                let engine = Engine::new(lm, limits, context_length(&loaded));
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
        Ok((Self { thread: Arc::new(thread) }, loaded?))
    }

    pub fn submit(&self, request: Request) -> Stream {
        let (sender, events) = mpsc::channel();
        let command = Command::Submit { request, events: sender };
        let commands = self.thread.commands.as_ref().expect("only dropping takes it");
        if let Err(mpsc::SendError(Command::Submit { events, .. })) = commands.send(command) {
            events.send(Event::Failed("the engine has ended".into())).ok();
        }
        Stream { events }
    }
}

struct Engine {
    scheduler: Scheduler,
    executor: Executor,
    clients: HashMap<SeqId, Client>,
    context_length: usize,
    next_id: u64,
}

struct Client {
    events: mpsc::Sender<Event>,
    prompt_tokens: usize,
    generated: usize,
    submitted: Instant,
    first_token: Option<Instant>,
}

impl Engine {
    fn new(lm: Box<dyn CausalLm>, limits: Limits, context_length: usize) -> Self {
        Self {
            scheduler: Scheduler::new(limits),
            executor: Executor::new(lm),
            clients: HashMap::new(),
            context_length,
            next_id: 0,
        }
    }

    fn serve(mut self, inbox: &mpsc::Receiver<Command>) {
        loop {
            if self.scheduler.is_idle() {
                match inbox.recv() {
                    Ok(command) => self.handle(command),
                    Err(mpsc::RecvError) => return,
                }
            }
            while let Ok(command) = inbox.try_recv() {
                self.handle(command);
            }
            self.step();
        }
    }

    fn handle(&mut self, command: Command) {
        let Command::Submit { request, events } = command;
        if let Err(message) = self.check(&request) {
            events.send(Event::Failed(message)).ok();
            return;
        }
        let id = SeqId(self.next_id);
        self.next_id += 1;
        let prompt_len = request.prompt.len();
        let room = self.context_length - prompt_len;
        self.scheduler.add(Sequence {
            id,
            prompt_len,
            tokens: request.prompt,
            computed: 0,
            max_len: prompt_len + request.max_tokens.unwrap_or(room).min(room),
            stop_ids: request.stop_ids,
        });
        self.executor.add(id, request.sampling);
        let client = Client {
            events,
            prompt_tokens: prompt_len,
            generated: 0,
            submitted: Instant::now(),
            first_token: None,
        };
        self.clients.insert(id, client);
    }

    fn check(&self, request: &Request) -> Result<(), String> {
        let n = request.prompt.len();
        if n == 0 {
            return Err("the prompt is empty".into());
        }
        if request.max_tokens == Some(0) {
            return Err("max tokens should be at least 1".into());
        }
        if self.context_length <= n {
            return Err(format!(
                "the prompt has {n} tokens, but the model's context holds {}; shorten it",
                self.context_length
            ));
        }
        Ok(())
    }

    /// Plan, launch, collect. A fault ends the requests of the step, and nothing else.
    fn step(&mut self) {
        let plan = self.scheduler.schedule();
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run(&plan)));
        let message = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(err)) => err.to_string(),
            Err(panic) => panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
                .unwrap_or_else(|| "a panic without a message".into()),
        };
        tracing::error!(message, "a step failed");
        for span in &plan.spans {
            self.end(span.id, Event::Failed(message.clone()));
        }
    }

    fn run(&mut self, plan: &StepPlan) -> Result<(), mlx_core::Error> {
        let launched = self.executor.launch(&self.scheduler, plan)?;
        let drawn = self.executor.collect(&self.scheduler, launched)?;
        for span in &plan.spans {
            self.scheduler.processed(span);
            self.report_prefill(span.id, span.range.end);
        }
        for (id, draw) in drawn {
            match draw {
                Ok(draw) => self.emit(id, draw),
                Err(err) => self.end(id, Event::Failed(err.to_string())),
            }
        }
        Ok(())
    }

    fn report_prefill(&mut self, id: SeqId, done: usize) {
        let Some(client) = self.clients.get(&id).filter(|c| c.generated == 0) else { return };
        let event = Event::Prefill { done, total: client.prompt_tokens };
        if client.events.send(event).is_err() {
            self.forget(id);
        }
    }

    fn emit(&mut self, id: SeqId, draw: Draw) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.first_token.get_or_insert_with(Instant::now);
        client.generated += 1;
        let gone = client.events.send(Event::Token { id: draw.id, logprob: draw.logprob }).is_err();
        match self.scheduler.drew(id, draw.id) {
            _ if gone => self.forget(id),
            Some(reason) => {
                let finish = self.clients[&id].finish(reason);
                self.end(id, Event::Finished(finish));
            }
            None => {}
        }
    }

    fn end(&mut self, id: SeqId, event: Event) {
        if let Some(client) = self.clients.get(&id) {
            // A client that is gone has no use for its end.
            client.events.send(event).ok();
        }
        self.forget(id);
    }

    fn forget(&mut self, id: SeqId) {
        self.clients.remove(&id);
        self.scheduler.remove(id);
        self.executor.remove(id);
        if self.scheduler.is_idle() {
            mlx_core::memory::clear_cache();
        }
    }
}

impl Client {
    fn finish(&self, reason: FinishReason) -> Finish {
        let first = self.first_token.unwrap_or(self.submitted);
        Finish {
            reason,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: 0,
            generated_tokens: self.generated,
            prompt_time: first - self.submitted,
            generation_time: first.elapsed(),
        }
    }
}
