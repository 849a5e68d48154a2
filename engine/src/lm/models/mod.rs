//! One file per `model_type`, or per kin of them; the first three are what they share.

pub mod base;
pub mod blocks;
pub mod decoder;

pub mod apertus;
pub mod cohere;
pub mod ernie4_5;
pub mod exaone;
pub mod exaone4;
pub mod gemma;
pub mod gemma2;
pub mod gemma3_text;
pub mod glm;
pub mod glm4;
pub mod gpt2;
pub mod gpt_neox;
pub mod granite;
pub mod helium;
pub mod internlm2;
pub mod internlm3;
pub mod llama;
pub mod mimo;
pub mod minicpm;
pub mod ministral3;
pub mod multimodal;
pub mod nemotron;
pub mod olmo2;
pub mod phi;
pub mod phi3;
pub mod qwen2;
pub mod qwen3;
pub mod seed_oss;
pub mod smollm3;
pub mod stablelm;
pub mod starcoder2;
pub mod telechat3;
