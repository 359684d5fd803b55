// SPDX-License-Identifier: Apache-2.0
//! What the policy is told, and what that costs.

use gpuwhy_model::{Class, OpId};
use std::time::Duration;

/// What a probe on a function adds to a call, ns. That depends on the instruction it stands on, so functions differ by ten
/// times and more; measured at the start ([`crate::calibrate`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProbePrice {
    /// A call of which only the entry is followed.
    pub entry_ns: f64,
    /// A call, entry and return.
    pub call_ns: f64,
}

impl ProbePrice {
    /// A call that is followed as far as it ever is: an allocator's report only to its entry.
    pub fn followed_ns(&self, op: OpId) -> f64 {
        let entry_only = op.get().is_some_and(|op| op.class == Class::Tensor);
        if entry_only { self.entry_ns } else { self.call_ns }
    }
}

impl Default for ProbePrice {
    /// Of a usual machine, for when measuring fails.
    fn default() -> Self {
        Self { entry_ns: 700.0, call_ns: 1_500.0 }
    }
}

/// What other things cost, ns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prices {
    /// Reading a Python stack, on top of a call.
    pub stack_ns: f64,
    /// A switch of a traced thread, out and in.
    pub switch_ns: f64,
    /// The most of gpuwhy's own CPU time that a record explains. The rest is there without any load and is not for the
    /// probes to save.
    pub record_ns: f64,
}

impl Default for Prices {
    /// Of a usual machine, until they are measured.
    fn default() -> Self {
        Self { stack_ns: 600.0, switch_ns: 600.0, record_ns: 2_000.0 }
    }
}

/// Whose hits are counted. A job is as slow as its busiest thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// The busiest thread's.
    BusiestThread,
    /// Those of all threads, of which this many were busy. They are taken as spread evenly, so the cost is the least it can
    /// have been to the busiest; with 1 it is the most.
    AllThreads {
        /// Busy threads.
        busy: u32,
    },
}

/// One probed function's hits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OpHits {
    /// The function that has the probe.
    pub op: OpId,
    /// Entries.
    pub hits: u64,
    /// Of them, those whose return was followed, too.
    pub full: u64,
    /// Of those, the ones for which a Python stack was read.
    pub stacks: u64,
    /// Entries that were not followed at all and paid for the trap, because other processes keep the probe. Not in `hits`.
    pub muted: u64,
    /// What its probe costs.
    pub price: ProbePrice,
}

impl OpHits {
    /// What its probe cost, without stacks, ns. A muted call pays a little less than a counted one, whose price stands for it.
    pub fn probe_ns(&self) -> f64 {
        let full = self.full.min(self.hits);
        let counted = self.hits - full + self.muted;
        counted as f64 * self.price.entry_ns + full as f64 * self.price.followed_ns(self.op)
    }
}

/// What happened since the last time.
#[derive(Debug, Clone)]
pub struct Load {
    /// How long that was.
    pub wall: Duration,
    /// Each function that was hit.
    pub ops: Vec<OpHits>,
    /// Switches of traced threads, and how many of them read a Python stack.
    pub switches: u64,
    /// See `switches`.
    pub switch_stacks: u64,
    /// Whose these are.
    pub counted: Counted,
    /// CPU time of gpuwhy's threads.
    pub own_cpu: Duration,
    /// CPUs of the machine, which gpuwhy's own time is a share of.
    pub cpus: u32,
}

impl Load {
    /// Nanoseconds of the threads whose hits these are.
    pub(super) fn thread_ns(&self) -> f64 {
        let threads = match self.counted {
            Counted::BusiestThread => 1,
            Counted::AllThreads { busy } => busy.max(1),
        };
        self.wall.as_nanos().max(1) as f64 * f64::from(threads)
    }

    /// gpuwhy's own share of the machine.
    pub(super) fn own_share(&self) -> f64 {
        self.own_cpu.as_nanos() as f64 / (self.wall.as_nanos().max(1) as f64 * f64::from(self.cpus.max(1)))
    }
}

/// What tracing cost, as fractions of the job's time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Probes on functions.
    pub probes: f64,
    /// Following the scheduler.
    pub switches: f64,
    /// gpuwhy's own CPU time, a share of the machine's.
    pub own: f64,
    /// Whose time it is.
    pub counted: Counted,
}

impl Cost {
    /// Everything.
    pub fn total(&self) -> f64 {
        self.probes + self.switches + self.own
    }

    /// Of a load at these prices.
    pub fn of(load: &Load, prices: &Prices) -> Self {
        let op_ns = |op: &OpHits| op.probe_ns() + op.stacks as f64 * prices.stack_ns;
        let probes: f64 = load.ops.iter().map(op_ns).sum();
        let switches = load.switches as f64 * prices.switch_ns + load.switch_stacks as f64 * prices.stack_ns;
        let thread_ns = load.thread_ns();
        Self {
            probes: probes / thread_ns,
            switches: switches / thread_ns,
            own: load.own_share(),
            counted: load.counted,
        }
    }
}
