// SPDX-License-Identifier: Apache-2.0
//! Thinning: fewer rows for events that come fast and often, with the same totals. Pure.
//!
//! Of a burst of equal calls, its beginning and its end matter: the first stays as it is, and the last stands for all the
//! others ([`Call::weight`]). What others rely on:
//! - The events a row stands for are of the same thread, op, device, stream, result and flags, lie before it and after
//!   the thread's row before, and no other call of the thread lies between them.
//! - Sums by weight of calls, and of bytes, are those of all events. Durations are about the row's own.
//! - Slow events, calls that change what is allocated or which device is meant, and what the kernel tells stay one by one.

use crate::event::Call;
use crate::host::OffCpu;
use crate::ops::Class;
use std::collections::HashMap;

/// A call or time off the CPU shorter than this is fast, ns.
pub const FAST_NS: u64 = 100_000;
/// One at least this long is slow, ns, and never left out as long as there is any room.
pub const SLOW_NS: u64 = 1_000_000;
/// Calls further apart than this are no burst, ns.
const CALL_GAP_NS: u64 = 50_000;
/// The same of times off the CPU.
const OFF_GAP_NS: u64 = 1_000_000;
/// No row stands for more time than this, ns: whoever plays the run again hears of launches at most so late.
pub const LONGEST_NS: u64 = 50_000_000;

/// What may be thinned: what queues, orders and awaits work. Calls that allocate, free or choose a device change what
/// later ones mean.
const THINNED: [Class; 6] = [Class::Launch, Class::Copy, Class::Fill, Class::Sync, Class::Order, Class::Collective];

/// How much to thin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thinning {
    /// The most events that become two rows; below 3 nothing is gained.
    pub longest: u32,
    /// Whether calls of different stacks may stand for one another. Sums by stack are estimates then.
    pub mix_stacks: bool,
}

/// What a row is to a burst.
enum Part {
    /// It stays, and the thread's burst does not end with it.
    Aside,
    /// It stays, and what comes after is another burst.
    Alone,
    /// It may be left out in favour of one like it.
    Common,
}

/// What calls and times off the CPU have in common.
trait Row: Copy {
    fn tid(&self) -> u32;
    fn start_ns(&self) -> u64;
    fn duration_ns(&self) -> u64;
    fn weight(&mut self) -> &mut u32;
}

impl Row for Call {
    fn tid(&self) -> u32 {
        self.tid
    }

    fn start_ns(&self) -> u64 {
        self.start_ns
    }

    fn duration_ns(&self) -> u64 {
        self.duration_ns
    }

    fn weight(&mut self) -> &mut u32 {
        &mut self.weight
    }
}

impl Row for OffCpu {
    fn tid(&self) -> u32 {
        self.tid
    }

    fn start_ns(&self) -> u64 {
        self.start_ns
    }

    fn duration_ns(&self) -> u64 {
        self.duration_ns
    }

    fn weight(&mut self) -> &mut u32 {
        &mut self.weight
    }
}

/// A burst so far, by the places of its two rows; while it has one only, they are the same.
struct Burst {
    first: usize,
    last: usize,
    events: u32,
    began_ns: u64,
    end_ns: u64,
}

impl Burst {
    /// Whether an event that begins then can belong to it.
    fn goes_on(&self, start_ns: u64, gap_ns: u64, longest: u32) -> bool {
        let near = start_ns.checked_sub(self.end_ns).is_some_and(|gap| gap < gap_ns);
        near && self.events < longest && start_ns.saturating_sub(self.began_ns) <= LONGEST_NS
    }
}

/// Thins calls, which are in the order of their start, and so is what is kept.
pub fn calls(calls: &[Call], how: Thinning, kept: &mut Vec<Call>) {
    let part = |call: &Call| match call.op.get() {
        Some(op) if !op.id.is_cuda() => Part::Aside,
        Some(op) if call.duration_ns < FAST_NS && !call.flags.unfinished && THINNED.contains(&op.class) => Part::Common,
        _ => Part::Alone,
    };
    thin(calls, (CALL_GAP_NS, how.longest), part, |a, b| is_like(a, b, how.mix_stacks), kept);
}

