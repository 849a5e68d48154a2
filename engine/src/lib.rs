//! A model, its memory and its schedule. Modules stand lowest first: an arrow upward is a defect.

mod executor;
pub mod hub;
pub mod lm;
mod load;
pub mod prefix;
pub mod protocol;
pub mod sampling;
pub mod schedule;
pub mod text;
pub mod thread;
pub mod weights;

pub use load::{LoadOptions, LoadProgress, Loaded, ModelInfo, load};
