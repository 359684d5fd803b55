// SPDX-License-Identifier: Apache-2.0
//! What the scheduler and processes did in a time range: how long threads waited, who had the CPUs meanwhile, and which
//! processes started or ended.

use crate::buckets::{Bucket, LOOK_BACK, signed};
use crate::facts::unsigned;
use crate::index::TimeIndex;
use crate::{Limits, Reader, Result, Value};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

/// How long threads were off the CPU in a piece of time, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waits {
    /// All threads: ready to run, but without a CPU.
    pub ready_ns: u64,
    /// The same of threads that launch GPU work.
    pub launcher_ready_ns: u64,
    /// Threads that launch GPU work: blocked, asleep or throttled.
    pub launcher_blocked_ns: u64,
}

/// Who had a CPU while traced threads were ready for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuHolder {
    /// Its process.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// For how long.
    pub held_ns: u64,
}

/// A process that was started, became another program or ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessEvent {
    /// When, since the run began.
    pub at_ns: u64,
    /// `process_fork`, `process_exec` or `process_exit`.
    pub what: String,
    /// The process that did it.
    pub pid: u32,
    /// Its name; of a fork that of the new process.
    pub name: Option<String>,
    /// For a fork, the new process; for an exit, its code.
    pub arg0: Option<i64>,
    /// For an exit, the signal that ended the process, or 0.
    pub arg1: Option<i64>,
}

/// A thread's time off the CPU.
struct Off {
    start: u64,
    /// When it could have run again.
    ready_at: u64,
    end: u64,
    weight: u64,
}

/// The view cpu_held limited to a time range; the view itself would be computed for the whole run first.
const HELD: &str = "
WITH waits AS (
    SELECT start AS at, duration AS ns, pid, tid, cpu FROM moved_wait_ WHERE start < ?2 AND start + duration > ?1
    UNION ALL
    SELECT ended - last, last, pid, tid, cpu FROM (
        SELECT f.start + f.duration AS ended, x.pid AS pid, x.tid AS tid, f.cpus & 65535 AS cpu,
            f.ready - COALESCE((
                SELECT SUM(m.duration) FROM moved_wait_ AS m
                WHERE m.tid = x.tid AND m.start > f.start - 1000 AND m.start < f.start + f.duration
                    AND m.start + m.duration > f.start AND m.pid = x.pid
            ), 0) AS last
        FROM off_ AS f CROSS JOIN off_context_ AS x ON x.id = f.context
        WHERE f.start >= ?3 AND f.start < ?2 AND f.ready > 0 AND x.reason <> 'throttled'
    ) WHERE last > 0 AND ended > ?1
)
SELECT q.pid, n.pid, n.name,
    MIN(q.at + q.ns, r.start + r.duration, ?2) - MAX(q.at, r.start, ?1) AS held
FROM waits AS q
CROSS JOIN cpu_run_ AS r ON r.cpu = q.cpu
    AND r.start >= COALESCE((SELECT MAX(b.start) FROM cpu_run_ AS b WHERE b.cpu = q.cpu AND b.start <= q.at), q.at)
    AND r.start < q.at + q.ns AND r.start + r.duration > q.at
LEFT JOIN runner_ AS n ON n.id = r.runner
WHERE n.tid IS NOT q.tid AND held > 0";

const PROCESSES: &str = "
SELECT c.start, o.name, x.pid, c.arg0, c.arg1,
    (SELECT n.name FROM process_names AS n WHERE n.pid = CASE o.name WHEN 'process_fork' THEN c.arg0 ELSE x.pid END)
FROM call_ AS c CROSS JOIN context_ AS x ON x.id = c.context CROSS JOIN op_ AS o ON o.id = x.op
WHERE c.start >= ?1 AND c.start < ?2 AND o.name IN ('process_fork', 'process_exec', 'process_exit')
ORDER BY c.start";

