// SPDX-License-Identifier: Apache-2.0
//! Replays the events about GPU memory: calls and allocator reports, in time order.

use super::contexts::{Contexts, Known};
use super::cursors::{Calls, END, Front, Tensors};
use super::{Span, cursors};
use crate::facts::unsigned;
use crate::{Reader, Result};
use gpuwhy_model::{Event, MemoryEvent};
use rusqlite::Connection;
use std::ops::ControlFlow;

impl Reader {
    /// Passes every call (including process events of the kernel) and every report of PyTorch's allocator that started
    /// at `from_ns` or later and before `to_ns` to `each`, until it stops. Times are nanoseconds from the start of the
    /// run. Returns the number of events passed.
    ///
    /// At the same nanosecond, the call comes first: a report follows the call it is about. Files of earlier versions
    /// have no reports.
    pub fn replay_memory<F>(&self, from_ns: u64, to_ns: Option<u64>, each: F) -> Result<u64>
    where
        F: FnMut(&MemoryEvent) -> ControlFlow<()>,
    {
        let bound = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let span = Span { from: bound(from_ns), to: to_ns.map_or(i64::MAX, bound) };
        let mut contexts = Contexts::of_calls(&self.db, Known::default());
        play(&self.db, &mut contexts, span, each).map_err(|source| self.error(source))
    }

    /// Like [`Reader::replay_memory`], for a run that is still being written: passes only events that are new since the
    /// last call and started before `to_ns`. What rows refer to is read once, by the first reader of the file.
    ///
    /// A row has the start time of its call and is written up to a second after the call ended, so leave very new
    /// events to the next call. A call that takes longer than that is never passed.
    pub fn replay_new_memory<F>(&self, follow: &mut MemoryFollow, to_ns: u64, each: F) -> Result<u64>
    where
        F: FnMut(&MemoryEvent) -> ControlFlow<()>,
    {
        let to = i64::try_from(to_ns).unwrap_or(i64::MAX);
        if to <= follow.next {
            return Ok(0);
        }
        let span = Span { from: follow.next, to };
        let mut contexts = Contexts::of_calls(&self.db, std::mem::take(&mut follow.known));
        let played = play(&self.db, &mut contexts, span, each);
        follow.known = contexts.into_known();
        let played = played.map_err(|source| self.error(source))?;
        follow.next = to;
        Ok(played)
    }
}

/// How far a run that is still written was read.
#[derive(Default)]
pub struct MemoryFollow {
    known: Known,
    next: i64,
}

/// A time at which probes for memory events were removed to stay within the budget, or attached again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetGo {
    /// When, nanoseconds since the run began.
    pub at_ns: u64,
    /// Of which process; `None`: of all.
    pub pid: Option<u32>,
    /// What.
    pub op: Option<String>,
    /// `detach`: calls or reports are missing from then on; `attach`: they are recorded again; `sample`: only a few
    /// allocator reports have a stack.
    pub action: String,
}

impl Reader {
    /// When calls that allocate or free, or allocator reports, were paused.
    pub fn memory_let_go(&self) -> Result<Vec<LetGo>> {
        let known = self.rows("SELECT 1 FROM sqlite_master WHERE name = 'governor_'", [], |_| Ok(()))?;
        if known.is_empty() {
            return Ok(Vec::new());
        }
        let pid = "SELECT 1 FROM pragma_table_info('governor_') WHERE name = 'pid'";
        // Before version 6, functions were paused in all processes.
        let pid = if self.rows(pid, [], |_| Ok(()))?.is_empty() { "NULL" } else { "g.pid" };
        let sql = format!(
            "SELECT g.at, o.name, g.action, {pid} FROM governor_ AS g LEFT JOIN op_ AS o ON o.id = g.op
            WHERE g.action = 'sample' OR (g.action IN ('detach', 'attach') AND o.class IN ('tensor', 'alloc', 'free'))
            ORDER BY g.at"
        );
        self.rows(&sql, [], |row| {
            Ok(LetGo { at_ns: unsigned(row, 0)?, op: row.get(1)?, action: row.get(2)?, pid: row.get(3)? })
        })
    }
}

fn play<F>(db: &Connection, contexts: &mut Contexts<'_>, span: Span, mut each: F) -> rusqlite::Result<u64>
where
    F: FnMut(&MemoryEvent) -> ControlFlow<()>,
{
    let mut statement = cursors::prepare_calls(db, span)?;
    let mut calls = Calls(statement.raw_query());
    let mut call = Front::none();
    calls.next(contexts, &mut call)?;
    let mut statement = cursors::prepare_tensors(db, span)?;
    let mut tensors = Tensors(statement.as_mut().map(|statement| statement.raw_query()));
    let mut tensor = tensors.next(contexts)?;
    let mut played = 0;
    loop {
        let (at, report) = tensor.unzip();
        let event = match (&call.event, report) {
            (_, Some(report)) if at.unwrap_or(END) < call.at => {
                tensor = tensors.next(contexts)?;
                MemoryEvent::Tensor(report)
            }
            (Event::Call(first), _) if call.at < END => {
                let first = *first;
                calls.next(contexts, &mut call)?;
                MemoryEvent::Call(first)
            }
            _ => return Ok(played),
        };
        played += 1;
        if each(&event).is_break() {
            return Ok(played);
        }
    }
}
