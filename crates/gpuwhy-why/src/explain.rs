// SPDX-License-Identifier: Apache-2.0
//! One pass over a run's events, in order of start: keeps the ledger, follows the work queued on each GPU, and finds for
//! every idle interval what the launching thread did meanwhile.

use crate::blame::{Gap, Slices};
use crate::calls::Done;
use crate::conclude;
use crate::device::{Devices, Idle, REAL_WAIT_NS, Unsure, Work};
use crate::facts::{Facts, StackFact};
use crate::ledger::Ledger;
use crate::neighbours::Neighbours;
use crate::nvml::{self, Places, Window};
use crate::report::Report;
use crate::timeline::{ThreadIndex, Timeline};
use crate::walk::{Leaf, Walker};
use gpuwhy_model::ops::{KernelOp, kernel_op};
use gpuwhy_model::replay::Event;
use gpuwhy_model::{Call, Class, Histogram, OpId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};

/// Longer idle intervals are explained in pieces of this length, ns.
const LONGEST_NS: u64 = 1_000_000_000;
/// An interval is explained only after events this far beyond its end, ns: a wait that timed out may have gone on.
const AHEAD_NS: u64 = 300_000_000;
/// How much of the past is kept, ns.
const KEPT_NS: u64 = 4_000_000_000;
/// How often older events are dropped, ns.
const FORGET_NS: u64 = 250_000_000;
/// Idle intervals up to this length after a wait for the GPU are blamed on the wait, ns: the host could have run ahead.
const SHORT_GAP_NS: u64 = 1_000_000;
/// Delay between the GPU's end and the wake-up of a sleeping thread, ns: interrupt latency, or timer slack.
const WAKING_NS: u64 = 80_000;

/// Ids of the kernel events used here.
#[derive(Debug)]
struct KernelOps {
    sample: OpId,
    fork: OpId,
    exit: OpId,
    reclaim: OpId,
    compaction: OpId,
    fault: OpId,
}

impl KernelOps {
    fn new() -> Self {
        Self {
            sample: kernel_op(KernelOp::CpuSample),
            fork: kernel_op(KernelOp::ProcessFork),
            exit: kernel_op(KernelOp::ProcessExit),
            reclaim: kernel_op(KernelOp::DirectReclaim),
            compaction: kernel_op(KernelOp::Compaction),
            fault: kernel_op(KernelOp::MajorFault),
        }
    }
}

/// Counts for rules about more than idle time.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) reclaims: u64,
    pub(crate) major_faults: u64,
    pub(crate) events: u64,
    /// Launches, by thread.
    pub(crate) launchers: BTreeMap<ThreadIndex, u64>,
    /// Idle time that only NVML saw, by GPU.
    pub(crate) nvml_extra: BTreeMap<u32, u64>,
    /// All idle time NVML saw, by GPU.
    pub(crate) nvml_idle: BTreeMap<u32, u64>,
    /// Windows that NVML's samples covered, by GPU.
    pub(crate) nvml_windows: Vec<(u32, u64, u64)>,
    /// Which GPUs have NVML's number.
    pub(crate) numbered: BTreeMap<u32, bool>,
    /// Which process gave work to which GPU.
    pub(crate) users: BTreeSet<(u32, u32)>,
    /// Events represented by another's row.
    pub(crate) thinned: u64,
    /// How long calls that wait for the GPU took.
    pub(crate) sync_times: Histogram,
}

/// Takes a run's events and gives its explanation.
pub struct Explainer {
    pub(crate) facts: Facts,
    pub(crate) timeline: Timeline,
    pub(crate) devices: Devices,
    pub(crate) ledger: Ledger,
    pub(crate) slices: Slices,
    pub(crate) counts: Counts,
    pub(crate) places: Places,
    pub(crate) neighbours: Neighbours,
    kernel_ops: KernelOps,
    pub(crate) done: BinaryHeap<Reverse<Done>>,
    pub(crate) due: VecDeque<Idle>,
    windows: VecDeque<Window>,
    forget_at: u64,
    walked_until: u64,
    /// Processes that have queued a collective since they last waited for the GPU.
    pub(crate) exchanging: HashSet<u32>,
    /// Of each CUDA event of a process, the stream it was recorded in last, and when.
    pub(crate) recorded: HashMap<(u32, u64), (u64, u64)>,
    /// Streams of processes whose work is being captured into a graph instead of done.
    pub(crate) capturing: HashSet<(u32, u64)>,
}

