// SPDX-License-Identifier: Apache-2.0
//! The ledger while tracing: where each thread's time went, computed from every event, including those not stored.

use gpuwhy_model::{Call, OffCpu, OpId, ThreadSums};
use gpuwhy_store::LedgerRow;
use gpuwhy_why::{Ledger, State, ThreadLedger};
use std::collections::HashMap;

/// Every thread's time so far.
pub(crate) struct LiveLedger {
    ledger: Ledger,
    /// The newest sums of threads that live, by process and thread.
    newest: HashMap<(u32, u32), ThreadSums>,
    /// Threads that ended since the last tick, and those that ended before it. After one more tick, all their records
    /// have come through the ring.
    ended: Vec<ThreadSums>,
    due: Vec<ThreadSums>,
}

impl LiveLedger {
    /// `start_ns`: start of the run, `CLOCK_MONOTONIC` nanoseconds.
    pub(crate) fn new(start_ns: u64) -> Self {
        let ledger = Ledger::new(start_ns, u64::MAX);
        Self { ledger, newest: HashMap::new(), ended: Vec::new(), due: Vec::new() }
    }

    /// Adds a batch of events, each list sorted by start.
    pub(crate) fn feed(&mut self, calls: &[Call], off: &[OffCpu]) {
        let mut off = off.iter().peekable();
        for call in calls {
            while let Some(off) = off.next_if(|off| off.start_ns < call.start_ns) {
                self.ledger.off(off);
            }
            self.ledger.call(call);
        }
        off.for_each(|off| self.ledger.off(off));
    }

    /// Sets a thread's sums, replacing earlier ones of the same thread.
    pub(crate) fn sums(&mut self, sums: ThreadSums) {
        let key = (sums.pid, sums.tid);
        let before = if sums.ended { self.newest.remove(&key) } else { self.newest.insert(key, sums) };
        // The end of an earlier thread with this id was lost.
        self.ended.extend(before.filter(|before| before.since_ns != sums.since_ns));
        if sums.ended {
            self.ended.push(sums);
        }
    }

    /// Closes the ledgers of threads that ended at least one tick ago.
    pub(crate) fn tick(&mut self) -> Vec<LedgerRow> {
        let due = std::mem::replace(&mut self.due, std::mem::take(&mut self.ended));
        self.close(&due)
    }

    /// Closes all ledgers that are still open.
    pub(crate) fn finish(&mut self) -> Vec<LedgerRow> {
        let mut all = std::mem::take(&mut self.due);
        all.append(&mut self.ended);
        all.extend(self.newest.drain().map(|(_, sums)| sums));
        self.close(&all)
    }

    fn close(&mut self, threads: &[ThreadSums]) -> Vec<LedgerRow> {
        threads.iter().flat_map(|sums| rows(sums, &self.ledger.close_thread(sums))).collect()
    }
}

