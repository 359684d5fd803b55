// SPDX-License-Identifier: Apache-2.0
//! Keeps tracing within its budget: counts what it costs, asks the governor, does what that says and tells of it.

use crate::trace::cost::OwnCost;
use gpuwhy_capture::batch::Batch;
use gpuwhy_capture::governor::{Action, Budget, Cost, Counted, Decision, Governor, Load, OpHits, Prices, ProbePrice};
use gpuwhy_capture::{Capture, FirstInstruction, OpTraps, ProbePrices, Traps};
use gpuwhy_model::{Class, OpId};
use gpuwhy_store::GovernorRow;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// A switch costs its tracepoint, too, and the wake-up before it; ns, as measured by `bench/host.py`.
const AROUND_A_SWITCH_NS: f64 = 150.0;

/// A probe in a job costs this many times what it costs in a tight loop, where all it touches is in the cache.
const COLD: f64 = 1.6;

/// Events since the last time, by process and thread.
///
/// A process's threads take turns more often than not: backward waits for forward, and the interpreter's lock lets one go on
/// at a time. So what calls cost each of them adds up. Switches are mostly those of threads that wait beside the work: of
/// them the busiest thread's count.
#[derive(Debug, Default)]
struct Counts {
    /// What calls cost by process, ns.
    calls: HashMap<u32, f64>,
    switches: HashMap<(u32, u32), u64>,
}

impl Counts {
    /// Of the process that has most to pay: the part of what all calls cost that is its own, and its switches.
    fn busiest(&self, prices: &Prices) -> (f64, u64) {
        let mut by_process: HashMap<u32, (f64, u64)> = self.calls.iter().map(|(pid, ns)| (*pid, (*ns, 0))).collect();
        for ((pid, _), switches) in &self.switches {
            let of = by_process.entry(*pid).or_default();
            of.1 = of.1.max(*switches);
        }
        let ns = |of: &(f64, u64)| of.0 + of.1 as f64 * prices.switch_ns;
        let most = by_process.values().copied().max_by(|a, b| ns(a).total_cmp(&ns(b))).unwrap_or_default();
        let all: f64 = self.calls.values().sum();
        (if all > 0.0 { most.0 / all } else { 1.0 }, most.1)
    }
}

/// What probes that stand on one kind of instruction have cost the job.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct InstructionCost {
    /// The kind.
    pub(crate) first_instruction: &'static str,
    /// As in [`JobCost`], for this kind.
    pub(crate) call_ns: f64,
    pub(crate) counted_ns: f64,
    /// Functions that begin like this and were called.
    pub(crate) functions: BTreeSet<&'static str>,
    /// Their calls in the job's busiest process, and what they are estimated to have cost it, ns.
    pub(crate) calls: u64,
    pub(crate) cost_ns: f64,
}

/// What tracing has cost so far, for the summary and the run file.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct JobCost {
    /// Time added to the job's busiest process, as a part of the time it was watched: probes on functions.
    pub(crate) probes: f64,
    /// The same: following the scheduler.
    pub(crate) switches: f64,
    /// A call followed from entry to return, without a stack, ns; measured at the start, on a function that begins with a
    /// `push`, as most do.
    pub(crate) call_ns: f64,
    /// One that is only counted, ns.
    pub(crate) counted_ns: f64,
    /// The same by the instruction that the probes stand on.
    pub(crate) by_instruction: Vec<InstructionCost>,
}

