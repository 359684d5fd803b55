// SPDX-License-Identifier: Apache-2.0
//! Where text goes, and in which colours.

use gpuwhy_store::Reader;
use gpuwhy_view::{Style, fold, wrap};
use std::io::{BufWriter, IsTerminal, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use unicode_width::UnicodeWidthChar;

/// Text width without a terminal, columns.
const COLUMNS: usize = 100;
/// The file in a bundle that holds every event.
pub(crate) const BUNDLE_EVENTS: &str = "events.json";
/// Work that takes longer than this is announced on the terminal.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// Prints a line and ignores errors: a closed pipe does not matter.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// The same on standard error, broken at blanks where a terminal is narrower.
pub(crate) fn say_aside(line: &str) {
    let mut stderr = std::io::stderr();
    match terminal_size(&stderr).filter(|_| stderr.is_terminal()) {
        Some((_, columns)) => {
            // In one piece: a job may write to the same terminal.
            let _ = writeln!(stderr, "{}", fold(line, usize::from(columns)).join("\n"));
        }
        None => {
            let _ = writeln!(stderr, "{line}");
        }
    }
}

/// Prints an answer's lines on standard output, broken at blanks where a terminal is narrower; elsewhere they stay as
/// they are.
pub(crate) fn show(lines: impl IntoIterator<Item = String>) -> std::io::Result<()> {
    let columns = terminal_columns();
    let mut out = BufWriter::new(std::io::stdout().lock());
    for line in lines {
        match columns {
            Some(columns) => {
                for line in fold(&line, columns) {
                    writeln!(out, "{line}")?;
                }
            }
            None => writeln!(out, "{line}")?,
        }
    }
    out.flush()
}

/// Columns of the terminal that standard output is, if it is one.
pub(crate) fn terminal_columns() -> Option<usize> {
    let stdout = std::io::stdout();
    terminal_size(&stdout).filter(|_| stdout.is_terminal()).map(|(_, columns)| usize::from(columns))
}

/// Prints a line on standard output; where a terminal is narrower, it goes on below, indented by `hang`.
pub(crate) fn show_hanging(line: &str, hang: usize) {
    match terminal_columns() {
        Some(columns) => wrap(line, columns, hang).iter().for_each(|line| say(line)),
        None => say(line),
    }
}

/// The style for standard output.
pub(crate) fn stdout_style() -> Style {
    style(std::io::stdout().is_terminal())
}

/// The style for standard error.
pub(crate) fn stderr_style() -> Style {
    style(std::io::stderr().is_terminal())
}

fn style(is_terminal: bool) -> Style {
    let var = |name| std::env::var(name).ok();
    Style::for_output(is_terminal, var("NO_COLOR").as_deref(), var("TERM").as_deref())
}

/// Columns of the terminal at stdout, or a default without one.
pub(crate) fn stdout_columns() -> usize {
    terminal_size(&std::io::stdout()).map_or(COLUMNS, |(_, columns)| usize::from(columns))
}

/// Columns of the terminal at stderr, or a default without one.
pub(crate) fn stderr_columns() -> usize {
    terminal_size(&std::io::stderr()).map_or(COLUMNS, |(_, columns)| usize::from(columns))
}

/// Rows and columns of a terminal.
pub(crate) fn terminal_size(terminal: &impl AsRawFd) -> Option<(u16, u16)> {
    // SAFETY: a struct of numbers, for which zeroes are valid.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the struct we own.
    let ok = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) } == 0;
    (ok && size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}

/// Runs `work`; if it takes long, a line on the terminal says what it is doing.
pub(crate) fn patiently<T>(what: &str, work: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    let (done, waiting) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if waiting.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                say_aside(&format!("gpuwhy: {what} …"));
            }
        });
        let answer = work();
        drop(done);
        answer
    })
}

/// Opens a run file for a command, and warns if its -wal is missing.
pub(crate) fn open(path: &Path) -> anyhow::Result<Reader> {
    if path.is_dir() && path.join(BUNDLE_EVENTS).is_file() {
        let path = gpuwhy_model::units::safe(&path.display().to_string(), 500);
        anyhow::bail!("{path} is a memory bundle, not a run file: `gpuwhy memory {path}` reads it");
    }
    let reader = Reader::open(path)?;
    say_if_wal_is_missing(&reader);
    Ok(reader)
}

/// Says what a copy without its -wal lacks, if it is one.
fn say_if_wal_is_missing(reader: &Reader) {
    if !reader.lacks_wal() {
        return;
    }
    let path = gpuwhy_model::units::safe(&reader.path().display().to_string(), 500);
    let end = reader.session().map_or_else(
        |_| "the end of the run".to_owned(),
        |session| format!("what came after {}", gpuwhy_model::units::time(session.duration_ns)),
    );
    say_aside(&format!(
        "gpuwhy: {path}-wal is missing, and gpuwhy was killed while recording {path}: {end} is missing"
    ));
}

/// The same of files that are read to make another. What cannot be opened is said by who reads it.
pub(crate) fn say_which_lack_wal<'a>(paths: impl IntoIterator<Item = &'a Path>) {
    paths.into_iter().filter_map(|path| Reader::open(path).ok()).for_each(|reader| say_if_wal_is_missing(&reader));
}

/// An error and what it came from, as one line without control characters.
pub(crate) fn one_sentence(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string();
        // Libraries include their source in their own message: do not print it twice.
        if !parts.iter().any(|said| said.contains(&text)) {
            parts.push(text);
        }
    }
    let line = parts.join(": ").replace('\n', "; ");
    gpuwhy_model::units::safe(&line, 2000)
}

static VERBOSE: AtomicBool = AtomicBool::new(false);

/// Whether [`details`] are printed.
pub(crate) fn set_verbose(verbose: bool) {
    VERBOSE.store(verbose, Ordering::Relaxed);
}

pub(crate) fn is_verbose() -> bool {
    VERBOSE.load(Ordering::Relaxed)
}

/// Prints lines for a bug report to stderr, with --verbose only.
pub(crate) fn details(lines: impl IntoIterator<Item = String>) {
    if is_verbose() {
        lines.into_iter().for_each(|line| say_aside(&format!("  {}", gpuwhy_model::units::safe(&line, 500))));
    }
}

/// Cuts a line to `columns`; escape sequences have no width and are kept.
pub(crate) fn cut(line: &str, columns: usize) -> String {
    let mut out = String::with_capacity(line.len());
    let mut used = 0;
    let mut escape = false;
    for c in line.chars() {
        if escape || c == '\x1b' {
            escape = !(escape && c.is_ascii_alphabetic());
            out.push(c);
            continue;
        }
        used += c.width().unwrap_or(0);
        if used > columns {
            continue;
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_at_the_edge_but_colours_end() {
        assert_eq!(cut("abcdef", 3), "abc");
        assert_eq!(cut("\x1b[1mabcdef\x1b[0m", 3), "\x1b[1mabc\x1b[0m");
        assert_eq!(cut("訓練x", 3), "訓");
    }
}
