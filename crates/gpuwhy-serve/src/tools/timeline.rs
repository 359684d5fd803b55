// SPDX-License-Identifier: Apache-2.0
//! `get_timeline`: the run in time buckets, and what happened around a given time.

use super::Asked;
use super::page::Answer;
use super::place::{RunHead, Time, Where};
use crate::error::ToolError;
use crate::runs::Lent;
use crate::text::{NOTICE, clean};
use gpuwhy_ask::Asked as Found;
use gpuwhy_store::{Bucket, CpuHolder, Cut, LongEvent, ProcessEvent, Waits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Default number of buckets.
const USUAL: u32 = 10;
/// Maximum number of buckets.
const MOST: u32 = 200;
/// Default window around `at`.
const WINDOW: Duration = Duration::from_secs(1);
/// Maximum number of longest events.
const LONGEST: usize = 6;
/// Maximum CPU holders, and maximum processes that started or ended.
const HOLDERS: usize = 5;
const PROCESSES: usize = 8;
/// A range up to this length gets the details of `at`, ns.
const NEAR: u64 = 5_000_000_000;

/// The arguments.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Arguments {
    #[serde(flatten)]
    place: Where,
    /// How many buckets (default 10, at most 200)
    #[serde(default)]
    buckets: Option<u32>,
    /// Instead of buckets: how long each is, such as "250ms"; at most 200 buckets
    #[serde(default)]
    bucket: Option<Time>,
    /// Look around this time of the run instead
    #[serde(default)]
    at: Option<Time>,
    /// With at: how much time around it (default 1s)
    #[serde(default)]
    window: Option<Time>,
}

/// The answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Timeline {
    #[serde(flatten)]
    head: RunHead,
    /// Start of the first bucket, from the start of the run
    from_ns: u64,
    /// Length of a bucket
    bucket_ns: u64,
    /// In order; the last may be shorter. A call counts in the bucket where it started; in buckets of whole seconds,
    /// where it ended
    buckets: Vec<Piece>,
    /// The longest calls and waits (only with at, or for a range of at most 5 s)
    longest: Vec<Long>,
    /// Who had a CPU while traced threads were ready for one, longest first (whenever longest is given)
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(default)]
    cpu_held_by: Option<Vec<Holder>>,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    more_holders: usize,
    /// Processes that started, exec'ed or ended
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(default)]
    processes: Option<Vec<Change>>,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    more_processes: usize,
    /// Buckets left out for brevity: ask for a shorter time range, or give buckets
    left_out: usize,
    note: &'static str,
}

/// A bucket.
#[derive(Debug, Serialize, JsonSchema)]
struct Piece {
    launches: u64,
    calls: u64,
    /// Time in calls that wait for the GPU, summed over threads
    wait_ns: u64,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    moved_bytes: u64,
    /// The longest call
    longest: Option<String>,
    /// GPU utilization, from the driver's own samples
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(default)]
    gpu_busy_percent: Option<f64>,
    /// Time traced threads were ready to run without a CPU, summed over threads
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    ready_ns: u64,
    /// The same, for threads that launch GPU work
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    launcher_ready_ns: u64,
    /// Time threads that launch GPU work were blocked, asleep or throttled
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    launcher_blocked_ns: u64,
}

/// Who had a CPU while traced threads were ready for one.
#[derive(Debug, Serialize, JsonSchema)]
struct Holder {
    pid: u32,
    name: String,
    held_ns: u64,
}

/// A process that started, exec'ed or ended.
#[derive(Debug, Serialize, JsonSchema)]
struct Change {
    /// From the start of the run
    at_ns: u64,
    /// fork, exec or exit
    what: String,
    /// The process; for a fork, the new one
    pid: u32,
    name: Option<String>,
    /// For a fork: the parent
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(default)]
    parent: Option<u32>,
    /// For an exit: its code, and the signal that ended the process
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(default)]
    exit_code: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(default)]
    signal: Option<i64>,
}

/// A call, or a time off the CPU.
#[derive(Debug, Serialize, JsonSchema)]
struct Long {
    /// From the start of the run
    start_ns: u64,
    duration_ns: u64,
    pid: u32,
    tid: u32,
    /// The op, or off_cpu with the reason
    what: String,
    line: Option<String>,
}

impl Answer for Timeline {
    fn shorten(&mut self) -> bool {
        if self.longest.len() > 3 {
            return self.longest.pop().is_some();
        }
        let mut shorter = |keep: usize| {
            let processes = self.processes.as_mut().filter(|list| list.len() > keep);
            if processes.is_some_and(|list| list.pop().is_some()) {
                self.more_processes += 1;
                return true;
            }
            let holders = self.cpu_held_by.as_mut().filter(|list| list.len() > keep);
            let popped = holders.is_some_and(|list| list.pop().is_some());
            self.more_holders += usize::from(popped);
            popped
        };
        if shorter(3) {
            return true;
        }
        if self.buckets.len() > 4 {
            self.left_out += 1;
            return self.buckets.pop().is_some();
        }
        if self.longest.len() > 1 {
            return self.longest.pop().is_some();
        }
        if shorter(1) {
            return true;
        }
        if self.buckets.len() > 1 {
            self.left_out += 1;
            return self.buckets.pop().is_some();
        }
        false
    }
}

