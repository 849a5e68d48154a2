use proptest::prelude::*;

use super::*;

fn sequence(id: u64, prompt: usize, max_new: usize) -> Sequence {
    Sequence {
        id: SeqId(id),
        priority: Priority::Normal,
        tokens: vec![1; prompt],
        prompt_len: prompt,
        computed: 0,
        max_len: prompt + max_new,
        stop_ids: vec![99],
        leader: None,
    }
}

fn scheduler(limits: Limits) -> Scheduler {
    Scheduler::new(limits, CacheCost::default())
}

/// Runs one step, drawing `token` for every row that draws. Returns the finished rows.
fn step(s: &mut Scheduler, token: TokenId) -> (Admission, StepPlan, Vec<(SeqId, FinishReason)>) {
    let admission = s.admit();
    let plan = s.plan();
    let mut finished = Vec::new();
    for span in &plan.spans {
        s.processed(span);
        s.ready_followers(span.id).into_iter().for_each(|id| s.forked(id));
        if let Some(reason) = span.draws.then(|| s.drew(span.id, token)).flatten() {
            s.remove(span.id);
            finished.push((span.id, reason));
        }
    }
    (admission, plan, finished)
}

fn ranges(plan: &StepPlan) -> Vec<(u64, Range<usize>)> {
    plan.spans.iter().map(|s| (s.id.0, s.range.clone())).collect()
}

#[test]
fn a_prompt_runs_in_chunks_and_then_decodes() {
    let mut s = scheduler(Limits { max_running: 1, step_tokens: 4, ..Limits::default() });
    s.add(sequence(1, 10, 2)).unwrap();
    let mut spans = Vec::new();
    let mut end = Vec::new();
    while !s.is_idle() {
        let (_, plan, finished) = step(&mut s, 5);
        spans.extend(plan.spans.iter().map(|s| (s.range.clone(), s.draws)));
        end.extend(finished);
    }
    assert_eq!(spans, [(0..4, false), (4..8, false), (8..10, true), (10..11, true)]);
    assert_eq!(end, [(SeqId(1), FinishReason::Length)]);
}

#[test]
fn a_stop_id_ends_a_sequence() {
    let mut s = scheduler(Limits::default());
    s.add(sequence(1, 3, 10)).unwrap();
    assert_eq!(step(&mut s, 99).2, [(SeqId(1), FinishReason::Stop)]);
    assert!(s.is_idle() && s.plan().is_empty());
}

#[test]
fn chunks_end_at_block_borders_and_a_short_prompt_slips_in() {
    let mut s = scheduler(Limits { step_tokens: 600, checkpoints: true, ..Limits::default() });
    s.add(sequence(1, 1400, 1)).unwrap();
    s.add(sequence(2, 100, 1)).unwrap();
    assert_eq!(ranges(&step(&mut s, 5).1), [(1, 0..512), (2, 0..88)]);
    assert_eq!(ranges(&step(&mut s, 5).1), [(1, 512..1024), (2, 88..100)]);
    assert_eq!(ranges(&step(&mut s, 5).1), [(1, 1024..1280)]);
    assert_eq!(ranges(&step(&mut s, 5).1), [(1, 1280..1400)]);

    s.add(sequence(3, 1400, 1)).unwrap();
    step(&mut s, 5);
    s.add(sequence(4, 100, 9)).unwrap();
    let (_, plan, _) = step(&mut s, 5);
    assert_eq!(ranges(&plan), [(3, 512..1024), (4, 0..88)], "what is left of the budget");
    s.add(sequence(5, 20, 9)).unwrap();
    let (_, plan, _) = step(&mut s, 5);
    assert_eq!(ranges(&plan), [(3, 1024..1280), (4, 88..100), (5, 0..20)]);
}

#[test]
fn prefill_beside_decoding_rows_is_bounded() {
    let mut s = scheduler(Limits { mixed_prefill: 256, ..Limits::default() });
    s.add(sequence(1, 3, 100)).unwrap();
    step(&mut s, 5);
    s.add(sequence(2, 2000, 1)).unwrap();
    assert_eq!(ranges(&step(&mut s, 5).1), [(1, 3..4), (2, 0..256)]);
    s.add(sequence(3, 100, 1)).unwrap();
    assert_eq!(ranges(&step(&mut s, 5).1), [(1, 4..5), (2, 256..512), (3, 0..100)]);
}

