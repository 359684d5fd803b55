// SPDX-License-Identifier: Apache-2.0
//! Raises alerts and ends them.
//!
//! PyTorch's allocator reports thousands of times a second, so [`Engine::tensor`] only updates a few numbers and allocates
//! nothing after a process's first report. Everything else happens in [`Engine::tick`], four times a second, and with
//! NVML's samples, once a second.

use super::rule::{Condition, Rule};
use super::series::{Floors, Window};
use super::{Alert, AlertKind, Level};
use crate::lines::NO_LINE;
use crate::report::Leak;
use gpuwhy_model::ops::{TorchOp, torch_op};
use gpuwhy_model::sample::{GpuProcess, GpuSample};
use gpuwhy_model::{OpId, TensorEvent, units};
use std::collections::BTreeMap;

/// An alert ends when its figure has stayed clearly below the limit for this long, ns.
pub const STAY_NS: u64 = 5_000_000_000;
/// Refusals from the same place belong to one alert if they follow each other within this time, ns.
const SAME_REFUSAL_NS: u64 = 10_000_000_000;
/// After this long without a sample from NVML, the allocator's own figures are used, ns.
const NVML_SILENT_NS: u64 = 5_000_000_000;
/// Where a run is too large to examine, floors that rose for this long raise an alert without a line, ns.
const LONG_NS: u64 = 120_000_000_000;
/// Memory that runs out sooner than this is critical, ns.
const SOON_NS: u64 = 600_000_000_000;
/// Time between ticks, and between NVML's samples, ns.
const TICK_NS: u64 = 250_000_000;
const SAMPLE_NS: u64 = 1_000_000_000;
/// Spaces, GPUs and leaks that are followed: more than a machine has.
const MOST: usize = 256;
/// Alerts of one run.
const MOST_ALERTS: u64 = 1_000;

/// What a figure belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Gpu { gpu: u32, pid: Option<u32> },
    Space { pid: u32, device: u32 },
}

impl Scope {
    fn is_same(self, other: Self) -> bool {
        match (self, other) {
            (Self::Gpu { gpu, .. }, Self::Gpu { gpu: other, .. }) => gpu == other,
            _ => self == other,
        }
    }
}

/// A condition that holds.
#[derive(Debug)]
struct Active {
    rule: usize,
    scope: Scope,
    /// `None` where the alert of a higher limit of the same figure covers it.
    alert: Option<Alert>,
    below_since: Option<u64>,
}

/// A refused allocation that raised an alert.
#[derive(Debug)]
struct Refusal {
    pid: u32,
    device: u8,
    stack: Option<u64>,
    last_ns: u64,
    alert: Alert,
}

/// PyTorch's memory of a process on a device.
#[derive(Debug)]
struct Space {
    pid: u32,
    device: u8,
    allocated: u64,
    /// The least since the last tick.
    floor: u64,
    reserved: u64,
    in_use: Window,
    reserved_over_time: Window,
    floors: Floors,
}

/// A GPU's memory by NVML.
#[derive(Debug)]
struct Gpu {
    gpu: u32,
    used: Window,
    floors: Floors,
}

/// A line that keeps memory: process, device, line.
type LeakKey = (u32, Option<u32>, Option<String>);

/// The alerts of a run.
#[derive(Debug)]
pub struct Engine {
    rules: Vec<Rule>,
    refused: OpId,
    spaces: Vec<Space>,
    /// Index of the last report's space: the next report is mostly of the same.
    last_space: usize,
    gpus: Vec<Gpu>,
    last_sample_ns: u64,
    first_tick_ns: Option<u64>,
    /// Up to here, growth was reported for a process that has ended since.
    growth_reported_ns: u64,
    /// When the reports of a process were last paused.
    paused: BTreeMap<u32, u64>,
    active: Vec<Active>,
    refusals: Vec<Refusal>,
    /// Leaks that the previous examination found, and those that raised an alert.
    found: Vec<LeakKey>,
    alerted: Vec<LeakKey>,
    changes: Vec<Alert>,
    raised: u64,
}

impl Engine {
    /// For these rules.
    pub fn new(rules: Vec<Rule>) -> Self {
        Self {
            rules,
            refused: torch_op(TorchOp::OutOfMemory),
            spaces: Vec::new(),
            last_space: 0,
            gpus: Vec::new(),
            last_sample_ns: 0,
            first_tick_ns: None,
            growth_reported_ns: 0,
            paused: BTreeMap::new(),
            active: Vec::new(),
            refusals: Vec::new(),
            found: Vec::new(),
            alerted: Vec::new(),
            changes: Vec::new(),
            raised: 0,
        }
    }

