// SPDX-License-Identifier: Apache-2.0
//! The run in equal time buckets, and the longest events in one of them.
//!
//! Long buckets come from the per-second sums, which are few; short ones from the calls themselves.

use crate::facts::unsigned;
use crate::index::TimeIndex;
use crate::{Limits, Reader, Result};
use rusqlite::Row;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;
/// By default, a range up to this length is summed from its calls, a longer one from whole seconds.
const FROM_CALLS: u64 = 5 * SECOND;
/// Without an index, how far before a range to search for calls that reach into it.
pub(crate) const LOOK_BACK: u64 = 60 * SECOND;

/// How a time range is cut into buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Into at most this many buckets; a long range gets whole seconds, whose sums are fastest to read.
    AtMost(u32),
    /// Into pieces of exactly this length, ns; the last may be shorter.
    Every(u64),
}

impl Cut {
    /// Start of the first bucket, and length of a bucket.
    fn of(self, from_ns: u64, to_ns: u64) -> (u64, u64) {
        match self {
            Self::Every(width) => (from_ns, width.max(1)),
            Self::AtMost(most) => {
                let fine = to_ns.saturating_sub(from_ns) <= FROM_CALLS;
                let from = if fine { from_ns } else { from_ns / SECOND * SECOND };
                let width = to_ns.saturating_sub(from).div_ceil(u64::from(most.max(1))).max(1);
                (from, if fine { width } else { width.div_ceil(SECOND) * SECOND })
            }
        }
    }
}

/// What happened in one bucket, nanoseconds from the start of the run. A call belongs to the bucket in which it
/// started, or, if buckets are whole seconds, in which it ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bucket {
    /// Its start.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// Kernels launched.
    pub launches: u64,
    /// CUDA calls.
    pub calls: u64,
    /// Time in them, of all threads.
    pub cuda_ns: u64,
    /// The part of that time in calls that wait for the GPU.
    pub wait_ns: u64,
    /// Bytes copied and filled.
    pub moved_bytes: u64,
    /// The longest call.
    pub longest: Option<(String, u64)>,
    /// How busy the GPUs were, percent, as the driver sampled it.
    pub gpu_busy_percent: Option<f64>,
}

/// One of the longest events of a time range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongEvent {
    /// Start, nanoseconds from the start of the run.
    pub start_ns: u64,
    /// How long it took.
    pub duration_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The op; `off_cpu` for a time off the CPU.
    pub op: String,
    /// For a time off the CPU: the reason, and what it waited for.
    pub why: Option<String>,
    /// Its stack, a row of `stack_traces`.
    pub stack: Option<u64>,
}

/// The columns of a row to sum.
struct Sums {
    /// When the calls ended.
    at_ns: u64,
    op: i64,
    calls: u64,
    total_ns: u64,
    max_ns: u64,
    bytes: u64,
}

/// Name and class of each op.
type Ops = HashMap<i64, (String, String)>;

impl Reader {
    /// The range `from_ns` to `to_ns` in buckets; only calls of `pids`, or of all processes if it is empty.
    pub fn buckets(
        &self,
        (from_ns, to_ns): (u64, u64),
        cut: Cut,
        pids: &[u32],
        index: Option<&TimeIndex>,
    ) -> Result<Vec<Bucket>> {
        let (from, width) = cut.of(from_ns, to_ns);
        let to = to_ns;
        let mut buckets: Vec<Bucket> = (0..)
            .map(|i| from + i * width)
            .take_while(|start| *start < to)
            .map(|start| Bucket { from_ns: start, to_ns: (start + width).min(to), ..Bucket::default() })
            .collect();
        let whole_seconds = from.is_multiple_of(SECOND) && width.is_multiple_of(SECOND) && to - from > FROM_CALLS;
        let ops = self.ops()?;
        if !whole_seconds {
            self.sum_calls(&mut buckets, &ops, pids, index)?;
        } else {
            self.sum_seconds(from, to, pids, |sums| {
                let place = sums.at_ns.checked_sub(from).map(|after| after / width);
                if let Some(bucket) = place.and_then(|place| buckets.get_mut(usize::try_from(place).ok()?)) {
                    bucket.add(&sums, &ops);
                }
            })?;
        }
        self.add_busy(&mut buckets, from, width)?;
        Ok(buckets)
    }

