// SPDX-License-Identifier: Apache-2.0
//! Events summed by stack and process, straight from the base tables.
//!
//! Every event of the time range is looked at once, in the order of the file, and summed by its context. SQLite's
//! own GROUP BY would sort millions of rows first. Contexts and stacks are read afterwards: they are never removed
//! and are committed with the events, so those of every event seen are there, even while the file is written.

use super::ops::WantedOp;
use super::{PartSums, StackQuestion, StackSums};
use crate::hash::FastMap;
use crate::index::{Raw, TimeIndex};
use crate::{Limits, Reader, Result, Value};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Sums by stack (if there is one) and process.
pub(super) type Cells = BTreeMap<(Option<i64>, u32), StackSums>;

/// The frames of stacks.
pub(super) type Texts = FastMap<i64, String>;

/// The allocator's reports with the columns that calls have.
const TENSORS: &str = "(SELECT start, 0 AS duration, context, NULL AS weight, bytes FROM tensor_)";

/// The sums of one context.
fn sums_of(raw: Raw, has_bytes: bool) -> StackSums {
    StackSums {
        calls: raw.calls,
        total_ns: raw.total_ns,
        max_ns: raw.max_ns,
        bytes: if has_bytes { raw.arg0 } else { 0 },
        ops: BTreeMap::new(),
        waits: BTreeMap::new(),
    }
}

fn part_of(raw: Raw) -> PartSums {
    PartSums { times: raw.calls, total_ns: raw.total_ns }
}

impl StackSums {
    pub(super) fn merge(&mut self, other: &Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.bytes = self.bytes.saturating_add(other.bytes);
        merge_parts(&mut self.ops, &other.ops);
        merge_parts(&mut self.waits, &other.waits);
    }
}

fn merge_parts<K: Clone + Ord>(parts: &mut BTreeMap<K, PartSums>, others: &BTreeMap<K, PartSums>) {
    for (key, sums) in others {
        let known = parts.entry(key.clone()).or_default();
        known.times = known.times.saturating_add(sums.times);
        known.total_ns = known.total_ns.saturating_add(sums.total_ns);
    }
}

impl Reader {
    /// The program's calls of an op, reports of PyTorch's allocator among them, or calls of all CUDA ops.
    pub(super) fn calls_by_stack(
        &self,
        span: (Option<u64>, Option<u64>),
        op: Option<&WantedOp>,
        question: &StackQuestion,
        index: Option<&TimeIndex>,
    ) -> Result<Cells> {
        let part = (span.0.unwrap_or(0), span.1);
        let tensors = op.is_some_and(WantedOp::is_tensor);
        let sums = match tensors {
            true => self.sum_contexts((TENSORS, "bytes"), part, None, &question.limits)?,
            false => self.sum_contexts(("call_", "arg0"), part, index.map(|index| &index.calls), &question.limits)?,
        };
        let mut cells = Cells::new();
        let sql = "SELECT x.id, x.pid, x.stack, x.op, o.arg0_is_bytes, o.layer, o.name
            FROM context_ AS x CROSS JOIN op_ AS o ON o.id = x.op WHERE x.flags & 1 = 0";
        self.query(sql, &question.limits, |_, row| {
            let wanted = match op {
                Some(op) => number(row.get(3)).is_some_and(|id| op.ids.contains(&id)),
                None => text(row.get(5)) != Some("kernel"),
            };
            let raw = number(row.first()).and_then(|id| sums.get(&id)).filter(|_| wanted);
            if let (Some(raw), Some(pid)) = (raw, asked_pid(row.get(1), &question.pids)) {
                let mut sums = sums_of(*raw, tensors || number(row.get(4)) == Some(1));
                if let (None, Some(name)) = (op, text(row.get(6))) {
                    sums.ops.insert(name.to_owned(), part_of(*raw));
                }
                cells.entry((number(row.get(2)), pid)).or_default().merge(&sums);
            }
            ControlFlow::Continue(())
        })?;
        Ok(cells)
    }

    /// Times off the CPU.
    pub(super) fn off_cpu_by_stack(
        &self,
        span: (Option<u64>, Option<u64>),
        question: &StackQuestion,
        index: Option<&TimeIndex>,
    ) -> Result<Cells> {
        let index = index.map(|index| &index.off);
        let sums = self.sum_contexts(("off_", "NULL"), (span.0.unwrap_or(0), span.1), index, &question.limits)?;
        let mut cells = Cells::new();
        let sql = "SELECT id, pid, stack, reason, wait FROM off_context_";
        self.query(sql, &question.limits, |_, row| {
            let raw = number(row.first()).and_then(|id| sums.get(&id));
            if let (Some(raw), Some(pid)) = (raw, asked_pid(row.get(1), &question.pids)) {
                let mut sums = sums_of(*raw, false);
                let why = (text(row.get(3)).unwrap_or("unknown").to_owned(), text(row.get(4)).map(str::to_owned));
                sums.waits.insert(why, part_of(*raw));
                cells.entry((number(row.get(2)), pid)).or_default().merge(&sums);
            }
            ControlFlow::Continue(())
        })?;
        Ok(cells)
    }

    /// The frames of the stacks in `cells`.
    pub(super) fn stack_texts(&self, cells: &Cells, limits: &Limits) -> Result<Texts> {
        let mut texts: Texts = cells.keys().filter_map(|(stack, _)| Some(((*stack)?, String::new()))).collect();
        self.query("SELECT id, frames FROM stack_", limits, |_, row| {
            if let Some(wanted) = number(row.first()).and_then(|id| texts.get_mut(&id)) {
                wanted.push_str(text(row.get(1)).unwrap_or_default());
            }
            ControlFlow::Continue(())
        })?;
        Ok(texts)
    }

    pub(super) fn has_stacks(&self, limits: &Limits) -> Result<bool> {
        let mut any = false;
        self.query("SELECT EXISTS (SELECT 1 FROM stack_)", limits, |_, row| {
            any = number(row.first()) == Some(1);
            ControlFlow::Continue(())
        })?;
        Ok(any)
    }
}

fn asked_pid(value: Option<&Value<'_>>, pids: &[u32]) -> Option<u32> {
    let pid = number(value).and_then(|pid| u32::try_from(pid).ok())?;
    (pids.is_empty() || pids.contains(&pid)).then_some(pid)
}

pub(super) fn number(value: Option<&Value<'_>>) -> Option<i64> {
    match value {
        Some(Value::Int(n)) => Some(*n),
        _ => None,
    }
}

pub(super) fn text<'a>(value: Option<&'a Value<'_>>) -> Option<&'a str> {
    match value {
        Some(Value::Text(text)) => Some(text.as_ref()),
        _ => None,
    }
}
