// SPDX-License-Identifier: Apache-2.0
//! States of a thread, as the ledger counts them. At any time a thread is in exactly one.

use gpuwhy_model::{Class, OffCpu, Reason, Wait};

/// Longest timeout of a wait for CPython's GIL, ns: its switch interval, 5 ms, and some rounding.
const GIL_TIMEOUT_NS: u64 = 5_100_000;

/// What a thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// On a CPU, inside a CUDA call.
    RunningCuda,
    /// On a CPU, elsewhere.
    RunningHost,
    /// Could run, but had no CPU.
    Ready,
    /// Could run, but its cgroup had used up its quota.
    Throttled,
    /// Waits for a lock or a condition.
    BlockedFutex,
    /// Waits for CPython's global interpreter lock.
    BlockedGil,
    /// Waits for a pipe.
    BlockedPipe,
    /// Waits for any of several files.
    BlockedPoll,
    /// Waits for a socket.
    BlockedSocket,
    /// Waits for a disk or a filesystem.
    BlockedDisk,
    /// Waits for a page of memory.
    BlockedFault,
    /// Sleeps.
    BlockedSleep,
    /// Waits for the GPU or its driver.
    BlockedGpu,
    /// Waits for the lock of its address space.
    BlockedMmapLock,
    /// Waits for something else: a child, a signal, a terminal.
    BlockedOther,
}

impl State {
    /// Every state, in the order of the ledger.
    pub const ALL: [Self; 15] = [
        Self::RunningCuda,
        Self::RunningHost,
        Self::Ready,
        Self::Throttled,
        Self::BlockedFutex,
        Self::BlockedGil,
        Self::BlockedPipe,
        Self::BlockedPoll,
        Self::BlockedSocket,
        Self::BlockedDisk,
        Self::BlockedFault,
        Self::BlockedSleep,
        Self::BlockedGpu,
        Self::BlockedMmapLock,
        Self::BlockedOther,
    ];

    /// The name in the run file and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::RunningCuda => "running_cuda",
            Self::RunningHost => "running_host",
            Self::Ready => "ready",
            Self::Throttled => "throttled",
            Self::BlockedFutex => "blocked_futex",
            Self::BlockedGil => "blocked_gil",
            Self::BlockedPipe => "blocked_pipe",
            Self::BlockedPoll => "blocked_poll",
            Self::BlockedSocket => "blocked_socket",
            Self::BlockedDisk => "blocked_disk",
            Self::BlockedFault => "blocked_fault",
            Self::BlockedSleep => "blocked_sleep",
            Self::BlockedGpu => "blocked_gpu",
            Self::BlockedMmapLock => "blocked_mmap_lock",
            Self::BlockedOther => "blocked_other",
        }
    }

    /// As shown in a chain: `blocked, pipe`.
    pub fn words(self) -> &'static str {
        match self {
            Self::RunningCuda => "running, CUDA",
            Self::RunningHost => "running",
            Self::Ready => "ready, no CPU",
            Self::Throttled => "throttled",
            Self::BlockedFutex => "blocked, futex",
            Self::BlockedGil => "blocked, GIL",
            Self::BlockedPipe => "blocked, pipe",
            Self::BlockedPoll => "blocked, poll",
            Self::BlockedSocket => "blocked, socket",
            Self::BlockedDisk => "blocked, disk",
            Self::BlockedFault => "blocked, page fault",
            Self::BlockedSleep => "sleeping",
            Self::BlockedGpu => "blocked, GPU",
            Self::BlockedMmapLock => "blocked, mmap lock",
            Self::BlockedOther => "blocked",
        }
    }
}

/// Whether a wait looks like one for the GIL.
pub(crate) fn is_gil(off: &OffCpu) -> bool {
    off.wait == Wait::Futex && off.timeout_ns.is_some_and(|timeout| timeout <= GIL_TIMEOUT_NS)
}

/// The state of the blocked part of a time off the CPU, given the CUDA call it fell into.
pub(crate) fn blocked_state(off: &OffCpu, inside: Option<Class>) -> State {
    // Faults and kernel locks count as such, whatever call they fell into.
    match off.wait {
        Wait::PageFault | Wait::Reclaim => return State::BlockedFault,
        Wait::MmapLock => return State::BlockedMmapLock,
        Wait::Gpu => return State::BlockedGpu,
        _ => {}
    }
    // Inside such a call the driver waits for the GPU by any means: poll, futex, sleep.
    if matches!(inside, Some(Class::Sync | Class::Launch | Class::Copy | Class::Fill)) {
        return State::BlockedGpu;
    }
    match off.wait {
        Wait::Futex if is_gil(off) => State::BlockedGil,
        Wait::Futex => State::BlockedFutex,
        Wait::Pipe => State::BlockedPipe,
        Wait::Poll | Wait::Epoll | Wait::Eventfd => State::BlockedPoll,
        Wait::Socket => State::BlockedSocket,
        Wait::File | Wait::BlockDevice | Wait::Aio => State::BlockedDisk,
        Wait::IoUring if off.io_wait => State::BlockedDisk,
        Wait::IoUring => State::BlockedPoll,
        Wait::Sleep | Wait::Timerfd => State::BlockedSleep,
        _ if off.io_wait => State::BlockedDisk,
        _ => State::BlockedOther,
    }
}

/// The state of its ready part.
pub(crate) fn ready_state(off: &OffCpu) -> State {
    if off.reason == Reason::Throttled { State::Throttled } else { State::Ready }
}
