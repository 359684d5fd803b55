// SPDX-License-Identifier: Apache-2.0
//! Rows that no commit has made durable yet. While all is well that is what the open transaction has, so that nothing
//! is lost when it is rolled back; while the disk fails it is what is kept of the run, within bounds.

use crate::aggregate::SECOND;
use gpuwhy_model::ops::{self, KernelOp};
use gpuwhy_model::thin::{self, SLOW_NS, Thinning};
use gpuwhy_model::{Call, CpuRun, MovedWait, OffCpu, OpId, TensorEvent};
use std::collections::BTreeMap;
use std::mem::size_of;

/// How much is kept while the disk fails, bytes.
pub(crate) const MOST_KEPT: usize = 64 << 20;
/// Rows for which memory is held on to in any case.
const SPARE_ROWS: usize = 8_192;
/// How rows are thinned before any is given up.
const THIN: Thinning = Thinning { longest: 1024, mix_stacks: true };

/// Rows and how many events they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Outermost calls and times off the CPU, by weight.
    pub(crate) events: u64,
    /// Of these, events represented by the weight of a similar row.
    pub(crate) thinned: u64,
}

impl Tally {
    /// Counts a call. A call inside another is stored but not counted as an event.
    #[inline]
    pub(crate) fn call(&mut self, call: &Call) {
        let calls = if call.flags.inner { 0 } else { call.calls() };
        self.events += calls;
        self.thinned += calls.saturating_sub(1);
    }

    pub(crate) fn of(calls: &[Call], offs: &[OffCpu]) -> Self {
        let mut tally = Self::default();
        calls.iter().for_each(|call| tally.call(call));
        for times in offs.iter().map(OffCpu::times) {
            tally.add(Self { events: times, thinned: times - 1 });
        }
        tally
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.events += other.events;
        self.thinned += other.thinned;
    }
}

/// What was dropped: events by second and op, and rows that are not events.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct GivenUp {
    pub(crate) events: BTreeMap<(u64, OpId), u64>,
    pub(crate) evidence: u64,
}

impl GivenUp {
    /// Counts a call; a call inside another is not an event.
    pub(crate) fn call(&mut self, call: &Call, origin_ns: u64) {
        if call.flags.inner {
            self.evidence += 1;
        } else {
            *self.events.entry((second(call.start_ns, call.duration_ns, origin_ns), call.op)).or_default() +=
                call.calls();
        }
    }

    /// Counts a time off the CPU.
    pub(crate) fn off(&mut self, off: &OffCpu, origin_ns: u64) {
        let op = ops::kernel_op(KernelOp::SchedSwitch);
        *self.events.entry((second(off.start_ns, off.duration_ns, origin_ns), op)).or_default() += off.times();
    }

    /// Counts a report of the allocator.
    pub(crate) fn tensor(&mut self, event: &TensorEvent, origin_ns: u64) {
        *self.events.entry((second(event.at_ns, 0, origin_ns), event.op)).or_default() += 1;
    }

    pub(crate) fn total(&self) -> u64 {
        self.events.values().sum()
    }
}

/// The second of the run in which something ended.
fn second(start_ns: u64, duration_ns: u64, origin_ns: u64) -> u64 {
    start_ns.saturating_add(duration_ns).saturating_sub(origin_ns) / SECOND
}

/// The rows, in the order in which they came; each batch is sorted by start.
#[derive(Debug, Default)]
pub(crate) struct Unsaved {
    pub(crate) calls: Vec<Call>,
    pub(crate) offs: Vec<OffCpu>,
    pub(crate) runs: Vec<CpuRun>,
    pub(crate) moved: Vec<MovedWait>,
    pub(crate) tensors: Vec<TensorEvent>,
}

