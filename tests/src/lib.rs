//! What the tests of all crates together share: made-up weights, numbers from mlx-lm, real models.

pub mod export;
pub mod fixtures;
pub mod goldens;
pub mod model;
pub mod weights;
