// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy query` with answers larger than anybody wants to hold in memory: rows stream, and what ends early says so.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{GPUWHY, Place, succeed, text};
use gpuwhy_model::{Call, CallFlags, ops};
use gpuwhy_store::{NewRun, RunEnd, Writer};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// Rows without end.
const ENDLESS: &str =
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x, 'row ' || x AS name FROM n";
/// More than a pipe and all buffers on the way hold.
const MILLION: u64 = 1_000_000;
/// What SQLite may keep of the file (64 MB) and as much again. A million rows as text are five times that.
const MOST_MEMORY_KB: i64 = 128 << 10;

/// A finished run with so many calls.
fn run_with(place: &Place, calls: u64) -> PathBuf {
    let functions =
        ["cudaLaunchKernel", "cudaMalloc", "cudaMemcpyAsync"].map(|name| ops::by_function(name).unwrap().id);
    let mut writer = Writer::create(&place.db(), &NewRun::default()).unwrap().writer;
    for first in (0..calls).step_by(10_000) {
        let mut batch: Vec<Call> = (first..(first + 10_000).min(calls))
            .map(|i| Call {
                start_ns: i * 5_000,
                duration_ns: 2_000 + i % 1_000,
                pid: 100,
                tid: 101 + (i % 4) as u32,
                op: functions[(i % 3) as usize],
                device: Some(0),
                stream: None,
                arg0: Some(i),
                arg1: None,
                ret: 0,
                flags: CallFlags::default(),
                weight: 1,
                stack: None,
            })
            .collect();
        writer.write_calls(&mut batch).unwrap();
    }
    let done = writer.finish(&RunEnd { stop_reason: "exit".into(), ..RunEnd::default() });
    assert!(done.problem.is_none(), "{:?}", done.problem);
    place.db()
}

fn query(db: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(GPUWHY);
    command.args(["query", "--db"]).arg(db).args(args);
    command
}

/// The most memory a child had, kB, when it has ended.
fn peak_memory(child: Child) -> i64 {
    // SAFETY: a struct of numbers, for which zeroes are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    // SAFETY: waits for a child of ours that nobody else waits for, and fills what we own.
    let waited = unsafe { libc::wait4(child.id() as i32, &raw mut status, 0, &raw mut usage) };
    assert_eq!((waited, status), (child.id() as i32, 0));
    usage.ru_maxrss
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_first_rows_come_before_the_last_exist() {
    let place = Place::new();
    let db = run_with(&place, 10);
    for format in [&["--timeout", "10m"][..], &["--csv"], &["--json"]] {
        let mut command = query(&db, format);
        let mut child = command.arg(ENDLESS).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let fifth = lines.nth(5).unwrap().unwrap();
        assert!(fifth.contains("row 5"), "{format:?}: {fifth}");
        // Nobody reads on, and that ends it: there is no last row.
        drop(lines);
        let left = child.wait_with_output().unwrap();
        assert!(left.stderr.is_empty(), "{}", text(&left));
    }
}

#[test]
fn a_million_events_pass_through_little_memory() {
    let place = Place::new();
    let db = run_with(&place, MILLION);
    for (format, around) in [(&[][..], 1), (&["--csv"], 1), (&["--json"], 2)] {
        let mut child = query(&db, format).arg("SELECT * FROM events").stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).split(b'\n').count() as u64;
        assert_eq!(lines, MILLION + around, "{format:?}");
        let kilobytes = peak_memory(child);
        assert!(kilobytes < MOST_MEMORY_KB, "{format:?}: {kilobytes} kB");
    }
}

#[test]
fn the_timeout_ends_it_whatever_the_format() {
    let place = Place::new();
    let db = run_with(&place, 10);
    for format in [&[][..], &["--csv"], &["--json"]] {
        let mut command = query(&db, format);
        let output = command.args(["--timeout", "100ms", ENDLESS]).output().unwrap();
        let told = said(&output);
        assert_eq!(output.status.code(), Some(1), "{format:?}: {told}");
        assert!(told.contains("stopped after 0.1 s") && told.contains("--timeout"), "{format:?}: {told}");
        let rows = String::from_utf8(output.stdout).unwrap().matches("row ").count();
        assert!(rows > 0 && told.contains("is incomplete"), "{format:?}: {rows} rows, {told}");
    }
}

