// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy query`: its three formats, what it refuses, and files that are no runs.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{GPUWHY, Place, can_trace, one_at_a_time, open, refusal, sim, succeed, text};
use rusqlite::types::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// A recorded run that every test here may read; `None` where none can be recorded.
fn recorded() -> Option<&'static Path> {
    static RUN: OnceLock<Option<(Place, PathBuf)>> = OnceLock::new();
    let run = RUN.get_or_init(|| {
        can_trace().then(|| {
            let _lock = one_at_a_time();
            let place = Place::new();
            let job = [sim().simjob.as_os_str(), "--cudart".as_ref(), sim().cudart.as_os_str()];
            succeed(place.trace().args(["--quiet", "--"]).args(job).args(["--calls", "2000", "--mix", "mixed"]));
            let db = place.db();
            (place, db)
        })
    });
    run.as_ref().map(|(_, db)| db.as_path())
}

/// A copy of the recorded run that a test may spoil.
fn copied(place: &Place) -> Option<PathBuf> {
    std::fs::copy(recorded()?, place.db()).unwrap();
    Some(place.db())
}

fn query(db: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(GPUWHY);
    command.args(["query", "--db"]).arg(db).args(args);
    command
}

fn answer(db: &Path, args: &[&str]) -> String {
    String::from_utf8(succeed(&mut query(db, args)).stdout).unwrap()
}

/// Refused with this command's own exit code.
fn refused(command: &mut Command) -> String {
    refusal(command, 1)
}

/// The SQL of the documentation, every statement of it.
fn documented() -> Vec<&'static str> {
    let page = include_str!("../../../docs/run-file.md");
    page.split("```sql\n").skip(1).map(|rest| rest.split_once("```").unwrap().0).collect()
}

/// What plain SQLite answers, as comma-separated values.
fn plain_sqlite(db: &Path, sql: &str) -> String {
    let db = open(db);
    let mut statement = db.prepare(sql).unwrap();
    let mut out = statement.column_names().collect::<Vec<_>>().join(",") + "\n";
    let columns = statement.column_count();
    let mut rows = statement.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let cells: Vec<String> = (0..columns).map(|i| cell(&row.get::<_, Value>(i).unwrap())).collect();
        out += &(cells.join(",") + "\n");
    }
    out
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Integer(n) => n.to_string(),
        Value::Real(x) => x.to_string(),
        Value::Text(text) if text.contains([',', '"', '\n']) => format!("\"{}\"", text.replace('"', "\"\"")),
        Value::Text(text) => text.clone(),
        Value::Blob(bytes) => bytes.iter().map(|b| format!("{b:02x}")).collect(),
    }
}

#[test]
fn the_documented_queries_answer_as_plain_sqlite_does() {
    let Some(db) = recorded() else { return };
    assert!(documented().len() >= 3);
    for sql in documented() {
        assert_eq!(answer(db, &["--csv", sql]), plain_sqlite(db, sql), "{sql}");
    }
    let allocations = answer(db, &["--csv", documented()[0]]);
    assert!(allocations.starts_with("window_sec,allocs,avg_us,max_us,total_mb\n0,"), "{allocations}");
}

#[test]
fn json_is_an_array_of_objects() {
    let Some(db) = recorded() else { return };
    let json = |sql| serde_json::from_str::<serde_json::Value>(&answer(db, &["--json", sql])).unwrap();
    assert_eq!(
        json("SELECT 1 AS n, 0.5 AS x, NULL AS gone, 'a\"b' AS t, x'00ff' AS b UNION ALL SELECT 2, 1, 2, 3, 4"),
        serde_json::json!([
            { "n": 1, "x": 0.5, "gone": null, "t": "a\"b", "b": "00ff" },
            { "n": 2, "x": 1, "gone": 2, "t": 3, "b": 4 },
        ])
    );
    assert_eq!(json("SELECT * FROM events WHERE 0"), serde_json::json!([]));
    let events = json("SELECT * FROM events WHERE op <> 'sched_wakeup'");
    let stored = common::number(&open(db), "SELECT events_stored FROM sessions");
    assert_eq!(events.as_array().unwrap().len() as i64, stored);
}

#[test]
fn csv_is_as_rfc_4180_says_but_with_unix_line_ends() {
    let Some(db) = recorded() else { return };
    assert_eq!(
        answer(db, &["--csv", "SELECT 1 AS n, NULL AS 'a,b', x'00ff' AS b, 'say \"x\"' AS t"]),
        "n,\"a,b\",b,t\n1,,00ff,\"say \"\"x\"\"\"\n"
    );
    assert_eq!(answer(db, &["--csv", "SELECT op, pid FROM events WHERE 0"]), "op,pid\n");
    let sql = "SELECT histogram FROM seconds";
    assert_eq!(answer(db, &["--csv", sql]), plain_sqlite(db, sql));
}

