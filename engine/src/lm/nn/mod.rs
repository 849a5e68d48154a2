//! Blocks that model files wire together. A block computes; what it remembers is lent to it.

mod attention;
mod linear;
mod mlp;
mod norm;
pub mod rope;

pub use attention::{Attention, AttentionConfig, QkNorm, QkNormKind};
pub use linear::{Embedding, Linear};
pub use mlp::{FeedForward, GatedMlp, PlainMlp, PlainMlpConfig, relu_squared};
pub use mlx_core::projection::{Act, LayerNorm, RmsNorm};
pub use norm::{Norm, NormConfig};
