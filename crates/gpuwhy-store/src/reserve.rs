// SPDX-License-Identifier: Apache-2.0
//! Space reserved on the run file's disk. On a full disk it is freed when the run ends, so that the file can still
//! record how much was lost.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Sizes to try, bytes: enough for what [`crate::Writer::finish`] writes, less on a tiny disk.
const SIZES: [libc::off_t; 2] = [1 << 20, 1 << 18];

/// A file without a name in `folder` that takes up space until it is dropped, however the process ends.
/// `None` where the file system cannot do that, or has no space even now.
pub(crate) fn take(folder: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600).custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC);
    let file = options.open(folder).ok()?;
    // SAFETY: the descriptor is open for as long as `file` lives.
    let got = |size: &libc::off_t| unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, *size) } == 0;
    SIZES.iter().any(got).then_some(file)
}

/// Free space on a folder's disk, bytes; 0 if unknown.
pub(crate) fn free_bytes(folder: &Path) -> u64 {
    let Ok(path) = CString::new(folder.as_os_str().as_bytes()) else { return 0 };
    // SAFETY: a struct for which zeroes are valid.
    let mut told: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero, and `told` is there to be written to.
    let known = unsafe { libc::statvfs(path.as_ptr(), &raw mut told) } == 0;
    if known { told.f_bavail.saturating_mul(told.f_frsize) } else { 0 }
}
