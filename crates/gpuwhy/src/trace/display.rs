// SPDX-License-Identifier: Apache-2.0
//! Output while tracing and at its end: a table that redraws, plain lines, or JSON lines.

use crate::output;
use crate::trace::answer::Answer;
use crate::trace::figures::Figures;
use crate::trace::screen::Screen;
use crate::trace::summary::Summary;
use crate::trace::writer::Snapshot;
use gpuwhy_memory::alerts::{Alert, Level};
use gpuwhy_model::{OpId, units};
use gpuwhy_view::{OpsTable, Style};
use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::Duration;

/// How to show progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Display {
    /// For people: a table on a terminal, lines elsewhere.
    Human,
    /// For programs: JSON lines on stdout.
    Json,
    /// Only the end.
    Quiet,
}

/// Lines of the table: a header, the column names, twelve ops.
const TABLE_LINES: u16 = 14;
/// Without a terminal, a line this often.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// Shows progress.
pub(crate) struct Progress {
    display: Display,
    screen: Option<Screen>,
    style: Style,
    figures: Figures,
    last_line: Duration,
    /// Whether loss has been shown: the first loss gets a line at once.
    loss_shown: bool,
}

impl Progress {
    pub(crate) fn new(display: Display) -> Self {
        let wants_screen = display == Display::Human && std::io::stderr().is_terminal();
        Self {
            display,
            screen: wants_screen.then(|| Screen::take(TABLE_LINES)).flatten(),
            style: output::stderr_style(),
            figures: Figures::default(),
            last_line: Duration::ZERO,
            loss_shown: false,
        }
    }

    /// Prints a note, unless quiet.
    pub(crate) fn note(&self, text: &str) {
        if self.display != Display::Quiet {
            output::say_aside(&format!("gpuwhy: {}", units::safe(text, 500)));
        }
    }

    /// Prints a warning, even when quiet.
    pub(crate) fn warn(&self, text: &str) {
        output::say_aside(&format!("gpuwhy: {} {}", self.style.yellow("warning:"), units::safe(text, 500)));
    }

    /// Prints an alert that was raised, even when quiet, or that has ended. Times are since the run began.
    pub(crate) fn alert(&self, alert: &Alert) {
        let (text, rule) = (units::safe(&alert.text, 500), units::safe(&alert.rule, 100));
        match (self.display, alert.cleared_ns) {
            (Display::Json, _) => output::say(&alert_json(alert).to_string()),
            (Display::Human | Display::Quiet, None) => {
                let level = match alert.level {
                    Level::Warning => self.style.yellow("ALERT (warning)"),
                    Level::Critical => self.style.red("ALERT (critical)"),
                };
                output::say_aside(&format!("gpuwhy: {level} {rule}: {text}"));
            }
            (_, Some(at)) => {
                let (number, at) = (alert.id, units::time(at));
                self.note(&format!("alert {number} ({rule}) ended at {at}: {text}"));
            }
        }
    }

    /// Shows new figures, about once a second.
    pub(crate) fn update(&mut self, snapshot: &Snapshot, lost: &HashMap<OpId, u64>) {
        let elapsed = snapshot.elapsed;
        match self.display {
            Display::Quiet => {}
            Display::Json => {
                let table = self.figures.table(snapshot, lost);
                output::say(&progress_json(&table, snapshot).to_string());
            }
            Display::Human if self.screen.is_some() => {
                let table = self.figures.table(snapshot, lost);
                self.redraw(&table, snapshot);
            }
            Display::Human => {
                let begins_to_lose = !self.loss_shown && snapshot.lost + snapshot.unsaved() > 0;
                if begins_to_lose || elapsed.saturating_sub(self.last_line) >= PLAIN_EVERY {
                    self.loss_shown |= begins_to_lose;
                    self.last_line = elapsed;
                    let table = self.figures.table(snapshot, lost);
                    output::say_aside(&format!("gpuwhy: {}", plain_line(&table, snapshot)));
                }
            }
        }
    }

    fn redraw(&mut self, table: &OpsTable, snapshot: &Snapshot) {
        let Some(screen) = &mut self.screen else { return };
        let mut head = format!(
            "gpuwhy  {}  {} events stored  {}",
            units::time(snapshot.elapsed.as_nanos() as u64),
            units::count(snapshot.stored),
            loss_text(snapshot, self.style),
        );
        if let Some(trouble) = &snapshot.trouble {
            head += &format!("  {}", self.style.red(&units::safe(trouble, 200)));
        }
        let mut lines = vec![head];
        lines.extend(table.lines(screen.height().saturating_sub(2), screen.columns(), self.style));
        screen.draw(&lines);
    }

    /// The end of recording: gives the terminal back.
    pub(crate) fn end_recording(&mut self) {
        self.screen = None;
    }

    /// The end: the answer first, then the accounting.
    pub(crate) fn finish(self, summary: &Summary, answer: &Answer) {
        match self.display {
            Display::Json => {
                let mut json = summary.to_json();
                answer.add_to(&mut json);
                output::say(&json.to_string());
            }
            Display::Human | Display::Quiet => {
                let (columns, verbose) = (output::stderr_columns(), output::is_verbose());
                let answer = answer.lines(&summary.path, columns, self.style);
                let accounting = summary.lines(verbose && self.display == Display::Human, columns, self.style);
                answer.iter().chain(&accounting).for_each(|line| output::say_aside(line));
            }
        }
    }
}

fn loss_text(snapshot: &Snapshot, style: Style) -> String {
    let named = [(snapshot.lost, "lost"), (snapshot.unsaved(), "not on disk")];
    let named = named.into_iter().filter(|(events, _)| *events > 0);
    let words: Vec<String> = named.map(|(events, what)| format!("{} {what}", units::count(events))).collect();
    if words.is_empty() { "no loss".into() } else { style.red(&words.join(", ")) }
}

fn plain_line(table: &OpsTable, snapshot: &Snapshot) -> String {
    let calls: u64 = table.rows.iter().map(|row| row.calls).sum();
    let rate: f64 = table.rows.iter().map(|row| row.per_second).sum();
    let mut line = format!(
        "{:>5.0} s  {} events  {}/s  {}",
        snapshot.elapsed.as_secs_f64(),
        units::count(calls),
        units::count(rate.round() as u64),
        loss_text(snapshot, Style::PLAIN),
    );
    for row in table.rows.iter().take(3) {
        line += &format!(
            "  {} {} (p50 {}, p99 {})",
            row.op,
            units::count(row.calls),
            units::time(row.p50_ns),
            units::time(row.p99_ns)
        );
    }
    if let Some(trouble) = &snapshot.trouble {
        line += &format!("  {}", units::safe(trouble, 200));
    }
    line
}

fn alert_json(alert: &Alert) -> serde_json::Value {
    let mut json = serde_json::json!(alert);
    json["type"] = "alert".into();
    json
}

fn progress_json(table: &OpsTable, snapshot: &Snapshot) -> serde_json::Value {
    serde_json::json!({
        "type": "progress",
        "elapsed_ns": snapshot.elapsed.as_nanos() as u64,
        "stored": snapshot.stored,
        "lost": snapshot.lost,
        "not_on_disk": snapshot.unsaved(),
        "trouble": snapshot.trouble,
        "ops": table.rows,
    })
}
