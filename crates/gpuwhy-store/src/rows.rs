// SPDX-License-Identifier: Apache-2.0
//! Inserting rows of events, and what they refer to.

use crate::context::Contexts;
use crate::host::HostRows;
use crate::pending::stored;
use crate::told::{self, Told};
use crate::unsaved::Unsaved;
use gpuwhy_model::{Call, CpuRun, MovedWait, OffCpu, TensorEvent};
use rusqlite::{CachedStatement, Connection};

/// Ties are moved this many times by 1 ns; after that in growing steps, lest thousands of equal times
/// become millions of attempts.
const SMALL_STEPS: i64 = 64;

const INSERT_CALL: &str =
    "INSERT OR IGNORE INTO call_ (start, duration, context, arg0, arg1, weight) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

/// Ids of what rows refer to, if already in the file.
#[derive(Default)]
pub(crate) struct RowWriter {
    contexts: Contexts,
    host: HostRows,
}

impl RowWriter {
    /// Whether a thread has made a CUDA call.
    pub(crate) fn calls_cuda(&self, tid: u32) -> bool {
        self.contexts.calls_cuda(tid)
    }

    /// Stores calls, which are sorted by start.
    pub(crate) fn calls(&mut self, db: &Connection, origin_ns: u64, calls: &[Call]) -> rusqlite::Result<()> {
        let mut insert = db.prepare_cached(INSERT_CALL)?;
        let (mut previous, mut bound) = (-1, None);
        for call in calls {
            let context = self.contexts.id_of(db, call)?;
            // A call older than the run would have a negative time; half the range leaves room for ties.
            let start = stored(call.start_ns.saturating_sub(origin_ns)).min(i64::MAX / 2).max(previous + 1);
            insert.raw_bind_parameter(2, stored(call.duration_ns))?;
            insert.raw_bind_parameter(3, context)?;
            insert.raw_bind_parameter(4, call.arg0.map(u64::cast_signed))?;
            insert.raw_bind_parameter(5, call.arg1.map(u64::cast_signed))?;
            // Nearly always NULL, which it is until it is bound.
            let weight = weight(call.weight);
            if weight != bound {
                insert.raw_bind_parameter(6, weight)?;
                bound = weight;
            }
            previous = insert_at_free_time(&mut insert, start)?;
        }
        Ok(())
    }

    /// Stores times off the CPU, which are cut and sorted already.
    pub(crate) fn offs(&mut self, db: &Connection, origin_ns: u64, offs: &[OffCpu]) -> rusqlite::Result<()> {
        self.host.insert_off_cpu(db, origin_ns, offs)
    }

    /// Stores who had a CPU.
    pub(crate) fn runs(&mut self, db: &Connection, origin_ns: u64, runs: &[CpuRun]) -> rusqlite::Result<()> {
        self.host.insert_runs(db, origin_ns, runs)
    }

    /// Stores waits for CPUs that threads were moved away from.
    pub(crate) fn moved(&self, db: &Connection, origin_ns: u64, moved: &[MovedWait]) -> rusqlite::Result<()> {
        self.host.insert_moved(db, origin_ns, moved)
    }

    /// Stores reports of the allocator, which are sorted by time.
    pub(crate) fn tensors(&mut self, db: &Connection, origin_ns: u64, events: &[TensorEvent]) -> rusqlite::Result<()> {
        told::insert_tensors(db, &mut self.contexts, origin_ns, events)
    }

    /// Stores pending library reports.
    pub(crate) fn told(&mut self, db: &Connection, origin_ns: u64, told: &Told) -> rusqlite::Result<()> {
        told.write(db, &mut self.contexts, origin_ns)
    }

    /// Stores rows of all kinds.
    pub(crate) fn all(&mut self, db: &Connection, origin_ns: u64, rows: &Unsaved) -> rusqlite::Result<()> {
        self.calls(db, origin_ns, &rows.calls)?;
        self.offs(db, origin_ns, &rows.offs)?;
        self.runs(db, origin_ns, &rows.runs)?;
        self.moved(db, origin_ns, &rows.moved)?;
        self.tensors(db, origin_ns, &rows.tensors)
    }

    /// Clears the cached ids, because the transaction that stored some of them was rolled back.
    pub(crate) fn forget(&mut self) {
        self.contexts.forget();
        self.host.forget();
    }
}

/// A weight as it is stored: NULL is 1, and takes no room.
#[inline]
pub(crate) fn weight(weight: u32) -> Option<u32> {
    Some(weight).filter(|weight| *weight > 1)
}

/// Inserts the bound row at `start`, or at the next free time after it; returns the time it got.
#[inline]
pub(crate) fn insert_at_free_time(insert: &mut CachedStatement<'_>, start: i64) -> rusqlite::Result<i64> {
    let (mut time, mut attempts) = (start, 0);
    loop {
        insert.raw_bind_parameter(1, time)?;
        if insert.raw_execute()? > 0 {
            return Ok(time);
        }
        attempts += 1;
        time += (attempts - SMALL_STEPS).max(1);
    }
}
