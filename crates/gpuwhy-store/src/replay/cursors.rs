// SPDX-License-Identifier: Apache-2.0
//! Cursors that read each table of events in time order, one event at a time.

use super::Span;
use super::contexts::Contexts;
use gpuwhy_model::{Call, CpuRun, Event, MovedWait, OffCpu, TensorEvent};
use rusqlite::{Connection, Row, Rows, Statement};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The time of a table's front when it has no more rows: later than any.
pub(super) const END: i64 = i64::MAX;

/// The event that stands at the front of a table.
pub(super) struct Front {
    /// Its start, or [`END`].
    pub(super) at: i64,
    pub(super) event: Event,
}

impl Front {
    /// Before the first row.
    pub(super) fn none() -> Self {
        let nobody = MovedWait { start_ns: 0, duration_ns: 0, pid: 0, tid: 0, cpu: 0 };
        Self { at: END, event: Event::Moved(nobody) }
    }

    fn set(&mut self, at: i64, event: Event) {
        *self = Self { at, event };
    }
}

/// The statements of the three tables that one cursor reads.
pub(super) struct Statements<'a> {
    pub(super) calls: Statement<'a>,
    pub(super) offs: Statement<'a>,
    pub(super) moved: Statement<'a>,
}

impl<'a> Statements<'a> {
    pub(super) fn prepare(db: &'a Connection, span: Span) -> rusqlite::Result<Self> {
        let calls = prepare_calls(db, span)?;
        let sql = "SELECT start, duration, ready, context, waker, cpus, object, timeout, weight FROM off_
            WHERE start >= ?1 AND start < ?2 ORDER BY start";
        let offs = bound(db.prepare(sql)?, span)?;
        let sql = "SELECT start, duration, pid, tid, cpu FROM moved_wait_
            WHERE start >= ?1 AND start < ?2 ORDER BY start, tid";
        Ok(Self { calls, offs, moved: bound(db.prepare(sql)?, span)? })
    }
}

/// Calls in the order of their start.
pub(super) fn prepare_calls(db: &Connection, span: Span) -> rusqlite::Result<Statement<'_>> {
    let sql = "SELECT start, duration, context, arg0, arg1, weight FROM call_
        WHERE start >= ?1 AND start < ?2 ORDER BY start";
    bound(db.prepare(sql)?, span)
}

/// The allocator's reports; `None` in a file of an earlier version.
pub(super) fn prepare_tensors(db: &Connection, span: Span) -> rusqlite::Result<Option<Statement<'_>>> {
    let known = db.prepare("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'tensor_'")?.exists([])?;
    if !known {
        return Ok(None);
    }
    let sql = "SELECT start, context, bytes, address, allocated, reserved FROM tensor_
        WHERE start >= ?1 AND start < ?2 ORDER BY start";
    bound(db.prepare(sql)?, span).map(Some)
}

fn bound(mut statement: Statement<'_>, span: Span) -> rusqlite::Result<Statement<'_>> {
    statement.raw_bind_parameter(1, span.from)?;
    statement.raw_bind_parameter(2, span.to)?;
    Ok(statement)
}

/// Calls.
pub(super) struct Calls<'s>(pub(super) Rows<'s>);

impl Calls<'_> {
    #[inline]
    pub(super) fn next(&mut self, contexts: &mut Contexts<'_>, front: &mut Front) -> rusqlite::Result<()> {
        while let Some(row) = self.0.next()? {
            let Some(known) = contexts.call(row.get(2)?)? else { continue };
            let at: i64 = row.get(0)?;
            let call = Call {
                start_ns: unsigned(at),
                duration_ns: unsigned(row.get(1)?),
                arg0: bits(row, 3)?,
                arg1: bits(row, 4)?,
                weight: weight(row, 5)?,
                ..known
            };
            front.set(at, Event::Call(call));
            return Ok(());
        }
        front.at = END;
        Ok(())
    }
}

/// Reports of PyTorch's allocator.
pub(super) struct Tensors<'s>(pub(super) Option<Rows<'s>>);

impl Tensors<'_> {
    /// The next, and when it was made.
    #[inline]
    pub(super) fn next(&mut self, contexts: &mut Contexts<'_>) -> rusqlite::Result<Option<(i64, TensorEvent)>> {
        let Some(rows) = &mut self.0 else { return Ok(None) };
        while let Some(row) = rows.next()? {
            let Some(known) = contexts.call(row.get(1)?)? else { continue };
            let at: i64 = row.get(0)?;
            let event = TensorEvent {
                at_ns: unsigned(at),
                pid: known.pid,
                tid: known.tid,
                op: known.op,
                device: known.device.unwrap_or(0),
                bytes: unsigned(row.get(2)?),
                address: row.get::<_, i64>(3)?.cast_unsigned(),
                allocated: unsigned(row.get(4)?),
                reserved: unsigned(row.get(5)?),
                stack: known.stack,
            };
            return Ok(Some((at, event)));
        }
        Ok(None)
    }
}

/// Times off the CPU.
pub(super) struct Offs<'s>(pub(super) Rows<'s>);

