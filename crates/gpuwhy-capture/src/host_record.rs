// SPDX-License-Identifier: Apache-2.0
//! Ring records about threads and CPUs: the structs of bpf/watched.h, distinguished by size.

use gpuwhy_model::{CpuRun, MovedWait, OffCpu, Reason, ThreadSums, Wait, WokenBy};

const OFF: usize = 112;
const RUN: usize = 48;
const MOVED: usize = 32;
const SUMS: usize = 120;
const OFF_IO_WAIT: u8 = 1;
const OFF_UNFINISHED: u8 = 2;
const OFF_TIMEOUT: u8 = 4;
const OFF_HOLDER: u8 = 8;
const OFF_KERNEL_HOLDER: u8 = 16;
const RUN_KERNEL: u32 = 1;
const SUMS_ENDED: u32 = 1;
const SUMS_NO_TIMES: u32 = 2;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostRecord {
    /// A time off CPU, with the previous user of the CPU if it is to be reported.
    Off(OffCpu, Option<CpuRun>),
    /// A thread ran while a traced thread waited for its CPU.
    Run(CpuRun),
    /// A waiting thread was moved.
    Moved(MovedWait),
    /// A thread's sums.
    Sums(ThreadSums),
}

/// Reads fields at their offsets; beyond the end of a record, fields are zero.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(at))
    }

    fn half(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.bytes(at))
    }

    fn quarter(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.bytes(at))
    }

    fn byte(&self, at: usize) -> u8 {
        self.bytes::<1>(at)[0]
    }
}

/// Reads one; `None` for one of a size or with numbers this version does not know.
#[inline]
pub(crate) fn parse(bytes: &[u8]) -> Option<HostRecord> {
    let fields = Fields(bytes);
    match bytes.len() {
        OFF => off(&fields),
        RUN => Some(HostRecord::Run(CpuRun {
            start_ns: fields.word(0),
            duration_ns: fields.word(8),
            name: program(fields.bytes(16), fields.half(44) & RUN_KERNEL != 0),
            pid: fields.half(32),
            tid: fields.half(36),
            cpu: fields.half(40) as u16,
        })),
        MOVED => Some(HostRecord::Moved(MovedWait {
            start_ns: fields.word(0),
            duration_ns: fields.word(8),
            pid: fields.half(16),
            tid: fields.half(20),
            cpu: fields.half(24) as u16,
        })),
        SUMS => Some(HostRecord::Sums(sums(&fields))),
        _ => None,
    }
}

fn off(fields: &Fields<'_>) -> Option<HostRecord> {
    let flags = fields.byte(109);
    let (start_ns, duration_ns) = (fields.word(0), fields.word(8));
    let off = OffCpu {
        start_ns,
        duration_ns,
        ready_ns: fields.word(16),
        object: fields.word(24),
        timeout_ns: (flags & OFF_TIMEOUT != 0).then(|| fields.word(32)),
        pid: fields.half(80),
        tid: fields.half(84),
        waker_pid: fields.half(88),
        waker_tid: fields.half(92),
        file: fields.half(96),
        left_cpu: fields.quarter(100),
        cpu: fields.quarter(102),
        syscall: Some(fields.quarter(104)).filter(|number| number.cast_signed() >= 0),
        reason: Reason::from_number(fields.byte(106))?,
        wait: Wait::from_number(fields.byte(107))?,
        woken_by: WokenBy::from_number(fields.byte(108))?,
        io_wait: flags & OFF_IO_WAIT != 0,
        unfinished: flags & OFF_UNFINISHED != 0,
        weight: 1,
        stack: Some(fields.word(40)).filter(|stack| *stack != 0),
    };
    let since_ns = fields.word(48);
    let holder = (flags & OFF_HOLDER != 0).then(|| CpuRun {
        start_ns: since_ns,
        duration_ns: start_ns.wrapping_add(duration_ns).saturating_sub(since_ns),
        name: program(fields.bytes(56), flags & OFF_KERNEL_HOLDER != 0),
        pid: fields.half(72),
        tid: fields.half(76),
        cpu: off.cpu,
    });
    Some(HostRecord::Off(off, holder))
}

/// A program's name; of a kernel thread in brackets, as ps shows it.
fn program(name: [u8; 16], is_kernel: bool) -> [u8; 16] {
    if !is_kernel {
        return name;
    }
    let mut bracketed = [0; 16];
    // The last byte stays zero.
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len()).min(bracketed.len() - 3);
    bracketed[0] = b'[';
    bracketed[1..=length].copy_from_slice(&name[..length]);
    bracketed[length + 1] = b']';
    bracketed
}

