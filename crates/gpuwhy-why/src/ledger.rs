// SPDX-License-Identifier: Apache-2.0
//! The ledger: where each thread's time went. Its states add up to the time the thread was watched.
//!
//! It takes events while tracing (calls arrive when they return) or from a run file (in order of start): only which time off
//! the CPU lies inside which call matters. Times are nanoseconds of one clock of the caller's choice.

use crate::state::{State, blocked_state, ready_state};
use crate::weights::{Between, stretched};
use gpuwhy_model::{Call, Class, OffCpu, OpId, ThreadSums};
use std::collections::{BTreeMap, HashMap};

/// Times off the CPU kept per thread until the call around them returns.
const PENDING: usize = 4096;
/// The same for a thread that never made a call.
const PENDING_WITHOUT_CALLS: usize = 64;

/// One thread's time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThreadLedger {
    /// Nanoseconds in each state, by its position in [`State::ALL`].
    pub states: [u64; State::ALL.len()],
    /// `running_cuda` by function.
    pub cuda: BTreeMap<OpId, u64>,
    /// How long it was watched.
    pub wall_ns: u64,
}

impl ThreadLedger {
    /// Nanoseconds in a state.
    pub fn of(&self, state: State) -> u64 {
        self.states[state as usize]
    }

    /// All states together.
    pub fn total(&self) -> u64 {
        self.states.iter().sum()
    }
}

#[derive(Debug, Default)]
struct Growing {
    ledger: ThreadLedger,
    /// The newest outermost call.
    last: Option<(u64, u64, OpId)>,
    /// Times off the CPU that may still turn out to be inside a call.
    pending: Vec<OffCpu>,
    between: Between,
    /// When its last time off the CPU ended.
    off_until: u64,
    /// Time off the CPU so far, and its blocked, ready and throttled parts.
    off_ns: u64,
    /// Times of its first and last event.
    seen: Option<(u64, u64)>,
}

/// Every thread's time within a range.
#[derive(Debug)]
pub struct Ledger {
    from: u64,
    to: u64,
    threads: HashMap<(u32, u32), Growing>,
}

impl Ledger {
    /// An empty ledger for the time between these two.
    pub fn new(from: u64, to: u64) -> Self {
        Self { from, to, threads: HashMap::new() }
    }

    /// A CUDA call. Calls inside others and kernel events are ignored.
    pub fn call(&mut self, call: &Call) {
        if call.flags.inner || !call.op.is_cuda() {
            return;
        }
        let end = call.start_ns.saturating_add(call.duration_ns);
        let (from, to) = (self.from, self.to);
        let thread = self.threads.entry((call.pid, call.tid)).or_default();
        thread.see(call.start_ns.max(from), end.min(to));
        // A call inside another, made from a callback: its time belongs to the outer one.
        if thread.last.is_some_and(|(start, last, _)| call.start_ns < last && call.start_ns >= start) {
            return;
        }
        // Calls it represents count as far back as the range reaches.
        let others = thread.between.take(call).ns.min(call.start_ns.min(to).saturating_sub(from));
        let ns = end.min(to).saturating_sub(call.start_ns.max(from)).saturating_add(others);
        *thread.ledger.cuda.entry(call.op).or_default() += ns;
        thread.ledger.states[State::RunningCuda as usize] += ns;
        thread.last = Some((call.start_ns, end, call.op));
        for off in std::mem::take(&mut thread.pending) {
            if off.start_ns >= end {
                // The call came late: the call around this one may still come.
                thread.pending.push(off);
                continue;
            }
            let inside = (off.start_ns >= call.start_ns && off.start_ns < end).then_some(call.op);
            thread.settle(&off, inside, from, to);
        }
    }

    /// A time off the CPU.
    pub fn off(&mut self, off: &OffCpu) {
        let (from, to) = (self.from, self.to);
        let end = off.start_ns.saturating_add(off.duration_ns);
        if end <= from || off.start_ns >= to {
            return;
        }
        let thread = self.threads.entry((off.pid, off.tid)).or_default();
        thread.see(off.start_ns.max(from), end.min(to));
        let off = &stretched(off, thread.off_until);
        thread.off_until = thread.off_until.max(end);
        match thread.last {
            Some((start, end, op)) if off.start_ns >= start && off.start_ns < end => {
                thread.settle(off, Some(op), from, to);
            }
            last => {
                thread.pending.push(*off);
                let most = if last.is_some() { PENDING } else { PENDING_WITHOUT_CALLS };
                if thread.pending.len() >= most {
                    for off in std::mem::take(&mut thread.pending) {
                        thread.settle(&off, None, from, to);
                    }
                }
            }
        }
    }

    /// Closes the account of a thread that has ended and drops it: a job that creates threads without end must not fill the
    /// memory. `sums` are the kernel's, as in [`Ledger::close`].
    pub fn close_thread(&mut self, sums: &ThreadSums) -> ThreadLedger {
        let thread = self.threads.remove(&(sums.pid, sums.tid)).unwrap_or_default();
        thread.close(Some(&vec![sums]), self.from, self.to)
    }

