// SPDX-License-Identifier: Apache-2.0
//! Everything about a run that is not an event: the job, the machine, the samples, the loss.
//!
//! Samples have the model's types, as given to the writer, except that their clock starts with the run.

use crate::aggregate::OpTotals;
use crate::overview::{LossRow, Process, Session};
use crate::pending::sums_from_row;
use crate::{Reader, Result};
use gpuwhy_model::host::padded_name;
use gpuwhy_model::sample::{CgroupSample, Gpu, GpuBusy, GpuError, GpuProcess, GpuSample, ProcessSample, SystemSample};
use gpuwhy_model::{OpId, Rates, ThreadSums, ops};
use rusqlite::{Params, Row};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// An op that is not known may be any.
const LOSSY_SECONDS: &str = "SELECT DISTINCT l.second FROM loss_ AS l JOIN cause_ AS c ON c.id = l.cause
    LEFT JOIN op_ AS o ON o.id = l.op WHERE c.loses_event AND l.count > 0 AND COALESCE(o.layer, '') NOT IN ('kernel', 'torch')
    ORDER BY l.second";

const UNWATCHED: &str = "SELECT from_ns, to_ns, NULL FROM unwatched_ WHERE library IN ('runtime', 'driver')";

/// From when calls of an op in a process were not followed until they were again, within one of the merged runs, or the
/// process ended. Before version 6 that was done to all processes.
fn let_go(version: i32) -> String {
    let input = |of: &str| if version < 4 { "0".to_owned() } else { format!("{of}.input") };
    let pid = |of: &str| if version < 6 { "NULL".to_owned() } else { format!("{of}.pid") };
    let (mine, same, my_pid, same_pid) = (input("b"), input("g"), pid("b"), pid("g"));
    format!(
        "SELECT g.at, MIN(
             COALESCE((SELECT MIN(b.at) FROM governor_ AS b WHERE b.op = g.op AND b.action = 'attach' AND b.at > g.at
                 AND {mine} = {same} AND {my_pid} IS {same_pid}), 9223372036854775807),
             COALESCE((SELECT p.ended FROM process_ AS p WHERE p.pid = {same_pid} AND p.ended >= g.at), 9223372036854775807)),
             {same_pid}
         FROM governor_ AS g JOIN op_ AS o ON o.id = g.op
         WHERE g.action = 'detach' AND o.class IN ('launch', 'copy', 'fill', 'collective')"
    )
}

/// A time in which functions that launch work were not watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnwatchedSpan {
    /// From when on.
    pub from_ns: u64,
    /// Until when.
    pub to_ns: u64,
    /// In which process; `None`: what any of them did may be missing.
    pub pid: Option<u32>,
}

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// Events of the kernel and of PyTorch's allocator are not calls; ops unknown to this gpuwhy are.
const IS_CUDA: &str = "o.layer NOT IN ('kernel', 'torch')";

/// A run without its events. Times are nanoseconds since it began.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunFacts {
    /// The run.
    pub session: Session,
    /// Every process that has an event or a process record, by pid.
    pub processes: Vec<Process>,
    /// The kernel's sums of each thread; a reused thread id has one entry per thread. For a thread older than the run,
    /// `born_ns` and `since_ns` are 0.
    pub threads: Vec<ThreadSums>,
    /// The machine, second by second.
    pub system: Vec<SystemSample>,
    /// The job's processes.
    pub process_seconds: Vec<ProcessSample>,
    /// Their cgroups.
    pub cgroups: Vec<CgroupSample>,
    /// The GPUs there are.
    pub gpus: Vec<Gpu>,
    /// NVML's samples of the GPUs.
    pub gpu_seconds: Vec<GpuSample>,
    /// The driver's own samples of how busy they are.
    pub busy: Vec<GpuBusy>,
    /// Memory of processes on GPUs.
    pub gpu_processes: Vec<GpuProcess>,
    /// Errors of GPUs.
    pub gpu_errors: Vec<GpuError>,
    /// Events lost in these seconds, most first.
    pub loss: Vec<LossRow>,
    /// The seconds of the whole run in which CUDA calls were lost, in order.
    pub lossy_seconds: Vec<u64>,
    /// Times in which functions that launch work were not watched, in order.
    pub unwatched: Vec<UnwatchedSpan>,
}

