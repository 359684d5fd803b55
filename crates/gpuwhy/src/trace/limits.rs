// SPDX-License-Identifier: Apache-2.0
//! The limit of open files: each probe needs a file descriptor, which soon exceeds the usual limit of 1,024.

/// Raises the limit to its maximum and returns the old value, which the job gets.
pub(crate) fn raise_open_files() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills the struct we own.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: reads the struct we own. If refused, the limit is unchanged.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    before
}

/// Restores the limit. Async-signal-safe: runs between fork and exec.
pub(crate) fn restore_open_files(before: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: two system calls on a struct we own.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = before;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
}
