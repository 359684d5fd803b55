// SPDX-License-Identifier: Apache-2.0
//! docs/sql.md against real runs: every query of it answers, and what matters is what simgpu's own log says.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::compare::true_sums;
use common::jobs::{assert_nothing_lost, rows};
use common::{GPUWHY, Place, can_trace, number, one_at_a_time, sim, succeed, text};
use gpuwhy_model::ops;
use serde_json::Value;
use simgpu::log::detail::{Detail, Report};
use simgpu::log::{Call, Truth};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Every query of the document with the sentence before it.
fn documented() -> Vec<(&'static str, &'static str)> {
    let page = include_str!("../../../docs/sql.md");
    let mut parts = page.split("```sql\n");
    let mut before = parts.next().unwrap();
    let mut all = Vec::new();
    for part in parts {
        let (sql, after) = part.split_once("```").unwrap();
        all.push((before.trim_end().rsplit("\n\n").next().unwrap(), sql));
        before = after;
    }
    all
}

/// The query after the sentence that begins like this.
fn query(sentence: &str) -> &'static str {
    let found: Vec<_> = documented().into_iter().filter(|(before, _)| before.starts_with(sentence)).collect();
    assert_eq!(found.len(), 1, "{sentence}");
    found[0].1
}

/// What the real binary answers.
fn answer(db: &Path, sql: &str) -> Vec<Value> {
    let output = succeed(Command::new(GPUWHY).args(["query", "--json", "--db"]).arg(db).arg(sql));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    rows.as_array().unwrap().clone()
}

fn int(row: &Value, column: &str) -> i64 {
    row[column].as_i64().unwrap_or_else(|| panic!("no number {column} in {row}"))
}

/// Asks everything; returns how many queries had rows.
fn ask_all(db: &Path) -> usize {
    documented().into_iter().filter(|(_, sql)| !answer(db, sql).is_empty()).count()
}

/// Lets gpuwhy start a simjob play; what it said.
fn trace_play(place: &Place, play: &[&str]) -> String {
    let mut command = place.trace();
    command.env("SIMGPU_DEVICES", "2").args(["--quiet", "--"]).arg(&sim().simjob).arg(play[0]);
    text(&succeed(command.arg("--cudart").arg(&sim().cudart).args(&play[1..])))
}

fn details<T>(truth: &Truth, pick: fn(&Detail) -> Option<T>) -> Vec<(Call, T)> {
    let picked = |call: Call| call.detail.as_ref().and_then(pick).map(|found| (call.clone(), found));
    let mut all: Vec<(Call, T)> = truth.calls().filter_map(picked).collect();
    all.sort_by_key(|(call, _)| call.enter_ns);
    all
}

#[test]
fn each_query_has_its_sentence() {
    let all = documented();
    assert!(all.len() >= 40, "{}", all.len());
    for (sentence, sql) in all {
        let one_line = !sentence.contains('\n') && sentence.ends_with('.') && sentence.len() < 140;
        assert!(one_line && !sentence.starts_with('#'), "{sentence:?}");
        assert!(sql.trim_end().ends_with(';') && sql.matches(';').count() == 1, "{sql}");
    }
}

#[test]
fn calls_are_counted_and_their_times_ranked() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let mut command = place.trace();
    command.args(["--quiet", "--"]).arg(&sim().simjob).arg("--cudart").arg(&sim().cudart);
    succeed(command.args(["--calls", "3000", "--mix", "mixed"]));
    let (truth, db) = (place.truth(), place.run_file());
    assert_nothing_lost(&db);
    let mut expected: BTreeMap<String, i64> = BTreeMap::new();
    for (function, sums) in true_sums(&truth) {
        *expected.entry(ops::by_function(&function).unwrap().name.to_string()).or_default() += sums.calls as i64;
    }
    for sentence in ["What the program called", "The same at once"] {
        let rows = answer(&place.db(), query(sentence));
        let counted = rows.iter().map(|row| (row["op"].as_str().unwrap().to_owned(), int(row, "calls")));
        let kernel = |op: &str| ops::table().iter().any(|known| known.name == op && known.library.name() == "kernel");
        let counted: BTreeMap<String, i64> = counted.filter(|(op, _)| !kernel(op)).collect();
        assert_eq!(counted, expected, "{sentence}");
    }
    for row in answer(&place.db(), query("What the program called")) {
        let op = row["op"].as_str().unwrap();
        let sql = format!("SELECT duration_ns FROM events WHERE op = '{op}' ORDER BY duration_ns");
        let times: Vec<i64> =
            db.prepare(&sql).unwrap().query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        for (column, percent) in [("p50_ns", 50), ("p95_ns", 95), ("p99_ns", 99), ("max_ns", 100)] {
            let rank = (times.len() * percent).div_ceil(100);
            assert_eq!(int(&row, column), times[rank - 1], "{column} of {op}");
        }
    }
    assert!(ask_all(&place.db()) > 15);
}

/// What the allocator said, in order.
fn reports(truth: &Truth) -> Vec<(Call, Report)> {
    details(truth, |detail| if let Detail::Report(found) = detail { Some(*found) } else { None })
}

/// The most allocated on each device, as the allocator said it.
fn true_peaks(truth: &Truth) -> BTreeMap<i64, i64> {
    let mut peaks = BTreeMap::new();
    for (_, report) in reports(truth) {
        let peak: &mut i64 = peaks.entry(i64::from(report.device_index)).or_default();
        *peak = (*peak).max(report.total_allocated as i64);
    }
    peaks
}

