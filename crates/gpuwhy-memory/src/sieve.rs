// SPDX-License-Identifier: Apache-2.0
//! Of a run's events, those that the analysis needs once the steps are known: what allocates, frees, runs out and ends.
//! Of launches and waits, of which there are most, only the first after a thread took memory: it tells that this was not
//! for PyTorch's allocator.

use crate::driver::is_device_memory;
use gpuwhy_model::ops::{Class, KernelOp, kernel_op};
use gpuwhy_model::{Call, MemoryEvent};
use std::collections::BTreeSet;

/// Tells which events are needed. Feed it all of a run's, in the order of time.
#[derive(Debug, Default)]
pub struct Sieve {
    only: Vec<u32>,
    /// Threads that took memory and have done nothing with the GPU since.
    took: BTreeSet<(u32, u32)>,
}

impl Sieve {
    /// Only of these processes; none for all.
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

/// Work for the GPU, or waiting for it.
pub(crate) fn is_work(call: &Call) -> bool {
    call.op.get().is_some_and(|op| matches!(op.class, Class::Launch | Class::Sync | Class::Copy))
}
