// SPDX-License-Identifier: Apache-2.0
//! Matches the lines of two runs. A line has a file, a function and a number. Since an edit changes numbers, the lines of a
//! function are aligned in order; equal numbers, or allocations of the same size, are preferred. Source text does not help:
//! the file on disk is at most one of the versions that ran.

use super::{Change, LineChange, LineInRun, RunFigures};
use crate::report::{Holder, Report};
use std::collections::BTreeMap;

/// Allocations whose sizes are this close count as equal.
const SAME_PIECE: f64 = 0.02;
/// Smaller differences are ignored: share of the larger peak, share of the compared values, and bytes.
const LEAST_OF_PEAK: f64 = 0.01;
const NOISE: f64 = 0.05;
const LEAST_BYTES: u64 = 64 << 10;
/// Rates that differ by less count as equal.
const SAME_RATE: f64 = 0.1;

/// File and function: lines are matched within these.
type Group = (String, Option<String>);

/// One line's memory in one run.
#[derive(Debug, Clone, Default)]
struct Item {
    label: Option<String>,
    number: Option<u32>,
    peak: (u64, u64),
    end: (u64, u64),
    /// Bytes a step, where there are steps, and a second.
    leak: Option<(Option<f64>, f64)>,
}

impl Item {
    /// The mean size of an allocation.
    fn piece(&self) -> f64 {
        let (bytes, count) = if self.end.1 > 0 { self.end } else { self.peak };
        bytes as f64 / count.max(1) as f64
    }
}

/// One line in all runs matched so far.
struct Row {
    first: Item,
    in_runs: Vec<Option<Item>>,
}

/// The lines that matter, most first.
pub(super) fn changes(reports: &[&Report], runs: &[RunFigures], most: usize) -> Vec<LineChange> {
    let mut groups: BTreeMap<Group, Vec<Row>> = BTreeMap::new();
    for (place, report) in reports.iter().enumerate() {
        for (group, items) in items(report) {
            add(groups.entry(group).or_default(), items, place, reports.len());
        }
    }
    let peak = runs.iter().map(|run| run.peak_allocated).max().unwrap_or(0);
    let least = ((peak as f64 * LEAST_OF_PEAK) as u64).max(LEAST_BYTES);
    let all = groups.into_iter().flat_map(|(group, rows)| rows.into_iter().map(move |row| (group.1.clone(), row)));
    let mut found: Vec<LineChange> = all.map(|(function, row)| line_change(function, row, runs, least)).collect();
    found.retain(|line| is_material(line, runs, least));
    found.sort_by(|a, b| {
        let leaks = rate(b).total_cmp(&rate(a));
        leaks.then_with(|| differs(b, runs).cmp(&differs(a, runs))).then_with(|| a.line.cmp(&b.line))
    });
    found.truncate(most);
    found
}

/// All lines of a run that hold or leak anything, over all processes and devices.
fn items(report: &Report) -> BTreeMap<Group, Vec<Item>> {
    let mut all: BTreeMap<(Group, Option<u32>), Item> = BTreeMap::new();
    let mut item = |line: &Option<String>, function: &Option<String>, change: &mut dyn FnMut(&mut Item)| {
        let (file, number) = split(line.as_deref().unwrap_or_default());
        let entry = all.entry(((file, function.clone()), number)).or_default();
        (entry.label, entry.number) = (line.clone(), number);
        change(entry);
    };
    // The holder that sums up the rest has a function but no line.
    let is_line = |holder: &&Holder| holder.line.is_some() || holder.function.is_none();
    for space in &report.spaces {
        for holder in space.at_peak.iter().filter(is_line) {
            item(&holder.line, &holder.function, &mut |item| add_to(&mut item.peak, holder));
        }
        for holder in space.at_end.iter().filter(is_line) {
            item(&holder.line, &holder.function, &mut |item| add_to(&mut item.end, holder));
        }
    }
    for leak in &report.leaks {
        item(&leak.line, &leak.function, &mut |item| {
            let (step, second) = item.leak.unwrap_or((Some(0.0), 0.0));
            let step = step.zip(leak.bytes_per_step).map(|(sum, one)| sum + one);
            item.leak = Some((step, second + leak.bytes_per_second));
        });
    }
    let mut groups: BTreeMap<Group, Vec<Item>> = BTreeMap::new();
    for ((group, _), item) in all {
        groups.entry(group).or_default().push(item);
    }
    groups
}

fn add_to(sum: &mut (u64, u64), holder: &Holder) {
    *sum = (sum.0.saturating_add(holder.bytes), sum.1.saturating_add(holder.count));
}

/// Splits `train.py:31` into file and number.
fn split(line: &str) -> (String, Option<u32>) {
    match line.rsplit_once(':').and_then(|(file, number)| Some((file, number.parse().ok()?))) {
        Some((file, number)) => (file.to_owned(), Some(number)),
        None => (line.to_owned(), None),
    }
}

/// Adds a run's lines of one function to the rows; lines that match none become new rows.
fn add(rows: &mut Vec<Row>, items: Vec<Item>, run: usize, runs: usize) {
    let firsts: Vec<&Item> = rows.iter().map(|row| &row.first).collect();
    let places = align(&firsts, &items);
    for (item, place) in items.into_iter().zip(places) {
        if let Some(row) = place.and_then(|place| rows.get_mut(place)) {
            row.in_runs[run] = Some(item);
            continue;
        }
        let mut row = Row { first: item.clone(), in_runs: vec![None; runs] };
        row.in_runs[run] = Some(item);
        rows.push(row);
    }
    rows.sort_by_key(|row| row.first.number);
}

