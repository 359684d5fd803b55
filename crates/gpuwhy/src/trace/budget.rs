// SPDX-License-Identifier: Apache-2.0
//! Keeps tracing within its budget: counts what it costs, asks the governor, does what that says and tells of it.

use crate::trace::cost::OwnCost;
use gpuwhy_capture::batch::Batch;
use gpuwhy_capture::governor::{Action, Budget, Cost, Counted, Decision, Governor, Load, OpHits, Prices};
use gpuwhy_capture::{Capture, ProbePrices, Traps};
use gpuwhy_model::OpId;
use gpuwhy_store::GovernorRow;
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// A switch costs its tracepoint, too, and the wake-up before it; ns, as measured by `bench/host.py`.
const AROUND_A_SWITCH_NS: f64 = 150.0;

/// A thread's events since the last time.
#[derive(Debug, Clone, Copy, Default)]
struct OfThread {
    calls: u64,
    switches: u64,
}

/// What tracing has cost so far, for the summary and the run file.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct JobCost {
    /// Time added to the job's busiest thread, as a part of the time it was watched: probes on functions.
    pub(crate) probes: f64,
    /// The same: following the scheduler.
    pub(crate) switches: f64,
    /// A call followed from entry to return, without a stack, ns; measured at the start.
    pub(crate) call_ns: f64,
    /// One that is only counted, ns.
    pub(crate) counted_ns: f64,
}

/// The budget of a run.
pub(crate) struct Budgeting {
    governor: Governor,
    measured: ProbePrices,
    prices: Prices,
    traps: HashMap<OpId, Traps>,
    switch_traps: Traps,
    threads: HashMap<u32, OfThread>,
    /// Records of calls, and those of them with a stack.
    records: u64,
    stacks: u64,
    own_cpu_ns: u64,
    ring_bytes: u32,
    cpus: u32,
    last: Instant,
    next: Instant,
    /// Costs so far, each times the seconds it was for.
    sums: (f64, f64),
    seconds: f64,
    /// Functions whose calls were not all seen.
    incomplete: BTreeSet<&'static str>,
}

impl Budgeting {
    /// Measures what probes cost here and begins.
    pub(crate) fn start(budget: Budget, capture: &mut Capture, ring_bytes: u32) -> Self {
        let usual = Prices::default();
        let guessed = ProbePrices { call_ns: usual.call_ns, counted_ns: usual.entry_ns, leave_ns: 400.0 };
        let measured = capture.calibrate().unwrap_or(guessed);
        let prices = Prices { entry_ns: measured.counted_ns, call_ns: measured.call_ns, ..usual };
        let now = Instant::now();
        Self {
            governor: Governor::new(budget, prices),
            measured,
            prices,
            traps: HashMap::new(),
            switch_traps: Traps::default(),
            threads: HashMap::new(),
            records: 0,
            stacks: 0,
            own_cpu_ns: OwnCost::so_far(ring_bytes).cpu_ns,
            ring_bytes,
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            last: now,
            next: now + Duration::from_millis(100),
            sums: (0.0, 0.0),
            seconds: 0.0,
            incomplete: BTreeSet::new(),
        }
    }

    /// Counts a batch by thread.
    pub(crate) fn note(&mut self, batch: &Batch) {
        let mut last: (u32, OfThread) = (0, OfThread::default());
        let mut add = |threads: &mut HashMap<u32, OfThread>, tid: u32, calls: u64, switches: u64| {
            if tid != last.0 {
                let of = threads.entry(last.0).or_default();
                of.calls += last.1.calls;
                of.switches += last.1.switches;
                last = (tid, OfThread::default());
            }
            last.1.calls += calls;
            last.1.switches += switches;
        };
        for call in batch.calls.iter().filter(|call| call.op.is_cuda()) {
            add(&mut self.threads, call.tid, call.calls(), 0);
            self.records += 1;
            self.stacks += u64::from(call.stack.is_some());
        }
        for event in &batch.tensors {
            add(&mut self.threads, event.tid, 1, 0);
            self.records += 1;
            self.stacks += u64::from(event.stack.is_some());
        }
        for off in &batch.off {
            add(&mut self.threads, off.tid, 0, 1);
        }
        add(&mut self.threads, 0, 0, 0);
    }

