// SPDX-License-Identifier: Apache-2.0
//! A full-screen terminal: the alternate screen, and keys that are read one by one. Restored when dropped, also on a panic.

use crate::output::{cut, terminal_size};
use std::io::{IsTerminal, Write};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// The terminal at standard output.
pub(super) struct Terminal {
    /// The settings before; `None` if standard input is not a terminal.
    before: Option<libc::termios>,
}

impl Terminal {
    /// Takes the terminal, if there is one.
    pub(super) fn take() -> Option<Self> {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if dumb || !std::io::stdout().is_terminal() {
            return None;
        }
        let before = read_single_keys();
        // The alternate screen, without a cursor.
        write("\x1b[?1049h\x1b[?25l\x1b[2J");
        Some(Self { before })
    }

    /// Rows and columns.
    pub(super) fn size(&self) -> (usize, usize) {
        terminal_size(&std::io::stdout()).map_or((24, 80), |(rows, columns)| (usize::from(rows), usize::from(columns)))
    }

    /// Draws these lines over the old ones.
    pub(super) fn draw(&self, lines: &[String]) {
        let (rows, columns) = self.size();
        let mut out = String::from("\x1b[H");
        for (row, line) in lines.iter().take(rows).enumerate() {
            // No newline after the last line: it would scroll.
            let end = if row + 1 < rows { "\r\n" } else { "" };
            out += &format!("{}\x1b[K{end}", cut(line, columns));
        }
        out += "\x1b[J";
        write(&out);
    }

    /// Waits for a key until the deadline. `None` if there was none or a signal came.
    pub(super) fn key_before(&self, deadline: Instant) -> Option<u8> {
        let left = deadline.saturating_duration_since(Instant::now());
        if self.before.is_none() {
            pause(left);
            return None;
        }
        let mut input = libc::pollfd { fd: std::io::stdin().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one descriptor, in a struct we own.
        let ready = unsafe { libc::poll(&raw mut input, 1, ms) };
        if ready <= 0 {
            return None;
        }
        let mut key = 0_u8;
        // SAFETY: one byte, into one we own.
        let count = unsafe { libc::read(input.fd, (&raw mut key).cast(), 1) };
        if count == 1 {
            return Some(key);
        }
        // A terminal that is gone is always ready and never has a key.
        pause(left);
        None
    }
}

/// Sleeps; a signal ends it early. `true` if the reader of standard output is gone: without a write, nothing else shows it.
pub(super) fn pause(time: Duration) -> bool {
    let mut output = libc::pollfd { fd: std::io::stdout().as_raw_fd(), events: 0, revents: 0 };
    let ms = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one descriptor, in a struct we own.
    let ready = unsafe { libc::poll(&raw mut output, 1, ms) };
    ready > 0 && output.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0
}

impl Drop for Terminal {
    fn drop(&mut self) {
        write("\x1b[?25h\x1b[?1049l");
        if let Some(before) = &self.before {
            // SAFETY: what was read from this descriptor.
            unsafe { libc::tcsetattr(std::io::stdin().as_raw_fd(), libc::TCSANOW, before) };
        }
    }
}

/// Keys arrive without Enter and without echo; Ctrl-C is still a signal.
fn read_single_keys() -> Option<libc::termios> {
    let fd = std::io::stdin().as_raw_fd();
    // SAFETY: a struct of numbers, for which zeroes are valid.
    let mut now: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: fills the struct we own; fails if this is not a terminal.
    if unsafe { libc::tcgetattr(fd, &raw mut now) } != 0 {
        return None;
    }
    let before = now;
    now.c_lflag &= !(libc::ICANON | libc::ECHO);
    // SAFETY: what was read, changed.
    let done = unsafe { libc::tcsetattr(fd, libc::TCSANOW, &raw const now) } == 0;
    done.then_some(before)
}

fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