/// Thins times off the CPU, which are in the order of their start, and so is what is kept. Those of threads for which
/// `exact` holds stay: a thread that launches or waits for the GPU is looked at closely.
pub fn offs(offs: &[OffCpu], how: Thinning, exact: impl Fn(u32) -> bool, kept: &mut Vec<OffCpu>) {
    let part = |off: &OffCpu| {
        if off.duration_ns >= FAST_NS || off.unfinished || exact(off.tid) { Part::Alone } else { Part::Common }
    };
    thin(offs, (OFF_GAP_NS, how.longest), part, |a, b| is_same_wait(a, b, how.mix_stacks), kept);
}

fn thin<T: Row>(
    rows: &[T],
    (gap_ns, longest): (u64, u32),
    part: impl Fn(&T) -> Part,
    like: impl Fn(&T, &T) -> bool,
    kept: &mut Vec<T>,
) {
    let from = kept.len();
    // By thread: the burst that its next event may belong to.
    let mut bursts: HashMap<u32, Burst> = HashMap::new();
    for row in rows {
        let (tid, start_ns) = (row.tid(), row.start_ns());
        let end_ns = start_ns.saturating_add(row.duration_ns());
        match part(row) {
            Part::Aside => kept.push(*row),
            Part::Alone => {
                bursts.remove(&tid);
                kept.push(*row);
            }
            Part::Common => {
                let burst = bursts.get_mut(&tid).filter(|burst| burst.goes_on(start_ns, gap_ns, longest));
                let Some(burst) = burst.filter(|burst| like(&kept[burst.first], row)) else {
                    let at = kept.len();
                    bursts.insert(tid, Burst { first: at, last: at, events: 1, began_ns: start_ns, end_ns });
                    kept.push(*row);
                    continue;
                };
                (burst.events, burst.end_ns) = (burst.events + 1, end_ns);
                if burst.last > burst.first {
                    let mut last = *row;
                    let others = (*kept[burst.last].weight()).max(1);
                    *last.weight() = others.saturating_add((*last.weight()).max(1));
                    kept[burst.last] = last;
                } else {
                    burst.last = kept.len();
                    kept.push(*row);
                }
            }
        }
    }
    // Nearly sorted: only the last of each burst has moved.
    kept[from..].sort_by_key(Row::start_ns);
}

/// Whether a call can stand for another. Which kernel was launched, and how large, is the first thing to give up.
fn is_like(a: &Call, b: &Call, mix_stacks: bool) -> bool {
    let launch = a.op.get().is_some_and(|op| op.class == Class::Launch);
    let shape = (a.arg0.is_some(), a.arg1.is_some()) == (b.arg0.is_some(), b.arg1.is_some());
    (a.op, a.pid, a.device, a.stream, a.ret, a.flags) == (b.op, b.pid, b.device, b.stream, b.ret, b.flags)
        && if launch { shape } else { (a.arg0, a.arg1) == (b.arg0, b.arg1) }
        && (mix_stacks || a.stack == b.stack)
}