impl Reader {
    /// How long threads of `pids`, or all, were off the CPU in each of some pieces, which follow one another.
    pub fn waits(&self, pieces: &[Bucket], pids: &[u32], index: Option<&TimeIndex>) -> Result<Vec<Waits>> {
        let mut sums = vec![Waits::default(); pieces.len()];
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Ok(sums) };
        let (from, to) = (first.from_ns, last.to_ns);
        let contexts = self.waiting_threads(pids)?;
        let mut parts = vec![(from.saturating_sub(LOOK_BACK), to)];
        if let Some(index) = index {
            // The index knows which slots have a wait that reaches into the range, however early it started.
            parts = index.off.reaching(from, |context| contexts.contains_key(&context));
            parts.push((from, to));
        }
        for part in parts {
            self.each_off(part, |context, off| {
                let Some((throttled, launches)) = contexts.get(&context).filter(|_| off.end > from) else { return };
                let first = pieces.partition_point(|piece| piece.to_ns <= off.start);
                for (piece, sum) in pieces[first..].iter().zip(&mut sums[first..]) {
                    if piece.from_ns >= off.end {
                        break;
                    }
                    sum.add(&off, piece, *throttled, *launches);
                }
            })?;
        }
        Ok(sums)
    }

    /// By context of a time off the CPU: whether the thread was throttled, and whether it launches GPU work.
    fn waiting_threads(&self, pids: &[u32]) -> Result<HashMap<i64, (bool, bool)>> {
        let launchers = "SELECT DISTINCT x.tid FROM context_ AS x CROSS JOIN op_ AS o ON o.id = x.op
            WHERE o.class = 'launch' AND x.flags & 1 = 0";
        let launchers: HashSet<u32> = self.rows(launchers, [], |row| row.get(0))?.into_iter().collect();
        let rows = self.rows("SELECT id, pid, tid, reason FROM off_context_", [], |row| {
            let (id, pid, tid, reason): (i64, u32, u32, String) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
            Ok((id, pid, (reason == "throttled", launchers.contains(&tid))))
        })?;
        let wanted = rows.into_iter().filter(|(_, pid, _)| pids.is_empty() || pids.contains(pid));
        Ok(wanted.map(|(id, _, known)| (id, known)).collect())
    }

    fn each_off(&self, (from, to): (u64, u64), mut on_row: impl FnMut(i64, Off)) -> Result<()> {
        let (from, to) = (signed(from), signed(to));
        let sql =
            format!("SELECT context, start, duration, ready, weight FROM off_ WHERE start >= {from} AND start < {to}");
        self.query(&sql, &Limits::default(), |_, row| {
            let number = |at: usize| if let Some(Value::Int(n)) = row.get(at) { Some(*n) } else { None };
            let unsigned = |at: usize| number(at).map_or(0, |n| n.max(0).cast_unsigned());
            if let Some(context) = number(0) {
                let (start, weight) = (unsigned(1), number(4).map_or(1, |n| n.max(0).cast_unsigned()));
                let end = start.saturating_add(unsigned(2));
                on_row(context, Off { start, ready_at: end.saturating_sub(unsigned(3)).max(start), end, weight });
            }
            ControlFlow::Continue(())
        })?;
        Ok(())
    }

    /// Who had a CPU in a time range while threads of `pids`, or any traced threads, were ready for it, longest first.
    pub fn cpu_holders(&self, (from_ns, to_ns): (u64, u64), pids: &[u32]) -> Result<Vec<CpuHolder>> {
        let span = [signed(from_ns), signed(to_ns), signed(from_ns.saturating_sub(LOOK_BACK))];
        let rows = self.rows(HELD, span, |row| {
            let holder = (row.get::<_, Option<u32>>(1)?.unwrap_or(0), row.get::<_, Option<String>>(2)?);
            Ok((row.get::<_, u32>(0)?, holder, unsigned(row, 3)?))
        })?;
        let mut sums: HashMap<(u32, Option<String>), u64> = HashMap::new();
        for (_, holder, ns) in rows.into_iter().filter(|(pid, _, _)| pids.is_empty() || pids.contains(pid)) {
            let sum = sums.entry(holder).or_default();
            *sum = sum.saturating_add(ns);
        }
        let holder = |((pid, name), held_ns): ((u32, Option<String>), u64)| CpuHolder {
            pid,
            name: name.unwrap_or_else(|| "unknown".to_owned()),
            held_ns,
        };
        let mut holders: Vec<CpuHolder> = sums.into_iter().map(holder).collect();
        holders.sort_by(|a, b| (b.held_ns, a.pid, &a.name).cmp(&(a.held_ns, b.pid, &b.name)));
        Ok(holders)
    }

    /// Processes that started, exec'ed or ended in a time range, in order; with `pids`, only those.
    pub fn process_events(&self, (from_ns, to_ns): (u64, u64), pids: &[u32]) -> Result<Vec<ProcessEvent>> {
        let events = self.rows(PROCESSES, [signed(from_ns), signed(to_ns)], |row| {
            let (what, pid, arg0, arg1) = (row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?);
            Ok(ProcessEvent { at_ns: unsigned(row, 0)?, what, pid, name: row.get(5)?, arg0, arg1 })
        })?;
        Ok(events.into_iter().filter(|event| pids.is_empty() || pids.contains(&event.pid)).collect())
    }
}

impl Waits {
    fn add(&mut self, off: &Off, piece: &Bucket, throttled: bool, launches: bool) {
        let overlap = |from: u64, to: u64| {
            let ns = to.min(piece.to_ns).saturating_sub(from.max(piece.from_ns));
            ns.saturating_mul(off.weight)
        };
        let ready_at = if throttled { off.end } else { off.ready_at };
        let (blocked, ready) = (overlap(off.start, ready_at), overlap(ready_at, off.end));
        self.ready_ns = self.ready_ns.saturating_add(ready);
        if launches {
            self.launcher_ready_ns = self.launcher_ready_ns.saturating_add(ready);
            self.launcher_blocked_ns = self.launcher_blocked_ns.saturating_add(blocked);
        }
    }
}
