// SPDX-License-Identifier: Apache-2.0
//! The op table, redrawn while tracing and shown at the end with --verbose: one row per op.

use crate::style::Style;
use crate::table::{Align, Table};
use gpuwhy_model::units;
use serde::Serialize;

/// One op's figures so far. Times in ns.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct OpRow {
    /// Short name.
    pub op: String,
    /// Calls made by the program.
    pub calls: u64,
    /// Recent calls per second.
    pub per_second: f64,
    /// Calls that returned an error.
    pub errors: u64,
    /// Median duration.
    pub p50_ns: u64,
    /// 95th percentile.
    pub p95_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Longest.
    pub max_ns: u64,
    /// All durations together, over all threads.
    pub total_ns: u64,
    /// `total_ns` over the time traced; above 1 when several threads were in it at once.
    pub share: f64,
    /// Bytes allocated, freed, copied or filled; 0 for ops without a size.
    pub bytes: u64,
    /// Calls that were made but lost.
    pub lost: u64,
    /// A kernel event, not a call of CUDA's or PyTorch's.
    #[serde(skip)]
    pub host: bool,
}

/// Column: time in the op per second of the run, summed over all threads.
const TIME: &str = "time/s";
/// Legend of that column.
pub const TIME_NOTE: &str = "time/s: time in the op during each second of the run, summed over all threads";

/// All of them, drawn.
#[derive(Debug, Clone, Default)]
pub struct OpsTable {
    /// The rows, in the order in which they are drawn.
    pub rows: Vec<OpRow>,
}

impl OpsTable {
    /// Calls first, then kernel events, which are summed over all threads; within both, most time first.
    pub fn sort(&mut self) {
        self.rows.sort_by(|a, b| (a.host, b.total_ns, b.calls, &a.op).cmp(&(b.host, a.total_ns, a.calls, &b.op)));
    }

    /// The table as lines with at most `max_rows` ops; the last line counts the rest. On a narrow terminal the least important
    /// columns are dropped.
    pub fn lines(&self, max_rows: usize, width: usize, style: Style) -> Vec<String> {
        let heads = ["op", "calls", "loss", "calls/s", "p50", "p95", "p99", "max", TIME, "bytes"];
        let mut table = Table::new(
            heads
                .iter()
                .enumerate()
                .map(|(i, name)| ((*name).to_owned(), Some(if i == 0 { Align::Left } else { Align::Right }))),
        );
        let hidden = self.rows.len().saturating_sub(max_rows);
        let shown = if hidden > 0 { max_rows.saturating_sub(1) } else { self.rows.len() };
        for row in &self.rows[..shown] {
            table.push(cells(row));
        }
        let mut spare = vec!["p95", "calls/s", "max"];
        if self.rows.iter().all(|row| row.lost == 0) {
            spare.insert(0, "loss");
        }
        let mut lines = table.lines_within(width, &spare, style);
        if shown < self.rows.len() {
            let rest = &self.rows[shown..];
            let calls = rest.iter().map(|r| r.calls).sum();
            lines.push(style.dim(&format!("… {} more ops, {} calls", rest.len(), units::count(calls))));
        }
        lines
    }
}

fn cells(row: &OpRow) -> Vec<String> {
    // Events without a duration have no times.
    let took = |ns: u64| if row.max_ns == 0 { String::new() } else { units::time(ns) };
    let blank = |n: u64, text: String| if n == 0 { String::new() } else { text };
    let mut calls = units::count(row.calls);
    if row.errors > 0 {
        calls = format!("{calls} ({} failed)", units::count(row.errors));
    }
    vec![
        units::safe(&row.op, 40),
        calls,
        units::count(row.lost),
        units::count(row.per_second.round() as u64),
        took(row.p50_ns),
        took(row.p95_ns),
        took(row.p99_ns),
        took(row.max_ns),
        took((row.share * 1e9).round() as u64),
        blank(row.bytes, units::bytes(row.bytes)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(op: &str, calls: u64, total_ns: u64) -> OpRow {
        OpRow { op: op.into(), calls, total_ns, p50_ns: 7_000, max_ns: 7_200_000, share: 0.31, ..Default::default() }
    }

    #[test]
    fn the_most_expensive_op_comes_first_and_the_rest_is_counted() {
        let mut table =
            OpsTable { rows: vec![row("cudaMalloc", 3, 10), row("cudaStreamSync", 2, 90), row("cudaFree", 4, 5)] };
        table.sort();
        let lines = table.lines(2, 200, Style::PLAIN);
        assert!(lines[0].starts_with("op "));
        assert!(lines[1].starts_with("cudaStreamSync") && lines[1].contains("7.20 ms") && lines[1].contains("310 ms"));
        assert_eq!(lines[2], "… 2 more ops, 7 calls");
        assert_eq!(table.lines(3, 200, Style::PLAIN).len(), 4);
    }

    #[test]
    fn a_narrow_terminal_keeps_the_columns_that_say_most() {
        let mut all: Vec<OpRow> = ["cudaLaunchKernel", "cudaStreamSync", "sched_switch"]
            .map(|op| OpRow { p95_ns: 847, p99_ns: 84_700, share: 3.78, bytes: 14_500_000, ..row(op, 123_456, 9) })
            .to_vec();
        all[2].host = true;
        all[2].total_ns = 1 << 40;
        let mut table = OpsTable { rows: all };
        table.sort();
        for width in [80, 100, 120] {
            let lines = table.lines(9, width, Style::PLAIN);
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{lines:#?}");
            for name in ["op", "calls", "p50", "p99", "max", "time/s", "bytes"] {
                assert!(lines[0].split_whitespace().any(|head| head == name), "{name} at {width}: {}", lines[0]);
            }
            assert!(!lines.concat().contains('%') && lines[1].contains("3.78 s") && lines[1].contains("14.5 MB"));
            assert!(lines[3].starts_with("sched_switch"), "calls first: {lines:#?}");
        }
        table.rows[0].lost = 7;
        assert!(table.lines(9, 80, Style::PLAIN)[0].contains("loss"), "loss is not left out");
        let still = OpRow { op: "torchAlloc".into(), calls: 3, ..OpRow::default() };
        let lines = OpsTable { rows: vec![still] }.lines(9, 80, Style::PLAIN);
        assert!(!lines[1].contains("0 ns"), "what takes no time has no times: {lines:#?}");
    }
}