/// The fifth row of these has no value.
const BREAKS: &str = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 9)
    SELECT CASE x WHEN 5 THEN abs(-9223372036854775807 - 1) ELSE x END AS x FROM n";

#[test]
fn what_an_error_cuts_is_still_json_and_the_error_is_said() {
    let place = Place::new();
    let db = run_with(&place, 10);
    let output = query(&db, &["--json", BREAKS]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows, serde_json::json!([{ "x": 1 }, { "x": 2 }, { "x": 3 }, { "x": 4 }]));
    let told = said(&output);
    assert!(told.contains("is incomplete: it ends after 4 rows") && told.contains("integer overflow"), "{told}");
    let output = query(&db, &["--csv", BREAKS]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b"x\n1\n2\n3\n4\n"[..]));
    assert!(said(&output).contains("it ends after 4 rows"), "{}", said(&output));
}

#[test]
fn every_full_disk_behind_the_output_is_an_error() {
    let place = Place::new();
    let db = run_with(&place, 1_000);
    for format in [&[][..], &["--csv"], &["--json"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = query(&db, format).arg("SELECT * FROM events").stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{format:?}");
        assert!(said(&output).contains("No space left"), "{format:?}: {}", said(&output));
    }
}

#[test]
fn rows_that_come_later_and_are_wider_stay_whole() {
    let place = Place::new();
    let db = run_with(&place, 10);
    let sql = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 5000)
        SELECT x, CASE x WHEN 4000 THEN 'one that is wider than all before it' ELSE 'short' END AS word, 7 AS n FROM n";
    let table = String::from_utf8(succeed(&mut query(&db, &[sql])).stdout).unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 5_001);
    assert_eq!((lines[0], lines[1]), ("   x  word   n", "   1  short  7"));
    assert_eq!((lines[4_000], lines[5_000]), ("4000  one that is wider than all before it  7", "5000  short  7"));
}

/// What a command prints on a terminal, and what it says on its standard error.
fn on_terminal(command: &mut Command) -> (String, String) {
    let (mut master, mut slave) = (0, 0);
    let mut size = libc::winsize { ws_row: 24, ws_col: 90, ws_xpixel: 0, ws_ypixel: 0 };
    let (name, settings) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: fills two descriptors; the size is ours.
    assert_eq!(unsafe { libc::openpty(&raw mut master, &raw mut slave, name, settings, &raw mut size) }, 0);
    // SAFETY: both were just opened and belong to nobody else.
    let (master, slave) = unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
    let child = command.stdout(slave).stderr(Stdio::piped()).spawn().unwrap();
    // Or the terminal would never end.
    command.stdout(Stdio::null());
    let mut shown = Vec::new();
    // A terminal whose other end is closed answers with an error, after everything that was written.
    let _ = File::from(master).read_to_end(&mut shown);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    (String::from_utf8(shown).unwrap().replace("\r\n", "\n"), said(&output))
}

#[test]
fn a_terminal_gets_a_thousand_rows_unless_more_are_wanted() {
    let place = Place::new();
    let db = run_with(&place, 3_000);
    let sql = "SELECT timestamp FROM events";
    let (shown, told) = on_terminal(&mut query(&db, &[sql]));
    assert_eq!(shown.lines().count(), 1_001);
    assert!(told.contains("first 1,000 rows") && told.contains("--rows"), "{told}");
    let (shown, told) = on_terminal(&mut query(&db, &["--rows", "2000", sql]));
    assert_eq!(shown.lines().count(), 2_001);
    assert!(told.contains("first 2,000 rows"), "{told}");
    // Nothing to say where nothing is missing, and no limit where a program reads.
    let (shown, told) = on_terminal(&mut query(&db, &["SELECT timestamp FROM events LIMIT 1000"]));
    assert_eq!((shown.lines().count(), told.as_str()), (1_001, ""));
    let output = succeed(&mut query(&db, &[sql]));
    assert_eq!((output.stdout.split(|b| *b == b'\n').count(), said(&output).as_str()), (3_002, ""));
    let output = succeed(&mut query(&db, &["--json", "--rows", "3", sql]));
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 3);
    assert!(said(&output).contains("first 3 rows"), "{}", said(&output));
}
