// SPDX-License-Identifier: Apache-2.0
//! Checks the detailed timeline against a simple account of live memory, and that the sieve drops nothing that matters.
#![allow(missing_docs, clippy::unwrap_used)]

mod synth;

use gpuwhy_memory::{Analyser, Facts, Report, Sieve, StepFinder};
use gpuwhy_model::ops::{TorchOp, torch_op};
use gpuwhy_model::{MemoryEvent, TensorEvent};
use std::collections::{BTreeMap, HashMap};
use synth::{Dice, Job};

/// A job that allocates tensors and driver memory from many lines, frees some, pauses, runs out and ends.
fn job() -> Job {
    let (mut job, mut dice) = (Job::default(), Dice(11));
    let (mut tensors, mut direct) = (Vec::new(), Vec::new());
    for step in 0..200 {
        for _ in 0..dice.below(12) {
            tensors.push(job.alloc(512 * (1 + dice.below(4000)), 100 + dice.below(30)));
            job.launch(3);
        }
        if step % 3 == 0 {
            direct.push(job.malloc(4096, 200 + dice.below(2)));
        }
        if step % 7 == 0 && direct.len() > 3 {
            job.free_device(direct.remove(0), 9);
        }
        for _ in 0..dice.below(12).min(tensors.len() as u64) {
            job.free(tensors.swap_remove(dice.below(tensors.len() as u64) as usize));
        }
        job.launch(4);
        job.wait(50);
        job.now += dice.below(60) * dice.below(60) * 100;
    }
    job.refuse(1 << 40, 77);
    job.exit(1, 0);
    job
}

fn examine(job: &Job, facts: Facts, events: &[MemoryEvent], detailed: bool) -> Report {
    let mut finder = StepFinder::new(facts.from_ns, facts.to_ns);
    job.events.iter().for_each(|event| finder.feed(event));
    let analyser = Analyser::new(facts, finder.finish());
    let mut analyser = if detailed { analyser.in_detail() } else { analyser };
    events.iter().for_each(|event| analyser.feed(event));
    analyser.finish(&mut |ids| ids.iter().map(|id| (*id, synth::site(*id))).collect::<HashMap<_, _>>())
}

#[test]
fn the_sieve_keeps_enough_for_the_same_report() {
    let job = job();
    for from_ns in [0, job.now / 3] {
        let facts = Facts { from_ns, ..job.facts() };
        let mut sieve = Sieve::new(&[]);
        let kept: Vec<MemoryEvent> = job.events.iter().copied().filter(|event| sieve.keeps(event)).collect();
        assert!(kept.len() + 500 < job.events.len(), "{} of {}", kept.len(), job.events.len());
        let whole = examine(&job, facts.clone(), &job.events, false);
        assert!(whole.oom_count == 1 && whole.spaces.len() == 2, "{whole:#?}");
        assert_eq!(examine(&job, facts, &kept, false), whole);
    }
    let mut others = Sieve::new(&[1]);
    assert!(!job.events.iter().any(|event| others.keeps(event)), "events of another process");
}

/// Address → bytes and stack.
type Live = BTreeMap<u64, (u64, u64)>;

/// Live memory by line at the peak of a time range.
fn most_between(job: &Job, from: u64, to: u64) -> (u64, BTreeMap<String, u64>) {
    let (mut live, mut total) = (Live::new(), 0);
    let mut most: Option<(u64, Live)> = None;
    let tensors = job.events.iter().filter_map(|event| match event {
        MemoryEvent::Tensor(tensor) => Some(tensor),
        MemoryEvent::Call(_) => None,
    });
    for TensorEvent { at_ns, op, address, bytes, allocated, stack, .. } in tensors {
        if *at_ns >= to {
            break;
        }
        if *at_ns >= from && most.is_none() {
            most = Some((total, live.clone()));
        }
        if *op == torch_op(TorchOp::Alloc) {
            live.insert(*address, (*bytes, stack.unwrap()));
        } else if *op == torch_op(TorchOp::Free) {
            live.remove(address);
        }
        total = *allocated;
        if most.as_ref().is_some_and(|most| total > most.0) {
            most = Some((total, live.clone()));
        }
    }
    let (total, live) = most.unwrap_or((total, live));
    let mut by_line = BTreeMap::new();
    live.values().for_each(|(bytes, stack)| *by_line.entry(format!("job.py:{stack}")).or_default() += bytes);
    (total, by_line)
}

#[test]
fn memory_by_line_at_every_point_is_exact() {
    let job = job();
    for from_ns in [0, job.now / 3] {
        let facts = Facts { from_ns, ..job.facts() };
        let report = examine(&job, facts, &job.events, true);
        let space = report.spaces.iter().find(|space| space.timeline.len() > 300).unwrap();
        let live = space.live.as_ref().unwrap();
        assert_eq!(live.points.len(), space.timeline.len());
        let width = space.timeline[1].at_ns - space.timeline[0].at_ns;
        // The last point has what is left over by the division.
        for (point, held) in space.timeline.iter().zip(&live.points).take(space.timeline.len() - 1) {
            let (most, mut by_line) = most_between(&job, point.at_ns, point.at_ns + width);
            assert_eq!(point.allocated, most, "{point:?}");
            for (line, bytes) in &held.lines {
                let line = live.lines[*line as usize].line.as_ref().unwrap();
                assert_eq!(by_line.remove(line), Some(*bytes), "{line} at {}", point.at_ns);
            }
            assert_eq!(held.others, by_line.values().sum::<u64>(), "{point:?}");
            let least = held.lines.last().map_or(0, |last| last.1);
            assert!(by_line.values().all(|bytes| *bytes <= least), "the largest lines are listed");
            assert_eq!(held.unseen, 0);
        }
    }
}
