// SPDX-License-Identifier: Apache-2.0
//! Sums of every second of a run that has ended, kept in memory by who asks often.
//!
//! Summing the calls of a run by stack looks at every call. Whoever asks again and again, as a server does, looks once and
//! then sums seconds; only the broken seconds at both ends of a part are read again. The answers are the same.

use super::read::Raw;
use crate::hash::FastMap;
use crate::{Limits, Reader, Result};

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;
/// Sums kept at most: 64 bytes each. A run with more is read anew for each question.
const MOST: usize = 4 << 20;

/// From when to when; `None` to the end.
type Piece = (u64, Option<u64>);

/// Sums of calls and of times off the CPU, by the second in which they began and their context.
#[derive(Debug, Default)]
pub struct StackIndex {
    pub(super) calls: Seconds,
    pub(super) off: Seconds,
}

/// One table's sums.
#[derive(Debug, Default)]
pub(super) struct Seconds {
    seconds: Vec<FastMap<i64, Raw>>,
    all: FastMap<i64, Raw>,
    kept: usize,
}

impl Seconds {
    /// Whether there was room.
    fn add(&mut self, start: u64, context: i64, row: Raw) -> bool {
        let Ok(second) = usize::try_from(start / SECOND) else { return false };
        if second >= self.seconds.len() {
            if second >= MOST {
                return false;
            }
            self.seconds.resize_with(second + 1, FastMap::default);
        }
        let of = self.seconds[second].entry(context);
        if matches!(of, std::collections::hash_map::Entry::Vacant(_)) {
            self.kept += 1;
        }
        of.or_default().add(row);
        self.all.entry(context).or_default().add(row);
        self.kept <= MOST
    }

    /// Sums of the whole seconds of a part, and what is left of it at both ends.
    pub(super) fn sum(&self, from: u64, to: Option<u64>) -> (FastMap<i64, Raw>, Vec<Piece>) {
        if from == 0 && to.is_none() {
            return (self.all.clone(), Vec::new());
        }
        let (first, end) = (from.div_ceil(SECOND), to.map(|to| to / SECOND));
        if end.is_some_and(|end| first >= end) {
            return (FastMap::default(), vec![(from, to)]);
        }
        let mut rest = Vec::new();
        if from < first * SECOND {
            rest.push((from, Some(first * SECOND)));
        }
        if let (Some(to), Some(end)) = (to, end)
            && end * SECOND < to
        {
            rest.push((end * SECOND, Some(to)));
        }
        let mut sums: FastMap<i64, Raw> = FastMap::default();
        let place = |second: u64| usize::try_from(second).unwrap_or(usize::MAX).min(self.seconds.len());
        let whole = place(first)..end.map_or(self.seconds.len(), place).max(place(first));
        for (context, raw) in self.seconds[whole].iter().flatten() {
            sums.entry(*context).or_default().add(*raw);
        }
        (sums, rest)
    }
}

impl Reader {
    /// Sums up every second; `None` where that would take too much memory. Of a run that is still written it would soon be
    /// wrong.
    pub fn stack_index(&self, limits: &Limits) -> Result<Option<StackIndex>> {
        let mut index = StackIndex::default();
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(ns: u64) -> Raw {
        Raw { calls: 1, total_ns: ns, max_ns: ns, arg0: 0 }
    }

    #[test]
    fn whole_seconds_are_summed_and_broken_ones_left() {
        let mut seconds = Seconds::default();
        for (start, ns) in [(0, 1), (999_999_999, 2), (1_000_000_000, 4), (2_500_000_000, 8), (4_000_000_000, 16)] {
            assert!(seconds.add(start, 7, one(ns)));
        }
        let total = |from, to| {
            let (sums, rest) = seconds.sum(from, to);
            (sums.get(&7).map_or(0, |raw| raw.total_ns), rest)
        };
        assert_eq!(total(0, None), (31, vec![]));
        assert_eq!(total(1, None), (28, vec![(1, Some(SECOND))]));
        assert_eq!(total(SECOND, Some(3 * SECOND)), (12, vec![]));
        assert_eq!(
            total(SECOND / 2, Some(SECOND + 1)),
            (0, vec![(SECOND / 2, Some(SECOND)), (SECOND, Some(SECOND + 1))])
        );
        assert_eq!(total(SECOND / 2, Some(SECOND / 2 + 9)), (0, vec![(SECOND / 2, Some(SECOND / 2 + 9))]));
        assert_eq!(total(9 * SECOND, Some(99 * SECOND)), (0, vec![]));
    }
}
