// SPDX-License-Identifier: Apache-2.0
//! Tracing does no harm: exceptions, children, sudden ends on either side, and nothing written into the job.
#![allow(clippy::unwrap_used)]

mod common;

use common::compare::{assert_same_calls, list, recorded_calls, true_calls};
use common::jobs::{assert_exact, assert_nothing_lost, copy_of_libraries, report, reports};
use common::{HeldSimjob, Place, Tracing, can_trace, number, one_at_a_time, open, sim, succeed, text, until};
use simgpu::log::Truth;
use simgpu::log::detail::Detail;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::tempdir;

const FLAVOURS: [&str; 3] = ["session", "multi", "plain"];
/// Without the one of old kernels, of which the kernel takes half a minute to let go.
const CURRENT: [&str; 2] = ["session", "multi"];

/// throwjob's arguments: rounds, children of each process, levels of children, rounds of a child.
const THROWS: [&str; 4] = ["2000", "2", "3", "48"];

/// A job's reports without the numbers of its processes, sorted: children end in any order.
fn without_pids(said: &str) -> Vec<String> {
    let mut reports = reports(said);
    for report in &mut reports {
        report.as_object_mut().unwrap().remove("pid").unwrap();
    }
    let mut lines: Vec<String> = reports.iter().map(serde_json::Value::to_string).collect();
    lines.sort();
    lines
}

/// Reports of GPU memory in the log, those that an exception left among them.
fn memory_reports(truth: &Truth) -> i64 {
    let is_one = |detail: &Detail| matches!(detail, Detail::Report(report) if report.device_type == 1);
    truth.calls().filter(|call| call.detail.as_ref().is_some_and(is_one)).count() as i64
}

#[test]
fn exceptions_pass_through_traced_functions_in_every_child() {
    if !can_trace() {
        return;
    }
    let untraced = text(&succeed(Command::new(&sim().throwjob).args(THROWS)));
    let expected = without_pids(&untraced);
    assert_eq!(expected.len(), 1 + 2 + 4 + 8);
    assert!(expected.iter().all(|line| line.contains("\"bad\":0")), "{untraced}");
    for probes in FLAVOURS {
        let (_lock, place) = (one_at_a_time(), Place::new());
        let mut command = place.trace();
        command.args(["--quiet", "--probes", probes, "--"]).arg(&sim().throwjob).args(THROWS);
        let said = text(&succeed(&mut command));
        assert_eq!(without_pids(&said), expected, "traced by {probes} as untraced");
        let (truth, db) = (place.truth(), place.run_file());
        assert_exact(&place);
        assert_same_calls(&truth, &db);
        assert_eq!(number(&db, "SELECT COUNT(*) FROM allocations"), memory_reports(&truth), "{probes}");
        let pids: BTreeSet<u64> = reports(&said).iter().map(|report| report["pid"].as_u64().unwrap()).collect();
        assert_eq!(truth.pids().into_iter().map(u64::from).collect::<BTreeSet<_>>(), pids, "every child");
        let followed = format!(
            "SELECT COUNT(DISTINCT pid) FROM events WHERE layer = 'runtime' AND pid IN ({})",
            list(&truth.pids())
        );
        assert_eq!(number(&db, &followed), pids.len() as i64);
    }
}

/// Waits until so many calls of the program are in the run file.
fn until_recorded(place: &Place, calls: i64) {
    let sql = "SELECT COUNT(*) FROM events WHERE layer <> 'kernel'";
    until("calls are recorded", || number(&place.run_file(), sql) > calls);
}

#[test]
fn of_a_job_killed_in_the_middle_everything_until_then_is_recorded() {
    if !can_trace() {
        return;
    }
    for probes in CURRENT {
        let (_lock, place) = (one_at_a_time(), Place::new());
        let arguments = ["--threads", "2", "--mix", "mixed", "--calls", "50000000", "--rate", "20000"];
        let mut job = HeldSimjob::start(&mut place.simjob(&arguments));
        let pid = job.pids[0];
        let mut command = place.trace();
        command.args(["--probes", probes]).arg("--pid").arg(pid.to_string());
        let tracing = Tracing::start(&mut command, &place, 2);
        job.go();
        until_recorded(&place, 10_000);
        succeed(Command::new("kill").arg("-9").arg(pid.to_string()));
        assert!(!job.end().0.success());
        let ended = tracing.end();
        assert!(ended.status.success(), "{}", text(&ended));
        assert_all_but_the_last(&place);
    }
}

