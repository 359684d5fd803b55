// SPDX-License-Identifier: Apache-2.0
//! A progress line for files that take more than a second to read: bytes done, rate, time left.

use gpuwhy_model::units;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// The line appears after this time.
const PATIENCE: Duration = Duration::from_secs(1);
/// Minimum time between two updates.
const EVERY: Duration = Duration::from_millis(200);

/// Progress of reading one file. Dropping it clears the line.
pub(crate) struct Progress {
    name: String,
    /// Bytes to read.
    size: u64,
    began: Instant,
    said: Option<Instant>,
    wanted: bool,
}

impl Progress {
    pub(crate) fn new(path: &Path, size: u64) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let wanted = std::io::stderr().is_terminal();
        Self { name: units::safe(&name, 40), size, began: Instant::now(), said: None, wanted }
    }

    /// Updates the line; `done` is the number of bytes read.
    pub(crate) fn at(&mut self, done: u64) {
        let elapsed = self.began.elapsed();
        if !self.wanted || elapsed < PATIENCE || self.said.is_some_and(|last| last.elapsed() < EVERY) {
            return;
        }
        self.said = Some(Instant::now());
        let line = line(&self.name, done, self.size, elapsed);
        let mut stderr = std::io::stderr().lock();
        // Failing to write to the terminal does not matter.
        let _ = write!(stderr, "\r\x1b[2K{line}").and_then(|()| stderr.flush());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.said.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}

fn line(name: &str, done: u64, size: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-9);
    let mut line =
        format!("reading {name}  {} of {}  {}/s", units::bytes(done), units::bytes(size), units::bytes(rate as u64));
    if size > done && rate > 0.0 {
        line += &format!("  {} left", units::time(((size - done) as f64 / rate * 1e9) as u64));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_how_fast_and_how_long_still() {
        let shown = line("trace.json", 500_000_000, 1_500_000_000, Duration::from_secs(2));
        assert_eq!(shown, "reading trace.json  500 MB of 1.50 GB  250 MB/s  4.00 s left");
        assert_eq!(line("a", 1_000, 1_000, Duration::from_secs(1)), "reading a  1.00 kB of 1.00 kB  1.00 kB/s");
    }
}
