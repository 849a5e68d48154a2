//! Row-exact kernels: the bits of an output row depend on its input row and the weights alone, not on how
//! many rows share the call, on how work is split over threads, or on the instruction set.

pub mod attention;
pub mod isa;
mod lanes;
pub mod pointwise;
pub mod pool;
pub mod rope;
