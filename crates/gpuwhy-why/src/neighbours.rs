// SPDX-License-Identifier: Apache-2.0
//! Other jobs of the run on the job's GPUs: their processes, and when they had work there at the same time.

use crate::calls::stream_of;
use crate::device::{Devices, StreamKey};
use gpuwhy_model::{Call, Class, Op};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

/// A neighbour's wait for the GPU: work it queued before is done when the wait ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Waited {
    until: u64,
    start: u64,
    gpu: u32,
    pid: u32,
    /// One stream, or all of the process.
    stream: Option<u64>,
}

/// One GPU.
#[derive(Debug, Default)]
struct Shared {
    /// Neighbours' streams with kernels that may not be done, with the time of the newest launch.
    queued: HashMap<StreamKey, u64>,
    /// How long they and the job had work at the same time, in the span.
    ns: u64,
    /// Kernels that each neighbour launched in the span.
    launches: BTreeMap<u32, u64>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    gpus: BTreeMap<u32, Shared>,
    waits: BinaryHeap<Reverse<Waited>>,
    from: u64,
    to: u64,
    /// Up to when time was counted.
    noted: u64,
}

impl Neighbours {
    pub(crate) fn new(from: u64, to: u64) -> Self {
        Self { from, to, ..Self::default() }
    }

    /// A neighbour's call on a GPU.
    pub(crate) fn call(&mut self, call: &Call, op: &Op, gpu: u32) {
        let key = (call.pid, stream_of(call, op));
        match op.class {
            Class::Launch | Class::Fill | Class::Collective => {
                let shared = self.gpus.entry(gpu).or_default();
                shared.queued.insert(key, call.start_ns);
                if op.class == Class::Launch && (self.from..self.to).contains(&call.start_ns) {
                    *shared.launches.entry(call.pid).or_default() += call.calls();
                }
            }
            Class::Sync if !call.flags.unfinished => {
                let until = call.start_ns.saturating_add(call.duration_ns);
                // An event may have been recorded in any stream: assume the process waited for all.
                let stream = op.name.contains("Stream").then_some(key.1);
                self.waits.push(Reverse(Waited { until, start: call.start_ns, gpu, pid: call.pid, stream }));
            }
            _ => {}
        }
    }

    /// A process is gone, and its work with it.
    pub(crate) fn gone(&mut self, pid: u32) {
        self.gpus.values_mut().for_each(|shared| shared.queued.retain(|key, _| key.0 != pid));
    }

    /// Moves time to `now`; `own`: the job's own queued work since the last call.
    pub(crate) fn advance(&mut self, now: u64, own: &Devices) {
        while let Some(Reverse(wait)) = self.waits.peek().copied().filter(|next| next.0.until <= now) {
            self.waits.pop();
            self.note(wait.until, own);
            if let Some(shared) = self.gpus.get_mut(&wait.gpu) {
                let concerned = |key: &StreamKey| key.0 == wait.pid && wait.stream.is_none_or(|stream| stream == key.1);
                shared.queued.retain(|key, at| !concerned(key) || *at > wait.start);
            }
        }
        self.note(now, own);
    }

    /// Counts the time up to `now`, in which nothing has changed.
    fn note(&mut self, now: u64, own: &Devices) {
        let ns = now.min(self.to).saturating_sub(self.noted.max(self.from));
        self.noted = self.noted.max(now);
        for (gpu, shared) in &mut self.gpus {
            if !shared.queued.is_empty() && own.gpus.get(gpu).is_some_and(|gpu| gpu.has_work()) {
                shared.ns += ns;
            }
        }
    }

    /// Whether a neighbour launched on this GPU.
    pub(crate) fn are_on(&self, gpu: u32) -> bool {
        self.gpus.get(&gpu).is_some_and(|shared| !shared.launches.is_empty())
    }

    /// The GPU shared longest, for how long (ns), and the neighbour that launched most there.
    pub(crate) fn most_shared(&self) -> Option<(u32, u64, u32)> {
        let shared = self.gpus.iter().filter_map(|(gpu, shared)| {
            let (pid, _) = shared.launches.iter().max_by_key(|(_, launches)| **launches)?;
            Some((*gpu, shared.ns, *pid))
        });
        shared.max_by_key(|(_, ns, _)| *ns)
    }
}
