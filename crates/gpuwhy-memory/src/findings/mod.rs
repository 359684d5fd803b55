// SPDX-License-Identifier: Apache-2.0
//! Findings about memory, of the common type, and the verdict.

mod device;
mod driver;
mod killed;
mod leak;
mod oom;

use crate::facts::Facts;
use crate::lines::{Lines, NO_LINE};
use crate::report::{GrowthKind, Leak, Report, Source, SpaceReport};
use gpuwhy_model::{Finding, Link, units};

/// All findings, worst first.
pub(crate) fn all(report: &Report, facts: &Facts, lines: &Lines) -> Vec<Finding> {
    let mut found: Vec<Finding> = report.leaks.iter().map(|one| leak::finding(one, report, facts, lines)).collect();
    found.extend(report.ooms.last().map(|one| oom::finding(one, report, facts)));
    found.extend(report.ends.iter().filter_map(killed::finding));
    found.extend(report.fragmentation.iter().filter_map(|one| driver::fragmentation(one, report, facts)));
    found.extend(report.fragmentation.iter().filter_map(|one| driver::latency(one, facts)));
    found.extend(report.gaps.iter().filter_map(device::hidden));
    found.extend(report.gaps.iter().filter_map(|gap| device::risk(gap, report)));
    Finding::sort(&mut found);
    found
}

/// A line's name, or words for a missing one.
fn named(line: Option<&String>) -> String {
    line.cloned().unwrap_or_else(|| NO_LINE.to_owned())
}

fn who(facts: &Facts, pid: u32, device: Option<u32>) -> String {
    let device = device.map_or_else(|| "a GPU".to_owned(), |device| format!("cuda:{device}"));
    format!("{} {pid} on {device}", facts.name(pid))
}

fn memory_link(who: String, what: String, line: Option<String>, state: String, evidence: Option<String>) -> Link {
    Link { layer: "memory".into(), who, what, line, state, ns: 0, evidence }
}

/// `1.05 MB a step`; without steps, a second.
pub(crate) fn rate(leak: &Leak) -> String {
    match leak.bytes_per_step {
        Some(bytes) => format!("{} a step", units::bytes(bytes.round() as u64)),
        None => format!("{} a second", units::bytes(leak.bytes_per_second.round() as u64)),
    }
}

/// `train.py:40 leaks 1.05 MB a step since step 4`.
fn headline(leak: &Leak) -> String {
    let since = leak.onset_step.map_or_else(|| units::time(leak.onset_ns), |step| format!("step {step}"));
    format!("{} leaks {} since {since}", named(leak.line.as_ref()), rate(leak))
}

/// The report in a few sentences.
pub(crate) fn verdict(report: &Report, facts: &Facts) -> String {
    let mut said = Vec::new();
    let killed = report.ends.iter().filter(|end| end.oom_killed);
    said.extend(killed.map(|end| format!("The kernel killed {} {}: main memory ran out.", end.name, end.pid)));
    if let Some(oom) = report.ooms.last() {
        let times = if report.oom_count > 1 { format!(" {} times", report.oom_count) } else { String::new() };
        let line = oom.line.as_deref().unwrap_or(NO_LINE);
        said.push(format!("Memory ran out{times}: {line} asked for {}.", units::bytes(oom.asked)));
    }
    if facts.lost > 0 {
        let lost = units::count(facts.lost);
        said.push(format!(
            "{lost} allocations or frees were lost: leaks may be missing here, bytes by line may be off."
        ));
    }
    said.extend(report.leaks.iter().take(3).map(|leak| format!("{}.", headline(leak))));
    if report.oom_count == 0 && report.leaks.is_empty() && !report.spaces.is_empty() {
        let rest = if facts.lost > 0 { " in the rest" } else { "" };
        said.push(format!("No leak found{rest}."));
    }
    let torch = report.spaces.iter().find(|space| space.source == Source::Torch);
    said.extend(torch.or(report.spaces.first()).map(peak));
    let settled = report.growths.iter().filter(|growth| growth.kind == GrowthKind::Settled).count();
    if report.leaks.is_empty() && settled > 0 {
        let lines = if settled == 1 { "1 line".to_owned() } else { format!("{settled} lines") };
        said.push(format!("{lines} grew at first and settled: warm-up or a full cache, not a leak."));
    }
    said.extend(up_to(facts).filter(|_| !report.spaces.is_empty()));
    if said.is_empty() {
        said.push("No GPU memory was allocated in this time.".to_owned());
    }
    said.join(" ")
}

/// `Peak 162 MB at 3.71 s, mostly train.py:40.`
fn peak(space: &SpaceReport) -> String {
    let peak = format!("Peak {} at {}", units::bytes(space.peak_allocated), units::time(space.peak_allocated_at_ns));
    let Some(most) = space.at_peak.first() else { return format!("{peak}.") };
    let line = named(most.line.as_ref());
    if most.bytes > space.peak_allocated / 2 {
        format!("{peak}, mostly {line}.")
    } else {
        format!("{peak}; {line} held the most ({}).", units::bytes(most.bytes))
    }
}

/// How long the verdict holds, where that is not to the end.
fn up_to(facts: &Facts) -> Option<String> {
    let from = facts.unreported_from()?;
    let until = if from > facts.from_ns {
        format!("All this holds up to {}: then", units::time(from))
    } else {
        "For this time little is certain: before it,".to_owned()
    };
    let why = "gpuwhy paused PyTorch's allocation reports to stay within the budget (trace with --budget 20% or none).";
    Some(format!("{until} {why}"))
}
