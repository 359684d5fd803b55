// SPDX-License-Identifier: Apache-2.0
//! What a process takes from the driver: which of it is PyTorch's allocator's, how long it takes, what is given back and
//! taken again.
//!
//! PyTorch's allocator asks the driver and then reports what it has reserved: by how much that rose tells which of the
//! thread's calls since the report before were its own. What a thread did with the GPU in between was not.

use crate::facts::Unreported;
use crate::report::LatencyWindow;
use gpuwhy_model::{Call, Class, Histogram};
use std::collections::HashMap;

/// Parts of a process's work in which latency is looked at.
pub(crate) const WINDOWS: usize = 10;
/// The first of them that are after the start.
pub(crate) const LATE: usize = 2;

/// A call that takes or gives device memory: not of the host's, and not addresses alone.
pub(crate) fn is_device_memory(call: &Call) -> Option<Class> {
    let op = call.op.get()?;
    (matches!(op.class, Class::Alloc | Class::Free) && !op.name.contains("Host")).then_some(op.class)
}

/// An allocation from the driver.
#[derive(Debug, Clone, Copy)]
struct Taken {
    bytes: u64,
    device: Option<u8>,
    torch: bool,
}

/// One that is not known yet to be PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) at_ns: u64,
    /// How long the call took.
    pub(crate) took_ns: u64,
    pub(crate) tid: u32,
    pub(crate) pointer: u64,
    pub(crate) bytes: u64,
    pub(crate) device: Option<u8>,
    pub(crate) stack: Option<u64>,
}

/// Of what nobody in a process claimed until now, what is known not to be PyTorch's. While its reports were let go nobody says
/// so.
pub(crate) fn known_direct(pid: u32, taken: Vec<Pending>, unreported: &[Unreported], now_ns: u64) -> Vec<Pending> {
    let times = || unreported.iter().filter(|time| time.is_of(pid));
    let is_in = |at_ns: u64| times().any(|time| (time.from_ns..time.to_ns).contains(&at_ns));
    taken.into_iter().filter(|one| !is_in(one.at_ns) && !is_in(now_ns)).collect()
}

/// What one site gave back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Returned {
    pub(crate) bytes: u64,
    pub(crate) count: u64,
}

/// What one site asked the driver for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Calls that allocate or free.
    pub(crate) calls: u64,
    /// Bytes that were taken.
    pub(crate) bytes: u64,
    pub(crate) total_ns: u64,
    /// Of that, after the process's start.
    pub(crate) late_ns: u64,
}

#[derive(Debug, Clone, Default)]
struct Window {
    latency: Histogram,
    allocs: u64,
    alloc_ns: u64,
    free_ns: u64,
}

/// Sums of one device.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceSums {
    pub(crate) segments: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) returned: Returned,
    pub(crate) retaken_bytes: u64,
    pub(crate) churn_ns: u64,
    /// By the stack that gave it back, where the program asked for that.
    pub(crate) returned_by: HashMap<Option<u64>, Returned>,
    /// Given back and not yet taken again.
    outstanding: u64,
    /// Reserved at the report before, and given back since.
    reserved: Option<u64>,
    given_since: u64,
}

/// What happened to memory that a free was about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freed {
    /// PyTorch's allocator gave a segment back.
    Segment { device: u8, bytes: u64 },
    /// The program freed what it had taken.
    Direct { bytes: u64 },
    /// It was taken before the recording.
    Unknown,
}

/// The driver's side of one process.
#[derive(Debug)]
pub(crate) struct DriverSide {
    /// What happened before is not asked about: only what it left is.
    asked_from_ns: u64,
    from_ns: u64,
    width_ns: u64,
    taken: HashMap<u64, Taken>,
    pending: Vec<Pending>,
    windows: Vec<Window>,
    pub(crate) devices: HashMap<u8, DeviceSums>,
    /// By the stack that asked.
    pub(crate) asked_by: HashMap<Option<u64>, Asked>,
    /// Threads whose last allocation failed: what they give back now, they give because memory ran out.
    failing: Vec<u32>,
    /// The device each thread reported of last.
    device_of: HashMap<u32, u8>,
}

