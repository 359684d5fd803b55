// SPDX-License-Identifier: Apache-2.0
//! What is kept of a trace: small rows of integers, one kind of event each.
//!
//! Times are nanoseconds of the trace's own clock (`ts` × 1000), names and threads are ids.

use super::intern::NameId;
use std::collections::BTreeMap;

/// No id, no link.
pub(super) const NONE: u64 = u64::MAX;
/// No name.
pub(super) const NO_NAME: NameId = NameId::MAX;
/// Most categories that are counted by name though they are not analysed.
const MAX_OTHERS: usize = 64;
/// A thread's number, below [`Trace::threads`].
pub(super) type ThreadId = u32;

/// What a device did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GpuKind {
    Kernel,
    Copy,
    Fill,
}

/// A kernel, copy or fill on a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct GpuRow {
    pub(super) start: i64,
    pub(super) dur: i64,
    /// The runtime call that launched it, by that call's `correlation`.
    pub(super) correlation: u64,
    /// The op that caused it, by that op's external id.
    pub(super) external: u64,
    pub(super) bytes: u64,
    pub(super) name: NameId,
    pub(super) device: i32,
    pub(super) stream: i32,
    /// CUDA graph it was replayed from; 0 for none.
    pub(super) graph: u32,
    pub(super) kind: GpuKind,
}

/// A CUDA or HIP call on the CPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallRow {
    pub(super) start: i64,
    pub(super) dur: i64,
    pub(super) correlation: u64,
    pub(super) name: NameId,
    pub(super) thread: ThreadId,
}

/// An operator on the CPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpRow {
    pub(super) start: i64,
    pub(super) dur: i64,
    pub(super) external: u64,
    pub(super) name: NameId,
    pub(super) thread: ThreadId,
    /// Autograd's number, shared by a forward op and its backward; `u32::MAX` for none.
    pub(super) sequence: u32,
    /// The input dimensions as written, kept for ops that fill memory only.
    pub(super) dims: NameId,
    /// Autograd's id of the thread the forward ran on; 0 in the forward itself, `u32::MAX` for none.
    pub(super) forward_thread: u32,
}

/// A Python function, an annotation or profiler overhead: a name over some time on a thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpanRow {
    pub(super) start: i64,
    pub(super) dur: i64,
    pub(super) name: NameId,
    pub(super) thread: ThreadId,
}

/// What a collective's event says of itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct CommRow {
    /// Of the op that called it, or of the kernel that ran it.
    pub(super) external: u64,
    /// Of the kernel that ran it; [`NONE`] when this row comes from the op.
    pub(super) correlation: u64,
    pub(super) name: NameId,
    pub(super) dtype: NameId,
    pub(super) elements: u64,
    pub(super) group_size: u32,
}

/// A stretch of time with an owner.
pub(super) trait Span {
    fn start(&self) -> i64;
    fn dur(&self) -> i64;
    fn thread(&self) -> ThreadId;
    fn end(&self) -> i64 {
        self.start() + self.dur()
    }
}

macro_rules! span {
    ($($row:ty),*) => {$(
        impl Span for $row {
            fn start(&self) -> i64 { self.start }
            fn dur(&self) -> i64 { self.dur }
            fn thread(&self) -> ThreadId { self.thread }
        }
    )*};
}
span!(CallRow, OpRow, SpanRow);

impl GpuRow {
    pub(super) fn end(&self) -> i64 {
        self.start + self.dur
    }
}

/// Rows of one part of the file, or of all of it.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) gpu: Vec<GpuRow>,
    pub(super) calls: Vec<CallRow>,
    pub(super) ops: Vec<OpRow>,
    pub(super) python: Vec<SpanRow>,
    pub(super) annotations: Vec<SpanRow>,
    pub(super) overhead: Vec<SpanRow>,
    pub(super) comms: Vec<CommRow>,
}

impl Rows {
    /// Gives back what was reserved too much.
    pub(super) fn shrink(&mut self) {
        self.gpu.shrink_to_fit();
        self.calls.shrink_to_fit();
        self.ops.shrink_to_fit();
        self.python.shrink_to_fit();
        self.annotations.shrink_to_fit();
        self.overhead.shrink_to_fit();
        self.comms.shrink_to_fit();
    }
}

