//! How GGUF files name the splitting of text before byte-level BPE.

use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

use super::{Result, TextError};

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const DIGIT: &str = r"\p{N}";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &[&str] = &[
    r"\p{N}{1,3}",
    r"[一-龥\x{3040}-ゟ゠-ヿ]+",
    r"[!\x22#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const FALCON: &[&str] = &[r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"];

/// Patterns that cut one after the other, each inside what the one before left.
fn patterns(pre: &str) -> Option<&'static [&'static str]> {
    Some(match pre {
        "gpt-2" | "gpt2" | "phi-2" | "mpt" | "olmo" | "jina-v2-code" | "jina-v2-es" | "jina-v2-de"
        | "modern-bert" | "roberta-bpe" | "gigachat" => &[GPT2],
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => {
            &[DIGIT, GPT2]
        }
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "pixtral" | "dbrx" | "smaug-bpe"
        | "chatglm-bpe" | "glm4" | "falcon-h1" | "lfm2" => &[LLAMA3],
        "qwen2" | "deepseek-r1-qwen" | "stablelm2" | "hunyuan" | "megrez" => &[QWEN2],
        "qwen35" => &[QWEN35],
        "deepseek-v3" | "deepseek-r1" | "hunyuan-dense" => DEEPSEEK3,
        "gpt-4o" | "llama4" | "kanana2" => &[O200K],
        "tekken" => &[TEKKEN],
        "falcon" => FALCON,
        _ => return None,
    })
}

pub(super) fn byte_level(pre: &str) -> Result<PreTokenizerWrapper> {
    let patterns = patterns(pre).ok_or_else(|| {
        TextError::Vocab(format!(
            "pre-tokenizer `{pre}` is not known; use the model's tokenizer.json, or another conversion"
        ))
    })?;
    let split = |pattern: &&str| {
        Split::new(SplitPattern::Regex((*pattern).to_owned()), SplitDelimiterBehavior::Isolated, false)
            .map(PreTokenizerWrapper::Split)
            .map_err(|err| TextError::Vocab(format!("pre-tokenizer `{pre}`: {err}")))
    };
    let mut steps = patterns.iter().map(split).collect::<Result<Vec<_>>>()?;
    steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)));
    Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
}
