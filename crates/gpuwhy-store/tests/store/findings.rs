// SPDX-License-Identifier: Apache-2.0
//! What analysis adds to a run file: the ledger while it is written, findings at any time.

use crate::facts::sums;
use crate::support::*;
use crate::told::tell;
use gpuwhy_model::{Confidence, Finding, Fix, Link, RootCause, Severity, ThreadSums};
use gpuwhy_store::{Error, LedgerEntry, LedgerRow, Reader, add_findings};
use rusqlite::Connection;
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::time::Duration;

pub(crate) fn finding() -> Finding {
    Finding {
        kind: "input_starved".into(),
        severity: Severity::High,
        title: "GPU starved 37.2 s of 120 s".into(),
        lost_ns: 37_200_000_000,
        is_upper_bound: false,
        lost_bytes: 0,
        share: 0.31,
        pid: Some(200),
        tid: Some(201),
        chain: vec![
            Link {
                layer: "thread".into(),
                who: "python3 200".into(),
                what: "waits for the next batch".into(),
                line: Some("train.py:138".into()),
                state: "blocked, pipe".into(),
                ns: 37_200_000_000,
                evidence: Some("SELECT 1".into()),
            },
            Link { who: "worker".into(), what: "decodes".into(), ..Link::default() },
        ],
        root_cause: RootCause {
            detail: "workers decode".into(),
            line: Some("data.py:51".into()),
            ..RootCause::default()
        },
        effect: vec!["half the speed".into()],
        fixes: vec![
            Fix { text: "num_workers 4 → 6".into(), saves_ns: 31_000_000_000, saves_bytes: 0 },
            Fix { text: "pray".into(), ..Fix::default() },
        ],
        confidence: Confidence::Medium,
        confidence_reason: "inferred in part".into(),
    }
}

fn ledger_row(tid: u32, since: u64, state: &str, function: Option<&str>, ns: u64) -> LedgerRow {
    LedgerRow { pid: 200, tid, since_ns: ORIGIN + since, state: state.into(), op: function.map(op), ns }
}

#[test]
fn a_threads_newest_ledger_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    writer.set_thread_sums(ThreadSums { name: *b"worker\0\0\0\0\0\0\0\0\0\0", ..sums(201, 0, 400) });
    writer.set_process(200, "python3");
    writer.ledger(&[ledger_row(201, 0, "running", None, 5), ledger_row(201, 0, "blocked, pipe", None, 6)]);
    writer.ledger(&[ledger_row(202, 0, "running", None, 1)]);
    writer.commit().unwrap();
    writer.ledger(&[
        ledger_row(201, 0, "running", None, 50),
        ledger_row(201, 0, "in CUDA", Some("cudaMalloc"), 30),
        ledger_row(201, 0, "in CUDA", Some("cudaMalloc"), 3),
        ledger_row(201, 9, "running", None, 7),
    ]);
    writer.ledger(&[]);
    writer.finish(&end());
    let reader = Reader::open(&path).unwrap();
    let rows = ask(&reader, "SELECT pid, tid, name, state, op, ns FROM ledger ORDER BY tid, state").unwrap();
    assert_eq!(
        rows,
        ["200|201|worker|in CUDA|cudaMalloc|33", "200|201|worker|running|NULL|57", "200|202|python3|running|NULL|1"]
    );
    let entry =
        |tid, since_ns, state: &str, op, ns| LedgerEntry { pid: 200, tid, since_ns, state: state.into(), op, ns };
    let expected = [
        entry(201, 0, "running", None, 50),
        entry(201, 0, "in CUDA", Some(op("cudaMalloc")), 33),
        entry(201, 9, "running", None, 7),
        entry(202, 0, "running", None, 1),
    ];
    assert_eq!(reader.ledger().unwrap(), expected);
}

const CHAINS: &str =
    "SELECT id, detected_at, severity, kind, summary, root_cause, explanation, recommendations, pid, tid,
    lost_ns FROM causal_chains";

/// Nothing lies beside the file, and it is in the mode in which it was closed.
fn assert_plain(path: &Path) {
    for end in ["-wal", "-shm", "-journal"] {
        assert!(!path.with_file_name(format!("run.db{end}")).exists(), "{end}");
    }
    let db = Connection::open(path).unwrap();
    assert_eq!(db.pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0)).unwrap(), "delete");
    assert_eq!(db.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0)).unwrap(), "ok");
}

