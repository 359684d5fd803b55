// SPDX-License-Identifier: Apache-2.0
//! The memory of several runs side by side: the verdict, a column for each run, and the lines that differ.

use crate::explain_view::{list, section, verdict};
use crate::style::Style;
use crate::table::{Align, Table};
use gpuwhy_memory::compare::{Change, Comparison, LineChange, LineInRun, RunFigures, RunGrowth};
use gpuwhy_model::units;

/// Lines shown.
const LINES: usize = 10;
/// Longest name of a run; width of the column of lines, at least and at most.
const NAME: usize = 14;
const SHORTEST: usize = 20;
const LONGEST: usize = 44;
/// Width of a run's column: its name, or `1.05 GB shrank`, and the two blanks before it.
const COLUMN: usize = NAME + 2;
/// Width of the column with the names of the figures.
const FIGURES: usize = 18;

/// The lines for a terminal of this width.
pub fn lines(comparison: &Comparison, width: usize, style: Style) -> Vec<String> {
    let mut lines = verdict(&comparison.verdict, width, style);
    for columns in blocks(comparison.runs.len(), width, FIGURES) {
        section(&mut lines, "", indented(&figures(comparison, &columns), style), style);
    }
    let at_end = |run: &LineInRun| run.at_end;
    let at_peak = |run: &LineInRun| run.at_peak;
    by_line(&mut lines, comparison, "In use when last checked, by line", at_end, (width, style));
    by_line(&mut lines, comparison, "In use at the peak, by line", at_peak, (width, style));
    let notes = list(&comparison.notes, width).into_iter().map(|line| style.yellow(&line)).collect();
    section(&mut lines, "Notes on this comparison", notes, style);
    lines
}

/// Splits the runs into blocks that fit the width. The reference is in every block.
fn blocks(runs: usize, width: usize, name: usize) -> Vec<Vec<usize>> {
    let fit = (width.saturating_sub(2 + name) / COLUMN).max(2);
    let others: Vec<usize> = (1..runs).collect();
    others.chunks(fit - 1).map(|part| [&[0], part].concat()).collect()
}

fn indented(table: &Table, style: Style) -> Vec<String> {
    table.lines(style).into_iter().map(|line| format!("  {line}")).collect()
}

fn table(comparison: &Comparison, columns: &[usize], first: &str, align: Align) -> Table {
    let name = |place: &usize| comparison.runs.get(*place).map_or_else(String::new, |run| units::safe(&run.name, NAME));
    let runs = columns.iter().map(|place| (name(place), Some(Align::Right)));
    Table::new([(first.to_owned(), Some(align))].into_iter().chain(runs))
}

fn figures(comparison: &Comparison, columns: &[usize]) -> Table {
    let mut table = table(comparison, columns, "", Align::Left);
    let mut row = |name: &str, cell: &dyn Fn(&RunFigures) -> String| {
        let cell = |place: &usize| match comparison.runs.get(*place) {
            Some(run) if run.has_memory || name == "length" => cell(run),
            _ => "no data".to_owned(),
        };
        table.push([name.to_owned()].into_iter().chain(columns.iter().map(cell)).collect());
    };
    let known = |bytes: Option<f64>| bytes.map_or_else(|| "unknown".to_owned(), |n| units::bytes(n.round() as u64));
    row("peak in use", &|run| units::bytes(run.peak_allocated));
    row("peak reserved", &|run| units::bytes(run.peak_reserved));
    if comparison.runs.iter().any(|run| run.peak_direct > 0) {
        row("outside PyTorch", &|run| units::bytes(run.peak_direct));
    }
    row("last checked", &|run| units::bytes(run.allocated_at_end));
    row("length", &|run| units::time(run.wall_ns));
    row("steps", &|run| run.steps.map_or_else(|| "none found".to_owned(), units::count));
    row("growth", &|run| growth(run.growth).to_owned());
    row("  a step", &|run| if run.steps.is_some() { known(run.bytes_per_step) } else { "–".to_owned() });
    row("  a second", &|run| known(run.bytes_per_second));
    row("out of memory", &|run| units::count(run.oom_count));
    row("reserved, unused", &|run| run.unused_share.map_or_else(|| "–".to_owned(), |share| units::percent(share, 1.0)));
    table
}

fn growth(growth: RunGrowth) -> &'static str {
    match growth {
        RunGrowth::Leaks => "leaks",
        RunGrowth::Settled => "settled",
        RunGrowth::Bounded => "bounded",
        RunGrowth::Steady => "none",
        RunGrowth::Unknown => "unknown",
    }
}

