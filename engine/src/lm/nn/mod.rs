//! Blocks that model files wire together. A block computes; what it remembers is lent to it.

mod attention;
mod linear;
mod mlp;
pub mod rope;

pub use attention::{Attention, AttentionConfig};
pub use linear::{Embedding, Linear};
pub use mlp::GatedMlp;
pub use mlx_core::projection::{Act, RmsNorm};
