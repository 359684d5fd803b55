// SPDX-License-Identifier: Apache-2.0
//! Run files, which users share: opened, explained, queried with SQL.

use gpuwhy_ask::{Part, explain, memory, schema, stats};
use gpuwhy_model::{Call, CallFlags};
use gpuwhy_store::{Limits, NewRun, Reader, RunEnd, StackText, Writer};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;
/// A query may take this long, then it is stopped, which is not a failure.
const LIMIT: Duration = Duration::from_secs(2);
/// Queries of views and tables.
const QUESTIONS: [&str; 3] = [
    "SELECT op, COUNT(*), SUM(duration_ns), p99(duration_ns, weight) FROM events GROUP BY op",
    "SELECT * FROM processes",
    "SELECT name, type, sql FROM sqlite_schema",
];

fn example(path: &Path) {
    let new = NewRun {
        start_unix_ns: 1_000 * SECOND,
        start_monotonic_ns: SECOND,
        command: Some("python3 train.py".into()),
        ..NewRun::default()
    };
    let Ok(created) = Writer::create(path, &new) else { panic!("cannot create a run file in {}", path.display()) };
    let mut writer = created.writer;
    writer.set_process(7, "train");
    let names = ["cudaMalloc", "cudaLaunchKernel", "cudaStreamSynchronize", "cudaFree"];
    let ops: Vec<_> = names.iter().filter_map(|name| gpuwhy_model::ops::by_function(name)).map(|op| op.id).collect();
    let mut calls: Vec<Call> = Vec::new();
    for i in 0..200 {
        let frames = format!("/me/train.py:{} step\n/me/train.py:1 main", 10 + i % 5);
        writer.add_stack(i % 5 + 1, StackText { frames, top_line: "".into() });
        calls.push(Call {
            start_ns: SECOND + (i + 1) * 10_000_000,
            duration_ns: 1_000_000 + i,
            pid: 7,
            tid: 7,
            op: ops[i as usize % ops.len()],
            device: Some(0),
            stream: None,
            arg0: Some(1_000),
            arg1: None,
            ret: 0,
            flags: CallFlags::default(),
            weight: 1,
            stack: Some(i % 5 + 1),
        });
    }
    assert!(writer.write_calls(&mut calls).is_ok());
    let end = RunEnd {
        stop_unix_ns: 1_003 * SECOND,
        stop_monotonic_ns: 4 * SECOND,
        stop_reason: "exit".into(),
        ..RunEnd::default()
    };
    writer.finish(&end);
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    static SEEDS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    let make = || {
        let folder = tempfile::tempdir().unwrap_or_else(|why| panic!("no folder: {why}"));
        let path = folder.path().join("run.db");
        example(&path);
        vec![std::fs::read(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))]
    };
    SEEDS.get_or_init(make).clone()
}

/// For any file, an error or an answer.
pub(super) fn run_file(data: &[u8]) {
    let folder = tempfile::tempdir().unwrap_or_else(|why| panic!("no folder: {why}"));
    let path = folder.path().join("run.db");
    std::fs::write(&path, data).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    let Ok(reader) = Reader::open(&path) else { return };
    reader.give_up_after(LIMIT);
    let part = Part::default();
    let _ = explain::explain(&reader, &part);
    let _ = memory::examine(&reader, &part);
    let _ = stats::stats(&reader, &part);
    let _ = schema::lines(&reader);
    let limits = Limits { time: LIMIT, rows: 1_000, ..Limits::default() };
    for question in QUESTIONS {
        let _ = reader.query(question, &limits, |_, _| ControlFlow::Continue(()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_a_good_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.db");
        std::fs::write(&path, &seeds()[0]).unwrap();
        let reader = Reader::open(&path).unwrap();
        assert!(
            explain::explain(&reader, &Part::default()).is_ok() && memory::examine(&reader, &Part::default()).is_ok()
        );
        let limits = Limits { time: Duration::from_secs(60), ..Limits::default() };
        for question in QUESTIONS {
            assert!(reader.query(question, &limits, |_, _| ControlFlow::Continue(())).unwrap().rows > 0, "{question}");
        }
    }
}
