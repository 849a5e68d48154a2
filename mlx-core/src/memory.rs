//! MLX's allocator: bytes in use, bytes kept for reuse, and their limits.

use crate::error::install;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident => $c:ident),*) => { $(
        $(#[$doc])*
        pub fn $name() -> usize {
            install();
            let mut bytes = 0;
            // SAFETY: writes one integer.
            unsafe { mlx_sys::$c(&mut bytes) };
            bytes
        }
    )* };
}
counters!(
    /// Bytes that live arrays hold.
    active => mlx_get_active_memory,
    /// The largest [`active`] since the start or [`reset_peak`].
    peak => mlx_get_peak_memory,
    /// Freed bytes kept for the next allocation.
    cache => mlx_get_cache_memory
);

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident => $c:ident),*) => { $(
        $(#[$doc])*
        pub fn $name(bytes: usize) -> usize {
            install();
            let mut previous = 0;
            // SAFETY: writes one integer.
            unsafe { mlx_sys::$c(&mut previous, bytes) };
            previous
        }
    )* };
}
limits!(
    /// Sets the bytes past which allocations wait or fail; returns the previous limit.
    set_limit => mlx_set_memory_limit,
    /// Sets the bytes kept for reuse; returns the previous limit.
    set_cache_limit => mlx_set_cache_limit,
    /// Sets the bytes that the GPU keeps resident; returns the previous limit. No effect without one.
    set_wired_limit => mlx_set_wired_limit
);

pub fn reset_peak() {
    install();
    // SAFETY: takes nothing.
    unsafe { mlx_sys::mlx_reset_peak_memory() };
}

/// Returns the bytes kept for reuse to the system.
pub fn clear_cache() {
    install();
    // SAFETY: takes nothing.
    unsafe { mlx_sys::mlx_clear_cache() };
    trim();
}

/// Returns what the process's own allocator keeps of freed memory, where it keeps much.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the allocator locks what it looks at.
    unsafe {
        libc::malloc_trim(0)
    };
}
