//! One file per `model_type`.

pub mod llama;
