// SPDX-License-Identifier: Apache-2.0
//! The second pass over a run's events: turns every allocation and free, in order, into the report.

use crate::backward::BackwardWatch;
use crate::driver::{DriverSide, Freed, Pending, is_device_memory, known_direct};
use crate::facts::{Facts, SiteFact};
use crate::gap::GapWatch;
use crate::grid::Grid;
use crate::lines::Lines;
use crate::oom::{EndRecord, OomLog, OomRecord};
use crate::report::{End, LiveTimeline, Oom, Report, Source, SpaceReport, StepsReport, TimelinePoint};
use crate::sieve::is_work;
use crate::space::{Held, Space, SpaceKey, UNKNOWN_DEVICE};
use crate::steps::{Certainty, ProcessSteps};
use crate::{findings, fragmentation};
use gpuwhy_model::ops::{Class, KernelOp, TorchOp, kernel_op, torch_op};
use gpuwhy_model::{Call, MemoryEvent, TensorEvent};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Driver allocations that may still turn out to be PyTorch's.
const MOST_PENDING: usize = 64;

mod leaking;

/// Plays a run's memory events into a report.
pub struct Analyser {
    facts: Facts,
    steps: BTreeMap<u32, ProcessSteps>,
    spaces: BTreeMap<SpaceKey, Space>,
    drivers: BTreeMap<u32, DriverSide>,
    gap: GapWatch,
    ooms: OomLog,
    backward: BackwardWatch,
    detailed: bool,
}

impl Analyser {
    /// `steps` is the result of the first pass.
    pub fn new(facts: Facts, steps: BTreeMap<u32, ProcessSteps>) -> Self {
        Self {
            gap: GapWatch::new(&facts),
            facts,
            steps,
            spaces: BTreeMap::new(),
            drivers: BTreeMap::new(),
            ooms: OomLog::default(),
            backward: BackwardWatch::default(),
            detailed: false,
        }
    }

    /// With a finer timeline, and memory by line at each of its points.
    pub fn in_detail(self) -> Self {
        Self { detailed: true, ..self }
    }

    /// With the stacks that call `backward()` ([`crate::backward_stacks`]): allocations of autograd's threads count for
    /// these.
    pub fn with_backward(self, calls: BTreeSet<u64>) -> Self {
        Self { backward: BackwardWatch::new(calls), ..self }
    }

    /// Takes the next event, in order of time, from the beginning of the run.
    pub fn feed(&mut self, event: &MemoryEvent) {
        if !self.facts.wants(event.pid()) || event.at_ns() > self.facts.to_ns {
            return;
        }
        self.gap.advance(event.at_ns(), &self.facts, &self.spaces);
        match event {
            MemoryEvent::Tensor(tensor) => self.tensor(tensor),
            MemoryEvent::Call(call) => self.call(call),
        }
    }

    fn space(&mut self, key: SpaceKey) -> &mut Space {
        let (from, to, steps, detailed) = (self.facts.from_ns, self.facts.to_ns, &self.steps, self.detailed);
        // Without reports, nothing is known about growth.
        let reported_to = self.facts.unreported_of(key.pid).unwrap_or(to);
        self.spaces.entry(key).or_insert_with(|| {
            let until = if key.source == Source::Torch { reported_to } else { to };
            let grid = steps.get(&key.pid).map_or_else(Grid::default, |steps| Grid::new(steps, from, until));
            let space = Space::new(grid, from, to);
            if detailed { space.in_detail(to) } else { space }
        })
    }

    fn driver(&mut self, pid: u32) -> &mut DriverSide {
        let asked_from = self.facts.from_ns;
        let (mut from, mut to) = (asked_from, self.facts.to_ns);
        if let Some(steps) = self.steps.get(&pid).filter(|steps| steps.active_ns.1 > steps.active_ns.0) {
            (from, to) = (from.max(steps.active_ns.0), to.min(steps.active_ns.1));
        }
        self.drivers.entry(pid).or_insert_with(|| DriverSide::new(asked_from, from, to))
    }

