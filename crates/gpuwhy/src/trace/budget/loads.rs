// SPDX-License-Identifier: Apache-2.0
//! Whose load is what: traps are counted for all processes together, and split by what is known of each.

use gpuwhy_capture::batch::Batch;
use gpuwhy_capture::governor::{OpHits, ProbePrice};
use gpuwhy_capture::{FirstInstruction, Share, Traps};
use gpuwhy_model::{Class, OpId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What the records of one process say.
///
/// A process's threads take turns more often than not: backward waits for forward, and the interpreter's lock lets one go on
/// at a time. So what calls cost each of them adds up. Switches are mostly those of threads that wait beside the work: of
/// them the busiest thread's count.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// What its calls cost, ns.
    calls_ns: f64,
    /// Records of calls, and those of them with a stack.
    records: u64,
    stacks: u64,
    /// Of its busiest thread.
    switches: u64,
}

/// Events since the last time, by process and thread.
#[derive(Debug, Default)]
pub(super) struct Counts {
    processes: HashMap<u32, Seen>,
    switches: HashMap<(u32, u32), u64>,
}

/// What the probes of one function did since the last time, in all processes.
pub(super) struct Probed {
    pub(super) op: OpId,
    pub(super) first: FirstInstruction,
    pub(super) price: ProbePrice,
    pub(super) traps: Traps,
}

/// The load of one process.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ProcessLoad {
    /// By function, with what its probe stands on.
    pub(super) ops: Vec<(FirstInstruction, OpHits)>,
    pub(super) switches: u64,
}

impl ProcessLoad {
    /// Calls that were followed to their return, or as far as they ever are.
    pub(super) fn followed(&self) -> u64 {
        self.ops.iter().map(|(_, hits)| hits.full).sum()
    }
}

impl Counts {
    /// Counts a batch. `call_ns`: what a call of each function costs, by its number.
    pub(super) fn note(&mut self, batch: &Batch, call_ns: &[f64]) {
        // Most come in rows of one process.
        let mut last = (0, Seen::default());
        let usual_ns = ProbePrice::default().call_ns;
        let calls = batch.calls.iter().filter(|call| call.op.is_cuda());
        let calls = calls.map(|call| (call.pid, call.op, call.calls(), call.stack.is_some()));
        let reports = batch.tensors.iter().map(|event| (event.pid, event.op, 1, event.stack.is_some()));
        for (pid, op, calls, has_stack) in calls.chain(reports) {
            if pid != last.0 {
                self.add(last);
                last = (pid, Seen::default());
            }
            last.1.calls_ns += calls as f64 * call_ns.get(usize::from(op.0)).copied().unwrap_or(usual_ns);
            last.1.records += 1;
            last.1.stacks += u64::from(has_stack);
        }
        self.add(last);
        for off in &batch.off {
            *self.switches.entry((off.pid, off.tid)).or_default() += 1;
        }
    }

    fn add(&mut self, (pid, seen): (u32, Seen)) {
        if seen.records > 0 {
            let of = self.processes.entry(pid).or_default();
            of.calls_ns += seen.calls_ns;
            of.records += seen.records;
            of.stacks += seen.stacks;
        }
    }

    /// The part of all records that has a stack.
    pub(super) fn with_stack(&self) -> f64 {
        let sum = |of: fn(&Seen) -> u64| self.processes.values().map(of).sum::<u64>() as f64;
        sum(|seen| seen.stacks) / sum(|seen| seen.records).max(1.0)
    }

    /// Splits what the probes did by process. `shares` are samples of whose traps they were; `muted` are calls that were not
    /// followed, which are not among the traps.
    pub(super) fn split(
        mut self,
        probed: &[Probed],
        shares: &[(u32, OpId, Share)],
        muted: &[(u32, OpId, u64)],
    ) -> BTreeMap<u32, ProcessLoad> {
        for ((pid, _), switches) in std::mem::take(&mut self.switches) {
            let of = self.processes.entry(pid).or_default();
            of.switches = of.switches.max(switches);
        }
        let called = self.processes.iter().filter(|(_, seen)| seen.records > 0).map(|(pid, _)| *pid);
        let callers: BTreeSet<u32> = called.chain(shares.iter().map(|(pid, ..)| *pid)).collect();
        let load = |(pid, seen): (&u32, &Seen)| (*pid, ProcessLoad { ops: Vec::new(), switches: seen.switches });
        let mut loads: BTreeMap<u32, ProcessLoad> = self.processes.iter().map(load).collect();
        for one in probed {
            for (pid, entered, followed) in self.parts(one.op, &callers, shares) {
                let hits = self.hits(pid, one, entered, followed);
                let unfollowed = muted.iter().find(|(of, op, _)| (*of, *op) == (pid, one.op)).map_or(0, |of| of.2);
                if hits.hits + unfollowed > 0 {
                    let load = loads.entry(pid).or_default();
                    load.ops.push((one.first, OpHits { muted: unfollowed, ..hits }));
                }
            }
            // A muted process usually has no other part in it.
            for (pid, op, calls) in muted.iter().filter(|(_, op, calls)| *op == one.op && *calls > 0) {
                let load = loads.entry(*pid).or_default();
                if load.ops.iter().all(|(_, hits)| hits.op != *op) {
                    let hits = OpHits { op: *op, hits: 0, full: 0, stacks: 0, muted: *calls, price: one.price };
                    load.ops.push((one.first, hits));
                }
            }
        }
        loads
    }

