// SPDX-License-Identifier: Apache-2.0
//! Overview of a run: session, ops, loss, processes and libraries.

use crate::aggregate::OpTotals;
use crate::facts::unsigned;
use crate::pending::{Machine, sums_from_row};
use crate::{Reader, Result};
use rusqlite::Row;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Session {
    /// The gpuwhy that wrote it.
    pub version: String,
    /// Start by the wall clock, Unix nanoseconds.
    pub start_unix_ns: u64,
    /// The same time on `CLOCK_MONOTONIC`.
    pub start_monotonic_ns: u64,
    /// The end by the wall clock; `None` while it runs, or when gpuwhy was killed.
    pub stop_unix_ns: Option<u64>,
    /// How long it took; while `stop_unix_ns` is `None`, the start of the last event.
    pub duration_ns: u64,
    /// Why it ended; `None` as for `stop_unix_ns`.
    pub stop_reason: Option<String>,
    /// The traced command.
    pub command: Option<String>,
    /// gpuwhy's flags.
    pub flags: Option<String>,
    /// The machine.
    pub machine: Machine,
    /// Events known to have happened: those that reached the writer and those lost before.
    pub events_seen: u64,
    /// Events in the file: those with a row of their own and those that are the weight of another's.
    pub events_stored: u64,
    /// Of these, events represented by the weight of a similar row.
    pub thinned: u64,
    /// How large the file might become, bytes; `None` for any size.
    pub max_size: Option<u64>,
    /// Events lost.
    pub events_lost: u64,
    /// Events left out of the per-second sums.
    pub seconds_missing: u64,
    /// The cost of tracing, JSON.
    pub own_cost: Option<String>,
}

/// A function and the sums over all its outermost calls; of `sched_switch`, over the times off the CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpSummary {
    /// Short name.
    pub op: String,
    /// Exact symbol.
    pub function: String,
    /// `runtime`, `driver`, or `kernel` for events that are not calls.
    pub layer: String,
    /// Its class: `alloc`, `copy`, …
    pub class: String,
    /// The sums.
    pub totals: OpTotals,
}

/// Loss by cause and op, over the whole run or a time range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LossRow {
    /// Name of the cause.
    pub cause: String,
    /// Short name of the op, where known.
    pub op: Option<String>,
    /// How often.
    pub count: u64,
    /// Whether whole events are gone, or only a detail of each.
    pub loses_event: bool,
    /// First and last second of the run in which it happened.
    pub seconds: (u64, u64),
}

/// A process of the run. Times are nanoseconds since the run began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Its name, or `pid N`.
    pub name: String,
    /// Start, where known; negative before the run.
    pub started: Option<i64>,
    /// End, where seen.
    pub ended: Option<i64>,
    /// The process that made it, where known.
    pub parent: Option<u32>,
    /// Its container, where it is in one.
    pub container: Option<String>,
    /// Its command line, where known.
    pub command: Option<String>,
}

/// A library that was traced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryInfo {
    /// Where the program has it.
    pub path: String,
    /// `runtime` or `driver`.
    pub library: String,
    /// Device and inode.
    pub inode: String,
    /// Functions with probes.
    pub functions: u32,
    /// When they were attached, nanoseconds since the run began.
    pub attached_at: u64,
    /// A note, if any.
    pub note: Option<String>,
}

impl Reader {
    /// The run.
    pub fn session(&self) -> Result<Session> {
        let read = || -> rusqlite::Result<Session> {
            let version: i32 = self.db.pragma_query_value(None, "user_version", |row| row.get(0))?;
            let newer = if version < 3 { "0, NULL" } else { "thinned, max_size" };
            let sql = format!(
                "SELECT version, start_unix_ns, start_monotonic_ns, stop_unix_ns,
                     COALESCE((SELECT duration_ns FROM sessions), 0), stop_reason, command, flags,
                     gpu, driver, cuda, cpu, cores, memory_bytes, kernel, python,
                     events_seen, events_stored, events_lost, seconds_missing, own_cost, {newer}
                 FROM session_"
            );
            self.db.query_row(&sql, [], session)
        };
        read().map_err(|source| self.error(source))
    }

    /// Sums over all outermost calls, by function, those that took most time first.
    pub fn op_totals(&self) -> Result<Vec<OpSummary>> {
        self.fold_totals().map_err(|source| self.error(source))
    }