    fn has_torch(&self, pid: u32) -> bool {
        self.steps.get(&pid).is_some_and(|steps| steps.has_tensors)
    }

    fn tensor(&mut self, event: &TensorEvent) {
        let key = SpaceKey { pid: event.pid, device: event.device, source: Source::Torch };
        let direct = self.driver(event.pid).report(event.tid, event.device, event.reserved);
        self.take_direct(event.pid, direct, event.at_ns);
        let totals = Some((event.allocated, event.reserved));
        if event.op == torch_op(TorchOp::Alloc) {
            let stack = self.backward.stack_of(event);
            self.space(key).alloc(event.at_ns, event.address, event.bytes, stack, totals);
            return;
        }
        let space = self.space(key);
        if event.op == torch_op(TorchOp::Free) {
            space.free(event.at_ns, event.address, event.bytes, totals);
        } else if event.op == torch_op(TorchOp::OutOfMemory) {
            space.report(event.at_ns, event.allocated, event.reserved);
            let (held, unseen, before) = (space.held(), space.unseen(), space.recent.points());
            self.out_of_memory(OomRecord {
                at_ns: event.at_ns,
                key,
                tid: event.tid,
                asked: event.bytes,
                allocated: event.allocated,
                reserved: event.reserved,
                unseen,
                stack: event.stack,
                held,
                before,
            });
        }
    }

    fn out_of_memory(&mut self, record: OomRecord) {
        if record.at_ns >= self.facts.from_ns {
            self.ooms.push(record);
        }
    }

    fn call(&mut self, call: &Call) {
        if call.flags.inner {
            return;
        }
        if call.op == kernel_op(KernelOp::ProcessExit) {
            self.ended(call);
        } else if call.op == kernel_op(KernelOp::OomKill) {
            self.ooms.killed_for_memory.insert(call.pid);
        }
        match is_device_memory(call) {
            Some(Class::Alloc) => self.take(call),
            Some(_) => self.give(call),
            None => {
                // Work for the GPU: the thread's earlier driver allocations were not for PyTorch's allocator.
                if is_work(call)
                    && let Some(driver) = self.drivers.get_mut(&call.pid)
                {
                    let direct = driver.settle(call.tid);
                    self.take_direct(call.pid, direct, call.start_ns);
                }
            }
        }
    }

    fn take(&mut self, call: &Call) {
        // Autograd's threads allocate for the call that waits for them.
        let call = &Call { stack: call.stack.or_else(|| self.backward.waiting_for(call.pid, call.tid)), ..*call };
        let has_torch = self.has_torch(call.pid);
        let driver = self.driver(call.pid);
        driver.alloc(call);
        let direct = if has_torch { driver.settle_beyond(MOST_PENDING) } else { driver.settle(call.tid) };
        self.take_direct(call.pid, direct, call.start_ns);
        if call.is_refused_memory() && !has_torch {
            let device = call.device.unwrap_or(UNKNOWN_DEVICE);
            let key = SpaceKey { pid: call.pid, device, source: Source::Driver };
            let space = self.space(key);
            let (allocated, held, before) = (space.allocated, space.held(), space.recent.points());
            self.out_of_memory(OomRecord {
                at_ns: call.start_ns,
                key,
                tid: call.tid,
                asked: call.arg0.unwrap_or(0),
                allocated,
                reserved: allocated,
                unseen: 0,
                stack: call.stack,
                held,
                before,
            });
        }
    }

    fn take_direct(&mut self, pid: u32, taken: Vec<Pending>, now_ns: u64) {
        let unreported = if self.has_torch(pid) { self.facts.unreported.as_slice() } else { &[] };
        for one in known_direct(pid, taken, unreported, now_ns) {
            // Without a known device, it is the one on which the thread has tensors.
            let device = one.device.or_else(|| self.drivers.get(&pid)?.device_of(one.tid)).unwrap_or(UNKNOWN_DEVICE);
            let key = SpaceKey { pid, device, source: Source::Driver };
            self.space(key).alloc(one.at_ns, one.pointer, one.bytes, one.stack, None);
        }
    }

