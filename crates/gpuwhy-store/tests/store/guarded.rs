// SPDX-License-Identifier: Apache-2.0
//! What a query may not do, and how far it may go.

use crate::support::*;
use gpuwhy_store::{Error, Limits, Reader};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

fn sample(path: &Path) -> Reader {
    write(path, &mut any_calls(200, 7));
    Reader::open(path).unwrap()
}

#[test]
fn nothing_but_reading_is_let_through() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let reader = sample(&path);
    let before = std::fs::read(&path).unwrap();
    let copy = folder.path().join("copy.db");
    for sql in [
        "INSERT INTO process_ (pid) VALUES (1)",
        "UPDATE call_ SET duration = 0",
        "DELETE FROM call_",
        "REPLACE INTO process_ (pid) VALUES (1)",
        "DROP TABLE call_",
        "DROP VIEW events",
        "CREATE TABLE t (x)",
        "CREATE TEMP TABLE t (x)",
        "CREATE TEMP VIEW v AS SELECT 1",
        "CREATE VIRTUAL TABLE t USING fts5(x)",
        "CREATE INDEX i ON call_ (context)",
        "ALTER TABLE call_ RENAME TO x",
        &format!("ATTACH '{}' AS other", copy.display()),
        "DETACH main",
        "PRAGMA writable_schema = ON",
        "PRAGMA writable_schema",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA journal_mode",
        "PRAGMA user_version = 9",
        "PRAGMA trusted_schema = ON",
        "PRAGMA temp_store_directory = '/tmp'",
        "PRAGMA wal_checkpoint",
        "SELECT load_extension('x.so')",
        "VACUUM",
        &format!("VACUUM INTO '{}'", copy.display()),
        "BEGIN",
        "SAVEPOINT s",
        "COMMIT",
        "ANALYZE",
        "REINDEX",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE call_",
        "WITH x AS (SELECT 1) DELETE FROM call_",
        "",
        "  -- nothing here\n",
        ";",
    ] {
        match ask(&reader, sql) {
            Err(Error::Refused { .. } | Error::NotOneStatement { .. } | Error::Sql { .. }) => {}
            other => panic!("{sql}: {other:?}"),
        }
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert!(!copy.exists());
}

#[test]
fn a_refusal_says_what_was_refused() {
    let folder = tempfile::tempdir().unwrap();
    let reader = sample(&folder.path().join("run.db"));
    for (sql, said) in [
        ("DELETE FROM call_", "DELETE is not allowed"),
        ("PRAGMA journal_mode = OFF", "PRAGMA journal_mode is not allowed"),
        ("SELECT load_extension('x')", "load_extension"),
        ("SELECT 1; SELECT 2", "more than one"),
        ("SELECT 1;;  /* end */ -- of it", ""),
    ] {
        let text = ask(&reader, sql).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(text.contains(said) && text.is_empty() == said.is_empty(), "{sql}: {text}");
    }
}

#[test]
fn what_only_tells_something_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let reader = sample(&folder.path().join("run.db"));
    for sql in [
        "SELECT COUNT(*) FROM events",
        "PRAGMA table_info(events)",
        "PRAGMA table_list",
        "PRAGMA user_version",
        "SELECT name FROM pragma_table_info('events')",
        "EXPLAIN QUERY PLAN SELECT * FROM events",
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10) SELECT SUM(i) FROM n",
        "SELECT value FROM json_each('[1, 2]')",
        "SELECT op, RANK() OVER (ORDER BY COUNT(*) DESC) FROM events GROUP BY op",
        "VALUES (1)",
        "SELECT 1; -- done",
    ] {
        assert!(!ask(&reader, sql).unwrap().is_empty(), "{sql}");
    }
}

#[test]
fn every_view_of_the_host_can_be_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    writer.write_off_cpu(&mut [off_cpu(5, 50, 5)]).unwrap();
    writer.finish(&end());
    let reader = Reader::open(&path).unwrap();
    for view in gpuwhy_store::schema::VIEWS {
        ask(&reader, &format!("SELECT * FROM {view}")).unwrap();
    }
    let said = ask(&reader, "SELECT why FROM off_cpu").unwrap_err().to_string();
    assert!(said.contains("off_cpu has timestamp, duration_ns, pid, tid, reason, wait, file"), "{said}");
}

