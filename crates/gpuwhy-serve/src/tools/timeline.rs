// SPDX-License-Identifier: Apache-2.0
//! `get_timeline`: the run piece by piece, and what happened around a moment.

use super::Asked;
use super::page::Answer;
use super::place::{RunHead, Time, Where};
use crate::error::ToolError;
use crate::runs::Lent;
use crate::text::{NOTICE, clean};
use gpuwhy_ask::Asked as Found;
use gpuwhy_store::{Bucket, LongEvent};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Pieces where no number is asked for.
const USUAL: u32 = 10;
/// Pieces at most.
const MOST: u32 = 200;
/// Around a moment, where no window is asked for.
const WINDOW: Duration = Duration::from_secs(1);
/// The longest events told of.
const LONGEST: usize = 6;

/// The arguments.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Arguments {
    #[serde(flatten)]
    place: Where,
    /// How many pieces (default 10, at most 200). Parts over 5 s are cut at whole seconds
    #[serde(default)]
    buckets: Option<u32>,
    /// Look around this moment of the run instead
    #[serde(default)]
    at: Option<Time>,
    /// With at: how long a time around it (default 1s)
    #[serde(default)]
    window: Option<Time>,
}

/// The answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Timeline {
    #[serde(flatten)]
    head: RunHead,
    /// Where it begins, since the run began
    from_ns: u64,
    /// How long a piece is
    bucket_ns: u64,
    /// The pieces in order; the last may be shorter. A call counts where it ended, in pieces below a second where it began
    buckets: Vec<Piece>,
    /// The longest calls and waits in it (only where a moment is asked about, or at most 5 s)
    longest: Vec<Long>,
    /// Pieces left out for brevity: ask for a shorter time, or give buckets
    left_out: usize,
    note: &'static str,
}

/// A piece.
#[derive(Debug, Serialize, JsonSchema)]
struct Piece {
    launches: u64,
    calls: u64,
    /// Time in calls that wait for the GPU, all threads together
    wait_ns: u64,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    moved_bytes: u64,
    /// The longest call
    longest: Option<String>,
    /// How busy the GPU was, by the driver's own samples
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(default)]
    gpu_busy_percent: Option<f64>,
}

/// A call, or a time off the CPU.
#[derive(Debug, Serialize, JsonSchema)]
struct Long {
    /// Since the run began
    start_ns: u64,
    duration_ns: u64,
    pid: u32,
    tid: u32,
    /// The op, or off_cpu and why
    what: String,
    line: Option<String>,
}

impl Answer for Timeline {
    fn shorten(&mut self) -> bool {
        if self.longest.len() > 3 {
            return self.longest.pop().is_some();
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
    let most = arguments.buckets.unwrap_or(USUAL).clamp(1, MOST);
    let near = arguments.at.is_some() || to - from <= 5_000_000_000;
    let index = if near { run.index(asked.work)? } else { None };
    let reader = run.reader(asked.work)?;
    // Of the whole job of a process that was asked for.
    let pids = if part.pids.is_empty() { Vec::new() } else { Found::find(&reader, &part)?.pids() };
    let buckets = reader.buckets(from, to, most, &pids, index.as_deref())?;
    let longest = if near { reader.longest((from, to), &pids, LONGEST, index.as_deref())? } else { Vec::new() };
    Ok(Timeline {
        head: RunHead::new(&run.path, &session),
        from_ns: buckets.first().map_or(from, |first| first.from_ns),
        bucket_ns: buckets.first().map_or(0, |first| first.to_ns - first.from_ns),
        buckets: buckets.iter().map(piece).collect(),
        longest: with_lines(&reader, longest)?,
        left_out: 0,
        note: NOTICE,
    })
}

fn piece(bucket: &Bucket) -> Piece {
    let longest = bucket.longest.as_ref().filter(|(_, ns)| *ns > 0);
    Piece {
        launches: bucket.launches,
        calls: bucket.calls,
        wait_ns: bucket.wait_ns,
        moved_bytes: bucket.moved_bytes,
        longest: longest.map(|(op, ns)| clean(&format!("{op} {}", gpuwhy_model::units::time(*ns)), 80)),
        gpu_busy_percent: bucket.gpu_busy_percent.map(|percent| (percent * 10.0).round() / 10.0),
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