    fn give(&mut self, call: &Call) {
        let freed = self.driver(call.pid).free(call);
        match (freed, call.arg1) {
            (Freed::Segment { device, bytes }, _) => {
                let key = SpaceKey { pid: call.pid, device, source: Source::Torch };
                self.space(key).returned(call.start_ns, bytes);
            }
            (Freed::Direct { bytes }, Some(pointer)) => {
                // The freeing thread's current device may be another one.
                let is_candidate = |key: &SpaceKey| key.pid == call.pid && key.source == Source::Driver;
                let mut spaces = self.spaces.iter_mut().filter(|(key, _)| is_candidate(key));
                if let Some((_, space)) = spaces.find(|(_, space)| space.has(pointer)) {
                    space.free(call.start_ns, pointer, bytes, None);
                }
            }
            _ => {}
        }
    }

    fn ended(&mut self, call: &Call) {
        let (code, signal) = (call.arg0.unwrap_or(0), call.arg1.unwrap_or(0));
        let held = |(key, space): (&SpaceKey, &Space)| (*key, space.allocated, space.held());
        let own = self.spaces.iter().filter(|(key, _)| signal != 0 && key.pid == call.pid);
        let held = own.map(held).collect();
        self.spaces.iter_mut().filter(|(key, _)| key.pid == call.pid).for_each(|(_, space)| space.ended = true);
        self.ooms.ends.insert(call.pid, EndRecord { at_ns: call.start_ns, pid: call.pid, code, signal, held });
    }

    /// The report. `resolve` returns the call sites of the stacks it knows.
    pub fn finish(mut self, resolve: &mut dyn FnMut(&[u64]) -> HashMap<u64, SiteFact>) -> Report {
        let pids: Vec<u32> = self.drivers.keys().copied().collect();
        for pid in pids {
            let direct = self.driver(pid).settle_all();
            self.take_direct(pid, direct, self.facts.to_ns);
        }
        for space in self.spaces.values_mut() {
            space.finish(self.facts.to_ns);
        }
        self.gap.advance(u64::MAX, &self.facts, &self.spaces);
        let lines = Lines::new(resolve(&self.stacks()));
        let mut report = Report { from_ns: self.facts.from_ns, to_ns: self.facts.to_ns, ..Report::default() };
        report.steps = self.step_reports(&lines);
        self.judge_all(&lines, &mut report);
        report.fragmentation = fragmentation::accounts(&self.spaces, &self.drivers, &lines);
        report.gaps = self.gap.finish();
        report.ooms = self.ooms.records().map(|record| self.oom_report(record, &lines)).collect();
        report.oom_count = self.ooms.count;
        report.ends = self.end_reports(&lines);
        report.spaces = self.space_reports(&lines);
        report.alerts.clone_from(&self.facts.alerts);
        report.notes = self.notes(&report);
        report.findings = findings::all(&report, &self.facts, &lines);
        report.verdict = findings::verdict(&report, &self.facts);
        report
    }

    /// Every stack that the report mentions.
    fn stacks(&self) -> Vec<u64> {
        let sites = self.spaces.values().flat_map(|space| space.sites.iter().filter_map(|site| site.stack));
        let ooms = self.ooms.records().filter_map(|record| record.stack);
        let returned = self.drivers.values().flat_map(|driver| driver.devices.values());
        let returned = returned.flat_map(|sums| sums.returned_by.keys().filter_map(|stack| *stack));
        let asked = self.drivers.values().flat_map(|driver| driver.asked_by.keys().filter_map(|stack| *stack));
        let marks = self.steps.values().filter_map(|steps| steps.marker.and_then(|marker| marker.1));
        let all: BTreeSet<u64> = sites.chain(ooms).chain(returned).chain(asked).chain(marks).collect();
        all.into_iter().collect()
    }

