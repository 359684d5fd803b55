// SPDX-License-Identifier: Apache-2.0
//! Memory of a run that is being recorded. Each event is fed once, sums are closed every second of the run, and a
//! [`Picture`] is what a view shows. Pure. Memory use is bounded by live memory, the number of call sites and constants.
//!
//! A line's memory goes up and down within a step. So growth is that of the *floor*, its minimum in each second in which
//! the process allocated or freed anything: the last third of these seconds compared with the first. Whether growth is a
//! leak is decided by an examination of the whole run, whose report is passed in from time to time ([`Tracker::judged`]).

mod picture;
mod space;

pub use picture::{GrowingLine, LiveEnd, LiveOom, LiveSpaceReport, Picture, RecentPoint};

use crate::backward::BackwardWatch;
use crate::driver::{DriverSide, Freed, Pending, is_device_memory, known_direct};
use crate::facts::Unreported;
use crate::report::{Report, Source};
use crate::sieve::is_work;
use crate::space::{SpaceKey, UNKNOWN_DEVICE};
use gpuwhy_model::ops::{Class, KernelOp, TorchOp, kernel_op, torch_op};
use gpuwhy_model::sample::{GpuProcess, GpuSample};
use gpuwhy_model::{Call, MemoryEvent, TensorEvent};
use space::LiveSpace;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Growth is measured over this many seconds with work; older seconds do not count, ns; fewer are not enough.
const WINDOW: usize = 60;
const OLD_NS: u64 = 600 * SECOND;
const FEWEST_TICKS: usize = 6;
/// Points of the recent past kept for a picture.
const RECENT: usize = 120;
/// Refusals, and ends of processes, kept.
const KEPT: usize = 8;
/// Driver allocations that may still turn out to be PyTorch's, and for how long.
const MOST_PENDING: usize = 64;
const PENDING_NS: u64 = SECOND;
/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// A GPU's last sample.
#[derive(Debug, Clone, Copy, Default)]
struct Device {
    used: Option<u64>,
    total: Option<u64>,
}

/// The result of the last examination of the whole run.
#[derive(Debug, Clone, Default)]
struct Judged {
    at_ns: u64,
    verdict: String,
    /// Bytes a second of all leaks of a process and device.
    rates: BTreeMap<(u32, Option<u32>), f64>,
    lines: BTreeSet<(u32, Option<u32>, String)>,
}

/// Memory ran out; the stack is not resolved yet.
#[derive(Debug, Clone)]
struct Refused {
    at_ns: u64,
    key: SpaceKey,
    asked: u64,
    allocated: u64,
    stack: Option<u64>,
}

/// Follows a run's memory.
#[derive(Debug, Default)]
pub struct Tracker {
    only: Vec<u32>,
    spaces: BTreeMap<SpaceKey, LiveSpace>,
    drivers: BTreeMap<u32, DriverSide>,
    /// Processes with PyTorch's allocator.
    torch: BTreeSet<u32>,
    gpus: BTreeMap<u32, Device>,
    /// NVML's index of the GPU a process was seen on; `None` if there were several.
    gpu_of: BTreeMap<u32, Option<u32>>,
    refused: VecDeque<Refused>,
    oom_count: u64,
    ends: VecDeque<LiveEnd>,
    /// The end of the next second, ns.
    next_tick: u64,
    judged: Option<Judged>,
    backward: BackwardWatch,
    unreported: Vec<Unreported>,
}

impl Tracker {
    /// Follows these processes; empty means all.
    pub fn new(only: &[u32]) -> Self {
        Self { only: only.to_vec(), ..Self::default() }
    }

    /// Forgets all events, but not the result of the examination.
    pub fn restart(&mut self) {
        let (judged, calls) = (self.judged.take(), self.backward.take_calls());
        let unreported = std::mem::take(&mut self.unreported);
        *self = Self { judged, unreported, backward: BackwardWatch::new(calls), ..Self::new(&self.only) };
    }

    /// Whether any call of `backward()` is known.
    pub fn knows_backward(&self) -> bool {
        self.backward.knows_calls()
    }

