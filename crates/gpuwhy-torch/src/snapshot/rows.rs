// SPDX-License-Identifier: Apache-2.0
//! The rows of a snapshot's tables.

use super::strings::{StrId, key};
use super::value::{Tag, Value};

/// No stack, no list, no string.
pub(super) const NOTHING: u32 = u32::MAX;

/// A sum of sizes from a file: forged ones must not wrap around.
pub(super) fn total(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

/// Adds to such a sum.
pub(super) fn grow(sum: &mut u64, size: u64) {
    *sum = sum.saturating_add(size);
}

/// One source line of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Frame {
    pub(super) name: StrId,
    pub(super) file: StrId,
    pub(super) line: u32,
}

/// What the allocator did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    Oom,
    /// `snapshot`, `annotate`, and what later versions may add.
    #[default]
    Other,
}

/// One action of the allocator. 32 bytes, as there may be millions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// For an OOM: bytes free on the device.
    pub(super) addr: u64,
    /// Requested bytes; for segments their size.
    pub(super) size: u64,
    /// Microseconds of Unix time; 0 where not recorded.
    pub(super) time_us: u64,
    /// While reading a list id, afterwards a stack id; [`NOTHING`] when not recorded.
    pub(super) stack: u32,
    pub(super) action: Action,
}

/// A block's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum State {
    Allocated,
    /// Freed by the program, still used by a stream.
    Pending,
    #[default]
    Inactive,
}

/// Part of a segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    /// 0 where not recorded (Torch ≤ 2.0).
    pub(super) address: u64,
    pub(super) size: u64,
    /// `None`: not recorded.
    pub(super) requested: Option<u64>,
    pub(super) state: State,
    pub(super) stack: u32,
    /// List of earlier blocks here, newest first (PyTorch ≤ 2.0).
    pub(super) history: u32,
}

/// Memory taken from the driver in one piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub(super) device: u32,
    pub(super) address: u64,
    pub(super) total: u64,
    pub(super) allocated: u64,
    /// From the pool of blocks up to 1 MiB.
    pub(super) small: bool,
    /// (0, 0): the default pool.
    pub(super) pool: (i64, i64),
    pub(super) expandable: bool,
    pub(super) blocks: u32,
    pub(super) stack: u32,
}

/// The start or end of a `record_function` scope.
#[derive(Debug, Clone, Copy)]
pub(super) struct Annotation {
    pub(super) name: StrId,
    pub(super) start: bool,
    pub(super) device: u32,
    pub(super) time_us: u64,
}

pub(super) const EMPTY_ENTRY: Entry = Entry { addr: 0, size: 0, time_us: 0, stack: NOTHING, action: Action::Other };
pub(super) const EMPTY_BLOCK: Block =
    Block { address: 0, size: 0, requested: None, state: State::Inactive, stack: NOTHING, history: NOTHING };
pub(super) const EMPTY_SEGMENT: Segment = Segment {
    device: 0,
    address: 0,
    total: 0,
    allocated: 0,
    small: false,
    pool: (0, 0),
    expandable: false,
    blocks: NOTHING,
    stack: NOTHING,
};
pub(super) const EMPTY_ANNOTATION: Annotation =
    Annotation { name: StrId(key::EMPTY), start: false, device: 0, time_us: 0 };

/// What the name of an action means.
pub(super) fn action(value: Value) -> Action {
    if !value.is(Tag::Str) {
        return Action::Other;
    }
    match value.index() as u32 {
        key::ALLOC => Action::Alloc,
        key::FREE_REQUESTED => Action::FreeRequested,
        key::FREE_COMPLETED => Action::FreeCompleted,
        key::SEGMENT_ALLOC => Action::SegmentAlloc,
        key::SEGMENT_FREE => Action::SegmentFree,
        key::SEGMENT_MAP => Action::SegmentMap,
        key::SEGMENT_UNMAP => Action::SegmentUnmap,
        key::OOM => Action::Oom,
        _ => Action::Other,
    }
}
