// SPDX-License-Identifier: Apache-2.0
//! The lower part of the terminal: a few lines that redraw while the job's own output scrolls above.
//!
//! It uses the terminal's scroll region (DECSTBM), so the job keeps its terminal and nothing is piped. Dropping it restores
//! the terminal, also on a panic.

use crate::output::{self, cut};
use std::io::Write;

/// The lines kept at the bottom.
pub(crate) struct Screen {
    rows: u16,
    columns: u16,
    wanted: u16,
    kept: u16,
}

impl Screen {
    /// Takes the bottom `wanted` lines, fewer on a small terminal; `None` without a terminal to draw on.
    pub(crate) fn take(wanted: u16) -> Option<Self> {
        let (rows, columns) = size()?;
        if rows < 10 || columns < 40 {
            return None;
        }
        let screen = Self { rows, columns, wanted, kept: wanted.min(rows / 2) };
        screen.reserve();
        Some(screen)
    }

    /// Number of lines to draw on.
    pub(crate) fn height(&self) -> usize {
        usize::from(self.kept)
    }

    /// Their width.
    pub(crate) fn columns(&self) -> usize {
        usize::from(size().map_or(self.columns, |(_, columns)| columns))
    }

    /// Draws these lines, cut to the terminal's width.
    pub(crate) fn draw(&mut self, lines: &[String]) {
        if let Some((rows, columns)) = size().filter(|now| *now != (self.rows, self.columns)) {
            self.release();
            (self.rows, self.columns) = (rows, columns);
            self.kept = self.wanted.min(rows / 2).max(1);
            self.reserve();
        }
        let top = self.rows - self.kept;
        let mut out = String::from("\x1b7"); // remember the job's cursor
        for i in 0..self.kept {
            let line = lines.get(usize::from(i)).map(|l| cut(l, usize::from(self.columns))).unwrap_or_default();
            out += &format!("\x1b[{};1H\x1b[2K{line}", top + 1 + i);
        }
        out += "\x1b8";
        write(&out);
    }

    /// Makes the whole terminal scroll again, clears the kept lines and restores the job's cursor.
    fn release(&self) {
        write(&format!("\x1b7\x1b[r\x1b[{};1H\x1b[J\x1b8", self.rows - self.kept + 1));
    }

    /// Makes room and sets the scroll region above it.
    fn reserve(&self) {
        let Self { rows, kept, .. } = self;
        let room = "\n".repeat(usize::from(*kept));
        // Back up by the lines just made; setting the region moves the cursor home.
        write(&format!("{room}\x1b[{kept}A\x1b7\x1b[1;{}r\x1b8", rows - kept));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.release();
    }
}

/// Ignores errors: a closed terminal is no reason to stop tracing.
fn write(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Rows and columns of the terminal at stderr.
fn size() -> Option<(u16, u16)> {
    output::terminal_size(&std::io::stderr())
}
