// SPDX-License-Identifier: Apache-2.0
//! A file with a largest size: it keeps to it, its sums stay true, and what is slow stays.

use crate::support::*;
use gpuwhy_model::{Call, CpuRun, OffCpu};
use gpuwhy_store::{Finished, NewRun, Reader, StackQuestion, Writer};
use std::path::Path;

const MB: u64 = 1_000_000;

fn capped(path: &Path, max_size: u64) -> Writer {
    Writer::create(path, &NewRun { max_size: Some(max_size), ..new_run() }).unwrap().writer
}

/// Writes batches as the recorder does, and looks at the size all the while.
fn record(mut writer: Writer, max_size: u64, calls: &[Call]) -> Finished {
    let path = writer.path().to_owned();
    for (i, batch) in calls.chunks(8_000).enumerate() {
        writer.write_calls(&mut batch.to_vec()).unwrap();
        if i % 4 == 3 {
            writer.commit().unwrap();
        }
        let size = |end: &str| std::fs::metadata(format!("{}{end}", path.display())).map_or(0, |file| file.len());
        assert!(size("") + size("-wal") <= max_size, "{} + {}", size(""), size("-wal"));
    }
    let done = writer.finish(&end());
    assert!(done.problem.is_none() && done.size_bytes <= max_size, "{done:?}");
    done
}

/// Bursts of fifty launches of a few kernels, and a wait for them that is sometimes slow.
fn training(steps: u64) -> Vec<Call> {
    let step = |i: u64| {
        let at = i * 1_000_000;
        let launch = move |k: u64| Call {
            arg0: Some(k * 64),
            arg1: Some(128),
            stream: Some(7),
            ..call("cudaLaunchKernel", at + k * 6_000, 3_000 + k * 10)
        };
        let slow = if i.is_multiple_of(97) { 1_500_000 } else { 80_000 };
        let wait = Call { arg0: Some(7), ..call("cudaStreamSynchronize", at + 400_000, slow) };
        let copy = move |k: u64| Call { arg1: Some(1), ..call("cudaMemcpyAsync", at + 320_000 + k * 9_000, 4_000) };
        (0..50).map(launch).chain((0..4).map(copy)).chain([wait])
    };
    (0..steps).flat_map(step).collect()
}

#[test]
fn bursts_become_few_rows_and_sums_stay_true() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let calls = training(2_500);
    let done = record(capped(&path, 2 * MB), 2 * MB, &calls);
    let given = calls.len() as u64;
    assert_eq!((done.stored, done.lost.len()), (given, 0));
    let reader = Reader::open(&path).unwrap();
    let rows = number(&reader, "SELECT COUNT(*) FROM events");
    assert!(
        rows < given as i64 * 2 / 3 && done.thinned == given - rows as u64,
        "{rows} rows, {} thinned",
        done.thinned
    );
    let session = reader.session().unwrap();
    assert_eq!((session.thinned, session.max_size, session.events_stored), (done.thinned, Some(2 * MB), given));
    for op in ["cudaLaunchKernel", "cudaStreamSync", "cudaMemcpyAsync"] {
        let by = |what: &str| number(&reader, &format!("SELECT {what} FROM events WHERE op = '{op}'"));
        let truth = calls.iter().filter(|call| call.op.get().unwrap().name == op);
        assert_eq!(by("SUM(weight)"), truth.clone().count() as i64, "{op}");
        let slow = truth.filter(|call| call.duration_ns >= 1_000_000).count();
        assert_eq!(by("COUNT(*) FILTER (WHERE duration_ns >= 1000000 AND weight = 1)"), slow as i64, "{op}");
    }
    let bytes = "SELECT SUM(bytes * weight) FROM events WHERE class = 'copy'";
    assert_eq!(number(&reader, bytes), 2_500 * 4 * 4096);
    assert_eq!(number(&reader, "SELECT SUM(calls) FROM seconds"), given as i64);
    let total: u64 = calls.iter().map(|call| call.duration_ns).sum();
    assert_eq!(number(&reader, "SELECT SUM(total_ns) FROM seconds"), total as i64);
    assert_eq!(reader.stacks(&StackQuestion::default()).unwrap().all.calls, given);
    // Each row that stands for others was given, and comes after the first of its burst.
    assert_eq!(
        number(&reader, "SELECT COUNT(*) FROM events WHERE weight > 1 AND op = 'cudaLaunchKernel' AND arg0 = 0"),
        0
    );
}

