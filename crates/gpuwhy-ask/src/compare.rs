// SPDX-License-Identifier: Apache-2.0
//! Two runs side by side: what got better, what got worse, by how much.
//!
//! Runs differ in length, so nothing is compared but rates, shares of the time and single calls.

use crate::explain::Explained;
use crate::stats::Stats;
use gpuwhy_model::{Class, Finding, units};
use std::collections::{BTreeMap, BTreeSet};

/// An op that takes less than this part of the time in both runs is not worth a line.
const WORTH: f64 = 0.01;
/// Changes smaller than this part of what was before are noise.
const NOISE: f64 = 0.1;

/// Two runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The earlier one.
    pub before: Side,
    /// The later one.
    pub after: Side,
    /// What changed, most first: shares of the wall clock.
    pub changes: Vec<Change>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Side {
    /// How long it is, ns.
    pub wall_ns: u64,
    /// Kernels launched a second.
    pub launches_per_second: f64,
    /// The part of the time in which the GPU had no work, at least; `None` where no work was seen.
    pub idle_min: Option<f64>,
    /// What was said of it.
    pub verdict: String,
}

/// Something that changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// What: a finding's kind, an op, or `launch_rate`.
    pub what: String,
    /// Its share of the wall clock before; of a rate, a second.
    pub before: f64,
    /// And after.
    pub after: f64,
    /// In words.
    pub words: String,
}

/// Compares what was found in two runs.
pub fn compare(before: (&Stats, &Explained), after: (&Stats, &Explained)) -> Comparison {
    let (left, right) = (side(before.0, before.1), side(after.0, after.1));
    let mut changes = findings(&before.1.report.findings, &after.1.report.findings);
    changes.extend(ops(before.0, after.0));
    changes.sort_by(|a, b| (b.after - b.before).abs().total_cmp(&(a.after - a.before).abs()));
    let (was, is) = (left.launches_per_second, right.launches_per_second);
    if (was - is).abs() > NOISE * was.max(is) {
        let words = format!("launches a second {} → {}", units::count(was as u64), units::count(is as u64));
        changes.insert(0, Change { what: "launch_rate".into(), before: was, after: is, words });
    }
    Comparison { before: left, after: right, changes }
}

fn side(stats: &Stats, explained: &Explained) -> Side {
    let report = &explained.report;
    let launches: u64 = stats.processes.iter().map(|process| process.launches).sum();
    let wall = report.wall_ns.max(1) as f64;
    Side {
        wall_ns: report.wall_ns,
        launches_per_second: launches as f64 / wall * 1e9,
        idle_min: report.gpu_idle_min_ns.map(|idle| idle as f64 / wall),
        verdict: report.verdict.clone(),
    }
}

/// What each kind of finding cost, as a part of the time.
fn shares(findings: &[Finding]) -> BTreeMap<&str, f64> {
    let mut shares = BTreeMap::new();
    for finding in findings {
        *shares.entry(finding.kind.as_str()).or_default() += finding.share;
    }
    shares
}

fn findings(before: &[Finding], after: &[Finding]) -> Vec<Change> {
    let (was, is) = (shares(before), shares(after));
    let kinds: BTreeSet<&str> = was.keys().chain(is.keys()).copied().collect();
    let share = |of: &BTreeMap<&str, f64>, kind: &str| of.get(kind).copied().unwrap_or(0.0);
    let told = |kind: &str| {
        let (before, after) = (share(&was, kind), share(&is, kind));
        let there = (was.contains_key(kind), is.contains_key(kind));
        let percent = |share: f64| units::percent(share, 1.0);
        let words = match there {
            (true, false) => format!("{kind} is gone: it cost {} of the time", percent(before)),
            (false, true) => format!("{kind} is new: it costs {} of the time", percent(after)),
            _ => format!("{kind} cost {} of the time, now {}", percent(before), percent(after)),
        };
        let changed = there.0 != there.1 || (before - after).abs() > NOISE * before.max(after);
        (changed && before.max(after) >= WORTH).then(|| Change { what: kind.to_owned(), before, after, words })
    };
    kinds.into_iter().filter_map(told).collect()
}

fn ops(before: &Stats, after: &Stats) -> Vec<Change> {
    let names: BTreeSet<&str> = before.ops.iter().chain(&after.ops).map(|op| op.op.as_str()).collect();
    names.into_iter().filter_map(|name| op(name, before, after)).collect()
}

fn op(name: &str, before: &Stats, after: &Stats) -> Option<Change> {
    let share = |stats: &Stats| {
        let op = stats.ops.iter().find(|op| op.op == name)?;
        let wall = stats.to_ns.saturating_sub(stats.from_ns).max(1) as f64;
        Some((op.totals.total_ns as f64 / wall, op.totals.calls as f64 / wall * 1e9, op.quantile(0.5)))
    };
    // A wait for the GPU is as long as the GPU works: that is told by findings.
    let waits = before.ops.iter().chain(&after.ops).any(|op| op.op == name && op.class == Some(Class::Sync));
    let (was, is) = (share(before).unwrap_or_default(), share(after).unwrap_or_default());
    if waits || was.0.max(is.0) < WORTH || (was.0 - is.0).abs() <= NOISE * was.0.max(is.0) {
        return None;
    }
    let told = |(share, rate, p50): (f64, f64, u64)| {
        format!(
            "{} of the time, {} calls a second, p50 {}",
            units::percent(share, 1.0),
            units::count(rate as u64),
            units::time(p50)
        )
    };
    Some(Change {
        what: name.to_owned(),
        before: was.0,
        after: is.0,
        words: format!("{name}: {} → {}", told(was), told(is)),
    })
}
