// SPDX-License-Identifier: Apache-2.0
//! The part of a run that is about GPU memory, played again: calls and the allocator's reports, in the order of time.

use super::contexts::Contexts;
use super::cursors::{Calls, END, Front, Tensors};
use super::{Span, cursors};
use crate::facts::unsigned;
use crate::{Reader, Result};
use gpuwhy_model::{Event, MemoryEvent};
use rusqlite::Connection;
use std::ops::ControlFlow;

impl Reader {
    /// Hands every call (what the kernel tells of processes included) and every report of PyTorch's allocator that began
    /// at `from_ns` or later, and before `to_ns`, to `each`, until that breaks off. Times are nanoseconds since the run
    /// began. Returns how many were handed over.
    ///
    /// Of two that began in the same nanosecond, the call comes first: a report follows the call it is about. Files of
    /// earlier versions have no reports.
    pub fn replay_memory<F>(&self, from_ns: u64, to_ns: Option<u64>, each: F) -> Result<u64>
    where
        F: FnMut(&MemoryEvent) -> ControlFlow<()>,
    {
        let bound = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let span = Span { from: bound(from_ns), to: to_ns.map_or(i64::MAX, bound) };
        play(&self.db, span, each).map_err(|source| self.error(source))
    }
}

/// A time in which some of what is about memory was let go to stay within the budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetGo {
    /// When it began, nanoseconds since the run did.
    pub at_ns: u64,
    /// What was let go.
    pub op: Option<String>,
    /// `detach`: calls or reports are missing from then on; `sample`: the allocator's reports have no stacks.
    pub action: String,
}

impl Reader {
    /// What was let go of calls that allocate and free, and of the allocator's reports.
    pub fn memory_let_go(&self) -> Result<Vec<LetGo>> {
        let known = self.rows("SELECT 1 FROM sqlite_master WHERE name = 'governor_'", [], |_| Ok(()))?;
        if known.is_empty() {
            return Ok(Vec::new());
        }
        let sql = "SELECT g.at, o.name, g.action FROM governor_ AS g LEFT JOIN op_ AS o ON o.id = g.op
            WHERE g.action = 'sample' OR (g.action = 'detach' AND o.class IN ('tensor', 'alloc', 'free')) ORDER BY g.at";
        self.rows(sql, [], |row| Ok(LetGo { at_ns: unsigned(row, 0)?, op: row.get(1)?, action: row.get(2)? }))
    }
}

fn play<F>(db: &Connection, span: Span, mut each: F) -> rusqlite::Result<u64>
where
    F: FnMut(&MemoryEvent) -> ControlFlow<()>,
{
    let mut contexts = Contexts::load(db)?;
    let mut statement = cursors::prepare_calls(db, span)?;
    let mut calls = Calls(statement.raw_query());
    let mut call = Front::none();
    calls.next(&mut contexts, &mut call)?;
    let mut statement = cursors::prepare_tensors(db, span)?;
    let mut tensors = Tensors(statement.as_mut().map(|statement| statement.raw_query()));
    let mut tensor = tensors.next(&mut contexts)?;
    let mut played = 0;
    loop {
        let (at, report) = tensor.unzip();
        let event = match (&call.event, report) {
            (_, Some(report)) if at.unwrap_or(END) < call.at => {
                tensor = tensors.next(&mut contexts)?;
                MemoryEvent::Tensor(report)
            }
            (Event::Call(first), _) if call.at < END => {
                let first = *first;
                calls.next(&mut contexts, &mut call)?;
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
