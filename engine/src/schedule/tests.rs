use proptest::prelude::*;

use super::*;

fn sequence(id: u64, prompt: usize, max_new: usize) -> Sequence {
    Sequence {
        id: SeqId(id),
        tokens: vec![1; prompt],
        prompt_len: prompt,
        computed: 0,
        max_len: prompt + max_new,
        stop_ids: vec![99],
    }
}

/// Runs one step, drawing `token` for every row that draws. Returns the finished rows.
fn step(s: &mut Scheduler, token: TokenId) -> (StepPlan, Vec<(SeqId, FinishReason)>) {
    let plan = s.schedule();
    let mut finished = Vec::new();
    for span in &plan.spans {
        s.processed(span);
        if let Some(reason) = span.draws.then(|| s.drew(span.id, token)).flatten() {
            s.remove(span.id);
            finished.push((span.id, reason));
        }
    }
    (plan, finished)
}

#[test]
fn a_prompt_runs_in_chunks_and_then_decodes() {
    let mut s = Scheduler::new(Limits { max_running: 1, step_tokens: 8, prefill_chunk: 4 });
    s.add(sequence(1, 10, 2));
    let mut ranges = Vec::new();
    let mut end = Vec::new();
    while !s.is_idle() {
        let (plan, finished) = step(&mut s, 5);
        ranges.extend(plan.spans.iter().map(|s| (s.range.clone(), s.draws)));
        end.extend(finished);
    }
    assert_eq!(ranges, [(0..4, false), (4..8, false), (8..10, true), (10..11, true)]);
    assert_eq!(end, [(SeqId(1), FinishReason::Length)]);
}

#[test]
fn a_stop_id_ends_a_sequence() {
    let mut s = Scheduler::new(Limits::default());
    s.add(sequence(1, 3, 10));
    assert_eq!(step(&mut s, 99).1, [(SeqId(1), FinishReason::Stop)]);
    assert!(s.is_idle() && s.schedule().is_empty());
}

proptest! {
    /// Whatever arrives and leaves when, every sequence finishes, decoding rows advance in every step,
    /// and the budget holds.
    #[test]
    fn every_admitted_sequence_finishes(
        arrivals in prop::collection::vec((0usize..20, 1usize..40, 1usize..10, any::<bool>()), 1..20),
        max_running in 1usize..5, step_tokens in 1usize..16, prefill_chunk in 1usize..16,
    ) {
        let limits = Limits { max_running, step_tokens, prefill_chunk };
        let mut s = Scheduler::new(limits);
        let mut finished = 0;
        let mut cancelled = 0;
        for now in 0..5000 {
            for (id, &(at, prompt, max_new, _)) in arrivals.iter().enumerate() {
                if at == now {
                    s.add(sequence(id as u64, prompt, max_new));
                }
            }
            if now == 10 {
                for (id, a) in arrivals.iter().enumerate() {
                    cancelled += usize::from(a.3 && s.remove(SeqId(id as u64)).is_some());
                }
            }
            let decoding: Vec<SeqId> = s.running.iter().copied().filter(|id| s.sequences[id].pending() == 1).collect();
            let (plan, ended) = step(&mut s, 5);
            finished += ended.len();
            let planned: Vec<SeqId> = plan.spans.iter().map(|s| s.id).collect();
            prop_assert!(decoding.iter().all(|id| planned.contains(id)));
            let prefill: usize = plan.spans.iter().map(|s| s.range.len()).sum::<usize>() - decoding.len();
            prop_assert!(prefill <= step_tokens.max(1) && planned.len() <= max_running);
            prop_assert!(s.is_idle() || !plan.is_empty(), "work is left, but the plan is empty");
            if s.is_idle() && 20 <= now {
                break;
            }
        }
        prop_assert_eq!(finished + cancelled, arrivals.len());
    }
}
