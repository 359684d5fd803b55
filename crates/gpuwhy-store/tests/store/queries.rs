// SPDX-License-Identifier: Apache-2.0
//! The documented queries, through gpuwhy and through plain SQLite, and how SQLite goes about them.

use crate::support::*;
use gpuwhy_model::{Call, LossCause, Reason, Wait, WokenBy};
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
    // The same join with an op the file has.
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

/// Calls and times off the CPU are gone through once, in order of time; everything else is found by row id. The
/// grouping of the queries by an expression needs a sort of its own, which no schema can spare.
#[test]
fn plans_scan_events_once_and_build_no_index() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    minute(&path);
    let reader = Reader::open(&path).unwrap();
    let range = "SELECT op, COUNT(*) FROM events WHERE timestamp BETWEEN 5 AND 9 GROUP BY op";
    let newest = "SELECT timestamp FROM events ORDER BY timestamp DESC LIMIT 5";
    let thread = "SELECT reason, SUM(duration_ns) FROM off_cpu WHERE tid = 5 AND reason = 'asleep' GROUP BY wait";
    let held = "SELECT holder_name, SUM(duration_ns) FROM cpu_held WHERE tid = 5 GROUP BY holder_name";
    for sql in [ALLOCATIONS, OFF_CPU, WAITS, range, newest, thread, held] {
        let plan = ask(&reader, &format!("EXPLAIN QUERY PLAN {sql}")).unwrap().join("\n");
        assert!(!plan.contains("AUTOMATIC"), "{sql}\n{plan}");
        for line in plan.lines().filter(|line| line.contains("SCAN")) {
            let scanned = line.rsplit(' ').next().unwrap();
            // c, f and t are the tables of rows; the others are views whose rows come from them one by one.
            let rows = ["c", "f", "t", "moved_wait_", "events", "e", "cpu_waits", "q"];
            assert!(rows.contains(&scanned), "{sql}\n{plan}");
        }
    }
    let plan = ask(&reader, &format!("EXPLAIN QUERY PLAN {range}")).unwrap().join("\n");
    for table in ["c", "f", "t"] {
        let search = format!("SEARCH {table} USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)");
        assert!(plan.contains(&search), "{plan}");
    }
    // Only wake-ups, which are found in other rows, need sorting.
    let plan = ask(&reader, &format!("EXPLAIN QUERY PLAN {newest}")).unwrap().join("\n");
    assert!(plan.contains("MERGE (UNION ALL)") && plan.matches("TEMP B-TREE").count() == 1, "{plan}");
    let plan = ask(&reader, &format!("EXPLAIN QUERY PLAN {held}")).unwrap().join("\n");
    assert!(plan.contains("SEARCH r USING PRIMARY KEY (cpu=? AND start>? AND start<?)"), "{plan}");
}

#[test]
fn the_document_names_every_view_column_and_word() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/run-file.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    minute(&path);
    let reader = Reader::open(&path).unwrap();
    for view in VIEWS {
        assert!(
            text.contains(&format!("`{view}`")) || text.contains(&format!("### {view}")),
            "{view} is not described"
        );
        for column in ask(&reader, &format!("SELECT name FROM pragma_table_info('{view}')")).unwrap() {
            assert!(text.contains(&format!("`{column}`")), "{view}.{column} is not described");
        }
    }
    let words = Reason::ALL.iter().map(|reason| reason.name()).chain(Wait::ALL.iter().map(|wait| wait.name()));
    let words = words.chain(WokenBy::ALL.iter().map(|by| by.name())).chain(LossCause::ALL.iter().map(|c| c.name()));
    for word in words.filter(|word| !word.is_empty()) {
        assert!(text.contains(&format!("| `{word}` |")), "{word} is not described");
    }
}
