// SPDX-License-Identifier: Apache-2.0
//! Which probes may be removed. A probe stands in a file that any process may use, so it goes only when every process that
//! makes CUDA calls has given the function up: what one of them costs itself must not blind another.

use gpuwhy_model::OpId;
use std::collections::{BTreeMap, BTreeSet};

/// A probe that was put back for a new process stays for so long, ns: processes that come and go must not have gpuwhy do
/// nothing else.
const STAYS_NS: u64 = 10_000_000_000;
/// A process is new for so long, ns.
const NEW_NS: u64 = 1_000_000_000;

/// A process that makes CUDA calls.
#[derive(Debug, Default)]
struct Caller {
    /// When its first call was seen, `CLOCK_MONOTONIC` ns.
    since_ns: u64,
    /// What it gave up.
    given_up: BTreeSet<OpId>,
    /// Whether it can do without Python stacks at switches, which are read for all or for none.
    without_stacks: bool,
}

/// What the processes that make CUDA calls, and are alive, gave up.
#[derive(Debug, Default)]
pub struct Agreement {
    callers: BTreeMap<u32, Caller>,
    /// Functions without a probe.
    removed: BTreeSet<OpId>,
    /// Functions whose probes were put back for a new process, and when.
    staying: BTreeMap<OpId, u64>,
}

impl Agreement {
    /// A process made a call. True if it is new: then nothing may be without a probe, see [`Agreement::removed`].
    pub fn met(&mut self, pid: u32, at_ns: u64) -> bool {
        let is_new = !self.callers.contains_key(&pid);
        if is_new {
            self.callers.insert(pid, Caller { since_ns: at_ns, ..Caller::default() });
        }
        is_new
    }

    /// A process ended, or became another program.
    pub fn ended(&mut self, pid: u32) -> bool {
        self.callers.remove(&pid).is_some()
    }

    /// A process gives a function up.
    pub fn give_up(&mut self, pid: u32, op: OpId) {
        if let Some(caller) = self.callers.get_mut(&pid) {
            caller.given_up.insert(op);
        }
    }

    /// A process wants it again.
    pub fn take_back(&mut self, pid: u32, op: OpId) {
        if let Some(caller) = self.callers.get_mut(&pid) {
            caller.given_up.remove(&op);
        }
    }

    /// A process can do without Python stacks at switches, or not.
    pub fn set_without_stacks(&mut self, pid: u32, without: bool) {
        if let Some(caller) = self.callers.get_mut(&pid) {
            caller.without_stacks = without;
        }
    }

    /// Whether all processes can do without them.
    pub fn can_leave_out_stacks(&self) -> bool {
        !self.callers.is_empty() && self.callers.values().all(|caller| caller.without_stacks)
    }

    /// Functions whose probes may be removed now.
    pub fn to_remove(&self, now_ns: u64) -> Vec<OpId> {
        let given_up: BTreeSet<OpId> = self.callers.values().flat_map(|caller| &caller.given_up).copied().collect();
        let stays = |op: &OpId| self.staying.get(op).is_some_and(|since| now_ns.saturating_sub(*since) < STAYS_NS);
        let may_go = |op: &OpId| !self.removed.contains(op) && self.is_given_up(*op) && !stays(op);
        given_up.into_iter().filter(may_go).collect()
    }

    /// Functions whose probes must be put back. When nobody is left, too: the next process is then seen from its first call.
    pub fn to_put_back(&self) -> Vec<OpId> {
        self.removed.iter().copied().filter(|op| !self.is_given_up(*op)).collect()
    }

    /// Whether everybody gave it up.
    fn is_given_up(&self, op: OpId) -> bool {
        !self.callers.is_empty() && self.callers.values().all(|caller| caller.given_up.contains(&op))
    }

    /// A probe was removed, or put back.
    pub fn set_removed(&mut self, op: OpId, removed: bool, now_ns: u64) {
        self.staying.remove(&op);
        if removed {
            self.removed.insert(op);
            return;
        }
        self.removed.remove(&op);
        let is_new =
            |caller: &Caller| now_ns.saturating_sub(caller.since_ns) < NEW_NS && !caller.given_up.contains(&op);
        if self.callers.values().any(is_new) {
            self.staying.insert(op, now_ns);
        }
    }

    /// Whether a function has no probe.
    pub fn is_removed(&self, op: OpId) -> bool {
        self.removed.contains(&op)
    }

    /// Functions without a probe.
    pub fn removed(&self) -> impl Iterator<Item = OpId> {
        self.removed.iter().copied()
    }

    /// Since when a process makes calls, `CLOCK_MONOTONIC` ns; `None` for one that makes none.
    pub fn since_ns(&self, pid: u32) -> Option<u64> {
        self.callers.get(&pid).map(|caller| caller.since_ns)
    }