    /// Sets the times in which reports were paused, as known so far.
    pub fn set_unreported(&mut self, times: Vec<Unreported>) {
        self.unreported = times;
    }

    /// Sets the stacks that call `backward()`, as known so far ([`crate::backward_stacks`]): later allocations of autograd's
    /// threads count for these.
    pub fn set_backward(&mut self, calls: BTreeSet<u64>) {
        self.backward.set_calls(calls);
    }

    /// Takes the next event, in order of time.
    pub fn feed(&mut self, event: &MemoryEvent) {
        if !self.only.is_empty() && !self.only.contains(&event.pid()) {
            return;
        }
        self.advance(event.at_ns());
        match event {
            MemoryEvent::Tensor(tensor) => self.tensor(tensor),
            MemoryEvent::Call(call) if !call.flags.inner => self.call(call),
            MemoryEvent::Call(_) => {}
        }
    }

    /// Takes NVML's new samples.
    pub fn devices(&mut self, samples: &[GpuSample], processes: &[GpuProcess]) {
        for sample in samples {
            // A driver without this figure may report 0.
            let known = sample.memory_total != Some(0);
            let used = sample.memory_used.filter(|_| known);
            self.gpus.insert(sample.gpu, Device { used, total: sample.memory_total.filter(|_| known) });
        }
        for row in processes {
            let known = self.gpu_of.entry(row.pid).or_insert(Some(row.gpu));
            *known = known.filter(|gpu| *gpu == row.gpu);
        }
    }

    /// Takes the report on the whole run up to `at_ns`.
    pub fn judged(&mut self, report: &Report, at_ns: u64) {
        let mut judged = Judged { at_ns, verdict: report.verdict.clone(), ..Judged::default() };
        for leak in &report.leaks {
            *judged.rates.entry((leak.pid, leak.device)).or_default() += leak.bytes_per_second;
            judged.lines.extend(leak.line.clone().map(|line| (leak.pid, leak.device, line)));
        }
        self.judged = Some(judged);
    }

    /// All events before this time have been fed: closes the seconds that are over.
    pub fn advance(&mut self, at_ns: u64) {
        // Skips a pause longer than anything that is kept: its seconds are all the same.
        let most = (RECENT as u64 + 1) * SECOND;
        self.next_tick = self.next_tick.max(at_ns.saturating_sub(most).next_multiple_of(SECOND)).max(SECOND);
        while self.next_tick <= at_ns {
            self.tick(self.next_tick);
            self.next_tick += SECOND;
        }
    }

    fn tick(&mut self, at_ns: u64) {
        let pids: Vec<u32> = self.drivers.keys().copied().collect();
        for pid in pids {
            let direct = self.driver(pid).settle_before(at_ns.saturating_sub(PENDING_NS));
            self.take_direct(pid, direct, at_ns);
        }
        self.spaces.values_mut().for_each(|space| space.tick(at_ns));
    }

    fn space(&mut self, key: SpaceKey) -> &mut LiveSpace {
        let space = self.spaces.entry(key).or_default();
        // A new process has the same id.
        if space.ended {
            *space = LiveSpace::default();
        }
        space
    }

    fn driver(&mut self, pid: u32) -> &mut DriverSide {
        self.drivers.entry(pid).or_insert_with(|| DriverSide::new(0, 0, u64::MAX))
    }

    fn tensor(&mut self, event: &TensorEvent) {
        self.torch.insert(event.pid);
        let key = SpaceKey { pid: event.pid, device: event.device, source: Source::Torch };
        let direct = self.driver(event.pid).report(event.tid, event.device, event.reserved);
        self.take_direct(event.pid, direct, event.at_ns);
        let is_alloc = event.op == torch_op(TorchOp::Alloc);
        let stack = if is_alloc { self.backward.stack_of(event) } else { None };
        let space = self.space(key);
        if is_alloc {
            space.alloc(event.address, event.bytes, stack);
        } else if event.op == torch_op(TorchOp::Free) {
            space.free(event.address);
        }
        space.totals(event.allocated, event.reserved);
        if event.op == torch_op(TorchOp::OutOfMemory) {
            let Self { oom_count, refused, .. } = self;
            *oom_count += 1;
            let (asked, allocated) = (event.bytes, event.allocated);
            push(refused, Refused { at_ns: event.at_ns, key, asked, allocated, stack: event.stack }, KEPT);
        }
    }