fn is_same_wait(a: &OffCpu, b: &OffCpu, mix_stacks: bool) -> bool {
    (a.pid, a.reason, a.wait, a.syscall, a.file, a.object) == (b.pid, b.reason, b.wait, b.syscall, b.file, b.object)
        && (a.woken_by, a.waker_pid, a.waker_tid) == (b.woken_by, b.waker_pid, b.waker_tid)
        && (a.io_wait, a.timeout_ns.is_some()) == (b.io_wait, b.timeout_ns.is_some())
        && (mix_stacks || a.stack == b.stack)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::CallFlags;
    use crate::host::{Reason, Wait, WokenBy};
    use crate::ops::by_function;

    const ALL: Thinning = Thinning { longest: 1000, mix_stacks: false };

    fn call(function: &str, start_ns: u64) -> Call {
        Call {
            start_ns,
            duration_ns: 5_000,
            pid: 1,
            tid: 2,
            op: by_function(function).unwrap().id,
            device: Some(0),
            stream: Some(7),
            arg0: Some(start_ns),
            arg1: Some(64),
            ret: 0,
            flags: CallFlags::default(),
            weight: 1,
            stack: None,
        }
    }

    fn thinned(rows: &[Call], how: Thinning) -> Vec<(u64, u32)> {
        let mut kept = Vec::new();
        calls(rows, how, &mut kept);
        assert!(kept.is_sorted_by_key(|call| call.start_ns));
        assert_eq!(kept.iter().map(Call::calls).sum::<u64>(), rows.iter().map(Call::calls).sum::<u64>());
        kept.iter().map(|call| (call.start_ns, call.weight)).collect()
    }

    fn launches(count: u64) -> Vec<Call> {
        (0..count).map(|i| call("cuLaunchKernel", i * 10_000)).collect()
    }

    #[test]
    fn a_burst_becomes_its_beginning_and_its_end() {
        assert_eq!(thinned(&launches(10), ALL), [(0, 1), (90_000, 9)]);
        let short = Thinning { longest: 4, ..ALL };
        assert_eq!(
            thinned(&launches(10), short),
            [(0, 1), (30_000, 3), (40_000, 1), (70_000, 3), (80_000, 1), (90_000, 1)]
        );
        assert_eq!(thinned(&launches(3), Thinning { longest: 1, ..ALL }).len(), 3);
        assert_eq!(thinned(&launches(2), ALL), [(0, 1), (10_000, 1)]);
    }

    #[test]
    fn what_is_slow_far_apart_or_of_another_kind_ends_a_burst() {
        let changed = |change: fn(&mut Call)| {
            let mut rows = launches(9);
            change(&mut rows[4]);
            thinned(&rows, ALL).len()
        };
        assert_eq!(changed(|_| ()), 2);
        assert_eq!(changed(|call| call.duration_ns = FAST_NS), 5);
        assert_eq!(changed(|call| call.stream = None), 5);
        assert_eq!(changed(|call| call.ret = 2), 5);
        assert_eq!(changed(|call| call.device = None), 5);
        assert_eq!(changed(|call| call.stack = Some(1)), 5);
        assert_eq!(changed(|call| call.arg1 = None), 5);
        assert_eq!(changed(|call| call.op = by_function("cudaMalloc").unwrap().id), 5);
        // Another thread's call is none of this burst, and does not end it.
        assert_eq!(changed(|call| call.tid = 3), 3);
        let mut apart = launches(9);
        apart[4..].iter_mut().for_each(|call| call.start_ns += CALL_GAP_NS);
        assert_eq!(thinned(&apart, ALL).len(), 4);
        let long: Vec<Call> = launches(10_000);
        assert_eq!(thinned(&long, Thinning { longest: u32::MAX, mix_stacks: true }).len(), 4, "in parts of 50 ms");
    }

    #[test]
    fn what_sums_depend_on_is_never_mixed() {
        let copies: Vec<Call> =
            (0..8).map(|i| Call { arg0: Some(i / 4), ..call("cudaMemcpyAsync", i * 10_000) }).collect();
        assert_eq!(thinned(&copies, ALL), [(0, 1), (30_000, 3), (40_000, 1), (70_000, 3)]);
        let allocs: Vec<Call> = (0..8).map(|i| Call { arg0: None, ..call("cudaMalloc", i * 10_000) }).collect();
        assert_eq!(thinned(&allocs, ALL).len(), 8);
        let given: Vec<Call> = launches(4).into_iter().map(|call| Call { weight: 10, ..call }).collect();
        assert_eq!(thinned(&given, ALL), [(0, 10), (30_000, 30)]);
    }

    #[test]
    fn short_waits_are_thinned_but_not_those_of_threads_looked_at_closely() {
        let wait = |i: u64| OffCpu {
            start_ns: i * 200_000,
            duration_ns: 50_000,
            ready_ns: 5_000,
            pid: 1,
            tid: 2,
            reason: Reason::Asleep,
            wait: Wait::Futex,
            syscall: Some(202),
            file: 0,
            object: 9,
            timeout_ns: None,
            io_wait: false,
            woken_by: WokenBy::Thread,
            waker_pid: 1,
            waker_tid: 3,
            left_cpu: 0,
            cpu: (i % 4) as u16,
            unfinished: false,
            weight: 1,
            stack: None,
        };
        let rows: Vec<OffCpu> = (0..20).map(wait).collect();
        let mut kept = Vec::new();
        offs(&rows, ALL, |_| false, &mut kept);
        assert_eq!(kept.iter().map(|off| off.weight).collect::<Vec<u32>>(), [1, 19]);
        kept.clear();
        offs(&rows, ALL, |tid| tid == 2, &mut kept);
        assert_eq!(kept.len(), 20);
    }
}
