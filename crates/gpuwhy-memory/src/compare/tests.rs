// SPDX-License-Identifier: Apache-2.0
//! Tests: comparisons of hand-made reports.

use super::*;
use crate::report::{Balance, Holder, Leak, Source, StepsReport};

const MB: u64 = 1_000_000;

/// A line: its number, its function, bytes and allocations.
type Line = (u32, &'static str, u64, u64);

fn holder(line: &Line) -> Holder {
    let (number, function, bytes, count) = *line;
    let (line, function) = (Some(format!("train.py:{number}")), Some(function.to_owned()));
    Holder { line, function, bytes, count, stack_id: None }
}

/// A run that holds these lines both at its peak and at its end.
fn run(lines: &[Line], steps: u64) -> Report {
    let holders: Vec<Holder> = lines.iter().map(holder).collect();
    let peak = lines.iter().map(|line| line.2).sum();
    let space = SpaceReport {
        pid: 7,
        name: "python3".into(),
        device: Some(0),
        source: Source::Torch,
        allocated: 0,
        reserved: peak,
        ended_ns: None,
        last_look: None,
        peak_allocated: peak,
        peak_allocated_at_ns: 5,
        peak_reserved: peak,
        peak_reserved_at_ns: 5,
        preexisting: 0,
        peak_preexisting: 0,
        balance: Balance::default(),
        at_peak: holders.clone(),
        at_end: holders,
        timeline: Vec::new(),
        live: None,
    };
    let steps = StepsReport { pid: 7, certainty: Certainty::High, steps, ..StepsReport::default() };
    Report { to_ns: 10_000_000_000, spaces: vec![space], steps: vec![steps], ..Report::default() }
}

fn leaking(mut report: Report, number: u32, function: &str, per_step: f64, onset: u64) -> Report {
    report.leaks.push(Leak {
        pid: 7,
        device: Some(0),
        line: Some(format!("train.py:{number}")),
        function: Some(function.to_owned()),
        bytes_per_step: Some(per_step),
        bytes_per_second: per_step * 10.0,
        onset_step: Some(onset),
        ..Leak::default()
    });
    report
}

fn compared(runs: &[(&str, &Report)]) -> Comparison {
    let named: Vec<(String, &Report)> = runs.iter().map(|(name, report)| ((*name).to_owned(), *report)).collect();
    compare(&named)
}

fn row<'a>(all: &'a Comparison, line: &str) -> &'a LineChange {
    let found = all.lines.iter().find(|change| change.line.as_deref() == Some(line));
    found.unwrap_or_else(|| panic!("no {line} in {all:#?}"))
}

const MODEL: Line = (10, "main", 500 * MB, 100);
const LOSS: Line = (20, "step", 4 * MB, 1);

#[test]
fn a_leak_that_came_and_went_is_the_verdict() {
    let healthy = run(&[MODEL, LOSS], 100);
    let leaky = leaking(run(&[MODEL, LOSS, (31, "step", 840 * MB, 100)], 100), 31, "step", 8.4e6, 1);
    let all = compared(&[("healthy.db", &healthy), ("leaky.db", &leaky), ("fixed.db", &healthy)]);
    assert_eq!(
        all.verdict,
        "leaky.db keeps 8.40 MB/step at train.py:31 that healthy.db and fixed.db do not; peak 504 MB → 1.34 GB → 504 MB."
    );
    let leak = row(&all, "train.py:31");
    let marks: Vec<Change> = leak.in_runs.iter().map(|run| run.change).collect();
    assert_eq!(marks, [Change::Reference, Change::New, Change::Same]);
    assert_eq!((leak.in_runs[1].at_end, leak.in_runs[1].bytes_per_step), (840 * MB, Some(8.4e6)));
    assert_eq!(all.lines.len(), 1, "unchanged lines are left out: {:#?}", all.lines);
    let growth: Vec<RunGrowth> = all.runs.iter().map(|run| run.growth).collect();
    assert_eq!(growth, [RunGrowth::Steady, RunGrowth::Leaks, RunGrowth::Steady]);
    assert_eq!((all.runs[0].bytes_per_step, all.runs[1].bytes_per_step), (Some(0.0), Some(8.4e6)));
    assert!(all.notes.is_empty(), "{:?}", all.notes);
}

#[test]
fn lines_that_moved_are_the_same_lines() {
    let before = run(&[(20, "step", 40 * MB, 10), (21, "step", 90 * MB, 10), MODEL], 100);
    // Both lines moved down by one, and there is a new line with allocations of another size.
    let after = run(&[(21, "step", 40 * MB, 10), (22, "step", 180 * MB, 20), (24, "step", 60 * MB, 1), MODEL], 100);
    let all = compared(&[("a", &before), ("b", &after)]);
    let grown = row(&all, "train.py:21");
    assert_eq!((grown.in_runs[1].line.as_deref(), grown.in_runs[1].change), (Some("train.py:22"), Change::Grew));
    assert_eq!(row(&all, "train.py:24").in_runs[1].change, Change::New);
    assert_eq!(all.lines.len(), 2, "the one that only moved is the same: {:#?}", all.lines);
    // A line of another function is another line, whatever its number.
    let other = run(&[(20, "validate", 40 * MB, 10), (21, "step", 90 * MB, 10), MODEL], 100);
    let all = compared(&[("a", &before), ("b", &other)]);
    let marks = |place: usize| all.lines[place].in_runs[1].change;
    assert_eq!((all.lines.len(), marks(0), marks(1)), (2, Change::Gone, Change::New), "{:#?}", all.lines);
}

