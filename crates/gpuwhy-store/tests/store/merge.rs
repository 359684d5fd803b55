// SPDX-License-Identifier: Apache-2.0
//! One file of several: every view has the rows of all runs, with numbers that cannot be confused.

use crate::facts::{second, sums};
use crate::findings::{finding, make_old, make_version_2};
use crate::support::*;
use crate::told::tell;
use gpuwhy_model::{CpuRun, LossCause, MovedWait, OffCpu, Reason};
use gpuwhy_store::schema::VIEWS;
use gpuwhy_store::{
    Error, LedgerRow, LibraryRow, MergeRequest, Merged, NewRun, Reader, Result, StackText, UnwatchedSpan, Writer,
    add_findings, merge,
};
use rusqlite::Connection;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

const PIDS: u64 = 1 << 22;
/// How much later the second run begins: no two rows are at the same time.
const LATER: u64 = 3_000_025_013;

/// A run with some of everything; all of them have the same numbers.
fn record(path: &Path, later: u64, seed: u64) {
    let run = NewRun {
        command: Some(format!("python3 train.py --rank {seed}")),
        start_unix_ns: new_run().start_unix_ns + later,
        ..new_run()
    };
    let mut writer = Writer::create(path, &run).unwrap().writer;
    writer.write_calls(&mut any_calls(2_000, seed)).unwrap();
    let mut graphs = [call("cudaGraphInstantiate", 2_000_000_111, 5), call("cudaGraphLaunch", 2_000_000_333, 7)];
    (graphs[0].arg1, graphs[1].arg0) = (Some(77), Some(77));
    writer.write_calls(&mut graphs).unwrap();
    let mut offs: Vec<OffCpu> =
        (0..50).map(|i| OffCpu { weight: 1 + i as u32 % 3, ..off_cpu(i * 100_000 + seed, 50_000, 20_000) }).collect();
    offs[7] = OffCpu { tid: 202, reason: Reason::Preempted, left_cpu: 3, cpu: 2, ..offs[7] };
    writer.write_off_cpu(&mut offs).unwrap();
    let runs = |i: u64| CpuRun {
        start_ns: ORIGIN + i * 100_000 + 20_000,
        duration_ns: 60_000,
        pid: if i.is_multiple_of(2) { 0 } else { 100 },
        tid: if i.is_multiple_of(2) { 0 } else { 101 },
        cpu: 1,
        name: *b"0123456789abcdef",
    };
    writer.write_cpu_runs(&(0..50).map(runs).collect::<Vec<_>>()).unwrap();
    let moved = MovedWait { start_ns: ORIGIN + 30_000 + seed, duration_ns: 5_000, pid: 200, tid: 201, cpu: 3 };
    writer.write_moved_waits(&[moved]).unwrap();
    tell(&mut writer);
    writer.add_samples(second());
    writer.set_thread_sums(sums(201, 0, 4_000));
    let ledger = |op| LedgerRow { pid: 200, tid: 201, since_ns: ORIGIN, state: "blocked".into(), op, ns: 5 };
    writer.ledger(&[ledger(None), ledger(Some(op("cudaMalloc")))]);
    for pid in (1..300).filter(|pid| *pid < 20 || *pid >= 100) {
        writer.set_process(pid, "python3");
    }
    writer.set_process_parent(104, 100);
    writer.set_process_times(100, Some(ORIGIN - 5), Some(ORIGIN + 9));
    writer.add_loss(2, LossCause::RingFull, Some(op("cudaMalloc")), seed);
    writer.add_loss(2, LossCause::EvidenceLost, None, 3);
    writer.add_library(LibraryRow {
        path: "/x/libcuda.so.1".into(),
        library: "driver".into(),
        inode: "1:2".into(),
        functions: 9,
        attached_ns: ORIGIN + 5,
        note: None,
    });
    for (id, line) in [(1, "shared.py:1 f".to_owned()), (seed, format!("own.py:{seed} f"))] {
        writer.add_stack(id, StackText { frames: line.clone(), top_line: line });
    }
    assert!(writer.finish(&end()).problem.is_none());
    add_findings(path, 0, 10_000_000_000, 11_000_000_000 + seed, &[finding()]).unwrap();
}

