// SPDX-License-Identifier: Apache-2.0
//! Scheduling of a job's threads: every time off the CPU with its reason, the task that had the CPU meanwhile, and measured
//! sums.
//!
//! The numbers of the enums are those of `bpf/sched.h` in gpuwhy-capture and of the run file.
//! Times are `CLOCK_MONOTONIC` nanoseconds.

/// Declares an enum whose numbers travel through the ring and into the run file, with its names.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $number:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant = $number,)* }

        impl $name {
            /// Every value, in numeric order.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name in the run file.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The value of a number from the kernel or a file.
            pub fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }

            /// The value of a name in a run file.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($text => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

named! {
    /// Why a thread left the CPU.
    Reason {
        /// It could have gone on, but another task was run.
        Preempted = 0 "preempted",
        /// It could have gone on, but offered the CPU (`sched_yield`).
        Yielded = 1 "yielded",
        /// It waits and can be woken by a signal.
        Asleep = 2 "asleep",
        /// It waits and cannot be interrupted: mostly for a disk, a page or a driver.
        Uninterruptible = 3 "uninterruptible",
        /// Its cgroup has used up its CPU quota.
        Throttled = 4 "throttled",
        /// Stopped by a signal or a debugger.
        Stopped = 5 "stopped",
        /// It was just created and had not run yet.
        New = 6 "new",
    }
}

named! {
    /// What a thread that left the CPU waited for.
    Wait {
        /// Nothing: it could have gone on.
        Nothing = 0 "",
        /// Something else, see the system call.
        Other = 1 "other",
        /// A pipe.
        Pipe = 2 "pipe",
        /// A socket.
        Socket = 3 "socket",
        /// An eventfd.
        Eventfd = 4 "eventfd",
        /// An epoll set.
        Epoll = 5 "epoll",
        /// A timerfd.
        Timerfd = 6 "timerfd",
        /// A regular file or folder.
        File = 7 "file",
        /// A block device.
        BlockDevice = 8 "block device",
        /// A GPU's device node.
        Gpu = 9 "gpu device",
        /// Another character device: a terminal, for example.
        CharDevice = 10 "char device",
        /// A futex: locks, condition variables, Python's GIL.
        Futex = 11 "futex",
        /// A page of memory.
        PageFault = 12 "page fault",
        /// The time.
        Sleep = 13 "sleep",
        /// Any of several files (`poll`, `select`).
        Poll = 14 "poll",
        /// A child process.
        Child = 15 "child",
        /// A signal.
        Signal = 16 "signal",
        /// The lock of its own address space.
        MmapLock = 17 "mmap lock",
        /// Free memory: the kernel makes room on its behalf.
        Reclaim = 18 "reclaim",
        /// An io_uring.
        IoUring = 19 "io_uring",
        /// A signalfd, inotify, pidfd or other file without a name.
        AnonFile = 20 "anonymous file",
        /// Asynchronous I/O of the kernel (`io_getevents`).
        Aio = 21 "aio",
    }
}

named! {
    /// Who ended a wait.
    WokenBy {
        /// Nothing: it did not wait, or is still waiting.
        Nobody = 0 "",
        /// A thread.
        Thread = 1 "thread",
        /// A timer.
        Timer = 2 "timer",
        /// A disk's interrupt.
        Disk = 3 "disk",
        /// The network's interrupt.
        Network = 4 "network",
        /// Another interrupt.
        Interrupt = 5 "interrupt",
    }
}

/// One time off the CPU: from when the thread left until it ran again. Plain data, as [`crate::Call`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffCpu {
    /// When it left.
    pub start_ns: u64,
    /// Until it ran again, or the trace ended.
    pub duration_ns: u64,
    /// The last part of it, in which the thread was ready but had no CPU.
    pub ready_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Why it left.
    pub reason: Reason,
    /// What it waited for.
    pub wait: Wait,
    /// The system call it was in, by its number on this architecture; `None` outside of one.
    pub syscall: Option<u16>,
    /// The file's type: for a [`Wait::File`] the magic number of its filesystem; for a device its number
    /// (major << 20 | minor); for a socket its address family; else 0.
    pub file: u32,
    /// The object: a futex's address, the inode number of a pipe, socket or file; 0 if unknown.
    pub object: u64,
    /// The wait's timeout, counted from `start_ns`; `None` without one.
    pub timeout_ns: Option<u64>,
    /// Whether the kernel counted it as waiting for I/O.
    pub io_wait: bool,
    /// Who ended the wait.
    pub woken_by: WokenBy,
    /// Process of the waker; for an interrupt, of the interrupted thread (which may be the true sender on loopback).
    /// 0 without one.
    pub waker_pid: u32,
    /// Thread of the waker.
    pub waker_tid: u32,
    /// The CPU it left.
    pub left_cpu: u16,
    /// The CPU it ran on next.
    pub cpu: u16,
    /// The trace ended before it ran again.
    pub unfinished: bool,
    /// How many it represents, as [`crate::Call::weight`].
    pub weight: u32,
    /// The stack it left from, as [`crate::Call::stack`].
    pub stack: Option<u64>,
}

