// SPDX-License-Identifier: Apache-2.0
//! What a thread did at any time.
//!
//! Ops, CUDA calls, Python functions and annotations of one thread nest by time. [`sweep`] walks them once in time
//! order with a stack, and reports where each launch came from and what filled each time range in question.

use super::names::Meaning;
use crate::trace::intern::{FastMap, NameId};
use crate::trace::rows::{CallRow, NO_NAME, OpRow, Span, SpanRow};
use std::cmp::Reverse;
use std::hash::{Hash, Hasher};

/// What kept a thread from launching.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Unknown,
    Annotation,
    Python,
    CpuOp,
    Call,
    Launch,
    Queued,
    Sync,
    Allocator,
    Loading,
    Profiler,
    Dataloader,
}

impl Cause {
    /// As in JSON.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Annotation | Self::Python => "python",
            Self::CpuOp => "cpu_op",
            Self::Call => "cuda_call",
            Self::Launch => "launch_latency",
            Self::Queued => "queued",
            Self::Sync => "sync",
            Self::Allocator => "allocator",
            Self::Loading => "loading",
            Self::Profiler => "profiler",
            Self::Dataloader => "dataloader",
        }
    }

    /// Explains all that happens inside: an op inside the data loader is the data loader's.
    fn covers(self) -> bool {
        matches!(self, Self::Dataloader | Self::Loading | Self::Sync | Self::Allocator)
    }
}

/// A cause with its name and line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) cause: Cause,
    pub(crate) name: NameId,
    pub(crate) line: NameId,
}

impl Label {
    pub(crate) const UNKNOWN: Self = Self { cause: Cause::Unknown, name: NO_NAME, line: NO_NAME };
}

impl Hash for Label {
    /// Hashes all fields at once: labels are looked up for every range of idle time.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64((u64::from(self.name) << 32 | u64::from(self.line)).wrapping_add((self.cause as u64) << 20));
    }
}

/// Where a launch came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) op: NameId,
    pub(crate) module: NameId,
    pub(crate) line: NameId,
    /// Autograd's number of the op, for finding the forward of a backward; `u32::MAX` for none.
    pub(crate) sequence: u32,
    /// Activation checkpointing runs a forward again.
    pub(crate) recompute: bool,
}

impl Origin {
    pub(crate) const NOWHERE: Self =
        Self { op: NO_NAME, module: NO_NAME, line: NO_NAME, sequence: u32::MAX, recompute: false };
}

/// One thread's rows, each list ordered by start, longer first.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ThreadRows<'a> {
    pub(crate) ops: &'a [OpRow],
    pub(crate) calls: &'a [CallRow],
    pub(crate) python: &'a [SpanRow],
    pub(crate) annotations: &'a [SpanRow],
}

/// A time range to be explained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) from: i64,
    pub(crate) to: i64,
    /// The gap it belongs to, passed on to the listener.
    pub(crate) gap: u32,
}

/// Where forward ops were called from, by autograd's number: module and line.
pub(crate) type ForwardOrigins = FastMap<u32, (NameId, NameId)>;

#[derive(Debug, Clone, Copy)]
struct Frame {
    end: i64,
    label: Label,
    origin: Origin,
    /// Innermost line of any code, if none is the user's.
    any_line: NameId,
    backward: bool,
}

const ROOT: Frame =
    Frame { end: i64::MAX, label: Label::UNKNOWN, origin: Origin::NOWHERE, any_line: NO_NAME, backward: false };

impl Frame {
    /// The frame of something inside `self` that ends at `end`.
    fn inside(&self, end: i64) -> Self {
        // Rounding makes inner events end a little after their outer one.
        Self { end: end.min(self.end), ..*self }
    }

    fn line(&self) -> NameId {
        if self.origin.line != NO_NAME { self.origin.line } else { self.any_line }
    }

    fn relabel(&mut self, cause: Cause, name: NameId) {
        if !self.label.cause.covers() {
            self.label = Label { cause, name, line: self.line() };
        }
    }

    fn python(&mut self, name: NameId, meaning: Meaning) {
        if meaning.is(Meaning::MODULE) {
            self.origin.module = name;
        } else if meaning.is(Meaning::USER_LINE) {
            self.origin.line = name;
        } else if meaning.is(Meaning::LINE) {
            self.any_line = name;
        }
        self.origin.recompute |= meaning.is(Meaning::RECOMPUTE);
        let cause = match () {
            () if meaning.is(Meaning::DATALOADER) => Cause::Dataloader,
            () if meaning.is(Meaning::LOADING) => Cause::Loading,
            () => Cause::Python,
        };
        self.relabel(cause, name);
    }

