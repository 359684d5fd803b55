// SPDX-License-Identifier: Apache-2.0
//! Killed, read meanwhile, out of space: what was committed stays.

use crate::support::*;
use gpuwhy_model::sample::SystemSample;
use gpuwhy_model::{Call, CpuRun, LossCause, OffCpu, Samples};
use gpuwhy_store::{Error, Reader, StackText, Writer};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Names the file for [`child_that_writes_until_killed`].
const CHILD: &str = "GPUWHY_STORE_TEST_CHILD";

const SECOND: u64 = 1_000_000_000;

/// Not a test of its own: the program that the next one kills.
#[test]
fn child_that_writes_until_killed() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    let mut writer = create(Path::new(&path));
    for second in 0.. {
        writer.write_calls(&mut thousand(second)).unwrap();
        writer.set_process(100, &format!("after {second}"));
        writer.commit().unwrap();
        println!("committed {}", (second + 1) * 1_000);
    }
}

fn thousand(second: u64) -> Vec<Call> {
    (0..1_000).map(|i| call("cudaMalloc", second * 1_000_000_000 + i * 1_000, 10 + i)).collect()
}

#[test]
fn killed_with_nine_it_has_everything_up_to_the_last_commit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["survival::child_that_writes_until_killed", "--exact", "--nocapture"])
        .env(CHILD, &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let committed = |line: std::io::Result<String>| line.unwrap().strip_prefix("committed ")?.parse::<i64>().ok();
    let told = lines.filter_map(committed).find(|n| *n >= 20_000).unwrap();
    let error = Writer::create(&path, &new_run()).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::BeingWritten { .. }), "another process writes it: {error}");
    child.kill().unwrap();
    child.wait().unwrap();

    assert!(folder.path().join("run.db-wal").exists());
    let reader = Reader::open(&path).unwrap();
    let stored = number(&reader, "SELECT COUNT(*) FROM events");
    assert!(stored >= told && stored % 1_000 == 0, "{stored} of {told}");
    assert_eq!(number(&reader, "SELECT SUM(calls) FROM seconds"), stored);
    assert_eq!(number(&reader, "SELECT events_stored FROM sessions"), stored);
    assert_eq!(reader.session().unwrap().stop_reason, None);
    assert!(reader.session().unwrap().duration_ns >= (told as u64 / 1_000 - 1) * 1_000_000_000);
    drop(reader);

    // The next run moves it aside whole.
    let created = Writer::create(&path, &new_run()).unwrap();
    let moved = Reader::open(&created.moved_to.unwrap()).unwrap();
    assert_eq!(number(&moved, "SELECT COUNT(*) FROM events"), stored);
}

#[test]
fn it_can_be_read_while_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    let reader = Reader::open(&path).unwrap();
    for second in 0..5 {
        writer.write_calls(&mut thousand(second)).unwrap();
        assert_eq!(number(&reader, "SELECT COUNT(*) FROM events"), second as i64 * 1_000);
        writer.commit().unwrap();
        assert_eq!(number(&reader, "SELECT COUNT(*) FROM events"), (second as i64 + 1) * 1_000);
    }
    // An open reader keeps the file from being merged into one; nothing is lost by that, and it is said.
    let done = writer.finish(&end());
    assert!(matches!(done.problem, None | Some(Error::NotMerged { .. })), "{:?}", done.problem);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM events"), 5_000);
    drop(reader);
    assert_eq!(Reader::open(&path).unwrap().session().unwrap().stop_reason.as_deref(), Some("exit"));
}

#[test]
fn a_writer_dropped_without_finishing_leaves_the_last_commit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    writer.write_calls(&mut thousand(0)).unwrap();
    writer.commit().unwrap();
    writer.write_calls(&mut thousand(1)).unwrap();
    drop(writer);
    assert_eq!(number(&Reader::open(&path).unwrap(), "SELECT COUNT(*) FROM events"), 1_000);
}

#[test]
fn a_full_disk_and_an_open_reader_are_both_said() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let path = disk.path().join("run.db");
    let mut writer = create(&path);
    let full = fill(&mut writer);
    // Far more than fits.
    for second in full..full + 100 {
        writer.write_calls(&mut thousand(second)).unwrap();
        assert!(writer.commit().is_err());
    }
    let reader = rusqlite::Connection::open(&path).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    let held: i64 = reader.query_row("SELECT COUNT(*) FROM events", [], |row| row.get(0)).unwrap();
    let done = writer.finish(&end());
    let all = [&done.problem, &done.also].map(|said| said.as_ref().map(ToString::to_string).unwrap_or_default());
    assert!(all[0].contains("was full until the end") && all[1].contains("run.db-wal"), "{all:?}");
    assert!(held > 0);
}

/// Commits seconds of a thousand calls until the disk is full; returns how many seconds were given.
fn fill(writer: &mut Writer) -> u64 {
    fill_from(writer, 0)
}

