// SPDX-License-Identifier: Apache-2.0
//! `events.csv`: allocations and frees as a table (RFC 4180), one row each.
//!
//! Names in it are from the traced world: [`cell`] makes them harmless to spreadsheets.

use crate::header::Header;
use crate::row::{Kind, Row};
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

/// A cell that needs no quotes, empty where there is nothing, and the comma after it.
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
    /// Process names, and of each stack its line, function and id, as cells.
    names: HashMap<u32, String>,
    sites: HashMap<u64, String>,
    /// Processes that have a row: of the others, that they ended says nothing about memory.
    told: HashSet<u32>,
    row: String,
}

impl<W: Write> CsvWriter<W> {
    /// Begins with the names of the columns.
    pub fn new(mut out: W, header: &Header) -> io::Result<Self> {
        writeln!(out, "{}", COLUMNS.join(","))?;
        let names = header.processes.iter().map(|process| (process.pid, cell(&process.name))).collect();
        let site = |site: &crate::Site| {
            let told = |text: &Option<String>| text.as_deref().map(cell).unwrap_or_default();
            let cells = format!("{},{},{}", told(&site.line), told(&site.function), site.stack_id);
            (site.stack_id.cast_unsigned(), cells)
        };
        let sites = header.sites.iter().map(site).collect();
        Ok(Self { out, names, sites, told: HashSet::new(), row: String::new() })
    }

    /// The next event. What only tells whose memory something was has no row.
    pub fn event(&mut self, event: &MemoryEvent) -> io::Result<()> {
        let stack = match event {
            MemoryEvent::Tensor(tensor) => tensor.stack,
            MemoryEvent::Call(call) => call.stack,
        };
        let Some(row) = Row::of(event, None).filter(|row| row.kind != Kind::Work) else { return Ok(()) };
        if matches!(row.kind, Kind::Exit | Kind::OomKill) {
            if !self.told.contains(&row.pid) {
                return Ok(());
            }
        } else {
            self.told.insert(row.pid);
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
        // How a process ended: by a signal, which is negative as Python has it, or with a code.
        let signal = row.signal.filter(|signal| *signal > 0).map(|signal| -signal.cast_signed());
        put(out, row.result.map(i64::from).or(signal).or(row.code.map(u64::cast_signed)));
        out.push_str(stack.and_then(|stack| self.sites.get(&stack)).map_or(",,", String::as_str));
        out.push('\n');
    }

    /// No more; returns where it was written to.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text_and_no_formulas() {
        assert_eq!(cell("train.py:3"), "train.py:3");
        assert_eq!(cell("=cmd|' /C calc'!A0"), "'=cmd|' /C calc'!A0");
        assert_eq!(cell("=1,\"2\""), "\"'=1,\"\"2\"\"\"");
        assert_eq!(cell("@x"), "'@x");
        assert_eq!(cell("-1+2"), "'-1+2");
        assert_eq!(cell("a\nb"), "\"a\nb\"");
    }
}