/// The row of each item: the best alignment that keeps the order.
fn align(rows: &[&Item], items: &[Item]) -> Vec<Option<usize>> {
    // best[i][j]: the best score of the rows from i on with the items from j on.
    let mut best = vec![vec![0.0_f64; items.len() + 1]; rows.len() + 1];
    for i in (0..rows.len()).rev() {
        for j in (0..items.len()).rev() {
            let paired = likeness(rows[i], &items[j]) + best[i + 1][j + 1];
            best[i][j] = paired.max(best[i + 1][j]).max(best[i][j + 1]);
        }
    }
    let mut places = vec![None; items.len()];
    let (mut i, mut j) = (0, 0);
    while i < rows.len() && j < items.len() {
        let paired = likeness(rows[i], &items[j]) + best[i + 1][j + 1];
        if paired >= best[i + 1][j] && paired >= best[i][j + 1] {
            places[j] = Some(i);
            (i, j) = (i + 1, j + 1);
        } else if best[i + 1][j] >= best[i][j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    places
}

/// How likely two lines of one function are the same line.
fn likeness(a: &Item, b: &Item) -> f64 {
    let same_line = a.number == b.number;
    let (left, right) = (a.piece(), b.piece());
    let same_piece = (left - right).abs() <= SAME_PIECE * left.max(right);
    match (same_line, same_piece) {
        (true, true) => 4.0,
        (true, false) | (false, true) => 2.0,
        // Only the function is the same.
        (false, false) => 0.25,
    }
}

fn line_change(function: Option<String>, row: Row, runs: &[RunFigures], least: u64) -> LineChange {
    let reference = row.in_runs.first().cloned().flatten();
    let in_run = |(place, item): (usize, Option<Item>)| {
        let change = match runs.get(place) {
            _ if place == 0 => Change::Reference,
            Some(run) if run.has_memory && runs[0].has_memory => change(reference.as_ref(), item.as_ref(), least),
            _ => Change::Unknown,
        };
        let item = item.unwrap_or_default();
        LineInRun {
            line: item.label,
            at_peak: item.peak.0,
            at_end: item.end.0,
            bytes_per_step: item.leak.and_then(|leak| leak.0),
            bytes_per_second: item.leak.map(|leak| leak.1),
            change,
        }
    };
    let in_runs = row.in_runs.into_iter().enumerate().map(in_run).collect();
    LineChange { line: row.first.label, function, in_runs }
}

fn change(reference: Option<&Item>, item: Option<&Item>, least: u64) -> Change {
    let none = Item::default();
    let (was, is) = (reference.unwrap_or(&none), item.unwrap_or(&none));
    // What a leak holds depends on the length of the run; what it keeps of a step does not.
    if let (Some(before), Some(after)) = (was.leak, is.leak) {
        let (before, after) = before.0.zip(after.0).unwrap_or((before.1, after.1));
        return match after - before {
            difference if difference.abs() <= SAME_RATE * before.max(after) => Change::Same,
            difference if difference > 0.0 => Change::Grew,
            _ => Change::Shrank,
        };
    }
    // A new leak is a change, however little it holds yet.
    match (was.leak, is.leak) {
        (None, Some(_)) => return if was.end.0.max(was.peak.0) == 0 { Change::New } else { Change::Grew },
        (Some(_), None) => return if is.end.0.max(is.peak.0) == 0 { Change::Gone } else { Change::Shrank },
        _ => {}
    }
    let by = |was: u64, is: u64| match (was, is) {
        _ if !is_notable(was, is, least) => Change::Same,
        (0, _) => Change::New,
        (_, 0) => Change::Gone,
        (was, is) if is > was => Change::Grew,
        _ => Change::Shrank,
    };
    // Compared at the peak. The end of a step may be another place in each run, if other calls mark it, so it counts only
    // if the line holds little at the peak.
    match (was.peak.0, is.peak.0) {
        (before, after) if before.max(after) < least => by(was.end.0, is.end.0),
        // A line that holds something at the end is neither new nor gone.
        (before, after) => match by(before, after) {
            Change::New if was.end.0 > 0 => Change::Grew,
            Change::Gone if is.end.0 > 0 => Change::Shrank,
            other => other,
        },
    }
}

fn is_notable(was: u64, is: u64, least: u64) -> bool {
    let difference = was.abs_diff(is);
    difference >= least && difference as f64 > NOISE * was.max(is) as f64
}

fn is_material(line: &LineChange, runs: &[RunFigures], least: u64) -> bool {
    let differs =
        line.in_runs.iter().any(|run| !matches!(run.change, Change::Reference | Change::Same | Change::Unknown));
    rate(line) > 0.0 || differs && self::differs(line, runs) >= least
}

fn rate(line: &LineChange) -> f64 {
    line.in_runs.iter().filter_map(|run| run.bytes_per_second).fold(0.0, f64::max)
}

/// The largest difference of a line from the reference, at the peak or at the end.
fn differs(line: &LineChange, runs: &[RunFigures]) -> u64 {
    let Some(first) = line.in_runs.first() else { return 0 };
    let known = line.in_runs.iter().zip(runs).filter(|(_, run)| run.has_memory).map(|(line, _)| line);
    known.map(|run| first.at_peak.abs_diff(run.at_peak).max(first.at_end.abs_diff(run.at_end))).max().unwrap_or(0)
}