    /// Closes the accounts. `sums` are the kernel's for each thread, on the same clock: how long the thread was watched and,
    /// where the range covers all of that, how long it was on a CPU, ready and blocked, so that lost events cannot unbalance
    /// the ledger.
    pub fn close(mut self, sums: &[ThreadSums]) -> BTreeMap<(u32, u32), ThreadLedger> {
        let (from, to) = (self.from, self.to);
        let mut lives: HashMap<(u32, u32), Vec<&ThreadSums>> = HashMap::new();
        for sums in sums.iter().filter(|sums| sums.has_times && sums.since_ns < to && sums.at_ns > from) {
            lives.entry((sums.pid, sums.tid)).or_default().push(sums);
            self.threads.entry((sums.pid, sums.tid)).or_default();
        }
        let close = |(key, thread): ((u32, u32), Growing)| (key, thread.close(lives.get(&key), from, to));
        self.threads.into_iter().map(close).filter(|(_, ledger)| ledger.wall_ns > 0).collect()
    }
}

impl Growing {
    fn see(&mut self, from: u64, to: u64) {
        let seen = self.seen.get_or_insert((from, to));
        *seen = (seen.0.min(from), seen.1.max(to));
    }

    /// Counts a time off the CPU, inside a call or not.
    fn settle(&mut self, off: &OffCpu, inside: Option<OpId>, from: u64, to: u64) {
        let end = off.start_ns.saturating_add(off.duration_ns);
        let woken = end.saturating_sub(off.ready_ns).max(off.start_ns);
        let class = inside.and_then(OpId::get).map(|op| op.class);
        let clip = |start: u64, end: u64| end.min(to).saturating_sub(start.max(from));
        let (blocked, ready) = (clip(off.start_ns, woken), clip(woken, end));
        for (state, ns) in [(blocked_state(off, class), blocked), (ready_state(off), ready)] {
            let sum = &mut self.ledger.states[state as usize];
            *sum = sum.saturating_add(ns);
            self.off_ns = self.off_ns.saturating_add(ns);
        }
        if let Some(op) = inside {
            // The call's time was already counted as running.
            let off_in_call = (blocked + ready).min(self.ledger.states[State::RunningCuda as usize]);
            self.ledger.states[State::RunningCuda as usize] -= off_in_call;
            if let Some(ns) = self.ledger.cuda.get_mut(&op) {
                *ns = ns.saturating_sub(off_in_call);
            }
        }
    }

    fn close(mut self, lives: Option<&Vec<&ThreadSums>>, from: u64, to: u64) -> ThreadLedger {
        for off in std::mem::take(&mut self.pending) {
            self.settle(&off, None, from, to);
        }
        let class_of = |op: &OpId| op.get().map(|op| op.class);
        self.ledger.cuda.retain(|op, ns| *ns > 0 || class_of(op) == Some(Class::Sync));
        let Some(lives) = lives else {
            // Without sums, the thread existed from its first to its last event.
            let (first, last) = self.seen.unwrap_or_default();
            self.ledger.wall_ns = last.saturating_sub(first).max(self.off_ns);
            self.fill_running();
            return self.ledger;
        };
        self.ledger.wall_ns = lives.iter().map(|life| life.at_ns.min(to).saturating_sub(life.since_ns.max(from))).sum();
        if lives.iter().all(|life| life.since_ns >= from && life.at_ns <= to) {
            self.trust_the_kernel(lives);
        }
        self.fill_running();
        self.ledger
    }

    /// The kernel's sums include lost events: their time is known, not its reason.
    fn trust_the_kernel(&mut self, lives: &[&ThreadSums]) {
        let sum = |of: fn(&ThreadSums) -> u64| lives.iter().map(|life| of(life)).sum::<u64>();
        let states = &mut self.ledger.states;
        let blocked: u64 = states[State::BlockedFutex as usize..].iter().sum();
        let missing = [
            (State::Throttled, sum(|life| life.throttled_ns), states[State::Throttled as usize]),
            (State::BlockedOther, sum(|life| life.blocked_ns), blocked),
        ];
        for (state, known, counted) in missing {
            let more = known.saturating_sub(counted);
            states[state as usize] += more;
            self.off_ns += more;
        }
        let ready = sum(|life| life.ready_ns).saturating_sub(sum(|life| life.throttled_ns));
        let more = ready.saturating_sub(states[State::Ready as usize]);
        states[State::Ready as usize] += more;
        self.off_ns += more;
    }

    /// The rest is running; outside of calls it is the program's own time.
    fn fill_running(&mut self) {
        let running = self.ledger.wall_ns.saturating_sub(self.off_ns);
        let cuda = &mut self.ledger.states[State::RunningCuda as usize];
        *cuda = (*cuda).min(running);
        self.ledger.states[State::RunningHost as usize] = running - *cuda;
    }
}
