// SPDX-License-Identifier: Apache-2.0
//! Rows from the scheduler: times off the CPU, which thread had the CPU, waits for another CPU.
//!
//! Times that started before the run are cut at its start. Ready time is counted from the end of the row and stays
//! valid.

use crate::context::{Interned, know_process};
use crate::names;
use crate::pending::stored;
use crate::rows::{insert_at_free_time, weight};
use gpuwhy_model::host::task_name;
use gpuwhy_model::ops::{self, KernelOp};
use gpuwhy_model::{Call, CallFlags, CpuRun, MovedWait, OffCpu, Reason, Wait, WokenBy};
use rusqlite::{Connection, params};

const INSERT_OFF: &str =
    "INSERT OR IGNORE INTO off_ (start, duration, ready, context, waker, cpus, object, timeout, weight)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
const INSERT_RUN: &str = "INSERT INTO cpu_run_ (cpu, start, duration, runner) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (cpu, start) DO UPDATE SET duration = excluded.duration, runner = excluded.runner
    WHERE excluded.duration > duration";
const INSERT_MOVED: &str = "INSERT INTO moved_wait_ (tid, start, duration, pid, cpu) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (tid, start) DO UPDATE SET duration = excluded.duration, pid = excluded.pid, cpu = excluded.cpu
    WHERE excluded.duration > duration";

/// Properties that repeat from one time off the CPU to the next.
#[derive(PartialEq, Eq, Hash)]
struct OffKey {
    pid: u32,
    tid: u32,
    file: u32,
    syscall: Option<u16>,
    reason: Reason,
    wait: Wait,
    io_wait: bool,
    unfinished: bool,
    stack: Option<u64>,
}

/// The contexts, wakers and runners already in the file.
#[derive(Default)]
pub(crate) struct HostRows {
    contexts: Interned<OffKey>,
    wakers: Interned<(WokenBy, u32, u32)>,
    runners: Interned<(u32, u32, [u8; 16])>,
}

impl HostRows {
    /// Stores times off the CPU, which are cut and sorted already.
    pub(crate) fn insert_off_cpu(&mut self, db: &Connection, origin_ns: u64, rows: &[OffCpu]) -> rusqlite::Result<()> {
        let mut insert = db.prepare_cached(INSERT_OFF)?;
        let mut previous = -1;
        for row in rows {
            let start = stored(row.start_ns.saturating_sub(origin_ns)).min(i64::MAX / 2).max(previous + 1);
            insert.raw_bind_parameter(2, bounded(row.duration_ns))?;
            insert.raw_bind_parameter(3, bounded(row.ready_ns.min(row.duration_ns)))?;
            insert.raw_bind_parameter(4, self.context(db, row)?)?;
            insert.raw_bind_parameter(5, self.waker(db, row)?)?;
            insert.raw_bind_parameter(6, cpus(row))?;
            insert.raw_bind_parameter(7, (row.object != 0).then_some(row.object.cast_signed()))?;
            insert.raw_bind_parameter(8, row.timeout_ns.map(stored))?;
            insert.raw_bind_parameter(9, weight(row.weight))?;
            previous = insert_at_free_time(&mut insert, start)?;
        }
        Ok(())
    }

    /// Stores who had a CPU. If the same run is reported twice, the longer one is stored.
    pub(crate) fn insert_runs(&mut self, db: &Connection, origin_ns: u64, rows: &[CpuRun]) -> rusqlite::Result<()> {
        let mut insert = db.prepare_cached(INSERT_RUN)?;
        for row in rows {
            let (start, duration) = cut(row.start_ns, row.duration_ns, origin_ns);
            if duration == 0 {
                continue;
            }
            // Each CPU has its own idle task; all of them are stored as one.
            let idle = row.pid == 0;
            let key = if idle { (0, 0, *b"idle\0\0\0\0\0\0\0\0\0\0\0\0") } else { (row.pid, row.tid, row.name) };
            let runner = self.runners.id_of(key, |id, (pid, tid, name)| {
                db.prepare_cached("INSERT INTO runner_ (id, pid, tid, name) VALUES (?1, ?2, ?3, ?4)")?
                    .execute(params![id, pid, tid, task_name(name)])?;
                Ok(())
            })?;
            insert.execute(params![row.cpu, bounded(start - origin_ns), bounded(duration), runner])?;
        }
        Ok(())
    }