impl Explainer {
    /// Starts with the facts of the run.
    pub fn new(facts: Facts) -> Self {
        let unsure = Unsure::new(unsure_spans(&facts), nvml::shared(&facts));
        Self {
            timeline: Timeline::new(&facts.threads),
            devices: Devices::new(facts.from_ns, facts.to_ns, facts.started, unsure),
            ledger: Ledger::new(facts.from_ns, facts.to_ns),
            slices: Slices::new(facts.from_ns),
            counts: Counts::default(),
            places: Places::new(&facts),
            neighbours: Neighbours::new(facts.from_ns, facts.to_ns),
            kernel_ops: KernelOps::new(),
            done: BinaryHeap::new(),
            due: VecDeque::new(),
            windows: nvml::windows(&facts).into(),
            forget_at: 0,
            walked_until: 0,
            exchanging: HashSet::new(),
            recorded: HashMap::new(),
            capturing: HashSet::new(),
            facts,
        }
    }

    /// Takes the next event.
    pub fn feed(&mut self, event: &Event) {
        let of_others = self.facts.others.contains_key(&event.pid());
        // The run's own count of events leaves out evidence: who had a CPU that a thread waited for.
        let counts = matches!(event, Event::Call(_) | Event::Off(_));
        if counts && self.facts.has(event.start_ns()) && !of_others {
            self.counts.events = self.counts.events.saturating_add(event.weight());
            self.counts.thinned = self.counts.thinned.saturating_add(event.weight() - 1);
        }
        match event {
            Event::Call(call) => {
                self.advance(call.start_ns);
                self.call(call);
            }
            // Events of other jobs also show that the scheduler was recorded.
            Event::Off(_) if of_others => self.timeline.has_offs = true,
            Event::Off(off) => {
                self.advance(off.start_ns);
                self.timeline.off(off);
                self.ledger.off(off);
            }
            Event::Run(run) => {
                self.advance(run.start_ns);
                self.timeline.run(run);
            }
            Event::Moved(_) if of_others => {}
            Event::Moved(moved) => {
                self.advance(moved.start_ns);
                self.timeline.moved(moved);
            }
        }
    }

    /// Ends the pass. `stacks` resolves stack ids.
    pub fn finish(mut self, stacks: &mut dyn FnMut(&[u64]) -> HashMap<u64, StackFact>) -> Report {
        let end = self.facts.to_ns;
        self.settle_done(end);
        self.neighbours.advance(end, &self.devices);
        let rest = self.devices.finish(end);
        self.due.extend(rest);
        self.explain_due(u64::MAX);
        self.walk_busy(end);
        self.timeline.forget(u64::MAX, (self.facts.from_ns, end));
        let ledger = std::mem::replace(&mut self.ledger, Ledger::new(0, 0)).close(&self.facts.threads);
        conclude::conclude(self, &ledger, stacks)
    }

    /// Moves time to `now`: all events that began before have been taken.
    fn advance(&mut self, now: u64) {
        self.settle_done(now);
        self.neighbours.advance(now, &self.devices);
        if now < self.forget_at {
            return;
        }
        self.forget_at = now.saturating_add(FORGET_NS);
        let lasting = self.devices.lasting(now, LONGEST_NS);
        self.due.extend(lasting);
        self.explain_due(now);
        self.walk_busy(now.saturating_sub(AHEAD_NS));
        self.timeline.forget(now.saturating_sub(KEPT_NS), (self.facts.from_ns, self.facts.to_ns));
    }

    fn settle_done(&mut self, now: u64) {
        while let Some(Reverse(done)) = self.done.peek().copied().filter(|next| next.0.at <= now) {
            self.done.pop();
            self.neighbours.advance(done.at, &self.devices);
            let thread = &self.timeline.threads[done.thread as usize];
            // A thread that got its CPU back late may have noticed late.
            let mut inside = thread.offs.iter().rev().take_while(|off| off.end > done.start);
            let late = inside.find(|off| off.start < done.at);
            let sure_until = match late {
                Some(off) if done.at.saturating_sub(off.end) < 10 * REAL_WAIT_NS => off.woken.saturating_sub(WAKING_NS),
                _ => done.at,
            };
            let sure_until = if done.waits { sure_until } else { done.start };
            let work = Work { gpu: done.gpu, pid: done.pid, stream: done.stream, as_of: done.as_of };
            let idle = self.devices.done(&work, done.start, done.at, sure_until);
            self.due.extend(idle);
        }
    }

