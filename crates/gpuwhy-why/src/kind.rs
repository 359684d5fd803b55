// SPDX-License-Identifier: Apache-2.0
//! The kinds of findings and root causes, and all rules that choose one from the two ends of a chain.

use crate::blame::{Cause, Gap};
use crate::state::State;
use crate::walk::Leaf;
use gpuwhy_model::{Class, WokenBy};

/// What the launching thread waited for, or what stands at a chain's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Another thread had the CPU.
    CpuContention,
    /// The cgroup's quota was used up.
    CpuThrottled,
    /// The next piece of input was not ready.
    InputStarved,
    /// A disk.
    DiskIo,
    /// The network.
    NetworkIo,
    /// A lock, Python's GIL and kernel locks included.
    LockContention,
    /// Host memory or the cgroup's memory is short.
    HostMemoryPressure,
    /// Processes started and ended again and again.
    ProcessChurn,
    /// The host waits for the GPU so often that it never runs ahead of it.
    SyncBound,
    /// Copies between host and device.
    CopyBound,
    /// The launching thread's own work.
    LaunchBound,
    /// The program sleeps.
    HostSleep,
    /// Device memory allocated and freed in the loop.
    AllocChurn,
    /// Startup.
    ColdStart,
    /// Other ranks.
    CollectiveWait,
    /// Another process on the GPU.
    GpuShared,
    /// The GPU's clocks were lowered.
    GpuThrottled,
    /// The driver reported an error.
    GpuFault,
    /// Nothing wrong: the GPU is the limit.
    GpuBound,
    /// At a chain's end only: a worker's own computing.
    CpuBoundWorker,
    /// At a chain's end only: a process that was not traced.
    OutsideProcess,
    /// At a chain's end only: could not be followed further.
    Unresolved,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 22] = [
        Self::InputStarved,
        Self::CpuContention,
        Self::CpuThrottled,
        Self::DiskIo,
        Self::NetworkIo,
        Self::LockContention,
        Self::HostMemoryPressure,
        Self::ProcessChurn,
        Self::SyncBound,
        Self::CopyBound,
        Self::LaunchBound,
        Self::HostSleep,
        Self::AllocChurn,
        Self::ColdStart,
        Self::CollectiveWait,
        Self::GpuShared,
        Self::GpuThrottled,
        Self::GpuFault,
        Self::GpuBound,
        Self::CpuBoundWorker,
        Self::OutsideProcess,
        Self::Unresolved,
    ];

    /// A one-line definition.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::CpuContention => {
                "the launching thread (which launches the GPU work), or a process it waited for, was ready but another program had the CPU"
            }
            Self::CpuThrottled => "the cgroup's CPU quota (a container's limit) was used up",
            Self::InputStarved => {
                "the next batch was not ready: data workers, or another process that feeds the job, could not keep up"
            }
            Self::DiskIo => "waiting for a disk to read or write",
            Self::NetworkIo => "waiting for the network",
            Self::LockContention => "waiting for a lock, Python's GIL and kernel locks included",
            Self::HostMemoryPressure => "host or cgroup memory was short: reclaim, swapping, page faults",
            Self::ProcessChurn => "processes are started and ended again and again",
            Self::SyncBound => {
                "the host waits for the GPU so often that it never runs ahead of it (.item(), .cpu(), synchronize)"
            }
            Self::CopyBound => "copies between host and device hold the job up",
            Self::LaunchBound => "the launching thread's own work (Python, launching many small kernels) is the limit",
            Self::HostSleep => "the program sleeps",
            Self::AllocChurn => "GPU memory is allocated and freed in the loop",
            Self::ColdStart => "startup: module loading, first calls",
            Self::CollectiveWait => "waits behind a collective: the GPU was busy, or another rank was late",
            Self::GpuShared => "another process uses the GPU",
            Self::GpuThrottled => "the GPU's clocks were lowered (heat, power)",
            Self::GpuFault => "the driver reported an error",
            Self::GpuBound => "nothing is wrong: the GPU is the limit",
            Self::CpuBoundWorker => "end of a chain: a worker computes as fast as it can",
            Self::OutsideProcess => "end of a chain: a process that was not traced",
            Self::Unresolved => "end of a chain: could not be followed further",
        }
    }

    /// The name in the run file and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::CpuContention => "cpu_contention",
            Self::CpuThrottled => "cpu_throttled",
            Self::InputStarved => "input_starved",
            Self::DiskIo => "disk_io",
            Self::NetworkIo => "network_io",
            Self::LockContention => "lock_contention",
            Self::HostMemoryPressure => "host_memory_pressure",
            Self::ProcessChurn => "process_churn",
            Self::SyncBound => "sync_bound",
            Self::CopyBound => "copy_bound",
            Self::LaunchBound => "launch_bound",
            Self::HostSleep => "host_sleep",
            Self::AllocChurn => "alloc_churn",
            Self::ColdStart => "cold_start",
            Self::CollectiveWait => "collective_wait",
            Self::GpuShared => "gpu_shared",
            Self::GpuThrottled => "gpu_throttled",
            Self::GpuFault => "gpu_fault",
            Self::GpuBound => "gpu_bound",
            Self::CpuBoundWorker => "cpu_bound_worker",
            Self::OutsideProcess => "outside_process",
            Self::Unresolved => "unresolved",
        }
    }
}