    /// Whether there are no rules.
    pub fn is_idle(&self) -> bool {
        self.rules.is_empty()
    }

    /// Alerts raised or ended since the last call.
    pub fn take_changes(&mut self) -> Vec<Alert> {
        std::mem::take(&mut self.changes)
    }

    /// A report of PyTorch's allocator.
    pub fn tensor(&mut self, event: &TensorEvent) {
        if event.op == self.refused {
            return self.refusal(event);
        }
        // Made before reports were paused: too old to stand for the present.
        if self.paused.get(&event.pid).is_some_and(|paused_ns| event.at_ns < *paused_ns) {
            return;
        }
        let is_its = |space: &Space| space.pid == event.pid && space.device == event.device;
        if !self.spaces.get(self.last_space).is_some_and(is_its) {
            match self.spaces.iter().position(is_its) {
                Some(at) => self.last_space = at,
                None if self.spaces.len() < MOST => {
                    self.last_space = self.spaces.len();
                    self.spaces.push(Space::new(event));
                }
                None => return,
            }
        }
        if let Some(space) = self.spaces.get_mut(self.last_space) {
            space.allocated = event.allocated;
            space.reserved = event.reserved;
            space.floor = space.floor.min(event.allocated);
        }
    }

    fn refusal(&mut self, event: &TensorEvent) {
        let Some(rule) = self.rules.iter().find(|rule| rule.condition == Condition::Oom) else { return };
        let is_same =
            |known: &&mut Refusal| (known.pid, known.device, known.stack) == (event.pid, event.device, event.stack);
        if let Some(known) = self.refusals.iter_mut().find(is_same) {
            known.last_ns = event.at_ns;
            return;
        }
        let text = format!(
            "out of memory: process {} asked for {} on cuda:{}, {} in use, {} reserved",
            event.pid,
            units::bytes(event.bytes),
            event.device,
            units::bytes(event.allocated),
            units::bytes(event.reserved)
        );
        let scope = Scope::Space { pid: event.pid, device: u32::from(event.device) };
        let (level, value) = (rule.level, event.bytes as f64);
        let raised = self.raise(event.at_ns, level, (AlertKind::Oom, rule.text.clone()), scope, (value, None), text);
        if let Some(alert) = raised.filter(|_| self.refusals.len() < MOST) {
            let (pid, device, stack, last_ns) = (event.pid, event.device, event.stack, event.at_ns);
            self.refusals.push(Refusal { pid, device, stack, last_ns, alert });
        }
    }

    /// Takes NVML's samples of the GPUs. Skips GPUs on which only other processes have memory, unless there is just one
    /// GPU or NVML cannot tell the processes.
    pub fn sample(&mut self, samples: &[GpuSample], processes: &[GpuProcess], is_traced: impl Fn(u32) -> bool) {
        for sample in samples {
            let (Some(used), now) = (sample.memory_used, sample.at_ns) else { continue };
            let on_gpu = || processes.iter().filter(|process| process.gpu == sample.gpu);
            let ours = on_gpu().filter(|process| is_traced(process.pid)).max_by_key(|process| process.bytes);
            let is_raised = |active: &Active| matches!(active.scope, Scope::Gpu { gpu, .. } if gpu == sample.gpu);
            let is_ours = ours.is_some() || samples.len() == 1 || on_gpu().next().is_none();
            if !is_ours && !self.active.iter().any(is_raised) {
                continue;
            }
            self.last_sample_ns = self.last_sample_ns.max(now);
            let scope = Scope::Gpu { gpu: sample.gpu, pid: ours.map(|process| process.pid) };
            self.judge_memory(scope, used, sample.memory_total.filter(|total| *total > 0), now);
            let slope = self.follow(sample.gpu, now, used);
            // A process's growth is also the GPU's: it is reported once.
            let is_reported = |active: &Active| {
                matches!(active.scope, Scope::Space { .. }) && self.is(active.rule, AlertKind::Growth)
            };
            if let Some(slope) = slope.filter(|_| !self.active.iter().any(is_reported)) {
                self.judge_growth(scope, slope, now);
            }
        }
    }

    /// Follows a GPU's used memory; returns its slope, bytes a second.
    fn follow(&mut self, number: u32, now: u64, used: u64) -> Option<f64> {
        let at = self.gpus.iter().position(|gpu| gpu.gpu == number);
        if at.is_none() && self.gpus.len() < MOST {
            self.gpus.push(Gpu { gpu: number, used: Window::default(), floors: Floors::new(SAMPLE_NS) });
        }
        let gpu = match at {
            Some(at) => &mut self.gpus[at],
            None => self.gpus.last_mut()?,
        };
        // Growth up to then was reported for a process that has ended since.
        if now <= self.growth_reported_ns {
            gpu.used = Window::default();
        }
        gpu.used.push(now, used);
        gpu.floors.push(used);
        gpu.used.slope()
    }