/// The budget of a run.
pub(crate) struct Budgeting {
    governor: Governor,
    measured: ProbePrices,
    prices: Prices,
    traps: HashMap<OpId, Traps>,
    /// What a call of each function costs, ns, by its number.
    call_ns: Vec<f64>,
    by_instruction: BTreeMap<FirstInstruction, InstructionCost>,
    switch_traps: Traps,
    counts: Counts,
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
        let measured = capture.calibrate().unwrap_or_default();
        let prices = Prices { record_ns: 500.0, ..Prices::default() };
        let now = Instant::now();
        Self {
            governor: Governor::new(budget, prices),
            measured,
            prices,
            traps: HashMap::new(),
            call_ns: Vec::new(),
            by_instruction: BTreeMap::new(),
            switch_traps: Traps::default(),
            counts: Counts::default(),
            records: 0,
            stacks: 0,
            own_cpu_ns: OwnCost::so_far(ring_bytes, capture.looking_ns()).cpu_ns,
            ring_bytes,
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            last: now,
            next: now + Duration::from_millis(100),
            sums: (0.0, 0.0),
            seconds: 0.0,
            incomplete: BTreeSet::new(),
        }
    }

    /// Counts a batch.
    pub(crate) fn note(&mut self, batch: &Batch) {
        // Most come in rows of one process.
        let mut last = (0, 0.0);
        let usual_ns = ProbePrice::default().call_ns;
        let call_ns = &self.call_ns;
        let mut add = |counts: &mut Counts, pid: u32, op: OpId, calls: u64| {
            if pid != last.0 {
                *counts.calls.entry(last.0).or_default() += last.1;
                last = (pid, 0.0);
            }
            last.1 += calls as f64 * call_ns.get(usize::from(op.0)).copied().unwrap_or(usual_ns);
        };
        for call in batch.calls.iter().filter(|call| call.op.is_cuda()) {
            add(&mut self.counts, call.pid, call.op, call.calls());
            self.records += 1;
            self.stacks += u64::from(call.stack.is_some());
        }
        for event in &batch.tensors {
            add(&mut self.counts, event.pid, event.op, 1);
            self.records += 1;
            self.stacks += u64::from(event.stack.is_some());
        }
        *self.counts.calls.entry(last.0).or_default() += last.1;
        for off in &batch.off {
            *self.counts.switches.entry((off.pid, off.tid)).or_default() += 1;
        }
    }

    /// To be called often. When it is time, sees what tracing costs and does something about it; says what.
    /// `aside_ns`: CPU time so far of a thread of gpuwhy's that gives way to everybody and has a budget of its own.
    pub(crate) fn tick(&mut self, capture: &mut Capture, now_ns: u64, aside_ns: u64) -> Vec<GovernorRow> {
        if Instant::now() < self.next {
            return Vec::new();
        }
        let load = self.load(capture, aside_ns);
        self.governor.set_prices(self.prices);
        let verdict = self.governor.feed(&load);
        self.add_up(&verdict.cost, load.wall);
        self.next = self.last + verdict.next_in;
        let mut rows = Vec::new();
        for Decision { action, words } in verdict.decisions {
            if !capture.follow(action) {
                self.governor.failed(action);
                continue;
            }
            if let Action::Detach(op) = action {
                self.incomplete.extend(op.get().map(|op| op.name.as_str()));
            }
            rows.push(GovernorRow { at_ns: now_ns, op: op_of(action), action: name(action).into(), reason: words });
        }
        rows
    }

    /// Takes what came since the last tick into account: a short job may have had none.
    pub(crate) fn finish(&mut self, capture: &Capture, aside_ns: u64) {
        let load = self.load(capture, aside_ns);
        let cost = self.governor.feed(&load).cost;
        self.add_up(&cost, load.wall);
    }

    fn load(&mut self, capture: &Capture, aside_ns: u64) -> Load {
        // Calls that gpuwhy is not told of, inner ones and lost ones, are where the others are.
        let (share, switches) = std::mem::take(&mut self.counts).busiest(&self.prices);
        let records = std::mem::take(&mut self.records).max(1);
        let with_stack = std::mem::take(&mut self.stacks) as f64 / records as f64;
        let (mut ops, mut spent) = (Vec::new(), Traps::default());
        for OpTraps { op, first, traps } in capture.traps() {
            let since = traps.since(self.traps.insert(op, traps).unwrap_or_default());
            spent.timed += since.timed;
            spent.spent_ns += since.spent_ns;
            let part = |n: u64| (n as f64 * share).round() as u64;
            // The allocator's reports are followed as far as they ever are.
            let is_report = op.get().is_some_and(|op| op.class == Class::Tensor);
            let full = if is_report { since.entered } else { since.followed };
            let stacks = (full as f64 * share * with_stack.min(1.0)).round() as u64;
            let (first, price) = self.price_of(&first);
            let hits = OpHits { op, hits: part(since.entered), full: part(full), stacks, price };
            self.note_price(first, &hits);
            ops.push(hits);
        }
        self.price(spent, with_stack);
        let traps = capture.switch_traps();
        let switched = traps.since(std::mem::replace(&mut self.switch_traps, traps));
        if let Some(ns) = switched.average_ns() {
            // A time off the CPU is two switches; stacks are in it.
            self.prices.switch_ns = 2.0 * ns + AROUND_A_SWITCH_NS;
        }
        let (now, all) = (Instant::now(), OwnCost::so_far(self.ring_bytes, capture.looking_ns()).cpu_ns);
        let own = all.saturating_sub(aside_ns);
        let wall = now.duration_since(std::mem::replace(&mut self.last, now));
        let own_cpu = Duration::from_nanos(own.saturating_sub(std::mem::replace(&mut self.own_cpu_ns, own)));
        Load { wall, ops, switches, switch_stacks: 0, counted: Counted::BusiestThread, own_cpu, cpus: self.cpus }
    }

    /// Of a function whose copies begin differently, nobody knows which is called: the most that it may cost.
    fn price_of(&self, first: &BTreeSet<FirstInstruction>) -> (FirstInstruction, ProbePrice) {
        let prices = first.iter().map(|first| (*first, self.measured.on(*first)));
        let (first, measured) = prices
            .max_by(|a, b| a.1.call_ns.total_cmp(&b.1.call_ns))
            .unwrap_or((FirstInstruction::Other, self.measured.on(FirstInstruction::Other)));
        (first, ProbePrice { entry_ns: COLD * measured.entry_ns, call_ns: COLD * measured.call_ns })
    }

    /// Remembers what a function's calls cost, and what these did.
    fn note_price(&mut self, first: FirstInstruction, hits: &OpHits) {
        let at = usize::from(hits.op.0);
        if self.call_ns.len() <= at {
            self.call_ns.resize(at + 1, ProbePrice::default().call_ns);
        }
        self.call_ns[at] = hits.price.followed_ns(hits.op);
        let measured = self.measured.on(first);
        let of = self.by_instruction.entry(first).or_insert_with(|| InstructionCost {
            first_instruction: first.name(),
            call_ns: measured.call_ns.round(),
            counted_ns: measured.entry_ns.round(),
            functions: BTreeSet::new(),
            calls: 0,
            cost_ns: 0.0,
        });
        of.functions.extend(hits.op.get().map(|op| op.function.as_str()));
        of.calls += hits.hits;
        of.cost_ns += hits.probe_ns();
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
        let usual = self.measured.on(FirstInstruction::Push);
        JobCost {
            probes: self.sums.0 / seconds,
            switches: self.sums.1 / seconds,
            call_ns: usual.call_ns.round(),
            counted_ns: usual.entry_ns.round(),
            by_instruction: self.by_instruction.values().cloned().collect(),
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
