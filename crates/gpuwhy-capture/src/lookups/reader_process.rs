// SPDX-License-Identifier: Apache-2.0
//! The processes that read other processes. One is forked when capturing starts, while there is one thread and nothing
//! to inherit. It starts the readers, one at a time per slot, and ends the previous one.

use super::reader::Reader;
use super::sandbox;
use super::wire::Wire;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Readers that were ended and could not end yet: beyond that no new ones are started.
const MOST_LEFT: usize = 64;
/// How often, a millisecond apart, is looked at the end whether they have ended.
const FAREWELLS: u32 = 50;
/// Where the wire is kept in the new process; everything above is closed.
const WIRE_FD: libc::c_int = 3;

/// gpuwhy's handle on the process that starts readers.
#[derive(Debug)]
pub(super) struct Starter {
    wire: Option<Wire>,
    pid: libc::pid_t,
}

impl Starter {
    /// Forks it. Best called while this process has one thread.
    pub(super) fn start() -> io::Result<Self> {
        let (ours, theirs) = Wire::pair()?;
        // SAFETY: the child runs `run` and leaves with _exit; it uses nothing that another thread could have locked but
        // the allocator, which the C library hands over unlocked.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let _ = catch_unwind(AssertUnwindSafe(|| run(theirs)));
                // SAFETY: ends the child without running anything of its parent's.
                unsafe { libc::_exit(1) }
            }
            pid => Ok(Self { wire: Some(Wire::new(ours)), pid }),
        }
    }

    /// Its process, and so the parent of all readers.
    pub(super) fn pid(&self) -> u32 {
        self.pid.cast_unsigned()
    }

    /// A new reader in a place, in which none is left then.
    pub(super) fn reader(&self, place: u8) -> io::Result<Wire> {
        let (ours, theirs) = Wire::pair()?;
        let wire = self.wire.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        wire.send(&[place], Some(theirs.as_fd()), true)?;
        Ok(Wire::new(ours))
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        // It ends when the other end closes.
        self.wire = None;
        // SAFETY: waits for a child of ours, and no other code waits for it.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

/// The process that starts readers.
fn run(wire: OwnedFd) -> Option<()> {
    let mut wire = Wire::new(settle_in(wire).ok()?);
    sandbox::give_up_rights().ok()?;
    let mut places: Vec<(u8, libc::pid_t)> = Vec::new();
    let mut left = 0;
    loop {
        let order = wire.receive(true);
        left -= reap();
        let Ok(Some(order)) = order else {
            places.iter().for_each(|(_, pid)| end(*pid));
            take_leave(left);
            // SAFETY: ends this process.
            unsafe { libc::_exit(0) }
        };
        let (place, socket) = (*order.bytes.first()?, order.file?);
        places.retain(|(other, pid)| {
            if *other == place {
                end(*pid);
            }
            *other != place
        });
        if left >= MOST_LEFT as isize {
            continue;
        }
        // SAFETY: this process has one thread; the child leaves with _exit.
        match unsafe { libc::fork() } {
            -1 => {}
            0 => {
                drop(wire);
                read_for(socket);
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) }
            }
            pid => {
                places.push((place, pid));
                left += 1;
            }
        }
    }
}

fn read_for(socket: OwnedFd) {
    // SAFETY: plain system call with numbers: a reader ends with the process that started it.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if sandbox::allow_reading_only().is_ok() {
        Reader::default().serve(Wire::new(socket));
    }
}

fn end(pid: libc::pid_t) {
    // SAFETY: a child of this process that has not been waited for, so the number is its own.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Reaps ended children; returns how many.
fn reap() -> isize {
    // SAFETY: asks about children of this process, which are all readers.
    (0..).take_while(|_| unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0).count() as isize
}

/// Waits briefly for killed readers: a file system may block one for any time.
fn take_leave(mut left: isize) {
    for _ in 0..FAREWELLS {
        left -= reap();
        if left <= 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Closes everything inherited but the wire. The process ends only when the wire closes: Ctrl-C is handled by the
/// parent.
fn settle_in(wire: OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: plain system calls; the descriptors are this process's own copies, of which only the wire is used on.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for standard in 0..3 {
            libc::dup2(null, standard);
        }
        if wire.as_raw_fd() != WIRE_FD && libc::dup2(wire.as_raw_fd(), WIRE_FD) < 0 {
            return Err(io::Error::last_os_error());
        }
        std::mem::forget(wire);
        libc::syscall(libc::SYS_close_range, WIRE_FD + 1, u32::MAX, 0);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE, libc::SIGTSTP] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"gpuwhy-reader".as_ptr());
        Ok(OwnedFd::from_raw_fd(WIRE_FD))
    }
}