    /// A kernel event of another job.
    pub(crate) fn neighbour_kernel_event(&mut self, call: &Call) {
        if call.op == self.kernel_ops.exit {
            self.neighbours.gone(call.pid);
        }
    }

    /// A kernel event of this job.
    pub(crate) fn kernel_event(&mut self, call: &Call) {
        let op = call.op;
        if op == self.kernel_ops.sample {
            if let Some(stack) = call.stack {
                let index = self.timeline.thread(call.pid, call.tid);
                self.timeline.threads[index as usize].samples.push_back((call.start_ns, stack));
            }
        } else if op == self.kernel_ops.fork {
            let creator = self.timeline.thread(call.pid, call.tid);
            if let Some(child) = call.arg0.and_then(|pid| u32::try_from(pid).ok()) {
                let child = self.timeline.thread(child, child);
                self.timeline.threads[child as usize].creator = Some(creator);
            }
            self.timeline.threads[creator as usize].forks.push_back(call.start_ns);
        } else if op == self.kernel_ops.exit {
            self.devices.gone(call.pid, call.start_ns);
            self.capturing.retain(|(pid, _)| *pid != call.pid);
        } else if op == self.kernel_ops.reclaim || op == self.kernel_ops.compaction || op == self.kernel_ops.fault {
            let counted = if self.facts.has(call.start_ns) { call.calls() } else { 0 };
            self.counts.reclaims += if op == self.kernel_ops.reclaim { counted } else { 0 };
            self.counts.major_faults += if op == self.kernel_ops.fault { counted } else { 0 };
            if call.duration_ns > 0 {
                let index = self.timeline.thread(call.pid, call.tid);
                let end = call.start_ns.saturating_add(call.duration_ns);
                self.timeline.threads[index as usize].memory.push_back((call.start_ns, end));
            }
        }
    }

    /// Explains the intervals that are far enough in the past.
    fn explain_due(&mut self, now: u64) {
        while let Some(idle) = self.due.front().copied().filter(|idle| idle.to.saturating_add(AHEAD_NS) <= now) {
            self.due.pop_front();
            self.explain_idle(&idle);
        }
        while let Some(window) = self.windows.front().copied().filter(|w| w.to.saturating_add(AHEAD_NS) <= now) {
            self.windows.pop_front();
            self.explain_window(&window);
        }
    }

    fn explain_idle(&mut self, idle: &Idle) {
        let short = idle.whole && idle.to - idle.from <= SHORT_GAP_NS;
        let gap = match idle.after_wait {
            true if short => Gap::AfterSync,
            true => Gap::Drained,
            false => Gap::Plain,
        };
        let Some(launcher) = idle.launcher else {
            self.slices.at(idle.from).idle_ns += idle.to - idle.from;
            self.slices.certain(idle.from, idle.to);
            return;
        };
        let (timeline, slices) = (&self.timeline, &mut self.slices);
        self.devices.unsure.certain(idle.gpu, idle.from, idle.to, |from, to| {
            slices.certain(from, to);
            Walker::walk(timeline, launcher, from, to, &mut |piece| slices.blame(launcher, gap, piece, 1.0));
        });
    }

    /// Finds what held launching threads up while the GPU was still busy: it made them late for the next launch.
    fn walk_busy(&mut self, until: u64) {
        let from = self.walked_until.max(self.facts.from_ns);
        self.walked_until = self.walked_until.max(until);
        let until = until.min(self.facts.to_ns);
        if from >= until {
            return;
        }
        let (timeline, slices) = (&self.timeline, &mut self.slices);
        for gpu in self.devices.gpus.values() {
            let Some(launcher) = gpu.launcher else { continue };
            for (from, to) in between(&gpu.idle_between(from, until), from, until) {
                Walker::walk(timeline, launcher, from, to, &mut |piece| {
                    if piece.for_gpu {
                        slices.for_gpu(launcher, piece.from, piece.to);
                    }
                    if !waits_for_gpu(piece.leaf) && (piece.leaf != Leaf::Running || piece.head.is_some()) {
                        slices.blame(launcher, Gap::Busy, piece, 1.0);
                    }
                });
            }
        }
    }