impl Unsaved {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows() == 0
    }

    pub(crate) fn rows(&self) -> usize {
        self.calls.len() + self.offs.len() + self.runs.len() + self.moved.len() + self.tensors.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.events_bytes() + self.runs.len() * size_of::<CpuRun>() + self.moved.len() * size_of::<MovedWait>()
    }

    fn events_bytes(&self) -> usize {
        self.calls.len() * size_of::<Call>()
            + self.offs.len() * size_of::<OffCpu>()
            + self.tensors.len() * size_of::<TensorEvent>()
    }

    pub(crate) fn tally(&self) -> Tally {
        let mut tally = Tally::of(&self.calls, &self.offs);
        tally.events += self.tensors.len() as u64;
        tally
    }

    /// Its events by op.
    pub(crate) fn by_op(&self) -> BTreeMap<OpId, u64> {
        let mut by_op = BTreeMap::new();
        let mut add = |op: OpId, events: u64| *by_op.entry(op).or_default() += events;
        self.calls.iter().filter(|call| !call.flags.inner).for_each(|call| add(call.op, call.calls()));
        if !self.offs.is_empty() {
            add(ops::kernel_op(KernelOp::SchedSwitch), self.offs.iter().map(OffCpu::times).sum());
        }
        self.tensors.iter().for_each(|event| add(event.op, 1));
        by_op
    }

    /// Forgets the rows, because they are stored now.
    pub(crate) fn clear(&mut self) {
        empty(&mut self.calls);
        empty(&mut self.offs);
        empty(&mut self.runs);
        empty(&mut self.moved);
        empty(&mut self.tensors);
    }

    /// Takes some rows out, the newest: at most so many of each kind, sorted by start.
    pub(crate) fn take_part(&mut self, most: usize) -> Self {
        let mut part = Self {
            calls: self.calls.split_off(self.calls.len().saturating_sub(most)),
            offs: self.offs.split_off(self.offs.len().saturating_sub(most)),
            runs: self.runs.split_off(self.runs.len().saturating_sub(most)),
            moved: self.moved.split_off(self.moved.len().saturating_sub(most)),
            tensors: self.tensors.split_off(self.tensors.len().saturating_sub(most)),
        };
        part.calls.sort_by_key(|call| call.start_ns);
        part.offs.sort_by_key(|off| off.start_ns);
        part.tensors.sort_by_key(|event| event.at_ns);
        part
    }

    /// Puts rows back that could not be stored.
    pub(crate) fn put_back(&mut self, mut part: Self) {
        self.calls.append(&mut part.calls);
        self.offs.append(&mut part.offs);
        self.runs.append(&mut part.runs);
        self.moved.append(&mut part.moved);
        self.tensors.append(&mut part.tensors);
    }

    /// Stays within its limits: drops evidence first, then thins bursts, then drops fast events, oldest first. Slow
    /// events are dropped only if nothing else is left. `exact` as in [`thin::offs`].
    pub(crate) fn bound(&mut self, exact: impl Fn(u32) -> bool, origin_ns: u64) -> GivenUp {
        let mut gone = GivenUp::default();
        if self.bytes() <= MOST_KEPT {
            return gone;
        }
        gone.evidence = self.give_up_evidence();
        if self.events_bytes() <= MOST_KEPT * 3 / 4 {
            return gone;
        }
        let (mut calls, mut offs) = (Vec::new(), Vec::new());
        self.calls.sort_by_key(|call| call.start_ns);
        self.offs.sort_by_key(|off| off.start_ns);
        thin::calls(&self.calls, THIN, &mut calls);
        thin::offs(&self.offs, THIN, exact, &mut offs);
        (self.calls, self.offs) = (calls, offs);
        // Room for a while, so that this is not done again for every batch.
        for least_slow in [SLOW_NS, u64::MAX] {
            if least_slow == u64::MAX {
                let over = self.events_bytes().saturating_sub(MOST_KEPT * 3 / 4);
                let oldest = over.div_ceil(size_of::<TensorEvent>()).min(self.tensors.len());
                self.tensors.drain(..oldest).for_each(|event| gone.tensor(&event, origin_ns));
            }
            let mut over = self.events_bytes().saturating_sub(MOST_KEPT * 3 / 4);
            self.calls.retain(|call| {
                let stays = over == 0 || call.duration_ns >= least_slow;
                if !stays {
                    over = over.saturating_sub(size_of::<Call>());
                    gone.call(call, origin_ns);
                }
                stays
            });
            self.offs.retain(|off| {
                let stays = over == 0 || off.duration_ns >= least_slow;
                if !stays {
                    over = over.saturating_sub(size_of::<OffCpu>());
                    gone.off(off, origin_ns);
                }
                stays
            });
        }
        gone
    }

    /// Keeps only so many events, the slowest; evidence goes if anything does.
    pub(crate) fn keep_slowest(&mut self, most: usize, origin_ns: u64) -> GivenUp {
        let mut gone = GivenUp::default();
        if self.rows() <= most {
            return gone;
        }
        gone.evidence = self.give_up_evidence();
        // An incomplete balance is useless, so its rows are dropped before others.
        if self.rows() > most {
            self.tensors.drain(..).for_each(|event| gone.tensor(&event, origin_ns));
        }
        let mut durations: Vec<u64> = self.calls.iter().map(|call| call.duration_ns).collect();
        durations.extend(self.offs.iter().map(|off| off.duration_ns));
        durations.sort_unstable_by_key(|ns| std::cmp::Reverse(*ns));
        let Some(limit) = durations.get(most).copied() else { return gone };
        // Of those exactly as slow as the first that does not fit, some do.
        let mut ties = most - durations.partition_point(|ns| *ns > limit);
        let mut stays = |ns: u64| {
            let fits = ns == limit && ties > 0;
            ties -= usize::from(fits);
            fits || ns > limit
        };
        self.calls.retain(|call| {
            let stays = stays(call.duration_ns);
            if !stays {
                gone.call(call, origin_ns);
            }
            stays
        });
        self.offs.retain(|off| {
            let stays = stays(off.duration_ns);
            if !stays {
                gone.off(off, origin_ns);
            }
            stays
        });
        gone
    }

    fn give_up_evidence(&mut self) -> u64 {
        let rows = self.runs.len() + self.moved.len();
        self.runs = Vec::new();
        self.moved = Vec::new();
        rows as u64
    }
}