fn sums(fields: &Fields<'_>) -> ThreadSums {
    ThreadSums {
        born_ns: fields.word(0),
        since_ns: fields.word(8),
        at_ns: fields.word(16),
        on_cpu_ns: fields.word(24),
        ready_ns: fields.word(32),
        blocked_ns: fields.word(40),
        throttled_ns: fields.word(48),
        switches: fields.word(56),
        page_allocations: fields.word(64),
        page_bytes: fields.word(72),
        name: fields.bytes(80),
        pid: fields.half(96),
        tid: fields.half(100),
        ended: fields.half(104) & SUMS_ENDED != 0,
        has_times: fields.half(104) & SUMS_NO_TIMES == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_off_cpu_names_its_holder() {
        let mut bytes = [0u8; OFF];
        for (at, value) in [(0, 1_000u64), (8, 500), (16, 200), (24, 0xabc), (32, 5_000_000), (48, 900), (40, 77)] {
            bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        bytes[56..63].copy_from_slice(b"stress\0");
        for (at, value) in [(72, 7u32), (76, 8), (80, 1), (84, 2), (88, 3), (92, 4), (96, 0xef53)] {
            bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        for (at, value) in [(100, 5u16), (102, 6), (104, 0xffff)] {
            bytes[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        }
        bytes[106] = Reason::Uninterruptible as u8;
        bytes[107] = Wait::File as u8;
        bytes[108] = WokenBy::Disk as u8;
        bytes[109] = OFF_IO_WAIT | OFF_HOLDER;
        let Some(HostRecord::Off(off, Some(run))) = parse(&bytes) else { panic!() };
        assert_eq!((off.start_ns, off.duration_ns, off.ready_ns, off.object), (1_000, 500, 200, 0xabc));
        assert_eq!((off.pid, off.tid, off.waker_pid, off.waker_tid, off.file), (1, 2, 3, 4, 0xef53));
        assert_eq!((off.left_cpu, off.cpu, off.syscall, off.timeout_ns), (5, 6, None, None));
        assert_eq!((off.reason, off.wait, off.woken_by), (Reason::Uninterruptible, Wait::File, WokenBy::Disk));
        assert!(off.io_wait && !off.unfinished && off.stack == Some(77));
        assert_eq!((run.start_ns, run.duration_ns, run.pid, run.tid, run.cpu), (900, 600, 7, 8, 6));
        assert_eq!(&run.name[..7], b"stress\0");
        bytes[109] |= OFF_KERNEL_HOLDER;
        let Some(HostRecord::Off(_, Some(run))) = parse(&bytes) else { panic!() };
        assert_eq!(&run.name[..9], b"[stress]\0");
        assert_eq!(&program(*b"kworker/u8:3-ev\0", true), b"[kworker/u8:3-]\0");
        bytes[106] = 77;
        assert_eq!(parse(&bytes), None, "a reason of a newer version is not guessed at");
        assert_eq!(parse(&bytes[..100]), None);
    }

    /// The kernel's half is C: its numbers are read from there.
    #[test]
    fn numbers_agree_with_the_kernels_half() {
        let header = include_str!("../bpf/watched.h");
        let upper = |prefix: &str, name: &str| format!("\t{prefix}{} = ", name.to_uppercase().replace([' ', '-'], "_"));
        for reason in Reason::ALL {
            assert!(header.contains(&format!("{}{},", upper("", reason.name()), *reason as u8)), "{reason:?}");
        }
        for wait in Wait::ALL.iter().filter(|wait| !wait.name().is_empty()) {
            let name = match wait {
                Wait::Gpu => "gpu",
                Wait::AnonFile => "anon_file",
                other => other.name(),
            };
            assert!(header.contains(&format!("{}{},", upper("WAIT_", name), *wait as u8)), "{wait:?}");
        }
        for by in WokenBy::ALL.iter().filter(|by| !by.name().is_empty()) {
            assert!(header.contains(&format!("{}{},", upper("BY_", by.name()), *by as u8)), "{by:?}");
        }
        assert!(header.contains(&format!("#define RUN_KERNEL {RUN_KERNEL}\n")));
        for (name, ours) in [
            ("IO_WAIT", OFF_IO_WAIT),
            ("UNFINISHED", OFF_UNFINISHED),
            ("TIMEOUT", OFF_TIMEOUT),
            ("HOLDER", OFF_HOLDER),
            ("KERNEL_HOLDER", OFF_KERNEL_HOLDER),
        ] {
            assert!(header.contains(&format!("#define OFF_{name} {ours}\n")), "{name}");
        }
    }
}
