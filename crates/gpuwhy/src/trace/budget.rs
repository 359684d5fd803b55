// SPDX-License-Identifier: Apache-2.0
//! Keeps tracing within its budget: counts what it costs each process, asks its governor, does what that says and tells of
//! it.

mod loads;

use crate::trace::cost::OwnCost;
use gpuwhy_capture::batch::Batch;
use gpuwhy_capture::capture::now_ns;
use gpuwhy_capture::governor::{
    ALERT_FOR, ALERT_PERIOD, Action, Budget, Cost, Counted, Decision, Governor, Load, PERIOD, Prices, ProbePrice,
};
use gpuwhy_capture::{Capture, FirstInstruction, Missed, OpTraps, ProbePrices, Traps};
use gpuwhy_model::OpId;
use gpuwhy_store::GovernorRow;
use loads::{Counts, Probed, ProcessLoad};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// A switch costs its tracepoint, too, and the wake-up before it; ns, as measured by `bench/host.py`.
const AROUND_A_SWITCH_NS: f64 = 150.0;

/// A probe in a job costs this many times what it costs in a tight loop, where all it touches is in the cache.
const COLD: f64 = 1.6;

/// A process gets a governor when it costs this part of the budget.
const WATCHED: f64 = 0.25;
/// Governors there are at most: a process beyond them is followed whole.
const MOST_GOVERNORS: usize = 256;