    fn fold_totals(&self) -> rusqlite::Result<Vec<OpSummary>> {
        let mut statement = self.db.prepare(
            "SELECT o.name, o.function, o.layer, o.class, s.op, s.calls, s.errors, s.total_ns, s.max_ns, s.bytes,
                 s.histogram
             FROM second_ AS s CROSS JOIN op_ AS o ON o.id = s.op",
        )?;
        let mut by_op: BTreeMap<i64, OpSummary> = BTreeMap::new();
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let sums = sums_from_row(row, 5)?;
            match by_op.entry(row.get(4)?) {
                Entry::Occupied(mut known) => known.get_mut().totals.merge(&sums),
                Entry::Vacant(new) => {
                    new.insert(OpSummary {
                        op: row.get(0)?,
                        function: row.get(1)?,
                        layer: row.get(2)?,
                        class: row.get(3)?,
                        totals: sums,
                    });
                }
            }
        }
        let mut summaries: Vec<OpSummary> = by_op.into_values().collect();
        summaries.sort_by_key(|summary| Reverse(summary.totals.total_ns));
        Ok(summaries)
    }

    /// Lost events, by cause and op, most first.
    pub fn loss(&self) -> Result<Vec<LossRow>> {
        self.loss_between([i64::MIN, i64::MAX])
    }

    /// The same for the seconds that a time range touches.
    pub fn loss_of(&self, from_ns: u64, to_ns: Option<u64>) -> Result<Vec<LossRow>> {
        self.loss_between(crate::facts::seconds(from_ns, to_ns))
    }

    /// Events lost in a part of the run, of any op.
    pub fn events_lost(&self, from_ns: u64, to_ns: Option<u64>) -> Result<u64> {
        let loss = self.loss_of(from_ns, to_ns)?;
        Ok(loss.iter().filter(|row| row.loses_event).map(|row| row.count).sum())
    }

    /// The same of the seconds from the first to the last given.
    pub(crate) fn loss_between(&self, seconds: [i64; 2]) -> Result<Vec<LossRow>> {
        let sql = "SELECT cause, op, SUM(count), loses_event, MIN(second), MAX(second) FROM loss
            WHERE second BETWEEN ?1 AND ?2 GROUP BY cause, op ORDER BY SUM(count) DESC, cause, op";
        self.rows(sql, seconds, |row| {
            Ok(LossRow {
                cause: row.get(0)?,
                op: row.get(1)?,
                count: unsigned(row, 2)?,
                loses_event: row.get(3)?,
                seconds: (unsigned(row, 4)?, unsigned(row, 5)?),
            })
        })
    }

    /// Every process that has an event or a process record, by pid.
    pub fn processes(&self) -> Result<Vec<Process>> {
        let sql = "SELECT pid, name, started, ended, parent, container, command FROM processes ORDER BY pid";
        self.rows(sql, [], |row| {
            Ok(Process {
                pid: row.get(0)?,
                name: row.get(1)?,
                started: row.get(2)?,
                ended: row.get(3)?,
                parent: row.get(4)?,
                container: row.get(5)?,
                command: row.get(6)?,
            })
        })
    }

    /// Processes that are in one communicator with each other, set by set.
    pub fn ranks(&self) -> Result<Vec<Vec<u32>>> {
        let version = self.rows("PRAGMA user_version", [], |row| row.get::<_, i32>(0))?;
        // Files of earlier versions do not have communicators.
        if version.iter().all(|version| *version < 3) {
            return Ok(Vec::new());
        }
        let sql = "SELECT DISTINCT id, pid FROM communicator_ WHERE id IS NOT NULL AND ranks > 1 ORDER BY id, pid";
        let rows = self.rows(sql, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, u32>(1)?)))?;
        let sets = rows.chunk_by(|a, b| a.0 == b.0).filter(|set| set.len() > 1);
        Ok(sets.map(|set| set.iter().map(|(_, pid)| *pid).collect()).collect())
    }

    /// The traced libraries, in the order of attaching.
    pub fn libraries(&self) -> Result<Vec<LibraryInfo>> {
        let sql = "SELECT path, library, inode, functions, attached_at, note FROM library_ ORDER BY attached_at, id";
        self.rows(sql, [], |row| {
            Ok(LibraryInfo {
                path: row.get(0)?,
                library: row.get(1)?,
                inode: row.get(2)?,
                functions: row.get(3)?,
                attached_at: unsigned(row, 4)?,
                note: row.get(5)?,
            })
        })
    }
}

fn session(row: &Row<'_>) -> rusqlite::Result<Session> {
    Ok(Session {
        version: row.get(0)?,
        start_unix_ns: unsigned(row, 1)?,
        start_monotonic_ns: unsigned(row, 2)?,
        stop_unix_ns: row.get::<_, Option<i64>>(3)?.map(|n| n.max(0).cast_unsigned()),
        duration_ns: unsigned(row, 4)?,
        stop_reason: row.get(5)?,
        command: row.get(6)?,
        flags: row.get(7)?,
        machine: Machine {
            gpu: row.get(8)?,
            driver: row.get(9)?,
            cuda: row.get(10)?,
            cpu: row.get(11)?,
            cores: row.get(12)?,
            memory_bytes: row.get::<_, Option<i64>>(13)?.map(|n| n.max(0).cast_unsigned()),
            kernel: row.get(14)?,
            python: row.get(15)?,
        },
        events_seen: unsigned(row, 16)?,
        events_stored: unsigned(row, 17)?,
        events_lost: unsigned(row, 18)?,
        seconds_missing: unsigned(row, 19)?,
        own_cost: row.get(20)?,
        thinned: unsigned(row, 21)?,
        max_size: row.get::<_, Option<i64>>(22)?.map(|n| n.max(0).cast_unsigned()),
    })
}
