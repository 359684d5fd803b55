// SPDX-License-Identifier: Apache-2.0
//! Finds training steps: by the profiler's marks, else optimizer steps, else anything that repeats.

use super::names::python_line;
use crate::trace::intern::NameId;
use crate::trace::rows::{GpuKind, GpuRow, Span, Trace};
use gpuwhy_model::Confidence;
use std::collections::HashMap;

/// A step on the CPU's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) complete: bool,
}

/// Steps and how they were found.
#[derive(Debug, Clone, Default)]
pub(crate) struct FoundSteps {
    pub(crate) method: &'static str,
    pub(crate) confidence: Option<Confidence>,
    pub(crate) items: Vec<Found>,
    /// Items after these belong to a step that the recording cut off.
    pub(crate) counted: usize,
}

/// A named time range.
#[derive(Debug, Clone, Copy)]
struct Mark {
    name: NameId,
    start: i64,
    end: i64,
}

/// Finds steps by the first method that finds any.
pub(crate) fn find(trace: &Trace) -> FoundSteps {
    let optimizer = by_name(trace, |name| name.starts_with("Optimizer.step"));
    let found = profiler_steps(trace, &optimizer)
        .or_else(|| optimizer_steps(trace, &optimizer))
        .or_else(|| repeated(trace, "annotation", &annotations(trace, is_training_step)))
        .or_else(|| repeated(trace, "python_function", &python(trace)))
        .or_else(|| repeated(trace, "dataloader", &by_name(trace, |name| name.starts_with("enumerate(DataLoader)"))))
        .or_else(|| periodic(trace));
    found.unwrap_or(FoundSteps { method: "none", ..FoundSteps::default() })
}

fn is_training_step(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["train_step", "training_step", "train_batch", "training_batch", "train_iter", "## iteration"]
        .iter()
        .any(|word| name.contains(word))
}

/// Annotations with a name that fits, in order.
fn annotations(trace: &Trace, fits: impl Fn(&str) -> bool) -> Vec<Mark> {
    let fits: Vec<bool> = trace.names.iter().map(|name| fits(name)).collect();
    let fit = |name: NameId| fits.get(name as usize).copied().unwrap_or(false);
    let rows = trace.rows.annotations.iter().filter(|row| fit(row.name));
    let mut marks: Vec<Mark> = rows.map(|row| Mark { name: row.name, start: row.start, end: row.end() }).collect();
    marks.sort_by_key(|mark| mark.start);
    marks
}

/// Annotations, or the ops of the 2021 schema, with a name that fits.
fn by_name(trace: &Trace, fits: impl Fn(&str) -> bool) -> Vec<Mark> {
    let marks = annotations(trace, &fits);
    if !marks.is_empty() {
        return marks;
    }
    let fits: Vec<bool> = trace.names.iter().map(|name| fits(name)).collect();
    if !fits.contains(&true) {
        return marks;
    }
    let fit = |name: NameId| fits.get(name as usize).copied().unwrap_or(false);
    let rows = trace.rows.ops.iter().filter(|row| fit(row.name));
    let mut marks: Vec<Mark> = rows.map(|row| Mark { name: row.name, start: row.start, end: row.end() }).collect();
    marks.sort_by_key(|mark| mark.start);
    marks
}

/// `ProfilerStep#7`: there when the user gave the profiler a schedule.
fn profiler_steps(trace: &Trace, optimizer: &[Mark]) -> Option<FoundSteps> {
    let mut marks = by_name(trace, |name| name.starts_with("ProfilerStep#"));
    // Each number once, should several threads carry it: the longest.
    marks.sort_by_key(|mark| (mark.name, std::cmp::Reverse(mark.end - mark.start)));
    marks.dedup_by_key(|mark| mark.name);
    marks.sort_by_key(|mark| mark.start);
    let updates = |mark: &Mark| optimizer.iter().filter(|o| mark.start <= o.start && o.start < mark.end).count();
    let (last, earlier) = marks.split_last()?;
    let counts: Vec<usize> = earlier.iter().map(updates).collect();
    let (least, most) = (counts.iter().min().copied().unwrap_or(0), counts.iter().max().copied().unwrap_or(0));
    let median = super::warmup::median(earlier.iter().map(|mark| mark.end - mark.start).collect()).unwrap_or(0);
    // The recording can only cut the last one, and then its optimizer step is missing. Where gradients are
    // accumulated others lack it too, and a step that was cut shows by being short.
    let short = last.end - last.start < median / 2;
    let cut = updates(last) < least || (updates(last) < most && short);
    let last = marks.len() - 1;
    let item = |(i, mark): (usize, &Mark)| Found {
        name: trace.name(mark.name).to_owned(),
        start: mark.start,
        end: mark.end,
        complete: i < last || !cut,
    };
    let items: Vec<Found> = marks.iter().enumerate().map(item).collect();
    Some(FoundSteps { method: "profiler_step", confidence: Some(Confidence::High), counted: items.len(), items })
}