/// Insists that every thread's calls are the log's, but for the last one: the thread may have died on the way from the
/// probe to the log, or from the log to the probe.
fn assert_all_but_the_last(place: &Place) {
    let (truth, db) = (place.truth(), place.run_file());
    assert_nothing_lost(&db);
    let (expected, recorded) = (true_calls(&truth), recorded_calls(&db, "events"));
    assert_eq!(expected.keys().collect::<Vec<_>>(), recorded.keys().collect::<Vec<_>>());
    for (thread, expected) in &expected {
        let recorded = &recorded[thread];
        for (call, got) in expected.iter().zip(recorded) {
            assert_eq!(got.function, *call.function, "{call:?}");
        }
        let more = recorded.len().checked_sub(expected.len());
        assert!(more.is_some_and(|more| more <= 1), "{} of {} calls", recorded.len(), expected.len());
        let unfinished = recorded.iter().position(|call| call.ret.is_none());
        assert!(unfinished.is_none_or(|at| at + 1 == recorded.len()), "only the last call is unfinished");
    }
}

#[test]
fn a_job_goes_on_unharmed_when_gpuwhy_is_killed() {
    if !can_trace() {
        return;
    }
    for probes in CURRENT {
        let (_lock, place) = (one_at_a_time(), Place::new());
        let arguments = ["--threads", "2", "--mix", "mixed", "--calls", "60000", "--rate", "20000"];
        let mut job = HeldSimjob::start(&mut place.simjob(&arguments));
        let mut command = place.trace();
        command.args(["--probes", probes]).arg("--pid").arg(job.pids[0].to_string());
        let tracing = Tracing::start(&mut command, &place, 2);
        job.go();
        until_recorded(&place, 5_000);
        tracing.signal("KILL");
        assert!(!tracing.end().status.success());
        let (status, said) = job.end();
        assert!(status.success(), "{status}: {said}");
        let (report, truth) = (report(&said), place.truth());
        assert_eq!((report["calls"].as_u64(), report["errors"].as_u64()), (Some(60_000), Some(0)));
        assert!(truth.threads.iter().all(|thread| thread.open.is_empty()));
        assert_is_a_beginning(&place);
    }
}

/// Insists that what a killed gpuwhy left opens, and holds calls that were made, in their order.
fn assert_is_a_beginning(place: &Place) {
    let (truth, db) = (place.truth(), place.run_file());
    let (expected, recorded) = (true_calls(&truth), recorded_calls(&db, "events"));
    for (thread, recorded) in &recorded {
        let expected = &expected[thread];
        assert!(recorded.len() <= expected.len());
        for (call, got) in expected.iter().zip(recorded) {
            assert_eq!((&got.function[..], got.ret), (&*call.function, Some(i64::from(call.ret))), "{call:?}");
        }
    }
    assert!(recorded.values().map(Vec::len).sum::<usize>() > 5_000);
    let unended = "SELECT COUNT(*) FROM sessions WHERE stop IS NULL AND stop_reason IS NULL";
    assert_eq!(number(&db, unended), 1, "nothing says that it ended");
}

#[test]
fn exceptions_arrive_though_gpuwhy_is_killed_meanwhile() {
    if !can_trace() {
        return;
    }
    for probes in CURRENT {
        let (_lock, place) = (one_at_a_time(), Place::new());
        let mut command = place.trace();
        // What the job says goes where gpuwhy's output goes, and outlives it.
        command.args(["--probes", probes, "--quiet", "--"]).arg(&sim().throwjob).args(["1000000", "2", "2", "48"]);
        command.env("SIMGPU_LOG_LEVEL", "counts").stdout(Stdio::piped());
        let mut gpuwhy = command.spawn().unwrap();
        until("reports are recorded", || {
            place.db().exists()
                && open(&place.db()).query_row("SELECT COUNT(*) > 100 FROM allocations", [], |row| row.get(0))
                    == Ok(true)
        });
        gpuwhy.kill().unwrap();
        assert_eq!(gpuwhy.wait().unwrap().signal(), Some(9), "it was still tracing");
        let mut said = String::new();
        gpuwhy.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        let reports = reports(&said);
        assert_eq!(reports.len(), 7, "{said}");
        assert_eq!(reports[6]["who"], "parent", "it came to its end: {said}");
        for report in &reports {
            assert_eq!((&report["caught"], report["bad"].as_u64()), (&report["thrown"], Some(0)), "{probes}: {said}");
        }
    }
}

/// A process's memory map without what the kernel itself adds for probes.
fn memory_map(pid: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.lines().filter(|line| !line.contains("uprobe")).map(str::to_owned).collect()
}

