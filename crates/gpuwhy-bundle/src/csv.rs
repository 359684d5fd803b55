// SPDX-License-Identifier: Apache-2.0
//! `events.csv`: a table (RFC 4180) with a row for each allocation and free.
//!
//! Names in it come from the traced processes: [`cell`] makes them harmless to spreadsheets.

use crate::header::Header;
use crate::row::{Row, RowKind};
use gpuwhy_model::MemoryEvent;
use gpuwhy_model::units::csv_cell as cell;
use std::collections::{HashMap, HashSet};
use std::fmt::{Display, Write as _};
use std::io::{self, Write};

/// The columns.
pub(crate) const COLUMNS: [&str; 16] = [
    "at_ns",
    "kind",
    "pid",
    "tid",
    "process",
    "device",
    "bytes",
    "address",
    "allocated",
    "reserved",
    "call",
    "duration_ns",
    "result",
    "line",
    "function",
    "stack_id",
];

/// Writes a cell that needs no quotes, and the comma after it.
fn put(out: &mut String, value: Option<impl Display>) {
    if let Some(value) = value {
        // Writing to a string does not fail.
        let _ = write!(out, "{value}");
    }
    out.push(',');
}

/// Writes the table.
pub struct CsvWriter<W: Write> {
    out: W,
    /// Process names as cells; line, function and id of each stack as cells.
    names: HashMap<u32, String>,
    sites: HashMap<u64, String>,
    /// Processes that have a row. The end of any other process does not matter for memory.
    written: HashSet<u32>,
    row: String,
}

impl<W: Write> CsvWriter<W> {
    /// Writes the heading.
    pub fn new(mut out: W, header: &Header) -> io::Result<Self> {
        writeln!(out, "{}", COLUMNS.join(","))?;
        let names = header.processes.iter().map(|process| (process.pid, cell(&process.name))).collect();
        let site = |site: &crate::Site| {
            let optional = |text: &Option<String>| text.as_deref().map(cell).unwrap_or_default();
            let cells = format!("{},{},{}", optional(&site.line), optional(&site.function), site.stack_id);
            (site.stack_id.cast_unsigned(), cells)
        };
        let sites = header.sites.iter().map(site).collect();
        Ok(Self { out, names, sites, written: HashSet::new(), row: String::new() })
    }

    /// Writes the next event. Launches, copies and waits have no row: they only help to assign memory.
    pub fn event(&mut self, event: &MemoryEvent) -> io::Result<()> {
        let stack = match event {
            MemoryEvent::Tensor(tensor) => tensor.stack,
            MemoryEvent::Call(call) => call.stack,
        };
        let Some(row) = Row::of(event, None).filter(|row| row.kind != RowKind::Work) else { return Ok(()) };
        if matches!(row.kind, RowKind::Exit | RowKind::OomKill) {
            if !self.written.contains(&row.pid) {
                return Ok(());
            }
        } else {
            self.written.insert(row.pid);
        }
        self.fill(&row, stack);
        self.out.write_all(self.row.as_bytes())
    }

    fn fill(&mut self, row: &Row, stack: Option<u64>) {
        let out = &mut self.row;
        out.clear();
        put(out, Some(row.at_ns));
        put(out, Some(row.kind.name()));
        put(out, Some(row.pid));
        put(out, Some(row.tid));
        put(out, self.names.get(&row.pid));
        put(out, row.device);
        put(out, row.bytes);
        put(out, row.address);
        put(out, row.allocated);
        put(out, row.reserved);
        put(out, row.function.as_deref());
        put(out, row.duration_ns);
        // A process ends with an exit code or by a signal, which is negative as in Python.
        let signal = row.signal.filter(|signal| *signal > 0).map(|signal| -signal.cast_signed());
        put(out, row.result.map(i64::from).or(signal).or(row.code.map(u64::cast_signed)));
        out.push_str(stack.and_then(|stack| self.sites.get(&stack)).map_or(",,", String::as_str));
        out.push('\n');
    }

    /// Ends the table; returns the writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text_and_not_formulas() {
        assert_eq!(cell("train.py:3"), "train.py:3");
        assert_eq!(cell("=cmd|' /C calc'!A0"), "'=cmd|' /C calc'!A0");
        assert_eq!(cell("=1,\"2\""), "\"'=1,\"\"2\"\"\"");
        assert_eq!(cell("@x"), "'@x");
        assert_eq!(cell("-1+2"), "'-1+2");
        assert_eq!(cell("a\nb"), "\"a\nb\"");
    }
}
