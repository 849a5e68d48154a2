use std::fs;

use mlx_core::Dtype;
use mlx_core::attention::KvBuffer;
use proptest::prelude::*;

use super::*;
use crate::lm::cache::KvSpec;

const SPECS: [LayerSpec; 2] = [
    LayerSpec::Attention(KvSpec { n_heads: 2, head_dim: 4, v_head_dim: 4, window: None }),
    LayerSpec::Attention(KvSpec { n_heads: 1, head_dim: 4, v_head_dim: 2, window: Some(16) }),
];

fn tokens(seed: u32, n: usize) -> Vec<TokenId> {
    (0..n as u32).map(|i| i * 31 + seed).collect()
}

/// A cache whose numbers tell which token wrote them.
fn cache(tokens: &[TokenId]) -> SeqCache {
    let mut cache = SeqCache::new(&SPECS);
    for (i, spec) in SPECS.iter().enumerate() {
        let LayerSpec::Attention(spec) = spec;
        let crate::lm::cache::LayerCache::Attention(kv) = cache.layer(i);
        let buffer = kv.lend(0, 0, tokens.len(), Dtype::Float32);
        let fill = |x: Array, dim: usize| {
            let values: Vec<f32> = (0..spec.n_heads)
                .flat_map(|_| tokens.iter().flat_map(move |t| std::iter::repeat_n(*t as f32, dim)))
                .collect();
            let values = Array::from_slice(&values, &[spec.n_heads as i32, tokens.len() as i32, dim as i32]);
            x.slice_update(&values, &[0, 0, 0])
        };
        let (k, v) = (fill(buffer.k, spec.head_dim), fill(buffer.v, spec.v_head_dim));
        kv.restore(KvBuffer { k, v, start: buffer.start });
    }
    cache.advance(tokens.len());
    eval(cache.arrays()).unwrap();
    cache
}

/// Each layer's visible positions, as the tokens that wrote them.
fn contents(cache: &mut SeqCache) -> Vec<Vec<f32>> {
    let len = cache.len();
    (0..SPECS.len())
        .map(|i| {
            let crate::lm::cache::LayerCache::Attention(kv) = cache.layer(i);
            let buffer = kv.lend(len, len, 1, Dtype::Float32);
            let LayerSpec::Attention(spec) = SPECS[i];
            let visible = len - spec.window.map_or(len, |w| (w - 1).min(len));
            let from = visible as i32 - buffer.start;
            let part = |x: &Array| x.slice(1, from..len as i32 - buffer.start).to_vec::<f32>().unwrap();
            let both = [part(&buffer.k), part(&buffer.v)].concat();
            kv.restore(buffer);
            both
        })
        .collect()
}

fn options(ram_bytes: usize, folder: Option<&std::path::Path>) -> PrefixOptions {
    let disk = folder.map(|folder| DiskOptions { folder: folder.to_owned(), max_bytes: 1 << 30 });
    PrefixOptions { ram_bytes, disk }
}

fn remember(prefix: &mut Prefix, tokens: &[TokenId]) {
    prefix.insert(tokens, 0, &cache(tokens)).unwrap();
}

#[test]
fn a_hit_is_what_was_computed() {
    let mut prefix = Prefix::new(&options(1 << 30, None), "m").unwrap();
    let known = tokens(1, 1000);
    remember(&mut prefix, &known);
    let mut asked = known[..700].to_vec();
    asked.extend(tokens(9, 300));
    let mut hit = prefix.longest(&SPECS, &asked).unwrap();
    assert_eq!(hit.len(), 512);
    assert_eq!(contents(&mut hit), contents(&mut cache(&known[..512])));
    // All but the last token of an equal prompt, and nothing of another model's.
    assert_eq!(prefix.longest(&SPECS, &known[..512]).unwrap().len(), 256);
    assert!(prefix.longest(&SPECS, &tokens(2, 1000)).is_none());
    let stats = prefix.stats();
    assert_eq!((stats.blocks, stats.queries, stats.hit_tokens), (3, 3, 768));
}