fn request<'a>(inputs: &'a [PathBuf], output: &'a Path) -> MergeRequest<'a> {
    MergeRequest { inputs, output, version: "0.0.0-test", owner: None }
}

fn merged(inputs: &[PathBuf], output: &Path) -> Result<Merged> {
    merge(&request(inputs, output), || true)
}

/// Two runs and what they are together.
struct Two {
    folder: tempfile::TempDir,
    inputs: [PathBuf; 2],
    output: PathBuf,
}

fn two() -> Two {
    let folder = tempfile::tempdir().unwrap();
    let [first, second, output] = ["node0.db", "node1.db", "all.db"].map(|name| folder.path().join(name));
    record(&first, 0, 7);
    record(&second, LATER, 11);
    Two { folder, inputs: [first, second], output }
}

/// What a column of a view becomes in run `k` of a merged file, as SQL.
fn becomes(view: &str, column: &str, k: u64) -> String {
    let (pids, clock, seconds) = (k * PIDS, k * LATER, k * 3);
    let times = [
        "timestamp",
        "started",
        "since",
        "born",
        "from_ns",
        "to_ns",
        "attached_at",
        "instantiated_at",
        "first_launch",
        "last_launch",
        "at_ns",
        "cleared_ns",
    ];
    match column {
        "parent" | "ended" if view != "processes" => column.to_owned(),
        "pid" | "tid" | "parent" | "waker_pid" | "waker_tid" | "holder_pid" | "holder_tid" => {
            format!("CASE {column} WHEN 0 THEN 0 ELSE {column} + {pids} END")
        }
        "ended" => format!("ended + {clock}"),
        _ if times.contains(&column) => format!("{column} + {clock}"),
        "second" => format!("second + {seconds}"),
        "cpu" | "left_cpu" if view != "sessions" => format!("{column} + {}", k * 4),
        // Alerts, of which there are three in each, are numbered anew.
        "id" if view == "alerts" => format!("id + {}", k * 3),
        "gpu" if view.starts_with("gpu") || view == "alerts" => format!("gpu + {}", k * 2),
        "path" if view == "cgroup_seconds" && k > 0 => format!("'{k}:' || path"),
        "input" => format!("input + {k}"),
        _ => column.to_owned(),
    }
}

/// All rows of a view as text, in some order; with `k`, as they are in a merged file.
fn rows(reader: &Reader, view: &str, k: Option<u64>) -> Vec<String> {
    let columns = ask(reader, &format!("SELECT name FROM pragma_table_info('{view}')")).unwrap();
    let columns: Vec<String> = columns
        .iter()
        .map(|column| {
            let becomes = k.map_or_else(|| column.clone(), |k| becomes(view, column, k));
            if column == "histogram" { "hex(histogram)".into() } else { becomes }
        })
        .collect();
    ask(reader, &format!("SELECT {} FROM {view}", columns.join(", "))).unwrap()
}

