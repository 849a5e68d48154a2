//! The loop: admit, plan, launch, collect.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use mlx_core::Array;

use super::client::Client;
use super::{Command, EngineOptions, ModelFacts, SharedStats, locked};
use crate::executor::{Executor, Wishes};
use crate::lm::CausalLm;
use crate::lm::cache::LayerSpec;
use crate::prefix::Prefix;
use crate::protocol::{Event, Failure, Request, SeqId};
use crate::sampling::Draw;
use crate::schedule::{CacheCost, LayerCost, Limits, Refusal, Scheduler, Sequence, StepPlan};

pub(super) struct Engine {
    scheduler: Scheduler,
    executor: Executor,
    clients: HashMap<SeqId, Client>,
    context_length: usize,
    next_id: u64,
    stats: SharedStats,
}

impl Engine {
    pub(super) fn new(
        lm: Box<dyn CausalLm>,
        options: &EngineOptions,
        facts: &ModelFacts,
        stats: SharedStats,
    ) -> Self {
        let activations = lm.embed(&Array::from_slice(&[0u32], &[1])).dtype();
        let item = options.kv_dtype.unwrap_or(activations).size();
        let cost = cost(lm.layers(), item);
        let identity = format!("{} {:?} {:?}", facts.identity, options.kv_dtype, lm.layers());
        let prefix = Prefix::new(&options.prefix, &identity);
        let checkpoints = prefix.is_some() && lm.layers().iter().any(|spec| spec.growth().per_token == 0);
        let limits = Limits { checkpoints, ..options.limits };
        Self {
            scheduler: Scheduler::new(limits, cost),
            executor: Executor::new(lm, prefix, options.kv_dtype),
            clients: HashMap::new(),
            context_length: facts.context_length,
            next_id: 0,
            stats,
        }
    }

    /// Runs until the last handle is gone.
    pub(super) fn serve(mut self, inbox: &flume::Receiver<Command>) {
        loop {
            if self.scheduler.is_idle() {
                self.publish();
                match self.wait(inbox) {
                    Some(command) => self.handle(command),
                    None => return,
                }
            }
            while let Ok(command) = inbox.try_recv() {
                self.handle(command);
            }
            self.step();
        }
    }