#[test]
fn findings_are_added_once_and_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    write(&path, &mut any_calls(500, 3));
    let owner = std::fs::metadata(&path).unwrap().uid();
    // Who explains a run has it open.
    let reader = Reader::open(&path).unwrap();
    reader.replay(0, None, |_| ControlFlow::Break(())).unwrap();
    let other = Finding { kind: "other".into(), ..finding() };
    assert_eq!(add_findings(&path, 1, 2, 3, &[finding(), other.clone()]).unwrap(), 2);
    assert_eq!(add_findings(&path, 1, 2, 4, &[finding(), other]).unwrap(), 0, "the same again");
    assert_eq!(add_findings(&path, 1, 3, 5, &[finding()]).unwrap(), 1, "of another part of the run");
    assert_eq!(add_findings(&path, 1, 3, 5, &[]).unwrap(), 0);
    assert_eq!(std::fs::metadata(&path).unwrap().uid(), owner);
    assert_plain(&path);
    assert_eq!(
        ask(&reader, &format!("{CHAINS} WHERE id = 1")).unwrap(),
        ["1|3|high|input_starved|GPU starved 37.2 s of 120 s (37.2 s · 31 %)|workers decode (data.py:51)|\
          python3 200 waits for the next batch (train.py:138): 37.2 s, blocked, pipe\n← worker decodes|\
          num_workers 4 → 6: saves up to 31.0 s\npray|200|201|37200000000"]
    );
    assert_eq!(ask(&reader, "SELECT detected_at FROM causal_chains").unwrap(), ["3", "3", "5"]);
    let json = ask(&reader, "SELECT finding FROM causal_chains").unwrap().remove(0);
    assert_eq!(serde_json::from_str::<Finding>(&json).unwrap(), finding());
}

#[test]
fn nothing_is_added_to_somebody_elses_file() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    write(&path, &mut any_calls(500, 3));
    chown(&path, Some(1_234), Some(1_234)).unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = add_findings(&path, 1, 2, 3, &[finding()]).unwrap_err();
    assert!(matches!(error, Error::NotYours { .. }), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_plain(&path);
    chown(&path, Some(0), Some(0)).unwrap();
    assert_eq!(add_findings(&path, 1, 2, 3, &[finding()]).unwrap(), 1);
}

#[test]
fn a_run_that_goes_on_takes_findings_between_two_commits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    writer.write_calls(&mut any_calls(500, 3)).unwrap();
    // Its transaction is open, and so is the next one a moment after this one's end.
    let added = std::thread::scope(|threads| {
        let asking = threads.spawn(|| add_findings(&path, 1, 2, 3, &[finding()]));
        let mut at = 0;
        while !asking.is_finished() {
            writer.write_calls(&mut [call("cudaMalloc", 10_000_000_000 + at, 1)]).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            writer.commit().unwrap();
            std::thread::sleep(Duration::from_millis(5));
            at += 10;
        }
        asking.join().unwrap()
    });
    assert_eq!(added.unwrap(), 1);
    writer.write_calls(&mut [call("cudaMalloc", 20_000_000_000, 1)]).unwrap();
    assert!(writer.finish(&end()).problem.is_none());
    assert_plain(&path);
    let reader = Reader::open(&path).unwrap();
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM causal_chains"), 1);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM events WHERE timestamp = 20000000000"), 1);
}

#[test]
fn a_killed_run_takes_findings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    writer.write_calls(&mut any_calls(500, 3)).unwrap();
    writer.commit().unwrap();
    for end in ["", "-wal"] {
        std::fs::copy(folder.path().join(format!("run.db{end}")), folder.path().join(format!("killed.db{end}")))
            .unwrap();
    }
    let killed = folder.path().join("killed.db");
    assert_eq!(add_findings(&killed, 1, 2, 3, &[finding()]).unwrap(), 1);
    let reader = Reader::open(&killed).unwrap();
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM causal_chains"), 1);
    assert!(number(&reader, "SELECT COUNT(*) FROM events") > 0);
}