    fn ops(&self) -> Result<Ops> {
        let rows = self.rows("SELECT id, name, class FROM op_ WHERE layer <> 'kernel'", [], |row| {
            Ok((row.get(0)?, (row.get(1)?, row.get(2)?)))
        })?;
        Ok(rows.into_iter().collect())
    }

    fn sum_seconds(&self, from: u64, to: u64, pids: &[u32], mut add: impl FnMut(Sums)) -> Result<()> {
        let sql = "SELECT second, op, calls, total_ns, max_ns, bytes, pid FROM second_ WHERE second BETWEEN ?1 AND ?2";
        let span = [signed(from / SECOND), signed(to.saturating_sub(1) / SECOND)];
        let rows = self.rows(sql, span, |row| {
            let sums = Sums {
                at_ns: unsigned(row, 0)? * SECOND,
                op: row.get(1)?,
                calls: unsigned(row, 2)?,
                total_ns: unsigned(row, 3)?,
                max_ns: unsigned(row, 4)?,
                bytes: unsigned(row, 5)?,
            };
            Ok((row.get::<_, u32>(6)?, sums))
        })?;
        rows.into_iter().filter(|(pid, _)| pids.is_empty() || pids.contains(pid)).for_each(|(_, sums)| add(sums));
        Ok(())
    }

    fn sum_calls(&self, buckets: &mut [Bucket], ops: &Ops, pids: &[u32], index: Option<&TimeIndex>) -> Result<()> {
        let contexts = self.outer_contexts()?;
        let slots = index.map(|index| &index.calls);
        for bucket in buckets {
            let piece = (bucket.from_ns, Some(bucket.to_ns));
            for (context, raw) in self.sum_contexts(("call_", "arg0"), piece, slots, &Limits::default())? {
                let Some(context) = contexts.get(&context).filter(|x| pids.is_empty() || pids.contains(&x.pid)) else {
                    continue;
                };
                let bytes = if context.has_bytes { raw.arg0 } else { 0 };
                let (calls, total_ns, max_ns) = (raw.calls, raw.total_ns, raw.max_ns);
                bucket.add(&Sums { at_ns: bucket.from_ns, op: context.op, calls, total_ns, max_ns, bytes }, ops);
            }
        }
        Ok(())
    }

    fn outer_contexts(&self) -> Result<HashMap<i64, Context>> {
        let sql = "SELECT x.id, x.op, x.pid, x.tid, x.stack, o.arg0_is_bytes FROM context_ AS x CROSS JOIN op_ AS o ON o.id = x.op
            WHERE x.flags & 1 = 0 AND o.layer <> 'kernel'";
        let rows = self.rows(sql, [], |row| {
            let stack = row.get::<_, Option<i64>>(4)?.map(i64::cast_unsigned);
            let (op, pid, tid, has_bytes) = (row.get(1)?, row.get(2)?, row.get(3)?, row.get(5)?);
            Ok((row.get(0)?, Context { op, pid, tid, stack, has_bytes }))
        })?;
        Ok(rows.into_iter().collect())
    }

    fn add_busy(&self, buckets: &mut [Bucket], from: u64, width: u64) -> Result<()> {
        let (Some(first), Some(last)) = (buckets.first(), buckets.last()) else { return Ok(()) };
        let span = [signed(first.from_ns), signed(last.to_ns)];
        let samples = self.rows("SELECT at, percent FROM gpu_busy_ WHERE at BETWEEN ?1 AND ?2", span, |row| {
            Ok((unsigned(row, 0)?, row.get::<_, f64>(1)?))
        })?;
        let mut sums: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
        for (at, percent) in samples {
            let sum = sums.entry(at.saturating_sub(from) / width).or_default();
            *sum = (sum.0 + percent, sum.1 + 1.0);
        }
        for (place, (sum, samples)) in sums {
            if let Some(bucket) = usize::try_from(place).ok().and_then(|place| buckets.get_mut(place)) {
                bucket.gpu_busy_percent = Some(sum / samples);
            }
        }
        Ok(())
    }

