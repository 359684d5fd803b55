// SPDX-License-Identifier: Apache-2.0
//! Each process's CUDA calls, op by op, with warnings, on the screen.

use crate::style::Style;
use crate::table::{Align, Table};
use crate::wrap::fold;
use gpuwhy_model::units;
use gpuwhy_why::process_calls::{OpCalls, ProcessCalls};

/// A column: its head, and its text for each op.
type Column = (&'static str, fn(&OpCalls) -> String);

const COLUMNS: [Column; 13] = [
    ("op", |op| units::safe(&op.op, 40)),
    ("calls", |op| units::count(op.calls)),
    ("p50", |op| units::time(op.p50_ns)),
    ("p99", |op| units::time(op.p99_ns)),
    ("p99/p50", |op| op.tail_ratio.map(ratio).unwrap_or_default()),
    ("max", |op| units::time(op.max_ns)),
    ("total", |op| units::time(op.total_ns)),
    ("peak/s", |op| op.peak_per_second.map(|rate| units::count(rate.round() as u64)).unwrap_or_default()),
    ("drop", |op| op.drop.map(|drop| units::percent(drop, 1.0)).unwrap_or_default()),
    ("allocated", |op| size(op.allocated_bytes)),
    ("freed", |op| size(op.freed_bytes)),
    ("moved", |op| size(op.moved_bytes)),
    ("warnings", |op| op.warnings.join("; ")),
];

/// One table per process.
pub(crate) fn lines(processes: &[ProcessCalls], width: usize, style: Style) -> Vec<String> {
    let mut lines = Vec::new();
    for process in processes {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.extend(fold(&heading(process), width).iter().map(|line| style.bold(line)));
        let warnings = process.warnings.iter().flat_map(|warning| fold(&format!("  {warning}"), width));
        lines.extend(warnings.map(|line| style.yellow(&line)));
        let ops = table(&process.ops).lines_within(
            width.saturating_sub(2),
            &["moved", "freed", "max", "p50", "allocated", "peak/s"],
            style,
        );
        lines.extend(ops.into_iter().map(|line| format!("  {line}")));
    }
    lines
}

/// `python3 train.py 4821: 8.20 GB allocated, 5.10 GB freed`
fn heading(process: &ProcessCalls) -> String {
    let name = units::safe(&process.name, 80);
    // A process without a name is called `pid 7`; that is enough.
    let unnamed = process.name == format!("pid {}", process.pid);
    let who = if unnamed { name } else { format!("{name} {}", process.pid) };
    match (process.allocated_bytes, process.freed_bytes) {
        (0, 0) => who,
        (allocated, freed) => format!("{who}: {} allocated, {} freed", units::bytes(allocated), units::bytes(freed)),
    }
}

/// Leaves out columns that are empty for all ops.
fn table(ops: &[OpCalls]) -> Table {
    let shown = COLUMNS.iter().filter(|(_, text)| ops.iter().any(|op| !text(op).is_empty()));
    let shown: Vec<&Column> = shown.collect();
    let align = |name: &str| if matches!(name, "op" | "warnings") { Align::Left } else { Align::Right };
    let mut table = Table::new(shown.iter().map(|(name, _)| ((*name).to_owned(), Some(align(name)))));
    for op in ops {
        table.push(shown.iter().map(|(_, text)| text(op)).collect());
    }
    table
}

fn size(bytes: u64) -> String {
    if bytes == 0 { String::new() } else { units::bytes(bytes) }
}

/// `1.4`, `23`, `1,028`.
fn ratio(times: f64) -> String {
    if times < 9.95 { format!("{times:.1}") } else { units::count(times.round() as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwhy_why::process_calls::Circumstances;

    #[test]
    fn a_terminal_of_100_columns_shows_how_the_rate_went() {
        let mut launch = OpCalls {
            op: "cudaLaunchKernel".into(),
            calls: 123_456,
            p50_ns: 4_740,
            p99_ns: 28_400,
            max_ns: 7_200_000,
            total_ns: 1_230_000_000,
            allocated_bytes: 8_200_000_000,
            freed_bytes: 5_100_000_000,
            moved_bytes: 5_100_000_000,
            ..OpCalls::default()
        }
        .finish(None, None);
        (launch.peak_per_second, launch.drop) = (Some(12_345.0), Some(0.25));
        assert_eq!(launch.warnings, Vec::<String>::new());
        launch.warnings = vec!["p99 6 × p50".into(), "fell from 12,345/s to 9,259/s".into()];
        let process = ProcessCalls::new(1, "python3".into(), vec![launch], &Circumstances::default());
        let lines = lines(&[process], 100, Style::PLAIN);
        let text = lines.concat();
        assert!(lines.iter().all(|line| line.chars().count() <= 100), "{lines:#?}");
        for word in ["peak/s", "12,345", "drop", "25 %", "p99/p50", "6.0"] {
            assert!(text.contains(word), "{word}: {lines:#?}");
        }
    }

    #[test]
    fn tails_drops_and_warnings_have_columns_and_names_are_defused() {
        let sync =
            OpCalls { op: "cudaStreamSync".into(), calls: 200, p50_ns: 7_000, p99_ns: 7_200_000, ..OpCalls::default() };
        let mut sync = sync.finish(None, None);
        (sync.peak_per_second, sync.drop, sync.total_ns) = (Some(41.0), Some(0.25), 9);
        let free = OpCalls {
            op: "cudaFree".into(),
            calls: 2,
            p50_ns: 7_000,
            p99_ns: 9_000,
            freed_bytes: 7,
            ..OpCalls::default()
        };
        let free = free.finish(None, None);
        let process = ProcessCalls::new(1, "a\x1b[2J".into(), vec![sync, free], &Circumstances::default());
        let lines = lines(&[process], 200, Style::PLAIN);
        assert!(lines[0].ends_with("1: 0 B allocated, 7 B freed"), "{lines:#?}");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert_eq!(words(&lines[2]), "op calls p50 p99 p99/p50 max total peak/s drop freed warnings");
        let sync = words(&lines[3]);
        assert!(
            sync.starts_with("cudaStreamSync 200 7.00 µs 7.20 ms 1,029 0 ns 9 ns 41 25 % p99 1,029 × p50"),
            "{sync}"
        );
        assert!(!lines.concat().contains('\x1b'));
        assert_eq!([1.44, 9.96, 1_028.4].map(ratio), ["1.4", "10", "1,028"]);
    }
}