/// Sums over a process's outermost calls of one function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessOpTotals {
    /// The process.
    pub pid: u32,
    /// Short name of the op.
    pub op: String,
    /// Exact symbol.
    pub function: String,
    /// The function in this gpuwhy's table, if it is there.
    pub id: Option<OpId>,
    /// The sums.
    pub totals: OpTotals,
    /// Calls of each whole second.
    pub rates: Rates,
}

/// A time range for SQL, with both ends inclusive.
pub(crate) type Span = [i64; 2];

impl Reader {
    /// Everything but the events. Samples and errors are those taken from `from_ns` to `to_ns` (both included,
    /// nanoseconds since the run began; `None`: up to the end), loss is that of the seconds of that time; processes,
    /// threads and GPUs are those of the whole run.
    pub fn facts(&self, from_ns: u64, to_ns: Option<u64>) -> Result<RunFacts> {
        let bound = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let span = [bound(from_ns), to_ns.map_or(i64::MAX, bound)];
        Ok(RunFacts {
            session: self.session()?,
            processes: self.processes()?,
            threads: self.rows("SELECT * FROM thread_ ORDER BY pid, tid, since", [], thread)?,
            system: self.rows("SELECT * FROM system_second_ WHERE at BETWEEN ?1 AND ?2 ORDER BY at", span, system)?,
            process_seconds: self.process_samples(from_ns, to_ns.unwrap_or(u64::MAX))?,
            cgroups: self.cgroups(span)?,
            gpus: self.rows("SELECT gpu, name, uuid, bus FROM gpu_ ORDER BY gpu", [], |row| {
                Ok(Gpu { gpu: row.get(0)?, name: row.get(1)?, uuid: row.get(2)?, bus: row.get(3)? })
            })?,
            gpu_seconds: self.rows(
                "SELECT * FROM gpu_second_ WHERE at BETWEEN ?1 AND ?2 ORDER BY at, gpu",
                span,
                gpu,
            )?,
            busy: self.rows("SELECT * FROM gpu_busy_ WHERE at BETWEEN ?1 AND ?2 ORDER BY at, gpu", span, |row| {
                Ok(GpuBusy { at_ns: unsigned(row, 0)?, gpu: row.get(1)?, percent: row.get(2)? })
            })?,
            gpu_processes: self.gpu_processes(span)?,
            gpu_errors: self.rows(
                "SELECT * FROM gpu_error_ WHERE at BETWEEN ?1 AND ?2 ORDER BY at, gpu",
                span,
                |row| Ok(GpuError { at_ns: unsigned(row, 0)?, gpu: row.get(1)?, xid: unsigned(row, 2)? }),
            )?,
            loss: self.loss_between(seconds(from_ns, to_ns))?,
            lossy_seconds: self.rows(LOSSY_SECONDS, [], |row| unsigned(row, 0))?,
            unwatched: self.unwatched()?,
        })
    }

    /// The job's processes, second by second, from `from_ns` to `to_ns` (both included).
    pub fn process_samples(&self, from_ns: u64, to_ns: u64) -> Result<Vec<ProcessSample>> {
        let bound = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let sql = "SELECT * FROM process_second_ WHERE at BETWEEN ?1 AND ?2 ORDER BY at, pid";
        self.rows(sql, [bound(from_ns), bound(to_ns)], process)
    }

    /// NVML's samples of GPU memory from `from_ns` on, and the processes that used it, in time order.
    pub fn gpu_memory_since(&self, from_ns: u64) -> Result<(Vec<GpuSample>, Vec<GpuProcess>)> {
        let span = [i64::try_from(from_ns).unwrap_or(i64::MAX), i64::MAX];
        let sql = "SELECT * FROM gpu_second_ WHERE at BETWEEN ?1 AND ?2 ORDER BY at, gpu";
        Ok((self.rows(sql, span, gpu)?, self.gpu_processes(span)?))
    }