#[test]
fn followers_take_over_their_leaders_prompt() {
    let mut s = scheduler(Limits { max_running: 2, ..Limits::default() });
    s.add(sequence(1, 10, 2)).unwrap();
    for id in [2, 3] {
        s.add(Sequence { leader: Some(SeqId(1)), ..sequence(id, 10, 2) }).unwrap();
    }
    assert_eq!(ranges(&step(&mut s, 5).1), [(1, 0..9)]);
    assert_eq!(ranges(&step(&mut s, 5).1), [(1, 9..10), (2, 9..10)]);
    assert_eq!(ranges(&step(&mut s, 5).1), [(1, 10..11), (2, 10..11)]);
    assert_eq!(ranges(&step(&mut s, 5).1), [(3, 9..10)]);
}

#[test]
fn limits_refuse_with_the_figures() {
    let cost = CacheCost { fixed: 0, layers: vec![LayerCost { bytes_per_token: 10, window: None }] };
    let limits = Limits { max_running: 1, max_waiting: 1, memory: cost.bytes(100), ..Limits::default() };
    let mut s = Scheduler::new(limits, cost.clone());
    let refusal = Refusal::TooLarge { needs: cost.bytes(101), budget: cost.bytes(100) };
    assert_eq!(s.add(sequence(1, 100, 1)), Err(refusal));
    assert_eq!(s.longest(1000), 100);
    s.add(sequence(2, 10, 50)).unwrap();
    s.admit();
    s.add(sequence(3, 10, 5)).unwrap();
    assert_eq!(s.add(sequence(4, 10, 5)), Err(Refusal::QueueFull { waiting: 1 }));
}

#[test]
fn under_memory_pressure_the_last_in_rank_gives_way() {
    let cost = CacheCost { fixed: 0, layers: vec![LayerCost { bytes_per_token: 8, window: None }] };
    // Both fit while they are short; grown up only one does.
    let memory = cost.bytes(80) + cost.bytes(30);
    let mut s = Scheduler::new(Limits { memory, ..Limits::default() }, cost);
    s.add(sequence(1, 20, 60)).unwrap();
    s.add(Sequence { priority: Priority::Background, ..sequence(2, 20, 60) }).unwrap();
    let mut preempted = Vec::new();
    let mut finished = Vec::new();
    while !s.is_idle() {
        let (admission, plan, ended) = step(&mut s, 5);
        preempted.extend(admission.preempted);
        finished.extend(ended.into_iter().map(|(id, _)| id.0));
        assert!(s.is_idle() || !plan.is_empty());
    }
    assert!(!preempted.is_empty() && preempted.iter().all(|id| id.0 == 2), "{preempted:?}");
    assert_eq!(finished, [1, 2]);
}

#[test]
fn the_waiting_rise_in_rank() {
    let mut s = scheduler(Limits { max_running: 1, ageing: 4, ..Limits::default() });
    s.add(sequence(0, 1, 30)).unwrap();
    s.admit();
    s.add(Sequence { priority: Priority::Background, ..sequence(1, 1, 1) }).unwrap();
    for _ in 0..20 {
        step(&mut s, 5);
    }
    // It waits for as long as two classes take to rise.
    s.add(Sequence { priority: Priority::Interactive, ..sequence(2, 1, 1) }).unwrap();
    s.remove(SeqId(0));
    assert_eq!(step(&mut s, 5).0.admitted, [SeqId(1)]);
    assert_eq!(step(&mut s, 5).0.admitted, [SeqId(2)]);
}

#[test]
fn suspects_run_alone_until_they_are_past_the_fault() {
    let mut s = scheduler(Limits::default());
    for id in [1, 2, 3] {
        s.add(sequence(id, 4, 10)).unwrap();
    }
    step(&mut s, 5);
    s.suspect([SeqId(1), SeqId(2)]);
    assert_eq!(ranges(&step(&mut s, 5).1), [(1, 0..5)]);
    s.remove(SeqId(2));
    assert_eq!(ranges(&step(&mut s, 5).1), [(1, 5..6), (3, 4..5)]);
}

#[derive(Clone, Debug)]
enum Op {
    Add { prompt: usize, max_new: usize, priority: u8, follows: bool },
    Cancel(usize),
    Fault,
    Steps(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (1usize..700, 1usize..40, 0u8..3, any::<bool>())
            .prop_map(|(prompt, max_new, priority, follows)| Op::Add { prompt, max_new, priority, follows }),
        1 => (0usize..50).prop_map(Op::Cancel),
        1 => Just(Op::Fault),
        4 => (1usize..20).prop_map(Op::Steps),
    ]
}

