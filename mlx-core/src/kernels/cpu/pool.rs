//! A small fork-join pool for jobs as short as one matrix product of a decode step.
//!
//! Such a job lasts tens of microseconds, less than starting a thread. Workers spin for a while after a job,
//! then sleep. How work is split never changes a row's arithmetic, so the number of threads is a matter of
//! speed alone.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::thread::{self, JoinHandle};

/// Polls before a worker sleeps: some tens of microseconds, the pause between two ops of a step.
const SPINS: usize = 20_000;

static THREADS: AtomicUsize = AtomicUsize::new(0);
static POOL: OnceLock<Mutex<Pool>> = OnceLock::new();

/// Sets the number of threads of all kernels, before the first one runs; later calls change nothing.
pub fn set_threads(threads: usize) {
    THREADS.store(threads, Ordering::Relaxed);
}

fn pool() -> &'static Mutex<Pool> {
    POOL.get_or_init(|| {
        let threads = match THREADS.load(Ordering::Relaxed) {
            0 => thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        };
        Mutex::new(Pool::new(threads))
    })
}

/// Runs `f(0..n)` on all cores, each index once, and waits. A call from inside a job, or while another thread
/// uses the pool, runs on the caller alone.
///
/// # Panics
/// If `f` does.
pub fn run(n: usize, f: impl Fn(usize) + Sync) {
    let mut pool = match pool().try_lock() {
        Ok(pool) if 1 < n => pool,
        // A job that panicked leaves no state behind.
        Err(TryLockError::Poisoned(poisoned)) if 1 < n => poisoned.into_inner(),
        _ => return (0..n).for_each(f),
    };
    let next = AtomicUsize::new(0);
    pool.run(&|| {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if n <= i {
                return;
            }
            f(i);
        }
    });
}

/// Threads that [`run`] uses, the caller included.
pub fn threads() -> usize {
    pool().lock().map_or(1, |pool| pool.workers.len() + 1)
}

type Call = unsafe fn(*const ());

/// # Safety
/// `f` must point to a live `F`.
unsafe fn call<F: Fn() + Sync>(f: *const ()) {
    // SAFETY: the caller's promise.
    unsafe { (*f.cast::<F>())() }
}

unsafe fn nothing(_: *const ()) {}

/// The state of the job slot: which job, whether it may still be joined, and how many workers are in it.
/// Nobody waits for a worker that has not begun: on a busy machine that could be long.
const CLOSED: u64 = 1 << 15;
const EPOCH: u64 = 1 << 16;
const ACTIVE: u64 = CLOSED - 1;

struct Shared {
    job: UnsafeCell<(*const (), Call)>,
    state: AtomicU64,
    stop: AtomicBool,
    failed: AtomicBool,
    asleep: Vec<AtomicBool>,
}

// SAFETY: `job` is written by the one caller that holds the pool, while the slot is closed and nobody is in it,
// and read only by workers that joined; the closure behind it is `Sync` and outlives the job.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// `threads` counts the caller.
    fn new(threads: usize) -> Self {
        let extra = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            job: UnsafeCell::new((std::ptr::null(), nothing)),
            state: AtomicU64::new(CLOSED),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            asleep: (0..extra).map(|_| AtomicBool::new(false)).collect(),
        });
        let start = |i: usize| {
            let shared = shared.clone();
            let builder = thread::Builder::new().name(format!("kernel-{i}"));
            builder.spawn(move || worker(&shared, i)).expect("the system can start a thread")
        };
        let workers = (0..extra).map(start).collect();
        Self { shared, workers }
    }

    /// Runs `f` on the caller and on every worker that is free in time, and waits for those that joined.
    fn run<F: Fn() + Sync>(&mut self, f: &F) {
        if self.workers.is_empty() {
            return f();
        }
        let shared = &*self.shared;
        // SAFETY: the slot is closed and empty, so no worker reads it until the state opens it.
        unsafe { *shared.job.get() = (std::ptr::from_ref(f).cast(), call::<F>) };
        let epoch = shared.state.load(Ordering::Relaxed) / EPOCH + 1;
        shared.state.store(epoch * EPOCH, Ordering::SeqCst);
        for (worker, asleep) in self.workers.iter().zip(&shared.asleep) {
            if asleep.swap(false, Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        let mine = catch_unwind(AssertUnwindSafe(f));
        shared.state.fetch_or(CLOSED, Ordering::AcqRel);
        let mut spins = 0;
        while shared.state.load(Ordering::Acquire) & ACTIVE != 0 {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { thread::yield_now() }
        }
        // Cleared on both ways out, or the next job would be told of this one's failure.
        let failed = shared.failed.swap(false, Ordering::Relaxed);
        if let Err(panic) = mine {
            std::panic::resume_unwind(panic);
        }
        assert!(!failed, "a kernel panicked on a worker");
    }
}

fn worker(shared: &Shared, i: usize) {
    let mut seen = 0;
    while let Some(epoch) = next_job(shared, i, seen) {
        seen = epoch;
        // SAFETY: this worker joined the job, so the slot holds it and the caller waits.
        let outcome = unsafe {
            let (f, call) = *shared.job.get();
            catch_unwind(AssertUnwindSafe(|| call(f)))
        };
        if outcome.is_err() {
            shared.failed.store(true, Ordering::Relaxed);
        }
        shared.state.fetch_sub(1, Ordering::Release);
    }
}

/// Joins the next job that is still open; `None` when the pool ends.
fn next_job(shared: &Shared, i: usize, seen: u64) -> Option<u64> {
    let mut spins = 0;
    loop {
        let state = shared.state.load(Ordering::Acquire);
        if state / EPOCH != seen && state & CLOSED == 0 {
            let joined = shared.state.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed);
            if joined.is_ok() {
                return Some(state / EPOCH);
            }
            continue;
        }
        if shared.stop.load(Ordering::Acquire) {
            return None;
        }
        spins += 1;
        if spins < SPINS {
            std::hint::spin_loop();
            continue;
        }
        shared.asleep[i].store(true, Ordering::SeqCst);
        let unchanged = shared.state.load(Ordering::SeqCst) | CLOSED | ACTIVE == state | CLOSED | ACTIVE;
        if unchanged && !shared.stop.load(Ordering::SeqCst) {
            thread::park();
        }
        shared.asleep[i].store(false, Ordering::SeqCst);
        spins = 0;
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches every panic of a job.
            worker.join().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_runs_once_also_after_a_sleep() {
        let seen: Vec<AtomicUsize> = (0..9).map(|_| AtomicUsize::new(0)).collect();
        for round in 0..2000 {
            run(9, |i| {
                seen[i].fetch_add(1, Ordering::Relaxed);
            });
            if round % 500 == 0 {
                thread::sleep(std::time::Duration::from_millis(5));
            }
            assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == round + 1));
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives() {
        let mut pool = Pool::new(2);
        for _ in 0..50 {
            assert!(catch_unwind(AssertUnwindSafe(|| pool.run(&|| panic!("on purpose")))).is_err());
        }
        let n = AtomicUsize::new(0);
        pool.run(&|| {
            n.fetch_add(1, Ordering::Relaxed);
        });
        assert!((1..=2).contains(&n.load(Ordering::Relaxed)));
    }

    #[test]
    fn nested_and_concurrent_calls_finish() {
        let n = AtomicUsize::new(0);
        let job = || {
            run(4, |_| {
                run(3, |_| {
                    n.fetch_add(1, Ordering::Relaxed);
                })
            })
        };
        thread::scope(|s| (0..3).for_each(|_| drop(s.spawn(job))));
        assert_eq!(n.load(Ordering::Relaxed), 36);
    }
}