    /// Sums by process and function over the CUDA calls that ended in a time range, from `from_ns` on and before
    /// `to_ns`, nanoseconds from the start of the run. Most time first.
    ///
    /// Whole seconds have exact sums of every call; partial seconds at both ends are summed from the rows of calls.
    pub fn op_totals_by_process(&self, from_ns: u64, to_ns: Option<u64>) -> Result<Vec<ProcessOpTotals>> {
        let to_ns = to_ns.filter(|to| self.session().is_ok_and(|session| *to < session.duration_ns));
        let (whole, edges) = cut(from_ns, to_ns);
        self.fold_by_process(whole, &edges).map_err(|source| self.error(source))
    }

    fn fold_by_process(&self, whole: Span, edges: &[Edge]) -> rusqlite::Result<Vec<ProcessOpTotals>> {
        let mut by_op: BTreeMap<(u32, i64), ProcessOpTotals> = BTreeMap::new();
        let sql = format!(
            "SELECT s.pid, s.op, o.name, o.function, s.calls, s.errors, s.total_ns, s.max_ns, s.bytes, s.histogram, s.second
             FROM second_ AS s CROSS JOIN op_ AS o ON o.id = s.op WHERE s.second BETWEEN ?1 AND ?2 AND {IS_CUDA}"
        );
        let first = whole[0].cast_unsigned();
        let mut statement = self.db.prepare(&sql)?;
        let mut rows = statement.query(whole)?;
        while let Some(row) = rows.next()? {
            let sums = sums_from_row(row, 4)?;
            let calls = sums.calls;
            add(&mut by_op, row, sums)?.rates.add(unsigned(row, 10)?.saturating_sub(first), calls);
        }
        for edge in edges {
            // No call that ended here began longer ago than the longest of its second took.
            let sql = "SELECT COALESCE(MAX(max_ns), 0) FROM second_ WHERE second = ?1";
            let longest: i64 = self.db.query_row(sql, [edge.from / SECOND.cast_signed()], |row| row.get(0))?;
            let sql = format!(
                "SELECT x.pid, x.op, o.name, o.function, c.duration, c.weight, x.ret, x.flags & 2,
                     CASE WHEN o.arg0_is_bytes AND c.arg0 >= 0 THEN c.arg0 ELSE 0 END
                 FROM call_ AS c CROSS JOIN context_ AS x ON x.id = c.context CROSS JOIN op_ AS o ON o.id = x.op
                 WHERE c.start >= ?1 AND c.start < ?2 AND c.start + c.duration >= ?3 AND c.start + c.duration < ?2
                     AND x.flags & 1 = 0 AND {IS_CUDA}"
            );
            let mut statement = self.db.prepare(&sql)?;
            let mut rows = statement.query([edge.from.saturating_sub(longest), edge.to, edge.from])?;
            while let Some(row) = rows.next()? {
                add(&mut by_op, row, sums_of_call(row)?)?;
            }
        }
        let mut all: Vec<ProcessOpTotals> = by_op.into_values().collect();
        all.sort_by_key(|row| std::cmp::Reverse(row.totals.total_ns));
        Ok(all)
    }