/// Facts a rule may use in addition to the cause itself.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Circumstances {
    /// The chain stayed in the launching thread's process.
    pub(crate) same_process: bool,
    /// The launching thread waited in a queue's code, as its stack says.
    pub(crate) in_queue: bool,
    /// Its stack was seen at all.
    pub(crate) has_stack: bool,
    /// Host memory or the cgroup's memory was short.
    pub(crate) memory_short: bool,
    /// The thread that had the CPU belongs to the job.
    pub(crate) holder_traced: bool,
    /// It is a thread of the launching thread's own process.
    pub(crate) holder_is_sibling: bool,
    /// The launching threads waited for the GIL for a relevant time.
    pub(crate) gil_matters: bool,
    /// It is one of many short-lived processes.
    pub(crate) holder_short_lived: bool,
    /// There are many short-lived processes.
    pub(crate) many_short_lived: bool,
    /// The thread at the chain's end is in one of many short-lived processes.
    pub(crate) short_lived: bool,
    /// The thread at the chain's end launches, too, as PyTorch's backward thread does.
    pub(crate) launches: bool,
    /// Waits in syncs are mostly for copies.
    pub(crate) copies_matter: bool,
}

/// The kinds of both ends of a chain: what was waited for, and the root cause.
pub(crate) fn of(cause: &Cause, around: &Circumstances) -> (Kind, Kind) {
    let leaf = leaf_kind(cause, around);
    let Some(head) = cause.head else {
        // A wait in a queue's code that times out is no sleep: nothing arrived.
        let timed_out = matches!(cause.leaf, Leaf::Blocked(state, WokenBy::Timer) if state != State::BlockedSleep);
        if timed_out && around.in_queue {
            return (Kind::InputStarved, Kind::Unresolved);
        }
        // A sibling on the same CPU that will want the GIL back: this is still contention for the GIL.
        if around.gil_matters && around.holder_is_sibling && leaf == Kind::CpuContention {
            return (Kind::LockContention, Kind::LockContention);
        }
        return (leaf, leaf);
    };
    if around.same_process && around.launches && !cause.gil {
        return (leaf, leaf);
    }
    if around.short_lived {
        return (Kind::ProcessChurn, Kind::ProcessChurn);
    }
    let root = match leaf {
        Kind::LaunchBound | Kind::SyncBound | Kind::AllocChurn | Kind::CopyBound => Kind::CpuBoundWorker,
        Kind::CpuContention if around.holder_traced => Kind::CpuBoundWorker,
        Kind::InputStarved => Kind::OutsideProcess,
        Kind::ColdStart => Kind::CpuBoundWorker,
        other => other,
    };
    let locked = cause.gil || cause.lock || head == State::BlockedMmapLock;
    // A queue's reader waits inside the queue's code; a thread that wants a lock waits in its own line.
    let at_own_line = head == State::BlockedFutex && around.has_stack && !around.in_queue;
    if around.same_process && !around.in_queue && (locked || at_own_line) {
        let root = if root == Kind::CpuBoundWorker { Kind::LockContention } else { root };
        return (Kind::LockContention, root);
    }
    (Kind::InputStarved, root)
}

