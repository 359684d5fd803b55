// SPDX-License-Identifier: Apache-2.0
//! How many files may be open: each probe is one, and the usual limit of 1,024 is soon reached.

/// Raises the limit as far as it goes; returns what it was, for the job to get back.
pub(crate) fn raise_open_files() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills the struct we own.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: reads the struct we own. Refused, the limit is as it was.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    before
}

/// Sets it back. Async-signal-safe: runs between fork and exec.
pub(crate) fn restore_open_files(before: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: two system calls on a struct we own.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = before;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
}