#[test]
fn what_cannot_be_thinned_is_counted_when_there_is_no_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let allocation = |i: u64| {
        let duration = if i % 1_000 == 999 { 2_000_000 } else { 2_000 + i % 7 };
        Call {
            arg1: Some(i),
            ..call(if i.is_multiple_of(2) { "cudaMalloc" } else { "cudaFree" }, i * 10_000, duration)
        }
    };
    let calls: Vec<Call> = (0..200_000).map(allocation).collect();
    let done = record(capped(&path, 2 * MB), 2 * MB, &calls);
    let reader = Reader::open(&path).unwrap();
    let session = reader.session().unwrap();
    assert_eq!((session.events_seen, session.thinned), (200_000, 0));
    assert_eq!(session.events_stored + session.events_lost, 200_000);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM events"), done.stored as i64);
    assert!(done.stored > 20_000 && done.size_bytes > MB, "{done:?}");
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM events WHERE duration_ns >= 1000000"), 200);
    assert_eq!(number(&reader, "SELECT SUM(count) FROM loss WHERE cause = 'size_cap'"), session.events_lost as i64);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM loss WHERE cause <> 'size_cap' OR op IS NULL"), 0);
    assert_eq!(number(&reader, "SELECT SUM(calls) FROM seconds"), 200_000);
    let lossy = reader.facts(0, None).unwrap().lossy_seconds;
    assert_eq!(lossy.last(), Some(&1), "{lossy:?}");
}

#[test]
fn short_waits_are_thinned_but_not_those_of_threads_that_call_cuda() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = capped(&path, 2 * MB);
    writer.write_calls(&mut [Call { tid: 900, ..call("cudaLaunchKernel", 1, 1) }]).unwrap();
    let (mut given, mut runs) = (1, 0);
    for i in 0..60u64 {
        let wait = |k: u64, tid: u32| OffCpu { tid, ..off_cpu(i * 1_000_000_000 + k * 100_000, 30_000, 10_000) };
        let mut rows: Vec<OffCpu> = (0..1_000).map(|k| wait(k, 201)).chain((0..20).map(|k| wait(k, 900))).collect();
        rows.push(OffCpu { duration_ns: 5_000_000, ..wait(2_000, 201) });
        given += rows.len() as u64;
        writer.write_off_cpu(&mut rows).unwrap();
        let evidence: Vec<CpuRun> = (0..100)
            .map(|k| CpuRun {
                start_ns: ORIGIN + i * 1_000_000_000 + k * 100_000,
                duration_ns: 5_000 + k * 3_000,
                pid: 5,
                tid: 6,
                cpu: 1,
                name: [b'x'; 16],
            })
            .collect();
        runs += evidence.len() as i64;
        writer.write_cpu_runs(&evidence).unwrap();
        writer.commit().unwrap();
    }
    let done = writer.finish(&end());
    assert!(done.size_bytes <= 2 * MB && done.thinned > 0, "{done:?}");
    let reader = Reader::open(&path).unwrap();
    assert_eq!((done.stored, reader.session().unwrap().events_lost), (given, 0));
    assert_eq!(number(&reader, "SELECT SUM(weight) FROM off_cpu"), given as i64 - 1);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM off_cpu WHERE tid = 900"), 60 * 20);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM off_cpu WHERE duration_ns = 5000000"), 60);
    let gone = number(&reader, "SELECT SUM(count) FROM loss WHERE cause = 'evidence_lost'");
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM cpu_runs") + gone, runs);
    assert!(gone > 0);
}

#[test]
fn a_call_that_arrives_for_others_counts_as_all_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    // A statement is used again, and must not remember.
    writer.write_calls(&mut [Call { weight: 7, ..call("cudaMalloc", 10, 100) }]).unwrap();
    writer.write_calls(&mut [call("cudaMalloc", 500, 50)]).unwrap();
    writer.write_off_cpu(&mut [OffCpu { weight: 3, ..off_cpu(1, 10, 0) }]).unwrap();
    let done = writer.finish(&end());
    assert_eq!((done.stored, done.thinned), (11, 8));
    let reader = Reader::open(&path).unwrap();
    let session = reader.session().unwrap();
    assert_eq!((session.events_seen, session.events_stored, session.events_lost), (11, 11, 0));
    assert_eq!((session.thinned, session.max_size), (8, None));
    assert_eq!(ask(&reader, "SELECT weight, bytes FROM events WHERE op = 'cudaMalloc'").unwrap(), ["7|4096", "1|4096"]);
    let sums = "SELECT calls, total_ns, max_ns, bytes FROM seconds WHERE op = 'cudaMalloc'";
    assert_eq!(ask(&reader, sums).unwrap(), [format!("8|750|100|{}", 8 * 4096)]);
    assert_eq!(reader.op_totals().unwrap().iter().map(|op| op.totals.histogram.total()).sum::<u64>(), 11);
}
