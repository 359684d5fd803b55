// SPDX-License-Identifier: Apache-2.0
//! Writes `events.json` as a stream: a header with a line for each entry of its lists, then a line for each event.

use crate::header::{Header, SCHEMA};
use crate::row::Row;
use gpuwhy_model::MemoryEvent;
use serde::Serialize;
use std::collections::HashMap;
use std::io::{self, Write};

/// Writes the file. Keeps nothing in memory except the number of each stack.
pub struct EventsWriter<W: Write> {
    out: W,
    site_of: HashMap<u64, u32>,
    written: u64,
}

impl<W: Write> EventsWriter<W> {
    /// Writes the header.
    pub fn new(mut out: W, header: &Header) -> io::Result<Self> {
        let Header { gpuwhy, run, part, lost, unreported, notes, event_count, .. } = header;
        write!(out, "{{")?;
        field(&mut out, "schema", SCHEMA, "")?;
        field(&mut out, "gpuwhy", gpuwhy, ",\n")?;
        field(&mut out, "run", run, ",\n")?;
        field(&mut out, "part", part, ",\n")?;
        field(&mut out, "lost", lost, ",\n")?;
        list(&mut out, "unreported", unreported)?;
        list(&mut out, "notes", notes)?;
        list(&mut out, "processes", &header.processes)?;
        list(&mut out, "gpus", &header.gpus)?;
        list(&mut out, "steps", &header.steps)?;
        list(&mut out, "sites", &header.sites)?;
        list(&mut out, "device_samples", &header.device_samples)?;
        list(&mut out, "device_processes", &header.device_processes)?;
        list(&mut out, "alerts", &header.alerts)?;
        field(&mut out, "event_count", event_count, ",\n")?;
        write!(out, ",\n\"events\": [")?;
        let site_of = header.sites.iter().map(|site| (site.stack_id.cast_unsigned(), site.site)).collect();
        Ok(Self { out, site_of, written: 0 })
    }

    /// Writes the next event.
    pub fn event(&mut self, event: &MemoryEvent) -> io::Result<()> {
        let stack = match event {
            MemoryEvent::Tensor(tensor) => tensor.stack,
            MemoryEvent::Call(call) => call.stack,
        };
        let site = stack.and_then(|stack| self.site_of.get(&stack).copied());
        let Some(row) = Row::of(event, site) else { return Ok(()) };
        self.out.write_all(if self.written == 0 { b"\n" } else { b",\n" })?;
        self.written += 1;
        Ok(serde_json::to_writer(&mut self.out, &row)?)
    }

    /// Events so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Ends the file; returns the writer.
    pub fn finish(mut self) -> io::Result<W> {
        writeln!(self.out, "\n]}}")?;
        self.out.flush()?;
        Ok(self.out)
    }
}

fn field<T: Serialize + ?Sized>(out: &mut impl Write, key: &str, value: &T, before: &str) -> io::Result<()> {
    write!(out, "{before}\"{key}\": ")?;
    Ok(serde_json::to_writer(out, value)?)
}

fn list<T: Serialize>(out: &mut impl Write, key: &str, items: &[T]) -> io::Result<()> {
    write!(out, ",\n\"{key}\": [")?;
    for (number, item) in items.iter().enumerate() {
        out.write_all(if number == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut *out, item)?;
    }
    write!(out, "{}]", if items.is_empty() { "" } else { "\n" })
}
