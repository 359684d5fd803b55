// SPDX-License-Identifier: Apache-2.0
//! Capabilities of this thread, through system calls, because the C library has no functions for them.

use std::io;

/// linux/capability.h.
pub(crate) const CAP_DAC_OVERRIDE: u32 = 1;
pub(crate) const CAP_DAC_READ_SEARCH: u32 = 2;
const CAP_SYS_PTRACE: u32 = 19;
pub(crate) const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;
/// Number of capabilities the interface can hold; kernels have fewer.
const MOST: u32 = 64;

/// Needed to attach to a library that is loaded later: probes, and reading the process and its files.
pub(crate) const KEPT: u64 = 1 << CAP_BPF | 1 << CAP_PERFMON | 1 << CAP_SYS_PTRACE | 1 << CAP_DAC_READ_SEARCH;

/// Needed to follow `/proc/PID/root` of another user's process.
pub(crate) const SEE_PROCESSES: u64 = 1 << CAP_SYS_PTRACE;

/// A thread's sets, a bit for each capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CapSets {
    pub(crate) effective: u64,
    pub(crate) permitted: u64,
    pub(crate) inheritable: u64,
}

/// `struct __user_cap_header_struct`.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// `struct __user_cap_data_struct`; two hold the lower and upper 32 capabilities.
#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// _LINUX_CAPABILITY_VERSION_3, of this thread.
const THIS_THREAD: Header = Header { version: 0x2008_0522, pid: 0 };

impl CapSets {
    /// What this thread has.
    pub(crate) fn current() -> io::Result<Self> {
        let (mut header, mut data) = (THIS_THREAD, [Data::default(); 2]);
        // SAFETY: version 3 means that the kernel fills two of the structs, which are ours.
        if unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let joined = |part: fn(&Data) -> u32| u64::from(part(&data[0])) | u64::from(part(&data[1])) << 32;
        Ok(Self {
            effective: joined(|d| d.effective),
            permitted: joined(|d| d.permitted),
            inheritable: joined(|d| d.inheritable),
        })
    }

    /// Makes them this thread's.
    pub(crate) fn apply(self) -> io::Result<()> {
        let part = |shift: u32| Data {
            effective: (self.effective >> shift) as u32,
            permitted: (self.permitted >> shift) as u32,
            inheritable: (self.inheritable >> shift) as u32,
        };
        let (mut header, data) = (THIS_THREAD, [part(0), part(32)]);
        // SAFETY: version 3 means that the kernel reads two of the structs, which are ours.
        match unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Removes everything but `keep` from the bounding set, which limits what programs started from here can gain.
pub(crate) fn drop_bounding(keep: u64) -> io::Result<()> {
    for capability in (0..MOST).filter(|capability| keep & 1 << capability == 0) {
        let number = libc::c_ulong::from(capability);
        // SAFETY: plain system calls with numbers. A capability this kernel does not have is in no set.
        let there = unsafe { libc::prctl(libc::PR_CAPBSET_READ, number, 0, 0, 0) } == 1;
        // SAFETY: as above.
        if there && unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number, 0, 0, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Clears the ambient set, so that programs started from here inherit no capabilities.
pub(crate) fn clear_ambient() -> io::Result<()> {
    let clear = libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong;
    // SAFETY: plain system call with numbers.
    match unsafe { libc::prctl(libc::PR_CAP_AMBIENT, clear, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The permitted set in the text of a /proc/…/status.
pub(crate) fn permitted_of(status: &str) -> Option<u64> {
    status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapPrm:")?.trim(), 16).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_calls_say_is_what_proc_says() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let sets = CapSets::current().unwrap();
        assert_eq!(Some(sets.permitted), permitted_of(&status));
        // Applying what is there changes nothing; on a thread of its own, taking away takes away.
        sets.apply().unwrap();
        let after = std::thread::spawn(|| {
            CapSets::default().apply().unwrap();
            CapSets::current().unwrap()
        });
        assert_eq!(after.join().unwrap(), CapSets::default());
        assert_eq!(CapSets::current().unwrap(), sets);
    }
}
