// SPDX-License-Identifier: Apache-2.0
//! Random calls go in; counts and sums that come out are those of the input.

use crate::support::*;
use gpuwhy_model::{Call, CallFlags, LossCause};
use gpuwhy_store::{LibraryRow, Machine, NewRun, Reader, Writer};
use std::collections::{BTreeMap, BTreeSet};

fn outermost(calls: &[Call]) -> impl Iterator<Item = &Call> {
    calls.iter().filter(|call| !call.flags.inner)
}

fn size_of(call: &Call) -> u64 {
    let sized = call.op.get().unwrap().decode.arg0_is_bytes();
    call.arg0.filter(|n| sized && *n < 1 << 63).unwrap_or(0)
}

/// `function → calls, duration, bytes, errors`, straight from the input.
fn truth<'a>(calls: impl Iterator<Item = &'a Call>) -> BTreeMap<String, (u64, u64, u64, u64)> {
    let mut sums: BTreeMap<String, (u64, u64, u64, u64)> = BTreeMap::new();
    for call in calls {
        let sum = sums.entry(call.op.get().unwrap().function.clone()).or_default();
        sum.0 += 1;
        sum.1 += call.duration_ns;
        sum.2 += size_of(call);
        sum.3 += u64::from(call.ret != 0 && !call.flags.unfinished);
    }
    sums
}

fn lines(sums: &BTreeMap<String, (u64, u64, u64, u64)>) -> Vec<String> {
    sums.iter().map(|(f, (calls, ns, bytes, errors))| format!("{f}|{calls}|{ns}|{bytes}|{errors}")).collect()
}

#[test]
fn sums_of_events_and_of_seconds_are_those_of_the_input() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut calls = any_calls(40_000, 1);
    write(&path, &mut calls);
    let reader = Reader::open(&path).unwrap();
    let sums = "COUNT(*), SUM(duration_ns), COALESCE(SUM(bytes), 0), COUNT(CASE WHEN ret <> 0 THEN 1 END)";

    let outer = lines(&truth(outermost(&calls)));
    let events = format!("SELECT function, {sums} FROM events GROUP BY function ORDER BY function");
    assert_eq!(ask(&reader, &events).unwrap(), outer);

    let inner = lines(&truth(calls.iter().filter(|call| call.flags.inner)));
    let inner_events = events.replace("FROM events", "FROM inner_events");
    assert_eq!(ask(&reader, &inner_events).unwrap(), inner);

    let seconds = "SELECT function, SUM(calls), SUM(total_ns), SUM(bytes), SUM(errors) FROM seconds
        GROUP BY function ORDER BY function";
    assert_eq!(ask(&reader, seconds).unwrap(), outer);

    let unfinished = outermost(&calls).filter(|call| call.flags.unfinished).count();
    assert_eq!(number(&reader, "SELECT SUM(unfinished) FROM events"), unfinished as i64);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM events WHERE unfinished AND ret IS NOT NULL"), 0);
}

#[test]
fn every_field_of_every_call_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut calls = any_calls(5_000, 2);
    write(&path, &mut calls);
    let reader = Reader::open(&path).unwrap();
    let null = |n: Option<i64>| n.map_or("NULL".to_owned(), |n| n.to_string());
    let mut expected: Vec<String> = outermost(&calls)
        .map(|c| {
            format!(
                "{}|{}|{}|{}|{}|{}|{}|{}|{}|1",
                c.duration_ns,
                c.pid,
                c.tid,
                c.op.get().unwrap().name,
                null(c.device.map(i64::from)),
                null(c.stream.map(|n| n as i64)),
                null(c.arg0.map(|n| n as i64)),
                null(c.arg1.map(|n| n as i64)),
                null((!c.flags.unfinished).then_some(c.ret.into())),
            )
        })
        .collect();
    let mut stored =
        ask(&reader, "SELECT duration_ns, pid, tid, op, device, stream, arg0, arg1, ret, weight FROM events").unwrap();
    expected.sort();
    stored.sort();
    assert_eq!(stored, expected);
    let directions = ask(&reader, "SELECT DISTINCT class, direction FROM events WHERE direction IS NOT NULL").unwrap();
    assert_eq!(directions.len(), 5);
    assert!(directions.iter().all(|line| line.starts_with("copy|")));
}