#[test]
fn every_view_has_the_rows_of_all_runs() {
    let Two { inputs, output, folder } = two();
    let done = merged(&inputs, &output).unwrap();
    assert_eq!(done.size_bytes, std::fs::metadata(&output).unwrap().len());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "nothing is left beside");
    let readers = inputs.each_ref().map(|path| Reader::open(path).unwrap());
    let all = Reader::open(&output).unwrap();
    for view in VIEWS.into_iter().filter(|view| {
        !["sessions", "ops", "loss", "stack_traces", "source_lines", "causal_chains", "merged"].contains(view)
    }) {
        let mut expected = rows(&readers[0], view, Some(0));
        expected.extend(rows(&readers[1], view, Some(1)));
        let mut found = rows(&all, view, None);
        assert!(!found.is_empty(), "{view} is tested with something");
        expected.sort();
        found.sort();
        assert_eq!(found.len(), expected.len(), "{view}");
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found, expected, "{view}");
        }
    }
    let pids = |reader: &Reader| number(reader, "SELECT COUNT(DISTINCT pid) FROM events");
    assert_eq!(pids(&all), pids(&readers[0]) + pids(&readers[1]));
    assert_eq!(rows(&all, "ops", None), rows(&readers[0], "ops", None));
    assert_eq!(number(&all, "SELECT COUNT(*) FROM stack_traces"), 3, "the same stack is one");
    let loss = "SELECT second, cause, op, count FROM loss WHERE cause <> 'size_cap' ORDER BY second, cause";
    let lost =
        ["2|evidence_lost|NULL|3", "2|ring_full|cudaMalloc|7", "5|evidence_lost|NULL|3", "5|ring_full|cudaMalloc|11"];
    assert_eq!(ask(&all, loss).unwrap(), lost);
    let plain = Connection::open(&output).unwrap();
    let whole: String = plain.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(whole, "ok");
}

#[test]
fn the_run_and_its_origin_are_told() {
    let Two { inputs, output, folder: _folder } = two();
    let done = merged(&inputs, &output).unwrap();
    let [first, second] = inputs.each_ref().map(|path| Reader::open(path).unwrap().session().unwrap());
    let reader = Reader::open(&output).unwrap();
    let session = reader.session().unwrap();
    assert_eq!(session.command.as_deref(), Some("merged from 2 runs"));
    assert_eq!((session.start_unix_ns, session.start_monotonic_ns), (first.start_unix_ns, first.start_monotonic_ns));
    assert_eq!(session.duration_ns, second.duration_ns + LATER);
    assert_eq!((session.stop_unix_ns, session.stop_reason), (second.stop_unix_ns, Some("exit".into())));
    assert_eq!(session.events_seen, first.events_seen + second.events_seen);
    assert_eq!(session.events_lost, first.events_lost + second.events_lost);
    assert_eq!(
        (session.events_stored, session.thinned),
        (first.events_stored + second.events_stored, first.thinned * 2)
    );
    assert_eq!(done.stored, session.events_stored);
    assert_eq!((done.runs[1].pid_offset, done.runs[1].clock_offset_ns, done.runs[1].unfinished), (PIDS, LATER, false));
    let sql = "SELECT input, pid_offset, cpu_offset, gpu_offset, clock_offset_ns, duration_ns, command FROM merged";
    assert_eq!(
        ask(&reader, sql).unwrap(),
        [
            "0|0|0|0|0|10000000000|python3 train.py --rank 7".to_owned(),
            format!("1|{PIDS}|4|2|{LATER}|10000000000|python3 train.py --rank 11")
        ]
    );
    let paths = ask(&reader, "SELECT path FROM merged ORDER BY input").unwrap();
    assert_eq!(paths, inputs.each_ref().map(|path| path.display().to_string()));
    // What reads whole runs can read this one.
    let replayed = |reader: &Reader| reader.replay(0, None, |_| ControlFlow::Continue(())).unwrap();
    let inputs = inputs.map(|path| Reader::open(&path).unwrap());
    assert_eq!(replayed(&reader), inputs.iter().map(replayed).sum::<u64>());
    // What was not watched in the one run does not end because of what was taken back in the other.
    let never = i64::MAX as u64;
    let unwatched = |reader: &Reader, later: u64, pids: u64| {
        let moved = |span: UnwatchedSpan| UnwatchedSpan {
            from_ns: span.from_ns + later,
            to_ns: if span.to_ns == never { never } else { span.to_ns + later },
            pid: span.pid.map(|pid| pid + pids as u32),
        };
        reader.facts(0, None).unwrap().unwatched.into_iter().map(moved).collect::<Vec<_>>()
    };
    let mut expected = unwatched(&inputs[0], 0, 0);
    expected.extend(unwatched(&inputs[1], LATER, PIDS));
    expected.sort_unstable();
    assert_eq!(unwatched(&reader, 0, 0), expected);
    assert_eq!(reader.ledger().unwrap().len(), 4);
    assert_eq!(reader.processes().unwrap().len(), 2 * inputs[0].processes().unwrap().len());
}