/// What must hold after every step.
fn check(s: &Scheduler, plan: &StepPlan, decoding: &[SeqId]) -> Result<(), TestCaseError> {
    let planned: Vec<SeqId> = plan.spans.iter().map(|span| span.id).collect();
    let all_decode = decoding.iter().all(|id| planned.contains(id));
    prop_assert!(all_decode || planned.len() == 1, "a decoding row did not advance: {plan:?}");
    prop_assert!(s.running.len() <= s.limits.max_running);
    prop_assert!(s.running.len() == 1 || s.committed() <= s.limits.memory);
    let mut ids: Vec<SeqId> = s.running.iter().copied().chain(s.waiting.iter().map(|w| w.id)).collect();
    ids.sort_unstable();
    prop_assert_eq!(ids, s.sequences.keys().copied().collect::<Vec<_>>(), "a sequence is lost or doubled");
    let prefill: usize = plan.spans.iter().map(|span| span.range.len()).filter(|n| 1 < *n).sum();
    let alone = decoding.iter().all(|id| !planned.contains(id));
    let bound = if alone { s.limits.step_tokens } else { s.limits.mixed_prefill };
    prop_assert!(prefill <= 2 * bound, "{prefill} tokens of prefill in a step");
    prop_assert!(s.is_idle() || !plan.is_empty(), "work is left, but the plan is empty");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever arrives, leaves and fails when: every sequence ends, and the limits hold in every step.
    #[test]
    fn every_admitted_sequence_finishes(
        ops in prop::collection::vec(op(), 1..60),
        max_running in 1usize..6, step_tokens in 1usize..900, mixed_prefill in 1usize..300,
        memory in 1usize..4, checkpoints in any::<bool>(),
    ) {
        let cost = CacheCost { fixed: 10, layers: vec![
            LayerCost { bytes_per_token: 3, window: None },
            LayerCost { bytes_per_token: 5, window: Some(64) },
        ] };
        let memory = cost.bytes(740) * memory;
        let limits = Limits { max_running, step_tokens, mixed_prefill, memory, checkpoints, ageing: 16, max_waiting: 1000 };
        let mut s = Scheduler::new(limits, cost);
        let (mut next, mut added, mut ended) = (0u64, 0, 0);
        for op in ops.into_iter().chain([Op::Steps(200_000)]) {
            match op {
                Op::Add { prompt, max_new, priority, follows } => {
                    let priority = [Priority::Interactive, Priority::Normal, Priority::Background][priority as usize];
                    let mut new = Sequence { priority, ..sequence(next, prompt, max_new) };
                    let leader = s.sequences.values().rfind(|l| l.computed == 0 && l.generated() == 0 && l.leader.is_none());
                    if let Some(leader) = leader.filter(|_| follows) {
                        new.leader = Some(leader.id);
                        new.tokens = leader.tokens.clone();
                        new.prompt_len = new.tokens.len();
                        new.max_len = new.prompt_len + max_new;
                    }
                    s.add(new).unwrap();
                    (next, added) = (next + 1, added + 1);
                }
                Op::Cancel(id) => ended += usize::from(s.remove(SeqId(id as u64)).is_some()),
                Op::Fault => {
                    let ids: Vec<SeqId> = s.plan().spans.iter().map(|span| span.id).collect();
                    if 1 < ids.len() {
                        s.suspect(ids);
                    }
                }
                Op::Steps(n) => {
                    for _ in 0..n {
                        if s.is_idle() {
                            break;
                        }
                        let before: Vec<SeqId> = s.running.clone();
                        let admission = s.admit();
                        let decoding: Vec<SeqId> = before.iter().copied()
                            .filter(|id| s.running.contains(id) && s.sequences[id].pending() == 1).collect();
                        prop_assert!(admission.preempted.iter().all(|id| before.contains(id)));
                        let plan = s.plan();
                        check(&s, &plan, &decoding)?;
                        for span in &plan.spans {
                            s.processed(span);
                            s.ready_followers(span.id).into_iter().for_each(|id| s.forked(id));
                            if let Some(_reason) = span.draws.then(|| s.drew(span.id, 5)).flatten() {
                                s.remove(span.id);
                                ended += 1;
                            }
                        }
                    }
                }
            }
        }
        prop_assert!(s.is_idle(), "{} sequences are left", s.sequences.len());
        prop_assert_eq!(ended, added);
    }
}
