// SPDX-License-Identifier: Apache-2.0
//! Where a device's time went, so that it adds up.
//!
//! Streams overlap: summing durations counts time twice. All figures are unions of intervals. Work is compute
//! (kernels and fills), communication (kernels the rules call so) or copies; *exposed* is what no compute hides
//! (for copies: neither compute nor communication). Then, to the nanosecond,
//! `span = compute + exposed communication + exposed copies + idle`.

use crate::trace::rows::{GpuKind, GpuRow};
use serde::{Deserialize, Serialize};

/// The kinds of work that the account separates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Compute,
    Communication,
    Copy,
}

/// A device's time, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// From the first event's start to the last one's end.
    pub span_ns: u64,
    /// Something ran, on any stream.
    pub busy_ns: u64,
    /// Nothing ran.
    pub idle_ns: u64,
    /// Kernels other than communication, and fills, ran.
    pub compute_ns: u64,
    /// Communication kernels ran.
    pub communication_ns: u64,
    /// Copies ran.
    pub copy_ns: u64,
    /// Communication ran and no compute.
    pub exposed_communication_ns: u64,
    /// Copies ran, neither compute nor communication.
    pub exposed_copy_ns: u64,
}

impl Account {
    /// Whether the parts add up to the span.
    pub fn adds_up(&self) -> bool {
        let work = self.compute_ns + self.exposed_communication_ns + self.exposed_copy_ns;
        work == self.busy_ns && work + self.idle_ns == self.span_ns
    }
}

/// The length of a union of intervals, which must be added ordered by start.
#[derive(Debug, Clone, Copy)]
struct Union {
    end: i64,
    length: u64,
}

impl Union {
    const EMPTY: Self = Self { end: i64::MIN, length: 0 };

    #[inline]
    fn add(&mut self, start: i64, end: i64) {
        if end > self.end {
            self.length += end.abs_diff(start.max(self.end));
            self.end = end;
        }
    }
}

/// The account of events ordered by start, each cut to `window` when there is one.
pub(crate) fn account<'a>(events: impl Iterator<Item = (&'a GpuRow, Work)>, window: Option<(i64, i64)>) -> Account {
    let [mut all, mut compute, mut communication, mut copy, mut visible] = [Union::EMPTY; 5];
    let mut bounds: Option<(i64, i64)> = None;
    for (row, work) in events {
        let (mut start, mut end) = (row.start, row.end());
        if let Some((from, to)) = window {
            (start, end) = (start.max(from), end.min(to));
            if start > end || (start == end && row.dur > 0) {
                continue;
            }
        }
        bounds = Some(bounds.map_or((start, end), |(a, b)| (a.min(start), b.max(end))));
        all.add(start, end);
        match work {
            Work::Compute => {
                compute.add(start, end);
                visible.add(start, end);
            }
            Work::Communication => {
                communication.add(start, end);
                visible.add(start, end);
            }
            Work::Copy => copy.add(start, end),
        }
    }
    let span_ns = bounds.map_or(0, |(a, b)| b.abs_diff(a));
    Account {
        span_ns,
        busy_ns: all.length,
        idle_ns: span_ns - all.length,
        compute_ns: compute.length,
        communication_ns: communication.length,
        copy_ns: copy.length,
        exposed_communication_ns: visible.length - compute.length,
        exposed_copy_ns: all.length - visible.length,
    }
}

/// What an event is, given whether the rules call it communication.
pub(crate) fn work(row: &GpuRow, communication: bool) -> Work {
    match row.kind {
        GpuKind::Copy => Work::Copy,
        GpuKind::Kernel if communication => Work::Communication,
        GpuKind::Kernel | GpuKind::Fill => Work::Compute,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::rows::NONE;

    fn row(start: i64, end: i64) -> GpuRow {
        GpuRow {
            start,
            dur: end - start,
            correlation: NONE,
            external: NONE,
            bytes: 0,
            name: 0,
            device: 0,
            stream: 0,
            graph: 0,
            kind: GpuKind::Kernel,
        }
    }

    #[test]
    fn streams_overlap_and_parts_add_up() {
        let events = [
            (row(0, 100), Work::Compute),
            (row(50, 150), Work::Communication), // 50 exposed
            (row(60, 90), Work::Compute),
            (row(140, 170), Work::Copy), // 20 exposed
            (row(200, 210), Work::Copy), // 10 exposed
            (row(205, 205), Work::Compute),
        ];
        let a = account(events.iter().map(|(r, w)| (r, *w)), None);
        assert_eq!((a.span_ns, a.busy_ns, a.idle_ns), (210, 180, 30));
        assert_eq!((a.compute_ns, a.communication_ns, a.copy_ns), (100, 100, 40));
        assert_eq!((a.exposed_communication_ns, a.exposed_copy_ns), (50, 30));
        assert!(a.adds_up());
        let cut = account(events.iter().map(|(r, w)| (r, *w)), Some((80, 160)));
        assert_eq!((cut.span_ns, cut.busy_ns, cut.compute_ns), (80, 80, 20));
        assert!(cut.adds_up());
    }

    #[test]
    fn nothing_is_nothing() {
        assert_eq!(account(std::iter::empty(), None), Account::default());
    }
}
