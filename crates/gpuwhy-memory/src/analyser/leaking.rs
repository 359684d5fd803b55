// SPDX-License-Identifier: Apache-2.0
//! Lines that grow: which leak, how fast, since when, and when that fills memory.

use super::Analyser;
use crate::leaks::{LeakFit, LineSeries, Verdict, judge};
use crate::lines::{LineKey, Lines};
use crate::report::{Growth, Leak, Report};
use crate::space::{Space, SpaceKey};
use crate::steps::Certainty;
use std::collections::BTreeMap;

/// Even growth over this many checks is certain.
const EVEN_CHECKS: usize = 24;
/// A process at work frees at least one in this many allocations, or launches at least this often in a step.
const FREED_PART: u64 = 4;
const WORK_LAUNCHES: u64 = 4;

impl Analyser {
    /// Judges all lines.
    pub(super) fn judge_all(&self, lines: &Lines, report: &mut Report) {
        for (key, space) in self.spaces.iter().filter(|(key, space)| self.works(**key, space)) {
            for series in series_by_line(space, lines, space.grid.at.len()).into_values() {
                match judge(&series.sum, &space.grid, space.peak.0) {
                    Verdict::Leak(fit) => report.leaks.push(self.leak(*key, space, &series, &fit, lines)),
                    Verdict::Grew(kind, settled) => {
                        let at = settled.and_then(|check| space.grid.at.get(check)).copied();
                        report.growths.push(Growth {
                            pid: key.pid,
                            device: key.device(),
                            line: lines.line(series.stack),
                            kind,
                            bytes: series.sum.live.iter().copied().max().unwrap_or(0),
                            settled_ns: at,
                            settled_step: at.and_then(|at| self.step_at(key.pid, at)),
                        });
                    }
                    Verdict::Fine => {}
                }
            }
        }
        self.drop_nameless(&mut report.leaks);
        report.leaks.sort_by(|a, b| b.bytes_per_second.total_cmp(&a.bytes_per_second));
        report.growths.sort_by_key(|growth| std::cmp::Reverse(growth.bytes));
        self.forecast(&mut report.leaks);
    }

    /// Under a tight budget, small tensors of a leak have no line from some time on. A leak without a line that starts then
    /// belongs to the leaks with a line, if those are larger.
    fn drop_nameless(&self, leaks: &mut Vec<Leak>) {
        let mut named: BTreeMap<(u32, Option<u32>), f64> = BTreeMap::new();
        for leak in leaks.iter().filter(|leak| leak.line.is_some()) {
            *named.entry((leak.pid, leak.device)).or_default() += leak.bytes_per_second;
        }
        leaks.retain(|leak| {
            let step = self.steps.get(&leak.pid).map_or(0, |steps| steps.step_ns);
            let thinned = self.backward.thinned_from(leak.pid);
            let begins_then = thinned.is_some_and(|at| leak.onset_ns.saturating_add(step.saturating_mul(2)) >= at);
            let others = named.get(&(leak.pid, leak.device)).copied().unwrap_or(0.0);
            leak.stack_id.is_some() || !begins_then || others <= leak.bytes_per_second
        });
    }

    /// Whether the process works rather than loads: it frees some of its allocations, or launches much in a step. Loading
    /// keeps everything it allocates and is not a leak.
    fn works(&self, key: SpaceKey, space: &Space) -> bool {
        let (allocs, frees) = space.between_checks;
        let launches = self.steps.get(&key.pid).map_or(0, |steps| steps.launches);
        frees.saturating_mul(FREED_PART) >= allocs || launches >= WORK_LAUNCHES
    }

