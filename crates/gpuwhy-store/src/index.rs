// SPDX-License-Identifier: Apache-2.0
//! Time index: sums over short time slots of an ended run, kept in memory by servers.
//!
//! Summing calls by stack, or finding the longest, reads every row of a time range. A server that gets many requests
//! reads the rows once and then adds up slots; only the partial slots at both ends of a range are read again. The
//! answers are the same.

use crate::hash::FastMap;
use crate::{Limits, Reader, Result, Value};
use std::collections::hash_map::Entry;
use std::ops::ControlFlow;

/// Slots of a run, unless they would become too long; the shortest and the longest they are, ns.
const SLOTS: u64 = 20_000;
const SHORTEST: u64 = 10_000_000;
const LONGEST: u64 = 1_000_000_000;
/// Sums kept at most: about 100 bytes each. A run with more is read anew for each question.
const MOST: usize = 1 << 20;

/// From when to when; `None` to the end.
pub(crate) type Piece = (u64, Option<u64>);

/// Sums of one context.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Raw {
    pub(crate) calls: u64,
    pub(crate) total_ns: u64,
    pub(crate) max_ns: u64,
    /// Of `arg0`, whatever it is.
    pub(crate) arg0: u64,
}

impl Raw {
    pub(crate) fn add(&mut self, other: Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.arg0 = self.arg0.saturating_add(other.arg0);
    }
}

/// Sums of calls and of times off the CPU, by the slot in which they began and their context.
#[derive(Debug)]
pub struct TimeIndex {
    pub(crate) calls: Slots,
    pub(crate) off: Slots,
}

/// One table's sums.
#[derive(Debug)]
pub(crate) struct Slots {
    /// How long a slot is, ns.
    width: u64,
    /// Number of slots; rows that start after the end of the run are invalid.
    most: usize,
    slots: Vec<FastMap<i64, Raw>>,
    all: FastMap<i64, Raw>,
    kept: usize,
}

impl Slots {
    fn new(width: u64, run_ns: u64) -> Self {
        let most = usize::try_from(run_ns / width).unwrap_or(usize::MAX).saturating_add(2);
        Self { width, most, slots: Vec::new(), all: FastMap::default(), kept: 0 }
    }

    /// Whether there was room.
    fn add(&mut self, start: u64, context: i64, row: Raw) -> bool {
        let Ok(slot) = usize::try_from(start / self.width) else { return false };
        if slot >= self.slots.len() {
            if slot >= self.most.min(MOST) {
                return false;
            }
            self.slots.resize_with(slot + 1, FastMap::default);
        }
        let of = self.slots[slot].entry(context);
        if matches!(of, Entry::Vacant(_)) {
            self.kept += 1;
        }
        of.or_default().add(row);
        self.all.entry(context).or_default().add(row);
        self.kept <= MOST
    }

    /// Sums of the whole slots of a range, and the partial slots at both ends.
    pub(crate) fn sum(&self, from: u64, to: Option<u64>) -> (FastMap<i64, Raw>, Vec<Piece>) {
        if from == 0 && to.is_none() {
            return (self.all.clone(), Vec::new());
        }
        let width = self.width;
        let (first, end) = (from.div_ceil(width), to.map(|to| to / width));
        if end.is_some_and(|end| first >= end) {
            return (FastMap::default(), vec![(from, to)]);
        }
        let mut rest = Vec::new();
        if from < first * width {
            rest.push((from, Some(first * width)));
        }
        if let (Some(to), Some(end)) = (to, end)
            && end * width < to
        {
            rest.push((end * width, Some(to)));
        }
        let mut sums: FastMap<i64, Raw> = FastMap::default();
        let whole = self.place(first)..end.map_or(self.slots.len(), |end| self.place(end)).max(self.place(first));
        for (context, raw) in self.slots[whole].iter().flatten() {
            sums.entry(*context).or_default().add(*raw);
        }
        (sums, rest)
    }

    fn place(&self, slot: u64) -> usize {
        usize::try_from(slot).unwrap_or(usize::MAX).min(self.slots.len())
    }