#[test]
fn times_are_unique_near_the_true_start_and_never_negative() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    // Equal starts in one batch and across batches, late batches, and calls older than the run.
    for _ in 0..40 {
        let mut batch: Vec<Call> = (0..200).map(|i| call("cudaMalloc", i / 50 * 1_000, i)).collect();
        batch.extend((0..5).map(|i| Call { start_ns: ORIGIN - 1 - i, ..call("cudaFree", 0, 7) }));
        batch.reverse();
        writer.write_calls(&mut batch).unwrap();
        writer.commit().unwrap();
    }
    assert!(writer.finish(&end()).problem.is_none());
    let reader = Reader::open(&path).unwrap();
    assert_eq!(number(&reader, "SELECT COUNT(DISTINCT timestamp) FROM events"), 40 * 205);
    assert_eq!(number(&reader, "SELECT MIN(timestamp) FROM events"), 0);
    assert!(number(&reader, "SELECT MAX(timestamp) FROM events") < 40 * 205 * 64);
}

#[test]
fn merged_histograms_give_the_median_within_a_thirty_second() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut dice = Dice(3);
    let mut calls: Vec<Call> =
        (0..30_000).map(|i| call("cudaStreamSynchronize", i * 300_000, 1_000 + dice.below(1 << (i % 24)))).collect();
    write(&path, &mut calls);
    let totals = Reader::open(&path).unwrap().op_totals().unwrap();
    assert_eq!(totals.len(), 1);
    assert_eq!((totals[0].op.as_str(), totals[0].totals.calls), ("cudaStreamSync", 30_000));
    let mut sorted: Vec<u64> = calls.iter().map(|call| call.duration_ns).collect();
    sorted.sort_unstable();
    for q in [0.5, 0.9, 0.99] {
        let exact = sorted[(q * sorted.len() as f64).ceil() as usize - 1] as f64;
        let got = totals[0].totals.histogram.quantile(q).unwrap() as f64;
        assert!((got - exact).abs() <= exact / 32.0, "{q}: {got} instead of {exact}");
    }
    assert_eq!(totals[0].totals.max_ns, *sorted.last().unwrap());
}

#[test]
fn live_totals_are_the_stored_ones() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    writer.write_calls(&mut any_calls(3_000, 4)).unwrap();
    let live: BTreeMap<String, _> =
        writer.totals().map(|(id, totals)| (id.get().unwrap().function.clone(), totals.clone())).collect();
    writer.finish(&end());
    let stored = Reader::open(&path).unwrap().op_totals().unwrap();
    assert_eq!(stored.into_iter().map(|s| (s.function, s.totals)).collect::<BTreeMap<_, _>>(), live);
}

#[test]
fn a_program_that_never_repeats_itself_is_stored_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut calls: Vec<Call> = (0..150_000)
        .map(|i| Call { stream: Some(i % 75_000), pid: (i % 20_000) as u32, ..call("cudaMemsetAsync", i * 100, 10) })
        .collect();
    write(&path, &mut calls);
    let reader = Reader::open(&path).unwrap();
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM events"), 150_000);
    assert_eq!(number(&reader, "SELECT COUNT(DISTINCT stream) FROM events"), 75_000);
    assert_eq!(number(&reader, "SELECT SUM(calls) FROM seconds"), 150_000);
    assert_eq!(number(&reader, "SELECT seconds_missing FROM sessions"), 0);
}

