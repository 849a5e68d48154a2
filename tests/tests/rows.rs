//! Over every tiny model: how tokens are split into forwards, and what runs beside them, never shows.

use engine::lm::CausalLm;
use engine::lm::cache::SeqCache;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tests::{goldens, model};

/// Runs `property` with a few inputs on each model.
fn for_all<S: Strategy>(
    inputs: &S,
    property: impl Fn(&dyn CausalLm, &[u32], S::Value) -> Result<(), TestCaseError>,
) {
    for case in goldens::cases() {
        let lm = case.load().unwrap_or_else(|err| panic!("{}: {err}", case.name));
        let mut runner = TestRunner::new(Config { cases: 4, failure_persistence: None, ..Config::default() });
        let run = runner.run(inputs, |input| property(&*lm, &case.prompt, input));
        run.unwrap_or_else(|err| panic!("{}: {err}", case.name));
    }
}

fn whole(lm: &dyn CausalLm, tokens: &[u32]) -> Vec<f32> {
    model::extend(lm, &mut SeqCache::new(lm.layers()), tokens)
}

fn same(a: &[f32], b: &[f32]) -> Result<(), TestCaseError> {
    prop_assert_eq!(model::distance(a, b), 0.0);
    Ok(())
}

#[test]
fn a_prompt_in_chunks_is_the_prompt() {
    for_all(&prop::collection::vec(1..20usize, 1..16), |lm, prompt, widths| {
        let mut cache = SeqCache::new(lm.layers());
        let (mut logits, mut rest) = (Vec::new(), prompt);
        for width in widths {
            let (chunk, tail) = rest.split_at(width.min(rest.len()));
            if !chunk.is_empty() {
                logits.extend(model::extend(lm, &mut cache, chunk));
            }
            rest = tail;
        }
        same(&logits, &whole(lm, prompt)[..logits.len()])
    });
}

#[test]
fn rows_that_share_a_forward_do_not_meet() {
    for_all(&(1..20usize, 1..20usize, 1..8usize), |lm, prompt, (first, second, more)| {
        let (a, b) = (&prompt[..first + more], &prompt[prompt.len() - second - more..]);
        let (mut cache_a, mut cache_b) = (SeqCache::new(lm.layers()), SeqCache::new(lm.layers()));
        model::extend(lm, &mut cache_a, &a[..first]);
        model::extend(lm, &mut cache_b, &b[..second]);
        let got = model::logits(lm, &mut [(&mut cache_a, &a[first..]), (&mut cache_b, &b[second..])]);
        let vocab = lm.vocab_size();
        same(&got[0], &whole(lm, a)[first * vocab..])?;
        same(&got[1], &whole(lm, b)[second * vocab..])
    });
}

#[test]
fn a_round_leaves_what_it_commits() {
    let inputs =
        (1..12usize, 1..8usize).prop_flat_map(|(start, drafted)| (Just(start), Just(drafted), 0..=drafted));
    for_all(&inputs, |lm, prompt, (start, drafted, keep)| {
        let mut cache = SeqCache::new(lm.layers());
        model::extend(lm, &mut cache, &prompt[..start]);
        // Drafts beyond `keep` are wrong tokens, which must leave no trace.
        let mut drafts = prompt[start..start + drafted].to_vec();
        drafts[keep..].iter_mut().for_each(|token| *token = (*token + 1) % lm.vocab_size() as u32);
        let mut round = cache.begin();
        model::extend(lm, &mut round, &drafts);
        match keep {
            0 => drop(round),
            _ => round.commit(keep),
        }
        prop_assert_eq!(cache.len(), start + keep);
        let rest = &prompt[start + keep..start + drafted + 6];
        let got = model::extend(lm, &mut cache, rest);
        same(&got, &whole(lm, &prompt[..start + drafted + 6])[(start + keep) * lm.vocab_size()..])
    });
}