    /// Whole slots before a time that may have a row, of a wanted context, that reaches beyond it.
    pub(crate) fn reaching(&self, moment: u64, wanted: impl Fn(i64) -> bool) -> Vec<(u64, u64)> {
        let before = self.slots[..self.place(moment.div_ceil(self.width))].iter().enumerate();
        let span = |slot: usize| (slot as u64 * self.width, ((slot as u64 + 1) * self.width).min(moment));
        let reaches = |end: u64, sums: &FastMap<i64, Raw>| {
            sums.iter().any(|(context, raw)| end.saturating_add(raw.max_ns) > moment && wanted(*context))
        };
        before
            .map(|(slot, sums)| (span(slot), sums))
            .filter(|((_, end), sums)| reaches(*end, sums))
            .map(|(span, _)| span)
            .collect()
    }

    /// The slots that hold the `most` longest rows of a range, and a lower bound of their length. Rows that start
    /// before the range and reach into it count. `wanted` selects contexts.
    pub(crate) fn longest(&self, from: u64, to: u64, most: usize, wanted: impl Fn(i64) -> bool) -> (Vec<Piece>, u64) {
        // The longest row of each context in a whole slot is in the range, so the shortest of the `most` longest is a
        // lower bound. Rows of partial and earlier slots may be outside the range.
        let (mut found, mut inside): (Vec<(u64, usize)>, Vec<u64>) = (Vec::new(), Vec::new());
        let whole = self.place(from.div_ceil(self.width))..self.place(to / self.width);
        for (slot, sums) in self.slots[..self.place(to.div_ceil(self.width))].iter().enumerate() {
            let end = (slot as u64 + 1) * self.width;
            let reaching = sums.iter().filter(|(_, raw)| end.saturating_add(raw.max_ns) >= from);
            for (_, raw) in reaching.filter(|(context, _)| wanted(**context)) {
                found.push((raw.max_ns, slot));
                if whole.contains(&slot) {
                    inside.push(raw.max_ns);
                }
            }
        }
        inside.sort_unstable_by_key(|ns| std::cmp::Reverse(*ns));
        let least = inside.get(most.saturating_sub(1)).copied().unwrap_or(0);
        let mut slots: Vec<usize> = found.iter().filter(|(ns, _)| *ns >= least).map(|(_, slot)| *slot).collect();
        slots.sort_unstable();
        slots.dedup();
        let piece = |slot: &usize| (*slot as u64 * self.width, Some((*slot as u64 + 1) * self.width));
        (slots.iter().map(piece).collect(), least)
    }
}

impl Reader {
    /// Builds the index; `None` if it would need too much memory. Only for ended runs: others would soon make it stale.
    pub fn time_index(&self, limits: &Limits) -> Result<Option<TimeIndex>> {
        let run_ns = self.session()?.duration_ns;
        let width = (run_ns / SLOTS).clamp(SHORTEST, LONGEST);
        let mut index = TimeIndex { calls: Slots::new(width, run_ns), off: Slots::new(width, run_ns) };
        for (table, arg0, of) in [("call_", "arg0", &mut index.calls), ("off_", "NULL", &mut index.off)] {
            let mut fits = true;
            self.each_context(table, arg0, (0, None), limits, |start, context, row| {
                fits = fits && of.add(start, context, row);
                fits
            })?;
            if !fits {
                return Ok(None);
            }
        }
        Ok(Some(index))
    }

