// SPDX-License-Identifier: Apache-2.0
//! Pieces of time and the longest events, with and without sums kept in memory, against the events themselves.

use crate::support::{Dice, call, create, end, off_cpu};
use gpuwhy_model::{Call, OffCpu, Reason, Wait};
use gpuwhy_store::{Bucket, Cut, Limits, Reader, Span, StackQuestion, StackText, TimeIndex};
use tempfile::TempDir;

const SECOND: u64 = 1_000_000_000;
const FUNCTIONS: [&str; 4] = ["cudaLaunchKernel", "cudaMalloc", "cudaStreamSynchronize", "cudaMemcpyAsync"];

struct Made {
    _folder: TempDir,
    reader: Reader,
    calls: Vec<Call>,
    offs: Vec<OffCpu>,
    index: TimeIndex,
}

/// Ten seconds of calls, mostly short, a few as long as a second; all begin at different times.
fn made() -> Made {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("run.db");
    let (mut writer, mut dice) = (create(&path), Dice(7));
    for id in 1..4 {
        let frames = format!("/home/me/train.py:{id} step");
        writer.add_stack(id, StackText { frames, top_line: format!("/home/me/train.py:{id}") });
    }
    let duration = |dice: &mut Dice| match dice.below(50) {
        0 => dice.below(SECOND),
        _ => dice.below(20_000),
    };
    let mut calls: Vec<Call> = (0..4_000u64)
        .map(|i| {
            let function = FUNCTIONS[dice.below(4) as usize];
            let (pid, stack) = (100 + dice.below(2) as u32, Some(1 + dice.below(3)));
            Call { pid, tid: pid, stack, ..call(function, i * 2_500_000 + dice.below(2_000_000), duration(&mut dice)) }
        })
        .collect();
    let mut offs: Vec<OffCpu> = (0..500u64)
        .map(|i| OffCpu {
            pid: 100,
            tid: 100,
            reason: Reason::Asleep,
            wait: Wait::Pipe,
            ..off_cpu(i * 20_000_000 + dice.below(10_000_000), duration(&mut dice), 0)
        })
        .map(|off| OffCpu { ready_ns: off.duration_ns / 3, ..off })
        .collect();
    writer.write_calls(&mut calls.clone()).unwrap();
    writer.write_off_cpu(&mut offs.clone()).unwrap();
    assert!(writer.finish(&end()).problem.is_none());
    let reader = Reader::open(&path).unwrap();
    let origin = reader.session().unwrap().start_monotonic_ns;
    calls.iter_mut().for_each(|call| call.start_ns -= origin);
    offs.iter_mut().for_each(|off| off.start_ns -= origin);
    let index = reader.time_index(&Limits::default()).unwrap().unwrap();
    Made { _folder: folder, reader, calls, offs, index }
}

fn parts() -> impl Iterator<Item = (u64, u64)> {
    let mut dice = Dice(3);
    (0..40).map(move |_| {
        let from = dice.below(9 * SECOND);
        // Some are shorter than a slot.
        let longest = [4 * SECOND, 30_000_000, 4_000_000][dice.below(3) as usize];
        (from, from + 1 + dice.below(longest))
    })
}

#[test]
fn sums_by_stack_are_the_same_with_an_index() {
    let made = made();
    let spans = parts().map(|(from, to)| Span::Between(from, Some(to)));
    for span in spans.chain([Span::All, Span::Between(3 * SECOND, None), Span::Last(SECOND)]) {
        for op in [None, Some("cudaMalloc".to_owned()), Some("sched_switch".to_owned())] {
            let question = StackQuestion { op, span, ..StackQuestion::default() };
            let indexed = made.reader.stacks_indexed(&question, Some(&made.index)).unwrap();
            assert_eq!(indexed, made.reader.stacks(&question).unwrap(), "{span:?}");
        }
    }
}

