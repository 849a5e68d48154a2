//! Row-exact kernels: the bits of an output row depend on its input row and the weights alone, not on how
//! many rows share the call, on how work is split over threads, or on the instruction set.

pub mod acts;
pub mod attention;
pub(crate) mod buffer;
pub mod dense;
pub mod isa;
mod lanes;
pub mod matrix;
pub mod pack;
pub mod pointwise;
pub mod pool;
pub mod qmm;
pub mod recurrent;
pub mod rope;

#[cfg(test)]
mod reference;
