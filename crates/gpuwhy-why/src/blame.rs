// SPDX-License-Identifier: Apache-2.0
//! Idle time summed by cause. It is kept in slices of the run, so that startup can be separated from the steady state
//! afterwards; there are at most [`SLICES`], however long the run.

use crate::state::State;
use crate::timeline::ThreadIndex;
use crate::walk::{Head, Leaf, Piece};
use std::collections::{BTreeMap, HashMap};

/// Slices kept; when there would be more, every two become one.
pub(crate) const SLICES: usize = 512;
/// How long a slice is at first, ns.
const FIRST_WIDTH_NS: u64 = 50_000_000;
/// Causes kept apart in one slice; further ones are counted without details.
const CAUSES: usize = 1024;
/// Stacks counted for one cause.
const STACKS: usize = 64;

/// How an idle interval of the GPU looks from the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Gap {
    /// A short one after a wait for the GPU: the next launch was not ready because the host had waited.
    AfterSync,
    /// A longer one after such a wait: the GPU idles while the host does its own work.
    Drained,
    /// Any other.
    Plain,
    /// Not an idle interval: the host saw the GPU busy, but the launching thread was held up.
    Busy,
    /// NVML says that the GPU idled although the host saw queued work.
    ByNvml,
}

/// Key of one sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Cause {
    pub(crate) gap: Gap,
    /// The thread whose launch was awaited.
    pub(crate) launcher: ThreadIndex,
    /// How that thread waited; `None` if it did not wait for another thread.
    pub(crate) head: Option<State>,
    pub(crate) gil: bool,
    pub(crate) lock: bool,
    pub(crate) leaf: Leaf,
    pub(crate) thread: ThreadIndex,
}

/// Time by stack.
#[derive(Debug, Clone, Default)]
pub(crate) struct Votes(HashMap<u64, u64>);

impl Votes {
    pub(crate) fn add(&mut self, stack: u64, ns: u64) {
        if stack != 0 && (self.0.len() < STACKS || self.0.contains_key(&stack)) {
            *self.0.entry(stack).or_default() += ns;
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        // In a fixed order, because not all may fit.
        for (stack, ns) in other.ranked() {
            self.add(stack, ns);
        }
    }

    /// Stacks, the one with most time first.
    pub(crate) fn ranked(&self) -> Vec<(u64, u64)> {
        let mut ranked: Vec<(u64, u64)> = self.0.iter().map(|(stack, ns)| (*stack, *ns)).collect();
        ranked.sort_by_key(|(stack, ns)| (std::cmp::Reverse(*ns), *stack));
        ranked
    }
}

/// How much time a cause took.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cost {
    pub(crate) ns: u64,
    /// Stacks of the launching thread.
    pub(crate) head_stacks: Votes,
    /// Stacks of the thread at the chain's end.
    pub(crate) leaf_stacks: Votes,
    /// The threads between, as first seen.
    pub(crate) path: Vec<ThreadIndex>,
}

impl Cost {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.ns += other.ns;
        self.head_stacks.merge(&other.head_stacks);
        self.leaf_stacks.merge(&other.leaf_stacks);
        if self.path.is_empty() {
            self.path.clone_from(&other.path);
        }
    }
}

/// Causes and their costs.
pub(crate) type Costs = HashMap<Cause, Cost>;

/// A slice of the run.
#[derive(Debug, Default)]
pub(crate) struct Slice {
    pub(crate) launches: u64,
    /// Idle time with a cause, ns, all GPUs together; partly an estimate.
    pub(crate) idle_ns: u64,
    /// Idle for certain.
    pub(crate) certain_ns: u64,
    pub(crate) costs: Costs,
    /// Time launching threads spent waiting for the GPU in sync calls, ns.
    pub(crate) waited_ns: u64,
    /// How long each launching thread may have waited for the GPU, in calls of any kind, ns.
    pub(crate) for_gpu: BTreeMap<ThreadIndex, u64>,
    /// The part of `waited_ns` behind a queued collective, and its stacks.
    pub(crate) exchanged_ns: u64,
    pub(crate) exchange_stacks: Votes,
    /// Syncs.
    pub(crate) syncs: u64,
    /// Where threads waited for the GPU.
    pub(crate) sync_stacks: Votes,
    /// Allocating and freeing calls of launching threads: time, count, stacks.
    pub(crate) alloc_ns: u64,
    pub(crate) allocs: u64,
    pub(crate) alloc_stacks: Votes,
    /// Copying calls between host and device, their bytes, and the time they took.
    pub(crate) copies: u64,
    pub(crate) copy_bytes: u64,
    pub(crate) copy_ns: u64,
}

