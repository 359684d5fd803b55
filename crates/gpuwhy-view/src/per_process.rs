// SPDX-License-Identifier: Apache-2.0
//! Each process's CUDA calls, op by op, and what is remarkable about them. The same data is `per_process` in the JSON
//! of `gpuwhy explain --per-process --json` (docs/explain-json.md).

use crate::style::Style;
use crate::table::{Align, Table};
use gpuwhy_model::units;
use serde::Serialize;

/// A tail is worth a word from this many times the median on, if it is this long and there are this many calls.
const TAIL_TIMES: u64 = 5;
const TAIL_NS: u64 = 50_000;
const TAIL_CALLS: u64 = 100;

/// A process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ProcessCalls {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Bytes allocated by all ops together.
    pub allocated_bytes: u64,
    /// Bytes freed.
    pub freed_bytes: u64,
    /// What was allocated and not freed; negative when more was freed.
    pub balance_bytes: i64,
    /// What is remarkable about that.
    pub warnings: Vec<String>,
    /// Its ops, most time first.
    pub ops: Vec<OpCalls>,
}

/// One op of a process. Times in ns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OpCalls {
    /// Short name.
    pub op: String,
    /// Calls made by the program.
    pub calls: u64,
    /// Calls that returned an error.
    pub errors: u64,
    /// Median duration.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Longest.
    pub max_ns: u64,
    /// All durations together.
    pub total_ns: u64,
    /// Bytes it allocated.
    pub allocated_bytes: u64,
    /// Bytes it freed.
    pub freed_bytes: u64,
    /// Bytes it copied or filled.
    pub moved_bytes: u64,
    /// What is remarkable.
    pub warnings: Vec<String>,
}

impl ProcessCalls {
    /// Puts a process's ops together and looks for what is remarkable.
    pub fn new(pid: u32, name: String, mut ops: Vec<OpCalls>) -> Self {
        ops.sort_by(|a, b| (b.total_ns, b.calls, &a.op).cmp(&(a.total_ns, a.calls, &b.op)));
        for op in &mut ops {
            op.warnings = op_warnings(op);
        }
        let sum = |of: fn(&OpCalls) -> u64| ops.iter().map(of).fold(0, u64::saturating_add);
        let (allocated_bytes, freed_bytes) = (sum(|op| op.allocated_bytes), sum(|op| op.freed_bytes));
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let balance_bytes = signed(allocated_bytes) - signed(freed_bytes);
        let difference = units::bytes(balance_bytes.unsigned_abs());
        let warning = match balance_bytes {
            0 => None,
            1.. => Some(format!(
                "frees {difference} less than it allocates: a cache such as PyTorch's keeps memory, no leak by itself"
            )),
            _ => Some(format!(
                "frees {difference} more than it allocates: allocated before this was recorded, or outside the span"
            )),
        };
        Self { pid, name, allocated_bytes, freed_bytes, balance_bytes, warnings: warning.into_iter().collect(), ops }
    }
}

fn op_warnings(op: &OpCalls) -> Vec<String> {
    let mut warnings = Vec::new();
    let times = op.p99_ns.checked_div(op.p50_ns).unwrap_or(0);
    if times >= TAIL_TIMES && op.p99_ns >= TAIL_NS && op.calls >= TAIL_CALLS {
        warnings.push(format!("p99 {} × p50", units::count(times)));
    }
    match op.errors {
        0 => {}
        1 => warnings.push("1 call returned an error".to_owned()),
        n => warnings.push(format!("{} calls returned an error", units::count(n))),
    }
    warnings
}

/// The tables, one a process.
pub(crate) fn lines(processes: &[ProcessCalls], style: Style) -> Vec<String> {
    let mut lines = Vec::new();
    for process in processes {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.push(style.bold(&heading(process)));
        lines.extend(process.warnings.iter().map(|warning| style.yellow(&format!("  {warning}"))));
        lines.extend(table(&process.ops).lines(style).into_iter().map(|line| format!("  {line}")));
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

fn table(ops: &[OpCalls]) -> Table {
    let heads = ["op", "calls", "p50", "p99", "max", "total", "allocated", "freed", "moved", "warnings"];
    let align = |name: &str| if matches!(name, "op" | "warnings") { Align::Left } else { Align::Right };
    let mut table = Table::new(heads.map(|name| (name.to_owned(), Some(align(name)))));
    let size = |bytes: u64| if bytes == 0 { String::new() } else { units::bytes(bytes) };
    for op in ops {
        table.push(vec![
            units::safe(&op.op, 40),
            units::count(op.calls),
            units::time(op.p50_ns),
            units::time(op.p99_ns),
            units::time(op.max_ns),
            units::time(op.total_ns),
            size(op.allocated_bytes),
            size(op.freed_bytes),
            size(op.moved_bytes),
            op.warnings.join("; "),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(op: &str, calls: u64, times: [u64; 3], bytes: [u64; 2]) -> OpCalls {
        let [p50_ns, p99_ns, total_ns] = times;
        let [allocated_bytes, freed_bytes] = bytes;
        OpCalls { op: op.into(), calls, p50_ns, p99_ns, total_ns, allocated_bytes, freed_bytes, ..Default::default() }
    }

    #[test]
    fn tails_errors_and_memory_that_stays_are_told() {
        let mut failing = op("cudaMalloc", 3, [2_000, 3_000, 8_000], [5_000_000_000, 0]);
        failing.errors = 2;
        let ops = vec![
            failing,
            op("cudaStreamSync", 200, [7_000, 7_200_000, 90_000_000], [0, 0]),
            op("cudaFree", 1, [2_000, 40_000, 2_000], [0, 2_000_000_000]),
        ];
        let process = ProcessCalls::new(4821, "python3".into(), ops);
        assert_eq!(process.ops.iter().map(|op| op.op.as_str()).collect::<Vec<_>>()[0], "cudaStreamSync");
        assert_eq!(process.ops[0].warnings, ["p99 1,028 × p50"]);
        assert_eq!(process.ops[1].warnings, ["2 calls returned an error"]);
        assert_eq!(process.ops[2].warnings, [""; 0], "one call has no tail");
        assert_eq!(process.balance_bytes, 3_000_000_000);
        assert!(process.warnings[0].starts_with("frees 3.00 GB less than it allocates"), "{:?}", process.warnings);
        let lines = lines(&[process], Style::PLAIN);
        assert_eq!(lines[0], "python3 4821: 5.00 GB allocated, 2.00 GB freed");
        assert!(lines[2].starts_with("  op ") && lines[3].ends_with("p99 1,028 × p50"), "{lines:#?}");
    }

    #[test]
    fn more_freed_than_allocated_is_no_leak_and_names_are_defused() {
        let name = "a\x1b[2J".to_owned();
        let process = ProcessCalls::new(1, name, vec![op("cudaFree", 1, [1, 1, 1], [0, 7])]);
        assert!(process.warnings[0].starts_with("frees 7 B more"), "{:?}", process.warnings);
        assert_eq!(process.balance_bytes, -7);
        assert!(!lines(&[process], Style::PLAIN).concat().contains('\x1b'));
    }
}
