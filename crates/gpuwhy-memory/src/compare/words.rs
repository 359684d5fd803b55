// SPDX-License-Identifier: Apache-2.0
//! A comparison in words: verdict and notes.

use super::{Comparison, LineChange, LineInRun, RunFigures};
use crate::lines::NO_LINE;
use crate::report::Report;
use gpuwhy_model::units;

/// Leaks named in the verdict.
const MOST_LEAKS: usize = 3;
/// Peaks, numbers of steps and rates that differ by less count as equal.
const SAME: f64 = 0.02;
const SAME_STEPS: f64 = 0.1;
const SAME_RATE: f64 = 0.1;

/// The comparison in a sentence or two.
pub(super) fn verdict(all: &Comparison) -> String {
    let known: Vec<&RunFigures> = all.runs.iter().filter(|run| run.has_memory).collect();
    if known.is_empty() {
        return "No run allocated GPU memory: there is nothing to compare.".to_owned();
    }
    let mut said: Vec<String> = all
        .lines
        .iter()
        .filter(|line| line.in_runs.iter().any(LineInRun::leaks))
        .take(MOST_LEAKS)
        .map(|l| leak(l, all))
        .collect();
    if said.is_empty() {
        said.push(if known.len() == 1 {
            format!("{} does not leak", known[0].name)
        } else {
            "No run leaks".to_owned()
        });
    }
    said.push(peaks(all, &known));
    let ran_out = known.iter().filter(|run| run.oom_count > 0).map(|run| match run.oom_count {
        1 => run.name.clone(),
        count => format!("{} ({} times)", run.name, units::count(count)),
    });
    let ran_out: Vec<String> = ran_out.collect();
    if !ran_out.is_empty() {
        said.push(format!("memory ran out in {}", list(&ran_out)));
    }
    let missing: Vec<String> = all.runs.iter().filter(|run| !run.has_memory).map(|run| run.name.clone()).collect();
    if !missing.is_empty() {
        said.push(format!("{} allocated no GPU memory, so it cannot be compared", list(&missing)));
    }
    said.join("; ") + "."
}

/// Which runs keep how much at a line, and which do not.
fn leak(line: &LineChange, all: &Comparison) -> String {
    let of = || line.in_runs.iter().zip(&all.runs).filter(|(_, run)| run.has_memory);
    let keepers: Vec<(&LineInRun, &RunFigures)> = of().filter(|(line, _)| line.leaks()).collect();
    let others: Vec<String> = of().filter(|(line, _)| !line.leaks()).map(|(_, run)| run.name.clone()).collect();
    let place = keepers.first().and_then(|(at, _)| at.line.as_deref()).unwrap_or(NO_LINE);
    let mut text = match keepers.as_slice() {
        [(at, run)] => format!("{} keeps {} at {place}", run.name, rate(at)),
        several if are_same(several) => {
            let names: Vec<String> = several.iter().map(|(_, run)| run.name.clone()).collect();
            format!("{} keep {} at {place}", list(&names), rate(several[0].0))
        }
        several => {
            let each: Vec<String> = several.iter().map(|(at, run)| format!("{} {}", run.name, rate(at))).collect();
            format!("{place} keeps memory in {}", list(&each))
        }
    };
    match others.as_slice() {
        [] => {}
        [one] => text += &format!(" that {one} does not"),
        several => text += &format!(" that {} do not", list(several)),
    }
    text
}

/// `8.40 MB/step`; without steps, `/s`.
fn rate(line: &LineInRun) -> String {
    let (bytes, unit) =
        line.bytes_per_step.map_or((line.bytes_per_second.unwrap_or(0.0), "s"), |bytes| (bytes, "step"));
    format!("{}/{unit}", units::bytes(bytes.round() as u64))
}

fn are_same(keepers: &[(&LineInRun, &RunFigures)]) -> bool {
    let rates: Option<Vec<f64>> = keepers.iter().map(|(line, _)| line.bytes_per_step).collect();
    let Some(rates) = rates else { return false };
    let (least, most) =
        rates.iter().fold((f64::MAX, 0.0_f64), |(least, most), rate| (least.min(*rate), most.max(*rate)));
    most - least <= SAME_RATE * most
}