#[test]
fn leaks_of_runs_of_different_length_are_compared_per_step() {
    let short = leaking(run(&[MODEL, (31, "step", 100 * MB, 100)], 100), 31, "step", 1e6, 1);
    let long = leaking(run(&[MODEL, (31, "step", 400 * MB, 400)], 400), 31, "step", 1e6, 1);
    let all = compared(&[("short", &short), ("long", &long)]);
    assert_eq!(row(&all, "train.py:31").in_runs[1].change, Change::Same);
    assert!(all.verdict.starts_with("short and long keep 1.00 MB/step at train.py:31; peak"), "{}", all.verdict);
    assert!(all.notes[0].contains("differ in length (100, 400 steps)"), "{:?}", all.notes);
    let worse = leaking(run(&[MODEL, (31, "step", 200 * MB, 100)], 100), 31, "step", 2e6, 1);
    let all = compared(&[("short", &short), ("worse", &worse)]);
    assert_eq!(row(&all, "train.py:31").in_runs[1].change, Change::Grew);
    let said = "train.py:31 keeps memory in short 1.00 MB/step and worse 2.00 MB/step; peak";
    assert!(all.verdict.starts_with(said), "{}", all.verdict);
}

#[test]
fn notes_say_what_cannot_be_compared() {
    let healthy = run(&[MODEL], 30);
    let leaky = leaking(run(&[MODEL, (31, "step", 100 * MB, 60)], 100), 31, "step", 1e6, 40);
    let mut nothing = Report { to_ns: 5, notes: vec!["no process allocated GPU memory".into()], ..Report::default() };
    let all = compared(&[("short", &healthy), ("leaky", &leaky), ("empty", &nothing)]);
    assert!(all.notes.iter().any(|note| note.contains("short has only 30 steps")), "{:?}", all.notes);
    assert!(all.notes.contains(&"empty: no process allocated GPU memory".to_owned()), "{:?}", all.notes);
    assert!(all.verdict.contains("that short does not; peak 500 MB → 600 MB → –"), "{}", all.verdict);
    assert!(all.verdict.ends_with("empty allocated no GPU memory, so it cannot be compared."), "{}", all.verdict);
    assert_eq!(row(&all, "train.py:31").in_runs[2].change, Change::Unknown);
    nothing.notes.clear();
    let all = compared(&[("a", &nothing), ("b", &nothing)]);
    assert!(all.verdict.starts_with("No run allocated GPU memory") && all.lines.is_empty(), "{all:?}");
}

#[test]
fn without_a_leak_the_peaks_are_the_verdict() {
    let (small, large) = (run(&[MODEL], 100), run(&[(10, "main", 800 * MB, 100)], 100));
    let all = compared(&[("a", &small), ("b", &large), ("c", &small)]);
    assert_eq!(all.verdict, "No run leaks; peak 500 MB → 800 MB → 500 MB.");
    assert_eq!(row(&all, "train.py:10").in_runs[1].change, Change::Grew);
    let mut out = large;
    out.oom_count = 2;
    let all = compared(&[("a", &out), ("b", &out)]);
    let said =
        "No run leaks; the peak is about the same: 800 MB → 800 MB; memory ran out in a (2 times) and b (2 times).";
    assert_eq!(all.verdict, said);
    assert!(all.lines.is_empty());
}

/// In one run a wait marks steps, in the other a launch in their middle: live memory at these times is not comparable.
#[test]
fn lines_that_differ_only_where_steps_end_are_the_same() {
    let healthy = run(&[(34, "train", 110 * MB, 8), (37, "train", 50 * MB, 9)], 120);
    let mut other = healthy.clone();
    other.spaces[0].at_end = vec![holder(&(34, "train", 60 * MB, 4))];
    let all = compared(&[("healthy", &healthy), ("other", &other)]);
    assert_eq!(all.lines, [], "{:#?}", all.lines);
}

/// cuBLAS's workspaces belong neither to PyTorch's memory nor to a second process.
#[test]
fn memory_outside_pytorch_has_its_own_figure() {
    let mut report = run(&[(34, "train", 110 * MB, 8)], 120);
    let direct = SpaceReport {
        source: Source::Driver,
        at_peak: Vec::new(),
        at_end: Vec::new(),
        peak_allocated: 67 * MB,
        ..report.spaces[0].clone()
    };
    report.spaces.push(direct);
    let all = compared(&[("a", &report), ("b", &report)]);
    let run = &all.runs[0];
    assert_eq!((run.peak_allocated, run.peak_direct, run.spaces), (110 * MB, 67 * MB, 1));
    assert_eq!(all.notes, Vec::<String>::new());
    let mut grown = report.clone();
    grown.spaces[1].peak_allocated = 5_000 * MB;
    let all = compared(&[("a", &report), ("b", &grown)]);
    assert!(
        all.verdict.contains("about the same: 110 MB → 110 MB; outside PyTorch 67.0 MB → 5.00 GB"),
        "{}",
        all.verdict
    );
    // In a program without PyTorch it is all the memory.
    report.spaces.remove(0);
    let all = compared(&[("a", &report), ("b", &report)]);
    assert_eq!((all.runs[0].peak_allocated, all.runs[0].peak_direct), (67 * MB, 0));
}
