// SPDX-License-Identifier: Apache-2.0
//! Selects the events that the analysis needs once the steps are known: allocations, frees, refusals and ends. Of launches
//! and waits, which are most of the events, only the first after a thread took memory from the driver: it shows that the
//! memory was not for PyTorch's allocator.

use crate::driver::is_device_memory;
use gpuwhy_model::ops::{Class, KernelOp, kernel_op};
use gpuwhy_model::{Call, MemoryEvent};
use std::collections::BTreeSet;

/// Selects the needed events. Feed it all events of a run, in order of time.
#[derive(Debug, Default)]
pub struct Sieve {
    only: Vec<u32>,
    /// Threads that took driver memory and have not used the GPU since then.
    took: BTreeSet<(u32, u32)>,
}

impl Sieve {
    /// Only events of these processes; empty means all.
    pub fn new(only: &[u32]) -> Self {
        Self { only: only.to_vec(), took: BTreeSet::new() }
    }

    /// Whether the analysis needs this event.
    pub fn keeps(&mut self, event: &MemoryEvent) -> bool {
        if !self.only.is_empty() && !self.only.contains(&event.pid()) {
            return false;
        }
        match event {
            MemoryEvent::Tensor(_) => true,
            MemoryEvent::Call(call) => !call.flags.inner && self.keeps_call(call),
        }
    }

    fn keeps_call(&mut self, call: &Call) -> bool {
        if call.op == kernel_op(KernelOp::ProcessExit) || call.op == kernel_op(KernelOp::OomKill) {
            return true;
        }
        match is_device_memory(call) {
            Some(Class::Alloc) => {
                self.took.insert((call.pid, call.tid));
                true
            }
            Some(_) => true,
            None => is_work(call) && self.took.remove(&(call.pid, call.tid)),
        }
    }
}

/// Whether a call is work for the GPU, or waits for it.
pub(crate) fn is_work(call: &Call) -> bool {
    call.op.get().is_some_and(|op| matches!(op.class, Class::Launch | Class::Sync | Class::Copy))
}
