//! Names that are never given twice.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// `prefix` and 24 hexadecimal digits.
pub fn fresh(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    // The standard library's hasher is seeded anew for each program, and differs in each instance.
    let random = RandomState::new().hash_one(n);
    format!("{prefix}{random:016x}{:08x}", n as u32)
}

pub fn fresh_seed() -> u64 {
    RandomState::new().hash_one(SystemTime::now())
}

/// Seconds since 1970.
pub fn unix_time() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
