// SPDX-License-Identifier: Apache-2.0
//! Exact sums over all outermost calls: per second for the run file, per op for the live table. Pure.
//!
//! A call belongs to the second in which it *ended*: that is when it is delivered, so a second is final
//! soon after it is over, and a call of an hour does not change the past. Inner calls are left out, since
//! the outermost call's time contains theirs.

use crate::hash::FastMap;
use gpuwhy_model::{Call, Histogram, OpId};

/// Nanoseconds in a second.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Sums waiting to be stored are bounded: a histogram takes 8 kB, so this is 64 MB at most.
pub(crate) const MAX_CELLS: usize = 8_192;

/// Sums over some calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpTotals {
    /// How many calls.
    pub calls: u64,
    /// Calls that returned something other than 0. An unfinished call does not count.
    pub errors: u64,
    /// Sum of their durations, nanoseconds.
    pub total_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Sum of their sizes, for ops with a size; sizes of 2^63 or more are ignored.
    pub bytes: u64,
    /// Their durations.
    pub histogram: Histogram,
}

impl OpTotals {
    fn add(&mut self, call: &Call, bytes: u64) {
        let calls = call.calls();
        self.calls += calls;
        self.errors += if call.ret != 0 && !call.flags.unfinished { calls } else { 0 };
        self.total_ns = self.total_ns.saturating_add(call.duration_ns.saturating_mul(calls));
        self.max_ns = self.max_ns.max(call.duration_ns);
        self.bytes = self.bytes.saturating_add(bytes.saturating_mul(calls));
        self.histogram.record_many(call.duration_ns, calls);
    }

    /// Adds another's sums to these.
    pub fn merge(&mut self, other: &Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.errors = self.errors.saturating_add(other.errors);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.histogram.merge(&other.histogram);
    }
}

/// Key of the sums of a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CellKey {
    /// Whole seconds since the run began.
    pub second: u64,
    /// Process.
    pub pid: u32,
    /// Function.
    pub op: OpId,
    /// Device, where known.
    pub device: Option<u8>,
}

/// Sums up calls as they pass.
#[derive(Debug)]
pub struct Aggregator {
    /// Start of the run, `CLOCK_MONOTONIC` nanoseconds.
    origin_ns: u64,
    cells: FastMap<CellKey, OpTotals>,
    totals: Vec<Option<Box<OpTotals>>>,
    newest_second: u64,
}

impl Aggregator {
    /// Starts empty; `origin_ns` is the start of the run on `CLOCK_MONOTONIC`.
    pub fn new(origin_ns: u64) -> Self {
        Self { origin_ns, cells: FastMap::default(), totals: Vec::new(), newest_second: 0 }
    }

    /// Counts a call. `false` when there was no room for its second, which leaves it out of the seconds
    /// but not of [`Aggregator::totals`].
    pub fn add(&mut self, call: &Call) -> bool {
        let second = call.start_ns.saturating_add(call.duration_ns).saturating_sub(self.origin_ns) / SECOND;
        self.newest_second = self.newest_second.max(second);
        if call.flags.inner {
            return true;
        }
        let bytes = bytes_of(call);
        let op = usize::from(call.op.0);
        if self.totals.len() <= op {
            self.totals.resize(op + 1, None);
        }
        self.totals[op].get_or_insert_default().add(call, bytes);

        let key = CellKey { second, pid: call.pid, op: call.op, device: call.device };
        if self.cells.len() >= MAX_CELLS && !self.cells.contains_key(&key) {
            return false;
        }
        self.cells.entry(key).or_default().add(call, bytes);
        true
    }

    /// Sums of the whole run so far, by function.
    pub fn totals(&self) -> impl Iterator<Item = (OpId, &OpTotals)> {
        (0u16..).zip(&self.totals).filter_map(|(id, totals)| Some((OpId(id), totals.as_deref()?)))
    }

    /// The sums that have not been stored yet.
    pub fn cells(&self) -> impl Iterator<Item = (&CellKey, &OpTotals)> {
        self.cells.iter()
    }

    /// How many sums wait to be stored.
    pub fn waiting(&self) -> usize {
        self.cells.len()
    }

    /// The longest call of a function so far, nanoseconds.
    pub fn longest(&self, op: OpId) -> u64 {
        self.totals.get(usize::from(op.0)).and_then(Option::as_deref).map_or(0, |totals| totals.max_ns)
    }

    /// Forgets the waiting sums, because they are stored now.
    pub fn stored(&mut self) {
        self.cells.clear();
    }

    /// The newest second any call ended in.
    pub fn newest_second(&self) -> u64 {
        self.newest_second
    }
}

fn bytes_of(call: &Call) -> u64 {
    let is_size = call.op.get().is_some_and(|op| op.decode.arg0_is_bytes());
    call.arg0.filter(|n| is_size && *n <= i64::MAX as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwhy_model::{CallFlags, ops};

    fn call(start_ns: u64, duration_ns: u64) -> Call {
        Call {
            start_ns,
            duration_ns,
            pid: 1,
            tid: 2,
            op: ops::by_function("cudaMalloc").unwrap().id,
            device: None,
            stream: None,
            arg0: Some(100),
            arg1: None,
            ret: 0,
            flags: CallFlags::default(),
            weight: 1,
            stack: None,
        }
    }

    #[test]
    fn a_call_belongs_to_the_second_it_ended_in() {
        let mut sums = Aggregator::new(5 * SECOND);
        sums.add(&call(5 * SECOND + 1, 3 * SECOND));
        assert_eq!(sums.cells().next().unwrap().0.second, 3);
        assert_eq!(sums.newest_second(), 3);
    }

    #[test]
    fn inner_calls_are_not_counted_and_unfinished_ones_are_no_errors() {
        let mut sums = Aggregator::new(0);
        sums.add(&Call { flags: CallFlags { inner: true, unfinished: false }, ..call(1, 1) });
        sums.add(&Call { flags: CallFlags { inner: false, unfinished: true }, ret: 7, ..call(1, 1) });
        sums.add(&Call { ret: -3, arg0: Some(u64::MAX), ..call(1, 1) });
        let (_, totals) = sums.totals().next().unwrap();
        assert_eq!((totals.calls, totals.errors, totals.bytes), (2, 1, 100));
    }

    #[test]
    fn a_call_that_stands_for_others_counts_as_all_of_them() {
        let mut sums = Aggregator::new(0);
        sums.add(&Call { weight: 5, ret: 2, ..call(1, 1_000) });
        sums.add(&Call { weight: 0, ..call(1, 7) });
        let (_, totals) = sums.totals().next().unwrap();
        assert_eq!((totals.calls, totals.errors, totals.bytes), (6, 5, 600));
        assert_eq!((totals.total_ns, totals.max_ns, totals.histogram.total()), (5_007, 1_000, 6));
    }

    #[test]
    fn waiting_sums_are_bounded_and_what_does_not_fit_is_told() {
        let mut sums = Aggregator::new(0);
        let refused = (0..MAX_CELLS as u32 + 10).filter(|pid| !sums.add(&Call { pid: *pid, ..call(1, 1) })).count();
        assert_eq!((refused, sums.waiting()), (10, MAX_CELLS));
        assert_eq!(sums.totals().next().unwrap().1.calls, MAX_CELLS as u64 + 10);
    }
}