    /// Times when libraries were not watched yet, or launches were paused to stay within the budget.
    fn unwatched(&self) -> Result<Vec<UnwatchedSpan>> {
        let version = self.rows("PRAGMA user_version", [], |row| row.get::<_, i32>(0))?.into_iter().max().unwrap_or(0);
        // Files of earlier versions do not have these tables.
        if version < 3 {
            return Ok(Vec::new());
        }
        let span = |row: &Row<'_>| {
            Ok(UnwatchedSpan { from_ns: unsigned(row, 0)?, to_ns: unsigned(row, 1)?, pid: row.get(2)? })
        };
        let mut spans = self.rows(UNWATCHED, [], span)?;
        spans.extend(self.rows(&let_go(version), [], span)?);
        spans.sort_unstable();
        Ok(spans)
    }

    fn cgroups(&self, span: Span) -> Result<Vec<CgroupSample>> {
        let sql = "SELECT s.at, g.path, g.version, s.quota_ns, s.period_ns, s.periods, s.throttled_periods,
                s.throttled_ns, s.usage_ns, s.memory_used, s.memory_limit, s.oom_kills
            FROM cgroup_second_ AS s CROSS JOIN cgroup_ AS g ON g.id = s.cgroup
            WHERE s.at BETWEEN ?1 AND ?2 ORDER BY s.at, g.path";
        self.rows(sql, span, |row| {
            Ok(CgroupSample {
                at_ns: unsigned(row, 0)?,
                path: row.get(1)?,
                version: row.get(2)?,
                quota_ns: known(row, 3)?,
                period_ns: known(row, 4)?,
                periods: known(row, 5)?,
                throttled_periods: known(row, 6)?,
                throttled_ns: known(row, 7)?,
                usage_ns: known(row, 8)?,
                memory_used: known(row, 9)?,
                memory_limit: known(row, 10)?,
                oom_kills: known(row, 11)?,
            })
        })
    }

    fn gpu_processes(&self, span: Span) -> Result<Vec<GpuProcess>> {
        let sql = "SELECT * FROM gpu_process_ WHERE at BETWEEN ?1 AND ?2 ORDER BY at, gpu, pid";
        self.rows(sql, span, |row| {
            // Files of version 1 do not have the last two columns.
            let newer = row.as_ref().column_count() > 4;
            let sm_percent = if newer { row.get(4)? } else { None };
            let name: Option<String> = if newer { row.get(5)? } else { None };
            Ok(GpuProcess {
                at_ns: unsigned(row, 0)?,
                gpu: row.get(1)?,
                pid: row.get(2)?,
                bytes: known(row, 3)?,
                sm_percent,
                name: padded_name(name.unwrap_or_default().as_bytes()),
            })
        })
    }

    /// Rows of our own SQL, as values.
    pub(crate) fn rows<T, P: Params>(
        &self,
        sql: &str,
        params: P,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        let all = || -> rusqlite::Result<Vec<T>> { self.db.prepare(sql)?.query_map(params, read)?.collect() };
        all().map_err(|source| self.error(source))
    }
}

/// The seconds a span of time touches. One that ends with a second does not touch the next.
pub(crate) fn seconds(from_ns: u64, to_ns: Option<u64>) -> Span {
    let whole = |ns: u64| i64::try_from(ns / SECOND).unwrap_or(i64::MAX);
    [whole(from_ns), to_ns.map_or(i64::MAX, |to| whole(to.saturating_sub(1).max(from_ns)))]
}

/// Part of a second for SQL, with an exclusive end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Edge {
    from: i64,
    to: i64,
}

/// The whole seconds of a range, and the partial seconds at both ends.
fn cut(from_ns: u64, to_ns: Option<u64>) -> (Span, Vec<Edge>) {
    let bound = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
    let first = from_ns.div_ceil(SECOND);
    let end = to_ns.map(|to| to / SECOND);
    let edge = |from: u64, to: u64| Edge { from: bound(from), to: bound(to) };
    let edges = match to_ns.zip(end) {
        // Within one second.
        Some((to, end)) if end < first => vec![edge(from_ns, to)],
        _ => {
            let to = to_ns.zip(end).map(|(to, end)| edge(end.saturating_mul(SECOND), to));
            [Some(edge(from_ns, first.saturating_mul(SECOND))), to].into_iter().flatten().collect()
        }
    };
    let whole = [bound(first), end.map_or(i64::MAX, |end| bound(end).saturating_sub(1))];
    (whole, edges.into_iter().filter(|edge| edge.from < edge.to).collect())
}

/// Adds sums to those of their process and function, given by the first columns.
fn add<'a>(
    by_op: &'a mut BTreeMap<(u32, i64), ProcessOpTotals>,
    row: &Row<'_>,
    sums: OpTotals,
) -> rusqlite::Result<&'a mut ProcessOpTotals> {
    let pid = row.get(0)?;
    let of = match by_op.entry((pid, row.get(1)?)) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => {
            let function: String = row.get(3)?;
            let id = ops::by_function(&function).map(|op| op.id);
            let (op, totals, rates) = (row.get(2)?, OpTotals::default(), Rates::default());
            new.insert(ProcessOpTotals { pid, op, function, id, totals, rates })
        }
    };
    of.totals.merge(&sums);
    Ok(of)
}

