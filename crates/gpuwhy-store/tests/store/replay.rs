// SPDX-License-Identifier: Apache-2.0
//! A run played again is the run that was recorded, in order.

use crate::support::*;
use gpuwhy_model::{Call, CallFlags, CpuRun, Event, MovedWait, OffCpu, Reason, Wait, WokenBy};
use gpuwhy_store::Reader;
use rusqlite::Connection;
use std::ops::ControlFlow;
use std::path::Path;

fn run(cpu: u16, at: u64) -> CpuRun {
    let name = *b"kworker/0\0\0\0\0\0\0\0";
    CpuRun { start_ns: ORIGIN + at, duration_ns: 40, pid: 900, tid: 901 + at as u32 % 5, cpu, name }
}

fn moved(tid: u32, at: u64) -> MovedWait {
    MovedWait { start_ns: ORIGIN + at, duration_ns: 7, pid: 200, tid, cpu: 3 }
}

/// The event as it is played: times since the run began.
fn played(mut event: Event) -> Event {
    let start = match &mut event {
        Event::Call(call) => &mut call.start_ns,
        Event::Off(off) => &mut off.start_ns,
        Event::Run(run) => &mut run.start_ns,
        Event::Moved(moved) => &mut moved.start_ns,
    };
    *start -= ORIGIN;
    event
}

fn rank(event: &Event) -> (u64, u8, u32) {
    match event {
        Event::Call(call) => (call.start_ns, 0, 0),
        Event::Off(off) => (off.start_ns, 1, 0),
        Event::Run(run) => (run.start_ns, 2, u32::from(run.cpu)),
        Event::Moved(moved) => (moved.start_ns, 3, moved.tid),
    }
}

fn all(reader: &Reader, from: u64, to: Option<u64>) -> Vec<(Event, u64)> {
    let mut events = Vec::new();
    let count = reader.replay(from, to, |event| {
        events.push((*event, event.weight()));
        ControlFlow::Continue(())
    });
    assert_eq!(count.unwrap(), events.len() as u64);
    events
}

fn events(reader: &Reader) -> Vec<Event> {
    all(reader, 0, None).into_iter().map(|(event, _)| event).collect()
}

/// Times off the CPU of every kind.
fn any_off(at: u64, dice: &mut Dice) -> OffCpu {
    let wait = Wait::ALL[dice.below(Wait::ALL.len() as u64) as usize];
    let woken_by = WokenBy::ALL[dice.below(WokenBy::ALL.len() as u64) as usize];
    let nobody = woken_by == WokenBy::Nobody;
    OffCpu {
        tid: 200 + dice.below(9) as u32,
        reason: Reason::ALL[dice.below(Reason::ALL.len() as u64) as usize],
        wait,
        syscall: (dice.below(3) > 0).then(|| dice.below(450) as u16),
        file: match wait {
            Wait::File => [0xEF53, 0x6969, 0x1234][dice.below(3) as usize],
            Wait::BlockDevice | Wait::Gpu | Wait::CharDevice => 195 << 20 | dice.below(256) as u32,
            Wait::Socket => 1 + dice.below(60) as u32,
            _ => 0,
        },
        object: if dice.below(2) == 0 { 0 } else { dice.next() },
        timeout_ns: (dice.below(3) == 0).then(|| dice.below(1 << 40)),
        io_wait: dice.below(5) == 0,
        woken_by,
        waker_pid: if nobody { 0 } else { dice.below(1 << 22) as u32 },
        waker_tid: if nobody { 0 } else { dice.below(1 << 22) as u32 },
        left_cpu: dice.below(512) as u16,
        cpu: dice.below(512) as u16,
        unfinished: dice.below(30) == 0,
        weight: 1,
        stack: dice.below(4).checked_sub(1).map(|n| n << 62),
        ..off_cpu(at, 1_000 + dice.below(9_000), dice.below(900))
    }
}

#[test]
fn what_was_put_in_comes_out_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut dice = Dice(77);
    let mut calls = any_calls(5_000, 78);
    // No two calls at once, since those would be moved apart.
    (0..).zip(&mut calls).for_each(|(i, call)| call.start_ns = ORIGIN + i * 1_000 + i % 7);
    let mut offs: Vec<OffCpu> = (0..4_000).map(|i| any_off(i * 1_300 + i % 3, &mut dice)).collect();
    let runs: Vec<CpuRun> = (0..3_000).map(|i| run((i * i % 17 * 31) as u16, i * 1_000)).collect();
    let waits: Vec<MovedWait> = (0..500).map(|i| moved(200 + (i * 7 % 9) as u32, i * 9_100 % 400_000)).collect();
    let mut writer = create(&path);
    for batch in calls.chunks_mut(700) {
        writer.write_calls(batch).unwrap();
    }
    writer.write_off_cpu(&mut offs).unwrap();
    writer.write_cpu_runs(&runs).unwrap();
    writer.write_moved_waits(&waits).unwrap();
    assert!(writer.finish(&end()).problem.is_none());

    // A duration has at most 63 bits in the file.
    calls.iter_mut().for_each(|call| call.duration_ns = call.duration_ns.min(i64::MAX as u64));
    let mut expected: Vec<Event> = calls.into_iter().map(Event::Call).collect();
    expected.extend(offs.into_iter().map(Event::Off));
    expected.extend(runs.into_iter().map(Event::Run));
    expected.extend(waits.into_iter().map(Event::Moved));
    let mut expected: Vec<Event> = expected.into_iter().map(played).collect();
    expected.sort_by_key(rank);
    let found = events(&Reader::open(&path).unwrap());
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
}