/// Whether a hold-up of this kind sets the job's pace when the launching thread never waits for the GPU, even if GPU idle
/// time is unknown. Not sleeps and network waits: those may be a poll of the GPU, or a job without requests.
pub(crate) fn sets_pace(kind: Kind, root: Kind) -> bool {
    let held_up = match kind {
        Kind::InputStarved
        | Kind::CpuContention
        | Kind::CpuThrottled
        | Kind::DiskIo
        | Kind::LockContention
        | Kind::HostMemoryPressure
        | Kind::ProcessChurn
        | Kind::CopyBound
        | Kind::AllocChurn => true,
        Kind::NetworkIo
        | Kind::HostSleep
        | Kind::SyncBound
        | Kind::LaunchBound
        | Kind::ColdStart
        | Kind::CollectiveWait
        | Kind::GpuShared
        | Kind::GpuThrottled
        | Kind::GpuFault
        | Kind::GpuBound
        | Kind::CpuBoundWorker
        | Kind::OutsideProcess
        | Kind::Unresolved => false,
    };
    held_up && !matches!(root, Kind::OutsideProcess | Kind::Unresolved | Kind::NetworkIo | Kind::InputStarved)
}

/// The kind of a chain's end, as if it were the launching thread itself.
fn leaf_kind(cause: &Cause, around: &Circumstances) -> Kind {
    let own = if cause.gap == Gap::AfterSync { Kind::SyncBound } else { Kind::LaunchBound };
    match cause.leaf {
        Leaf::Forking if around.many_short_lived => Kind::ProcessChurn,
        Leaf::Running | Leaf::Forking => own,
        Leaf::Cuda(op) | Leaf::BlockedIn(op) => match op.get().map(|op| op.class) {
            Some(Class::Copy) => Kind::CopyBound,
            Some(Class::Alloc | Class::Free | Class::Map) => Kind::AllocChurn,
            Some(Class::Sync) if around.copies_matter => Kind::CopyBound,
            Some(Class::Sync) => Kind::SyncBound,
            _ => own,
        },
        Leaf::Reclaiming => Kind::HostMemoryPressure,
        Leaf::Ready(Some(_)) if around.holder_short_lived => Kind::ProcessChurn,
        Leaf::Ready(_) => Kind::CpuContention,
        Leaf::Throttled => Kind::CpuThrottled,
        Leaf::Blocked(state, by) => blocked_kind(state, by, around),
        Leaf::Absent => Kind::ColdStart,
    }
}

fn blocked_kind(state: State, by: WokenBy, around: &Circumstances) -> Kind {
    match (state, by) {
        (State::BlockedFault, _) if around.memory_short => Kind::HostMemoryPressure,
        (State::BlockedDisk | State::BlockedFault, _) => Kind::DiskIo,
        (State::BlockedSleep, _) => Kind::HostSleep,
        (State::BlockedSocket | State::BlockedPoll, WokenBy::Network | WokenBy::Interrupt) => Kind::NetworkIo,
        // A wait with a time limit that runs out is a sleep.
        (State::BlockedFutex | State::BlockedPoll | State::BlockedPipe | State::BlockedSocket, WokenBy::Timer) => {
            Kind::HostSleep
        }
        (State::BlockedMmapLock | State::BlockedGil | State::BlockedFutex, _) => Kind::LockContention,
        (State::BlockedSocket, WokenBy::Nobody) => Kind::NetworkIo,
        (State::BlockedPipe | State::BlockedPoll | State::BlockedSocket, _) => Kind::InputStarved,
        _ => Kind::Unresolved,
    }
}