fn peaks(all: &Comparison, known: &[&RunFigures]) -> String {
    let peak = |run: &RunFigures| if run.has_memory { units::bytes(run.peak_allocated) } else { "–".to_owned() };
    let peaks: Vec<String> = all.runs.iter().map(peak).collect();
    let differ = |pick: fn(&RunFigures) -> u64| {
        let (least, most) = known.iter().map(|run| pick(run)).fold((u64::MAX, 0), |(l, m), n| (l.min(n), m.max(n)));
        most.saturating_sub(least) as f64 > SAME * known.iter().map(|run| run.peak_allocated).max().unwrap_or(0) as f64
    };
    let same = known.len() > 1 && !differ(|run| run.peak_allocated);
    let peak = if same { "the peak is about the same:" } else { "peak" };
    let past: Vec<String> = known.iter().map(|run| units::bytes(run.peak_direct)).collect();
    let past =
        if differ(|run| run.peak_direct) { format!("; outside PyTorch {}", past.join(" → ")) } else { String::new() };
    format!("{peak} {}{past}", peaks.join(" → "))
}

/// Caveats for comparing the numbers.
pub(super) fn notes(all: &Comparison, reports: &[&Report]) -> Vec<String> {
    let mut notes = Vec::new();
    let known: Vec<&RunFigures> = all.runs.iter().filter(|run| run.has_memory).collect();
    let steps: Vec<u64> = known.iter().filter_map(|run| run.steps).collect();
    let (least, most) = (steps.iter().min().copied().unwrap_or(0), steps.iter().max().copied().unwrap_or(0));
    if (most - least) as f64 > SAME_STEPS * most as f64 {
        let counts: Vec<String> = steps.iter().copied().map(units::count).collect();
        notes.push(format!(
            "the runs differ in length ({} steps): growth is compared per step; peak and last check are those of each run's \
             own length",
            counts.join(", ")
        ));
    }
    let without: Vec<String> = known.iter().filter(|run| run.steps.is_none()).map(|run| run.name.clone()).collect();
    if !without.is_empty() {
        notes.push(format!("no steps were found in {}: its growth is known only per second", list(&without)));
    }
    notes.extend(too_short(all, reports));
    let several: Vec<String> = known.iter().filter(|run| run.spaces > 1).map(|run| run.name.clone()).collect();
    if !several.is_empty() {
        notes.push(format!(
            "{}: several processes or devices; their peaks are summed, although reached at different times",
            list(&several)
        ));
    }
    notes.extend(notes_of_runs(all, reports));
    notes
}

/// A run that ended before another run's leak began may still have that leak.
fn too_short(all: &Comparison, reports: &[&Report]) -> Vec<String> {
    let onset = |report: &&Report| report.leaks.iter().filter_map(|leak| leak.onset_step).min();
    let Some((onset, leaky)) = reports.iter().zip(&all.runs).filter_map(|(r, run)| Some((onset(r)?, &run.name))).max()
    else {
        return Vec::new();
    };
    let short = |run: &&RunFigures| run.steps.is_some_and(|steps| steps <= onset);
    let short = all.runs.iter().filter(short).map(|run| {
        let steps = units::count(run.steps.unwrap_or(0));
        format!("{} has only {steps} steps and the leak of {leaky} began in step {onset}: it may leak, too", run.name)
    });
    short.collect()
}

/// The notes of each run; a note that all runs share appears once.
fn notes_of_runs(all: &Comparison, reports: &[&Report]) -> Vec<String> {
    let mut said: Vec<(String, Vec<String>)> = Vec::new();
    for (report, run) in reports.iter().zip(&all.runs) {
        for note in &report.notes {
            match said.iter_mut().find(|(text, _)| text == note) {
                Some((_, names)) => names.push(run.name.clone()),
                None => said.push((note.clone(), vec![run.name.clone()])),
            }
        }
    }
    let named = |(text, names): (String, Vec<String>)| {
        if names.len() == all.runs.len() { text } else { format!("{}: {text}", list(&names)) }
    };
    said.into_iter().map(named).collect()
}

/// `a, b and c`.
fn list(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
