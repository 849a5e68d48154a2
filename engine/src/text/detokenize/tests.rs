use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::text::GgufVocab;

/// A character of GPT-2's alphabet for each byte, and some merges.
fn byte_level_vocab() -> GgufVocab {
    let alphabet = alphabet();
    let spelled = |byte: u8| *alphabet.iter().find(|(_, b)| **b == byte).unwrap().0;
    let mut tokens: Vec<String> = (0..=255).map(|b| spelled(b).to_string()).collect();
    let merges = ["h e", "he l", "Ġ w", "ð Ł"].map(String::from).to_vec();
    tokens.extend(merges.iter().map(|m| m.replace(' ', "")));
    let plain = tokens.len();
    tokens.push("<|end|>".into());
    let mut token_types = vec![1; plain];
    token_types.push(3);
    GgufVocab {
        model: "gpt2".into(),
        pre: "gpt-2".into(),
        eos: Some(plain as u32),
        tokens,
        token_types,
        merges,
        ..Default::default()
    }
}

/// Pieces, and a token for each byte.
fn sentencepiece_vocab(add_space_prefix: bool) -> GgufVocab {
    let mut tokens: Vec<String> = vec!["<unk>".into(), "<s>".into(), "</s>".into()];
    let mut token_types = vec![2, 3, 3];
    for byte in 0..=255u8 {
        tokens.push(format!("<0x{byte:02X}>"));
        token_types.push(6);
    }
    for piece in
        ["▁", "a", "b", "▁a", "ab", "▁ab", "!", "ň", "x", "=", ",", "▁x", "▁!", "▁=", "y", "z", "▁y", "▁z"]
    {
        tokens.push(piece.into());
        token_types.push(1);
    }
    let scores = (0..tokens.len()).map(|i| -(i as f32)).collect();
    GgufVocab {
        model: "llama".into(),
        scores,
        tokens,
        token_types,
        unknown: Some(0),
        bos: Some(1),
        eos: Some(2),
        add_space_prefix,
        add_bos: true,
        ..Default::default()
    }
}

fn tokenizers() -> Vec<(&'static str, Arc<Tokenizer>)> {
    let of = |vocab: GgufVocab| Arc::new(Tokenizer::from_gguf(&vocab).unwrap());
    vec![
        ("byte level", of(byte_level_vocab())),
        ("sentencepiece", of(sentencepiece_vocab(true))),
        ("sentencepiece without prefix", of(sentencepiece_vocab(false))),
    ]
}

fn streamed(tokenizer: &Arc<Tokenizer>, ids: &[TokenId]) -> Vec<String> {
    let mut detokenizer = tokenizer.detokenizer(false);
    let mut pieces: Vec<String> = ids.iter().map(|id| detokenizer.push(*id)).collect();
    pieces.push(detokenizer.finish());
    pieces
}

#[test]
fn text_survives_the_round_trip_in_whole_characters() {
    for text in ["ok 🧪🏽 ňů", " leading", "x != y , z", "hello world\n\tdone", "日本語", "a  b   c", ""]
    {
        for (name, tokenizer) in tokenizers() {
            let pieces = streamed(&tokenizer, &tokenizer.encode(text, false).unwrap());
            assert_eq!(pieces.concat(), text, "{name}");
            assert!(pieces.iter().all(|p| !p.contains(['\u{fffd}', '▁', 'Ġ'])), "{name}: {pieces:?}");
        }
    }
}

#[test]
fn a_character_that_stays_incomplete_is_one_replacement_at_the_end() {
    for (name, tokenizer) in tokenizers() {
        let ids = tokenizer.encode("ok 🧪", false).unwrap();
        let cut = streamed(&tokenizer, &ids[..ids.len() - 1]).concat();
        assert_eq!(cut, "ok \u{fffd}", "{name}");
    }
}

#[test]
fn special_tokens_are_skipped_or_spelled() {
    let (_, tokenizer) = tokenizers().remove(0);
    let ids = tokenizer.encode("hi<|end|>", false).unwrap();
    assert_eq!(*ids.last().unwrap(), tokenizer.token_id("<|end|>").unwrap());
    assert_eq!(tokenizer.decode(&ids, true), "hi");
    assert_eq!(tokenizer.decode(&ids, false), "hi<|end|>");
    assert!(tokenizer.ends().contains(ids.last().unwrap()));
}

#[test]
fn bos_is_added_once() {
    let (_, tokenizer) = tokenizers().remove(1);
    let count = |text: &str| {
        let ids = tokenizer.encode(text, true).unwrap();
        ids.iter().filter(|id| **id == tokenizer.bos_id().unwrap()).count()
    };
    assert_eq!((count("ab"), count("<s>ab")), (1, 1));
    assert!(!tokenizer.encode("ab", false).unwrap().contains(&tokenizer.bos_id().unwrap()));
}

/// A byte-level alphabet with SentencePiece's decoder, as some conversions have it.
#[test]
fn the_alphabet_decides_over_the_decoder() {
    let dir = tempfile::tempdir().unwrap();
    let vocab = byte_level_vocab();
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "vocab": vocab.tokens.iter().zip(0..).collect::<std::collections::BTreeMap<_, u32>>(),
            "merges": vocab.merges, "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false},
    });
    std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    let tokenizer = Arc::new(Tokenizer::from_folder(dir.path()).unwrap());
    for text in [" x != y , z", "ok 🧪🏽 ňů"] {
        assert_eq!(streamed(&tokenizer, &tokenizer.encode(text, false).unwrap()).concat(), text);
    }
}

#[test]
fn a_vocabulary_that_makes_no_sense_is_an_error() {
    let broken = [
        GgufVocab { model: "wordpiece".into(), ..byte_level_vocab() },
        GgufVocab { pre: "no-such".into(), ..byte_level_vocab() },
        GgufVocab { merges: vec!["nospace".into()], ..byte_level_vocab() },
        GgufVocab { merges: vec!["not there".into()], ..byte_level_vocab() },
    ];
    for vocab in broken {
        assert!(Tokenizer::from_gguf(&vocab).is_err(), "{} {} {:?}", vocab.model, vocab.pre, vocab.merges);
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Tokenizer::from_folder(dir.path()), Err(crate::text::TextError::NoTokenizer { .. })));
    std::fs::write(dir.path().join("tokenizer.json"), "{]").unwrap();
    assert!(Tokenizer::from_folder(dir.path()).is_err());
}

proptest! {
    /// Any tokens at all: the pieces joined are the bytes read as UTF-8, with replacements where they are none.
    #[test]
    fn any_tokens_stream_as_they_decode(ids in prop::collection::vec(0u32..260, 0..40)) {
        let (_, tokenizer) = tokenizers().remove(0);
        let mut bytes = Vec::new();
        ids.iter().for_each(|id| byte_level(&tokenizer.token(*id).unwrap(), &mut bytes));
        prop_assert_eq!(streamed(&tokenizer, &ids).concat(), String::from_utf8_lossy(&bytes));
        prop_assert_eq!(tokenizer.decode(&ids, false), String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn text_in_any_script_round_trips(text in "\\PC{0,20}") {
        for (_, tokenizer) in tokenizers() {
            let ids = tokenizer.encode(&text, false).unwrap();
            // A vocabulary's own control words and the space mark itself are not text.
            prop_assume!(!text.contains(['<', '▁']));
            prop_assert_eq!(streamed(&tokenizer, &ids).concat(), text.clone());
        }
    }
}