/// Makes a file what version 1 wrote.
pub(crate) fn make_old(path: &Path) {
    make_version_2(path);
    Connection::open(path)
        .unwrap()
        .execute_batch(
            "DROP VIEW ledger; DROP TABLE ledger_; DROP VIEW causal_chains;
             DROP VIEW gpu_processes;
             ALTER TABLE gpu_process_ DROP COLUMN sm_percent; ALTER TABLE gpu_process_ DROP COLUMN name;
             CREATE VIEW gpu_processes AS SELECT at / 1000000000 AS second, at AS timestamp, gpu, pid, bytes
                 FROM gpu_process_;
             ALTER TABLE causal_chain_ DROP COLUMN tid; ALTER TABLE causal_chain_ DROP COLUMN from_ns;
             ALTER TABLE causal_chain_ DROP COLUMN to_ns; ALTER TABLE causal_chain_ DROP COLUMN finding;
             CREATE VIEW causal_chains AS SELECT id, detected_at, severity, kind, summary, root_cause, explanation,
                 recommendations, pid, lost_ns FROM causal_chain_;
             PRAGMA user_version = 1;",
        )
        .unwrap();
}

/// Makes a file what version 2 wrote.
pub(crate) fn make_version_2(path: &Path) {
    make_version_3(path);
    let db = Connection::open(path).unwrap();
    let view: String =
        db.query_row("SELECT sql FROM sqlite_master WHERE name = 'sessions'", [], |row| row.get(0)).unwrap();
    db.execute_batch(&format!(
        "DROP VIEW sessions; {}; ALTER TABLE session_ DROP COLUMN thinned; ALTER TABLE session_ DROP COLUMN max_size;
         DROP VIEW allocations; DROP VIEW collectives; DROP VIEW communicators; DROP VIEW functions; DROP VIEW graphs;
         DROP VIEW unwatched; DROP VIEW governor; DROP TABLE tensor_; DROP TABLE transfer_; DROP TABLE communicator_;
         DROP TABLE function_; DROP TABLE unwatched_; DROP TABLE governor_;
         DROP VIEW events; CREATE VIEW events AS SELECT * FROM inner_events;
         PRAGMA user_version = 2;",
        view.replace(", thinned, max_size", "")
    ))
    .unwrap();
}

/// Makes a file what version 5 wrote.
fn make_version_5(path: &Path) {
    let sql = "DROP VIEW source_lines; DROP TABLE source_line_;
               DROP VIEW governor; ALTER TABLE governor_ DROP COLUMN pid; CREATE VIEW governor AS SELECT g.at AS timestamp,
                   o.name AS op, g.action AS action, g.reason AS reason, g.input AS input
                   FROM governor_ AS g LEFT JOIN op_ AS o ON o.id = g.op;
               PRAGMA user_version = 5;";
    Connection::open(path).unwrap().execute_batch(sql).unwrap();
}

/// Makes a file what version 4 wrote.
fn make_version_4(path: &Path) {
    make_version_5(path);
    let sql = "DROP VIEW alerts; DROP TABLE alert_; PRAGMA user_version = 4;";
    Connection::open(path).unwrap().execute_batch(sql).unwrap();
}

/// Makes a file what version 3 wrote.
fn make_version_3(path: &Path) {
    make_version_4(path);
    let db = Connection::open(path).unwrap();
    let sql = "SELECT sql FROM sqlite_master WHERE name = 'system_seconds'";
    let view: String = db.query_row(sql, [], |row| row.get(0)).unwrap();
    db.execute_batch(&format!(
        "DROP VIEW system_seconds; {}; ALTER TABLE system_second_ DROP COLUMN input; DROP VIEW merged;
         DROP VIEW governor; ALTER TABLE governor_ DROP COLUMN input; CREATE VIEW governor AS SELECT g.at AS timestamp,
             o.name AS op, g.action AS action, g.reason AS reason FROM governor_ AS g LEFT JOIN op_ AS o ON o.id = g.op;
         DROP TABLE merged_; PRAGMA user_version = 3;",
        view.replace(", input\n", "\n")
    ))
    .unwrap();
}

