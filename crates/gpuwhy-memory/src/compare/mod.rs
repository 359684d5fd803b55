// SPDX-License-Identifier: Apache-2.0
//! Compares runs: what changed in their memory, and at which lines. Reports in, a [`Comparison`] out; the first run is the
//! reference. Its JSON is `gpuwhy.memory-compare/1` (docs/memory-json.md).
//!
//! - `rows`: matches the lines of the runs, also after an edit moved them.
//! - `words`: the verdict and the notes.

mod rows;
mod words;

use crate::report::{GrowthKind, Report, Source, SpaceReport};
use crate::steps::Certainty;
use serde::Serialize;

/// Lines listed.
const MOST_LINES: usize = 32;

/// Runs compared.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// The answer in a sentence: leaks and peaks.
    pub verdict: String,
    /// The runs, in the given order.
    pub runs: Vec<RunFigures>,
    /// Lines that hold different amounts or leak in one of the runs: leaks first, then by difference.
    pub lines: Vec<LineChange>,
    /// Caveats for comparing the numbers.
    pub notes: Vec<String>,
}

/// What a run's memory did over time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunGrowth {
    /// It leaks.
    Leaks,
    /// It grew and then stopped.
    Settled,
    /// It grows and is freed again, or is replaced.
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
    /// The name of the run.
    pub name: String,
    /// Its length.
    pub wall_ns: u64,
    /// Whether it allocated any GPU memory. Otherwise all other figures are empty.
    pub has_memory: bool,
    /// Pairs of process and device with memory; their peaks are summed, although reached at different times.
    pub spaces: u64,
    /// Peak in use.
    pub peak_allocated: u64,
    /// Peak reserved.
    pub peak_reserved: u64,
    /// Peak outside PyTorch's allocator, in processes that have one. Not included in the figures above.
    pub peak_direct: u64,
    /// In use at the end of the last step.
    pub allocated_at_end: u64,
    /// Steps of the process with most of them; `None` if none were found.
    pub steps: Option<u64>,
    /// How its memory behaved.
    pub growth: RunGrowth,
    /// Bytes that all leaks together keep of each step: 0 without a leak, `None` without steps.
    pub bytes_per_step: Option<f64>,
    /// Bytes they keep of each second.
    pub bytes_per_second: Option<f64>,
    /// How often memory ran out.
    pub oom_count: u64,
    /// The unused share of reserved memory at its peak. `None` without PyTorch's allocator.
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
    /// The reference holds nothing there.
    New,
    /// Only the reference holds something there.
    Gone,
    /// More; if both leak, more a step.
    Grew,
    /// Less.
    Shrank,
    /// The run has no memory to compare.
    Unknown,
}

/// A line in all runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LineChange {
    /// The line, numbered as in the first run that has it; `None` for memory without a Python line.
    pub line: Option<String>,
    /// The function that line is in.
    pub function: Option<String>,
    /// In each run, in their order.
    pub in_runs: Vec<LineInRun>,
}

/// A line in one run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LineInRun {
    /// The line, numbered as in this run; `None` if it holds nothing.
    pub line: Option<String>,
    /// Bytes in use at the peak.
    pub at_peak: u64,
    /// Bytes in use at the last check.
    pub at_end: u64,
    /// Bytes each step keeps; `None` without a leak or without steps.
    pub bytes_per_step: Option<f64>,
    /// Bytes each second keeps; `None` without a leak.
    pub bytes_per_second: Option<f64>,
    /// The change relative to the reference.
    pub change: Change,
}

impl LineInRun {
    /// Whether it leaks in this run.
    pub fn leaks(&self) -> bool {
        self.bytes_per_second.is_some()
    }
}

/// Compares named runs. The first is the reference.
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

/// Memory outside PyTorch's allocator in a process that has one, such as library workspaces.
fn is_direct(space: &SpaceReport, report: &Report) -> bool {
    let has_torch = |pid: u32| report.spaces.iter().any(|one| one.pid == pid && one.source == Source::Torch);
    space.source == Source::Driver && has_torch(space.pid)
}

/// In use at the end of the last step: a process that ends normally frees everything after it.
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