    /// The next command, or `None` after the last. Idle time goes into writing what only memory remembers.
    fn wait(&mut self, inbox: &flume::Receiver<Command>) -> Option<Command> {
        while self.executor.persist() {
            match inbox.recv_timeout(Duration::from_millis(20)) {
                Ok(command) => return Some(command),
                Err(flume::RecvTimeoutError::Timeout) => {}
                Err(flume::RecvTimeoutError::Disconnected) => break,
            }
        }
        inbox.recv().ok()
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Submit { requests, events } => {
                let mut leader = None;
                for (request, events) in requests.into_iter().zip(events) {
                    let client = Client::new(events, request.prompt.len());
                    match self.take(request, leader) {
                        Ok(id) => {
                            leader.get_or_insert(id);
                            self.clients.insert(id, client);
                        }
                        Err(failure) => client.send(Event::Failed(failure)),
                    }
                }
            }
            Command::ClearPrefix { done } => {
                self.executor.clear_prefix();
                done.send(()).ok();
            }
        }
    }

    fn take(&mut self, request: Request, leader: Option<SeqId>) -> Result<SeqId, Failure> {
        self.check(&request)?;
        let id = SeqId(self.next_id);
        self.next_id += 1;
        let prompt_len = request.prompt.len();
        let room = self.context_length - prompt_len;
        let sequence = Sequence {
            id,
            priority: request.priority,
            prompt_len,
            tokens: request.prompt,
            computed: 0,
            max_len: match request.max_tokens {
                Some(max) => prompt_len + max,
                None => self.scheduler.longest(prompt_len + room).max(prompt_len + 1),
            },
            stop_ids: request.stop_ids,
            leader,
        };
        self.scheduler.add(sequence).map_err(refused)?;
        let Request { sampling, top_logprobs, min_tokens, constraint, .. } = request;
        self.executor.add(id, Wishes { sampling, top_logprobs, min_tokens, constraint });
        Ok(id)
    }

    fn check(&self, request: &Request) -> Result<(), Failure> {
        let (n, context) = (request.prompt.len(), self.context_length);
        let invalid = |message| Err(Failure::Invalid(message));
        if n == 0 {
            return invalid("the prompt is empty".into());
        }
        if request.max_tokens == Some(0) {
            return invalid("max tokens should be at least 1".into());
        }
        if context <= n {
            return invalid(format!(
                "the prompt has {n} tokens, but the model's context holds {context}; shorten it"
            ));
        }
        match request.max_tokens {
            Some(max) if context < n.saturating_add(max) => invalid(format!(
                "the prompt's {n} tokens and {max} more are over the model's context of {context}; \
                 ask for at most {}",
                context - n
            )),
            _ => Ok(()),
        }
    }

    /// A fault ends the request that is at fault, and nothing else.
    fn step(&mut self) {
        let started = Instant::now();
        self.drop_cancelled();
        self.admit();
        self.publish();
        let plan = self.scheduler.plan();
        if plan.is_empty() {
            return;
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run(&plan)));
        let message = match outcome {
            Ok(Ok(())) => return self.timed(started),
            Ok(Err(err)) => err.to_string(),
            Err(panic) => message(&*panic),
        };
        tracing::error!(message, rows = plan.spans.len(), "a step failed");
        self.executor.recover(&plan);
        match &plan.spans[..] {
            [span] => self.fail(span.id, message),
            spans => self.scheduler.suspect(spans.iter().map(|span| span.id)),
        }
    }

    fn drop_cancelled(&mut self) {
        let gone: Vec<SeqId> = self.clients.iter().filter(|(_, c)| c.is_gone()).map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|id| self.forget(id));
    }

    /// Sequences get their caches, or give them up.
    fn admit(&mut self) {
        let admission = self.scheduler.admit();
        locked(&self.stats).preempted += admission.preempted.len() as u64;
        for id in admission.preempted {
            self.executor.close(id);
        }
        for id in admission.admitted {
            let sequence = self.scheduler.sequence(id);
            let opened = catch_unwind(AssertUnwindSafe(|| self.executor.open(sequence)));
            match opened {
                Ok(computed) => {
                    self.scheduler.resume(id, computed);
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.cached_tokens.get_or_insert(computed);
                    }
                    self.fork_from(id);
                }
                Err(panic) => self.fail(id, message(&*panic)),
            }
        }
    }

    fn fork_from(&mut self, leader: SeqId) {
        for id in self.scheduler.ready_followers(leader) {
            self.executor.fork(leader, id);
            self.scheduler.forked(id);
        }
    }

    fn run(&mut self, plan: &StepPlan) -> Result<(), mlx_core::Error> {
        let launched = self.executor.launch(&self.scheduler, plan)?;
        let drawn = self.executor.collect(&self.scheduler, launched)?;
        self.executor.remember(&self.scheduler, &plan.spans)?;
        for span in &plan.spans {
            self.scheduler.processed(span);
            if let Some(client) = self.clients.get(&span.id).filter(|c| c.generated == 0) {
                let (total, cached) = (client.prompt_tokens, client.cached_tokens.unwrap_or(0));
                client.send(Event::Prefill { done: span.range.end, total, cached });
            }
            self.fork_from(span.id);
        }
        for (id, draw) in drawn {
            match draw {
                Ok(draw) => self.emit(id, draw),
                Err(message) => self.fail(id, message),
            }
        }
        Ok(())
    }

    fn emit(&mut self, id: SeqId, draw: Draw) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.drew();
        client.send(Event::Token { id: draw.id, logprob: draw.logprob, top: draw.top });
        if let Some(reason) = self.scheduler.drew(id, draw.id) {
            let finish = client.finish(reason);
            {
                let mut stats = locked(&self.stats);
                stats.requests += 1;
                stats.prompt_tokens += finish.prompt_tokens as u64;
                stats.cached_tokens += finish.cached_tokens as u64;
                stats.generated_tokens += finish.generated_tokens as u64;
            }
            client.send(Event::Finished(finish));
            self.forget(id);
        }
    }

    fn fail(&mut self, id: SeqId, message: String) {
        if let Some(client) = self.clients.get(&id) {
            client.send(Event::Failed(Failure::Internal(message)));
        }
        locked(&self.stats).failed += 1;
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

    fn timed(&mut self, started: Instant) {
        let took = started.elapsed();
        let mut stats = locked(&self.stats);
        stats.steps += 1;
        stats.last_step = Some(Instant::now());
        stats.step_time = if stats.steps == 1 { took } else { stats.step_time * 9 / 10 + took / 10 };
    }

    fn publish(&mut self) {
        let (cache_bytes, prefix) = (self.scheduler.committed(), self.executor.prefix_stats());
        let mut stats = locked(&self.stats);
        (stats.running, stats.waiting) = (self.scheduler.n_running(), self.scheduler.n_waiting());
        (stats.cache_bytes, stats.prefix) = (cache_bytes, prefix);
    }
}

fn cost(layers: &[LayerSpec], item: usize) -> CacheCost {
    let mut cost = CacheCost::default();
    for growth in layers.iter().map(LayerSpec::growth) {
        cost.fixed += growth.fixed;
        let bytes_per_token = growth.per_token * item;
        match cost.layers.iter_mut().find(|l| l.window == growth.window) {
            _ if bytes_per_token == 0 => {}
            Some(layer) => layer.bytes_per_token += bytes_per_token,
            None => cost.layers.push(LayerCost { bytes_per_token, window: growth.window }),
        }
    }
    cost
}

fn refused(refusal: Refusal) -> Failure {
    let gb = |bytes: usize| bytes as f64 / 1e9;
    match refusal {
        Refusal::QueueFull { waiting } => {
            Failure::Busy(format!("{waiting} requests are waiting already; try again later"))
        }
        Refusal::TooLarge { needs, budget } => Failure::Invalid(format!(
            "the request may need {:.2} GB for its context, over the budget of {:.2} GB; \
             ask for fewer tokens, or raise the memory limit",
            gb(needs),
            gb(budget)
        )),
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_else(|| "a panic without a message".into())
}
