// SPDX-License-Identifier: Apache-2.0
//! The ledger: where each thread's time went, as found while the run was recorded.

use crate::facts::unsigned;
use crate::pending::stored;
use crate::{Reader, Result};
use gpuwhy_model::{OpId, ops};
use rusqlite::{Connection, params};
use std::collections::BTreeMap;

/// How many threads' rows wait for a commit: a job that makes threads without end must not fill the memory.
const MAX_THREADS: usize = 65_536;

/// Time of one thread in one state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerRow {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// When recording of the thread started, `CLOCK_MONOTONIC` nanoseconds; distinguishes threads that reuse an id.
    pub since_ns: u64,
    /// The state.
    pub state: String,
    /// The function it was in, if any.
    pub op: Option<OpId>,
    /// How long, nanoseconds.
    pub ns: u64,
}

/// Time of one thread in one state, as the run file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Since when the thread is watched, nanoseconds since the run began; negative before it.
    pub since_ns: i64,
    /// The state.
    pub state: String,
    /// The function it was in; `None` where it was in none, or in one this gpuwhy does not know.
    pub op: Option<OpId>,
    /// How long, nanoseconds.
    pub ns: u64,
}

/// Rows that wait for the next commit, by process, thread and since when.
#[derive(Default)]
pub(crate) struct Waiting(BTreeMap<(u32, u32, u64), Vec<LedgerRow>>);

impl Waiting {
    /// Adds rows, replacing earlier rows of the same thread. Returns how many did not fit.
    pub(crate) fn set(&mut self, rows: &[LedgerRow]) -> u64 {
        let mut newer: BTreeMap<(u32, u32, u64), Vec<LedgerRow>> = BTreeMap::new();
        for row in rows {
            newer.entry((row.pid, row.tid, row.since_ns)).or_default().push(row.clone());
        }
        let mut refused = 0;
        for (key, rows) in newer {
            if self.0.len() < MAX_THREADS || self.0.contains_key(&key) {
                self.0.insert(key, rows);
            } else {
                refused += rows.len() as u64;
            }
        }
        refused
    }

    /// Writes everything inside the open transaction.
    pub(crate) fn write(&self, db: &Connection, origin_ns: u64) -> rusqlite::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut delete = db.prepare_cached("DELETE FROM ledger_ WHERE pid = ?1 AND tid = ?2 AND since = ?3")?;
        let mut insert = db.prepare_cached(
            "INSERT INTO ledger_ (pid, tid, since, state, op, ns) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (pid, tid, since, state, op) DO UPDATE SET ns = ns + excluded.ns",
        )?;
        for ((pid, tid, since_ns), rows) in &self.0 {
            // Negative before the run, as in thread_.
            let since = since_ns.wrapping_sub(origin_ns).cast_signed();
            delete.execute(params![pid, tid, since])?;
            for row in rows {
                let op = row.op.map_or(-1, |op| i32::from(op.0));
                // Half the range, so that sums of two stay integers.
                let ns = stored(row.ns).min(i64::MAX / 2);
                insert.execute(params![pid, tid, since, row.state, op, ns])?;
            }
        }
        Ok(())
    }
}

impl Reader {
    /// Where threads' time went, each life of a thread on its own; empty if that was not recorded.
    pub fn ledger(&self) -> Result<Vec<LedgerEntry>> {
        // A file of version 1 has none.
        let has_one = self.rows("SELECT 1 FROM sqlite_master WHERE name = 'ledger_'", [], |_| Ok(()))?;
        if has_one.is_empty() {
            return Ok(Vec::new());
        }
        let sql = "SELECT l.pid, l.tid, l.since, l.state, o.function, l.ns FROM ledger_ AS l
            LEFT JOIN op_ AS o ON o.id = l.op ORDER BY l.pid, l.tid, l.since, l.ns DESC, l.state, l.op";
        self.rows(sql, [], |row| {
            let op = row.get_ref(4)?.as_str_or_null()?.and_then(ops::by_function);
            Ok(LedgerEntry {
                pid: row.get(0)?,
                tid: row.get(1)?,
                since_ns: row.get(2)?,
                state: row.get(3)?,
                op: op.map(|op| op.id),
                ns: unsigned(row, 5)?,
            })
        })
    }
}