#[test]
fn a_table_shows_null_and_sizes_of_blobs_and_its_heading_when_empty() {
    let Some(db) = recorded() else { return };
    assert_eq!(
        answer(db, &["SELECT NULL AS a, x'0102' AS b, 0.1 + 0.2 AS c"]),
        "   a  b            c\nNULL  <2 bytes>  0.3\n"
    );
    assert_eq!(answer(db, &["SELECT op, pid FROM events WHERE 0"]), "op  pid\n");
}

#[test]
fn the_schema_lists_every_view_with_its_columns() {
    let Some(db) = recorded() else { return };
    let schema = answer(db, &["--schema"]);
    let views = plain_sqlite(db, "SELECT name FROM sqlite_schema WHERE type = 'view' ORDER BY name");
    let (views_part, functions) = schema.split_once("\n\n").unwrap();
    let mut listed: Vec<&str> = views_part.lines().map(|line| line.split_once('(').unwrap().0).collect();
    listed.sort_unstable();
    assert_eq!(listed, views.lines().skip(1).collect::<Vec<_>>());
    assert!(schema.contains("process_names(pid, name)\n"), "{schema}");
    for call in ["p50(x[, weight]): ", "p95(", "p99(", "quantile(x, q[, weight]): ", "human_time(ns): ", "human_bytes("]
    {
        assert!(functions.contains(&format!("\n{call}")), "{call}: {functions}");
    }
}

#[test]
fn writing_is_refused_and_changes_nothing() {
    let place = Place::new();
    let Some(db) = copied(&place) else { return };
    let before = std::fs::read(&db).unwrap();
    let elsewhere = place.dir.path().join("copy.db").display().to_string();
    for (sql, offending) in [
        ("INSERT INTO process_ VALUES (1, 'x', 0, 0)".to_owned(), "INSERT"),
        ("INSERT INTO process_names VALUES (1, 'x')".to_owned(), "INSERT"),
        ("UPDATE session_ SET events_lost = 0".to_owned(), "UPDATE"),
        ("DELETE FROM call_".to_owned(), "DELETE"),
        ("DROP TABLE call_".to_owned(), "not allowed"),
        ("CREATE TEMP TABLE t (x)".to_owned(), "not allowed"),
        (format!("ATTACH '{elsewhere}' AS other"), "ATTACH"),
        (format!("VACUUM INTO '{elsewhere}'"), "writing"),
        ("PRAGMA journal_mode = WAL".to_owned(), "journal_mode"),
        ("PRAGMA user_version = 7".to_owned(), "user_version"),
        ("BEGIN".to_owned(), "transaction"),
        ("SELECT load_extension('x')".to_owned(), "load_extension"),
        ("SELECT 1; DELETE FROM call_".to_owned(), "DELETE"),
        ("SELECT 1; SELECT 2".to_owned(), "one SQL statement"),
    ] {
        for format in ["--json", "--csv", "--timeout=30s"] {
            let said = refused(&mut query(&db, &[format, &sql]));
            assert!(said.contains(offending), "{sql}: {said}");
        }
    }
    assert!(std::fs::read(&db).unwrap() == before, "the file changed");
    assert_eq!(std::fs::read_dir(place.dir.path()).unwrap().count(), 1, "a file appeared beside it");
}

#[test]
fn mistakes_in_sql_are_said_with_what_there_is() {
    let Some(db) = recorded() else { return };
    for (sql, said) in [
        ("SELECT nope FROM events", "no such column: nope; hint: events has timestamp, "),
        ("SELECT * FROM nope", "no such table: nope; hint: the run file has events, "),
        ("SELEC 1", "SELEC"),
        ("", "one SQL statement"),
        ("SELECT \x1b[2J", "unrecognized token"),
    ] {
        let line = refused(&mut query(db, &["--json", sql]));
        assert!(line.contains(said), "{sql}: {line}");
    }
}

#[test]
fn a_query_without_end_is_stopped() {
    let Some(db) = recorded() else { return };
    let bomb = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT COUNT(*) FROM n";
    let said = refused(&mut query(db, &["--timeout", "200ms", bomb]));
    assert!(said.contains("0.2 s") && said.contains("--timeout"), "{said}");
}

