//! Our own kernels for the CPU, where MLX's are slow.

pub mod cpu;

pub use cpu::pool::set_threads;
