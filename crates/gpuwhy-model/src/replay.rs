// SPDX-License-Identifier: Apache-2.0
//! Events of a recorded run, in order.

use crate::event::Call;
use crate::host::{CpuRun, MovedWait, OffCpu};
use crate::library_event::TensorEvent;

/// An event of a run. Times are nanoseconds since the run began, and stacks are ids of the run file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A call, or a kernel event.
    Call(Call),
    /// A time off the CPU.
    Off(OffCpu),
    /// A task had a CPU for which a traced thread waited.
    Run(CpuRun),
    /// A wait for a CPU that the thread was moved away from.
    Moved(MovedWait),
}

impl Event {
    /// When it began, nanoseconds since the run did.
    pub fn start_ns(&self) -> u64 {
        match self {
            Self::Call(call) => call.start_ns,
            Self::Off(off) => off.start_ns,
            Self::Run(run) => run.start_ns,
            Self::Moved(moved) => moved.start_ns,
        }
    }

    /// How long it took, nanoseconds.
    pub fn duration_ns(&self) -> u64 {
        match self {
            Self::Call(call) => call.duration_ns,
            Self::Off(off) => off.duration_ns,
            Self::Run(run) => run.duration_ns,
            Self::Moved(moved) => moved.duration_ns,
        }
    }

    /// The process it is about.
    pub fn pid(&self) -> u32 {
        match self {
            Self::Call(call) => call.pid,
            Self::Off(off) => off.pid,
            Self::Run(run) => run.pid,
            Self::Moved(moved) => moved.pid,
        }
    }

    /// How many events its row represents, itself included.
    pub fn weight(&self) -> u64 {
        match self {
            Self::Call(call) => call.calls(),
            Self::Off(off) => off.times(),
            Self::Run(_) | Self::Moved(_) => 1,
        }
    }
}

/// An event about GPU memory. Times are nanoseconds since the run began, and stacks are ids of the run file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryEvent {
    /// A report of PyTorch's allocator.
    Tensor(TensorEvent),
    /// A call, or a kernel event: the end of a process.
    Call(Call),
}

impl MemoryEvent {
    /// When it began.
    pub fn at_ns(&self) -> u64 {
        match self {
            Self::Tensor(event) => event.at_ns,
            Self::Call(call) => call.start_ns,
        }
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        match self {
            Self::Tensor(event) => event.pid,
            Self::Call(call) => call.pid,
        }
    }
}
