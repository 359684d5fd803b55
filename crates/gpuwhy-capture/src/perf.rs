// SPDX-License-Identifier: Apache-2.0
//! Opening perf's software events.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// PERF_FLAG_FD_CLOEXEC.
const FD_CLOEXEC: libc::c_ulong = 8;
/// PERF_TYPE_SOFTWARE.
pub(crate) const SOFTWARE: u32 = 1;
/// PERF_SAMPLE_TIME.
pub(crate) const SAMPLE_TIME: u64 = 4;
/// PERF_COUNT_SW_CPU_CLOCK: a timer, in ns.
pub(crate) const CPU_CLOCK: u64 = 0;
/// PERF_COUNT_SW_PAGE_FAULTS_MAJ.
pub(crate) const MAJOR_FAULTS: u64 = 6;
/// PERF_COUNT_SW_DUMMY: counts nothing, for records that come on the side.
pub(crate) const DUMMY: u64 = 9;

/// `struct perf_event_attr` as of PERF_ATTR_SIZE_VER5, the fields used here named.
#[repr(C)]
#[derive(Default)]
pub(crate) struct PerfEventAttr {
    pub(crate) kind: u32,
    pub(crate) size: u32,
    pub(crate) config: u64,
    pub(crate) sample_period: u64,
    pub(crate) sample_type: u64,
    pub(crate) read_format: u64,
    pub(crate) flags: u64,
    pub(crate) wakeup: u32,
    pub(crate) breakpoint: u32,
    pub(crate) config1: u64,
    pub(crate) config2: u64,
    pub(crate) before_clock: [u32; 5],
    pub(crate) clock: i32,
    pub(crate) rest: [u32; 4],
}

/// Opens an event on one CPU, for all processes. It is not inherited, so the traced job never gets it.
pub(crate) fn open(attr: &PerfEventAttr, cpu: i32) -> std::io::Result<OwnedFd> {
    // SAFETY: the attribute outlives the call and says its own size.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const *attr, -1, cpu, -1, FD_CLOEXEC) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Does something on every CPU that is online.
pub(crate) fn on_every_cpu<T>(open: impl Fn(i32) -> std::io::Result<T>) -> std::io::Result<Vec<T>> {
    // SAFETY: sysconf reads a number.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.max(1);
    let mut opened = Vec::new();
    for cpu in 0..cpus as i32 {
        match open(cpu) {
            Ok(one) => opened.push(one),
            // A CPU that is configured but offline.
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(opened)
}