    /// Idle time known only from NVML: spread in proportion over what the launching thread did, except its waits for the
    /// GPU.
    fn explain_window(&mut self, window: &Window) {
        // CUDA's ordinal may be another GPU's index in NVML.
        let known = self.counts.numbered.get(&window.gpu).copied().unwrap_or(false);
        let Some(gpu) = self.devices.gpus.get(&window.gpu).filter(|_| known) else { return };
        *self.counts.nvml_idle.entry(window.gpu).or_default() += window.idle_ns;
        self.counts.nvml_windows.push((window.gpu, window.from, window.to));
        let mut known = Vec::new();
        for (from, to) in gpu.idle_between(window.from, window.to) {
            self.devices.unsure.certain(window.gpu, from, to, |from, to| known.push((from, to)));
        }
        known.sort_unstable();
        let host: u64 = known.iter().map(|(from, to)| to - from).sum();
        let certain = window.idle_ns.saturating_sub(host);
        *self.counts.nvml_extra.entry(window.gpu).or_default() += certain;
        self.slices.certain_within(window.from, window.to, certain);
        let extra = window.likely_ns.saturating_sub(host);
        // The driver rounds by a percent.
        let worth = extra > (window.to - window.from) / 100;
        let Some(launcher) = gpu.launcher.filter(|_| worth) else { return };
        let open = between(&known, window.from, window.to);
        let mut candidates = 0;
        for (from, to) in open.iter().copied().filter(|(from, to)| from < to) {
            Walker::walk(&self.timeline, launcher, from, to, &mut |piece| {
                candidates += if waits_for_gpu(piece.leaf) { 0 } else { piece.to - piece.from };
            });
        }
        let scale = if candidates > 0 { (extra as f64 / candidates as f64).min(1.0) } else { 0.0 };
        // The rest must lie in the waits themselves: their ends were noticed late, or they were for copies.
        let waits = open.iter().map(|(from, to)| to - from).sum::<u64>() - candidates;
        let left = extra.saturating_sub(candidates);
        let waits_scale = if waits > 0 { (left as f64 / waits as f64).min(1.0) } else { 0.0 };
        let slices = &mut self.slices;
        for (from, to) in open.into_iter().filter(|(from, to)| from < to) {
            Walker::walk(&self.timeline, launcher, from, to, &mut |piece| {
                let scale = if waits_for_gpu(piece.leaf) { waits_scale } else { scale };
                if scale > 0.0 {
                    slices.blame(launcher, Gap::ByNvml, piece, scale);
                }
            });
        }
    }
}

/// The gaps between ordered intervals.
fn between(intervals: &[(u64, u64)], from: u64, to: u64) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut at = from;
    for (start, end) in intervals {
        if *start > at {
            gaps.push((at, *start));
        }
        at = at.max(*end);
    }
    if at < to {
        gaps.push((at, to));
    }
    gaps
}

/// Whether a thread was waiting for the GPU.
fn waits_for_gpu(leaf: Leaf) -> bool {
    match leaf {
        Leaf::Cuda(op) | Leaf::BlockedIn(op) => op.get().is_some_and(|op| op.class == Class::Sync),
        _ => false,
    }
}

/// Times in which launches may have been missed, in order.
fn unsure_spans(facts: &Facts) -> Vec<(u64, u64)> {
    const SECOND: u64 = 1_000_000_000;
    // Creating a context takes longer than this: right after a library is loaded nothing is launched.
    const NO_CONTEXT_NS: u64 = 20_000_000;
    let lossy = facts.lossy_seconds.iter().map(|second| {
        // An event lost in one second may have ended an idle time in the next.
        (second.saturating_sub(1).saturating_mul(SECOND), second.saturating_add(2).saturating_mul(SECOND))
    });
    let unwatched = facts.unwatched.iter().map(|(from, to)| {
        let long = to.saturating_sub(*from) > NO_CONTEXT_NS;
        (*from, if long { to.saturating_add(SECOND) } else { *to })
    });
    let mut all: Vec<(u64, u64)> = lossy.chain(unwatched).collect();
    all.sort_unstable();
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for (from, to) in all {
        match spans.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => spans.push((from, to)),
        }
    }
    spans
}
