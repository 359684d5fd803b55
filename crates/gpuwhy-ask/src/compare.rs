// SPDX-License-Identifier: Apache-2.0
//! Compares two runs: what got better or worse, and by how much.
//!
//! Runs differ in length, so only rates, shares of the time and single calls are compared.

use crate::explain::Explained;
use crate::stats::Stats;
use gpuwhy_model::{Class, Finding, Severity, units};
use std::collections::{BTreeMap, BTreeSet};

/// An op with less than this share of the time in both runs gets no line.
const WORTH: f64 = 0.01;
/// Relative changes below this are noise.
const NOISE: f64 = 0.1;

/// Two runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The earlier one.
    pub before: Side,
    /// The later one.
    pub after: Side,
    /// Changes, the largest share of the wall clock first.
    pub changes: Vec<Change>,
}

/// One run of the comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Side {
    /// How long it is, ns.
    pub wall_ns: u64,
    /// Kernels launched a second.
    pub launches_per_second: f64,
    /// Lower bound of the share of the time in which the GPU was idle; `None` where no work was seen.
    pub idle_min: Option<f64>,
    /// Its verdict.
    pub verdict: String,
}

/// A change.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// What: a finding's kind, an op, or `launch_rate`.
    pub what: String,
    /// Its share of the wall clock before; for a rate, per second.
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
        let words = format!("launches/s {} → {}", units::count(was as u64), units::count(is as u64));
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
        launches_per_second: launches as f64 / stats.wall_ns().max(1) as f64 * 1e9,
        idle_min: report.gpu_idle_min_ns.map(|idle| idle as f64 / wall),
        verdict: report.verdict.clone(),
    }
}

/// Cost of each kind of finding: share of the time, and bytes.
fn costs(findings: &[Finding]) -> BTreeMap<&str, (f64, u64)> {
    let mut costs: BTreeMap<&str, (f64, u64)> = BTreeMap::new();
    for finding in findings.iter().filter(|finding| finding.severity > Severity::Info) {
        let cost = costs.entry(finding.kind.as_str()).or_default();
        *cost = (cost.0 + finding.share, cost.1.saturating_add(finding.lost_bytes));
    }
    costs
}

fn findings(before: &[Finding], after: &[Finding]) -> Vec<Change> {
    let (was, is) = (costs(before), costs(after));
    let kinds: BTreeSet<&str> = was.keys().chain(is.keys()).copied().collect();
    let cost = |(share, bytes): (f64, u64)| match (share, bytes) {
        (0.0, 0) => "no measured time or memory".to_owned(),
        (0.0, bytes) => units::bytes(bytes),
        (share, _) => format!("{} of the time", units::percent(share, 1.0)),
    };
    let change = |kind: &str| {
        let costs = (was.get(kind).copied(), is.get(kind).copied());
        let words = match costs {
            (Some(before), None) => format!("{kind} is gone (cost {})", cost(before)),
            (None, Some(after)) => format!("{kind} is new (costs {})", cost(after)),
            _ => {
                format!("{kind}: {} → {}", cost(costs.0.unwrap_or_default()), cost(costs.1.unwrap_or_default()))
            }
        };
        let (before, after) = (costs.0.unwrap_or_default(), costs.1.unwrap_or_default());
        // New or gone findings without a cost in time are about memory: always report them.
        let appeared = costs.0.is_some() != costs.1.is_some();
        let moved = (before.0 - after.0).abs() > NOISE * before.0.max(after.0) && before.0.max(after.0) >= WORTH;
        let worth = moved || appeared && before.0.max(after.0) == 0.0;
        worth.then(|| Change { what: kind.to_owned(), before: before.0, after: after.0, words })
    };
    kinds.into_iter().filter_map(change).collect()
}

fn ops(before: &Stats, after: &Stats) -> Vec<Change> {
    let names: BTreeSet<&str> = before.ops.iter().chain(&after.ops).map(|op| op.op.as_str()).collect();
    names.into_iter().filter_map(|name| op(name, before, after)).collect()
}

fn op(name: &str, before: &Stats, after: &Stats) -> Option<Change> {
    let share = |stats: &Stats| {
        let op = stats.ops.iter().find(|op| op.op == name)?;
        let wall = stats.wall_ns().max(1) as f64;
        Some((op.totals.total_ns as f64 / wall, op.totals.calls as f64 / wall * 1e9, op.quantile(0.5)))
    };
    // A wait for the GPU lasts as long as the GPU works: findings cover that.
    let waits = before.ops.iter().chain(&after.ops).any(|op| op.op == name && op.class == Some(Class::Sync));
    let (was, is) = (share(before).unwrap_or_default(), share(after).unwrap_or_default());
    if waits || was.0.max(is.0) < WORTH || (was.0 - is.0).abs() <= NOISE * was.0.max(is.0) {
        return None;
    }
    let cost = |(share, rate, p50): (f64, f64, u64)| {
        format!(
            "{} of the time, {} calls/s, p50 {}",
            units::percent(share, 1.0),
            units::count(rate as u64),
            units::time(p50)
        )
    };
    Some(Change {
        what: name.to_owned(),
        before: was.0,
        after: is.0,
        words: format!("{name}: {} → {}", cost(was), cost(is)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwhy_store::{Process, Session};
    use gpuwhy_why::Report;

    fn finding(kind: &str, share: f64, lost_bytes: u64) -> Finding {
        Finding { share, lost_bytes, ..Finding::new(kind, Severity::High, String::new()) }
    }

    fn run(launches: u64, wall_ns: u64, findings: Vec<Finding>) -> (Stats, Explained) {
        let process = Process {
            pid: 1,
            name: "a".into(),
            started: None,
            ended: None,
            parent: None,
            container: None,
            command: None,
        };
        let processes = vec![crate::stats::ProcessStats { process, calls: launches, cuda_ns: 0, launches }];
        let session = Session::default();
        let (from_ns, to_ns, ops, loss) = (0, wall_ns, Vec::new(), Vec::new());
        let stats = Stats { session: session.clone(), from_ns, to_ns, ops, processes, loss };
        (stats, Explained { report: Report { findings, wall_ns, ..Report::default() }, session })
    }

    #[test]
    fn rates_are_per_time_summed_and_new_and_gone_findings_are_reported() {
        let before = run(1_300, 1_300_000_000, vec![finding("sync_bound", 0.3, 0), finding("copy_bound", 0.2, 0)]);
        let after =
            run(1_900, 1_900_000_000, vec![finding("copy_bound", 0.19, 0), finding("memory_leak", 0.0, 5_000_000)]);
        let compared = compare((&before.0, &before.1), (&after.0, &after.1));
        let words: Vec<&str> = compared.changes.iter().map(|change| change.words.as_str()).collect();
        assert_eq!(words, ["sync_bound is gone (cost 30 % of the time)", "memory_leak is new (costs 5.00 MB)"]);
        let slower = run(650, 1_300_000_000, Vec::new());
        let compared = compare((&before.0, &before.1), (&slower.0, &slower.1));
        assert_eq!(compared.changes[0].words, "launches/s 1,000 → 500");
    }
}