#[test]
fn a_file_of_version_1_is_read_and_takes_findings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    write(&path, &mut any_calls(500, 3));
    let events = number(&Reader::open(&path).unwrap(), "SELECT COUNT(*) FROM events");
    make_old(&path);
    let reader = Reader::open(&path).unwrap();
    assert_eq!(reader.replay(0, None, |_| ControlFlow::Continue(())).unwrap(), 500);
    assert_eq!(reader.ledger().unwrap(), []);
    assert!(reader.facts(0, None).unwrap().session.events_stored > 0);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM gpu_processes"), 0);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM causal_chains"), 0);
    for added in [1, 0] {
        assert_eq!(add_findings(&path, 1, 2, 3, &[finding()]).unwrap(), added);
    }
    assert_plain(&path);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM causal_chains WHERE tid = 201"), 1);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM events"), events);
    assert_eq!(number(&reader, "PRAGMA user_version"), 6);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM allocations"), 0);
    assert_eq!(number(&reader, "SELECT COUNT(sm_percent) FROM gpu_processes"), 0);
    assert_eq!(reader.ledger().unwrap(), []);
}

#[test]
fn a_file_of_version_2_is_read_and_takes_findings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    write(&path, &mut any_calls(500, 3));
    make_version_2(&path);
    let reader = Reader::open(&path).unwrap();
    let session = reader.session().unwrap();
    assert_eq!((session.thinned, session.max_size), (0, None));
    assert_eq!(add_findings(&path, 1, 2, 3, &[finding()]).unwrap(), 1);
    assert_eq!(number(&reader, "PRAGMA user_version"), 6);
    assert_eq!(number(&reader, "SELECT thinned FROM sessions WHERE max_size IS NULL"), 0);
    assert_eq!(reader.session().unwrap(), session);
}

#[test]
fn a_file_of_version_3_is_read_and_takes_findings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    tell(&mut writer);
    writer.finish(&end());
    make_version_3(&path);
    let reader = Reader::open(&path).unwrap();
    let facts = reader.facts(0, None).unwrap();
    assert!(facts.unwatched.len() > 2);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM system_seconds"), 0);
    assert_eq!(add_findings(&path, 1, 2, 3, &[finding()]).unwrap(), 1);
    assert_eq!(number(&reader, "PRAGMA user_version"), 6);
    assert_eq!(number(&reader, "SELECT COUNT(input) FROM system_seconds"), 0);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM merged"), 0);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM governor WHERE input = 0 AND pid IS NULL"), 5);
    assert_eq!(reader.facts(0, None).unwrap(), facts);
}

#[test]
fn a_file_of_version_4_is_read_and_takes_findings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    tell(&mut writer);
    writer.finish(&end());
    make_version_4(&path);
    let reader = Reader::open(&path).unwrap();
    let facts = reader.facts(0, None).unwrap();
    assert_eq!(reader.alerts(0, u64::MAX).unwrap(), []);
    assert_eq!(add_findings(&path, 1, 2, 3, &[finding()]).unwrap(), 1);
    assert_eq!(number(&reader, "PRAGMA user_version"), 6);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM alerts"), 0);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM governor WHERE input = 0 AND pid IS NULL"), 5);
    assert_eq!(reader.facts(0, None).unwrap(), facts);
}

#[test]
fn a_file_of_version_5_takes_findings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    write(&path, &mut any_calls(500, 3));
    make_version_5(&path);
    assert_eq!(add_findings(&path, 1, 2, 3, &[finding()]).unwrap(), 1);
    let reader = Reader::open(&path).unwrap();
    assert_eq!(number(&reader, "PRAGMA user_version"), 6);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM source_lines"), 0);
}

#[test]
fn what_cannot_be_added_to_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let add = |path: &Path| add_findings(path, 1, 2, 3, &[finding()]).unwrap_err();
    assert!(matches!(add(&path), Error::NotFound { .. }));
    std::fs::write(
        &path,
        "no database, but long enough to be one: SQLite reads a hundred bytes of header before it can tell that",
    )
    .unwrap();
    assert!(matches!(add(&path), Error::NotSqlite { .. }));
    assert!(matches!(add(folder.path()), Error::CannotRead { .. } | Error::NotSqlite { .. }));
    std::fs::write(&path, "").unwrap();
    assert!(matches!(add(&path), Error::NotARun { .. }));
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let path = disk.path().join("run.db");
    write(&path, &mut any_calls(10, 13));
    disk.make_read_only();
    let error = add(&path);
    assert!(matches!(error, Error::CannotAdd { .. }), "{error:?}");
    assert!(error.to_string().contains("the file is unchanged"), "{error}");
}
