// SPDX-License-Identifier: Apache-2.0
//! Reading the kernel's small text files cheaply, and the kernel's units.

use gpuwhy_strangers::{open_file, read_text};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The most that is read of a file; an interrupt table of many CPUs has some hundred kB.
const MOST_TEXT: usize = 4 << 20;

/// Units of the kernel's figures on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Units {
    /// One clock tick of `/proc`, nanoseconds.
    pub tick_ns: u64,
    /// One page, bytes.
    pub page: u64,
}

impl Units {
    /// Those of the running kernel.
    pub(super) fn read() -> Self {
        // SAFETY: sysconf reads numbers.
        let (ticks, page) = unsafe { (libc::sysconf(libc::_SC_CLK_TCK), libc::sysconf(libc::_SC_PAGESIZE)) };
        let ticks = u64::try_from(ticks).ok().filter(|t| *t > 0).unwrap_or(100);
        Self { tick_ns: 1_000_000_000 / ticks, page: u64::try_from(page).unwrap_or(4096) }
    }
}

/// Now by one of the kernel's clocks, nanoseconds.
pub(super) fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the struct we own.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

/// How far another clock is ahead of `CLOCK_MONOTONIC` now, nanoseconds. Measured twice, because a thread may be
/// taken off its CPU between the two readings; the closer pair counts.
pub(super) fn ahead_of_monotonic_ns(clock: libc::clockid_t) -> i128 {
    let measure = || {
        let before = clock_ns(libc::CLOCK_MONOTONIC);
        let other = clock_ns(clock);
        let after = clock_ns(libc::CLOCK_MONOTONIC);
        (after.saturating_sub(before), i128::from(other) - i128::from(before.midpoint(after)))
    };
    measure().min(measure()).1
}

/// A file at a fixed path, kept open and read again from its start: cheaper than opening it every second.
#[derive(Debug)]
pub(super) struct Kept {
    file: Option<File>,
    bytes: Vec<u8>,
}

impl Kept {
    /// Opens it; a file that is not there reads as `None` for ever.
    pub(super) fn open(path: &Path) -> Self {
        Self { file: open_file(path).ok(), bytes: vec![0; 4096] }
    }

    /// Its contents now.
    pub(super) fn read(&mut self) -> Option<&str> {
        let file = self.file.as_ref()?;
        let filled = read_all(file, &mut self.bytes).ok()?;
        std::str::from_utf8(&self.bytes[..filled]).ok()
    }
}

/// Fills the buffer, growing it if needed; returns the length.
fn read_all(file: &File, bytes: &mut Vec<u8>) -> std::io::Result<usize> {
    let mut filled = 0;
    loop {
        if filled == MOST_TEXT {
            return Ok(filled);
        }
        if filled == bytes.len() {
            bytes.resize((filled * 2).clamp(4096, MOST_TEXT), 0);
        }
        match file.read_at(&mut bytes[filled..], filled as u64) {
            Ok(0) => return Ok(filled),
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads a text file of the kernel; names in it may be any bytes. Unlike `std::fs::read`, it does not query the size,
/// because the kernel's files have none.
pub(super) fn text(path: &Path) -> Option<String> {
    read_text(path, MOST_TEXT).ok()
}

/// A file with one number.
pub(super) fn number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    text(path)?.trim().parse().ok()
}

/// The number on the line that starts with a word: `nr_periods 12`, `read_bytes: 12`, `VmRSS:  12 kB`.
pub(super) fn value_of(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        let rest = rest.strip_prefix(':').unwrap_or(rest).strip_prefix([' ', '\t'])?;
        rest.split_ascii_whitespace().next()?.parse().ok()
    })
}

/// The increase of a counter; `None` unless both values are known.
pub(super) fn gained(now: Option<u64>, before: Option<u64>) -> Option<u64> {
    Some(now?.saturating_sub(before?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_whole_name() {
        let text = "oom_kill_disable 0\nVmRSS:\t    10 kB\nread_bytes: 7\noom_kill 3\nlast";
        assert_eq!(value_of(text, "oom_kill"), Some(3));
        assert_eq!((value_of(text, "VmRSS"), value_of(text, "read_bytes")), (Some(10), Some(7)));
        assert_eq!((value_of(text, "VmR"), value_of(text, "last"), value_of(text, "none")), (None, None, None));
    }

    #[test]
    fn long_and_odd_files_are_read_whole() {
        let path = std::env::temp_dir().join(format!("gpuwhy-files-{}", std::process::id()));
        std::fs::write(&path, "x".repeat(10_000)).unwrap();
        let mut kept = Kept::open(&path);
        assert_eq!((kept.read().unwrap().len(), text(&path).unwrap().len()), (10_000, 10_000));
        std::fs::write(&path, b"a\xffb\n").unwrap();
        assert_eq!(text(&path).as_deref(), Some("a\u{fffd}b\n"));
        assert_eq!(kept.read(), None);
        std::fs::write(&path, "12\n").unwrap();
        assert_eq!((kept.read().map(str::to_owned).as_deref(), number::<u64>(&path)), (Some("12\n"), Some(12)));
        std::fs::remove_file(&path).unwrap();
        assert_eq!((text(&path), number::<u64>(&path)), (None, None));
    }
}