    fn step_reports(&self, lines: &Lines) -> Vec<StepsReport> {
        let used: BTreeSet<u32> = self.spaces.keys().map(|key| key.pid).collect();
        let report = |(pid, steps): (&u32, &ProcessSteps)| StepsReport {
            pid: *pid,
            certainty: steps.certainty,
            steps: steps.marks.len() as u64,
            step_ns: steps.step_ns,
            launches: steps.launches,
            marker_op: steps.marker.and_then(|marker| marker.0.get()).map(|op| op.name.clone()),
            marker_line: lines.line(steps.marker.and_then(|marker| marker.1)),
        };
        self.steps.iter().filter(|(pid, _)| used.contains(pid)).map(report).collect()
    }

    /// The number of the step at this time, if there are steps.
    fn step_at(&self, pid: u32, at_ns: u64) -> Option<u64> {
        let steps = self.steps.get(&pid).filter(|steps| steps.certainty != Certainty::None);
        steps.map(|steps| steps.step_at(at_ns))
    }

    fn space_reports(&mut self, lines: &Lines) -> Vec<SpaceReport> {
        let mut all = Vec::new();
        for (key, space) in &self.spaces {
            let end = self.steps.get(&key.pid).map_or(self.facts.to_ns, |steps| steps.active_ns.1);
            let until = self.ooms.ends.get(&key.pid).map_or(self.facts.to_ns, |ended| ended.at_ns.max(end));
            let mut timeline = space.timeline.clone().points(until.min(self.facts.to_ns));
            let mut next = timeline.iter().map(|point| point.at_ns).skip(1).collect::<Vec<_>>();
            next.push(self.facts.to_ns);
            for (point, to) in timeline.iter_mut().zip(next) {
                point.device_used = self.gap.most_used(*key, point.at_ns, to);
            }
            let slices: Vec<usize> = timeline.iter().map(|point| space.timeline.slice_at(point.at_ns)).collect();
            let device_total = self.gap.used_at(*key, self.facts.to_ns).1;
            let live = space
                .slices
                .as_ref()
                .map(|live| LiveTimeline { device_total, ..live.timeline(&space.sites, lines, &timeline, &slices) });
            let at_peak = space.sites.iter().map(|site| (site.stack, site.peak_bytes, site.peak_count));
            let now = space.held();
            let at_end: &[Held] = space.at_last_check.as_deref().unwrap_or(&now);
            all.push(SpaceReport {
                pid: key.pid,
                name: self.facts.name(key.pid),
                device: key.device(),
                source: key.source,
                allocated: space.allocated,
                reserved: space.reserved,
                ended_ns: self.ooms.ends.get(&key.pid).map(|ended| ended.at_ns),
                last_look: space.last_check,
                peak_allocated: space.peak.0,
                peak_allocated_at_ns: space.peak.1,
                peak_reserved: space.peak_reserved.0,
                peak_reserved_at_ns: space.peak_reserved.1,
                preexisting: space.preexisting.unwrap_or(0),
                peak_preexisting: space.peak.0.saturating_sub(space.peak_seen),
                balance: space.balance,
                at_peak: lines.holders(at_peak),
                at_end: lines.of_space(space, at_end),
                timeline,
                live,
            });
        }
        all.sort_by_key(|space| std::cmp::Reverse(space.peak_reserved.max(space.peak_allocated)));
        all
    }

