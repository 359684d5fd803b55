// SPDX-License-Identifier: Apache-2.0
//! Thinning: fewer rows for fast and frequent events, with the same totals. Pure.
//!
//! A burst is the work a thread queues for the GPU without a pause. Of its similar calls the first and the last keep a row:
//! the first unchanged, the last representing all the others ([`weight`](field@Call::weight)). Guarantees:
//! - The calls a row represents have the same thread, op, device, stream, result and flags. They began at most
//!   [`LONGEST_NS`] before it, after a similar call with a row, and no call that waits for the GPU lies between them.
//! - Sums of calls and bytes by weight equal those of all events. Durations are about those of the row.
//! - Slow events, calls that change allocations or the device, and kernel events each keep a row.
//!
//! Times off the CPU, and calls that wait, are thinned only where equal ones follow each other directly.

use crate::event::Call;
use crate::host::OffCpu;
use crate::ops::Class;
use std::collections::HashMap;

/// A call or time off the CPU shorter than this is fast, ns.
pub const FAST_NS: u64 = 100_000;
/// One at least this long is slow, ns, and keeps its row as long as there is any room.
pub const SLOW_NS: u64 = 1_000_000;
/// Longest gap between calls of one burst, ns.
const CALL_GAP_NS: u64 = 50_000;
/// The same for times off the CPU.
const OFF_GAP_NS: u64 = 1_000_000;
/// No row represents a longer time than this, ns: in a replay, launches appear at most this late.
pub const LONGEST_NS: u64 = 50_000_000;

/// Kinds of calls thinned in one burst; further kinds keep all rows.
const KINDS: usize = 16;

/// How much to thin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thinning {
    /// Most events that become two rows; below 3 nothing is saved.
    pub longest: u32,
    /// Whether calls with different stacks may represent each other. Sums by stack are then estimates.
    pub mix_stacks: bool,
}

/// A row's role in a burst.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It stays; a kernel event, which does not affect bursts.
    Kernel,
    /// It stays, and the burst goes on.
    Aside,
    /// It stays, and ends the burst.
    Alone,
    /// It may be represented by a similar row directly after it.
    Repeated,
    /// It may be represented by a similar row in the same burst.
    Queued,
}

/// A call or a time off the CPU.
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

/// Similar events: the positions of their first and last row, which are equal while there is one only.
struct Kind {
    first: usize,
    last: usize,
    events: u32,
}

/// A thread's burst so far.
struct Burst {
    role: Role,
    kinds: Vec<Kind>,
    began_ns: u64,
    end_ns: u64,
}

impl Burst {
    /// Whether an event that starts at `start_ns` can belong to it.
    fn goes_on(&self, role: Role, start_ns: u64, gap_ns: u64) -> bool {
        let near = start_ns.checked_sub(self.end_ns).is_some_and(|gap| gap < gap_ns);
        near && (role == self.role || role == Role::Aside) && start_ns.saturating_sub(self.began_ns) <= LONGEST_NS
    }
}

/// Thins calls in order of start; the kept ones are in that order, too.
pub fn calls(calls: &[Call], how: Thinning, kept: &mut Vec<Call>) {
    thin(calls, (CALL_GAP_NS, how.longest), role_of_call, |a, b| is_like(a, b, how.mix_stacks), kept);
}

/// Thins times off the CPU in order of start; the kept ones are in that order, too. Threads for which `exact` holds keep all
/// rows: those that launch or wait for the GPU.
pub fn offs(offs: &[OffCpu], how: Thinning, exact: impl Fn(u32) -> bool, kept: &mut Vec<OffCpu>) {
    let role = |off: &OffCpu| {
        if off.duration_ns >= FAST_NS || off.unfinished || exact(off.tid) { Role::Alone } else { Role::Repeated }
    };
    thin(offs, (OFF_GAP_NS, how.longest), role, |a, b| is_same_wait(a, b, how.mix_stacks), kept);
}

fn role_of_call(call: &Call) -> Role {
    let Some(op) = call.op.get() else { return Role::Alone };
    if !op.id.is_cuda() {
        return Role::Kernel;
    }
    if call.duration_ns >= FAST_NS || call.flags.unfinished {
        return Role::Alone;
    }
    match op.class {
        Class::Launch | Class::Fill | Class::Order | Class::Collective => Role::Queued,
        Class::Copy if op.has_stream() => Role::Queued,
        Class::Copy | Class::Sync => Role::Repeated,
        // Freeing may wait for everything.
        Class::Free if !op.has_stream() => Role::Alone,
        _ => Role::Aside,
    }
}

