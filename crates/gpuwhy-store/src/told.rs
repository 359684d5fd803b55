// SPDX-License-Identifier: Apache-2.0
//! Rows of library reports: allocator events, transfers, communicators and function names.
//!
//! Allocator reports are many and written as they arrive. The rest is little: it waits in memory for the next commit,
//! and is kept if that fails.

use crate::alerts::{self, AlertRow};
use crate::context::{Contexts, know_process};
use crate::pending::stored;
use crate::rows::insert_at_free_time;
use gpuwhy_model::{Call, CallFlags, Communicator, FunctionName, OpId, TensorEvent, Transfer, Unwatched};
use rusqlite::{Connection, params};

const INSERT_TENSOR: &str = "INSERT OR IGNORE INTO tensor_ (start, context, bytes, address, allocated, reserved)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

/// Rows that wait, of each kind at most this many; a program that loads functions without end loses names.
const MOST_WAITING: usize = 1 << 17;

/// An allocator's report as a call that took no time, which is how it is summed and interned.
pub(crate) fn as_call(event: &TensorEvent) -> Call {
    Call {
        start_ns: event.at_ns,
        duration_ns: 0,
        pid: event.pid,
        tid: event.tid,
        op: event.op,
        device: Some(event.device),
        stream: None,
        arg0: Some(event.bytes),
        arg1: Some(event.address),
        ret: 0,
        flags: CallFlags::default(),
        weight: 1,
        stack: event.stack,
    }
}

/// Stores reports of the allocator, which are sorted already.
pub(crate) fn insert_tensors(
    db: &Connection,
    contexts: &mut Contexts,
    origin_ns: u64,
    events: &[TensorEvent],
) -> rusqlite::Result<()> {
    let mut insert = db.prepare_cached(INSERT_TENSOR)?;
    let mut previous = -1;
    for event in events {
        let start = stored(event.at_ns.saturating_sub(origin_ns)).min(i64::MAX / 2).max(previous + 1);
        insert.raw_bind_parameter(2, contexts.id_of(db, &as_call(event))?)?;
        insert.raw_bind_parameter(3, stored(event.bytes))?;
        insert.raw_bind_parameter(4, event.address.cast_signed())?;
        insert.raw_bind_parameter(5, stored(event.allocated))?;
        insert.raw_bind_parameter(6, stored(event.reserved))?;
        previous = insert_at_free_time(&mut insert, start)?;
    }
    Ok(())
}

/// An action of the governor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GovernorRow {
    /// When, `CLOCK_MONOTONIC` ns.
    pub at_ns: u64,
    /// The process affected; `None` for all.
    pub pid: Option<u32>,
    /// The op affected; `None` if the action does not affect one op.
    pub op: Option<OpId>,
    /// `sample`, `detach`, `attach`, …
    pub action: String,
    /// Why, in words.
    pub reason: String,
}

/// Rows waiting for the next commit.
#[derive(Default)]
pub(crate) struct Told {
    transfers: Vec<Transfer>,
    communicators: Vec<Communicator>,
    names: Vec<FunctionName>,
    unwatched: Vec<Unwatched>,
    governor: Vec<GovernorRow>,
    alerts: Vec<AlertRow>,
}

fn keep<T>(waiting: &mut Vec<T>, row: T) -> bool {
    let room = waiting.len() < MOST_WAITING;
    if room {
        waiting.push(row);
    }
    room
}

impl Told {
    /// Each of these returns whether there was room.
    pub(crate) fn transfer(&mut self, row: Transfer) -> bool {
        keep(&mut self.transfers, row)
    }

    pub(crate) fn communicator(&mut self, row: Communicator) -> bool {
        keep(&mut self.communicators, row)
    }

    pub(crate) fn name(&mut self, row: FunctionName) -> bool {
        keep(&mut self.names, row)
    }

    pub(crate) fn unwatched(&mut self, row: Unwatched) -> bool {
        keep(&mut self.unwatched, row)
    }

    pub(crate) fn governor(&mut self, row: GovernorRow) -> bool {
        keep(&mut self.governor, row)
    }

    pub(crate) fn alert(&mut self, row: AlertRow) -> bool {
        keep(&mut self.alerts, row)
    }

    /// Writes everything inside the open transaction.
    pub(crate) fn write(&self, db: &Connection, contexts: &mut Contexts, origin_ns: u64) -> rusqlite::Result<()> {
        let since = |ns: u64| stored(ns.saturating_sub(origin_ns));
        self.write_transfers(db, contexts, since)?;
        self.write_communicators(db, since)?;
        let mut insert =
            db.prepare_cached("INSERT OR IGNORE INTO function_ (pid, handle, at, name) VALUES (?1, ?2, ?3, ?4)")?;
        for row in &self.names {
            insert.execute(params![row.pid, row.handle.cast_signed(), since(row.at_ns), row.name])?;
        }
        let mut insert = db.prepare_cached(
            "INSERT INTO unwatched_ (pid, library, path, from_ns, to_ns) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        for row in &self.unwatched {
            know_process(db, row.pid)?;
            let to = if row.to_ns == u64::MAX { i64::MAX } else { since(row.to_ns) };
            insert.execute(params![row.pid, row.library.name(), row.path, since(row.from_ns), to])?;
        }
        let mut insert =
            db.prepare_cached("INSERT INTO governor_ (at, op, action, reason, pid) VALUES (?1, ?2, ?3, ?4, ?5)")?;
        for row in &self.governor {
            if let Some(pid) = row.pid {
                know_process(db, pid)?;
            }
            let op = row.op.map_or(-1, |op| i32::from(op.0));
            insert.execute(params![since(row.at_ns), op, row.action, row.reason, row.pid])?;
        }
        alerts::write(db, &self.alerts, since)
    }

    fn write_transfers(
        &self,
        db: &Connection,
        contexts: &mut Contexts,
        since: impl Fn(u64) -> i64,
    ) -> rusqlite::Result<()> {
        let mut insert = db.prepare_cached(
            "INSERT INTO transfer_ (at, duration, context, bytes, communicator, sequence, peer)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        for row in &self.transfers {
            let call = &row.call;
            insert.execute(params![
                since(call.start_ns),
                stored(call.duration_ns),
                contexts.id_of(db, call)?,
                call.arg0.map(stored),
                call.arg1.map(u64::cast_signed),
                row.sequence,
                row.peer
            ])?;
        }
        Ok(())
    }

    fn write_communicators(&self, db: &Connection, since: impl Fn(u64) -> i64) -> rusqlite::Result<()> {
        let mut insert = db.prepare_cached(
            "INSERT OR IGNORE INTO communicator_ (at, pid, tid, op, device, handle, id, ranks, rank, parent, color, key)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        )?;
        for row in &self.communicators {
            know_process(db, row.pid)?;
            insert.execute(params![
                since(row.at_ns),
                row.pid,
                row.tid,
                row.op.0,
                row.device,
                row.handle.cast_signed(),
                row.id.map(u64::cast_signed),
                row.ranks,
                row.rank,
                row.split.map(|split| split.parent.cast_signed()),
                row.split.map(|split| split.color),
                row.split.map(|split| split.key)
            ])?;
        }
        Ok(())
    }
}