#[test]
fn findings_keep_to_their_run() {
    let Two { inputs, output, folder: _folder } = two();
    merged(&inputs, &output).unwrap();
    let reader = Reader::open(&output).unwrap();
    let sql = "SELECT pid, tid, detected_at, substr(explanation, 1, 15), finding ->> 'pid', finding ->> 'tid'
        FROM causal_chains ORDER BY id";
    let pid = |number: u64| number + PIDS;
    assert_eq!(
        ask(&reader, sql).unwrap(),
        [
            "200|201|11000000007|python3 200 wai|200|201".to_owned(),
            format!("{0}|{1}|{2}|python3 {0}|{0}|{1}", pid(200), pid(201), 11_000_000_011 + LATER)
        ]
    );
    // Runs that began together: the answer about the one does not hide that about the other.
    let folder = tempfile::tempdir().unwrap();
    let paths = ["a.db", "b.db", "c.db"].map(|name| folder.path().join(name));
    record(&paths[0], 0, 7);
    record(&paths[1], 0, 11);
    merged(&paths[..2], &paths[2]).unwrap();
    assert_eq!(number(&Reader::open(&paths[2]).unwrap(), "SELECT COUNT(*) FROM causal_chains"), 2);
}

#[test]
fn rows_at_the_same_time_are_moved_and_none_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = ["a.db", "b.db", "c.db"].iter().map(|name| folder.path().join(name)).collect();
    for path in &paths {
        record(path, 0, 7);
    }
    let output = folder.path().join("all.db");
    merged(&paths, &output).unwrap();
    let (one, all) = (Reader::open(&paths[0]).unwrap(), Reader::open(&output).unwrap());
    for view in ["events", "inner_events", "off_cpu", "allocations", "cpu_runs", "cpu_waits", "collectives"] {
        let count = format!("SELECT COUNT(*) FROM {view}");
        assert_eq!(number(&all, &count), 3 * number(&one, &count), "{view}");
        let late = format!("SELECT MAX(timestamp) FROM {view}");
        assert!(number(&all, &late) - number(&one, &late) < 10_000, "{view}");
    }
    let sum = "SELECT SUM(weight * duration_ns) + SUM(pid % 4194304) FROM events";
    assert_eq!(number(&all, sum), 3 * number(&one, sum));
}

#[test]
fn merged_files_can_be_merged_again() {
    let Two { inputs, output, folder } = two();
    merged(&inputs, &output).unwrap();
    let third = folder.path().join("node2.db");
    record(&third, 2 * LATER, 13);
    let [left, right, flat] = ["left.db", "right.db", "flat.db"].map(|name| folder.path().join(name));
    merged(&[output.clone(), third.clone()], &left).unwrap();
    merged(&[inputs[0].clone(), inputs[1].clone(), third.clone()], &flat).unwrap();
    let (left, flat) = (Reader::open(&left).unwrap(), Reader::open(&flat).unwrap());
    for view in VIEWS.into_iter().filter(|view| !["sessions", "causal_chains"].contains(view)) {
        let (mut one, mut other) = (rows(&left, view, None), rows(&flat, view, None));
        one.sort();
        other.sort();
        assert_eq!(one, other, "{view}");
    }
    assert_eq!(left.session().unwrap().command, flat.session().unwrap().command);
    merged(&[third, output], &right).unwrap();
    let right = Reader::open(&right).unwrap();
    let sql = "SELECT input, pid_offset, clock_offset_ns FROM merged";
    let expected = [format!("0|0|{}", 2 * LATER), format!("1|{PIDS}|0"), format!("2|{}|{LATER}", 2 * PIDS)];
    assert_eq!(ask(&right, sql).unwrap(), expected);
}