    /// The processes, by number.
    pub fn callers(&self) -> impl Iterator<Item = u32> {
        self.callers.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAUNCH: OpId = OpId(1);
    const COPY: OpId = OpId(2);
    const NOISY: u32 = 10;
    const QUIET: u32 = 11;

    const SECOND: u64 = 1_000_000_000;

    /// Does what it asks for.
    fn settle_at(agreement: &mut Agreement, now_ns: u64) -> (Vec<OpId>, Vec<OpId>) {
        let (remove, back) = (agreement.to_remove(now_ns), agreement.to_put_back());
        remove.iter().for_each(|op| agreement.set_removed(*op, true, now_ns));
        back.iter().for_each(|op| agreement.set_removed(*op, false, now_ns));
        (remove, back)
    }

    /// The same when nobody is new.
    fn settle(agreement: &mut Agreement) -> (Vec<OpId>, Vec<OpId>) {
        settle_at(agreement, 100 * SECOND)
    }

    #[test]
    fn a_probe_goes_at_once_where_one_process_makes_calls() {
        let mut agreement = Agreement::default();
        assert!(agreement.met(NOISY, 5) && !agreement.met(NOISY, 9));
        assert_eq!(agreement.since_ns(NOISY), Some(5));
        agreement.give_up(NOISY, LAUNCH);
        assert_eq!(settle(&mut agreement), (vec![LAUNCH], vec![]));
        assert_eq!(settle(&mut agreement), (vec![], vec![]), "once");
        agreement.take_back(NOISY, LAUNCH);
        assert_eq!(settle(&mut agreement), (vec![], vec![LAUNCH]));
    }

    #[test]
    fn a_probe_stays_for_a_quiet_process_and_goes_when_all_agree() {
        let mut agreement = Agreement::default();
        agreement.met(NOISY, 1);
        agreement.met(QUIET, 2);
        agreement.give_up(NOISY, LAUNCH);
        agreement.give_up(QUIET, COPY);
        assert_eq!(settle(&mut agreement), (vec![], vec![]));
        agreement.give_up(QUIET, LAUNCH);
        assert_eq!(settle(&mut agreement), (vec![LAUNCH], vec![]));
        assert!(agreement.is_removed(LAUNCH) && !agreement.is_removed(COPY));
        // One of them wants it again.
        agreement.take_back(QUIET, LAUNCH);
        assert_eq!(settle(&mut agreement), (vec![], vec![LAUNCH]));
        assert!(agreement.ended(QUIET));
        assert_eq!(settle(&mut agreement), (vec![LAUNCH], vec![]), "only the noisy one is left");
    }

    #[test]
    fn probes_come_back_for_a_new_process_and_when_nobody_is_left() {
        let mut agreement = Agreement::default();
        agreement.met(NOISY, 1);
        agreement.give_up(NOISY, LAUNCH);
        settle(&mut agreement);
        agreement.met(QUIET, 2);
        assert_eq!(settle(&mut agreement), (vec![], vec![LAUNCH]));
        agreement.ended(QUIET);
        assert_eq!(settle(&mut agreement), (vec![LAUNCH], vec![]));
        agreement.ended(NOISY);
        assert_eq!(settle(&mut agreement), (vec![], vec![LAUNCH]));
        assert!(!agreement.ended(NOISY));
        agreement.give_up(NOISY, LAUNCH);
        assert_eq!(settle(&mut agreement), (vec![], vec![]), "who has ended has no say");
    }

    #[test]
    fn processes_that_come_and_go_do_not_have_probes_removed_each_time() {
        let mut agreement = Agreement::default();
        agreement.met(NOISY, SECOND);
        agreement.give_up(NOISY, LAUNCH);
        assert_eq!(settle_at(&mut agreement, SECOND), (vec![LAUNCH], vec![]), "the first time at once");
        agreement.met(QUIET, 20 * SECOND);
        assert_eq!(settle_at(&mut agreement, 20 * SECOND), (vec![], vec![LAUNCH]));
        agreement.ended(QUIET);
        assert_eq!(settle_at(&mut agreement, 21 * SECOND), (vec![], vec![]));
        assert_eq!(settle_at(&mut agreement, 30 * SECOND), (vec![LAUNCH], vec![]));
        // Whether its own calls can be followed again, a process may try when it likes.
        agreement.take_back(NOISY, LAUNCH);
        assert_eq!(settle_at(&mut agreement, 60 * SECOND), (vec![], vec![LAUNCH]));
        agreement.give_up(NOISY, LAUNCH);
        assert_eq!(settle_at(&mut agreement, 61 * SECOND), (vec![LAUNCH], vec![]));
    }

    #[test]
    fn stacks_are_left_out_when_all_can_do_without() {
        let mut agreement = Agreement::default();
        agreement.met(NOISY, 1);
        agreement.set_without_stacks(NOISY, true);
        assert!(agreement.can_leave_out_stacks());
        agreement.met(QUIET, 2);
        assert!(!agreement.can_leave_out_stacks());
        agreement.set_without_stacks(QUIET, true);
        assert!(agreement.can_leave_out_stacks());
        agreement.set_without_stacks(QUIET, false);
        assert!(!agreement.can_leave_out_stacks());
    }
}
