// SPDX-License-Identifier: Apache-2.0
//! From sums by stack and process to groups. Pure.

use super::library::library;
use super::read::{Cells, Texts};
use super::{GroupKey, StackFrame, StackGroup, StackKey, StackSort, StackSums};
use gpuwhy_stacks::{Frame, Owner, Stack};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A group as it grows.
#[derive(Default)]
struct Growing {
    sums: StackSums,
    pids: BTreeMap<u32, u64>,
    stacks: BTreeSet<i64>,
    frames: Vec<Frame>,
}

/// Puts together what belongs together.
pub(super) fn fold(cells: &Cells, texts: &Texts, names: &HashMap<u32, String>, by: StackKey) -> Vec<StackGroup> {
    let mut groups: BTreeMap<GroupKey, Growing> = BTreeMap::new();
    let mut last: Option<(i64, Vec<Frame>)> = None;
    for (&(stack, pid), sums) in cells {
        // Cells are in order of their stacks: one is read once for all its processes.
        let frames = stack.map(|id| match last.take() {
            Some((known, frames)) if known == id => (id, frames),
            _ => (id, texts.get(&id).map(|text| Stack::parse(text).collect()).unwrap_or_default()),
        });
        let (key, shown) = match &frames {
            Some((id, frames)) => key(by, *id, pid, frames),
            None => (GroupKey::NoStack, Vec::new()),
        };
        let group = groups.entry(key).or_insert_with(|| Growing { frames: shown, ..Growing::default() });
        group.sums.merge(sums);
        *group.pids.entry(pid).or_default() += sums.total_ns;
        group.stacks.extend(stack);
        last = frames;
    }
    groups.into_iter().map(|(key, group)| finish(key, group, names)).collect()
}

impl From<Frame> for StackFrame {
    fn from(frame: Frame) -> Self {
        Self { yours: frame.owner() == Owner::You, file: frame.file, line: frame.line, function: frame.function }
    }
}

/// The group a stack belongs to, and the frames that say so.
fn key(by: StackKey, stack_id: i64, pid: u32, frames: &[Frame]) -> (GroupKey, Vec<Frame>) {
    // min_by_key takes the first of equals, which is the innermost.
    let top = || frames.iter().min_by_key(|frame| frame.owner()).filter(|frame| frame.owner() != Owner::Native);
    let unknown = || (GroupKey::Unknown, Vec::new());
    match by {
        StackKey::Stack => (GroupKey::Stack { stack_id, pid }, frames.to_vec()),
        StackKey::Line => top().map_or_else(unknown, |frame| {
            (GroupKey::Line(frame.file.clone(), frame.line, frame.function.clone()), vec![frame.clone()])
        }),
        StackKey::Function => top().map_or_else(unknown, |frame| {
            let shown = Frame { line: None, ..frame.clone() };
            (GroupKey::Function(frame.file.clone(), frame.function.clone()), vec![shown])
        }),
        StackKey::Library => library(frames).map_or_else(unknown, |name| (GroupKey::Library(name), Vec::new())),
    }
}

fn finish(key: GroupKey, group: Growing, names: &HashMap<u32, String>) -> StackGroup {
    let mut pids: Vec<(u32, u64)> = group.pids.into_iter().collect();
    pids.sort_by_key(|&(pid, total_ns)| (Reverse(total_ns), pid));
    let named = |(pid, _)| (pid, names.get(&pid).cloned().unwrap_or_else(|| format!("pid {pid}")));
    let top = group.frames.iter().min_by_key(|frame| frame.owner()).map(Frame::to_string);
    StackGroup {
        top_line: top.filter(|_| matches!(key, GroupKey::Stack { .. } | GroupKey::Line(..))),
        frames: group.frames.into_iter().map(StackFrame::from).collect(),
        key,
        sums: group.sums,
        processes: pids.into_iter().map(named).collect(),
        stacks: group.stacks.len(),
    }
}

/// The largest first; of equals the one with more time, then more calls, then in the order of their keys.
pub(super) fn sort(groups: &mut [StackGroup], by: StackSort) {
    groups.sort_by(|a, b| {
        let figures = |sums: &StackSums| {
            let first = match by {
                StackSort::Total => sums.total_ns,
                StackSort::Calls => sums.calls,
                StackSort::Max => sums.max_ns,
                StackSort::Bytes => sums.bytes,
            };
            (first, sums.total_ns, sums.calls)
        };
        figures(&b.sums).cmp(&figures(&a.sums)).then_with(|| a.key.cmp(&b.key))
    });
}