    fn oom_report(&self, record: &OomRecord, lines: &Lines) -> Oom {
        let sample = self.gap.sample_at(record.key, record.at_ns, record.reserved);
        let fact = lines.fact(record.stack);
        let space = self.spaces.get(&record.key);
        let before = self.with_device(record.key, record.before.clone(), record.at_ns);
        Oom {
            at_ns: record.at_ns,
            step: self.step_at(record.key.pid, record.at_ns),
            pid: record.key.pid,
            tid: record.tid,
            device: record.key.device(),
            asked: record.asked,
            allocated: record.allocated,
            reserved: record.reserved,
            device_used: sample.map(|sample| sample.1),
            device_used_at_ns: sample.map(|sample| sample.0),
            device_total: self.gap.used_at(record.key, record.at_ns).1,
            others: self.gap.others_at(record.key, record.at_ns, &self.facts),
            fatal: self.ooms.is_fatal(record),
            line: lines.line(record.stack),
            stack: fact.map(|fact| fact.frames.clone()).unwrap_or_default(),
            stack_id: record.stack.map(u64::cast_signed),
            live: space.map(|space| lines.of_space(space, &record.held)).unwrap_or_default(),
            preexisting: record.unseen,
            before,
        }
    }

    /// Adds the device's memory to the points before an event.
    fn with_device(&self, key: SpaceKey, mut before: Vec<TimelinePoint>, at_ns: u64) -> Vec<TimelinePoint> {
        let mut next = at_ns;
        for point in before.iter_mut().rev() {
            point.device_used = self.gap.most_used(key, point.at_ns, next);
            next = point.at_ns;
        }
        before
    }

    fn end_reports(&self, lines: &Lines) -> Vec<End> {
        let report = |end: &EndRecord| {
            let held = end.held.iter().filter_map(|(key, _, held)| Some((self.spaces.get(key)?, held)));
            let stack = |space: &Space, site: u32| space.sites.get(site as usize).and_then(|site| site.stack);
            let by_stack = held.flat_map(|(space, held)| {
                held.iter().map(move |(site, bytes, count)| (stack(space, *site), *bytes, *count))
            });
            // The space with most memory gives the last allocation.
            let fullest = end.held.iter().max_by_key(|held| held.1).map(|held| held.0);
            let fullest = fullest.and_then(|key| Some((key, self.spaces.get(&key)?)));
            let last = fullest.and_then(|(_, space)| space.last_stack);
            End {
                at_ns: end.at_ns,
                pid: end.pid,
                name: self.facts.name(end.pid),
                signal: u32::try_from(end.signal).unwrap_or(u32::MAX),
                oom_killed: self.ooms.killed_for_memory.contains(&end.pid),
                allocated: end.held.iter().map(|held| held.1).sum(),
                direct: end.held.iter().filter(|held| held.0.source == Source::Driver).map(|held| held.1).sum(),
                live: lines.holders(by_stack),
                last_line: lines.line(last),
                last_stack: lines.fact(last).map(|fact| fact.frames.clone()).unwrap_or_default(),
                before: fullest
                    .map(|(key, space)| self.with_device(key, space.recent.points(), end.at_ns))
                    .unwrap_or_default(),
            }
        };
        // Of processes without GPU memory, only those killed by the kernel matter: mostly data workers.
        let killed = |end: &EndRecord| self.ooms.killed_for_memory.contains(&end.pid);
        let by_signal = |end: &&EndRecord| end.signal != 0 && (!end.held.is_empty() || killed(end));
        self.ooms.ends.values().filter(by_signal).map(report).collect()
    }

    fn notes(&self, report: &Report) -> Vec<String> {
        let mut notes = self.facts.notes.clone();
        if self.facts.lost > 0 {
            notes.push(format!(
                "{} allocations or frees were lost: live bytes by line may be off, totals are PyTorch's own",
                gpuwhy_model::units::count(self.facts.lost)
            ));
        }
        let older: u64 = report.spaces.iter().map(|space| space.preexisting).sum();
        if older > 0 {
            let bytes = gpuwhy_model::units::bytes(older);
            notes.push(format!(
                "{bytes} was allocated before the recording, or before gpuwhy watched PyTorch's library: its lines are unknown"
            ));
        }
        if report.spaces.is_empty() {
            notes.push("no process allocated GPU memory in this time".to_owned());
        }
        if !report.spaces.is_empty() && report.gaps.is_empty() {
            notes.push("no figures from the device (NVML), so hidden memory is unknown".to_owned());
        }
        notes
    }
}