pub(crate) fn answer(asked: &Asked<'_>, arguments: Arguments) -> Result<Timeline, ToolError> {
    let run = asked.runs.get(arguments.place.run.as_deref())?;
    let session = run.session(asked.work)?;
    let mut part = arguments.place.part()?;
    if let Some(at) = arguments.at {
        let half = arguments.window.map_or(WINDOW, |window| window.0) / 2;
        part.since = None;
        part.from = Some(at.0.saturating_sub(half));
        part.to = Some(at.0.saturating_add(half));
    }
    let (from, to) = part.span(session.duration_ns)?;
    let cut = cut(&arguments, to - from)?;
    let near = arguments.at.is_some() || to - from <= NEAR;
    // The time index is worth building if buckets are not whole seconds.
    let index = if near || matches!(cut, Cut::Every(_)) { run.index(asked.work)? } else { None };
    let reader = run.reader(asked.work)?;
    // The whole job of the requested process.
    let pids = if part.pids.is_empty() { Vec::new() } else { Found::find(&reader, &part)?.pids() };
    let buckets = reader.buckets((from, to), cut, &pids, index.as_deref())?;
    let waits = reader.waits(&buckets, &pids, index.as_deref())?;
    let longest = if near { reader.longest((from, to), &pids, LONGEST, index.as_deref())? } else { Vec::new() };
    let holders = if near { Some(reader.cpu_holders((from, to), &pids)?) } else { None };
    let changes = if near { Some(reader.process_events((from, to), &pids)?) } else { None };
    let more = |total: Option<usize>, most: usize| total.map_or(0, |total| total.saturating_sub(most));
    Ok(Timeline {
        head: RunHead::of(&run, &session),
        from_ns: buckets.first().map_or(from, |first| first.from_ns),
        bucket_ns: buckets.first().map_or(0, |first| first.to_ns - first.from_ns),
        buckets: buckets.iter().zip(&waits).map(|(bucket, waits)| piece(bucket, *waits)).collect(),
        longest: with_lines(&reader, longest)?,
        more_holders: more(holders.as_ref().map(Vec::len), HOLDERS),
        cpu_held_by: holders.map(|list| list.into_iter().take(HOLDERS).map(holder).collect()),
        more_processes: more(changes.as_ref().map(Vec::len), PROCESSES),
        processes: changes.map(|list| list.into_iter().take(PROCESSES).map(change).collect()),
        left_out: 0,
        note: NOTICE,
    })
}

/// How to cut the range: as requested, up to the maximum number of buckets.
fn cut(arguments: &Arguments, length_ns: u64) -> Result<Cut, ToolError> {
    let Some(bucket) = arguments.bucket else {
        return Ok(match arguments.buckets.map(|buckets| u64::from(buckets.clamp(1, MOST))) {
            // Exactly this many: whole seconds would give fewer.
            Some(buckets) => Cut::Every(length_ns.div_ceil(buckets)),
            None => Cut::AtMost(USUAL),
        });
    };
    if arguments.buckets.is_some() {
        return Err(ToolError::Arguments("give buckets (how many) or bucket (how long each is), not both".into()));
    }
    let width = u64::try_from(bucket.0.as_nanos()).unwrap_or(u64::MAX);
    if width == 0 || length_ns.div_ceil(width) > u64::from(MOST) {
        let least = gpuwhy_model::units::time(length_ns.div_ceil(u64::from(MOST)));
        return Err(ToolError::Arguments(format!(
            "invalid bucket: more than {MOST} buckets; give a bucket of at least {least}, or a shorter time range (from, to, since, at)"
        )));
    }
    Ok(Cut::Every(width))
}

fn piece(bucket: &Bucket, waits: Waits) -> Piece {
    let longest = bucket.longest.as_ref().filter(|(_, ns)| *ns > 0);
    Piece {
        launches: bucket.launches,
        calls: bucket.calls,
        wait_ns: bucket.wait_ns,
        moved_bytes: bucket.moved_bytes,
        longest: longest.map(|(op, ns)| clean(&format!("{op} {}", gpuwhy_model::units::time(*ns)), 80)),
        gpu_busy_percent: bucket.gpu_busy_percent.map(|percent| (percent * 10.0).round() / 10.0),
        ready_ns: waits.ready_ns,
        launcher_ready_ns: waits.launcher_ready_ns,
        launcher_blocked_ns: waits.launcher_blocked_ns,
    }
}

fn holder(holder: CpuHolder) -> Holder {
    Holder { pid: holder.pid, name: clean(&holder.name, 40), held_ns: holder.held_ns }
}

fn change(event: ProcessEvent) -> Change {
    let (fork, exit) = (event.what == "process_fork", event.what == "process_exit");
    let child = event.arg0.filter(|_| fork).and_then(|child| u32::try_from(child).ok());
    Change {
        at_ns: event.at_ns,
        what: clean(event.what.strip_prefix("process_").unwrap_or(&event.what), 20),
        pid: child.unwrap_or(event.pid),
        name: event.name.as_deref().map(|name| clean(name, 40)),
        parent: child.map(|_| event.pid),
        exit_code: event.arg0.filter(|_| exit),
        signal: event.arg1.filter(|signal| exit && *signal != 0),
    }
}

fn with_lines(reader: &Lent<'_>, events: Vec<LongEvent>) -> Result<Vec<Long>, ToolError> {
    let stacks: Vec<u64> = events.iter().filter_map(|event| event.stack).collect();
    let texts = reader.stack_text(&stacks)?;
    let long = |event: LongEvent| Long {
        start_ns: event.start_ns,
        duration_ns: event.duration_ns,
        pid: event.pid,
        tid: event.tid,
        what: clean(&event.why.map_or(event.op.clone(), |why| format!("{}: {why}", event.op)), 80),
        line: event.stack.and_then(|stack| texts.get(&stack)?.top_line.as_deref()).map(|line| clean(line, 120)),
    };
    Ok(events.into_iter().map(long).collect())
}