fn by_line(
    lines: &mut Vec<String>,
    comparison: &Comparison,
    title: &str,
    bytes: fn(&LineInRun) -> u64,
    (width, style): (usize, Style),
) {
    let shown: Vec<&LineChange> =
        comparison.lines.iter().filter(|line| line.in_runs.iter().any(|run| bytes(run) > 0)).take(LINES).collect();
    if shown.is_empty() {
        return;
    }
    let mut heading = title;
    for columns in blocks(comparison.runs.len(), width, SHORTEST) {
        let room = width.saturating_sub(2 + COLUMN * columns.len()).clamp(SHORTEST, LONGEST);
        let mut table = table(comparison, &columns, "line", Align::Left);
        for line in &shown {
            let reference = line.in_runs.first().map_or(0, bytes);
            let runs = columns.iter().filter_map(|place| line.in_runs.get(*place));
            let cells = runs.map(|run| cell(run, bytes(run), reference));
            table.push([name(line, room)].into_iter().chain(cells).collect());
        }
        section(lines, std::mem::take(&mut heading), indented(&table, style), style);
    }
}

/// Bytes, and how the line differs from the reference, if these bytes show it.
fn cell(run: &LineInRun, bytes: u64, reference: u64) -> String {
    let mark = match run.change {
        Change::Unknown => return "no data".to_owned(),
        Change::New if bytes > 0 => " new",
        Change::Gone if reference > 0 => " gone",
        Change::Grew if bytes > reference => " grew",
        Change::Shrank if bytes < reference => " shrank",
        _ => "",
    };
    let bytes = if bytes == 0 { "–".to_owned() } else { units::bytes(bytes) };
    format!("{bytes}{mark}")
}

/// The line, with its number in the other runs if it moved, and as much of its function as fits.
fn name(line: &LineChange, room: usize) -> String {
    let Some(place) = &line.line else { return "no Python line".to_owned() };
    let mut text = place.clone();
    let moved = line.in_runs.iter().filter_map(|run| run.line.as_ref()).rfind(|other| *other != place);
    if let Some((_, number)) = moved.and_then(|other| other.rsplit_once(':')) {
        text += &format!("→{number}");
    }
    if let Some(function) = &line.function {
        // The end of a long name says more than its beginning.
        let left = room.saturating_sub(text.chars().count() + 1);
        let long = function.chars().count();
        if long <= left {
            text += &format!(" {function}");
        } else if left >= 8 {
            text += &format!(" …{}", function.chars().skip(long - (left - 1)).collect::<String>());
        }
    }
    units::safe(&text, room)
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicode_width::UnicodeWidthStr;

    fn comparison(runs: usize) -> Comparison {
        let figures = |place: usize| RunFigures {
            name: format!("run-with-a-long-name-{place}.db\x1b[2J"),
            has_memory: place != 2,
            peak_allocated: 1_050_000_000,
            steps: Some(120),
            growth: if place == 1 { RunGrowth::Leaks } else { RunGrowth::Steady },
            bytes_per_step: Some(place as f64 * 8.4e6),
            ..RunFigures::default()
        };
        let changes = [Change::Reference, Change::New, Change::Unknown, Change::Shrank, Change::Gone];
        let at = |place: usize| LineInRun {
            line: Some(format!("trainer.py:{}", 31 + place)),
            at_end: place as u64 * 840_000_000,
            at_peak: 1_050_000_000,
            change: changes[place % changes.len()],
            ..LineInRun::default()
        };
        Comparison {
            verdict: "run-1 keeps 8.40 MB/step at trainer.py:31 that run-0 does not".into(),
            runs: (0..runs).map(figures).collect(),
            lines: vec![LineChange {
                line: Some("trainer.py:31".into()),
                function: Some("Trainer.a_function_with_a_name_that_does_not_end".into()),
                in_runs: (0..runs).map(at).collect(),
            }],
            notes: vec!["the runs differ in length".into()],
        }
    }

    #[test]
    fn each_run_has_a_column_with_its_changes() {
        let text = lines(&comparison(3), 80, Style::PLAIN).join("\n");
        for part in ["peak in use", "8.40 MB", "leaks", "no data", "840 MB new", "trainer.py:31→33", "differ in length"]
        {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains('\x1b'), "{text:?}");
        assert!(lines(&Comparison::default(), 80, Style::PLAIN).len() <= 1);
    }

    #[test]
    fn any_number_of_runs_fits_the_width() {
        for (runs, width) in [(2, 60), (3, 80), (5, 80), (9, 100), (7, 120)] {
            let shown = lines(&comparison(runs), width, Style::PLAIN);
            let widest = shown.iter().map(|line| line.width()).max().unwrap();
            assert!(widest <= width, "{runs} runs take {widest} of {width} columns:\n{}", shown.join("\n"));
            let text = shown.join("\n");
            assert!((0..runs).all(|_| text.contains("run-with-a-lo…")), "{text}");
        }
    }
}