#[test]
fn conversations_that_begin_alike_share_their_blocks() {
    let mut prefix = Prefix::new(&options(1 << 30, None), "m").unwrap();
    for seed in 0..10 {
        let mut conversation = tokens(1, 512);
        conversation.extend(tokens(100 + seed, 256));
        remember(&mut prefix, &conversation);
    }
    assert_eq!(prefix.stats().blocks, 12);
}

#[test]
fn memory_is_bounded_and_what_was_reused_stays() {
    let mut prefix = Prefix::new(&options(1 << 30, None), "m").unwrap();
    remember(&mut prefix, &tokens(0, 512));
    let bytes = prefix.stats().bytes;
    let mut prefix = Prefix::new(&options(2 * bytes, None), "m").unwrap();
    remember(&mut prefix, &tokens(0, 512));
    assert!(prefix.longest(&SPECS, &tokens(0, 600)).is_some());
    for seed in 1..11 {
        remember(&mut prefix, &tokens(seed, 512));
        assert!(prefix.stats().bytes <= 2 * bytes);
    }
    let known = |prefix: &mut Prefix, seed| prefix.longest(&SPECS, &tokens(seed, 600)).map_or(0, |c| c.len());
    assert_eq!(known(&mut prefix, 0), 512, "it was used");
    assert_eq!(known(&mut prefix, 10), 512, "the newest");
    assert_eq!(known(&mut prefix, 5), 0);
}

#[test]
fn a_restart_finds_the_blocks_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let open = |identity| Prefix::new(&options(1 << 30, Some(folder.path())), identity).unwrap();
    let known = tokens(3, 600);
    let mut prefix = open("m");
    remember(&mut prefix, &known);
    drop(prefix);
    let mut hit = open("m").longest(&SPECS, &known).unwrap();
    assert_eq!(contents(&mut hit), contents(&mut cache(&known[..512])));
    assert!(open("another model").longest(&SPECS, &known).is_none());
}

#[test]
fn a_damaged_file_is_a_miss_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Prefix::new(&options(1 << 30, Some(folder.path())), "m").unwrap();
    let known = tokens(3, 300);
    for damage in 0..4 {
        let mut prefix = open();
        remember(&mut prefix, &known);
        drop(prefix);
        let model = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let file = fs::read_dir(&model).unwrap().next().unwrap().unwrap().path();
        let mut bytes = fs::read(&file).unwrap();
        match damage {
            0 => bytes.truncate(bytes.len() - 5),
            1 => *bytes.last_mut().unwrap() ^= 1,
            2 => bytes.clear(),
            _ => bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes()),
        }
        fs::write(&file, bytes).unwrap();
        assert!(open().longest(&SPECS, &known).is_none(), "damage {damage}");
        assert!(!file.exists(), "damage {damage}");
    }
}

#[test]
fn a_folder_that_cannot_be_written_only_costs_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a file");
    fs::write(&file, "").unwrap();
    let mut prefix = Prefix::new(&options(1 << 30, Some(&file)), "m").unwrap();
    remember(&mut prefix, &tokens(1, 300));
    assert!(prefix.longest(&SPECS, &tokens(1, 300)).is_some());
}

proptest! {
    /// Whatever is inserted and asked for, nobody builds on a block that is gone, and sizes add up.
    #[test]
    fn the_index_stays_whole(ops in prop::collection::vec((0u32..6, 1usize..5, any::<bool>()), 1..100)) {
        let mut index = Index::new(1000);
        let root = index::seed("m");
        for (seed, blocks, use_it) in ops {
            let text = tokens(seed, blocks * BLOCK);
            let mut parent = None;
            for (key, block) in index::chain(root, &text) {
                if use_it {
                    index.used(key);
                } else {
                    index.insert(key, parent, block, 90 + seed as usize);
                }
                prop_assert!(!index.contains(key) || parent.is_none_or(|p| index.contains(p)));
                prop_assert!(index.bytes() <= 1000);
                parent = Some(key);
            }
        }
    }
}
