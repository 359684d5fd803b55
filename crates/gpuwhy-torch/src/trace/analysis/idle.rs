// SPDX-License-Identifier: Apache-2.0
//! What kept devices idle: what the thread that ended the gap was doing while the device waited.

use super::links::{Links, NO_ROW};
use super::names::Meaning;
use super::timeline::{Cause, Label, Query};
use crate::trace::intern::FastMap;
use crate::trace::rows::{GpuRow, NO_NAME, Rows, Span, SpanRow, ThreadId};

/// Kernels that were launched in time still start a few microseconds apart. Beyond this something else held the
/// device's queue: another stream, or the device itself.
const QUEUED_NS: i64 = 20_000;

/// A time range in which nothing ran on a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gap {
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) device: i32,
    /// The call that launched the work after it, or [`NO_ROW`].
    pub(crate) call: u32,
}

/// The gaps of events ordered by device and start.
pub(crate) fn gaps(gpu: &[GpuRow], links: &Links) -> Vec<Gap> {
    let mut gaps = Vec::new();
    let mut end: Option<(i32, i64)> = None;
    for (row, call) in gpu.iter().zip(&links.call) {
        match end {
            Some((device, end)) if device == row.device && row.start > end => {
                gaps.push(Gap { from: end, to: row.start, device, call: *call });
            }
            _ => {}
        }
        end = match end {
            Some((device, end)) if device == row.device => Some((device, end.max(row.end()))),
            _ => Some((row.device, row.end())),
        };
    }
    gaps
}

/// Idle time by device and label.
#[derive(Debug, Default)]
pub(crate) struct IdleTable {
    cells: FastMap<(i32, Label), Cell>,
    /// Idle time before this is warm-up.
    steady_from: i64,
}

/// Idle time of one cause.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cell {
    pub(crate) ns: u64,
    pub(crate) steady_ns: u64,
    /// How many times; a gap counts once per thread that explains a part.
    pub(crate) count: u64,
    /// The last gap counted, plus one.
    last: u32,
}

impl IdleTable {
    pub(crate) fn new(steady_from: i64) -> Self {
        Self { steady_from, ..Self::default() }
    }

    pub(crate) fn add(&mut self, device: i32, gap: u32, label: Label, from: i64, to: i64) {
        let cell = self.cells.entry((device, label)).or_default();
        cell.ns += to.abs_diff(from);
        let steady = from.max(self.steady_from);
        cell.steady_ns += if to > steady { to.abs_diff(steady) } else { 0 };
        cell.count += u64::from(cell.last != gap + 1);
        cell.last = gap + 1;
    }

    /// Adds another table's time; the two are about different gaps or different parts of them.
    pub(crate) fn absorb(&mut self, other: Self) {
        for (key, more) in other.cells {
            let cell = self.cells.entry(key).or_default();
            cell.ns += more.ns;
            cell.steady_ns += more.steady_ns;
            cell.count += more.count;
        }
    }

    pub(crate) fn into_cells(self) -> impl Iterator<Item = ((i32, Label), Cell)> {
        self.cells.into_iter()
    }
}

/// Splits gaps in two: time explained by the launch itself goes to the table; the rest is returned as queries to the
/// launching threads, by thread and ordered by start.
pub(crate) fn plan(
    gaps: &[Gap],
    rows: &Rows,
    meanings: &[Meaning],
    table: &mut IdleTable,
) -> FastMap<ThreadId, Vec<Query>> {
    let overhead = disjoint(&rows.overhead);
    let mut queries: FastMap<ThreadId, Vec<Query>> = FastMap::default();
    for (number, gap) in gaps.iter().enumerate() {
        let number = number as u32;
        if gap.call == NO_ROW {
            table.add(gap.device, number, Label::UNKNOWN, gap.from, gap.to);
            continue;
        }
        let call = &rows.calls[gap.call as usize];
        let returned = call.end().clamp(gap.from, gap.to);
        if returned < gap.to {
            let queued = returned == gap.from && gap.to - gap.from > QUEUED_NS;
            let cause = if queued { Cause::Queued } else { Cause::Launch };
            let label = Label { cause, name: call.name, line: NO_NAME };
            table.add(gap.device, number, label, returned, gap.to);
        }
        let asked = queries.entry(call.thread).or_default();
        let mut from = gap.from;
        let first = overhead.partition_point(|o| o.end() <= from);
        for cost in overhead[first..].iter().take_while(|o| o.start < returned) {
            let (cost_from, cost_to) = (cost.start.max(from), cost.end().min(returned));
            if from < cost_from {
                asked.push(Query { from, to: cost_from, gap: number });
            }
            if cost_from < cost_to {
                let loads = meanings.get(cost.name as usize).is_some_and(|m| m.is(Meaning::LOADING));
                let cause = if loads { Cause::Loading } else { Cause::Profiler };
                let label = Label { cause, name: cost.name, line: NO_NAME };
                table.add(gap.device, number, label, cost_from, cost_to);
                from = cost_to;
            }
        }
        if from < returned {
            asked.push(Query { from, to: returned, gap: number });
        }
    }
    for asked in queries.values_mut() {
        asked.sort_by_key(|query| query.from);
    }
    queries
}

/// The profiler's own costs, which belong to no thread, cut so that they do not overlap.
fn disjoint(overhead: &[SpanRow]) -> Vec<SpanRow> {
    let mut sorted = overhead.to_vec();
    sorted.sort_by_key(|row| row.start);
    let mut out: Vec<SpanRow> = Vec::with_capacity(sorted.len());
    for mut row in sorted {
        let end = row.end();
        if let Some(last) = out.last() {
            row.start = row.start.max(last.end());
        }
        if row.start < end {
            row.dur = end - row.start;
            out.push(row);
        }
    }
    out
}
