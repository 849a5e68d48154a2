//! A model, its memory and its schedule. Modules stand lowest first: an arrow upward is a defect.

pub mod protocol;
pub mod sampling;
pub mod schedule;
