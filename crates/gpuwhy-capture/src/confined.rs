// SPDX-License-Identifier: Apache-2.0
//! Whether return probes harm processes under a seccomp filter, as in containers.
//!
//! On x86-64, Linux 6.11 and newer end return probes with a special system call. A filter that does not know it kills
//! the process when a probed function returns; from 6.14 on (and in 6.13.3, 6.12.14) filters do not see it.
//! Distributions backport fixes without changing the version, so this is tested: a child with such a filter calls a
//! probed function.

use crate::calibrate::Calibrator;
use crate::perf::{self, PerfEventAttr};
use crate::system;
use gpuwhy_strangers::read_text;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Kernels that may be concerned.
const MAYBE: std::ops::Range<(u32, u32)> = (6, 11)..(6, 14);
/// The number of uretprobe(2) on x86-64.
const URETPROBE: u32 = 335;
/// The bit of a probe's `config`; see /sys/bus/event_source/devices/uprobe/format/retprobe.
const RETURN_PROBE: u64 = 1;

/// Whether this kernel kills confined processes at return probes. Where that cannot be tried, it is not one.
pub(crate) fn are_killed_by_return_probes() -> bool {
    let version = system::kernel_version(&system::kernel_release());
    cfg!(target_arch = "x86_64") && version.is_some_and(|version| MAYBE.contains(&version)) && !survive(URETPROBE)
}

/// Whether a process survives a probed call with a filter that kills it at this system call.
fn survive(forbidden: u32) -> bool {
    let Ok(calibrator) = Calibrator::new() else { return true };
    let Some(site) = calibrator.sites().first() else { return true };
    let (Some(kind), Ok(path)) = (uprobe_kind(), CString::new(calibrator.path().as_os_str().as_bytes())) else {
        return true;
    };
    let attr = PerfEventAttr {
        kind,
        size: size_of::<PerfEventAttr>() as u32,
        config: RETURN_PROBE,
        config1: path.as_ptr().addr() as u64,
        config2: site.offset,
        ..Default::default()
    };
    let Ok(_probe) = perf::open(&attr, 0) else { return true };
    // SAFETY: the child makes system calls and calls an empty function, and ends without running anything of ours.
    match unsafe { libc::fork() } {
        0 => {
            confine(forbidden);
            site.call();
            // SAFETY: ends the child at once.
            unsafe { libc::syscall(libc::SYS_exit_group, 0) };
            true
        }
        child if child > 0 => ended_well(child),
        _ => true,
    }
}

fn uprobe_kind() -> Option<u32> {
    read_text(Path::new("/sys/bus/event_source/devices/uprobe/type"), 64).ok()?.trim().parse().ok()
}

/// From here on, one system call kills.
fn confine(forbidden: u32) {
    let step =
        |code: u32, jump_true, jump_false, k| libc::sock_filter { code: code as u16, jt: jump_true, jf: jump_false, k };
    let filter = [
        // The number of the system call is the first word.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, forbidden),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: two system calls, of which the second reads the filter above.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program);
    }
}

fn ended_well(child: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: waits for a child of ours and writes to a word of ours.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
        if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return true;
        }
    }
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confined_process_that_is_killed_is_noticed() {
        let root = perf::open(
            &PerfEventAttr {
                kind: perf::SOFTWARE,
                config: perf::DUMMY,
                size: size_of::<PerfEventAttr>() as u32,
                ..Default::default()
            },
            0,
        );
        if root.is_err() {
            assert!(std::env::var_os("CI").is_none(), "CI must not skip it");
            return;
        }
        assert!(!survive(libc::SYS_exit_group as u32), "the child's own end is forbidden");
        assert!(survive(libc::SYS_reboot as u32), "nothing it does is forbidden");
    }

    #[test]
    fn this_kernel_is_what_its_version_says() {
        let version = system::kernel_version(&system::kernel_release()).unwrap();
        assert!(MAYBE.contains(&version) || !are_killed_by_return_probes());
    }
}