impl Offs<'_> {
    #[inline]
    pub(super) fn next(&mut self, contexts: &mut Contexts<'_>, front: &mut Front) -> rusqlite::Result<()> {
        while let Some(row) = self.0.next()? {
            let Some(known) = contexts.off(row.get(3)?)? else { continue };
            let (woken_by, waker_pid, waker_tid) = contexts.waker(row.get(4)?)?;
            let (at, cpus): (i64, i64) = (row.get(0)?, row.get(5)?);
            let cpu = (cpus & 0xffff) as u16;
            let off = OffCpu {
                start_ns: unsigned(at),
                duration_ns: unsigned(row.get(1)?),
                ready_ns: unsigned(row.get(2)?),
                object: bits(row, 6)?.unwrap_or(0),
                timeout_ns: row.get::<_, Option<i64>>(7)?.map(unsigned),
                woken_by,
                waker_pid,
                waker_tid,
                left_cpu: if cpus >> 16 > 0 { ((cpus >> 16) - 1) as u16 } else { cpu },
                cpu,
                weight: weight(row, 8)?,
                ..known
            };
            front.set(at, Event::Off(off));
            return Ok(());
        }
        front.at = END;
        Ok(())
    }
}

/// Waits for CPUs that threads were moved away from. They lie by thread, so SQLite sorts them: they are few.
pub(super) struct Moved<'s>(pub(super) Rows<'s>);

impl Moved<'_> {
    pub(super) fn next(&mut self, front: &mut Front) -> rusqlite::Result<()> {
        let Some(row) = self.0.next()? else {
            front.at = END;
            return Ok(());
        };
        let at: i64 = row.get(0)?;
        let moved = MovedWait {
            start_ns: unsigned(at),
            duration_ns: unsigned(row.get(1)?),
            pid: row.get(2)?,
            tid: row.get(3)?,
            cpu: row.get(4)?,
        };
        front.set(at, Event::Moved(moved));
        Ok(())
    }
}

/// Runs lie by CPU: one statement for each.
pub(super) fn prepare_runs(db: &Connection, span: Span) -> rusqlite::Result<Vec<(u16, Statement<'_>)>> {
    let sql = "SELECT start, duration, runner FROM cpu_run_
        WHERE cpu = ?3 AND start >= ?1 AND start < ?2 ORDER BY start";
    let mut next_cpu = db.prepare("SELECT MIN(cpu) FROM cpu_run_ WHERE cpu > ?1")?;
    let (mut statements, mut cpu) = (Vec::new(), -1);
    while let Some(found) = next_cpu.query_row([cpu], |row| row.get::<_, Option<i64>>(0))? {
        // Only a damaged file has a CPU beyond these; each costs a statement.
        let Ok(number) = u16::try_from(found) else { break };
        let mut statement = bound(db.prepare(sql)?, span)?;
        statement.raw_bind_parameter(3, found)?;
        statements.push((number, statement));
        cpu = found;
    }
    Ok(statements)
}

/// Who had a CPU, all CPUs together.
pub(super) struct Runs<'s> {
    cpus: Vec<(u16, Rows<'s>, CpuRun)>,
    /// The start of each CPU's front, and the CPU's place in `cpus`: the earliest, then the lowest CPU, on top.
    fronts: BinaryHeap<Reverse<(i64, usize)>>,
}

impl<'s> Runs<'s> {
    pub(super) fn new(
        statements: &'s mut [(u16, Statement<'_>)],
        contexts: &mut Contexts<'_>,
    ) -> rusqlite::Result<Self> {
        let nobody = CpuRun { start_ns: 0, duration_ns: 0, pid: 0, tid: 0, cpu: 0, name: [0; 16] };
        let cpus = statements.iter_mut().map(|(cpu, statement)| (*cpu, statement.raw_query(), nobody)).collect();
        let mut runs = Self { cpus, fronts: BinaryHeap::new() };
        for place in 0..runs.cpus.len() {
            runs.step(place, contexts)?;
        }
        Ok(runs)
    }

    #[inline]
    pub(super) fn next(&mut self, contexts: &mut Contexts<'_>, front: &mut Front) -> rusqlite::Result<()> {
        let Some(Reverse((at, place))) = self.fronts.pop() else {
            front.at = END;
            return Ok(());
        };
        if let Some((.., run)) = self.cpus.get(place) {
            front.set(at, Event::Run(*run));
        }
        self.step(place, contexts)
    }

    /// Brings the next run of a CPU to its front.
    fn step(&mut self, place: usize, contexts: &mut Contexts<'_>) -> rusqlite::Result<()> {
        let Some((cpu, rows, run)) = self.cpus.get_mut(place) else { return Ok(()) };
        while let Some(row) = rows.next()? {
            let Some(known) = contexts.runner(row.get(2)?)? else { continue };
            let at: i64 = row.get(0)?;
            *run = CpuRun { start_ns: unsigned(at), duration_ns: unsigned(row.get(1)?), cpu: *cpu, ..known };
            self.fronts.push(Reverse((at, place)));
            break;
        }
        Ok(())
    }
}

/// A value stored by its bits.
#[inline]
fn bits(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<u64>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(i64::cast_unsigned))
}

/// How many events a row represents.
#[inline]
fn weight(row: &Row<'_>, column: usize) -> rusqlite::Result<u32> {
    let stored = row.get::<_, Option<i64>>(column)?.unwrap_or(1).max(1);
    Ok(u32::try_from(stored).unwrap_or(u32::MAX))
}

/// A time, duration or count: never negative in a file that is whole.
#[inline]
fn unsigned(n: i64) -> u64 {
    n.max(0).cast_unsigned()
}