impl DriverSide {
    /// Of a process that works from the second moment to the third; what it does is asked about from the first on.
    pub(crate) fn new(asked_from_ns: u64, from_ns: u64, to_ns: u64) -> Self {
        Self {
            asked_from_ns,
            from_ns,
            width_ns: (to_ns.saturating_sub(from_ns) / WINDOWS as u64).max(1),
            taken: HashMap::new(),
            pending: Vec::new(),
            windows: vec![Window::default(); WINDOWS],
            devices: HashMap::new(),
            asked_by: HashMap::new(),
            failing: Vec::new(),
            device_of: HashMap::new(),
        }
    }

    /// The part of the process's work that a moment is in; what comes before it is in the first.
    fn window(&mut self, at_ns: u64) -> Option<&mut Window> {
        if at_ns < self.asked_from_ns {
            return None;
        }
        let part = at_ns.saturating_sub(self.from_ns) / self.width_ns;
        self.windows.get_mut(usize::try_from(part).unwrap_or(WINDOWS).min(WINDOWS - 1))
    }

    /// Who asked, and how long that took.
    fn ask(&mut self, call: &Call, bytes: u64) {
        if call.start_ns < self.asked_from_ns {
            return;
        }
        let is_late = call.start_ns >= self.from_ns.saturating_add(LATE as u64 * self.width_ns);
        let asked = self.asked_by.entry(call.stack).or_default();
        asked.calls += 1;
        asked.bytes = asked.bytes.saturating_add(bytes);
        asked.total_ns = asked.total_ns.saturating_add(call.duration_ns);
        asked.late_ns = asked.late_ns.saturating_add(if is_late { call.duration_ns } else { 0 });
    }

    /// A call that allocates. What it took waits until it is known whose it is.
    pub(crate) fn alloc(&mut self, call: &Call) {
        self.ask(call, call.arg0.filter(|_| call.ret == 0).unwrap_or(0));
        if let Some(window) = self.window(call.start_ns) {
            window.latency.record(call.duration_ns);
            window.allocs += 1;
            window.alloc_ns = window.alloc_ns.saturating_add(call.duration_ns);
        }
        if call.ret != 0 || call.flags.unfinished {
            if !self.failing.contains(&call.tid) {
                self.failing.push(call.tid);
            }
            return;
        }
        let (Some(bytes), Some(pointer)) = (call.arg0, call.arg1) else { return };
        self.pending.push(Pending {
            at_ns: call.start_ns,
            took_ns: call.duration_ns,
            tid: call.tid,
            pointer,
            bytes,
            device: call.device,
            stack: call.stack,
        });
        self.taken.insert(pointer, Taken { bytes, device: call.device, torch: false });
    }

    /// A call that frees.
    pub(crate) fn free(&mut self, call: &Call) -> Freed {
        self.ask(call, 0);
        if let Some(window) = self.window(call.start_ns) {
            window.free_ns = window.free_ns.saturating_add(call.duration_ns);
        }
        let Some(taken) = call.arg1.and_then(|pointer| self.taken.remove(&pointer)) else { return Freed::Unknown };
        self.pending.retain(|pending| Some(pending.pointer) != call.arg1);
        if !taken.torch {
            return Freed::Direct { bytes: taken.bytes };
        }
        let device = taken.device.unwrap_or(0);
        let failing = self.failing.contains(&call.tid);
        let sums = self.devices.entry(device).or_default();
        sums.given_since = sums.given_since.saturating_add(taken.bytes);
        if call.start_ns < self.asked_from_ns {
            return Freed::Segment { device, bytes: taken.bytes };
        }
        sums.outstanding = sums.outstanding.saturating_add(taken.bytes);
        sums.churn_ns = sums.churn_ns.saturating_add(call.duration_ns);
        let by = (!failing).then(|| sums.returned_by.entry(call.stack).or_default());
        for returned in by.into_iter().chain([&mut sums.returned]) {
            returned.bytes = returned.bytes.saturating_add(taken.bytes);
            returned.count += 1;
        }
        Freed::Segment { device, bytes: taken.bytes }
    }

