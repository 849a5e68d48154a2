//! The vocabulary that a GGUF file carries, built into a tokenizer.

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{Prepend, Replace, Sequence as Normalizers};
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper, Tokenizer};

use super::pretokenize;
use super::{Result, TextError};
use crate::protocol::TokenId;

/// The `tokenizer.*` keys of a GGUF file, as plain data.
#[derive(Clone, Debug, Default)]
pub struct GgufVocab {
    /// `gpt2` (byte-level BPE) or `llama` (SentencePiece BPE).
    pub model: String,
    /// Name of the pre-tokenizer, of `gpt2` models.
    pub pre: String,
    pub tokens: Vec<String>,
    /// Of `llama` models: merges go by the score of what they make.
    pub scores: Vec<f32>,
    /// 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Vec<i64>,
    pub merges: Vec<String>,
    pub bos: Option<TokenId>,
    pub eos: Option<TokenId>,
    pub unknown: Option<TokenId>,
    /// End of turn and end of message, where they differ from `eos`.
    pub other_ends: Vec<TokenId>,
    pub add_bos: bool,
    pub add_eos: bool,
    pub add_space_prefix: bool,
    pub chat_template: Option<String>,
}

const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// Control tokens that end a turn whatever the metadata says of them.
const TURN_ENDS: &[&str] =
    &["<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>"];

impl GgufVocab {
    pub(super) fn build(&self) -> Result<Tokenizer> {
        let mut tokenizer = match self.model.as_str() {
            "gpt2" => self.byte_level()?,
            "llama" => self.sentencepiece()?,
            other => {
                return Err(TextError::Vocab(format!(
                    "tokenizer model `{other}` is not supported; supported: gpt2, llama"
                )));
            }
        };
        let added = |kind: i64, special: bool| {
            let of_kind = self.tokens.iter().zip(&self.token_types).filter(move |(_, t)| **t == kind);
            of_kind.map(move |(text, _)| AddedToken::from(text.clone(), special).normalized(false))
        };
        let failed = |err| TextError::Vocab(format!("added tokens: {err}"));
        tokenizer.add_special_tokens(added(CONTROL, true).collect::<Vec<_>>()).map_err(failed)?;
        tokenizer.add_tokens(added(USER_DEFINED, false).collect::<Vec<_>>()).map_err(failed)?;
        Ok(tokenizer)
    }

    /// Ids that end a sequence.
    pub(super) fn ends(&self) -> Vec<TokenId> {
        let named = self.tokens.iter().zip(&self.token_types).zip(0..).filter_map(|((text, kind), id)| {
            (*kind == CONTROL && TURN_ENDS.contains(&text.as_str())).then_some(id)
        });
        let mut ends: Vec<TokenId> =
            self.eos.into_iter().chain(self.other_ends.clone()).chain(named).collect();
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    fn ids(&self) -> Vocab {
        self.tokens.iter().cloned().zip(0..).collect()
    }

    fn byte_level(&self) -> Result<Tokenizer> {
        let merge = |merge: &String| {
            // A merged piece may begin with the separator itself only after its first character.
            let at = merge.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(i, _)| i);
            at.map(|i| (merge[..i].to_owned(), merge[i + 1..].to_owned()))
                .ok_or_else(|| TextError::Vocab(format!("merge `{merge}` has no two parts")))
        };
        let merges = self.merges.iter().map(merge).collect::<Result<Vec<_>>>()?;
        let bpe = BPE::builder()
            .vocab_and_merges(self.ids(), merges)
            // Llama 3's vocabulary holds whole words that its merges do not reach.
            .ignore_merges(matches!(self.pre.as_str(), "llama-bpe" | "llama3" | "llama-v3"))
            .build()
            .map_err(|err| TextError::Vocab(err.to_string()))?;
        let mut tokenizer = Tokenizer::new(bpe);
        tokenizer.with_pre_tokenizer(Some(pretokenize::byte_level(&self.pre)?));
        tokenizer.with_decoder(Some(ByteLevel::new(true, true, true)));
        Ok(tokenizer)
    }

    fn sentencepiece(&self) -> Result<Tokenizer> {
        let ids = self.ids();
        let unknown = self.unknown.and_then(|id| self.tokens.get(id as usize));
        let mut bpe = BPE::builder()
            .vocab_and_merges(ids.clone(), self.merges_by_score(&ids))
            .byte_fallback(true)
            .fuse_unk(true);
        if let Some(unknown) = unknown {
            bpe = bpe.unk_token(unknown.clone());
        }
        let mut tokenizer = Tokenizer::new(bpe.build().map_err(|err| TextError::Vocab(err.to_string()))?);

        let replace = |from: &str, to: &str| {
            Replace::new(from, to).map_err(|err| TextError::Vocab(format!("normalizer: {err}")))
        };
        let mut normalizers = vec![NormalizerWrapper::Replace(replace(" ", "▁")?)];
        let mut decoders = vec![
            DecoderWrapper::Replace(replace("▁", " ")?),
            DecoderWrapper::ByteFallback(ByteFallback::new()),
            DecoderWrapper::Fuse(Fuse::new()),
        ];
        if self.add_space_prefix {
            normalizers.insert(0, NormalizerWrapper::Prepend(Prepend::new("▁".to_owned())));
            decoders.push(DecoderWrapper::Strip(Strip::new(' ', 1, 0)));
        }
        let normalizer = tokenizer.with_normalizer(Some(Normalizers::new(normalizers)));
        normalizer.map_err(|err| TextError::Vocab(format!("normalizer: {err}")))?;
        tokenizer.with_decoder(Some(DecoderWrapper::Sequence(Decoders::new(decoders))));
        Ok(tokenizer)
    }

    /// Every way to make a piece of two others, best scores first: SentencePiece merges the pair whose
    /// result scores highest.
    fn merges_by_score(&self, ids: &Vocab) -> Vec<(String, String)> {
        let score = |id: u32| self.scores.get(id as usize).copied().unwrap_or(0.0);
        let mut merges = Vec::new();
        for (id, piece) in self.tokens.iter().enumerate() {
            if self.token_types.get(id).is_some_and(|t| *t != 1 && *t != USER_DEFINED) {
                continue;
            }
            for (i, _) in piece.char_indices().skip(1) {
                if let (Some(&a), Some(&b)) = (ids.get(&piece[..i]), ids.get(&piece[i..])) {
                    merges.push((id as u32, a, b));
                }
            }
        }
        merges.sort_by(|x, y| score(y.0).total_cmp(&score(x.0)).then(x.cmp(y)));
        let text = |id: u32| self.tokens[id as usize].clone();
        merges.into_iter().map(|(_, a, b)| (text(a), text(b))).collect()
    }
}