    fn op(&mut self, row: &OpRow, meaning: Meaning) {
        self.origin.op = row.name;
        if row.sequence != u32::MAX {
            self.origin.sequence = row.sequence;
            // A forward op inside the backward: its result was discarded and is recomputed.
            self.origin.recompute |= self.backward && row.forward_thread == 0;
        }
        if meaning.is(Meaning::BACKWARD) {
            self.backward = true;
            self.origin.recompute = false;
        }
        self.origin.recompute |= meaning.is(Meaning::RECOMPUTE);
        let cause = if meaning.is(Meaning::DATALOADER) { Cause::Dataloader } else { Cause::CpuOp };
        if meaning.is(Meaning::STEP) {
            self.annotation(row.name, meaning);
        } else {
            self.relabel(cause, row.name);
        }
    }

    fn call(&mut self, name: NameId, meaning: Meaning) {
        let cause = match () {
            () if meaning.is(Meaning::SYNC) => Cause::Sync,
            () if meaning.is(Meaning::ALLOCATOR) => Cause::Allocator,
            () if meaning.is(Meaning::LOADING) => Cause::Loading,
            () if meaning.is(Meaning::LAUNCH) => Cause::Launch,
            () => Cause::Call,
        };
        self.relabel(cause, name);
    }

    fn annotation(&mut self, name: NameId, meaning: Meaning) {
        if meaning.is(Meaning::DATALOADER) {
            self.relabel(Cause::Dataloader, name);
        } else if meaning.is(Meaning::LOADING) {
            self.relabel(Cause::Loading, name);
        } else if matches!(self.label.cause, Cause::Unknown | Cause::Annotation) {
            // Inside a step but in no op, the thread runs Python. The step's number says nothing about the cause.
            let name = if meaning.is(Meaning::STEP) { self.label.name } else { name };
            self.relabel(Cause::Annotation, name);
        }
    }
}

/// What a sweep finds.
pub(crate) trait Listener {
    /// The `index`th call of the thread was made from `origin`.
    fn call(&mut self, index: usize, origin: Origin);
    /// `ns` of a gap went to `label`; from where to where.
    fn time(&mut self, gap: u32, label: Label, from: i64, to: i64);
}

/// Walks through a thread's rows; `queries` are ordered by start. Forward ops leave their origin in `forward`.
pub(crate) fn sweep(
    rows: ThreadRows<'_>,
    meanings: &[Meaning],
    queries: &[Query],
    forward: &mut ForwardOrigins,
    listener: &mut impl Listener,
) {
    let meaning = |name: NameId| meanings.get(name as usize).copied().unwrap_or_default();
    let mut asked = Asked { queries, first: 0, now: i64::MIN };
    let mut stack = vec![ROOT];
    let mut next = Next { rows, at: [0; 4] };
    while let Some((kind, index)) = next.take() {
        let (start, end) = match kind {
            Kind::Python => bounds(&rows.python[index]),
            Kind::Op => bounds(&rows.ops[index]),
            Kind::Annotation => bounds(&rows.annotations[index]),
            Kind::Call => bounds(&rows.calls[index]),
        };
        unwind(&mut stack, start, &mut asked, listener);
        let mut frame = stack.last().unwrap_or(&ROOT).inside(end);
        match kind {
            Kind::Python => frame.python(rows.python[index].name, meaning(rows.python[index].name)),
            Kind::Annotation => frame.annotation(rows.annotations[index].name, meaning(rows.annotations[index].name)),
            Kind::Op => {
                let op = &rows.ops[index];
                frame.op(op, meaning(op.name));
                if op.forward_thread == 0 && op.sequence != u32::MAX && frame.line() != NO_NAME {
                    forward.insert(op.sequence, (frame.origin.module, frame.line()));
                }
            }
            Kind::Call => {
                listener.call(index, Origin { line: frame.line(), ..frame.origin });
                frame.call(rows.calls[index].name, meaning(rows.calls[index].name));
            }
        }
        stack.push(frame);
    }
    unwind(&mut stack, i64::MAX, &mut asked, listener);
}

fn bounds(row: &impl Span) -> (i64, i64) {
    (row.start(), row.end())
}