/// A process with a governor.
struct Governed {
    governor: Governor,
    /// Since when it makes calls, `CLOCK_MONOTONIC` ns: another process with its number has another.
    since_ns: u64,
    /// What it cost last, as a part of its time.
    cost: f64,
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
    budget: Budget,
    governors: BTreeMap<u32, Governed>,
    measured: ProbePrices,
    prices: Prices,
    traps: HashMap<OpId, Traps>,
    /// Calls that were not followed, by process and function, as of the last time.
    muted: HashMap<(u32, OpId), u64>,
    /// What a call of each function costs, ns, by its number.
    call_ns: Vec<f64>,
    by_instruction: BTreeMap<FirstInstruction, InstructionCost>,
    switch_traps: Traps,
    counts: Counts,
    own_cpu_ns: u64,
    ring_bytes: u32,
    cpus: u32,
    /// `CLOCK_MONOTONIC` ns.
    began_ns: u64,
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
            budget,
            governors: BTreeMap::new(),
            measured,
            prices,
            traps: HashMap::new(),
            muted: HashMap::new(),
            call_ns: Vec::new(),
            by_instruction: BTreeMap::new(),
            switch_traps: Traps::default(),
            counts: Counts::default(),
            own_cpu_ns: OwnCost::so_far(ring_bytes, capture.looking_ns()).cpu_ns,
            ring_bytes,
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            began_ns: now_ns(),
            last: now,
            next: now + Duration::from_millis(100),
            sums: (0.0, 0.0),
            seconds: 0.0,
            incomplete: BTreeSet::new(),
        }
    }

    /// Counts a batch.
    pub(crate) fn note(&mut self, batch: &Batch) {
        self.counts.note(batch, &self.call_ns);
    }

    /// To be called often. When it is time, sees what tracing costs each process and does something about it; says what.
    /// `aside_ns`: CPU time so far of a thread of gpuwhy's that gives way to everybody and has a budget of its own.
    pub(crate) fn tick(&mut self, capture: &mut Capture, now_ns: u64, aside_ns: u64) -> Vec<GovernorRow> {
        let mut rows = self.tell_missed(capture.take_missed());
        if Instant::now() < self.next {
            return rows;
        }
        let loads = self.loads(capture, aside_ns);
        self.forget_ended(capture);
        let is_new =
            |pid| capture.calls_since(pid).is_some_and(|since| now_ns.saturating_sub(since) < (ALERT_FOR * 1e9) as u64);
        let is_young = now_ns.saturating_sub(self.began_ns) < (ALERT_FOR * 1e9) as u64;
        let mut next_in = if is_young || capture.callers().any(is_new) { ALERT_PERIOD } else { PERIOD };
        for (pid, load) in loads {
            let prices = self.prices;
            let Some(governed) = self.governed(pid, &load, capture) else { continue };
            governed.governor.set_prices(prices);
            let verdict = governed.governor.feed(&load);
            governed.cost = verdict.cost.total();
            next_in = next_in.min(verdict.next_in);
            for decision in verdict.decisions {
                rows.extend(self.act(capture, pid, decision, now_ns));
            }
        }
        self.next = self.last + next_in;
        rows
    }

    /// Does what the governor of a process decided.
    fn act(&mut self, capture: &mut Capture, pid: u32, decision: Decision, now_ns: u64) -> Option<GovernorRow> {
        let Decision { action, words } = decision;
        let stacks_before = capture.reads_switch_stacks();
        if !capture.follow(pid, action) {
            self.governors.get_mut(&pid)?.governor.failed(action);
            return None;
        }
        let op = op_of(action);
        if let Action::Detach(op) = action {
            self.incomplete.extend(op.get().map(|op| op.name.as_str()));
        }
        // Stacks at switches are read for all processes or for none: what one of them wants may change nothing.
        let changes = op.is_some() || capture.reads_switch_stacks() != stacks_before;
        let pid = op.map(|_| pid);
        changes.then(|| GovernorRow { at_ns: now_ns, pid, op, action: name(action).into(), reason: words })
    }

    /// What new processes did before the probes were back that others had given up.
    fn tell_missed(&mut self, missed: Vec<Missed>) -> Vec<GovernorRow> {
        let mut rows = Vec::new();
        for Missed { pid, op, from_ns, to_ns } in missed {
            let name = op.get().map_or("a function", |op| op.name.as_str());
            self.incomplete.extend(op.get().map(|op| op.name.as_str()));
            let row = |at_ns, action: &str, reason| GovernorRow {
                at_ns,
                pid: Some(pid),
                op: Some(op),
                action: action.into(),
                reason,
            };
            rows.push(row(
                from_ns,
                "detach",
                format!("{name}: not followed at first, because the other processes had given it up"),
            ));
            rows.extend(
                to_ns.map(|to_ns| row(to_ns, "attach", format!("{name}: followed; its calls until now are unknown"))),
            );
        }
        rows
    }

    /// The governor of a process, if it costs enough to need one.
    fn governed(&mut self, pid: u32, load: &Load, capture: &Capture) -> Option<&mut Governed> {
        let Budget::Share(share) = self.budget else { return None };
        // One that has ended since, or whose every record was lost, is not met.
        let since_ns = capture.calls_since(pid)?;
        if !self.governors.contains_key(&pid) {
            let cost = Cost::of(load, &self.prices);
            let cost = cost.probes + cost.switches;
            if cost < share * WATCHED || !self.has_room(cost) {
                return None;
            }
            let age = Duration::from_nanos(now_ns().saturating_sub(since_ns));
            let governor = Governor::new(self.budget, self.prices).at_age(age);
            self.governors.insert(pid, Governed { governor, since_ns, cost });
        }
        self.governors.get_mut(&pid)
    }

    /// Whether one more process can have a governor: where there are many, one that follows everything gives way to one that
    /// costs more.
    fn has_room(&mut self, cost: f64) -> bool {
        if self.governors.len() < MOST_GOVERNORS {
            return true;
        }
        let idle = self.governors.iter().filter(|(_, of)| of.governor.is_idle() && of.cost < cost);
        let least = idle.min_by(|a, b| a.1.cost.total_cmp(&b.1.cost)).map(|(pid, _)| *pid);
        least.is_some_and(|pid| self.governors.remove(&pid).is_some())
    }

    /// The kernel forgets limits with their process; one that became another program is a new one.
    fn forget_ended(&mut self, capture: &Capture) {
        self.governors.retain(|pid, governed| capture.calls_since(*pid) == Some(governed.since_ns));
        let is_alive = |pid: u32| capture.calls_since(pid).is_some();
        self.muted.retain(|(pid, _), _| is_alive(*pid));
    }

    /// Takes what came since the last tick into account: a short job may have had none.
    pub(crate) fn finish(&mut self, capture: &Capture, aside_ns: u64) {
        self.loads(capture, aside_ns);
    }

    /// What each process did since the last time; those with a governor are among them, even if they did nothing.
    fn loads(&mut self, capture: &Capture, aside_ns: u64) -> BTreeMap<u32, Load> {
        let counts = std::mem::take(&mut self.counts);
        let with_stack = counts.with_stack();
        let (mut probed, mut spent) = (Vec::new(), Traps::default());
        for OpTraps { op, first, traps } in capture.traps() {
            let traps = traps.since(self.traps.insert(op, traps).unwrap_or_default());
            spent.timed += traps.timed;
            spent.spent_ns += traps.spent_ns;
            let (first, price) = self.price_of(&first);
            self.note_price(op, &price);
            probed.push(Probed { op, first, price, traps });
        }
        self.price(spent, with_stack);
        let mut loads = counts.split(&probed, &capture.take_shares(), &self.muted(capture));
        for pid in self.governors.keys() {
            loads.entry(*pid).or_default();
        }
        let traps = capture.switch_traps();
        let switched = traps.since(std::mem::replace(&mut self.switch_traps, traps));
        if let Some(ns) = switched.average_ns() {
            // A time off the CPU is two switches; stacks are in it.
            self.prices.switch_ns = 2.0 * ns + AROUND_A_SWITCH_NS;
        }
        let (now, all) = (Instant::now(), OwnCost::so_far(self.ring_bytes, capture.looking_ns()).cpu_ns);
        let own = all.saturating_sub(aside_ns);
        let wall = now.duration_since(std::mem::replace(&mut self.last, now));
        let own_ns = own.saturating_sub(std::mem::replace(&mut self.own_cpu_ns, own));
        self.add_up(loads, wall, own_ns)
    }

    /// Calls since the last time that were not followed and paid for the trap.
    fn muted(&mut self, capture: &Capture) -> Vec<(u32, OpId, u64)> {
        let since = |(pid, op, calls): (u32, OpId, u64)| {
            let before = self.muted.insert((pid, op), calls).unwrap_or(0);
            // Each limit counts from its beginning.
            (pid, op, calls.checked_sub(before).unwrap_or(calls))
        };
        capture.muted().into_iter().map(since).filter(|(.., calls)| *calls > 0).collect()
    }

    /// Of a function whose copies begin differently, nobody knows which is called: the most that it may cost.
    fn price_of(&self, first: &BTreeSet<FirstInstruction>) -> (FirstInstruction, ProbePrice) {
        let prices = first.iter().map(|first| (*first, self.measured.on(*first)));
        let (first, measured) = prices
            .max_by(|a, b| a.1.call_ns.total_cmp(&b.1.call_ns))
            .unwrap_or((FirstInstruction::Other, self.measured.on(FirstInstruction::Other)));
        (first, ProbePrice { entry_ns: COLD * measured.entry_ns, call_ns: COLD * measured.call_ns })
    }

    /// Remembers what a function's calls cost.
    fn note_price(&mut self, op: OpId, price: &ProbePrice) {
        let at = usize::from(op.0);
        if self.call_ns.len() <= at {
            self.call_ns.resize(at + 1, ProbePrice::default().call_ns);
        }
        self.call_ns[at] = price.followed_ns(op);
    }

    /// Remembers what these calls did, by what the probes stand on.
    fn note_cost(&mut self, load: &ProcessLoad) {
        for (first, hits) in &load.ops {
            let measured = self.measured.on(*first);
            let of = self.by_instruction.entry(*first).or_insert_with(|| InstructionCost {
                first_instruction: first.name(),
                call_ns: measured.call_ns.round(),
                counted_ns: measured.entry_ns.round(),
                functions: BTreeSet::new(),
                calls: 0,
                cost_ns: 0.0,
            });
            of.functions.extend(hits.op.get().map(|op| op.function.as_str()));
            of.calls += hits.hits + hits.muted;
            of.cost_ns += hits.probe_ns();
        }
    }

    /// What the program does at a return beyond what it did when it was measured is the stack's price.
    fn price(&mut self, spent: Traps, with_stack: f64) {
        if let Some(ns) = spent.average_ns().filter(|_| with_stack > 0.1) {
            self.prices.stack_ns = ((ns - self.measured.leave_ns) / with_stack).clamp(0.0, 20_000.0);
        }
    }

    /// Adds what the busiest process paid to what it costs so far.
    fn add_up(&mut self, loads: BTreeMap<u32, ProcessLoad>, wall: Duration, own_ns: u64) -> BTreeMap<u32, Load> {
        let records: u64 = loads.values().map(ProcessLoad::followed).sum();
        let cpus = self.cpus;
        let mut busiest: Option<(f64, Cost, &ProcessLoad)> = None;
        let mut of_processes = BTreeMap::new();
        for (pid, of) in &loads {
            // gpuwhy's own time goes into records, whosever they are.
            let part = if records > 0 { of.followed() as f64 / records as f64 } else { 1.0 / loads.len() as f64 };
            let own_cpu = Duration::from_nanos((own_ns as f64 * part) as u64);
            let (ops, switches) = (of.ops.iter().map(|(_, hits)| *hits).collect(), of.switches);
            let load = Load { wall, ops, switches, switch_stacks: 0, counted: Counted::BusiestThread, own_cpu, cpus };
            let cost = Cost::of(&load, &self.prices);
            let sum = cost.probes + cost.switches;
            if busiest.is_none_or(|(most, ..)| sum > most) {
                busiest = Some((sum, cost, of));
            }
            of_processes.insert(*pid, load);
        }
        let seconds = wall.as_secs_f64();
        self.seconds += seconds;
        if let Some((_, cost, load)) = busiest {
            self.sums.0 += cost.probes * seconds;
            self.sums.1 += cost.switches * seconds;
            self.note_cost(load);
        }
        of_processes
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