#[test]
fn files_that_are_no_runs_are_told_apart() {
    let place = Place::new();
    let Some(db) = copied(&place) else { return };
    let path = |name: &str| place.dir.path().join(name);
    std::fs::write(path("notes.txt"), "not a database at all, but long enough to look at").unwrap();
    std::fs::write(path("empty.db"), "").unwrap();
    rusqlite::Connection::open(path("other.db")).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    std::fs::copy(&db, path("newer.db")).unwrap();
    rusqlite::Connection::open(path("newer.db")).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let bytes = std::fs::read(&db).unwrap();
    std::fs::write(path("short.db"), &bytes[..bytes.len() / 2]).unwrap();
    std::fs::write(path("stub.db"), &bytes[..4096]).unwrap();
    let mut spoilt = bytes.clone();
    spoilt[4096..].fill(0xa5);
    std::fs::write(path("spoilt.db"), spoilt).unwrap();
    for (name, why, fix) in [
        ("missing.db", "no run file", "gpuwhy trace"),
        ("notes.txt", "not an SQLite database", "--db"),
        ("empty.db", "is empty", "empty.db-wal"),
        ("other.db", "not a gpuwhy run file", "--db"),
        (".", "not a gpuwhy run file", "--db"),
        ("newer.db", "version 99", "update gpuwhy"),
        ("short.db", "damaged", ".recover"),
        ("stub.db", "damaged", ".recover"),
        ("spoilt.db", "damaged", ".recover"),
    ] {
        let file = path(name);
        let said = refused(&mut query(&file, &["SELECT SUM(duration_ns) FROM events"]));
        let told = [file.to_str().unwrap(), why, fix].iter().all(|part| said.contains(part));
        assert!(told, "{name}: {said}");
    }
}

#[test]
fn without_db_the_run_file_here_is_asked() {
    let place = Place::new();
    let said = refused(Command::new(GPUWHY).args(["query", "SELECT 1"]).current_dir(place.dir.path()));
    assert!(said.contains("gpuwhy.db") && said.contains("gpuwhy trace"), "{said}");
    let Some(db) = copied(&place) else { return };
    std::fs::rename(db, place.dir.path().join("gpuwhy.db")).unwrap();
    let output = succeed(Command::new(GPUWHY).args(["query", "SELECT 1 AS one"]).current_dir(place.dir.path()));
    assert_eq!(text(&output), "one\n  1\n");
}

#[test]
fn another_user_reads_a_run_where_they_may_not_write() {
    let place = Place::new();
    let Some(db) = copied(&place) else { return };
    let binary = place.dir.path().join("gpuwhy");
    std::fs::copy(GPUWHY, &binary).unwrap();
    std::fs::set_permissions(place.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let ask = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&binary);
        command.args(["query", "--db"]).arg(&db).arg("SELECT COUNT(*) > 2000 AS many FROM events");
        command
    };
    let said = refused(&mut ask());
    assert!(said.contains("belongs to user 0") && said.contains("gpuwhy share"), "{said}");
    std::fs::set_permissions(&db, PermissionsExt::from_mode(0o644)).unwrap();
    assert_eq!(text(&succeed(&mut ask())), "many\n   1\n");
}

#[test]
fn names_that_drive_terminals_are_defused() {
    let Some(_) = recorded() else { return };
    let _lock = one_at_a_time();
    let place = Place::new();
    let hostile = place.dir.path().join("\x1b]0;owned\x07\x1b[2Jjob\u{202e}");
    std::fs::copy(&sim().simjob, &hostile).unwrap();
    let traced =
        succeed(place.trace().arg("--").arg(&hostile).arg("--cudart").arg(&sim().cudart).args(["--calls", "9"]));
    assert!(!text(&traced).contains('\x1b'), "{}", text(&traced));

    let name: String = place.run_file().query_row("SELECT name FROM process_names", [], |row| row.get(0)).unwrap();
    assert!(name.contains("\x1b]0;owned"), "the file has the name as it is: {name:?}");
    let sql = "SELECT name AS \"\x1b[31m\", (SELECT command FROM sessions) FROM process_names";
    let table = answer(&place.db(), &[sql]);
    assert!(table.contains("job") && !table.contains(['\x1b', '\x07', '\u{202e}']), "{table:?}");
    assert!(!answer(&place.db(), &["--json", sql]).contains('\x1b'), "JSON escapes it");
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let Some(db) = recorded() else { return };
    let many = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 200000) SELECT x FROM n";
    for format in ["--csv", "--json"] {
        let mut child = query(db, &[format, many]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let head = Command::new("head").arg("-1").stdin(child.stdout.take().unwrap()).output().unwrap();
        assert_eq!(head.stdout.split(|b| *b == b'\n').count(), 2, "one line");
        let left = child.wait_with_output().unwrap();
        assert!(left.stderr.is_empty(), "{}", text(&left));
    }
}