    fn call(&mut self, call: &Call) {
        if call.op == kernel_op(KernelOp::ProcessExit) {
            self.ended(call);
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
        let driver = self.driver(call.pid);
        driver.alloc(call);
        let direct = driver.settle_beyond(MOST_PENDING);
        self.take_direct(call.pid, direct, call.start_ns);
        if call.is_refused_memory() && !self.torch.contains(&call.pid) {
            let key = self.driver_key(call.pid, call.device);
            let (asked, allocated) = (call.arg0.unwrap_or(0), self.space(key).allocated);
            self.oom_count += 1;
            let refused = Refused { at_ns: call.start_ns, key, asked, allocated, stack: call.stack };
            push(&mut self.refused, refused, KEPT);
        }
    }

    fn driver_key(&self, pid: u32, device: Option<u8>) -> SpaceKey {
        SpaceKey { pid, device: device.unwrap_or(UNKNOWN_DEVICE), source: Source::Driver }
    }

    fn take_direct(&mut self, pid: u32, taken: Vec<Pending>, now_ns: u64) {
        let unreported = if self.torch.contains(&pid) { self.unreported.as_slice() } else { &[] };
        for one in known_direct(pid, taken, unreported, now_ns) {
            let device = one.device.or_else(|| self.drivers.get(&pid)?.device_of(one.tid));
            let key = self.driver_key(pid, device);
            let space = self.space(key);
            space.alloc(one.pointer, one.bytes, one.stack);
            space.totals_of_live();
        }
    }

    fn give(&mut self, call: &Call) {
        match (self.driver(call.pid).free(call), call.arg1) {
            (Freed::Segment { device, bytes }, _) => {
                let space = self.space(SpaceKey { pid: call.pid, device, source: Source::Torch });
                space.totals(space.allocated, space.reserved.saturating_sub(bytes));
            }
            (Freed::Direct { .. }, Some(pointer)) => {
                // The freeing thread's current device may be another one.
                let is_candidate = |key: &SpaceKey| key.pid == call.pid && key.source == Source::Driver;
                for (_, space) in self.spaces.iter_mut().filter(|(key, _)| is_candidate(key)) {
                    space.free(pointer);
                    space.totals_of_live();
                }
            }
            _ => {}
        }
    }

    fn ended(&mut self, call: &Call) {
        let mut had = false;
        for (_, space) in self.spaces.iter_mut().filter(|(key, _)| key.pid == call.pid) {
            had |= !space.ended;
            space.end(call.start_ns);
        }
        self.drivers.remove(&call.pid);
        self.backward.forget(call.pid);
        self.torch.remove(&call.pid);
        self.gpu_of.remove(&call.pid);
        self.forget_oldest();
        if had {
            let signal = u32::try_from(call.arg1.unwrap_or(0)).unwrap_or(u32::MAX);
            push(&mut self.ends, LiveEnd { at_ns: call.start_ns, pid: call.pid, signal }, KEPT);
        }
    }
}

impl Tracker {
    /// Keeps only the newest of the processes that have ended.
    fn forget_oldest(&mut self) {
        let mut ended: Vec<(u64, SpaceKey)> =
            self.spaces.iter().filter(|(_, space)| space.ended).map(|(key, space)| (space.ended_ns, *key)).collect();
        ended.sort_unstable();
        for (_, key) in ended.iter().rev().skip(KEPT) {
            self.spaces.remove(key);
        }
    }
}

/// Adds to a list that keeps the newest entries.
fn push<T>(list: &mut VecDeque<T>, one: T, most: usize) {
    if list.len() >= most {
        list.pop_front();
    }
    list.push_back(one);
}