#[test]
fn the_session_says_what_was_seen_stored_and_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let machine =
        Machine { gpu: Some("H200".into()), cores: Some(16), memory_bytes: Some(1 << 37), ..Machine::default() };
    let run = NewRun { command: Some("python train.py".into()), machine: machine.clone(), ..new_run() };
    let mut writer = Writer::create(&path, &run).unwrap().writer;
    let mut calls = any_calls(1_000, 5);
    let outermost = calls.iter().filter(|call| !call.flags.inner).count() as u64;
    writer.write_calls(&mut calls).unwrap();
    writer.add_loss(3, LossCause::RingFull, Some(op("cudaMalloc")), 40);
    writer.commit().unwrap();
    writer.add_loss(3, LossCause::RingFull, Some(op("cudaMalloc")), 2);
    writer.add_loss(4, LossCause::ArgUnreadable, None, 5);
    let machine = Machine { python: Some("3.12.1".into()), ..machine };
    writer.set_machine(machine.clone());
    writer.finish(&end());

    let reader = Reader::open(&path).unwrap();
    let session = reader.session().unwrap();
    assert_eq!((session.events_seen, session.events_stored, session.events_lost), (outermost + 42, outermost, 42));
    assert_eq!((session.machine, session.stop_reason.as_deref()), (machine, Some("exit")));
    assert_eq!((session.start_monotonic_ns, session.duration_ns), (ORIGIN, 10_000_000_000));
    assert_eq!(
        ask(&reader, "SELECT start, stop, gpu, command, python FROM sessions").unwrap(),
        ["2023-11-14T22:13:20.250Z|2023-11-14T22:13:30.250Z|H200|python train.py|3.12.1"]
    );
    let loss = reader.loss().unwrap();
    assert_eq!((loss[0].cause.as_str(), loss[0].op.as_deref(), loss[0].count), ("ring_full", Some("cudaMalloc"), 42));
    assert_eq!((loss[1].cause.as_str(), loss[1].loses_event, loss[1].seconds), ("arg_unreadable", false, (4, 4)));
}

#[test]
fn every_pid_has_one_name_and_libraries_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    let mut calls = any_calls(500, 6);
    writer.write_calls(&mut calls).unwrap();
    writer.set_process(100, "python");
    writer.commit().unwrap();
    writer.set_process(100, "trainer");
    writer.set_process_times(100, Some(ORIGIN - 5), None);
    writer.set_process_times(100, None, Some(ORIGIN + 9));
    writer.add_library(LibraryRow {
        path: "/usr/lib/libcudart.so.13".into(),
        library: "runtime".into(),
        inode: "8:1:77".into(),
        functions: 90,
        attached_ns: ORIGIN + 55,
        note: None,
    });
    writer.finish(&end());
    let reader = Reader::open(&path).unwrap();
    let pids: BTreeSet<u32> = calls.iter().map(|call| call.pid).collect();
    let processes = reader.processes().unwrap();
    assert_eq!(processes.iter().map(|p| p.pid).collect::<BTreeSet<_>>(), pids);
    assert_eq!(processes.len(), pids.len());
    assert_eq!((processes[0].name.as_str(), processes[0].started, processes[0].ended), ("trainer", Some(-5), Some(9)));
    assert_eq!(processes[1].name, "pid 101");
    let joined = "SELECT COUNT(*) FROM events e JOIN process_names pn ON e.pid = pn.pid";
    assert_eq!(number(&reader, joined), number(&reader, "SELECT COUNT(*) FROM events"));
    assert_eq!(reader.libraries().unwrap()[0].attached_at, 55);
    let threads: BTreeSet<(u32, u32)> = calls.iter().map(|call| (call.pid, call.tid)).collect();
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM threads"), threads.len() as i64);
}

#[test]
fn an_op_this_gpuwhy_does_not_know_still_shows_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let foreign = Call { op: gpuwhy_model::OpId(900), flags: CallFlags::default(), ..call("cudaMalloc", 5, 5) };
    write(&path, &mut [foreign]);
    let reader = Reader::open(&path).unwrap();
    assert_eq!(ask(&reader, "SELECT op, class FROM events").unwrap(), ["op 900|unknown"]);
    assert_eq!(ask(&reader, "SELECT op, calls FROM seconds").unwrap(), ["op 900|1"]);
}