    /// Who has which part of a function's entries, and of those followed to their return.
    fn parts(&self, op: OpId, callers: &BTreeSet<u32>, shares: &[(u32, OpId, Share)]) -> Vec<(u32, f64, f64)> {
        if let (Some(only), 1) = (callers.first(), callers.len()) {
            return vec![(*only, 1.0, 1.0)];
        }
        let of_op = || shares.iter().filter(|(_, of, _)| *of == op).map(|(pid, _, share)| (*pid, *share));
        let sum = |of: fn(&Share) -> u64| of_op().map(|(_, share)| of(&share)).sum::<u64>() as f64;
        let (entered, followed) = (sum(|share| share.entered), sum(|share| share.followed));
        if entered > 0.0 {
            let part = |(pid, share): (u32, Share)| {
                let of_entered = share.entered as f64 / entered;
                let of_followed = if followed > 0.0 { share.followed as f64 / followed } else { of_entered };
                (pid, of_entered, of_followed)
            };
            return of_op().map(part).collect();
        }
        // Too few to be among the samples: they are where the others are.
        let all: f64 = self.processes.values().map(|seen| seen.calls_ns).sum::<f64>().max(1.0);
        let callers = self.processes.iter().filter(|(_, seen)| seen.records > 0);
        callers.map(|(pid, seen)| (*pid, seen.calls_ns / all, seen.calls_ns / all)).collect()
    }

    fn hits(&self, pid: u32, probed: &Probed, entered: f64, followed: f64) -> OpHits {
        let part = |count: u64, part: f64| (count as f64 * part).round() as u64;
        let entries = part(probed.traps.entered, entered);
        // The allocator's reports are followed as far as they ever are.
        let is_report = probed.op.get().is_some_and(|op| op.class == Class::Tensor);
        let full = if is_report { entries } else { part(probed.traps.followed, followed) };
        let seen = self.processes.get(&pid).copied().unwrap_or_default();
        let with_stack = seen.stacks as f64 / seen.records.max(1) as f64;
        let stacks = part(full, with_stack);
        OpHits { op: probed.op, hits: entries, full, stacks, muted: 0, price: probed.price }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwhy_model::{Call, CallFlags, ops};

    const NOISY: u32 = 10;
    const QUIET: u32 = 11;

    fn launch() -> OpId {
        ops::by_function("cuLaunchKernel").map(|op| op.id).unwrap()
    }

    fn calls(pid: u32, count: usize, stack: Option<u64>) -> Vec<Call> {
        let call = Call {
            start_ns: 0,
            duration_ns: 1,
            pid,
            tid: pid,
            op: launch(),
            device: None,
            stream: None,
            arg0: None,
            arg1: None,
            ret: 0,
            flags: CallFlags::default(),
            weight: 1,
            stack,
        };
        vec![call; count]
    }

    fn counts(calls: Vec<Call>) -> Counts {
        let (mut counts, mut batch) = (Counts::default(), Batch::default());
        batch.calls = calls;
        counts.note(&batch, &[]);
        counts
    }

    fn probed(entered: u64, followed: u64) -> [Probed; 1] {
        let traps = Traps { entered, followed, ..Traps::default() };
        [Probed { op: launch(), first: FirstInstruction::Push, price: ProbePrice::default(), traps }]
    }

    fn hits(loads: &BTreeMap<u32, ProcessLoad>, pid: u32) -> (u64, u64, u64, u64) {
        loads[&pid].ops.first().map_or((0, 0, 0, 0), |(_, hits)| (hits.hits, hits.full, hits.stacks, hits.muted))
    }

    #[test]
    fn one_process_has_it_all() {
        let loads = counts(calls(NOISY, 10, Some(1))).split(&probed(1_000, 500), &[], &[]);
        assert_eq!((loads.len(), hits(&loads, NOISY)), (1, (1_000, 500, 500, 0)));
    }

    /// Calls inside others leave no record: the process that makes them pays for them.
    #[test]
    fn a_process_does_not_pay_for_calls_of_another_that_leave_no_record() {
        let share = |entered, followed| Share { entered, followed };
        let shares = [(NOISY, launch(), share(990 * 16, 0)), (QUIET, launch(), share(10 * 16, 10 * 16))];
        let loads = counts(calls(QUIET, 160, None)).split(&probed(16_000, 160), &shares, &[]);
        assert_eq!(hits(&loads, NOISY), (15_840, 0, 0, 0));
        assert_eq!(hits(&loads, QUIET), (160, 160, 0, 0));
    }

    #[test]
    fn what_is_too_little_to_be_sampled_is_split_by_records() {
        let mut both = calls(NOISY, 30, None);
        both.extend(calls(QUIET, 10, None));
        let loads = counts(both).split(&probed(40, 40), &[], &[]);
        assert_eq!((hits(&loads, NOISY).0, hits(&loads, QUIET).0), (30, 10));
    }

    #[test]
    fn muted_calls_are_their_own_processs() {
        let loads = counts(calls(QUIET, 10, None)).split(&probed(10, 10), &[], &[(NOISY, launch(), 7_000)]);
        assert_eq!((hits(&loads, QUIET), hits(&loads, NOISY)), ((10, 10, 0, 0), (0, 0, 0, 7_000)));
    }
}
