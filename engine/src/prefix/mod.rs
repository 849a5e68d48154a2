//! What was computed for one request serves the next that begins alike.
//!
//! Caches are remembered in blocks of [`BLOCK`] tokens. A block's key hashes its tokens and its parent's key,
//! so a key stands for the whole text up to its end, and conversations that begin alike share their blocks.
//! A hit copies a chain of blocks into a fresh cache; rows keep their own buffers and never wait for each other.
//! Nothing of this shows in an answer: rows are exact wherever a prefill was cut.

mod disk;
mod index;

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use mlx_core::{Array, Error, eval};

use crate::lm::cache::{LayerBlock, LayerSpec, SeqCache};
use crate::protocol::TokenId;
use crate::schedule::BLOCK;
use disk::Disk;
use index::Index;

pub use index::Key;

/// Where blocks are kept, and how much of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixOptions {
    /// Bytes in memory; 0 remembers nothing.
    pub ram_bytes: usize,
    pub disk: Option<DiskOptions>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    pub folder: PathBuf,
    pub max_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixStats {
    pub blocks: usize,
    pub bytes: usize,
    /// Lookups, and the tokens that they asked for.
    pub queries: u64,
    pub query_tokens: u64,
    pub hit_tokens: u64,
    /// Of these, tokens that were read from disk.
    pub disk_hit_tokens: u64,
    pub evictions: u64,
}

/// What each layer keeps of a block.
type Layers = Vec<Option<LayerBlock>>;

struct NewBlock<'a> {
    key: Key,
    parent: Option<Key>,
    tokens: &'a [TokenId],
    layers: Layers,
}

pub struct Prefix {
    seed: Key,
    index: Index,
    blocks: HashMap<Key, Layers>,
    disk: Option<Disk>,
    stats: PrefixStats,
}

impl Prefix {
    /// `identity` names all that the arrays depend on beside the tokens: model, layout, types. `None` if the options
    /// keep nothing.
    pub fn new(options: &PrefixOptions, identity: &str) -> Option<Self> {
        if options.ram_bytes == 0 {
            return None;
        }
        let seed = index::seed(identity);
        let disk = options.disk.as_ref().and_then(|options| Disk::open(options, seed));
        Some(Self {
            seed,
            index: Index::new(options.ram_bytes),
            blocks: HashMap::new(),
            disk,
            stats: PrefixStats::default(),
        })
    }

    pub fn stats(&self) -> PrefixStats {
        PrefixStats {
            blocks: self.blocks.len(),
            bytes: self.index.bytes(),
            evictions: self.index.evictions(),
            ..self.stats
        }
    }

    pub fn clear(&mut self) {
        self.blocks.clear();
        self.index.clear();
        if let Some(disk) = &self.disk {
            disk.clear();
        }
    }

    /// A cache that holds the longest known beginning of `tokens`, at least one token short of all of it.
    pub fn longest(&mut self, specs: &[LayerSpec], tokens: &[TokenId]) -> Option<SeqCache> {
        self.stats.queries += 1;
        self.stats.query_tokens += tokens.len() as u64;
        let mut chain = Vec::new();
        for (key, block) in index::chain(self.seed, tokens) {
            let last = (chain.len() + 1) * BLOCK == tokens.len();
            if last || !self.find(specs, key, chain.last().copied(), block) {
                break;
            }
            chain.push(key);
        }
        let known = chain.len();
        // A recurrent layer can go on only from where its state was kept.
        let whole = |key: &Key| self.blocks[key].iter().all(Option::is_some);
        while chain.last().is_some_and(|key| !whole(key)) {
            chain.pop();
        }
        self.report(tokens, known, chain.len());
        let len = chain.len() * BLOCK;
        self.stats.hit_tokens += len as u64;
        let blocks: Vec<_> = chain.iter().map(|key| &self.blocks[key][..]).collect();
        let cache = (!chain.is_empty()).then(|| SeqCache::from_blocks(specs, &blocks, len));
        chain.iter().for_each(|key| self.index.used(*key));
        cache
    }

    /// Whether the block is in memory, now that it was looked for on disk.
    fn find(&mut self, specs: &[LayerSpec], key: Key, parent: Option<Key>, tokens: &[TokenId]) -> bool {
        if self.blocks.contains_key(&key) {
            return true;
        }
        let Some(block) = self.disk.as_ref().and_then(|disk| disk.read(key, specs.len())) else {
            return false;
        };
        self.stats.disk_hit_tokens += BLOCK as u64;
        self.hold(NewBlock { key, parent, tokens, layers: block });
        self.index.saved(key);
        self.blocks.contains_key(&key)
    }

    /// Says of a long prompt that was not known where it left the known ones.
    fn report(&self, tokens: &[TokenId], known: usize, resumed: usize) {
        if tokens.len() < (resumed + 2) * BLOCK {
            return;
        }
        let parent =
            known.checked_sub(1).and_then(|i| index::chain(self.seed, tokens).nth(i)).map(|(key, _)| key);
        let rest = &tokens[known * BLOCK..];
        let same = self.index.longest_common(parent, rest);
        tracing::info!(
            prompt = tokens.len(),
            resumed = resumed * BLOCK,
            diverged_at = known * BLOCK + same,
            "the prompt is known only in part"
        );
    }

    /// Remembers the blocks of `tokens` that `cache`, which holds all of them, completed after `from`.
    pub fn insert(&mut self, tokens: &[TokenId], from: usize, cache: &SeqCache) -> Result<(), Error> {
        let mut parent = None;
        let mut new: Vec<NewBlock<'_>> = Vec::new();
        for (i, (key, tokens)) in index::chain(self.seed, tokens).enumerate() {
            let end = (i + 1) * BLOCK;
            if from < end && end <= cache.len() {
                // A block without its recurrent states is replaced by one that has them.
                let known = self.blocks.get(&key);
                let better = |b: &[Option<LayerBlock>]| b.iter().any(Option::is_none) && end == cache.len();
                if known.is_none_or(|b| better(b)) {
                    new.push(NewBlock { key, parent, tokens, layers: cache.block(end) });
                }
            }
            parent = Some(key);
        }
        eval(new.iter().flat_map(|block| block.layers.iter().flatten().flatten()))?;
        new.into_iter().for_each(|block| self.hold(block));
        self.persist();
        Ok(())
    }

    fn hold(&mut self, NewBlock { key, parent, tokens, layers }: NewBlock<'_>) {
        let bytes = layers.iter().flatten().flatten().map(Array::nbytes).sum();
        for evicted in self.index.insert(key, parent, tokens, bytes) {
            self.blocks.remove(&evicted);
        }
        if self.index.contains(key) {
            self.blocks.insert(key, layers);
        }
    }

    /// Hands blocks that only memory holds to the disk's thread, as many as it takes; returns whether some are left.
    pub fn persist(&mut self) -> bool {
        let Some(disk) = &self.disk else { return false };
        while let Some(key) = self.index.first_unsaved() {
            if !disk.write(key, &self.blocks[&key]) {
                return true;
            }
            self.index.saved(key);
        }
        false
    }
}

impl Drop for Prefix {
    /// What is remembered outlives the engine.
    fn drop(&mut self) {
        while self.persist() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[cfg(test)]
mod tests;