fn fill_from(writer: &mut Writer, first: u64) -> u64 {
    let full = (first..10_000).find_map(|second| {
        let error = writer.write_calls(&mut thousand(second)).and_then(|()| writer.commit()).err()?;
        let kept = matches!(error, Error::DiskFull { kept_bytes: 50_000..200_000, .. });
        assert!(kept && error.to_string().contains("keeping events in memory"), "{error}");
        Some(second + 1)
    });
    full.unwrap()
}

#[test]
fn a_disk_full_for_a_while_costs_nothing() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let path = disk.path().join("run.db");
    let ballast = disk.path().join("ballast");
    fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let mut writer = create(&path);
    let full = fill(&mut writer);
    assert!(full > 10);
    let committed = |reader: &Reader| number(reader, "SELECT COUNT(*) FROM events");
    assert_eq!(committed(&Reader::open(&path).unwrap()), (full as i64 - 1) * 1_000);

    // It stays full for a while, then somebody makes room.
    for second in full..full + 5 {
        assert!(writer.write_calls(&mut thousand(second)).is_ok(), "that it is full has been said");
        _ = writer.commit();
    }
    assert_eq!((writer.stored(), writer.lost()), ((full + 5) * 1_000, 0));
    fs::remove_file(&ballast).unwrap();
    writer.commit().unwrap();
    assert_eq!(committed(&Reader::open(&path).unwrap()), (full as i64 + 5) * 1_000, "what waited is stored");
    writer.write_calls(&mut thousand(full + 5)).unwrap();
    let (given, done) = ((full + 6) * 1_000, writer.finish(&end()));

    assert!(done.problem.is_none(), "{:?}", done.problem);
    let reader = Reader::open(&path).unwrap();
    assert_eq!((done.stored, committed(&reader)), (given, given as i64));
    let session = reader.session().unwrap();
    assert_eq!((session.events_seen, session.events_stored, session.events_lost), (given, given, 0));
    assert_eq!(reader.loss().unwrap(), []);
    assert_eq!(number(&reader, "SELECT SUM(calls) FROM seconds"), given as i64);
    // Row for row what was given.
    let sums = "SELECT SUM(timestamp % 1000000007) + SUM(duration_ns) FROM events";
    let truth: u64 =
        (0..full + 6).flat_map(thousand).map(|call| (call.start_ns - ORIGIN) % 1_000_000_007 + call.duration_ns).sum();
    assert_eq!(number(&reader, sums), truth as i64);
}

/// A second of a host: as many rows of evidence as events, a sample and a name.
fn host_second(writer: &mut Writer, second: u64) -> gpuwhy_store::Result<()> {
    let at = |i: u64| second * 1_000_000_000 + i * 1_000;
    let mut rows: Vec<OffCpu> = (0..500).map(|i| off_cpu(at(i), 400, 100)).collect();
    let run = |i: u64| CpuRun { start_ns: ORIGIN + at(i), duration_ns: 900, pid: 5, tid: 6, cpu: 1, name: [b'x'; 16] };
    let runs: Vec<CpuRun> = (0..500).map(run).collect();
    let system = SystemSample { at_ns: ORIGIN + at(0), ..SystemSample::default() };
    writer.add_samples(Samples { system: Some(system), ..Samples::default() });
    writer.set_process(200, &format!("after {second}"));
    let mut calls: Vec<Call> = (0..500).map(|i| call("cudaMalloc", at(i), 10 + i)).collect();
    // All three, whatever becomes of the others: as a recorder does that goes on.
    let outcomes = [writer.write_off_cpu(&mut rows), writer.write_cpu_runs(&runs), writer.write_calls(&mut calls)];
    let committed = writer.commit();
    outcomes.into_iter().collect::<gpuwhy_store::Result<()>>().and(committed)
}

#[test]
fn everything_waits_for_the_space_alike() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let path = disk.path().join("run.db");
    let ballast = disk.path().join("ballast");
    fs::write(&ballast, vec![1; 2 << 20]).unwrap();
    let mut writer = create(&path);
    let full = (0..10_000).find(|second| host_second(&mut writer, *second).is_err()).unwrap();
    assert!(full > 5);
    (full + 1..full + 8).for_each(|second| _ = host_second(&mut writer, second));
    fs::remove_file(&ballast).unwrap();
    host_second(&mut writer, full + 8).unwrap();
    let given = (full + 9) * 1_000;
    assert_eq!(writer.lost(), 0);
    assert!(writer.finish(&end()).problem.is_none());

    let reader = Reader::open(&path).unwrap();
    let session = reader.session().unwrap();
    assert_eq!((session.events_seen, session.events_stored, session.events_lost), (given, given, 0));
    let rows = |view: &str| number(&reader, &format!("SELECT COUNT(*) FROM {view}"));
    assert_eq!(rows("off_cpu") + rows("call_"), given as i64);
    assert_eq!((rows("cpu_runs"), rows("loss")), ((full as i64 + 9) * 500, 0));
    assert_eq!(number(&reader, "SELECT SUM(calls) FROM seconds"), given as i64);
    assert_eq!(rows("system_seconds"), full as i64 + 9);
    assert_eq!(number(&reader, "SELECT samples_missing FROM sessions"), 0);
    assert_eq!(
        ask(&reader, "SELECT name FROM process_names WHERE pid = 200").unwrap(),
        [format!("after {}", full + 8)]
    );
    // Contexts that went with a rolled back transaction were stored again.
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM off_cpu WHERE pid = 200 AND waker_tid = 301"), rows("off_cpu"));
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM cpu_runs WHERE name IS NULL"), 0);
}