fn thin<T: Row>(
    rows: &[T],
    (gap_ns, longest): (u64, u32),
    role: impl Fn(&T) -> Role,
    like: impl Fn(&T, &T) -> bool,
    kept: &mut Vec<T>,
) {
    let from = kept.len();
    let mut bursts: HashMap<u32, Burst> = HashMap::new();
    for row in rows {
        let (role, start_ns) = (role(row), row.start_ns());
        if role == Role::Kernel {
            kept.push(*row);
            continue;
        }
        let burst = bursts.entry(row.tid()).or_insert_with(|| Burst {
            role: Role::Alone,
            kinds: Vec::new(),
            began_ns: start_ns,
            end_ns: 0,
        });
        if !burst.goes_on(role, start_ns, gap_ns) {
            (burst.role, burst.began_ns) = (role, start_ns);
            burst.kinds.clear();
        }
        burst.end_ns = start_ns.saturating_add(row.duration_ns());
        if role == Role::Aside || role == Role::Alone {
            kept.push(*row);
        } else {
            keep(row, &mut burst.kinds, longest, role == Role::Repeated, &like, kept);
        }
    }
    // Nearly sorted: only the last row of each kind has moved.
    kept[from..].sort_by_key(Row::start_ns);
}

/// Adds a row to its kind: as the last row, which represents the others, or as the first.
fn keep<T: Row>(
    row: &T,
    kinds: &mut Vec<Kind>,
    longest: u32,
    directly: bool,
    like: impl Fn(&T, &T) -> bool,
    kept: &mut Vec<T>,
) {
    let at = kept.len();
    let Some(kind) = kinds.iter_mut().find(|kind| like(&kept[kind.first], row)) else {
        if directly {
            kinds.clear();
        }
        if kinds.len() < KINDS {
            kinds.push(Kind { first: at, last: at, events: 1 });
        }
        return kept.push(*row);
    };
    if kind.events >= longest {
        *kind = Kind { first: at, last: at, events: 1 };
        return kept.push(*row);
    }
    kind.events += 1;
    if kind.last == kind.first {
        kind.last = at;
        return kept.push(*row);
    }
    let mut last = *row;
    let others = (*kept[kind.last].weight()).max(1);
    *last.weight() = others.saturating_add((*last.weight()).max(1));
    kept[kind.last] = last;
}

/// Whether a call can represent another. Launches of different kernels and sizes count as similar.
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
    fn what_is_slow_far_apart_or_waits_ends_a_burst() {
        let changed = |change: fn(&mut Call)| {
            let mut rows = launches(9);
            change(&mut rows[4]);
            thinned(&rows, ALL).len()
        };
        assert_eq!(changed(|_| ()), 2);
        for function in ["cudaStreamSynchronize", "cudaFree", "cudaMemcpy"] {
            let mut rows = launches(9);
            rows[4].op = by_function(function).unwrap().id;
            assert_eq!(thinned(&rows, ALL).len(), 5, "{function}");
        }
        assert_eq!(changed(|call| call.duration_ns = FAST_NS), 5);
        assert_eq!(changed(|call| call.flags.unfinished = true), 5);
        // Another kind, or another thread's, has a row of its own and does not end it.
        assert_eq!(changed(|call| call.stream = None), 3);
        assert_eq!(changed(|call| call.ret = 2), 3);
        assert_eq!(changed(|call| call.device = None), 3);
        assert_eq!(changed(|call| call.stack = Some(1)), 3);
        assert_eq!(changed(|call| call.arg1 = None), 3);
        assert_eq!(changed(|call| call.op = by_function("cudaMalloc").unwrap().id), 3);
        assert_eq!(changed(|call| call.tid = 3), 3);
        let mut apart = launches(9);
        apart[4..].iter_mut().for_each(|call| call.start_ns += CALL_GAP_NS);
        assert_eq!(thinned(&apart, ALL).len(), 4);
        let long: Vec<Call> = launches(10_000);
        assert_eq!(thinned(&long, Thinning { longest: u32::MAX, mix_stacks: true }).len(), 4, "in parts of 50 ms");
    }

    #[test]
    fn kinds_of_one_burst_are_thinned_each_by_itself() {
        let functions = ["cuLaunchKernel", "cudaMemcpyAsync", "cuLaunchKernel", "cudaEventRecord"];
        let rows: Vec<Call> =
            (0..40).map(|i| Call { arg0: Some(64), ..call(functions[i as usize % 4], i * 10_000) }).collect();
        assert_eq!(thinned(&rows, ALL), [(0, 1), (10_000, 1), (30_000, 1), (370_000, 9), (380_000, 19), (390_000, 9)]);
        // Waits are thinned only if nothing lies between them.
        let waits: Vec<Call> = (0..12)
            .map(|i| call(if i == 6 { "cuLaunchKernel" } else { "cudaDeviceSynchronize" }, i * 10_000))
            .map(|call| Call { arg0: None, ..call })
            .collect();
        assert_eq!(thinned(&waits, ALL), [(0, 1), (50_000, 5), (60_000, 1), (70_000, 1), (110_000, 4)]);
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
    fn short_waits_are_thinned_except_for_exact_threads() {
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