#[test]
fn endless_queries_stop_at_their_limit() {
    let folder = tempfile::tempdir().unwrap();
    let reader = sample(&folder.path().join("run.db"));
    let limits = Limits { time: Duration::from_millis(300), ..Limits::default() };
    for sql in [
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n",
        "SELECT COUNT(*) FROM events a, events b, events c, events d, events e",
        "SELECT p50(a.duration_ns), p99(b.duration_ns, 1) FROM events a, events b, events c, events d",
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT quantile(i, 0.5, i % 3) FROM n",
    ] {
        let begin = Instant::now();
        let outcome = reader.query(sql, &limits, |_, _| ControlFlow::Continue(()));
        assert!(matches!(outcome, Err(Error::TimedOut { .. })), "{sql}: {outcome:?}");
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
    // The limit belongs to the query, not to the reader.
    assert_eq!(ask(&reader, "SELECT 1").unwrap(), ["1"]);
    let text = Error::TimedOut { limit: Duration::from_secs(30) }.to_string();
    assert_eq!(text, "stopped after 30 s: narrow the query with a time range, or raise --timeout");
}

#[test]
fn a_sum_that_overflows_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let reader = sample(&folder.path().join("run.db"));
    let said = |sql| ask(&reader, sql).unwrap_err().to_string();
    let advice = "SQLite: integer overflow in SUM(); use TOTAL() for a floating-point sum";
    assert_eq!(said("SELECT sum(x) FROM (SELECT 9223372036854775807 AS x UNION ALL SELECT 1)"), advice);
    assert_eq!(said("SELECT abs(-9223372036854775808)"), "integer overflow");
    assert!(
        !ask(&reader, "SELECT TOTAL(x) FROM (SELECT 9223372036854775807 AS x UNION ALL SELECT 1)").unwrap().is_empty()
    );
}

#[test]
fn rows_are_counted_and_cut() {
    let folder = tempfile::tempdir().unwrap();
    let reader = sample(&folder.path().join("run.db"));
    let limits = Limits { rows: 3, ..Limits::default() };
    let outcome = reader.query("SELECT pid, tid FROM events", &limits, |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!((outcome.rows, outcome.more, outcome.columns), (3, true, vec!["pid".into(), "tid".into()]));
    let outcome = reader.query("SELECT 1 WHERE 0", &limits, |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!((outcome.rows, outcome.more, outcome.columns.len()), (0, false, 1));
    let outcome = reader.query("SELECT 1 FROM events", &limits, |_, _| ControlFlow::Break(())).unwrap();
    assert_eq!(outcome.rows, 1);
}

#[test]
fn mistakes_come_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let reader = sample(&folder.path().join("run.db"));
    let said = |sql: &str| ask(&reader, sql).unwrap_err().to_string();
    assert!(said("SELECT * FROM event").contains("no such table: event\nhint: the run file has events, "));
    let text = said("SELECT duration FROM events");
    assert!(
        text.contains("no such column: duration") && text.contains("events has timestamp, duration_ns, pid"),
        "{text}"
    );
    assert!(said("SELEC 1").contains("syntax error"));
    assert!(said("SELECT zeroblob(100000000)").contains("too big"));
}

#[test]
fn functions_that_sqlite_lacks_are_there_and_their_errors_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut calls: Vec<_> = (1..=100).map(|i| call("cudaMalloc", i * 1_000, i * 1_000)).collect();
    write(&path, &mut calls);
    let reader = Reader::open(&path).unwrap();
    let sql = "SELECT p50(duration_ns, weight), p95(duration_ns), p99(duration_ns), quantile(duration_ns, 1),
        human_time(p95(duration_ns)), human_bytes(SUM(bytes * weight)) FROM events";
    assert_eq!(ask(&reader, sql).unwrap(), ["50000|95000|99000|100000|95.0 µs|410 kB"]);
    let said = ask(&reader, "SELECT quantile(duration_ns, 95) FROM events").unwrap_err().to_string();
    assert_eq!(said, "invalid second argument of quantile: expected a number from 0 to 1, got 95");
    for function in gpuwhy_store::functions::FUNCTIONS {
        let name = function.call.split_once('(').unwrap().0;
        let sql = format!("SELECT COUNT(*) FROM pragma_function_list WHERE name = '{name}'");
        assert!(number(&reader, &sql) > 0, "{name}");
    }
}

#[test]
fn work_on_the_rows_counts_against_the_time_and_waiting_does_not() {
    const EACH: Duration = Duration::from_millis(20);
    let folder = tempfile::tempdir().unwrap();
    let reader = sample(&folder.path().join("run.db"));
    let limits = Limits { time: 3 * EACH, ..Limits::default() };
    let spend = || {
        let began = Instant::now();
        while began.elapsed() < EACH {}
    };
    let mut rows = 0;
    let outcome = reader.query("SELECT * FROM call_", &limits, |_, _| {
        rows += 1;
        spend();
        ControlFlow::Continue(())
    });
    assert!(matches!(outcome, Err(Error::TimedOut { .. })), "{outcome:?}");
    assert!(rows <= 3, "{rows} rows of {EACH:?} each");
    let limits = Limits { time: 50 * EACH, ..Limits::default() };
    let outcome = reader.query("SELECT * FROM call_ LIMIT 60", &limits, |_, _| {
        reader.off_the_clock(spend);
        ControlFlow::Continue(())
    });
    assert_eq!(outcome.unwrap().rows, 60);
}