    /// Call this four times a second.
    pub fn tick(&mut self, now_ns: u64) {
        // NVML's first answer takes some time, too.
        let last_ns = self.last_sample_ns.max(*self.first_tick_ns.get_or_insert(now_ns));
        let silent = now_ns.saturating_sub(last_ns) > NVML_SILENT_NS;
        if !silent {
            self.leave_memory_to_nvml(now_ns);
        }
        let of_gpu =
            |active: &Active| matches!(active.scope, Scope::Gpu { .. }) && self.is(active.rule, AlertKind::Growth);
        let is_reported = self.active.iter().any(of_gpu);
        let has_growth = self.rules.iter().any(|rule| rule.condition.kind() == AlertKind::Growth);
        for at in 0..self.spaces.len() {
            let space = &mut self.spaces[at];
            let scope = Scope::Space { pid: space.pid, device: u32::from(space.device) };
            let (floor, reserved) = (space.floor, space.reserved);
            space.floor = space.allocated;
            space.in_use.push(now_ns, floor);
            space.reserved_over_time.push(now_ns, reserved);
            space.floors.push(floor);
            // Both windows cover the same times: either both have a slope or neither has.
            let slopes = if has_growth { space.in_use.slope().zip(space.reserved_over_time.slope()) } else { None };
            if let Some((in_use, reserved)) = slopes.filter(|_| !is_reported) {
                self.judge_growth(scope, in_use.max(reserved), now_ns);
            }
            if silent {
                self.judge_memory(scope, reserved, None, now_ns);
            }
        }
        let over = |refusal: &Refusal| now_ns.saturating_sub(refusal.last_ns) > SAME_REFUSAL_NS;
        for refusal in self.refusals.extract_if(.., |refusal| over(refusal)) {
            self.changes.push(Alert { cleared_ns: Some(refusal.last_ns), ..refusal.alert });
        }
    }

    /// NVML reports again: it covers the processes' memory, so their own alerts end.
    fn leave_memory_to_nvml(&mut self, now_ns: u64) {
        let rules = &self.rules;
        let is_memory = |active: &Active| {
            let kind = rules.get(active.rule).map(|rule| rule.condition.kind());
            matches!(active.scope, Scope::Space { .. }) && kind == Some(AlertKind::Memory)
        };
        for active in self.active.extract_if(.., |active| is_memory(active)) {
            self.changes.extend(active.alert.map(|alert| Alert { cleared_ns: Some(now_ns), ..alert }));
        }
    }

    /// Forgets processes that have ended. That ends alerts about their growth, but not about refusals or leaks.
    pub fn keep_processes(&mut self, is_traced: impl Fn(u32) -> bool, now_ns: u64) {
        self.spaces.retain(|space| is_traced(space.pid));
        self.refusals.retain(|refusal| is_traced(refusal.pid));
        self.paused.retain(|pid, _| is_traced(*pid));
        let is_gone = |scope: Scope| matches!(scope, Scope::Space { pid, .. } if !is_traced(pid));
        let gone: Vec<Active> = self.active.extract_if(.., |active| is_gone(active.scope)).collect();
        for active in gone {
            if self.is(active.rule, AlertKind::Growth) {
                // Growth up to now was reported. NVML's samples arrive late, and memory is freed late.
                self.growth_reported_ns = now_ns;
                self.gpus.iter_mut().for_each(|gpu| gpu.used = Window::default());
            }
            self.changes.extend(active.alert.map(|alert| Alert { cleared_ns: Some(now_ns), ..alert }));
        }
    }

    /// gpuwhy paused the allocator's reports of a process: its figures are stale and are dropped. With a single GPU, alerts
    /// about its growth go on with NVML's figures; its others end.
    pub fn pause_reports(&mut self, of: u32, now_ns: u64) {
        self.spaces.retain(|space| space.pid != of);
        self.paused.insert(of, now_ns);
        let only = self.gpus.first().filter(|_| self.gpus.len() == 1).map(|gpu| gpu.gpu);
        let growth: Vec<bool> = self.active.iter().map(|active| self.is(active.rule, AlertKind::Growth)).collect();
        let mut growth = growth.into_iter();
        let changes = &mut self.changes;
        self.active.retain_mut(|active| {
            let is_growth = growth.next().unwrap_or(false);
            let Scope::Space { pid, .. } = active.scope else { return true };
            if pid != of {
                return true;
            }
            let Some(gpu) = only.filter(|_| is_growth) else {
                // Nothing follows it any more.
                changes.extend(active.alert.take().map(|alert| Alert { cleared_ns: Some(now_ns), ..alert }));
                return false;
            };
            active.scope = Scope::Gpu { gpu, pid: Some(pid) };
            true
        });
    }