    /// The longest calls in a time range, and times off the CPU of threads that launch work, longest first. If no
    /// thread launches, of all threads.
    pub fn longest(
        &self,
        (from_ns, to_ns): (u64, u64),
        pids: &[u32],
        most: usize,
        index: Option<&TimeIndex>,
    ) -> Result<Vec<LongEvent>> {
        let wanted = |pid: u32| pids.is_empty() || pids.contains(&pid);
        let (mut contexts, ops) = (self.outer_contexts()?, self.ops()?);
        contexts.retain(|_, context| wanted(context.pid));
        let class = |op: i64| ops.get(&op).map_or("", |(_, class)| class);
        let launchers: HashSet<u32> = contexts.values().filter(|x| class(x.op) == "launch").map(|x| x.tid).collect();
        let calls: HashMap<i64, LongEvent> =
            contexts.iter().map(|(id, x)| (*id, x.event(ops.get(&x.op).map_or("", |(name, _)| name)))).collect();
        let sql = "SELECT id, pid, tid, stack, reason, wait FROM off_context_";
        let mut offs: HashMap<i64, LongEvent> = self.rows(sql, [], off_context)?.into_iter().collect();
        offs.retain(|_, off| wanted(off.pid) && (launchers.is_empty() || launchers.contains(&off.tid)));
        let mut list = Longest { events: Vec::new(), most, from_ns };
        let tables = [("call_", calls, index.map(|index| &index.calls)), ("off_", offs, index.map(|index| &index.off))];
        for (table, known, slots) in tables {
            let (pieces, least) = match slots {
                Some(slots) => slots.longest(from_ns, to_ns, most, |context| known.contains_key(&context)),
                None => (vec![(from_ns.saturating_sub(LOOK_BACK), Some(to_ns))], 0),
            };
            for piece in pieces {
                self.each_context(table, "NULL", piece, &Limits::default(), |start, context, raw| {
                    if raw.max_ns >= least && start < to_ns {
                        list.offer(start, raw.max_ns, || known.get(&context).cloned());
                    }
                    true
                })?;
            }
        }
        Ok(list.events)
    }
}

impl Bucket {
    fn add(&mut self, sums: &Sums, ops: &Ops) {
        let Some((name, class)) = ops.get(&sums.op) else { return };
        self.calls += sums.calls;
        self.cuda_ns = self.cuda_ns.saturating_add(sums.total_ns);
        match class.as_str() {
            "launch" => self.launches += sums.calls,
            "sync" => self.wait_ns = self.wait_ns.saturating_add(sums.total_ns),
            "copy" | "fill" => self.moved_bytes = self.moved_bytes.saturating_add(sums.bytes),
            _ => {}
        }
        if self.longest.as_ref().is_none_or(|(_, longest)| sums.max_ns > *longest) {
            self.longest = Some((name.clone(), sums.max_ns));
        }
    }
}

/// Properties that calls share.
struct Context {
    op: i64,
    pid: u32,
    tid: u32,
    stack: Option<u64>,
    has_bytes: bool,
}

impl Context {
    fn event(&self, op: &str) -> LongEvent {
        let (pid, tid, stack) = (self.pid, self.tid, self.stack);
        LongEvent { start_ns: 0, duration_ns: 0, pid, tid, op: op.to_owned(), why: None, stack }
    }
}

fn off_context(row: &Row<'_>) -> rusqlite::Result<(i64, LongEvent)> {
    let (reason, wait): (String, Option<String>) = (row.get(4)?, row.get(5)?);
    let why = wait.map_or(reason.clone(), |wait| format!("{reason}, {wait}"));
    let stack = row.get::<_, Option<i64>>(3)?.map(i64::cast_unsigned);
    let (pid, tid) = (row.get(1)?, row.get(2)?);
    let event = LongEvent { start_ns: 0, duration_ns: 0, pid, tid, op: "off_cpu".to_owned(), why: Some(why), stack };
    Ok((row.get(0)?, event))
}

/// The longest of those offered that end after `from_ns`.
struct Longest {
    events: Vec<LongEvent>,
    most: usize,
    from_ns: u64,
}

impl Longest {
    fn offer(&mut self, start_ns: u64, duration_ns: u64, event: impl FnOnce() -> Option<LongEvent>) {
        let too_short =
            self.events.len() >= self.most && self.events.last().is_none_or(|last| duration_ns <= last.duration_ns);
        if too_short || start_ns.saturating_add(duration_ns) < self.from_ns {
            return;
        }
        if let Some(event) = event() {
            let place = self.events.partition_point(|known| known.duration_ns >= duration_ns);
            self.events.insert(place, LongEvent { start_ns, duration_ns, ..event });
            self.events.truncate(self.most);
        }
    }
}

pub(crate) fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}
