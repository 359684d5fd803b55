// SPDX-License-Identifier: Apache-2.0
//! Which lines made the calls: events summed by stack, line, function or library.
//!
//! [`read`] sums events by stack and process. [`grouping`] combines those sums by the requested key, without SQL or
//! files.

mod grouping;
mod library;
mod ops;
mod read;
mod trace;

use crate::{Error, Limits, Reader, TimeIndex};
use std::collections::BTreeMap;

pub use trace::StackTrace;

/// What to sum, and how to group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StackQuestion {
    /// Short name or exact function, in any case; `None` for all CUDA calls.
    pub op: Option<String>,
    /// Only these processes; empty for all.
    pub pids: Vec<u32>,
    /// The grouping key.
    pub by: StackKey,
    /// Which group comes first.
    pub sort: StackSort,
    /// Time range; an event belongs to the time it started.
    pub span: Span,
    /// How long SQLite may work on it.
    pub limits: Limits,
}

/// The key shared by the events of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StackKey {
    /// The whole stack, and the process.
    #[default]
    Stack,
    /// The innermost line of your code; without one, of a package.
    Line,
    /// The function that line is in.
    Function,
    /// The package that was at work.
    Library,
}

/// The figure groups are sorted by, largest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StackSort {
    /// Total time.
    #[default]
    Total,
    /// How many.
    Calls,
    /// The longest.
    Max,
    /// Bytes.
    Bytes,
}

/// A time range, nanoseconds from the start of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Span {
    /// The whole run.
    #[default]
    All,
    /// From the first on, up to but not including the second.
    Between(u64, Option<u64>),
    /// The last so many nanoseconds.
    Last(u64),
}

/// The unit of the events in the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StackUnit {
    /// A CUDA call.
    Call,
    /// A sample of a running thread; its duration is the CPU time it represents.
    Sample,
    /// A time off the CPU.
    OffCpu,
    /// Another kernel event.
    Event,
}

/// Sums over events. A row that represents several counts as several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StackSums {
    /// How many.
    pub calls: u64,
    /// Their time.
    pub total_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Their bytes.
    pub bytes: u64,
    /// If all CUDA calls were requested: the sums of each op.
    pub ops: BTreeMap<String, PartSums>,
    /// Of times off the CPU: why, and what for.
    pub waits: BTreeMap<(String, Option<String>), PartSums>,
}

/// Events of one op, or times off the CPU of one reason and wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartSums {
    /// How many.
    pub times: u64,
    /// Their time.
    pub total_ns: u64,
}

/// Which group it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GroupKey {
    /// A stack in a process.
    Stack {
        /// Row of `stack_traces`.
        stack_id: i64,
        /// The process.
        pid: u32,
    },
    /// A line: file, line and function.
    Line(String, Option<u32>, String),
    /// A function: its file and name.
    Function(String, String),
    /// A package, `your code` or `python`.
    Library(String),
    /// Events that have a stack of which no frame is known.
    Unknown,
    /// Events without a stack.
    NoStack,
}

/// Events that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackGroup {
    /// Which they are.
    pub key: GroupKey,
    /// Their sums.
    pub sums: StackSums,
    /// Their processes with names, the one with most time first.
    pub processes: Vec<(u32, String)>,
    /// How many different stacks they have.
    pub stacks: usize,
    /// For a stack or line: the innermost line of your code; without one, of a package; otherwise the innermost line.
    pub top_line: Option<String>,
    /// For a stack, its frames, innermost first; for a line or function, that frame.
    pub frames: Vec<StackFrame>,
}

impl StackGroup {
    /// The line, function or library it is of; of a stack its innermost line.
    pub fn name(&self) -> Option<String> {
        match &self.key {
            GroupKey::Stack { .. } | GroupKey::Line(..) => self.top_line.clone(),
            GroupKey::Function(file, function) => Some(format!("{file} {function}")),
            GroupKey::Library(name) => Some(name.clone()),
            GroupKey::Unknown | GroupKey::NoStack => None,
        }
    }
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackFrame {
    /// The source file, with its whole path as Python has it.
    pub file: String,
    /// The executing line, where known; `None` in a group of a whole function.
    pub line: Option<u32>,
    /// The function.
    pub function: String,
    /// Whether it is your code.
    pub yours: bool,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackAnswer {
    /// The op as the file has it; `None` for all CUDA calls.
    pub op: Option<String>,
    /// What is counted.
    pub unit: StackUnit,
    /// The time range; `None` for an open end.
    pub span: (Option<u64>, Option<u64>),
    /// All requested events, with and without a stack.
    pub all: StackSums,
    /// Events without a stack.
    pub without_stack: Option<StackGroup>,
    /// Events with a stack.
    pub groups: Vec<StackGroup>,
    /// Whether the file has any stack, of whatever.
    pub file_has_stacks: bool,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// No op has that name.
    #[error("unknown op {op:?}{}", did_you_mean(.near))]
    UnknownOp {
        /// The requested op.
        op: String,
        /// Names of ops the file has events of, the nearest first.
        near: Vec<String>,
    },
    /// A wake-up event comes from the waking thread and has no stack.
    #[error("sched_wakeup has no stacks: use sched_switch, the wait that it ended")]
    Wakeup,
    /// The file.
    #[error(transparent)]
    File(#[from] Error),
}

fn did_you_mean(near: &[String]) -> String {
    match near {
        [] => "; this run has no events".into(),
        [one] => format!("; this run has {one}"),
        [first @ .., last] => format!("; this run has {} and {last}", first.join(", ")),
    }
}

impl Reader {
    /// Sums events by what called them.
    pub fn stacks(&self, question: &StackQuestion) -> Result<StackAnswer, StackError> {
        self.stacks_indexed(question, None)
    }

    /// The same, from sums made before where there are any ([`Reader::time_index`] of this very run).
    pub fn stacks_indexed(
        &self,
        question: &StackQuestion,
        index: Option<&TimeIndex>,
    ) -> Result<StackAnswer, StackError> {
        let wanted = question.op.as_deref().map(|op| self.find_op(op, &question.limits)).transpose()?;
        let span = self.bounds(question.span)?;
        let cells = match &wanted {
            Some(op) if op.is_switch() => self.off_cpu_by_stack(span, question, index)?,
            op => self.calls_by_stack(span, op.as_ref(), question, index)?,
        };
        let texts = self.stack_texts(&cells, &question.limits)?;
        let names = self.processes()?.into_iter().map(|process| (process.pid, process.name)).collect();
        let mut groups = grouping::fold(&cells, &texts, &names, question.by);
        grouping::sort(&mut groups, question.sort);
        let without = groups.iter().position(|group| group.key == GroupKey::NoStack);
        let mut all = StackSums::default();
        cells.values().for_each(|sums| all.merge(sums));
        Ok(StackAnswer {
            unit: wanted.as_ref().map_or(StackUnit::Call, |op| op.unit()),
            op: wanted.map(|op| op.asked),
            span,
            all,
            without_stack: without.map(|at| groups.remove(at)),
            groups,
            file_has_stacks: self.has_stacks(&question.limits)?,
        })
    }

    fn bounds(&self, span: Span) -> Result<(Option<u64>, Option<u64>), Error> {
        Ok(match span {
            Span::All => (None, None),
            Span::Between(from, to) => (Some(from), to),
            Span::Last(ns) => (Some(self.session()?.duration_ns.saturating_sub(ns)), None),
        })
    }
}
