// SPDX-License-Identifier: Apache-2.0
//! Disk, page faults and the network, against what the job and the kernel counted.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::host::{HostRun, Off, Window};
use common::{can_trace, one_at_a_time};
use serde_json::Value;
use std::path::PathBuf;

/// A file that hostjob makes, removed afterwards. On a disk: /tmp may be memory.
struct OnDisk(PathBuf);

impl OnDisk {
    fn new(name: &str) -> Self {
        Self(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id())))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A disk request that a thread caused.
#[derive(Debug)]
struct Request {
    begin: i64,
    latency: i64,
    bytes: i64,
    write: bool,
}

/// The requests of a thread that began between two moments.
fn requests(run: &HostRun, tid: u32, begin: i64, end: i64) -> Vec<Request> {
    let sql = "SELECT timestamp, duration_ns, arg0, arg1 FROM events \
               WHERE op = 'block_io' AND tid = ?1 AND timestamp BETWEEN ?2 AND ?3 ORDER BY timestamp";
    let mut statement = run.db.prepare(sql).unwrap();
    let rows = statement.query_map((tid, begin - run.origin, end - run.origin), |row| {
        Ok(Request {
            begin: run.origin + row.get::<_, i64>(0)?,
            latency: row.get(1)?,
            bytes: row.get(2)?,
            write: row.get::<_, i64>(3)? >= 1 << 32,
        })
    });
    rows.unwrap().map(Result::unwrap).collect()
}

/// Every wait in this window was for the disk, in a read of a file.
fn assert_disk_waits(run: &HostRun, window: &Window, wait: &str) -> Vec<Off> {
    let rows: Vec<Off> = run.off_in(window).into_iter().filter(Off::blocked).collect();
    assert!(!rows.is_empty(), "it never waited: {window:?}");
    for row in &rows {
        assert_eq!((row.reason.as_str(), row.wait.as_str(), row.io_wait), ("uninterruptible", wait, true), "{row:?}");
        // A completed request wakes its reader from the disk's interrupt or, where that is threaded or deferred,
        // from a thread of the kernel's.
        assert!(matches!(row.woken_by.as_str(), "disk" | "thread" | "interrupt"), "{row:?}");
    }
    let by_disk = rows.iter().filter(|row| row.woken_by == "disk").count();
    assert!(by_disk * 10 >= rows.len() * 9, "{by_disk} of {} woken by the disk", rows.len());
    rows
}

#[test]
fn each_direct_read_has_its_requests_and_its_wait() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let file = OnDisk::new("direct");
    for (count, kib) in [("50", "1024"), ("200", "64")] {
        let run = HostRun::attached(&["disk", "--count", count, "--kib", kib, "--path", file.path()]);
        run.check();
        let window = run.window("reader");
        let reads = run.told("read");
        assert_eq!(reads.len().to_string(), count);
        let all = requests(&run, window.tid, window.begin, window.end);
        assert_eq!(all.iter().map(|r| r.bytes).sum::<i64>(), window.read_bytes, "as /proc/PID/task/TID/io has it");
        let is_whole = |read: &&&Value| {
            let [begin, end, bytes] = ["begin", "end", "bytes"].map(|key| read[key].as_i64().unwrap());
            let requests = requests(&run, window.tid, begin, end);
            // A read may be several requests where the file is in pieces or the disk wants smaller ones.
            let within = requests.iter().all(|r| !r.write && r.begin + r.latency <= end);
            within && requests.iter().map(|r| r.bytes).sum::<i64>() == bytes
        };
        // On a busy disk the kernel may make a read's request in another thread, now and then.
        let whole = reads.iter().filter(is_whole).count();
        assert!(whole * 20 >= reads.len() * 19, "{whole} of {}", reads.len());
        let rows = assert_disk_waits(&run, &window, "file");
        assert!(rows.iter().all(|row| row.syscall == "pread64" && !row.file.is_empty()), "{rows:?}");
    }
}

#[test]
fn reads_through_the_page_cache_cause_their_requests() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let file = OnDisk::new("buffered");
    let run = HostRun::attached(&["buffered", "--path", file.path()]);
    run.check();
    let window = run.window("reader");
    let requests = requests(&run, window.tid, window.begin, window.end);
    let bytes: i64 = requests.iter().filter(|r| !r.write).map(|r| r.bytes).sum();
    assert!(window.read_bytes >= 64 << 20, "the cache was cold");
    assert_eq!(bytes, window.read_bytes, "as /proc/PID/task/TID/io has it");
    assert_disk_waits(&run, &window, "file");
}

#[test]
fn major_faults_are_those_the_kernel_counted() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let file = OnDisk::new("faults");
    let run = HostRun::attached(&["faults", "--count", "200", "--path", file.path()]);
    run.check();
    let window = run.window("faulter");
    let [map, bytes] = ["map", "bytes"].map(|key| run.told("faults")[0][key].as_i64().unwrap());
    let (begin, end) = (window.begin - run.origin, window.end - run.origin);
    let faults = format!("FROM events WHERE op = 'major_fault' AND tid = {}", window.tid);
    let within = format!("{faults} AND timestamp BETWEEN {begin} AND {end}");
    assert!(window.major_faults > 150, "the cache was cold: {window:?}");
    assert_eq!(run.number(&format!("SELECT COUNT(*) {within}")), window.major_faults, "as getrusage has it");
    let strays = format!("SELECT COUNT(*) {within} AND arg0 NOT BETWEEN {map} AND {}", map + bytes - 1);
    assert_eq!(run.number(&strays), 0, "addresses are those of the mapped file");
    let rows = assert_disk_waits(&run, &window, "page fault");
    let waited: i64 = rows.iter().map(|row| row.duration).sum();
    let lasted = run.number(&format!("SELECT SUM(duration_ns) {within}"));
    assert!(lasted >= waited && lasted <= end - begin, "faults lasted {lasted} ns, in which it waited {waited}");
}

#[test]
fn retransmits_are_counted_for_both_protocols() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let run = HostRun::attached(&["retransmit"]);
    run.check();
    let told = run.told("retransmits");
    assert!(!told.is_empty(), "at least one protocol has a loopback");
    for line in told {
        let [family, port, count] = ["family", "port", "count"].map(|key| line[key].as_i64().unwrap());
        let sql =
            format!("SELECT COUNT(*) FROM events WHERE op = 'tcp_retransmit' AND arg0 = {port} AND arg1 = {family}");
        assert_eq!(run.number(&sql), count, "IPv{family}");
    }
}
