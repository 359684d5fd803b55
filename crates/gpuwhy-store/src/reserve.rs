// SPDX-License-Identifier: Apache-2.0
//! Space set aside on the run file's disk. On a full disk it is given back when the run ends, so that the
//! file can still say how much was lost.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Sizes to ask for, bytes: enough for what [`crate::Writer::finish`] writes, less where the disk is tiny.
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