/// Parts of a file that a process has mapped as code: address, length, offset, file.
fn code_of(pid: u32, folder: &Path) -> Vec<(u64, usize, u64, PathBuf)> {
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let mut code = Vec::new();
    for line in memory_map(pid).iter().filter(|line| line.contains(" r-xp ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(path) = words.get(5).map(PathBuf::from).filter(|path| path.starts_with(folder)) else { continue };
        let (from, to) = words[0].split_once('-').unwrap();
        code.push((number(from), (number(to) - number(from)) as usize, number(words[2]), path));
    }
    code
}

/// Whether the code in a process's memory is what its files have, and how many bytes are not.
fn changed_bytes(pid: u32, folder: &Path) -> usize {
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut changed = 0;
    for (address, length, offset, path) in code_of(pid, folder) {
        let (mut inside, file) = (vec![0; length], std::fs::read(path).unwrap());
        memory.read_exact_at(&mut inside, address).unwrap();
        let file = &file[(offset as usize).min(file.len())..];
        changed += inside.iter().zip(file).filter(|(a, b)| a != b).count();
    }
    changed
}

/// Content, times of change in seconds and nanoseconds (of the content, of the file), inode and rights.
type OnDisk = (Vec<u8>, i64, i64, i64, i64, u64, u32);

/// What the disk says of every library in a folder: contents, size, times, inode, permissions.
fn on_disk(folder: &Path) -> BTreeMap<PathBuf, OnDisk> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let of = |path: PathBuf| {
        let meta = std::fs::metadata(&path).unwrap();
        let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
        let contents = std::fs::read(&path).unwrap();
        (path, (contents, times.0, times.1, times.2, times.3, meta.ino(), meta.mode()))
    };
    entries.map(of).collect()
}

#[test]
fn nothing_of_a_job_is_changed_by_tracing_it() {
    if !can_trace() {
        return;
    }
    for probes in CURRENT {
        let (_lock, place, folder) = (one_at_a_time(), Place::new(), tempdir().unwrap());
        let cudart = copy_of_libraries(folder.path());
        let disk = on_disk(folder.path());
        let mut job = Command::new(&sim().simjob);
        job.arg("--cudart").arg(&cudart).args(["--mix", "mixed", "--calls", "20000"]);
        let mut job = HeldSimjob::start(job.env("SIMGPU_LOG", place.log()));
        let pid = job.pids[0];
        let before = memory_map(pid);
        assert!(!code_of(pid, folder.path()).is_empty());
        assert_eq!(changed_bytes(pid, folder.path()), 0, "before");
        let mut command = place.trace();
        command.args(["--probes", probes]).arg("--pid").arg(pid.to_string());
        let tracing = Tracing::start(&mut command, &place, 2);
        assert_eq!(memory_map(pid), before, "while it is traced by {probes}");
        assert!(changed_bytes(pid, folder.path()) > 0, "the kernel's probes are in its memory now");
        assert!(tracing.interrupt().status.success());
        assert_eq!(memory_map(pid), before, "afterwards, {probes}");
        assert_eq!(changed_bytes(pid, folder.path()), 0, "no probe is left, {probes}");
        assert!(on_disk(folder.path()) == disk, "the libraries on disk were changed, {probes}");
        job.go();
        let (status, said) = job.end();
        assert_eq!((status.success(), report(&said)["errors"].as_u64()), (true, Some(0)), "{said}");
    }
}

#[test]
fn no_probe_stays_when_gpuwhy_is_killed() {
    if !can_trace() {
        return;
    }
    for probes in CURRENT {
        let (_lock, place, folder) = (one_at_a_time(), Place::new(), tempdir().unwrap());
        let cudart = copy_of_libraries(folder.path());
        let mut job = Command::new(&sim().simjob);
        let mut job = HeldSimjob::start(job.arg("--cudart").arg(&cudart).args(["--calls", "4000"]));
        let pid = job.pids[0];
        let mut command = place.trace();
        command.args(["--probes", probes]).arg("--pid").arg(pid.to_string());
        let tracing = Tracing::start(&mut command, &place, 2);
        assert!(changed_bytes(pid, folder.path()) > 0);
        tracing.signal("KILL");
        assert!(!tracing.end().status.success());
        until("the probes are gone", || changed_bytes(pid, folder.path()) == 0);
        job.go();
        let (status, said) = job.end();
        assert_eq!((status.success(), report(&said)["calls"].as_u64()), (true, Some(4000)), "{said}");
    }
}