/// Sums over the calls that one row represents.
fn sums_of_call(row: &Row<'_>) -> rusqlite::Result<OpTotals> {
    let (duration_ns, calls) = (unsigned(row, 4)?, known(row, 5)?.unwrap_or(1));
    let (ret, unfinished, bytes): (i64, bool, u64) = (row.get(6)?, row.get(7)?, unsigned(row, 8)?);
    let mut sums = OpTotals {
        calls,
        errors: if ret != 0 && !unfinished { calls } else { 0 },
        total_ns: duration_ns.saturating_mul(calls),
        max_ns: duration_ns,
        bytes: bytes.saturating_mul(calls),
        ..OpTotals::default()
    };
    sums.histogram.record_many(duration_ns, calls);
    Ok(sums)
}

fn thread(row: &Row<'_>) -> rusqlite::Result<ThreadSums> {
    let times = |column: usize| known(row, column).map(Option::unwrap_or_default);
    Ok(ThreadSums {
        pid: row.get(0)?,
        tid: row.get(1)?,
        since_ns: unsigned(row, 2)?,
        at_ns: unsigned(row, 3)?,
        born_ns: unsigned(row, 4)?,
        name: padded_name(row.get_ref(5)?.as_bytes()?),
        on_cpu_ns: times(6)?,
        ready_ns: times(7)?,
        blocked_ns: times(8)?,
        throttled_ns: times(9)?,
        switches: times(10)?,
        page_allocations: unsigned(row, 11)?,
        page_bytes: unsigned(row, 12)?,
        ended: row.get(13)?,
        has_times: known(row, 6)?.is_some(),
    })
}

fn system(row: &Row<'_>) -> rusqlite::Result<SystemSample> {
    Ok(SystemSample {
        at_ns: unsigned(row, 0)?,
        span_ns: unsigned(row, 1)?,
        user_ns: unsigned(row, 2)?,
        system_ns: unsigned(row, 3)?,
        iowait_ns: unsigned(row, 4)?,
        idle_ns: unsigned(row, 5)?,
        steal_ns: unsigned(row, 6)?,
        cores: row.get(7)?,
        load1: row.get(8)?,
        runnable: known(row, 9)?,
        memory_total: known(row, 10)?,
        memory_available: known(row, 11)?,
        swap_used: known(row, 12)?,
        swap_in: known(row, 13)?,
        swap_out: known(row, 14)?,
        pressure_cpu_ns: known(row, 15)?,
        pressure_memory_some_ns: known(row, 16)?,
        pressure_memory_full_ns: known(row, 17)?,
        pressure_io_some_ns: known(row, 18)?,
        pressure_io_full_ns: known(row, 19)?,
    })
}

fn process(row: &Row<'_>) -> rusqlite::Result<ProcessSample> {
    Ok(ProcessSample {
        at_ns: unsigned(row, 0)?,
        span_ns: unsigned(row, 1)?,
        pid: row.get(2)?,
        user_ns: unsigned(row, 3)?,
        system_ns: unsigned(row, 4)?,
        resident: unsigned(row, 5)?,
        anonymous: known(row, 6)?,
        swapped: known(row, 7)?,
        threads: row.get(8)?,
        major_faults: unsigned(row, 9)?,
        minor_faults: unsigned(row, 10)?,
        read_bytes: known(row, 11)?,
        write_bytes: known(row, 12)?,
        page_allocations: known(row, 13)?,
        page_bytes: known(row, 14)?,
    })
}

fn gpu(row: &Row<'_>) -> rusqlite::Result<GpuSample> {
    Ok(GpuSample {
        at_ns: unsigned(row, 0)?,
        gpu: row.get(1)?,
        rate_percent: row.get(2)?,
        memory_rate_percent: row.get(3)?,
        memory_used: known(row, 4)?,
        memory_total: known(row, 5)?,
        sm_mhz: row.get(6)?,
        memory_mhz: row.get(7)?,
        power_mw: row.get(8)?,
        temperature_c: row.get(9)?,
        throttle_reasons: row.get::<_, Option<i64>>(10)?.map(i64::cast_unsigned),
    })
}

/// A time, size or count; a time before the run becomes 0.
pub(crate) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(|n| n.max(0).cast_unsigned())
}

/// The same for an optional value.
pub(crate) fn known(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<u64>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(|n| n.max(0).cast_unsigned()))
}
