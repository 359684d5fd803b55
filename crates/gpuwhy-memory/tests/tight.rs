// SPDX-License-Identifier: Apache-2.0
//! Jobs under a tight budget: the report claims no more than is known.
#![allow(missing_docs, clippy::unwrap_used)]

mod synth;

use gpuwhy_memory::report::Source;
use gpuwhy_memory::{Facts, Unreported};
use gpuwhy_model::MemoryEvent;
use synth::{Job, MB, PID, step};

/// From step 60 on the budget is tight and small tensors have no line: they are not a second leak.
#[test]
fn small_tensors_that_lose_their_line_are_not_another_leak() {
    let mut job = Job::default();
    let mut tight_from = 0;
    for number in 0..120 {
        step(&mut job, number, 4);
        job.alloc(4 * MB, 7);
        job.alloc(MB / 16, 7);
        if number == 59 {
            tight_from = job.now;
        }
    }
    for event in &mut job.events {
        if let MemoryEvent::Tensor(tensor) = event
            && tensor.at_ns > tight_from
            && tensor.bytes < MB
        {
            tensor.stack = None;
        }
    }
    let report = job.examine();
    let [leak] = report.leaks.as_slice() else { panic!("{:#?}", report.leaks) };
    assert_eq!((leak.line.as_deref(), leak.onset_step), (Some("job.py:7"), Some(2)), "it is kept after the wait");
    let rate = leak.bytes_per_step.unwrap();
    assert!((rate / (4.0625 * MB as f64) - 1.0).abs() < 0.02, "{rate}");
}

/// Without a larger leak that has a line, a leak without a line is reported.
#[test]
fn a_leak_of_small_tensors_without_lines_is_still_a_leak() {
    let mut job = Job::default();
    for number in 0..120 {
        step(&mut job, number, 4);
        job.alloc(MB / 16, 7);
    }
    for event in &mut job.events {
        if let MemoryEvent::Tensor(tensor) = event
            && tensor.bytes < MB
        {
            tensor.stack = None;
        }
    }
    let report = job.examine();
    let [leak] = report.leaks.as_slice() else { panic!("{:#?}", report.leaks) };
    assert_eq!(leak.line, None);
}

/// Reports are paused in the middle to stay within the budget: PyTorch's driver allocations from then on do not count as
/// memory outside PyTorch.
#[test]
fn memory_taken_while_reports_are_paused_does_not_count_as_outside_pytorch() {
    let mut job = Job::default();
    let mut from_ns = 0;
    for number in 0..120 {
        step(&mut job, number, 4);
        job.alloc(4 * MB, 7);
        if number == 59 {
            from_ns = job.now + 1;
        }
    }
    job.events.retain(|event| matches!(event, MemoryEvent::Call(_)) || event.at_ns() < from_ns);
    let seen = job.examine();
    assert!(seen.spaces.iter().any(|space| space.source == Source::Driver), "without that knowledge they seem to be");
    let facts = Facts { unreported: vec![Unreported { from_ns, to_ns: job.now + 1, pid: None }], ..job.facts() };
    let known = job.examine_with(facts);
    assert!(known.spaces.iter().all(|space| space.source == Source::Torch), "{:#?}", known.fragmentation);
    // What another process does not report means nothing for this one.
    let all_torch = |pid| {
        let unreported = vec![Unreported { from_ns, to_ns: job.now + 1, pid: Some(pid) }];
        let report = job.examine_with(Facts { unreported, ..job.facts() });
        report.spaces.iter().all(|space| space.source == Source::Torch)
    };
    assert!(all_torch(PID) && !all_torch(PID + 1));
    // Live memory is constant from then on; that does not mean a full cache.
    let [leak] = known.leaks.as_slice() else { panic!("{:#?}", known.growths) };
    assert_eq!((leak.line.as_deref(), leak.bytes_per_step), (Some("job.py:7"), Some(4.0 * MB as f64)));
    assert!(known.verdict.contains("up to") && known.verdict.contains("--budget"), "{}", known.verdict);
    // In a range before that nothing is missing; after it, little is known.
    let unreported = vec![Unreported { from_ns, to_ns: job.now + 1, pid: None }];
    let before = job.examine_with(Facts { unreported: unreported.clone(), to_ns: from_ns - 1, ..job.facts() });
    assert!(!before.verdict.contains("--budget") && before.leaks.len() == 1, "{}", before.verdict);
    let after = job.examine_with(Facts { unreported, from_ns: from_ns + 1, ..job.facts() });
    assert!(after.verdict.contains("little is certain"), "{}", after.verdict);
}