#[test]
fn a_run_that_ends_on_a_full_disk_has_what_is_slow() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let path = disk.path().join("run.db");
    let mut writer = create(&path);
    let full = fill(&mut writer);
    // Far more than fits, and a few that matter.
    for second in full..full + 100 {
        let mut calls = thousand(second);
        calls.push(call("cudaStreamSynchronize", second * 1_000_000_000 + 2_000_000, 5_000_000));
        writer.write_calls(&mut calls).unwrap();
        assert!(writer.commit().is_err());
    }
    let given = full * 1_000 + 100 * 1_001;
    let done = writer.finish(&end());
    let lost: u64 = done.lost.iter().map(|(_, events)| events).sum();
    assert_eq!(done.stored + lost, given);
    assert!(matches!(done.problem, Some(Error::NotAllWritten { lost_events, .. }) if lost_events == lost), "{done:?}");
    let reader = Reader::open(&path).unwrap();
    let rows = |filter: &str| number(&reader, &format!("SELECT COUNT(*) FROM events WHERE {filter}"));
    assert_eq!(rows("true"), done.stored as i64);
    assert_eq!(rows("op = 'cudaStreamSync'"), 100, "the slow ones are all there");
    assert!(done.stored > full * 1_000, "and more of the others than before");
    let session = reader.session().unwrap();
    assert_eq!((session.events_seen, session.events_stored, session.events_lost), (given, done.stored, lost));
    assert_eq!(session.stop_reason.as_deref(), Some("exit"));
    let loss = reader.loss().unwrap();
    assert_eq!((loss.len(), loss[0].cause.as_str(), loss[0].count), (1, LossCause::WriteFailed.name(), lost));
    assert_eq!(loss[0].op.as_deref(), Some("cudaMalloc"));
    assert_eq!(number(&reader, "SELECT SUM(calls) FROM seconds"), given as i64, "the sums have everything");
}

/// What a writer says of events that have no row: lost, and waiting for a disk that is full now.
fn missing(writer: &Writer) -> [u64; 2] {
    let missing = writer.missing();
    [missing.lost.values().sum(), missing.waiting.values().sum()]
}

#[test]
fn what_a_full_disk_has_not_taken_is_told_at_once() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let ballast = disk.path().join("ballast");
    fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let mut writer = create(&disk.path().join("run.db"));
    writer.write_calls(&mut thousand(0)).unwrap();
    assert_eq!(missing(&writer), [0, 0], "an open transaction on a disk that works is nothing to worry about");
    writer.commit().unwrap();
    let full = fill_from(&mut writer, 1);
    assert_eq!(missing(&writer), [0, 1_000]);
    assert_eq!(writer.missing().waiting.get(&op("cudaMalloc")), Some(&1_000));
    writer.write_calls(&mut thousand(full)).unwrap();
    assert_eq!(missing(&writer), [0, 2_000]);
    fs::remove_file(&ballast).unwrap();
    writer.commit().unwrap();
    assert_eq!(missing(&writer), [0, 0], "what waited is in the file now");
}

/// A megabyte is gone in a moment, and the words and sums of a run may be more than what was set aside for its end.
#[test]
fn even_a_tiny_full_disk_says_what_was_lost() {
    let Some(disk) = SmallDisk::mount_of("1m") else {
        return;
    };
    let path = disk.path().join("run.db");
    let mut writer = create(&path);
    let functions = ["cudaMalloc", "cudaFree", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize"];
    for second in 0..60u64 {
        let of =
            |i: u64| Call { pid: 100 + (i % 8) as u32, ..call(functions[i as usize % 5], second * SECOND + i, 10) };
        let mut calls: Vec<Call> = (0..1_000).map(of).collect();
        for stack in 0..20 {
            let frames = format!("/home/me/model.py:{stack} {}\n", "forward".repeat(100));
            writer.add_stack(second * 100 + stack, StackText { frames, top_line: "model.py:1".into() });
        }
        _ = writer.write_calls(&mut calls);
        _ = writer.commit();
    }
    let done = writer.finish(&end());
    let lost: u64 = done.lost.iter().map(|(_, events)| events).sum();
    assert!(lost > 30_000 && done.stored + lost == 60_000, "{done:?}");
    assert_eq!(done.lost_by_op.values().sum::<u64>(), lost);
    let reader = Reader::open(&path).unwrap();
    let session = reader.session().unwrap();
    assert_eq!((session.events_stored, session.events_lost), (done.stored, lost));
    assert_eq!(session.stop_reason.as_deref(), Some("exit"));
    assert_eq!(reader.loss().unwrap().iter().map(|row| row.count).sum::<u64>(), lost);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM events"), done.stored as i64);
}