    fn is(&self, rule: usize, kind: AlertKind) -> bool {
        self.rules.get(rule).is_some_and(|rule| rule.condition.kind() == kind)
    }

    fn judge_memory(&mut self, scope: Scope, used: u64, total: Option<u64>, now: u64) {
        let (what, held) = match scope {
            Scope::Gpu { gpu, .. } => (format!("GPU {gpu}: {}", units::bytes(used)), "in use"),
            Scope::Space { pid, device } => {
                (format!("process {pid} on cuda:{device}: {}", units::bytes(used)), "reserved by PyTorch")
            }
        };
        for at in 0..self.rules.len() {
            let (value, text) = match (self.rules[at].condition, total) {
                (Condition::MemoryPercent(_), Some(total)) => {
                    let share = units::percent(used as f64, total as f64);
                    (used as f64 / total as f64 * 100.0, format!("{what} of {} in use, {share}", units::bytes(total)))
                }
                (Condition::MemoryBytes(_), _) => (used as f64, format!("{what} {held}")),
                _ => continue,
            };
            self.judge(at, scope, value, now, text);
        }
    }

    fn judge_growth(&mut self, scope: Scope, slope: f64, now: u64) {
        let who = match scope {
            Scope::Gpu { gpu, .. } => format!("GPU {gpu}"),
            Scope::Space { pid, device } => format!("process {pid} on cuda:{device}"),
        };
        let rate = units::bytes(slope.max(0.0) as u64);
        for at in 0..self.rules.len() {
            if self.is(at, AlertKind::Growth) {
                self.judge(at, scope, slope, now, format!("memory of {who} is growing by {rate}/s"));
            }
        }
    }

    /// Compares a figure with a rule's limit: raises an alert or ends one.
    fn judge(&mut self, rule: usize, scope: Scope, value: f64, now: u64, text: String) {
        let Some((limit, clear)) = self.rules[rule].condition.limits() else { return };
        if let Some(at) = self.active.iter().position(|active| active.rule == rule && active.scope.is_same(scope)) {
            let active = &mut self.active[at];
            if value > clear {
                active.below_since = None;
                return;
            }
            let since = *active.below_since.get_or_insert(now);
            if now.saturating_sub(since) >= STAY_NS {
                let over = self.active.swap_remove(at).alert;
                self.changes.extend(over.map(|alert| Alert { cleared_ns: Some(since), ..alert }));
            }
            return;
        }
        if value <= limit || self.active.len() >= MOST {
            return;
        }
        let alert = if self.is_covered(rule, scope, value) {
            None
        } else {
            let Rule { text: rule, level, condition } = self.rules[rule].clone();
            self.raise(now, level, (condition.kind(), rule), scope, (value, Some(limit)), text)
        };
        self.active.push(Active { rule, scope, alert, below_since: None });
    }

    /// Whether a higher limit of the same figure is passed, too: then only that one raises an alert.
    fn is_covered(&self, rule: usize, scope: Scope, value: f64) -> bool {
        let unit = |condition: Condition| std::mem::discriminant(&condition);
        let own = self.rules[rule].condition;
        let limit = |condition: Condition| condition.limits().map_or(0.0, |limits| limits.0);
        self.rules.iter().enumerate().any(|(at, other)| {
            let is_higher = unit(other.condition) == unit(own) && limit(other.condition) > limit(own);
            let is_raised = || self.active.iter().any(|active| active.rule == at && active.scope.is_same(scope));
            is_higher && (value > limit(other.condition) || is_raised())
        })
    }