    /// Stores waits for CPUs that threads were moved away from.
    pub(crate) fn insert_moved(&self, db: &Connection, origin_ns: u64, rows: &[MovedWait]) -> rusqlite::Result<()> {
        let mut insert = db.prepare_cached(INSERT_MOVED)?;
        for row in rows {
            let (start, duration) = cut(row.start_ns, row.duration_ns, origin_ns);
            if duration > 0 {
                insert.execute(params![row.tid, bounded(start - origin_ns), bounded(duration), row.pid, row.cpu])?;
            }
        }
        Ok(())
    }

    /// Clears the cache, because the transaction that stored some of these values was rolled back.
    pub(crate) fn forget(&mut self) {
        self.contexts.forget();
        self.wakers.forget();
        self.runners.forget();
    }

    #[inline]
    fn context(&mut self, db: &Connection, row: &OffCpu) -> rusqlite::Result<i64> {
        let key = OffKey {
            pid: row.pid,
            tid: row.tid,
            file: row.file,
            syscall: row.syscall,
            reason: row.reason,
            wait: row.wait,
            io_wait: row.io_wait,
            unfinished: row.unfinished,
            stack: row.stack,
        };
        self.contexts.id_of(key, |id, _| store_context(db, id, row))
    }

    #[inline]
    fn waker(&mut self, db: &Connection, row: &OffCpu) -> rusqlite::Result<i64> {
        if row.woken_by == WokenBy::Nobody {
            return Ok(0);
        }
        self.wakers.id_of((row.woken_by, row.waker_pid, row.waker_tid), |id, (by, pid, tid)| {
            db.prepare_cached("INSERT INTO waker_ (id, woken_by, pid, tid) VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![id, by.name(), pid, tid])?;
            Ok(())
        })
    }
}

fn store_context(db: &Connection, id: i64, row: &OffCpu) -> rusqlite::Result<()> {
    know_process(db, row.pid)?;
    db.prepare_cached(
        "INSERT INTO off_context_ (id, pid, tid, reason, wait, syscall, file, io_wait, unfinished, stack)
         VALUES (?1, ?2, ?3, ?4, NULLIF(?5, ''), ?6, ?7, ?8, ?9, ?10)",
    )?
    .execute(params![
        id,
        row.pid,
        row.tid,
        row.reason.name(),
        row.wait.name(),
        row.syscall.map(names::syscall),
        names::file(row.wait, row.file),
        row.io_wait,
        row.unfinished,
        row.stack.map(u64::cast_signed)
    ])?;
    Ok(())
}

/// Both CPUs in one number, which is small in the common case that they are the same.
fn cpus(row: &OffCpu) -> i64 {
    let left = if row.left_cpu == row.cpu { 0 } else { i64::from(row.left_cpu) + 1 };
    left << 16 | i64::from(row.cpu)
}

/// A time or duration of which two can be added in SQL: the sum of larger ones would become a float there.
fn bounded(n: u64) -> i64 {
    stored(n).min(i64::MAX / 2)
}

/// Cuts a time span to the run.
fn cut(start_ns: u64, duration_ns: u64, origin_ns: u64) -> (u64, u64) {
    let before = origin_ns.saturating_sub(start_ns);
    (start_ns + before, duration_ns.saturating_sub(before))
}

/// Cuts a time off the CPU to the run.
pub(crate) fn cut_off_cpu(row: &mut OffCpu, origin_ns: u64) {
    let before = origin_ns.saturating_sub(row.start_ns);
    if before > 0 {
        (row.start_ns, row.duration_ns) = cut(row.start_ns, row.duration_ns, origin_ns);
        row.ready_ns = row.ready_ns.min(row.duration_ns);
        row.timeout_ns = row.timeout_ns.map(|limit| limit.saturating_sub(before));
    }
}

/// A time off the CPU as the sums see it.
pub(crate) fn as_call(row: &OffCpu) -> Call {
    Call {
        start_ns: row.start_ns,
        duration_ns: row.duration_ns,
        pid: row.pid,
        tid: row.tid,
        op: ops::kernel_op(KernelOp::SchedSwitch),
        device: None,
        stream: None,
        arg0: None,
        arg1: None,
        ret: 0,
        flags: CallFlags { inner: false, unfinished: row.unfinished },
        weight: row.weight,
        stack: row.stack,
    }
}