#[test]
fn files_of_earlier_versions_are_merged() {
    for make in [make_old, make_version_2] {
        let Two { inputs, output, folder: _folder } = two();
        make(&inputs[1]);
        let expected =
            inputs.each_ref().map(|path| number(&Reader::open(path).unwrap(), "SELECT COUNT(*) FROM off_cpu"));
        merged(&inputs, &output).unwrap();
        let reader = Reader::open(&output).unwrap();
        assert_eq!(number(&reader, "SELECT COUNT(*) FROM off_cpu"), expected[0] + expected[1]);
        assert_eq!(number(&reader, "SELECT COUNT(*) FROM merged"), 2);
        assert_eq!(number(&reader, "SELECT COUNT(*) FROM causal_chains"), 2);
    }
}

#[test]
fn what_exists_is_left_alone_and_nothing_half_is_left() {
    let Two { inputs, output, folder } = two();
    let said = |inputs: &[PathBuf], output: &Path| merged(inputs, output).unwrap_err().to_string();
    std::fs::write(&output, "precious").unwrap();
    assert!(said(&inputs, &output).contains("already exists: give -o another name"));
    assert_eq!(std::fs::read(&output).unwrap(), b"precious");
    std::fs::remove_file(&output).unwrap();
    std::os::unix::fs::symlink(folder.path().join("nowhere"), &output).unwrap();
    assert!(said(&inputs, &output).contains("already exists"));
    std::fs::remove_file(&output).unwrap();
    assert!(said(&inputs, &folder.path().join("no/such/all.db")).contains("choose another path with -o"));
    let missing = folder.path().join("missing.db");
    assert!(said(&[inputs[0].clone(), missing], &output).contains("missing.db: No such file"));
    assert!(said(&[inputs[0].clone(), inputs[0].clone()], &output).contains("the same file as"));
    assert!(said(&[inputs[0].clone(), "/dev/zero".into()], &output).contains("/dev/zero: it is not a regular file"));
    let text = folder.path().join("text");
    std::fs::write(&text, "no database, but long enough to be looked at as one, which takes some more words").unwrap();
    assert!(said(&[inputs[0].clone(), text.clone()], &output).contains("not an SQLite database"));
    std::fs::remove_file(text).unwrap();
    let stopped = merge(&request(&inputs, &output), || false);
    assert!(matches!(stopped, Err(Error::MergeStopped { .. })), "{stopped:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "only the runs are there");
}

#[test]
fn a_run_that_is_still_recorded_is_refused_and_a_killed_one_is_not() {
    let Two { inputs, output, folder } = two();
    let path = folder.path().join("live.db");
    let mut writer = create(&path);
    writer.write_calls(&mut any_calls(500, 3)).unwrap();
    writer.commit().unwrap();
    let said = merged(&[inputs[0].clone(), path.clone()], &output).unwrap_err().to_string();
    assert!(said.contains("live.db: it is still being recorded"), "{said}");
    let killed = folder.path().join("killed.db");
    for end in ["", "-wal"] {
        std::fs::copy(folder.path().join(format!("live.db{end}")), folder.path().join(format!("killed.db{end}")))
            .unwrap();
    }
    let done = merged(&[inputs[0].clone(), killed], &output).unwrap();
    assert!(done.runs[1].unfinished);
    let reader = Reader::open(&output).unwrap();
    assert_eq!(reader.session().unwrap().stop_unix_ns, None);
    let rows = format!(
        "SELECT COUNT(*) FROM (SELECT pid FROM events UNION ALL SELECT pid FROM inner_events) WHERE pid > {PIDS}"
    );
    assert_eq!(number(&reader, &rows), 500);
}

#[test]
fn hostile_files_give_an_error_and_do_nothing() {
    let Two { inputs, output, folder } = two();
    let hostile = folder.path().join("hostile.db");
    for (sql, said) in [
        (
            "DROP TABLE loss_; CREATE VIEW loss_ AS SELECT 1 AS second, 2 AS cause, 3 AS op, 4 AS count",
            "loss_ is not a plain table",
        ),
        (
            "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET rootpage = 0, sql = 'CREATE VIRTUAL TABLE stack_ USING x(id)' WHERE name = 'stack_'",
            "stack_ is not a plain table",
        ),
        ("ALTER TABLE gpu_ ADD COLUMN x AS (zeroblob(9)) VIRTUAL", "gpu_ is not a plain table"),
        ("DROP TABLE library_", "library_ is not a plain table"),
        ("UPDATE context_ SET pid = 4194304", "context_.pid has an invalid value: 4194304"),
        ("UPDATE context_ SET tid = -1", "context_.tid has an invalid value: -1"),
        ("UPDATE context_ SET op = 60000", "context_.op has an invalid value: 60000"),
        ("UPDATE context_ SET stack = 'x'", "context_.stack has an invalid value: the text 'x'"),
        ("UPDATE call_ SET context = 1000000", "call_.context has an invalid value: 1000000"),
        ("UPDATE call_ SET duration = 'long'", "call_.duration has an invalid value: the text 'long'"),
        ("UPDATE off_ SET cpus = -1", "one file holds at most 65536 CPUs"),
        (
            "INSERT INTO runner_ VALUES (9223372036854775807, 1, 1, 'x')",
            "runner_ has ids from 1 to 9223372036854775807",
        ),
        ("UPDATE second_ SET histogram = x'80'", "second_.histogram has an invalid value: a blob of 1 bytes"),
        ("UPDATE session_ SET start_unix_ns = -9223372036854775807", "its start time is invalid"),
        ("UPDATE session_ SET start_unix_ns = 'x'", "is damaged"),
        ("UPDATE causal_chain_ SET pid = 99999999, finding = NULL", "a process that is in no run"),
        (
            "INSERT INTO merged_ SELECT 2000, '', 0, 0, 0, 0, 0, 0, '', '', '', '', 0, 0, '', '', 0, 0, 0",
            "it has a run 2000",
        ),
    ] {
        let _ = std::fs::remove_file(&hostile);
        std::fs::copy(&inputs[1], &hostile).unwrap();
        Connection::open(&hostile).unwrap().execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        let before = std::fs::read(&hostile).unwrap();
        let error = merged(&[inputs[0].clone(), hostile.clone()], &output).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("hostile.db"), "{sql}: {error}");
        assert_eq!(std::fs::read(&hostile).unwrap(), before);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "{sql}: only the runs are there");
    }
    // A trigger is not run, and views of the file are not looked at.
    std::fs::copy(&inputs[1], &hostile).unwrap();
    let sql = "CREATE TRIGGER t AFTER INSERT ON call_ BEGIN SELECT 1 / 0; END; DROP VIEW sessions;
        CREATE VIEW sessions AS SELECT load_extension('x')";
    Connection::open(&hostile).unwrap().execute_batch(sql).unwrap();
    merged(&[inputs[0].clone(), hostile], &output).unwrap();
}

#[test]
fn damage_is_an_error_and_never_a_panic() {
    let Two { inputs, output, folder } = two();
    let bytes = std::fs::read(&inputs[1]).unwrap();
    let damaged = folder.path().join("damaged.db");
    let mut dice = Dice(99);
    let mut refused = 0;
    for _ in 0..60 {
        let mut copy = bytes.clone();
        for _ in 0..40 {
            let at = dice.below(copy.len() as u64) as usize;
            copy[at] = dice.next() as u8;
        }
        std::fs::write(&damaged, copy).unwrap();
        let outcome = merged(&[inputs[0].clone(), damaged.clone()], &output);
        refused += usize::from(outcome.is_err());
        let _ = std::fs::remove_file(&output);
        for end in ["-wal", "-shm", "-journal"] {
            let _ = std::fs::remove_file(folder.path().join(format!("damaged.db{end}")));
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "{outcome:?}");
    }
    assert!(refused > 10, "{refused} of 60");
}