#[test]
fn short_pieces_have_the_calls_that_began_in_them() {
    let made = made();
    for (from, to) in parts() {
        let plain = made.reader.buckets((from, to), Cut::AtMost(7), &[101], None).unwrap();
        assert_eq!(plain, made.reader.buckets((from, to), Cut::AtMost(7), &[101], Some(&made.index)).unwrap());
        assert_eq!((plain[0].from_ns, plain.last().unwrap().to_ns), (from, to));
        for Bucket { from_ns, to_ns, launches, calls, cuda_ns, wait_ns, .. } in plain {
            let inside = |call: &&Call| call.pid == 101 && (from_ns..to_ns).contains(&call.start_ns);
            let of = |function: &str| {
                let op = gpuwhy_model::ops::by_function(function).unwrap().id;
                made.calls.iter().filter(inside).filter(move |call| call.op == op)
            };
            assert_eq!(launches, of("cudaLaunchKernel").count() as u64);
            assert_eq!(calls, made.calls.iter().filter(inside).count() as u64);
            assert_eq!(cuda_ns, made.calls.iter().filter(inside).map(|call| call.duration_ns).sum::<u64>());
            assert_eq!(wait_ns, of("cudaStreamSynchronize").map(|call| call.duration_ns).sum::<u64>());
        }
    }
}

#[test]
fn long_pieces_are_whole_seconds_and_add_up() {
    let made = made();
    let buckets = made.reader.buckets((0, 20 * SECOND), Cut::AtMost(5), &[], None).unwrap();
    assert!(buckets.iter().all(|bucket| bucket.from_ns % SECOND == 0) && buckets.len() <= 5);
    assert_eq!(buckets.iter().map(|bucket| bucket.calls).sum::<u64>(), made.calls.len() as u64);
}

#[test]
fn pieces_of_any_length_have_the_waits_that_overlap_them() {
    let made = made();
    let overlap = |from: u64, to: u64, piece: &Bucket| to.min(piece.to_ns).saturating_sub(from.max(piece.from_ns));
    for (from, to) in parts() {
        let width = (to - from).div_ceil(9);
        let pieces = made.reader.buckets((from, to), Cut::Every(width), &[], None).unwrap();
        assert!(pieces.iter().rev().skip(1).all(|piece| piece.to_ns - piece.from_ns == width));
        assert_eq!((pieces[0].from_ns, pieces.last().unwrap().to_ns), (from, to));
        for index in [None, Some(&made.index)] {
            let waits = made.reader.waits(&pieces, &[], index).unwrap();
            for (piece, waits) in pieces.iter().zip(&waits) {
                let sum = |of: fn(&OffCpu) -> (u64, u64)| {
                    made.offs.iter().map(of).map(|(from, to)| overlap(from, to, piece)).sum::<u64>()
                };
                let ready = sum(|off| (off.start_ns + off.duration_ns - off.ready_ns, off.start_ns + off.duration_ns));
                let blocked = sum(|off| (off.start_ns, off.start_ns + off.duration_ns - off.ready_ns));
                assert_eq!((waits.ready_ns, waits.launcher_ready_ns), (ready, ready), "{piece:?}");
                assert_eq!(waits.launcher_blocked_ns, blocked, "{piece:?}");
            }
            assert_eq!(made.reader.waits(&pieces, &[101], index).unwrap().iter().map(|w| w.ready_ns).sum::<u64>(), 0);
        }
    }
}

#[test]
fn the_longest_events_that_touch_a_part_are_found() {
    let made = made();
    for (from, to) in parts() {
        let calls = made.calls.iter().map(|call| (call.start_ns, call.duration_ns));
        let offs = made.offs.iter().map(|off| (off.start_ns, off.duration_ns));
        let touching = calls.chain(offs).filter(|(start, ns)| *start < to && start + ns >= from);
        let mut truth: Vec<u64> = touching.map(|(_, ns)| ns).collect();
        truth.sort_unstable_by_key(|ns| std::cmp::Reverse(*ns));
        truth.truncate(6);
        for index in [None, Some(&made.index)] {
            let found = made.reader.longest((from, to), &[], 6, index).unwrap();
            assert_eq!(found.iter().map(|event| event.duration_ns).collect::<Vec<_>>(), truth, "{from} to {to}");
        }
    }
}
