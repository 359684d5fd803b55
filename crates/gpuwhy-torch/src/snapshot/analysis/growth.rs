// SPDX-License-Identifier: Apache-2.0
//! Finds memory growth: lines whose allocations survive from every step to the end of the recording.

use super::holders::{Holder, Holders};
use crate::snapshot::hash::FastMap;
use crate::snapshot::model::Snapshot;
use crate::snapshot::replay::{Account, NEVER};
use crate::snapshot::report::{Category, Row};
use crate::snapshot::rows::{Action, Entry, grow, total};
use std::borrow::Cow;

/// Growth below this is not worth a finding.
const AT_LEAST: u64 = 1 << 20;
/// Fewest steps for a judgement: the first makes optimizer state, the last is still running.
const MIN_STEPS: usize = 4;
/// Parts an unmarked recording is cut into, and the entries it must have for that.
const PARTS: usize = 10;
/// More steps than this are grouped.
const MAX_STEPS: usize = 64;
const MIN_ENTRIES: usize = 500;

/// A line that keeps what it allocates.
#[derive(Debug)]
pub(super) struct Growth {
    /// `bytes` and `count` of all that survived.
    pub(super) row: Row,
    /// Steps (or parts of the recording) without the first and last, and in how many of them it kept something.
    pub(super) steps: usize,
    pub(super) in_steps: usize,
    /// Median of the bytes kept in one of them.
    pub(super) each: u64,
    /// Steps are annotated; otherwise they are equal parts of the recording.
    pub(super) annotated: bool,
    /// How many annotated steps are grouped into one.
    pub(super) stride: usize,
}

/// The starts of steps as entry indices, and whether they come from annotations.
fn step_starts(snapshot: &Snapshot, device: u32, entries: &[Entry]) -> Option<(Vec<usize>, bool)> {
    let mut groups: FastMap<Cow<'_, str>, Vec<u64>> = FastMap::default();
    for annotation in snapshot.annotations.iter().filter(|a| a.start && a.device == device) {
        let name = snapshot.text(annotation.name);
        let name = if name.starts_with("ProfilerStep#") { Cow::Borrowed("ProfilerStep#") } else { name };
        groups.entry(name).or_default().push(annotation.time_us);
    }
    let ladder = |name: &str| match name {
        "ProfilerStep#" => 2,
        name if name.starts_with("Optimizer.step#") => 1,
        _ => 0,
    };
    let best = groups
        .into_iter()
        .filter(|(_, times)| times.len() >= MIN_STEPS)
        .max_by_key(|(name, times)| (ladder(name), times.len(), std::cmp::Reverse(name.to_string())));
    if let Some((_, mut times)) = best {
        times.sort_unstable();
        let starts = times.iter().map(|time| entries.partition_point(|e| e.time_us < *time)).collect();
        return Some((starts, true));
    }
    (entries.len() >= MIN_ENTRIES).then(|| ((0..PARTS).map(|part| entries.len() * part / PARTS).collect(), false))
}

/// Lines that grow, most bytes first.
pub(super) fn find(snapshot: &Snapshot, device: u32, account: &Account, holders: &mut Holders<'_>) -> Vec<Growth> {
    let entries = snapshot.trace(device);
    let Some((starts, annotated)) = step_starts(snapshot, device, entries) else { return Vec::new() };
    if !annotated && !mostly_freed(account, entries) {
        return Vec::new();
    }
    let stride = starts.len().div_ceil(MAX_STEPS);
    let starts: Vec<usize> = starts.into_iter().step_by(stride).collect();
    let steps = starts.len() - 2;
    let mut kept: FastMap<Holder, (Vec<u64>, u64, u64)> = FastMap::default();
    for i in account.live_after(entries, entries.len()) {
        let group = kept.entry(holders.of_entry(i)).or_insert_with(|| (vec![0; steps], 0, 0));
        grow(&mut group.1, entries[i].size);
        group.2 += 1;
        // The first step makes what stays (optimizer state, caches), the last may still be using it.
        let step = starts.partition_point(|start| *start <= i);
        if let Some(bytes) = step.checked_sub(2).and_then(|step| group.0.get_mut(step)) {
            grow(bytes, entries[i].size);
        }
    }
    let mut found: Vec<Growth> = Vec::new();
    for (row, mut by_step) in by_line(kept, holders) {
        let in_steps = by_step.iter().filter(|b| **b > 0).count();
        let grown = total(by_step.iter().copied());
        by_step.sort_unstable();
        let each = by_step[by_step.len() / 2];
        let lasting = matches!(row.category, Category::Parameters | Category::OptimizerState);
        if grown < AT_LEAST || in_steps * 5 < steps * 4 || (lasting && !annotated) {
            continue;
        }
        found.push(Growth { row, steps, in_steps, each, annotated, stride });
    }
    found.sort_by(|a, b| b.row.bytes.cmp(&a.row.bytes).then_with(|| a.row.file.cmp(&b.row.file)));
    found
}

/// Sums up what one line keeps, over all stacks.
fn by_line(kept: FastMap<Holder, (Vec<u64>, u64, u64)>, holders: &mut Holders<'_>) -> Vec<(Row, Vec<u64>)> {
    let mut lines: Vec<(Row, Vec<u64>)> = kept
        .into_iter()
        .map(|(holder, (by_step, bytes, count))| (Row { bytes, count, ..holders.row(holder) }, by_step))
        .collect();
    let line = |row: &Row| (row.file.clone(), row.line, row.function.clone(), row.category);
    lines.sort_by_cached_key(|(row, _)| (line(row), row.op.clone()));
    lines.dedup_by(|(next, steps), (first, sum)| {
        let same = line(next) == line(first);
        if same {
            grow(&mut first.bytes, next.bytes);
            first.count += next.count;
            sum.iter_mut().zip(steps.iter()).for_each(|(sum, more)| grow(sum, *more));
        }
        same
    });
    lines
}

/// Whether it is work rather than loading: most allocated memory was freed again.
fn mostly_freed(account: &Account, entries: &[Entry]) -> bool {
    let allocs = entries.iter().filter(|e| e.action == Action::Alloc).count();
    let freed = account.freed_at.iter().filter(|at| **at != NEVER).count();
    allocs > 0 && freed * 2 >= allocs
}