/// From one optimizer step's end to the next one's.
fn optimizer_steps(trace: &Trace, marks: &[Mark]) -> Option<FoundSteps> {
    let mut counts: HashMap<NameId, usize> = HashMap::new();
    for mark in marks {
        *counts.entry(mark.name).or_default() += 1;
    }
    // Of several optimizers, the one that steps least often marks the whole step.
    let (&name, _) = counts.iter().min_by_key(|(name, count)| (**count, **name))?;
    let confidence = if counts.len() == 1 { Confidence::High } else { Confidence::Medium };
    let mut start = trace.tally.bounds?.0;
    let mut items = Vec::new();
    for mark in marks.iter().filter(|mark| mark.name == name) {
        let item = Found { name: format!("step {}", items.len() + 1), start, end: mark.end, complete: true };
        start = mark.end;
        items.push(item);
    }
    let counted = items.len();
    items.extend(cut_off(trace, start, counted));
    Some(FoundSteps { method: "optimizer_step", confidence: Some(confidence), items, counted })
}

/// Work launched after the last step's end, as a step that was cut off, if there is enough of it.
fn cut_off(trace: &Trace, from: i64, steps: usize) -> Option<Found> {
    let launched = |after: i64| trace.rows.ops.iter().filter(|op| op.start >= after).count();
    let to = trace.tally.bounds?.1;
    let usual = trace.rows.ops.len() / steps.max(1);
    (usual > 0 && launched(from) * 5 > usual && to > from).then(|| Found {
        name: format!("step {}", steps + 1),
        start: from,
        end: to,
        complete: false,
    })
}

/// From one mark's start to the next one's.
fn repeated(trace: &Trace, method: &'static str, marks: &[Mark]) -> Option<FoundSteps> {
    // Marks inside marks (a step function that calls one of the same kind) are not steps of their own.
    let mut outer: Vec<Mark> = Vec::new();
    for mark in marks {
        if outer.last().is_none_or(|last| mark.start >= last.end) {
            outer.push(*mark);
        }
    }
    if outer.len() < 2 {
        return None;
    }
    let end = trace.tally.bounds?.1;
    let item = |(i, mark): (usize, &Mark)| Found {
        name: format!("step {}", i + 1),
        start: mark.start,
        end: outer.get(i + 1).map_or(end, |next| next.start),
        complete: true,
    };
    let items: Vec<Found> = outer.iter().enumerate().map(item).collect();
    Some(FoundSteps { method, confidence: Some(Confidence::Medium), counted: items.len(), items })
}

/// Python functions that do one training step.
fn python(trace: &Trace) -> Vec<Mark> {
    let fits: Vec<bool> = trace
        .names
        .iter()
        .map(|name| python_line(name).is_some_and(|(_, _, function)| is_training_step(function)))
        .collect();
    if !fits.contains(&true) {
        return Vec::new();
    }
    let rows = trace.rows.python.iter().filter(|row| fits.get(row.name as usize) == Some(&true));
    let mut marks: Vec<Mark> = rows.map(|row| Mark { name: row.name, start: row.start, end: row.end() }).collect();
    marks.sort_by_key(|mark| mark.start);
    marks
}

/// Fewest repetitions that count as steps.
const LEAST_PERIODS: usize = 3;
/// Share of kernels that must be the same one period later.
const SAME: f64 = 0.9;

/// Takes the longest repeating sequence of kernels for a step. Low confidence.
fn periodic(trace: &Trace) -> Option<FoundSteps> {
    let device = trace.rows.gpu.first()?.device;
    let kernels: Vec<&GpuRow> =
        trace.rows.gpu.iter().filter(|row| row.device == device && row.kind == GpuKind::Kernel).collect();
    let mut places: HashMap<NameId, Vec<usize>> = HashMap::new();
    for (place, row) in kernels.iter().enumerate() {
        places.entry(row.name).or_default().push(place);
    }
    let mut anchors: Vec<(usize, &Vec<usize>)> = places
        .values()
        .filter(|places| places.len() >= LEAST_PERIODS)
        .filter_map(|places| Some((even_spacing(places)?, places)))
        .collect();
    // Longest period first; the earliest anchor begins the step.
    anchors.sort_by_key(|(period, places)| (std::cmp::Reverse(*period), places[0]));
    let same = |period: usize| {
        let pairs = kernels.iter().zip(&kernels[period..]);
        pairs.filter(|(a, b)| a.name == b.name).count() as f64 / (kernels.len() - period) as f64
    };
    let (_, places) = anchors.into_iter().take(50).find(|(period, _)| same(*period) >= SAME)?;
    let end = kernels.last()?.end();
    let item = |(i, place): (usize, &usize)| Found {
        name: format!("step {}", i + 1),
        start: kernels[*place].start,
        end: places.get(i + 1).map_or(end, |next| kernels[*next].start),
        complete: true,
    };
    let items: Vec<Found> = places.iter().enumerate().map(item).collect();
    Some(FoundSteps { method: "periodicity", confidence: Some(Confidence::Low), counted: items.len(), items })
}

/// The distance between places, if they all are about as far apart and more than one kernel lies between.
fn even_spacing(places: &[usize]) -> Option<usize> {
    let mut apart: Vec<usize> = places.windows(2).map(|pair| pair[1] - pair[0]).collect();
    apart.sort_unstable();
    let middle = apart[apart.len() / 2];
    let tolerance = middle / 50;
    (middle > 1 && apart[0] + tolerance >= middle && apart[apart.len() - 1] <= middle + tolerance).then_some(middle)
}