    /// Takes the leaks that an examination found. A cache that is still filling looks like a leak, so a leak raises an
    /// alert only if the previous examination found it, too.
    pub fn leaks(&mut self, leaks: &[Leak], now_ns: u64) {
        let Some(rule) = self.rules.iter().find(|rule| rule.condition == Condition::Leak) else { return };
        let (rule, level) = (rule.text.clone(), rule.level);
        let keys: Vec<LeakKey> = leaks.iter().map(key).take(MOST).collect();
        for (leak, key) in leaks.iter().zip(&keys) {
            if !self.found.contains(key) || self.alerted.contains(key) || self.alerted.len() >= MOST {
                continue;
            }
            let soon = leak.out_of_memory_in_ns.is_some_and(|ns| ns < SOON_NS);
            let level = if soon { Level::Critical } else { level };
            let scope = Scope::Space { pid: leak.pid, device: leak.device.unwrap_or(0) };
            let figures = (leak.bytes_per_second, None);
            if let Some(alert) =
                self.raise(now_ns, level, (AlertKind::Leak, rule.clone()), scope, figures, leak_text(leak))
            {
                self.alerted.push(key.clone());
                if let Some(change) = self.changes.iter_mut().rfind(|change| change.id == alert.id) {
                    change.device = leak.device;
                }
            }
        }
        self.found = keys;
    }

    /// Whether memory keeps growing somewhere, so that an examination is worthwhile.
    pub fn suspects(&self) -> bool {
        let wanted = self.rules.iter().any(|rule| rule.condition == Condition::Leak);
        let spaces = self.spaces.iter().map(|space| &space.floors);
        wanted && spaces.chain(self.gpus.iter().map(|gpu| &gpu.floors)).any(|floors| floors.rising().is_some())
    }

    /// Examining the whole run takes too long: raises an alert without a line for processes whose memory has kept growing
    /// for minutes and that have no alert yet.
    pub fn cannot_examine(&mut self, now_ns: u64) {
        let Some(rule) = self.rules.iter().find(|rule| rule.condition == Condition::Leak) else { return };
        let (rule, level) = (rule.text.clone(), rule.level);
        for at in 0..self.spaces.len() {
            let space = &self.spaces[at];
            let (pid, device) = (space.pid, u32::from(space.device));
            let Some((for_ns, grown)) = space.floors.rising().filter(|(for_ns, _)| *for_ns >= LONG_NS) else {
                continue;
            };
            let key = (pid, Some(device), None);
            let is_known = self.alerted.iter().any(|known| (known.0, known.1) == (key.0, key.1));
            if is_known || self.alerted.len() >= MOST {
                continue;
            }
            let rate = grown as f64 / (for_ns as f64 / 1e9);
            let text = format!(
                "probably a leak: process {pid} on cuda:{device} holds {} more than {} ago and keeps growing; \
                 `gpuwhy memory --leaks` finds the line",
                units::bytes(grown),
                units::time(for_ns)
            );
            let scope = Scope::Space { pid, device };
            if self.raise(now_ns, level, (AlertKind::Leak, rule.clone()), scope, (rate, None), text).is_some() {
                self.alerted.push(key);
            }
        }
    }

    fn raise(
        &mut self,
        at_ns: u64,
        level: Level,
        (kind, rule): (AlertKind, String),
        scope: Scope,
        (value, threshold): (f64, Option<f64>),
        text: String,
    ) -> Option<Alert> {
        if self.raised >= MOST_ALERTS {
            return None;
        }
        self.raised += 1;
        let (pid, device, gpu) = match scope {
            Scope::Gpu { gpu, pid } => (pid, None, Some(gpu)),
            Scope::Space { pid, device } => (Some(pid), Some(device), None),
        };
        let id = self.raised;
        let alert = Alert { id, at_ns, cleared_ns: None, level, kind, rule, pid, device, gpu, value, threshold, text };
        self.changes.push(alert.clone());
        Some(alert)
    }
}

impl Space {
    fn new(event: &TensorEvent) -> Self {
        Self {
            pid: event.pid,
            device: event.device,
            allocated: event.allocated,
            floor: event.allocated,
            reserved: event.reserved,
            in_use: Window::default(),
            reserved_over_time: Window::default(),
            floors: Floors::new(TICK_NS),
        }
    }
}

fn key(leak: &Leak) -> LeakKey {
    (leak.pid, leak.device, Some(leak.line.clone().unwrap_or_default()))
}

/// A leak in one line.
fn leak_text(leak: &Leak) -> String {
    let (line, pid) = (leak.line.as_deref().unwrap_or(NO_LINE), leak.pid);
    let second = units::bytes(leak.bytes_per_second.max(0.0).round() as u64);
    let rate = match leak.bytes_per_step {
        Some(bytes) => format!("{} a step ({second}/s)", units::bytes(bytes.max(0.0).round() as u64)),
        None => format!("{second}/s"),
    };
    let since = match leak.onset_step {
        Some(step) => format!("step {step}"),
        None => units::time(leak.onset_ns),
    };
    let end = leak.out_of_memory_in_ns.map(|ns| format!("; out of memory in {}", units::time(ns))).unwrap_or_default();
    format!("{line} leaks {rate} since {since} in process {pid}{end}")
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