impl OffCpu {
    /// How many times off the CPU it represents, itself included.
    pub fn times(&self) -> u64 {
        u64::from(self.weight.max(1))
    }
}

/// A task, traced or not, running on a CPU for which a traced thread waited at some time meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuRun {
    /// When it began to run.
    pub start_ns: u64,
    /// For how long.
    pub duration_ns: u64,
    /// Process; 0 is the idle task.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// CPU.
    pub cpu: u16,
    /// The kernel's name of the thread, zero-padded.
    pub name: [u8; 16],
}

/// Ready time spent waiting for a CPU other than the one the thread finally ran on: it was moved while it waited. The rest of the ready time, for [`OffCpu::cpu`], needs no such record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedWait {
    /// When it began to wait for that CPU.
    pub start_ns: u64,
    /// Until it was moved away.
    pub duration_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The CPU it waited for.
    pub cpu: u16,
}

/// A thread's time, summed in the kernel since gpuwhy started to watch it: exact even if events were lost.
/// Newer sums of the same thread replace older ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadSums {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The kernel's name of the thread, zero-padded.
    pub name: [u8; 16],
    /// When the thread was created.
    pub born_ns: u64,
    /// When watching it started.
    pub since_ns: u64,
    /// Time of these sums.
    pub at_ns: u64,
    /// Time on a CPU.
    pub on_cpu_ns: u64,
    /// Time ready, waiting for a CPU; throttled time included.
    pub ready_ns: u64,
    /// Time blocked.
    pub blocked_ns: u64,
    /// The part of `ready_ns` without quota.
    pub throttled_ns: u64,
    /// Times off the CPU.
    pub switches: u64,
    /// Times the kernel gave it pages.
    pub page_allocations: u64,
    /// Bytes of those pages.
    pub page_bytes: u64,
    /// Whether the thread has ended.
    pub ended: bool,
    /// Whether its times are known; without the scheduler only pages are counted.
    pub has_times: bool,
}

/// A thread's name as text. The kernel's name is zero-padded and not always UTF-8.
pub fn task_name(name: &[u8; 16]) -> String {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// A name as in the kernel: zero-padded, cut to 16 bytes.
pub fn padded_name(name: &[u8]) -> [u8; 16] {
    let mut padded = [0; 16];
    let length = name.len().min(padded.len());
    padded[..length].copy_from_slice(&name[..length]);
    padded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_lead_back_to_their_values() {
        for reason in Reason::ALL {
            assert_eq!(Reason::from_number(*reason as u8), Some(*reason));
            assert_eq!(Reason::from_name(reason.name()), Some(*reason));
        }
        for wait in Wait::ALL {
            assert_eq!(Wait::from_number(*wait as u8), Some(*wait));
            assert_eq!(Wait::from_name(wait.name()), Some(*wait));
        }
        for by in WokenBy::ALL {
            assert_eq!(WokenBy::from_number(*by as u8), Some(*by));
            assert_eq!(WokenBy::from_name(by.name()), Some(*by));
        }
        assert_eq!(Reason::from_number(99), None);
        assert_eq!(Reason::from_name("bored"), None);
    }

    #[test]
    fn thread_names_end_at_the_first_zero_or_at_the_end() {
        assert_eq!(task_name(b"python\0\0\0\0\0\0\0\0\0\0"), "python");
        assert_eq!(task_name(b"0123456789abcdef"), "0123456789abcdef");
        assert_eq!(task_name(b"\xff\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), "\u{fffd}");
    }
}
