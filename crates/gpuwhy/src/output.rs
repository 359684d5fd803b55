// SPDX-License-Identifier: Apache-2.0
//! Where text goes, and in which colours.

use gpuwhy_view::Style;
use std::io::{IsTerminal, Write};

/// Prints a line that is worth nothing if nobody reads it: a closed pipe is no error.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// The same on standard error.
pub(crate) fn say_aside(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
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

/// An error and what it came from, as one line without control characters.
pub(crate) fn one_sentence(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string();
        // Libraries put their source into their own message; do not say it twice.
        if !parts.iter().any(|said| said.contains(&text)) {
            parts.push(text);
        }
    }
    let line = parts.join(": ").replace('\n', "; ");
    gpuwhy_model::units::safe(&line, 2000)
}