    fn leak(&self, key: SpaceKey, space: &Space, series: &LineMemory, fit: &LeakFit, lines: &Lines) -> Leak {
        let certainty = self.steps.get(&key.pid).map_or(Certainty::None, |steps| steps.certainty);
        let stride = space.grid.stride.max(1) as f64;
        let per_step = |per_check: f64| (certainty != Certainty::None).then_some(per_check / stride);
        let sure = if fit.even && fit.checks >= EVEN_CHECKS { Certainty::High } else { Certainty::Medium };
        Leak {
            pid: key.pid,
            device: key.device(),
            line: lines.line(series.stack),
            function: lines.fact(series.stack).and_then(|fact| fact.function.clone()),
            stack_id: series.stack.map(u64::cast_signed),
            bytes_per_step: per_step(fit.per_check),
            bytes_per_second: fit.per_second,
            pieces_per_step: per_step(fit.pieces_per_check),
            piece_bytes: fit.piece_bytes,
            onset_ns: fit.onset_ns,
            onset_step: self.step_at(key.pid, fit.onset_ns),
            grown_bytes: fit.grown_bytes,
            last_look_ns: space.grid.at.last().copied().unwrap_or_default(),
            looks: fit.checks as u64,
            looks_with_growth: fit.keeping as u64,
            out_of_memory_in_ns: None,
            out_of_memory_in_steps: None,
            certainty: certainty.min(sure),
        }
    }

    /// Whether memory can no longer run out: it already has, or the process has ended.
    fn is_over(&self, leak: &Leak) -> bool {
        let ran_out = |key: SpaceKey| (key.pid, key.device()) == (leak.pid, leak.device);
        let ended = self.facts.processes.get(&leak.pid).and_then(|process| process.ended_ns);
        ended.is_some()
            || self.ooms.ends.contains_key(&leak.pid)
            || self.ooms.records().any(|record| ran_out(record.key))
    }

    /// Predicts when memory runs out: free memory of the device plus cached memory, divided by the rate of all leaks.
    fn forecast(&self, leaks: &mut [Leak]) {
        let mut rates: BTreeMap<(u32, Option<u32>), f64> = BTreeMap::new();
        for leak in leaks.iter() {
            *rates.entry((leak.pid, leak.device)).or_default() += leak.bytes_per_second;
        }
        for leak in leaks.iter_mut().filter(|leak| !self.is_over(leak)) {
            let torch = self.spaces.iter().find(|(key, _)| (key.pid, key.device()) == (leak.pid, leak.device));
            let Some((key, space)) = torch else { continue };
            // Not at the very end: the process may be gone by then. Checks end where reports do.
            let last = match self.facts.unreported_of(leak.pid) {
                None => space.grid.at.last().copied(),
                Some(_) => self.steps.get(&leak.pid).map(|steps| steps.active_ns.1),
            };
            let end = last.unwrap_or(self.facts.to_ns).min(self.facts.to_ns);
            let (Some(used), Some(total)) = self.gap.used_at(*key, end) else { continue };
            let cached = space.peak_reserved.0.max(space.reserved).saturating_sub(space.peak.0);
            let left = total.saturating_sub(used).saturating_add(cached) as f64;
            let rate = rates.get(&(leak.pid, leak.device)).copied().unwrap_or(0.0);
            if rate > 0.0 {
                let seconds = left / rate;
                leak.out_of_memory_in_ns = Some((seconds * 1e9).min(9e18) as u64);
                leak.out_of_memory_in_steps = leak
                    .bytes_per_step
                    .filter(|bytes| *bytes > 0.0)
                    .map(|bytes| (seconds * leak.bytes_per_second / bytes) as u64);
            }
        }
    }
}

/// A line's memory, and the stack that kept most of it.
struct LineMemory {
    sum: LineSeries,
    stack: Option<u64>,
    most: u64,
}

/// The series of all lines that held anything at a check.
fn series_by_line(space: &Space, lines: &Lines, checks: usize) -> BTreeMap<LineKey, LineMemory> {
    let mut all: BTreeMap<LineKey, LineMemory> = BTreeMap::new();
    for site in &space.sites {
        let live = site.series(checks);
        if live.iter().all(|bytes| *bytes == 0) {
            continue;
        }
        let kept: u64 = site.kept.iter().map(|piece| piece.1).sum();
        let one = all.entry(lines.key(site.stack)).or_insert_with(|| LineMemory {
            sum: LineSeries { live: vec![0; checks], kept: Vec::new() },
            stack: site.stack,
            most: 0,
        });
        one.sum.live.iter_mut().zip(live).for_each(|(sum, bytes)| *sum += bytes);
        one.sum.kept.extend(&site.kept);
        if kept > one.most {
            (one.most, one.stack) = (kept, site.stack);
        }
    }
    for one in all.values_mut() {
        one.sum.kept.sort_unstable();
    }
    all
}