    /// Passes the time, context and sums of each row of a range to a function, until it stops.
    pub(crate) fn each_context(
        &self,
        table: &str,
        arg0: &str,
        (from, to): Piece,
        limits: &Limits,
        mut on_row: impl FnMut(u64, i64, Raw) -> bool,
    ) -> Result<()> {
        let bound = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let until = to.map(|to| format!(" AND start < {}", bound(to))).unwrap_or_default();
        let from = bound(from);
        let sql = format!("SELECT context, duration, weight, {arg0}, start FROM {table} WHERE start >= {from}{until}");
        self.query(&sql, limits, |_, row| {
            let number = |at: usize| if let Some(Value::Int(n)) = row.get(at) { Some(*n) } else { None };
            let unsigned = |at: usize| number(at).map_or(0, |n| n.max(0).cast_unsigned());
            let (duration, weight) = (unsigned(1), number(2).map_or(1, |n| n.max(0).cast_unsigned()));
            let Some(context) = number(0) else { return ControlFlow::Continue(()) };
            let raw = Raw {
                calls: weight,
                total_ns: duration.saturating_mul(weight),
                max_ns: duration,
                arg0: unsigned(3).saturating_mul(weight),
            };
            if on_row(unsigned(4), context, raw) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(())
    }

    /// Sums by context over a table's rows in a range; `table` is its name and the column summed as `arg0`.
    pub(crate) fn sum_contexts(
        &self,
        table: (&str, &str),
        (from, to): Piece,
        slots: Option<&Slots>,
        limits: &Limits,
    ) -> Result<FastMap<i64, Raw>> {
        let (mut sums, parts) = match slots {
            Some(slots) => slots.sum(from, to),
            None => (FastMap::default(), vec![(from, to)]),
        };
        for part in parts {
            self.each_context(table.0, table.1, part, limits, |_, context, row| {
                sums.entry(context).or_default().add(row);
                true
            })?;
        }
        Ok(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn one(ns: u64) -> Raw {
        Raw { calls: 1, total_ns: ns, max_ns: ns, arg0: 0 }
    }

    #[test]
    fn whole_slots_are_summed_and_broken_ones_left() {
        let mut slots = Slots::new(SECOND, 5 * SECOND);
        for (start, ns) in [(0, 1), (999_999_999, 2), (1_000_000_000, 4), (2_500_000_000, 8), (4_000_000_000, 16)] {
            assert!(slots.add(start, 7, one(ns)));
        }
        let total = |from, to| {
            let (sums, rest) = slots.sum(from, to);
            (sums.get(&7).map_or(0, |raw| raw.total_ns), rest)
        };
        assert_eq!(total(0, None), (31, vec![]));
        assert_eq!(total(1, None), (28, vec![(1, Some(SECOND))]));
        assert_eq!(total(SECOND, Some(3 * SECOND)), (12, vec![]));
        let both = vec![(SECOND / 2, Some(SECOND)), (2 * SECOND, Some(2 * SECOND + 1))];
        assert_eq!(total(SECOND / 2, Some(2 * SECOND + 1)), (4, both));
        assert_eq!(total(SECOND / 2, Some(SECOND + 1)), (0, vec![(SECOND / 2, Some(SECOND + 1))]), "no whole slot");
        assert_eq!(total(SECOND / 2, Some(SECOND / 2 + 9)), (0, vec![(SECOND / 2, Some(SECOND / 2 + 9))]));
        assert_eq!(total(9 * SECOND, Some(99 * SECOND)), (0, vec![]));
    }

    #[test]
    fn the_longest_are_in_few_slots_also_those_that_began_before() {
        let mut slots = Slots::new(10, 100);
        for (start, ns) in [(5, 100), (12, 3), (13, 4), (57, 8), (58, 2), (99, 50)] {
            assert!(slots.add(start, if ns == 50 { 9 } else { 7 }, one(ns)));
        }
        let (pieces, least) = slots.longest(50, 100, 2, |context| context == 7);
        assert_eq!((pieces, least), (vec![(0, Some(10)), (50, Some(60))], 0), "the call from 5 to 105 reaches into it");
        let (pieces, least) = slots.longest(50, 100, 1, |context| context == 7);
        assert_eq!((pieces, least), (vec![(0, Some(10)), (50, Some(60))], 8));
        let (pieces, least) = slots.longest(50, 100, 9, |_| true);
        assert_eq!((pieces.len(), least), (3, 0));
        let (pieces, least) = slots.longest(56, 59, 1, |_| true);
        assert_eq!((pieces, least), (vec![(0, Some(10)), (50, Some(60))], 0), "no slot is whole");
        assert!(!slots.add(200, 7, one(1)), "after the run's end");
    }
}
