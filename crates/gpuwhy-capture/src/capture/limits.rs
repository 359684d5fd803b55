// SPDX-License-Identifier: Apache-2.0
//! Following functions of single processes less closely, and removing probes that no process wants.

use super::{Capture, now_ns};
use crate::attach;
use crate::batch::Batch;
use crate::governor::Action;
use crate::programs::{Limit, Share};
use crate::record::LifeEvent;
use gpuwhy_model::{Op, OpId};
use std::path::Path;

/// A time in which a process's calls of a function were not seen: every other process had given it up, so its probe was
/// removed when this one began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed {
    /// The process.
    pub pid: u32,
    /// The function.
    pub op: OpId,
    /// When the process made its first call that was seen, `CLOCK_MONOTONIC` ns.
    pub from_ns: u64,
    /// When the probe was back; `None` if the process ended before that, or the probe could not be put back.
    pub to_ns: Option<u64>,
}

impl Capture {
    /// Does what the governor of a process says. Returns whether it could be done: not every function can be given up.
    pub fn follow(&mut self, pid: u32, action: Action) -> bool {
        // One that has ended since has no limits, nor a say.
        if self.agreement.since_ns(pid).is_none() {
            return false;
        }
        let done = match action {
            Action::Sample(op) => self.programs.limit(pid, op, Limit::Sampled),
            Action::Unsample(op) => {
                self.programs.unlimit(pid, op);
                true
            }
            Action::Detach(op) => {
                let can = op.get().is_some_and(Op::may_be_hot) && self.programs.limit(pid, op, Limit::Muted);
                if can {
                    self.agreement.give_up(pid, op);
                }
                can
            }
            Action::Attach { op, sampled } => return self.follow_again(pid, op, sampled),
            Action::StacksOff => {
                self.agreement.set_without_stacks(pid, true);
                true
            }
            Action::StacksOn => {
                self.agreement.set_without_stacks(pid, false);
                true
            }
        };
        self.settle_probes();
        done
    }

    fn follow_again(&mut self, pid: u32, op: OpId, sampled: bool) -> bool {
        self.agreement.take_back(pid, op);
        self.settle_probes();
        if self.agreement.is_removed(op) {
            self.agreement.give_up(pid, op);
            return false;
        }
        if !sampled || !self.programs.limit(pid, op, Limit::Sampled) {
            self.programs.unlimit(pid, op);
        }
        true
    }

    /// Takes note of processes that make calls.
    pub(super) fn meet_callers(&mut self, batch: &Batch) {
        let is_first = |event| matches!(event, LifeEvent::FirstCall);
        let first = batch.life.iter().filter(|life| is_first(life.event)).map(|life| (life.pid, life.at_ns, true));
        let calls = batch.calls.iter().filter(|call| call.op.is_cuda());
        let calls = calls.map(|call| (call.pid, call.start_ns, false));
        let reports = batch.tensors.iter().map(|event| (event.pid, event.at_ns, false));
        // Most come in rows of one process.
        let mut last = 0;
        for (pid, at_ns, is_new) in first.chain(calls).chain(reports) {
            if pid == std::mem::replace(&mut last, pid) {
                continue;
            }
            // What an ended process did may be read after its end.
            if (is_new || !self.ended.contains_key(&pid)) && self.agreement.met(pid, at_ns) {
                let missed = |op| Missed { pid, op, from_ns: at_ns, to_ns: None };
                self.missed.extend(self.agreement.removed().map(missed));
            }
        }
    }

    /// A process ended, or became another program: its limits were for what it did until now.
    pub(super) fn forget_caller(&mut self, pid: u32) {
        self.agreement.ended(pid);
        self.programs.unlimit_process(pid);
    }

    /// Forgets processes whose end was not seen, because the ring was full.
    pub(super) fn forget_lost_callers(&mut self) {
        let is_gone = |pid: &u32| !Path::new(&format!("/proc/{pid}")).exists();
        for pid in self.agreement.callers().filter(is_gone).collect::<Vec<_>>() {
            self.forget_caller(pid);
        }
        self.settle_probes();
    }

    /// Puts back the probes that a process wants, and removes those that none does.
    pub(super) fn settle_probes(&mut self) {
        for op in self.agreement.to_put_back() {
            self.put_back(op);
        }
        for op in self.agreement.to_remove(now_ns()) {
            let Some(links) = self.probes.let_go(op) else { continue };
            self.programs.set_gone(op, true);
            self.agreement.set_removed(op, true, now_ns());
            // The kernel takes its time: the ring must not wait for that. Where there is no thread to be had, it does.
            let detach = move || attach::detach(links);
            if let Ok(thread) = std::thread::Builder::new().name("detach".into()).spawn(detach) {
                self.detaching.retain(|(_, thread)| !thread.is_finished());
                self.detaching.push((op, thread));
            }
        }
        let wanted = !self.agreement.can_leave_out_stacks();
        if std::mem::replace(&mut self.switch_stacks, wanted) != wanted {
            self.programs.set_switch_stacks(wanted);
        }
    }

    fn put_back(&mut self, op: OpId) {
        // With the old probe still there a call would be counted twice.
        for (_, thread) in self.detaching.extract_if(.., |(detached, _)| *detached == op) {
            // It cannot fail, but for a panic, after which its links are dropped as well.
            let _ = thread.join();
        }
        self.programs.set_gone(op, false);
        if !self.probes.take_back(&self.programs, op) {
            self.programs.set_gone(op, true);
            return;
        }
        let now = now_ns();
        self.agreement.set_removed(op, false, now);
        for missed in self.missed.iter_mut().filter(|missed| missed.op == op) {
            missed.to_ns.get_or_insert(now);
        }
    }

    /// Processes that make CUDA calls and are alive.
    pub fn callers(&self) -> impl Iterator<Item = u32> {
        self.agreement.callers()
    }

    /// Since when a process makes CUDA calls, `CLOCK_MONOTONIC` ns.
    pub fn calls_since(&self, pid: u32) -> Option<u64> {
        self.agreement.since_ns(pid)
    }

    /// Whether Python stacks are read at switches.
    pub fn reads_switch_stacks(&self) -> bool {
        self.switch_stacks
    }

    /// By process and function, an estimate of the traps since the last time.
    pub fn take_shares(&self) -> Vec<(u32, OpId, Share)> {
        self.programs.take_shares()
    }

    /// By process and function, calls so far that were not followed though there is a probe.
    pub fn muted(&self) -> Vec<(u32, OpId, u64)> {
        self.programs.muted()
    }

    /// What new processes did unseen, as noted since the last time.
    pub fn take_missed(&mut self) -> Vec<Missed> {
        std::mem::take(&mut self.missed)
    }
}