/// Closes frames that end by `until` and reports queried time to the listener.
fn unwind(stack: &mut Vec<Frame>, until: i64, asked: &mut Asked<'_>, listener: &mut impl Listener) {
    while stack.len() > 1 {
        let Some(frame) = stack.last().filter(|frame| frame.end <= until) else { break };
        asked.pass(frame.end, frame.label, listener);
        stack.pop();
    }
    asked.pass(until, stack.last().unwrap_or(&ROOT).label, listener);
}

/// The queries and the current time of the sweep.
struct Asked<'a> {
    queries: &'a [Query],
    first: usize,
    now: i64,
}

impl Asked<'_> {
    #[inline]
    fn pass(&mut self, to: i64, label: Label, listener: &mut impl Listener) {
        if to <= self.now {
            return;
        }
        while self.queries.get(self.first).is_some_and(|q| q.to <= self.now) {
            self.first += 1;
        }
        for query in self.queries[self.first..].iter().take_while(|q| q.from < to) {
            let (from, to) = (query.from.max(self.now), query.to.min(to));
            if from < to {
                listener.time(query.gap, label, from, to);
            }
        }
        self.now = to;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Annotation,
    Python,
    Op,
    Call,
}

/// Merges a thread's four lists by start; of events that start together the longer is the outer one.
struct Next<'a> {
    rows: ThreadRows<'a>,
    at: [usize; 4],
}

impl Next<'_> {
    #[inline]
    fn take(&mut self) -> Option<(Kind, usize)> {
        let key = |row: Option<(i64, i64)>| row.map(|(start, end)| (start, Reverse(end)));
        let heads = [
            (key(self.rows.annotations.get(self.at[0]).map(bounds)), Kind::Annotation),
            (key(self.rows.python.get(self.at[1]).map(bounds)), Kind::Python),
            (key(self.rows.ops.get(self.at[2]).map(bounds)), Kind::Op),
            (key(self.rows.calls.get(self.at[3]).map(bounds)), Kind::Call),
        ];
        let mut best: Option<((i64, Reverse<i64>), Kind, usize)> = None;
        for (list, (head, kind)) in heads.into_iter().enumerate() {
            if let Some(head) = head
                && best.is_none_or(|(least, ..)| head < least)
            {
                best = Some((head, kind, list));
            }
        }
        let (_, kind, list) = best?;
        self.at[list] += 1;
        Some((kind, self.at[list] - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Heard {
        calls: Vec<(usize, Origin)>,
        times: Vec<(Cause, NameId, NameId, i64)>,
    }

    impl Listener for Heard {
        fn call(&mut self, index: usize, origin: Origin) {
            self.calls.push((index, origin));
        }
        fn time(&mut self, _: u32, label: Label, from: i64, to: i64) {
            self.times.push((label.cause, label.name, label.line, to - from));
        }
    }

    #[test]
    fn time_goes_to_the_innermost_and_sums_to_what_was_asked() {
        let names = ["train.py(3): step", "aten::mm", "cudaLaunchKernel", "cudaMalloc", "nn.Module: Linear_0"];
        let meanings: Vec<_> = names.iter().map(|n| Meaning::of(n)).collect();
        let span = |start, end, name| SpanRow { start, dur: end - start, name, thread: 0 };
        let python = [span(0, 100, 0), span(5, 90, 4)];
        let ops = [OpRow {
            start: 10,
            dur: 60,
            external: 1,
            name: 1,
            thread: 0,
            sequence: 7,
            dims: NO_NAME,
            forward_thread: 0,
        }];
        let call = |start, end, name| CallRow { start, dur: end - start, correlation: 1, name, thread: 0 };
        let calls = [call(20, 30, 3), call(40, 75, 2)]; // the second ends after its op: rounding
        let rows = ThreadRows { ops: &ops, calls: &calls, python: &python, annotations: &[] };
        let mut heard = Heard::default();
        let mut forward = ForwardOrigins::default();
        sweep(rows, &meanings, &[Query { from: 8, to: 120, gap: 0 }], &mut forward, &mut heard);
        assert_eq!(heard.times.iter().map(|t| t.3).sum::<i64>(), 112);
        assert!(heard.times.contains(&(Cause::Allocator, 3, 0, 10)));
        assert!(heard.times.contains(&(Cause::Launch, 2, 0, 30)));
        assert_eq!(heard.times.last(), Some(&(Cause::Unknown, NO_NAME, NO_NAME, 20)));
        let (_, origin) = heard.calls[1];
        assert_eq!((origin.op, origin.module, origin.line), (1, 4, 0));
        assert_eq!(forward[&7], (4, 0));
    }
}