/// Keeps as much memory as was needed this time, so that it is not reallocated twice a second.
fn empty<T>(rows: &mut Vec<T>) {
    let used = rows.len().max(SPARE_ROWS);
    rows.clear();
    if rows.capacity() > 4 * used {
        rows.shrink_to(used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwhy_model::CallFlags;

    fn call(function: &str, i: u64, duration_ns: u64) -> Call {
        Call {
            start_ns: i * 10_000,
            duration_ns,
            pid: 1,
            tid: 2,
            op: ops::by_function(function).unwrap().id,
            device: None,
            stream: None,
            arg0: None,
            arg1: Some(i),
            ret: 0,
            flags: CallFlags::default(),
            weight: 1,
            stack: None,
        }
    }

    /// More calls than are kept, each thousandth slow.
    fn many(function: &str) -> Unsaved {
        let count = (MOST_KEPT / size_of::<Call>()) as u64 + 50_000;
        let calls =
            (0..count).map(|i| call(function, i, if i.is_multiple_of(1_000) { 2_000_000 } else { 500 })).collect();
        Unsaved { calls, ..Unsaved::default() }
    }

    #[test]
    fn bursts_become_few_rows_before_anything_is_given_up() {
        let mut unsaved = many("cudaLaunchKernel");
        let events = unsaved.tally().events;
        unsaved.runs = vec![CpuRun { start_ns: 0, duration_ns: 1, pid: 1, tid: 1, cpu: 0, name: [0; 16] }; 10];
        let gone = unsaved.bound(|_| false, 0);
        assert_eq!((gone.total(), gone.evidence), (0, 10));
        assert_eq!(unsaved.tally().events, events);
        assert!(unsaved.bytes() < MOST_KEPT / 50);
    }

    #[test]
    fn what_is_fast_and_old_is_given_up_and_counted_where_it_was() {
        let mut unsaved = many("cudaMalloc");
        let (events, newest) = (unsaved.tally().events, unsaved.calls.last().copied());
        let slow = unsaved.calls.iter().filter(|call| call.duration_ns >= SLOW_NS).count();
        let gone = unsaved.bound(|_| false, 0);
        assert_eq!(unsaved.tally().events + gone.total(), events);
        assert!(unsaved.bytes() <= MOST_KEPT * 3 / 4 && unsaved.bytes() > MOST_KEPT / 2);
        assert_eq!(unsaved.calls.iter().filter(|call| call.duration_ns >= SLOW_NS).count(), slow);
        assert_eq!(unsaved.calls.last().copied(), newest);
        let (first, last) = (gone.events.keys().next().unwrap().0, gone.events.keys().last().unwrap().0);
        assert!(first == 0 && last < 3, "the oldest, in their own seconds: {last}");
        assert_eq!(unsaved.bound(|_| false, 0), GivenUp::default(), "once is enough");
    }

    #[test]
    fn at_the_end_the_slowest_are_kept() {
        let calls = (0..1_000).map(|i| call("cudaMalloc", i, i % 10)).collect();
        let mut unsaved = Unsaved { calls, ..Unsaved::default() };
        let gone = unsaved.keep_slowest(150, 0);
        assert_eq!((unsaved.calls.len(), gone.total()), (150, 850));
        assert_eq!(unsaved.calls.iter().filter(|call| call.duration_ns == 9).count(), 100);
        assert_eq!(unsaved.calls.iter().filter(|call| call.duration_ns == 8).count(), 50);
        assert_eq!(unsaved.keep_slowest(0, 0).total(), 150);
    }
}