    /// PyTorch's allocator reports: its own calls since the report before are known now, the thread's others are not its.
    pub(crate) fn report(&mut self, tid: u32, device: u8, reserved: u64) -> Vec<Pending> {
        self.failing.retain(|failing| *failing != tid);
        self.device_of.insert(tid, device);
        let sums = self.devices.entry(device).or_default();
        let before = sums.reserved.unwrap_or(0);
        let mut rose = reserved.saturating_add(sums.given_since).saturating_sub(before);
        (sums.reserved, sums.given_since) = (Some(reserved), 0);
        if rose == 0 {
            return self.settle(tid);
        }
        for place in (0..self.pending.len()).rev() {
            let one = self.pending[place];
            let fits = one.tid == tid && one.device.is_none_or(|on| on == device) && one.bytes <= rose;
            if fits {
                rose -= one.bytes;
                self.pending.remove(place);
                if let Some(taken) = self.taken.get_mut(&one.pointer) {
                    (taken.torch, taken.device) = (true, Some(device));
                }
                if one.at_ns < self.asked_from_ns {
                    continue;
                }
                sums.segments += 1;
                sums.segment_bytes = sums.segment_bytes.saturating_add(one.bytes);
                let again = one.bytes.min(sums.outstanding);
                if again > 0 {
                    sums.outstanding -= again;
                    sums.retaken_bytes = sums.retaken_bytes.saturating_add(again);
                    sums.churn_ns = sums.churn_ns.saturating_add(one.took_ns);
                }
            }
        }
        self.settle(tid)
    }

    /// The device a thread works on: that of its last report.
    pub(crate) fn device_of(&self, tid: u32) -> Option<u8> {
        self.device_of.get(&tid).copied()
    }

    /// The thread did something else: what it took before was not PyTorch's.
    pub(crate) fn settle(&mut self, tid: u32) -> Vec<Pending> {
        if self.pending.iter().all(|pending| pending.tid != tid) {
            return Vec::new();
        }
        let (of_it, others) = self.pending.drain(..).partition(|pending| pending.tid == tid);
        self.pending = others;
        of_it
    }

    /// What was taken longest ago, when there is more than so much that nobody claimed.
    pub(crate) fn settle_beyond(&mut self, most: usize) -> Vec<Pending> {
        let beyond = self.pending.len().saturating_sub(most);
        self.pending.drain(..beyond).collect()
    }

    /// What was taken before a moment and nobody claimed since.
    pub(crate) fn settle_before(&mut self, at_ns: u64) -> Vec<Pending> {
        let (old, others) = self.pending.drain(..).partition(|pending| pending.at_ns < at_ns);
        self.pending = others;
        old
    }

    /// All that nobody claimed.
    pub(crate) fn settle_all(&mut self) -> Vec<Pending> {
        std::mem::take(&mut self.pending)
    }

    /// Latency over the span.
    pub(crate) fn latency(&self) -> Vec<LatencyWindow> {
        let told = |(i, window): (usize, &Window)| LatencyWindow {
            at_ns: self.from_ns + i as u64 * self.width_ns,
            calls: window.allocs,
            p50_ns: window.latency.quantile(0.5).unwrap_or(0),
            p99_ns: window.latency.quantile(0.99).unwrap_or(0),
            total_ns: window.alloc_ns,
        };
        self.windows.iter().enumerate().map(told).collect()
    }

    /// How long the process works after its start.
    pub(crate) fn late_span_ns(&self) -> u64 {
        self.width_ns * (WINDOWS - LATE) as u64
    }

    /// Time in calls that allocate and free, all of it; after the start, the allocations and the time.
    pub(crate) fn sums(&self) -> (u64, u64, u64) {
        let ns = |windows: &[Window]| {
            windows.iter().fold(0_u64, |sum, window| sum.saturating_add(window.alloc_ns).saturating_add(window.free_ns))
        };
        let late = &self.windows[LATE..];
        (ns(&self.windows), late.iter().map(|window| window.allocs).sum(), ns(late))
    }
}