/// The rows of a thread: time in each state, with the time inside CUDA split by function.
fn rows(sums: &ThreadSums, ledger: &ThreadLedger) -> Vec<LedgerRow> {
    let row = |state: State, op: Option<OpId>, ns: u64| LedgerRow {
        pid: sums.pid,
        tid: sums.tid,
        since_ns: sums.since_ns,
        state: state.name().to_owned(),
        op,
        ns,
    };
    let mut rows = Vec::new();
    let mut cuda = ledger.of(State::RunningCuda);
    for (op, ns) in &ledger.cuda {
        let ns = (*ns).min(cuda);
        cuda -= ns;
        rows.push(row(State::RunningCuda, Some(*op), ns));
    }
    rows.push(row(State::RunningCuda, None, cuda));
    let others = State::ALL.iter().filter(|state| **state != State::RunningCuda);
    rows.extend(others.map(|state| row(*state, None, ledger.of(*state))));
    rows.retain(|row| row.ns > 0);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwhy_model::{CallFlags, Reason, Wait, WokenBy, ops};

    const MS: u64 = 1_000_000;

    fn call(function: &str, from_ms: u64, to_ms: u64) -> Call {
        Call {
            start_ns: from_ms * MS,
            duration_ns: (to_ms - from_ms) * MS,
            pid: 7,
            tid: 8,
            op: ops::by_function(function).unwrap().id,
            device: None,
            stream: None,
            arg0: None,
            arg1: None,
            ret: 0,
            flags: CallFlags::default(),
            weight: 1,
            stack: None,
        }
    }

    fn off(from_ms: u64, to_ms: u64, wait: Wait) -> OffCpu {
        OffCpu {
            start_ns: from_ms * MS,
            duration_ns: (to_ms - from_ms) * MS,
            ready_ns: 0,
            pid: 7,
            tid: 8,
            reason: Reason::Asleep,
            wait,
            syscall: None,
            file: 0,
            object: 0,
            timeout_ns: None,
            io_wait: false,
            woken_by: WokenBy::Nobody,
            waker_pid: 0,
            waker_tid: 0,
            left_cpu: 0,
            cpu: 0,
            unfinished: false,
            weight: 1,
            stack: None,
        }
    }

    fn sums(since_ms: u64, at_ms: u64, blocked_ms: u64, ended: bool) -> ThreadSums {
        ThreadSums {
            pid: 7,
            tid: 8,
            name: [0; 16],
            born_ns: since_ms * MS,
            since_ns: since_ms * MS,
            at_ns: at_ms * MS,
            on_cpu_ns: (at_ms - since_ms - blocked_ms) * MS,
            ready_ns: 0,
            blocked_ns: blocked_ms * MS,
            throttled_ns: 0,
            switches: 1,
            page_allocations: 0,
            page_bytes: 0,
            ended,
            has_times: true,
        }
    }

    fn short(rows: &[LedgerRow]) -> Vec<(u64, &str, Option<&str>, u64)> {
        let name = |op: OpId| op.get().map(|op| op.name.as_str());
        rows.iter().map(|row| (row.since_ns / MS, row.state.as_str(), row.op.and_then(name), row.ns / MS)).collect()
    }

    #[test]
    fn a_wait_inside_a_call_is_the_gpus_also_when_the_call_comes_later() {
        let mut live = LiveLedger::new(0);
        // Two calls with a wait inside each, and one wait between them.
        live.feed(&[call("cudaStreamSynchronize", 10, 20)], &[off(12, 18, Wait::Futex), off(25, 30, Wait::Pipe)]);
        live.feed(&[], &[off(41, 49, Wait::Poll)]);
        live.feed(&[call("cudaLaunchKernel", 32, 33), call("cudaStreamSynchronize", 40, 50)], &[]);
        live.sums(sums(0, 60, 19, false));
        let rows = live.finish();
        let expected = [
            (0, "running_cuda", Some("cudaStreamSync"), 6),
            (0, "running_cuda", Some("cudaLaunchKernel"), 1),
            (0, "running_host", None, 34),
            (0, "blocked_pipe", None, 5),
            (0, "blocked_gpu", None, 14),
        ];
        let mut found = short(&rows);
        found.sort_by_key(|row| expected.iter().position(|expected| expected == row));
        assert_eq!(found, expected);
        assert_eq!(rows.iter().map(|row| row.ns).sum::<u64>(), 60 * MS);
    }

    #[test]
    fn the_lives_of_one_number_are_told_apart_and_forgotten() {
        let mut live = LiveLedger::new(0);
        live.feed(&[], &[off(1, 9, Wait::Sleep)]);
        live.sums(sums(0, 5, 4, false));
        live.sums(sums(0, 10, 8, true));
        assert_eq!(live.tick(), [], "something may still be on its way");
        assert_eq!(short(&live.tick()), [(0, "running_host", None, 2), (0, "blocked_sleep", None, 8)]);
        live.sums(sums(20, 25, 5, false));
        // Its end is lost; another thread has the number.
        live.sums(sums(30, 31, 0, false));
        assert_eq!(short(&live.finish()), [(20, "blocked_other", None, 5), (30, "running_host", None, 1)]);
        assert_eq!(live.finish(), []);
    }
}
