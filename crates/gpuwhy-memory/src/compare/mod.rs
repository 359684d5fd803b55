// SPDX-License-Identifier: Apache-2.0
//! Runs side by side: what of their memory changed, and at which lines. Reports in, a [`Comparison`] out; the first run is
//! the reference. Its JSON is `gpuwhy.memory-compare/1` (docs/memory-json.md).
//!
//! - `rows`: which line of one run is which line of another, also where an edit moved it.
//! - `words`: the verdict and what must be said beside it.

mod rows;
mod words;

use crate::report::{GrowthKind, Report, Source, SpaceReport};
use crate::steps::Certainty;
use serde::Serialize;

/// Lines told, at most.
const MOST_LINES: usize = 32;

/// Runs compared.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// In words: what the runs keep, and their peaks.
    pub verdict: String,
    /// The runs in the order they were given.
    pub runs: Vec<RunFigures>,
    /// Lines that hold different amounts, or leak in one of the runs: those that leak first, then by how much they differ.
    pub lines: Vec<LineChange>,
    /// What to know before the numbers are compared.
    pub notes: Vec<String>,
}

/// What a run's memory did over time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunGrowth {
    /// It leaks.
    Leaks,
    /// It grew and then no more.
    Settled,
    /// It grows and is given back, or is renewed.
    Bounded,
    /// It did not grow.
    Steady,
    /// There is no memory to judge.
    #[default]
    Unknown,
}

/// A run's figures, over all its processes and devices.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RunFigures {
    /// The run, as it is called here.
    pub name: String,
    /// How long it is.
    pub wall_ns: u64,
    /// Whether any GPU memory was allocated in it. Without it all other figures are nothing.
    pub has_memory: bool,
    /// Processes and devices that have memory of their own; their peaks are summed, each of its own moment.
    pub spaces: u64,
    /// The most in use.
    pub peak_allocated: u64,
    /// The most had from the driver.
    pub peak_reserved: u64,
    /// The most taken past PyTorch's allocator, by processes that have one. It is not in the figures above.
    pub peak_direct: u64,
    /// In use at the end of the last step.
    pub allocated_at_end: u64,
    /// Steps, of the process that made most; `None` where none were found.
    pub steps: Option<u64>,
    /// What its memory did.
    pub growth: RunGrowth,
    /// What each step keeps, all leaks together: 0 without a leak, `None` without steps.
    pub bytes_per_step: Option<f64>,
    /// What each second keeps.
    pub bytes_per_second: Option<f64>,
    /// How often memory ran out.
    pub oom_count: u64,
    /// When most was reserved: the part of it that was not in use. `None` without PyTorch's allocator.
    pub unused_share: Option<f64>,
}

/// How a line's memory differs from that of the reference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// This is the reference.
    Reference,
    /// About the same.
    #[default]
    Same,
    /// The reference has nothing there.
    New,
    /// Only the reference has something there.
    Gone,
    /// More; where both leak, more a step.
    Grew,
    /// Less.
    Shrank,
    /// The run has no memory to compare.
    Unknown,
}

/// A line in all runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LineChange {
    /// The line, as the first run that has it numbers it; `None` for memory without a Python line.
    pub line: Option<String>,
    /// The function that line is in.
    pub function: Option<String>,
    /// In each run, in their order.
    pub in_runs: Vec<LineInRun>,
}

/// A line in one run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LineInRun {
    /// The line as this run numbers it; `None` where it holds nothing.
    pub line: Option<String>,
    /// Bytes in use when most was.
    pub at_peak: u64,
    /// Bytes in use at the last look.
    pub at_end: u64,
    /// What each step keeps there; `None` where it does not leak, or there are no steps.
    pub bytes_per_step: Option<f64>,
    /// What each second keeps there; `None` where it does not leak.
    pub bytes_per_second: Option<f64>,
    /// Against the reference.
    pub change: Change,
}

impl LineInRun {
    /// Whether it leaks in this run.
    pub fn leaks(&self) -> bool {
        self.bytes_per_second.is_some()
    }
}

/// Compares runs, each with the name it is to be called by. The first is the reference.
pub fn compare(runs: &[(String, &Report)]) -> Comparison {
    let figures: Vec<RunFigures> = runs.iter().map(|(name, report)| figures(name, report)).collect();
    let reports: Vec<&Report> = runs.iter().map(|run| run.1).collect();
    let lines = rows::changes(&reports, &figures, MOST_LINES);
    let mut all = Comparison { verdict: String::new(), runs: figures, lines, notes: Vec::new() };
    all.notes = words::notes(&all, &reports);
    all.verdict = words::verdict(&all);
    all
}

fn figures(name: &str, report: &Report) -> RunFigures {
    let named = RunFigures { name: name.to_owned(), wall_ns: report.to_ns - report.from_ns, ..RunFigures::default() };
    if report.spaces.is_empty() {
        return named;
    }
    let (direct, own): (Vec<_>, Vec<_>) = report.spaces.iter().partition(|space| is_direct(space, report));
    let sum = |spaces: &[&SpaceReport], pick: fn(&SpaceReport) -> u64| {
        spaces.iter().map(|space| pick(space)).fold(0, u64::saturating_add)
    };
    let steps = report.steps.iter().filter(|steps| steps.certainty != Certainty::None);
    let steps = steps.map(|steps| steps.steps).max();
    let per_step: Option<f64> = report.leaks.iter().map(|leak| leak.bytes_per_step).sum();
    let reserved: u64 = report.fragmentation.iter().map(|one| one.peak_reserved).sum();
    let used: u64 = report.fragmentation.iter().map(|one| one.allocated_then).sum();
    RunFigures {
        has_memory: true,
        spaces: own.len() as u64,
        peak_allocated: sum(&own, |space| space.peak_allocated),
        peak_reserved: sum(&own, |space| space.peak_reserved),
        peak_direct: sum(&direct, |space| space.peak_allocated),
        allocated_at_end: sum(&own, at_end),
        steps,
        growth: growth(report),
        bytes_per_step: steps.and(per_step),
        bytes_per_second: Some(report.leaks.iter().map(|leak| leak.bytes_per_second).sum()),
        oom_count: report.oom_count,
        unused_share: (reserved > 0).then(|| reserved.saturating_sub(used) as f64 / reserved as f64),
        ..named
    }
}

/// Memory past PyTorch's allocator, in a process that has one: workspaces of libraries and the like.
fn is_direct(space: &SpaceReport, report: &Report) -> bool {
    let has_torch = |pid: u32| report.spaces.iter().any(|one| one.pid == pid && one.source == Source::Torch);
    space.source == Source::Driver && has_torch(space.pid)
}

/// In use at the end of the last step: a process that ends well frees everything after it.
fn at_end(space: &SpaceReport) -> u64 {
    let seen: u64 = space.at_end.iter().map(|holder| holder.bytes).sum();
    seen.saturating_add(space.preexisting.saturating_sub(space.balance.unknown_free_bytes))
}

fn growth(report: &Report) -> RunGrowth {
    let has = |kind: GrowthKind| report.growths.iter().any(|growth| growth.kind == kind);
    match () {
        () if !report.leaks.is_empty() => RunGrowth::Leaks,
        () if has(GrowthKind::Sawtooth) || has(GrowthKind::Renewed) => RunGrowth::Bounded,
        () if has(GrowthKind::Settled) || has(GrowthKind::OneOff) => RunGrowth::Settled,
        () => RunGrowth::Steady,
    }
}

#[cfg(test)]
mod tests;