impl Slice {
    pub(crate) fn merge(&mut self, other: Self) {
        self.launches += other.launches;
        self.idle_ns += other.idle_ns;
        self.certain_ns += other.certain_ns;
        self.waited_ns = self.waited_ns.saturating_add(other.waited_ns);
        for (thread, ns) in other.for_gpu {
            *self.for_gpu.entry(thread).or_default() += ns;
        }
        self.exchanged_ns += other.exchanged_ns;
        self.exchange_stacks.merge(&other.exchange_stacks);
        self.syncs += other.syncs;
        self.sync_stacks.merge(&other.sync_stacks);
        self.alloc_ns = self.alloc_ns.saturating_add(other.alloc_ns);
        self.allocs += other.allocs;
        self.alloc_stacks.merge(&other.alloc_stacks);
        self.copies = self.copies.saturating_add(other.copies);
        self.copy_bytes = self.copy_bytes.saturating_add(other.copy_bytes);
        self.copy_ns = self.copy_ns.saturating_add(other.copy_ns);
        for (cause, cost) in other.costs {
            add_cost(&mut self.costs, cause, &cost);
        }
    }
}

fn add_cost(costs: &mut Costs, mut cause: Cause, cost: &Cost) {
    if costs.len() >= CAUSES && !costs.contains_key(&cause) {
        // First drop which of the many threads it was.
        cause.thread = cause.launcher;
        if let Leaf::Ready(_) = cause.leaf {
            cause.leaf = Leaf::Ready(None);
        }
    }
    costs.entry(cause).or_default().merge(cost);
}

/// The run in slices.
#[derive(Debug)]
pub(crate) struct Slices {
    from: u64,
    width: u64,
    slices: Vec<Slice>,
}

impl Slices {
    pub(crate) fn new(from: u64) -> Self {
        Self { from, width: FIRST_WIDTH_NS, slices: Vec::new() }
    }

    /// The slice a moment is in.
    pub(crate) fn at(&mut self, moment: u64) -> &mut Slice {
        let mut i = self.position(moment);
        while i >= SLICES {
            self.fold();
            i = self.position(moment);
        }
        if self.slices.len() <= i {
            self.slices.resize_with(i + 1, Slice::default);
        }
        &mut self.slices[i]
    }

    fn position(&self, moment: u64) -> usize {
        usize::try_from(moment.saturating_sub(self.from) / self.width).unwrap_or(usize::MAX)
    }

    fn fold(&mut self) {
        self.width = self.width.saturating_mul(2);
        let mut folded: Vec<Slice> = Vec::with_capacity(self.slices.len() / 2 + 1);
        for (i, slice) in std::mem::take(&mut self.slices).into_iter().enumerate() {
            match folded.last_mut() {
                Some(last) if i % 2 == 1 => last.merge(slice),
                _ => folded.push(slice),
            }
        }
        self.slices = folded;
    }

    /// Splits a time range over the slices it lies in, ns each: a share of the steady state must not count time beyond its
    /// ends.
    fn each(&mut self, from: u64, to: u64, mut take: impl FnMut(&mut Slice, u64)) {
        if from >= to {
            return;
        }
        // Folds slices first where the range is long.
        self.at(to - 1);
        let mut at = from;
        while at < to {
            let position = self.position(at) as u64;
            let end = self.from.saturating_add(self.width.saturating_mul(position + 1)).clamp(at + 1, to);
            take(self.at(at), end - at);
            at = end;
        }
    }

    /// Counts idle time that is certain.
    pub(crate) fn certain(&mut self, from: u64, to: u64) {
        self.each(from, to, |slice, ns| slice.certain_ns += ns);
    }

    /// Counts idle time of known length but unknown place within a window.
    pub(crate) fn certain_within(&mut self, from: u64, to: u64, ns: u64) {
        let share = ns as f64 / to.saturating_sub(from).max(1) as f64;
        self.each(from, to, |slice, part| slice.certain_ns += (part as f64 * share) as u64);
    }

    /// Counts time in which a launching thread may have waited for the GPU.
    pub(crate) fn for_gpu(&mut self, launcher: ThreadIndex, from: u64, to: u64) {
        self.each(from, to, |slice, ns| *slice.for_gpu.entry(launcher).or_default() += ns);
    }

    /// Counts a piece of idle time, scaled.
    pub(crate) fn blame(&mut self, launcher: ThreadIndex, gap: Gap, piece: &Piece<'_>, scale: f64) {
        self.each(piece.from, piece.to, |slice, ns| {
            slice.blame(launcher, gap, piece, (ns as f64 * scale) as u64);
        });
    }

    /// The width of a slice and all slices, in order.
    pub(crate) fn into_parts(self) -> (u64, Vec<Slice>) {
        (self.width, self.slices)
    }
}

impl Slice {
    fn blame(&mut self, launcher: ThreadIndex, gap: Gap, piece: &Piece<'_>, ns: u64) {
        let head = piece.head;
        let cause = Cause {
            gap,
            launcher,
            head: head.map(|head| head.state),
            gil: head.is_some_and(|head| head.gil),
            lock: head.is_some_and(|head| head.lock),
            leaf: piece.leaf,
            thread: piece.thread,
        };
        let mut cost = Cost { ns, path: piece.path.to_vec(), ..Cost::default() };
        cost.head_stacks.add(head.map_or(piece.stack, |head: Head| head.stack), ns);
        cost.leaf_stacks.add(piece.stack, ns);
        self.idle_ns += if gap == Gap::Busy { 0 } else { ns };
        add_cost(&mut self.costs, cause, &cost);
    }
}
