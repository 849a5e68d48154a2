//! A tokenizer.json and a chat template. The input is one of the two, told by its first byte.
#![no_main]

use engine::text::{ChatInput, ChatTemplates, Tokenizer};
use libfuzzer_sys::fuzz_target;
use serde_json::json;

fuzz_target!(init: fuzz::contain_panics(), |bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    if *first == b'{' {
        fuzz::write("tokenizer.json", bytes);
        if let Ok(tokenizer) = Tokenizer::from_folder(fuzz::scratch()) {
            let ids = tokenizer.encode("Grüße, 世界! <s> \u{1f600}\n", true).unwrap_or_default();
            let whole = tokenizer.decode(&ids, false);
            let mut pieces = std::sync::Arc::new(tokenizer).detokenizer(false);
            let mut streamed: String = ids.iter().map(|id| pieces.push(*id)).collect();
            streamed.push_str(&pieces.finish());
            assert_eq!(streamed, whole);
        }
        return;
    }
    let Ok(source) = std::str::from_utf8(rest) else { return };
    let Ok(templates) = ChatTemplates::from_source(source, serde_json::Map::new()) else { return };
    let input = ChatInput {
        messages: vec![json!({"role": "system", "content": "a"}), json!({"role": "user", "content": "b"})],
        add_generation_prompt: true,
        ..ChatInput::default()
    };
    drop(templates.render(&input));
});