#[test]
fn what_is_live_at_the_peak_is_the_peak() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    trace_play(&place, &["torch", "--rounds", "3"]);
    assert_nothing_lost(&place.run_file());
    let expected = true_peaks(&place.truth());
    assert_eq!(expected.len(), 2, "both devices");
    let by_device = |sentence: &str, column: &str| {
        let mut sums: BTreeMap<i64, i64> = BTreeMap::new();
        for row in answer(&place.db(), query(sentence)) {
            *sums.entry(int(&row, "device")).or_default() += int(&row, column);
        }
        sums
    };
    assert_eq!(by_device("The peak of each process", "peak"), expected);
    assert_eq!(by_device("What was live at the peak", "bytes"), expected);
    assert!(answer(&place.db(), query("Is there a leak?")).is_empty(), "the job frees everything");
    assert!(answer(&place.db(), query("The driver's allocations that")).is_empty());
    let refused = answer(&place.db(), query("Requests that PyTorch had to refuse"));
    assert_eq!(refused.len(), 1);
    let seconds = answer(&place.db(), query("What PyTorch had allocated"));
    let most = seconds.iter().map(|row| int(row, "allocated")).max();
    assert_eq!(most, expected.values().max().copied());
    ask_all(&place.db());
}

/// A job that keeps a tensor in each step, and a driver allocation for good.
const LEAK: &str = "\
import ctypes, sys
cudart, c10 = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
out, kept = ctypes.c_void_p(), []
size = ctypes.c_size_t

def forward():
    assert c10.c10sim_alloc(size(3 << 20), 0, ctypes.byref(out)) == 0
    return ctypes.c_void_p(out.value)

def log():
    assert c10.c10sim_alloc(size(1 << 20), 0, ctypes.byref(out)) == 0
    kept.append(out.value)

def workspace():
    assert cudart.cudaMalloc(ctypes.byref(out), size(7 << 20)) == 0

assert cudart.cudaSetDevice(0) == 0
workspace()
for step in range(20):
    x = forward()
    log()
    assert c10.c10sim_free(x) == 0
";

#[test]
fn a_leak_is_found_by_its_line() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let script = place.dir.path().join("leak.py");
    std::fs::write(&script, LEAK).unwrap();
    let mut command = place.trace();
    succeed(command.args(["--quiet", "--", "python3"]).arg(&script).arg(&sim().cudart).arg(&sim().c10));
    let line = |row: &Value| row["line"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let leaks = answer(&place.db(), query("Is there a leak?"));
    assert_eq!(leaks.len(), 1, "{leaks:?}");
    assert_eq!((line(&leaks[0]).as_str(), int(&leaks[0], "tensors")), ("leak.py:11 log", 20));
    // A block may be larger than what was asked for.
    let truth = place.truth();
    let left = reports(&truth).last().map(|(_, report)| report.total_allocated as i64);
    assert_eq!(Some(int(&leaks[0], "bytes")), left);
    // The last step's tensor of forward and all that was kept.
    let peak = answer(&place.db(), query("What was live at the peak"));
    let lines: Vec<(String, i64)> = peak.iter().map(|row| (line(row), int(row, "tensors"))).collect();
    assert_eq!(lines, [("leak.py:11 log".to_owned(), 20), ("leak.py:7 forward".to_owned(), 1)]);
    assert_eq!(Some(peak.iter().map(|row| int(row, "bytes")).sum()), true_peaks(&truth).get(&0).copied());
    let driver = answer(&place.db(), query("The driver's allocations that"));
    let workspace = driver.iter().find(|row| line(row) == "leak.py:15 workspace").unwrap();
    assert_eq!((int(workspace, "blocks"), int(workspace, "bytes")), (1, 7 << 20));
    let calls = answer(&place.db(), query("The lines that make calls"));
    let malloc = calls.iter().find(|row| line(row) == "leak.py:15 workspace").unwrap();
    assert_eq!((malloc["op"].as_str(), int(malloc, "calls")), (Some("cudaMalloc"), 1));
    ask_all(&place.db());
}

#[test]
fn collectives_and_graphs_are_summed() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    trace_play(&place, &["nccl", "--rounds", "5"]);
    let mut expected: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    let truth = place.truth();
    for (call, _) in details(&truth, |detail| if let Detail::Collective(found) = detail { Some(*found) } else { None })
    {
        let sums = expected.entry(call.function.to_string()).or_default();
        *sums = (sums.0 + 1, sums.1 + call.bytes as i64);
    }
    let mut found: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    for row in answer(&place.db(), query("What was exchanged between ranks")) {
        let sums = found.entry(row["op"].as_str().unwrap().to_owned()).or_default();
        *sums = (sums.0 + int(&row, "calls"), sums.1 + int(&row, "bytes"));
    }
    assert_eq!(found, expected);
    ask_all(&place.db());

    let place = Place::new();
    let said = trace_play(&place, &["graphs"]);
    let graphs = answer(&place.db(), query("CUDA graphs"));
    let mut launches: Vec<i64> = graphs.iter().map(|row| int(row, "launches")).collect();
    let mut told: Vec<i64> = rows(&said, "graph").iter().map(|row| row[3].parse().unwrap()).collect();
    launches.sort_unstable();
    told.sort_unstable();
    assert_eq!(launches, told);
    let launched: i64 =
        answer(&place.db(), query("Second by second: launches")).iter().map(|row| int(row, "launches")).sum();
    assert_eq!(launched, number(&place.run_file(), "SELECT SUM(weight) FROM events WHERE class = 'launch'"));
    ask_all(&place.db());
}
