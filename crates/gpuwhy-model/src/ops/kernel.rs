// SPDX-License-Identifier: Apache-2.0
//! The kernel events of the op table, which are not library functions.

use super::{Class, Library, OpId, Row, f, table};
use crate::decode::Decode;
use std::sync::LazyLock;

/// Kernel events, in the order of the table below and of `enum kernel_op` in gpuwhy-capture's `bpf/state.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum KernelOp {
    /// A thread left the CPU.
    SchedSwitch,
    /// A thread was woken; contained in the switch's row, so the kernel sends no separate event.
    SchedWakeup,
    /// A process was created.
    ProcessFork,
    /// A process became another program.
    ProcessExec,
    /// A process ended.
    ProcessExit,
    /// The kernel chose a process to kill because memory ran out.
    OomKill,
    /// A request to a disk.
    BlockIo,
    /// A page had to be read from disk.
    MajorFault,
    /// A TCP segment was sent again.
    TcpRetransmit,
    /// A thread had to reclaim memory itself.
    DirectReclaim,
    /// A thread had to compact memory itself.
    Compaction,
    /// A thread waited for the lock of its address space.
    MmapLock,
    /// A sample of the running thread, 49 times a second on each CPU.
    CpuSample,
}

const fn event(arg0: &'static str, arg1: &'static str) -> Decode {
    Decode::Report { arg0, arg1 }
}

/// The rows, after all library functions.
pub(super) const ROWS: &[(Class, &[Row])] = &[
    (Class::Sched, &[f("sched_switch", event("", "")), f("sched_wakeup", event("", ""))]),
    (
        Class::Process,
        &[
            f("process_fork", event("the new process", "")),
            f("process_exec", event("", "")),
            f("process_exit", event("exit code", "signal that ended it, or 0")),
            f("oom_kill", event("bytes", "")),
        ],
    ),
    (Class::Io, &[f("block_io", event("bytes", "device (major × 2^20 + minor), plus 2^32 for writes"))]),
    (Class::HostMemory, &[f("major_fault", event("address", ""))]),
    (Class::Io, &[f("tcp_retransmit", event("remote port", "4 or 6"))]),
    (
        Class::HostMemory,
        &[f("direct_reclaim", event("bytes", "")), f("compaction", event("", "")), f("mmap_lock", event("", ""))],
    ),
    (Class::Sched, &[f("cpu_sample", event("", ""))]),
];

/// The id of a kernel event. Library functions come before all of these.
pub fn kernel_op(op: KernelOp) -> OpId {
    static BASE: LazyLock<u16> =
        LazyLock::new(|| table().iter().position(|op| op.library == Library::Kernel).unwrap_or_default() as u16);
    OpId(*BASE + op as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::by_function;

    #[test]
    fn kernel_events_are_found_by_number() {
        for (op, name) in [
            (KernelOp::SchedSwitch, "sched_switch"),
            (KernelOp::ProcessExit, "process_exit"),
            (KernelOp::BlockIo, "block_io"),
            (KernelOp::TcpRetransmit, "tcp_retransmit"),
            (KernelOp::MmapLock, "mmap_lock"),
            (KernelOp::CpuSample, "cpu_sample"),
        ] {
            assert_eq!(kernel_op(op).get().unwrap().name, name);
            assert!(!kernel_op(op).is_cuda());
        }
        assert!(by_function("cudaMalloc").unwrap().id.is_cuda());
    }
}
