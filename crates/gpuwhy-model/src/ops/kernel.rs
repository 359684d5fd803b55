// SPDX-License-Identifier: Apache-2.0
//! The part of the op table that is no function of a library: what the Linux kernel tells.

use super::{Class, Library, OpId, Row, f, table};
use crate::decode::Decode;
use std::sync::LazyLock;

/// What the kernel tells, in the order of the table below and of `enum kernel_op` in gpuwhy-capture's `bpf/state.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum KernelOp {
    /// A thread left the CPU.
    SchedSwitch,
    /// A thread was woken; said by the switch's row, so the kernel sends none of its own.
    SchedWakeup,
    /// A process was made.
    ProcessFork,
    /// A process became another program.
    ProcessExec,
    /// A process ended.
    ProcessExit,
    /// The kernel chose a process to kill for want of memory.
    OomKill,
    /// A request to a disk.
    BlockIo,
    /// A page had to be read from disk.
    MajorFault,
    /// A TCP segment was sent again.
    TcpRetransmit,
    /// A thread had to make free memory itself.
    DirectReclaim,
    /// A thread had to make contiguous memory itself.
    Compaction,
    /// A thread waited for the lock of its address space.
    MmapLock,
    /// A look at who runs, 49 times a second on each CPU.
    CpuSample,
}

const fn told(arg0: &'static str, arg1: &'static str) -> Decode {
    Decode::Told { arg0, arg1 }
}

/// The rows, after all of CUDA's.
pub(super) const ROWS: &[(Class, &[Row])] = &[
    (Class::Sched, &[f("sched_switch", told("", "")), f("sched_wakeup", told("", ""))]),
    (
        Class::Process,
        &[
            f("process_fork", told("the new process", "")),
            f("process_exec", told("", "")),
            f("process_exit", told("exit code", "signal that ended it, or 0")),
            f("oom_kill", told("bytes", "")),
        ],
    ),
    (Class::Io, &[f("block_io", told("bytes", "device (major × 2^20 + minor), plus 2^32 for writes"))]),
    (Class::HostMemory, &[f("major_fault", told("address", ""))]),
    (Class::Io, &[f("tcp_retransmit", told("remote port", "4 or 6"))]),
    (
        Class::HostMemory,
        &[f("direct_reclaim", told("bytes", "")), f("compaction", told("", "")), f("mmap_lock", told("", ""))],
    ),
    (Class::Sched, &[f("cpu_sample", told("", ""))]),
];

/// The id of something the kernel tells. The CUDA functions come before all of those.
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
    fn what_the_kernel_tells_is_found_by_number() {
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
