// SPDX-License-Identifier: Apache-2.0
//! Replays a run: all its events, in the order of their start.
//!
//! All tables are read in parallel, each in its own order, and merged by time. Only the few waits of threads that
//! changed CPUs are kept and sorted. While cursors are open, SQLite keeps them on one snapshot of the file, so a writer
//! does not interfere.

mod contexts;
mod cursors;
mod memory;

use crate::{Reader, Result};
use contexts::Contexts;
use cursors::{Calls, END, Front, Moved, Offs, Runs, Statements};
use gpuwhy_model::Event;
use rusqlite::Connection;
use std::ops::ControlFlow;

pub use memory::{LetGo, MemoryFollow};

impl Reader {
    /// Hands every event that began at `from_ns` or later, and before `to_ns`, to `each`, until that breaks off. Times
    /// are nanoseconds since the run began. Returns how many were handed over: rows, whatever their weight.
    ///
    /// Of several that began in the same nanosecond, calls come first, then times off the CPU, runs (by CPU), moved
    /// waits. Calls of functions this gpuwhy does not know are left out.
    pub fn replay<F>(&self, from_ns: u64, to_ns: Option<u64>, each: F) -> Result<u64>
    where
        F: FnMut(&Event) -> ControlFlow<()>,
    {
        let bound = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let span = Span { from: bound(from_ns), to: to_ns.map_or(i64::MAX, bound) };
        play(&self.db, span, each).map_err(|source| self.error(source))
    }
}

/// Time range: from the first time on, before the second.
#[derive(Clone, Copy)]
struct Span {
    from: i64,
    to: i64,
}

fn play<F>(db: &Connection, span: Span, mut each: F) -> rusqlite::Result<u64>
where
    F: FnMut(&Event) -> ControlFlow<()>,
{
    let mut contexts = Contexts::load(db)?;
    let mut statements = Statements::prepare(db, span)?;
    // In the order in which equals come.
    let mut fronts = [Front::none(), Front::none(), Front::none(), Front::none()];
    let mut calls = Calls(statements.calls.raw_query());
    calls.next(&mut contexts, &mut fronts[0])?;
    let mut offs = Offs(statements.offs.raw_query());
    offs.next(&mut contexts, &mut fronts[1])?;
    let mut by_cpu = cursors::prepare_runs(db, span)?;
    let mut runs = Runs::new(&mut by_cpu, &mut contexts)?;
    runs.next(&mut contexts, &mut fronts[2])?;
    let mut moved = Moved(statements.moved.raw_query());
    moved.next(&mut fronts[3])?;
    let mut played = 0;
    loop {
        let (mut first, mut at) = (0, fronts[0].at);
        for (place, front) in fronts.iter().enumerate().skip(1) {
            if front.at < at {
                (first, at) = (place, front.at);
            }
        }
        if at == END {
            return Ok(played);
        }
        let front = &mut fronts[first];
        played += 1;
        if each(&front.event).is_break() {
            return Ok(played);
        }
        match first {
            0 => calls.next(&mut contexts, front)?,
            1 => offs.next(&mut contexts, front)?,
            2 => runs.next(&mut contexts, front)?,
            _ => moved.next(front)?,
        }
    }
}