/// What was read and what was not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Events seen, of every kind.
    pub(super) events: u64,
    /// Events with `ph`, a sign that this is a trace at all.
    pub(super) with_phase: u64,
    /// Events that were not JSON but could be read leniently (unescaped quotes).
    pub(super) recovered: u64,
    /// Places where nothing could be read; reading went on at the next event.
    pub(super) unreadable: u64,
    /// The byte offset of the first of those.
    pub(super) first_unreadable: Option<u64>,
    /// Events without a usable time.
    pub(super) timeless: u64,
    /// Negative durations, taken as 0.
    pub(super) negative: u64,
    /// Rows dropped because there were too many to keep.
    pub(super) dropped: u64,
    /// Complete events of categories that are not analysed.
    pub(super) other: u64,
    /// Those by category, as far as there is room for names.
    pub(super) others: BTreeMap<Vec<u8>, u64>,
    /// Whether the end of the event list was seen.
    pub(super) closed: bool,
    /// Where the event stands that the file's end cuts through.
    pub(super) truncated_at: Option<u64>,
    /// The first and last moment any complete event covers.
    pub(super) bounds: Option<(i64, i64)>,
}

impl Tally {
    /// Adds another part's counts.
    pub(super) fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.with_phase += other.with_phase;
        self.recovered += other.recovered;
        self.unreadable += other.unreadable;
        self.timeless += other.timeless;
        self.negative += other.negative;
        self.dropped += other.dropped;
        self.other += other.other;
        for (category, count) in &other.others {
            self.other_category(category, *count);
        }
        self.closed |= other.closed;
        self.truncated_at = self.truncated_at.or(other.truncated_at);
        self.first_unreadable = [self.first_unreadable, other.first_unreadable].into_iter().flatten().min();
        if let Some((from, to)) = other.bounds {
            self.cover(from, to);
        }
    }

    /// Notes events of a category that is not analysed.
    pub(super) fn other_category(&mut self, category: &[u8], count: u64) {
        if let Some(known) = self.others.get_mut(category) {
            *known += count;
        } else if self.others.len() < MAX_OTHERS {
            self.others.insert(category.to_vec(), count);
        }
    }

    /// Notes that something was going on from `from` to `to`.
    #[inline]
    pub(super) fn cover(&mut self, from: i64, to: i64) {
        self.bounds = Some(match self.bounds {
            None => (from, to),
            Some((a, b)) => (a.min(from), b.max(to)),
        });
    }

    /// Notes a place where nothing could be read.
    pub(super) fn unreadable_at(&mut self, offset: u64) {
        self.unreadable += 1;
        self.first_unreadable = Some(self.first_unreadable.map_or(offset, |first| first.min(offset)));
    }
}

/// A device as the trace's head describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DeviceProperties {
    pub(super) id: i32,
    pub(super) name: String,
    pub(super) memory_bytes: u64,
}

/// The keys beside the event list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) devices: Vec<DeviceProperties>,
    pub(super) rank: Option<u64>,
    pub(super) world_size: Option<u64>,
    pub(super) backend: Option<String>,
    /// Unix time of the clock's zero, in nanoseconds.
    pub(super) base_time_ns: Option<u64>,
    pub(super) with_stack: bool,
    pub(super) record_shapes: bool,
    /// Keys seen, for the error message when none of them is the event list.
    pub(super) keys: Vec<String>,
}

impl Header {
    /// Takes over what `other`, read elsewhere in the file, knows.
    pub(super) fn absorb(&mut self, other: Self) {
        self.devices.extend(other.devices);
        self.rank = self.rank.or(other.rank);
        self.world_size = self.world_size.or(other.world_size);
        self.backend = self.backend.take().or(other.backend);
        self.base_time_ns = self.base_time_ns.or(other.base_time_ns);
        self.with_stack |= other.with_stack;
        self.record_shapes |= other.record_shapes;
        self.keys.extend(other.keys);
    }
}

/// A whole trace, in memory.
#[derive(Debug, Default)]
pub(super) struct Trace {
    pub(super) header: Header,
    pub(super) rows: Rows,
    pub(super) names: Vec<String>,
    /// How many threads there are; rows name them by number.
    pub(super) threads: usize,
    pub(super) tally: Tally,
    /// Bytes of JSON read (after decompression).
    pub(super) json_bytes: u64,
}

impl Trace {
    /// The text of a name; empty for [`NO_NAME`].
    pub(super) fn name(&self, id: NameId) -> &str {
        self.names.get(id as usize).map_or("", String::as_str)
    }
}
