// SPDX-License-Identifier: Apache-2.0
//! Commands on a terminal of a given width.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};

/// Runs a command on a terminal with this many columns and returns everything it wrote.
pub fn on_terminal(command: &mut Command, columns: u16) -> String {
    let (mut master, mut slave) = (0, 0);
    let size = libc::winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the two descriptors are ours to fill; a name and settings are not asked for.
    let made = unsafe { libc::openpty(&mut master, &mut slave, std::ptr::null_mut(), std::ptr::null(), &size) };
    assert_eq!(made, 0);
    // SAFETY: both were just made, and nobody else has them.
    let (master, slave) = unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
    let end = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
    command.env("TERM", "xterm").env("NO_COLOR", "1");
    command.stdin(Stdio::null()).stdout(end(&slave)).stderr(end(&slave));
    let mut child = command.spawn().unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    drop(slave);
    let mut written = Vec::new();
    let mut buffer = [0_u8; 4096];
    loop {
        // SAFETY: the buffer is ours and as long as said.
        let got = unsafe { libc::read(master.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
        // A terminal whose last writer has gone reads as an error.
        let Ok(got) = usize::try_from(got) else { break };
        if got == 0 {
            break;
        }
        written.extend_from_slice(&buffer[..got]);
    }
    let status = child.wait().unwrap();
    let text = String::from_utf8_lossy(&written).replace("\r\n", "\n");
    assert!(status.success(), "{command:?}: {text}");
    text
}