/// Writes one of each at every time, CPUs and threads in another order than they come out.
fn ties(path: &Path) {
    let mut writer = create(path);
    writer.write_calls(&mut [call("cudaMalloc", 100, 5), call("cudaFree", 200, 5)]).unwrap();
    writer.write_off_cpu(&mut [off_cpu(100, 9, 1), off_cpu(200, 9, 1)]).unwrap();
    writer.write_cpu_runs(&[run(9, 100), run(2, 200), run(2, 100), run(0, 150)]).unwrap();
    writer.write_moved_waits(&[moved(205, 100), moved(201, 150), moved(201, 100), moved(205, 90)]).unwrap();
    assert!(writer.finish(&end()).problem.is_none());
}

#[test]
fn equals_come_in_a_fixed_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    ties(&path);
    let reader = Reader::open(&path).unwrap();
    let order: Vec<(u64, u8, u32)> = events(&reader).iter().map(rank).collect();
    let expected = [
        (90, 3, 205),
        (100, 0, 0),
        (100, 1, 0),
        (100, 2, 2),
        (100, 2, 9),
        (100, 3, 201),
        (100, 3, 205),
        (150, 2, 0),
        (150, 3, 201),
        (200, 0, 0),
        (200, 1, 0),
        (200, 2, 2),
    ];
    assert_eq!(order, expected);
}

#[test]
fn a_part_of_the_run_begins_and_ends_where_it_was_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    ties(&path);
    let reader = Reader::open(&path).unwrap();
    let starts = |from, to| -> Vec<u64> { all(&reader, from, to).iter().map(|(event, _)| event.start_ns()).collect() };
    assert_eq!(starts(91, Some(101)), [100; 6]);
    assert_eq!(starts(150, Some(200)), [150; 2]);
    assert_eq!(starts(200, None), [200; 3]);
    assert_eq!(starts(90, Some(90)), [0; 0]);
    assert_eq!(starts(u64::MAX, Some(u64::MAX)), [0; 0]);
    let mut seen = 0;
    let count = reader.replay(0, None, |_| {
        seen += 1;
        if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!((count.unwrap(), seen), (3, 3));
}

#[test]
fn a_file_being_written_is_played_as_of_one_moment() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    writer.write_calls(&mut (0..100).map(|i| call("cudaMalloc", i * 10, 5)).collect::<Vec<_>>()).unwrap();
    writer.commit().unwrap();
    let reader = Reader::open(&path).unwrap();
    let mut seen = 0u64;
    reader
        .replay(0, None, |_| {
            // Later rows, of threads and functions not met before, while the first are read.
            let mut more = [Call { tid: 5_000 + seen as u32, ..call("cudaFree", 2_000 + seen, 5) }];
            writer.write_calls(&mut more).unwrap();
            writer.write_off_cpu(&mut [OffCpu { tid: 5_000 + seen as u32, ..off_cpu(3_000 + seen, 9, 1) }]).unwrap();
            writer.commit().unwrap();
            seen += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(seen, 100);
    let later = events(&reader);
    assert_eq!(later.len(), 300);
    let threads = later.iter().filter(|event| matches!(event, Event::Call(call) if call.tid >= 5_000)).count();
    assert_eq!(threads, 100);
}

#[test]
fn ops_are_told_by_name_and_unknown_ones_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let inner = CallFlags { inner: true, unfinished: false };
    let mut calls =
        [call("cudaMalloc", 1, 5), call("cudaFree", 2, 5), Call { flags: inner, ..call("cuMemAlloc_v2", 3, 5) }];
    write(&path, &mut calls);
    let db = Connection::open(&path).unwrap();
    // As if another gpuwhy, with another table of ops, had written it.
    db.execute_batch(
        "UPDATE op_ SET function = 'cudaNewThing' WHERE function = 'cudaMalloc';
         UPDATE op_ SET function = 'cudaMalloc' WHERE function = 'cudaFree';
         UPDATE call_ SET weight = 12 WHERE start = 2;",
    )
    .unwrap();
    let found = all(&Reader::open(&path).unwrap(), 0, None);
    let ops: Vec<_> = found
        .iter()
        .map(|(event, weight)| match event {
            Event::Call(call) => (call.start_ns, call.op, call.flags.inner, *weight),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ops, [(2, op("cudaMalloc"), false, 12), (3, op("cuMemAlloc_v2"), true, 1)]);
}

#[test]
fn rows_that_refer_to_nothing_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    ties(&path);
    let db = Connection::open(&path).unwrap();
    db.execute_batch(
        "UPDATE call_ SET context = 1 << 60 WHERE start = 100;
         UPDATE off_ SET context = -1, waker = 1 << 60;
         UPDATE cpu_run_ SET runner = 99;
         INSERT INTO cpu_run_ VALUES (1 << 40, 5, 5, 1);",
    )
    .unwrap();
    let found = events(&Reader::open(&path).unwrap());
    let order: Vec<(u64, u8, u32)> = found.iter().map(rank).collect();
    assert_eq!(order, [(90, 3, 205), (100, 3, 201), (100, 3, 205), (150, 3, 201), (200, 0, 0)]);
}
