// SPDX-License-Identifier: Apache-2.0
//! The documented queries, through gpuwhy and through plain SQLite, and how SQLite goes about them.

use crate::support::*;
use gpuwhy_model::Call;
use gpuwhy_store::Reader;
use gpuwhy_store::schema::VIEWS;
use rusqlite::Connection;
use std::path::Path;
use std::process::Command;

const ALLOCATIONS: &str = "SELECT (timestamp / 30000000000) * 30 AS window_sec, COUNT(*) AS allocs, AVG(duration_ns)/1000 AS avg_us, MAX(duration_ns)/1000 AS max_us, SUM(arg0)/1048576 AS total_mb FROM events WHERE op = 'cudaMalloc' GROUP BY window_sec ORDER BY window_sec;";
const OFF_CPU: &str = "SELECT pn.name AS process, COUNT(*) AS context_switches, SUM(duration_ns)/1e9 AS total_off_cpu_sec, MAX(duration_ns)/1e6 AS worst_stall_ms FROM events e JOIN process_names pn ON e.pid = pn.pid WHERE op = 'sched_switch' AND timestamp > (SELECT MAX(timestamp) - 120000000000 FROM events) GROUP BY pn.name ORDER BY total_off_cpu_sec DESC LIMIT 10;";
const WAITS: &str = "SELECT (timestamp / 10000000000) * 10 AS window_sec, COUNT(CASE WHEN op = 'sched_switch' THEN 1 END) AS ctx_switches, COUNT(CASE WHEN op = 'cudaStreamSync' THEN 1 END) AS sync_calls, AVG(CASE WHEN op = 'cudaStreamSync' THEN duration_ns END)/1000 AS sync_avg_us FROM events GROUP BY window_sec ORDER BY window_sec;";

/// A minute of allocations of 1 MiB and waits of 2 µs.
fn minute(path: &Path) {
    let mut calls: Vec<Call> = (0..600)
        .flat_map(|i| {
            let malloc = Call { arg0: Some(1 << 20), ..call("cudaMalloc", i * 100_000_000, 4_000) };
            [malloc, call("cudaStreamSynchronize_ptsz", i * 100_000_000 + 50_000, 2_000)]
        })
        .collect();
    write(path, &mut calls);
}

#[test]
fn the_three_queries_run_unchanged_and_tell_the_truth() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    minute(&path);
    let reader = Reader::open(&path).unwrap();
    assert_eq!(ask(&reader, ALLOCATIONS).unwrap(), ["0|300|4|4|300", "30|300|4|4|300"]);
    assert!(ask(&reader, OFF_CPU).unwrap().is_empty());
    let waits: Vec<String> = (0..6).map(|i| format!("{}|0|100|2", i * 10)).collect();
    assert_eq!(ask(&reader, WAITS).unwrap(), waits);
    // The same join with an op that exists.
    let by_process = OFF_CPU.replace("sched_switch", "cudaMalloc");
    assert_eq!(ask(&reader, &by_process).unwrap(), ["pid 100|600|0.0024|0.004"]);
}

#[test]
fn any_sqlite_client_can_ask_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    minute(&path);
    let plain = Connection::open(&path).unwrap();
    for (sql, rows) in [(ALLOCATIONS, 2), (OFF_CPU, 0), (WAITS, 6)] {
        let mut statement = plain.prepare(sql).unwrap();
        let mut cursor = statement.query([]).unwrap();
        let mut count = 0;
        while cursor.next().unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, rows, "{sql}");
        match Command::new("sqlite3").arg(&path).arg(sql).output() {
            Ok(output) => {
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), rows, "{sql}");
            }
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::NotFound),
        }
    }
    assert_eq!(plain.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0)).unwrap(), "ok");
}

#[test]
fn every_view_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    minute(&path);
    let reader = Reader::open(&path).unwrap();
    for view in VIEWS {
        ask(&reader, &format!("SELECT * FROM {view}")).unwrap();
    }
}

/// Calls are gone through once, in order of time; everything else is found by row id. The grouping of the
/// queries by an expression needs a sort of its own, which no schema can spare.
#[test]
fn plans_scan_calls_once_and_build_no_index() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    minute(&path);
    let reader = Reader::open(&path).unwrap();
    let range = "SELECT op, COUNT(*) FROM events WHERE timestamp BETWEEN 5 AND 9 GROUP BY op";
    let newest = "SELECT timestamp FROM events ORDER BY timestamp DESC LIMIT 5";
    for sql in [ALLOCATIONS, OFF_CPU, WAITS, range, newest] {
        let plan = ask(&reader, &format!("EXPLAIN QUERY PLAN {sql}")).unwrap().join("\n");
        assert!(!plan.contains("AUTOMATIC"), "{sql}\n{plan}");
        assert!(!plan.contains("MATERIALIZE") && !plan.contains("CO-ROUTINE"), "{sql}\n{plan}");
        let first = plan.lines().next().unwrap();
        assert!(first.contains("SCAN c") || first.contains("SEARCH c USING INTEGER PRIMARY KEY"), "{sql}\n{plan}");
        for line in plan.lines().filter(|line| line.contains("SCAN")) {
            assert!(line.ends_with("SCAN c"), "{sql}\n{plan}");
        }
    }
    let plan = ask(&reader, &format!("EXPLAIN QUERY PLAN {range}")).unwrap().join("\n");
    assert!(plan.contains("SEARCH c USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"), "{plan}");
    let plan = ask(&reader, &format!("EXPLAIN QUERY PLAN {newest}")).unwrap().join("\n");
    assert!(!plan.contains("TEMP B-TREE"), "{plan}");
}
