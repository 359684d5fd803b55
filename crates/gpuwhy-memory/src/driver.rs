// SPDX-License-Identifier: Apache-2.0
//! A process's driver memory: which of it belongs to PyTorch's allocator, how long the calls take, and what is returned and
//! taken again.
//!
//! PyTorch's allocator calls the driver and then reports how much it has reserved. The increase shows which of the thread's
//! calls since the previous report were its own. Calls followed by other work on the GPU were not.

use crate::facts::Unreported;
use crate::report::LatencyWindow;
use gpuwhy_model::{Call, Class, Histogram};
use std::collections::HashMap;

/// Slices of a process's work for which latency is measured.
pub(crate) const WINDOWS: usize = 10;
/// The first slices are startup.
pub(crate) const LATE: usize = 2;

/// The class of a call that allocates or frees device memory: not host memory, not only addresses.
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

/// An allocation from the driver that may still turn out to be PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) at_ns: u64,
    /// The duration of the call.
    pub(crate) took_ns: u64,
    pub(crate) tid: u32,
    pub(crate) pointer: u64,
    pub(crate) bytes: u64,
    pub(crate) device: Option<u8>,
    pub(crate) stack: Option<u64>,
}

/// Of the unclaimed allocations, those that are certainly not PyTorch's. While its reports are paused, none is certain.
pub(crate) fn known_direct(pid: u32, taken: Vec<Pending>, unreported: &[Unreported], now_ns: u64) -> Vec<Pending> {
    let is_in = |at_ns: u64| {
        unreported.iter().filter(|time| time.is_of(pid)).any(|time| (time.from_ns..time.to_ns).contains(&at_ns))
    };
    taken.into_iter().filter(|one| !is_in(one.at_ns) && !is_in(now_ns)).collect()
}

/// Memory that one site returned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Returned {
    pub(crate) bytes: u64,
    pub(crate) count: u64,
}

/// Driver calls of one site.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DriverCalls {
    /// Calls that allocate or free.
    pub(crate) calls: u64,
    /// Bytes allocated.
    pub(crate) bytes: u64,
    pub(crate) total_ns: u64,
    /// Of that, the time after startup.
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
    /// By stack, where the program itself returned it.
    pub(crate) returned_by: HashMap<Option<u64>, Returned>,
    /// Returned and not yet taken again.
    outstanding: u64,
    /// Reserved at the previous report, and returned since then.
    reserved: Option<u64>,
    returned_since: u64,
}

/// The memory that a call freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freed {
    /// A segment that PyTorch's allocator returned.
    Segment { device: u8, bytes: u64 },
    /// Memory that the program had allocated directly.
    Direct { bytes: u64 },
    /// Memory allocated before the recording.
    Unknown,
}

/// The driver memory of one process.
#[derive(Debug)]
pub(crate) struct DriverSide {
    /// Start of the time range: earlier calls are not counted, but their memory is.
    asked_from_ns: u64,
    from_ns: u64,
    width_ns: u64,
    taken: HashMap<u64, Taken>,
    pending: Vec<Pending>,
    windows: Vec<Window>,
    pub(crate) devices: HashMap<u8, DeviceSums>,
    /// Calls by stack.
    pub(crate) asked_by: HashMap<Option<u64>, DriverCalls>,
    /// Threads whose last allocation failed: they return memory because it ran out.
    failing: Vec<u32>,
    /// The device of each thread's last report.
    device_of: HashMap<u32, u8>,
}

impl DriverSide {
    /// For a process that works between the last two times; calls count from the first on.
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

    /// The slice of a time. Times before the process's work are in the first slice.
    fn window(&mut self, at_ns: u64) -> Option<&mut Window> {
        if at_ns < self.asked_from_ns {
            return None;
        }
        let part = at_ns.saturating_sub(self.from_ns) / self.width_ns;
        self.windows.get_mut(usize::try_from(part).unwrap_or(WINDOWS).min(WINDOWS - 1))
    }

    /// Counts a call for its stack.
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

    /// A call that allocates. Its memory is pending until its owner is known.
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
        sums.returned_since = sums.returned_since.saturating_add(taken.bytes);
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

    /// A report of PyTorch's allocator: claims its calls since the previous report; returns the thread's other allocations.
    pub(crate) fn report(&mut self, tid: u32, device: u8, reserved: u64) -> Vec<Pending> {
        self.failing.retain(|failing| *failing != tid);
        self.device_of.insert(tid, device);
        let sums = self.devices.entry(device).or_default();
        let before = sums.reserved.unwrap_or(0);
        let mut rose = reserved.saturating_add(sums.returned_since).saturating_sub(before);
        (sums.reserved, sums.returned_since) = (Some(reserved), 0);
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

    /// The device of a thread's last report.
    pub(crate) fn device_of(&self, tid: u32) -> Option<u8> {
        self.device_of.get(&tid).copied()
    }

    /// The thread used the GPU: returns its pending allocations, which are not PyTorch's.
    pub(crate) fn settle(&mut self, tid: u32) -> Vec<Pending> {
        if self.pending.iter().all(|pending| pending.tid != tid) {
            return Vec::new();
        }
        let (own, others) = self.pending.drain(..).partition(|pending| pending.tid == tid);
        self.pending = others;
        own
    }

    /// Returns the oldest pending allocations beyond this number.
    pub(crate) fn settle_beyond(&mut self, most: usize) -> Vec<Pending> {
        let beyond = self.pending.len().saturating_sub(most);
        self.pending.drain(..beyond).collect()
    }

    /// Returns the allocations pending since before this time.
    pub(crate) fn settle_before(&mut self, at_ns: u64) -> Vec<Pending> {
        let (old, others) = self.pending.drain(..).partition(|pending| pending.at_ns < at_ns);
        self.pending = others;
        old
    }

    /// Returns all pending allocations.
    pub(crate) fn settle_all(&mut self) -> Vec<Pending> {
        std::mem::take(&mut self.pending)
    }

    /// Latency in each slice.
    pub(crate) fn latency(&self) -> Vec<LatencyWindow> {
        let report = |(i, window): (usize, &Window)| LatencyWindow {
            at_ns: self.from_ns + i as u64 * self.width_ns,
            calls: window.allocs,
            p50_ns: window.latency.quantile(0.5).unwrap_or(0),
            p99_ns: window.latency.quantile(0.99).unwrap_or(0),
            total_ns: window.alloc_ns,
        };
        self.windows.iter().enumerate().map(report).collect()
    }

    /// How long the process works after startup.
    pub(crate) fn late_span_ns(&self) -> u64 {
        self.width_ns * (WINDOWS - LATE) as u64
    }

    /// Total time in calls that allocate and free; allocations after startup; time after startup.
    pub(crate) fn sums(&self) -> (u64, u64, u64) {
        let ns = |windows: &[Window]| {
            windows.iter().fold(0_u64, |sum, window| sum.saturating_add(window.alloc_ns).saturating_add(window.free_ns))
        };
        let late = &self.windows[LATE..];
        (ns(&self.windows), late.iter().map(|window| window.allocs).sum(), ns(late))
    }
}