    /// To be called often. When it is time, sees what tracing costs and does something about it; says what.
    pub(crate) fn tick(&mut self, capture: &mut Capture, now_ns: u64) -> Vec<GovernorRow> {
        if Instant::now() < self.next {
            return Vec::new();
        }
        let load = self.load(capture);
        self.governor.set_prices(self.prices);
        let verdict = self.governor.feed(&load);
        self.add_up(&verdict.cost, load.wall);
        self.next = self.last + verdict.next_in;
        let mut rows = Vec::new();
        for Decision { action, words } in verdict.decisions {
            capture.follow(action);
            if let Action::Detach(op) = action {
                self.incomplete.extend(op.get().map(|op| op.name.as_str()));
            }
            rows.push(GovernorRow { at_ns: now_ns, op: op_of(action), action: name(action).into(), reason: words });
        }
        rows
    }

    fn load(&mut self, capture: &Capture) -> Load {
        let threads = std::mem::take(&mut self.threads);
        let busiest = threads.iter().filter(|(tid, _)| **tid != 0).map(|(_, of)| *of).max_by(|a, b| {
            let ns = |of: &OfThread| of.calls as f64 * self.prices.call_ns + of.switches as f64 * self.prices.switch_ns;
            ns(a).total_cmp(&ns(b))
        });
        let busiest = busiest.unwrap_or_default();
        let calls: u64 = threads.values().map(|of| of.calls).sum();
        // Calls that gpuwhy is not told of, inner ones and lost ones, are where the others are.
        let share = if calls > 0 { busiest.calls as f64 / calls as f64 } else { 1.0 };
        let records = std::mem::take(&mut self.records).max(1);
        let with_stack = std::mem::take(&mut self.stacks) as f64 / records as f64;
        let (mut ops, mut spent) = (Vec::new(), Traps::default());
        for (op, traps) in capture.traps() {
            let since = traps.since(self.traps.insert(op, traps).unwrap_or_default());
            spent.timed += since.timed;
            spent.spent_ns += since.spent_ns;
            let part = |n: u64| (n as f64 * share).round() as u64;
            let full = if since.followed == 0 { since.entered } else { since.followed };
            let stacks = (full as f64 * share * with_stack.min(1.0)).round() as u64;
            ops.push(OpHits { op, hits: part(since.entered), full: part(full), stacks });
        }
        self.price(spent, with_stack);
        let traps = capture.switch_traps();
        let switched = traps.since(std::mem::replace(&mut self.switch_traps, traps));
        if let Some(ns) = switched.average_ns() {
            // A time off the CPU is two switches; stacks are in it.
            self.prices.switch_ns = 2.0 * ns + AROUND_A_SWITCH_NS;
        }
        let (now, own) = (Instant::now(), OwnCost::so_far(self.ring_bytes).cpu_ns);
        let wall = now.duration_since(std::mem::replace(&mut self.last, now));
        let own_cpu = Duration::from_nanos(own.saturating_sub(std::mem::replace(&mut self.own_cpu_ns, own)));
        let switches = busiest.switches;
        Load { wall, ops, switches, switch_stacks: 0, counted: Counted::BusiestThread, own_cpu, cpus: self.cpus }
    }

    /// What the program does at a return beyond what it did when it was measured is the stack's price.
    fn price(&mut self, spent: Traps, with_stack: f64) {
        if let Some(ns) = spent.average_ns().filter(|_| with_stack > 0.1) {
            self.prices.stack_ns = ((ns - self.measured.leave_ns) / with_stack).clamp(0.0, 20_000.0);
        }
    }

    fn add_up(&mut self, cost: &Cost, wall: Duration) {
        let seconds = wall.as_secs_f64();
        self.seconds += seconds;
        self.sums.0 += cost.probes * seconds;
        self.sums.1 += cost.switches * seconds;
    }

    /// Functions that were let go for a while: how often they were called is not known.
    pub(crate) fn incomplete(&self) -> Vec<&'static str> {
        self.incomplete.iter().copied().collect()
    }

    /// What tracing has cost so far.
    pub(crate) fn cost(&self) -> JobCost {
        let seconds = self.seconds.max(1e-9);
        JobCost {
            probes: self.sums.0 / seconds,
            switches: self.sums.1 / seconds,
            call_ns: self.measured.call_ns.round(),
            counted_ns: self.measured.counted_ns.round(),
        }
    }
}

fn op_of(action: Action) -> Option<OpId> {
    match action {
        Action::Sample(op) | Action::Unsample(op) | Action::Detach(op) | Action::Attach { op, .. } => Some(op),
        Action::StacksOff | Action::StacksOn => None,
    }
}

/// As the run file says it.
fn name(action: Action) -> &'static str {
    match action {
        Action::Sample(_) => "sample",
        Action::Unsample(_) => "full",
        Action::Detach(_) => "detach",
        Action::Attach { .. } => "attach",
        Action::StacksOff => "stacks_off",
        Action::StacksOn => "stacks_on",
    }
}
