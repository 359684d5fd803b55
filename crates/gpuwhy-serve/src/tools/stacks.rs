// SPDX-License-Identifier: Apache-2.0
//! `get_stacks`: which lines made the calls, waited or used the CPU.

use super::Asked;
use super::page::{Answer, Page, Paging, pop};
use super::place::{RunHead, Where};
use crate::error::ToolError;
use crate::text::{NOTICE, clean};
use gpuwhy_store::{
    GroupKey, Limits, StackFrame, StackGroup, StackKey, StackQuestion, StackSort, StackSums, StackUnit,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Frames per stack.
const FRAMES: usize = 6;
/// Kinds of calls or waits per group.
const PARTS: usize = 3;

/// The arguments.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Arguments {
    #[serde(flatten)]
    place: Where,
    /// Only this op, such as cudaMalloc (default: all CUDA calls)
    #[serde(default)]
    op: Option<String>,
    /// How to group (default: line)
    #[serde(default)]
    by: By,
    /// Sort by this figure, largest first (default: total time)
    #[serde(default)]
    sort: Sort,
    #[serde(flatten)]
    paging: Paging,
}

/// The grouping key.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum By {
    #[default]
    Line,
    Stack,
    Function,
    Library,
}

/// The sort key.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Sort {
    #[default]
    Total,
    Calls,
    Max,
    Bytes,
}

/// The answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Stacks {
    #[serde(flatten)]
    head: RunHead,
    /// The op; null: all CUDA calls
    op: Option<String>,
    /// What is counted: calls, samples (of running threads), off_cpu (waits) or events
    unit: &'static str,
    /// Total, with and without a stack
    calls: u64,
    total_ns: u64,
    /// How many have no known line
    without_stack: u64,
    /// Events of this time that were lost, of any op: they are not counted here
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    lost: u64,
    groups: Vec<Group>,
    #[serde(flatten)]
    page: Page,
    note: &'static str,
}

/// Calls that belong together.
#[derive(Debug, Serialize, JsonSchema)]
struct Group {
    /// The line, innermost line of the stack, function or library; null: unknown
    name: Option<String>,
    calls: u64,
    total_ns: u64,
    max_ns: u64,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    bytes: u64,
    /// Processes, most time first
    pids: Vec<u32>,
    /// Which calls, or what was waited for
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(default)]
    what: Vec<String>,
    /// Frames, innermost first
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(default)]
    frames: Vec<String>,
}

impl Answer for Stacks {
    fn shorten(&mut self) -> bool {
        pop(&mut self.groups)
    }

    fn page(&mut self) -> Option<(&mut Page, usize)> {
        Some((&mut self.page, self.groups.len()))
    }
}

pub(crate) fn answer(asked: &Asked<'_>, arguments: Arguments) -> Result<Stacks, ToolError> {
    let run = asked.runs.get(arguments.place.run.as_deref())?;
    let session = run.session(asked.work)?;
    let part = arguments.place.part()?;
    let question = StackQuestion {
        op: arguments.op.clone(),
        pids: part.pids.clone(),
        by: match arguments.by {
            By::Line => StackKey::Line,
            By::Stack => StackKey::Stack,
            By::Function => StackKey::Function,
            By::Library => StackKey::Library,
        },
        sort: match arguments.sort {
            Sort::Total => StackSort::Total,
            Sort::Calls => StackSort::Calls,
            Sort::Max => StackSort::Max,
            Sort::Bytes => StackSort::Bytes,
        },
        span: part.stack_span(session.duration_ns)?,
        limits: Limits { time: asked.work.left(), ..Limits::default() },
    };
    let index = run.index(asked.work)?;
    let found = run.reader(asked.work)?.stacks_indexed(&question, index.as_deref())?;
    let lost = run.reader(asked.work)?.events_lost(found.span.0.unwrap_or(0), found.span.1)?;
    let (groups, page) = arguments.paging.cut(found.groups, 10, Some(&run))?;
    Ok(Stacks {
        head: RunHead::of(&run, &session),
        op: found.op.map(|op| clean(&op, 60)),
        unit: match found.unit {
            StackUnit::Call => "calls",
            StackUnit::Sample => "samples",
            StackUnit::OffCpu => "off_cpu",
            StackUnit::Event => "events",
        },
        calls: found.all.calls,
        total_ns: found.all.total_ns,
        without_stack: found.without_stack.map_or(0, |group| group.sums.calls),
        lost,
        groups: groups.into_iter().map(group).collect(),
        page,
        note: NOTICE,
    })
}

fn group(group: StackGroup) -> Group {
    let name = group.name();
    let frames = if matches!(group.key, GroupKey::Stack { .. }) { group.frames } else { Vec::new() };
    Group {
        name: name.map(|name| clean(&name, 120)),
        calls: group.sums.calls,
        total_ns: group.sums.total_ns,
        max_ns: group.sums.max_ns,
        bytes: group.sums.bytes,
        pids: group.processes.iter().take(PARTS).map(|(pid, _)| *pid).collect(),
        what: what(&group.sums),
        frames: frames.iter().take(FRAMES).map(frame).collect(),
    }
}

fn frame(frame: &StackFrame) -> String {
    let line = frame.line.map(|line| format!(":{line}")).unwrap_or_default();
    clean(&format!("{}{line} {}", frame.file, frame.function), 120)
}

/// Which calls, or why threads were off the CPU, most time first.
fn what(sums: &StackSums) -> Vec<String> {
    let ops = sums.ops.iter().map(|(op, part)| (op.clone(), part));
    let waits = sums.waits.iter().map(|((reason, wait), part)| {
        let wait = wait.as_deref().map(|wait| format!(", {wait}")).unwrap_or_default();
        (format!("{reason}{wait}"), part)
    });
    let mut parts: Vec<_> = ops.chain(waits).collect();
    parts.sort_by_key(|(_, part)| std::cmp::Reverse((part.total_ns, part.times)));
    let told = |(what, part): (String, &gpuwhy_store::PartSums)| {
        clean(&format!("{what} {}×, {}", part.times, gpuwhy_model::units::time(part.total_ns)), 80)
    };
    parts.into_iter().take(PARTS).map(told).collect()
}
