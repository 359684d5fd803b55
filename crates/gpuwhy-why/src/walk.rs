// SPDX-License-Identifier: Apache-2.0
//! Follows a wait to its cause. A thread's time in an interval is cut into pieces, and each piece ends in exactly one *leaf*:
//! a thread that ran, was ready without a CPU, or waited for something other than a thread. A blocked thread is explained by
//! the thread that woke it, over the same time.

use crate::state::State;
use crate::timeline::{Off, SAME_OBJECT, Span, Thread, ThreadIndex, Timeline};
use gpuwhy_model::{OpId, WokenBy};

/// How many threads a chain may have.
const DEEPEST: usize = 12;
/// Starting a process takes no longer than this, ns.
const LONGEST_FORK_NS: u64 = 50_000_000;
/// A timed wait that is resumed after at most this much running, ns, is the same wait.
const SAME_WAIT_NS: u64 = 1_000_000;
/// How often a wait may be resumed while its end is searched for.
const RESUMED: usize = 64;

/// The end of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Leaf {
    /// It was running its own code.
    Running,
    /// It was running, starting a process.
    Forking,
    /// It was running inside a CUDA call.
    Cuda(OpId),
    /// It was running in the kernel, freeing memory.
    Reclaiming,
    /// It was ready; the holder had the CPU (`None`: the CPU was idle and the thread about to run).
    Ready(Option<u32>),
    /// Its cgroup had no quota left.
    Throttled,
    /// It waited for something that no thread of the job caused.
    Blocked(State, WokenBy),
    /// It waited in a CUDA call.
    BlockedIn(OpId),
    /// It had not started, or had ended.
    Absent,
}

/// The launching thread's wait at the beginning of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) state: State,
    pub(crate) gil: bool,
    /// Whether other threads wait at the same futex, too.
    pub(crate) lock: bool,
    pub(crate) stack: u64,
}

/// One piece of time and its cause.
pub(crate) struct Piece<'a> {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) leaf: Leaf,
    /// Whether it may be a wait for the GPU.
    pub(crate) for_gpu: bool,
    /// The thread of the leaf.
    pub(crate) thread: ThreadIndex,
    /// That thread's stack, where known.
    pub(crate) stack: u64,
    /// The launching thread's own wait; `None` if the leaf is that thread itself, not waiting for another.
    pub(crate) head: Option<Head>,
    /// The threads from the launching one to the leaf's, both included.
    pub(crate) path: &'a [ThreadIndex],
}

/// Walks over a timeline.
pub(crate) struct Walker<'a> {
    timeline: &'a Timeline,
    each: &'a mut dyn FnMut(&Piece<'_>),
    path: Vec<ThreadIndex>,
    visited: Vec<(ThreadIndex, u64)>,
    head: Option<Head>,
}

impl<'a> Walker<'a> {
    /// Cuts `thread`'s time from `a` to `b` into pieces.
    pub(crate) fn walk(
        timeline: &'a Timeline,
        thread: ThreadIndex,
        a: u64,
        b: u64,
        each: &'a mut dyn FnMut(&Piece<'_>),
    ) {
        let mut walker = Walker { timeline, each, path: Vec::new(), visited: Vec::new(), head: None };
        walker.span(thread, a, b);
    }

    fn thread(&self, index: ThreadIndex) -> &'a Thread {
        &self.timeline.threads[index as usize]
    }

    fn leaf(&mut self, from: u64, to: u64, leaf: Leaf, stack: u64) {
        self.leaf_in(from, to, leaf, stack, None);
    }

    /// The same, inside a call.
    fn leaf_in(&mut self, from: u64, to: u64, leaf: Leaf, stack: u64, call: Option<Span>) {
        let Some(thread) = self.path.last().copied().filter(|_| from < to) else { return };
        let (head, for_gpu) = (self.head, call.is_some_and(|call| call.for_gpu));
        (self.each)(&Piece { from, to, leaf, for_gpu, thread, stack, head, path: &self.path });
    }

    fn span(&mut self, index: ThreadIndex, a: u64, b: u64) {
        self.path.push(index);
        let thread = self.thread(index);
        let (mut at, mut end) = (a, b);
        if let Some(born) = thread.born.filter(|born| *born > a) {
            at = born.min(b);
            self.before_birth(thread.creator, a, at);
        }
        if let Some(ended) = thread.ended.filter(|ended| *ended < b) {
            end = ended.max(at);
            self.leaf(end, b, Leaf::Absent, 0);
        }
        let first = thread.offs.partition_point(|off| off.end <= at);
        for (i, off) in thread.offs.iter().enumerate().skip(first).take_while(|(_, off)| off.start < end) {
            if off.start > at {
                self.running(thread, at, off.start);
            }
            let start = off.start.max(at);
            let woken = off.woken.clamp(start, end);
            let until = off.end.clamp(woken, end);
            if start < woken {
                self.blocked(index, i, start, woken);
            }
            if woken < until {
                self.ready(index, off, woken, until);
            }
            at = until;
        }
        if at < end {
            self.running(thread, at, end);
        }
        self.path.pop();
    }

    /// Before a thread existed, its creator was busy creating it.
    fn before_birth(&mut self, creator: Option<ThreadIndex>, a: u64, b: u64) {
        match creator.filter(|creator| !self.path.contains(creator) && self.path.len() < DEEPEST) {
            Some(creator) => self.span(creator, a, b),
            None => self.leaf(a, b, Leaf::Absent, 0),
        }
    }

    /// Running, cut at CUDA calls and at the kernel's own work for memory.
    fn running(&mut self, thread: &Thread, a: u64, b: u64) {
        let mut at = a;
        let first = thread.calls.partition_point(|call| call.end <= a);
        for call in thread.calls.iter().skip(first).take_while(|call| call.start < b) {
            let (start, end) = (call.start.max(at), call.end.min(b));
            if start < end {
                self.own(thread, at, start);
                self.leaf_in(start, end, Leaf::Cuda(call.op), call.stack, Some(*call));
                at = end;
            }
        }
        self.own(thread, at, b);
    }

    fn own(&mut self, thread: &Thread, a: u64, b: u64) {
        let mut at = a;
        let first = thread.memory.partition_point(|span| span.1 <= a);
        for (start, end) in thread.memory.iter().skip(first).copied().take_while(|span| span.0 < b) {
            let (start, end) = (start.max(at), end.min(b));
            if start < end {
                self.computing(thread, at, start);
                self.leaf(start, end, Leaf::Reclaiming, 0);
                at = end;
            }
        }
        self.computing(thread, at, b);
    }

    /// Its own code, cut at the processes it started: until one was started, that was its work.
    fn computing(&mut self, thread: &Thread, a: u64, b: u64) {
        let mut at = a;
        let first = thread.forks.partition_point(|fork| *fork < a);
        for fork in thread.forks.iter().skip(first).copied().take_while(|fork| *fork < b) {
            let begin = fork.saturating_sub(LONGEST_FORK_NS).max(at);
            self.sampled(thread, at, begin, Leaf::Running);
            self.sampled(thread, begin, fork, Leaf::Forking);
            at = fork.max(at);
        }
        self.sampled(thread, at, b, Leaf::Running);
    }

    /// With the stack of the last CPU sample, where there is one.
    fn sampled(&mut self, thread: &Thread, a: u64, b: u64, leaf: Leaf) {
        if a >= b {
            return;
        }
        let first = thread.samples.partition_point(|sample| sample.0 < a);
        let sample = thread.samples.iter().skip(first).take_while(|sample| sample.0 <= b).map(|sample| sample.1);
        let stack = sample.filter(|stack| *stack != 0).last().unwrap_or(0);
        self.leaf(a, b, leaf, stack);
    }

    fn ready(&mut self, index: ThreadIndex, off: &Off, a: u64, b: u64) {
        if off.throttled {
            return self.leaf(a, b, Leaf::Throttled, off.stack);
        }
        let timeline = self.timeline;
        timeline.holders(index, off, a, b, &mut |from, to, holder| {
            // The CPU was idle: the thread was about to run, which ends what it waited for.
            let (leaf, call) = match holder {
                None if off.woken > off.start => self.waiting(index, off),
                holder => (Leaf::Ready(holder), None),
            };
            self.leaf_in(from, to, leaf, off.stack, call);
        });
    }

    fn blocked(&mut self, index: ThreadIndex, i: usize, a: u64, b: u64) {
        let thread = self.thread(index);
        let off = &thread.offs[i];
        let own_head = self.head.is_none() && self.path.len() == 1;
        let is_plain =
            matches!(off.state, State::BlockedDisk | State::BlockedFault | State::BlockedSleep | State::BlockedGpu);
        let waker = if is_plain || off.io_wait { None } else { self.waker(index, i, a, b) };
        let seen = (index, off.start);
        let next = waker.filter(|next| {
            self.thread(*next).watched && !self.visited.contains(&seen) && self.path.len() < DEEPEST && *next != index
        });
        let Some(next) = next else {
            let (leaf, call) = self.waiting(index, off);
            return self.leaf_in(a, b, leaf, off.stack, call);
        };
        let head = self.head;
        if own_head {
            let lock = self.timeline.is_lock(thread.pid, off.object) && !self.thread_crosses(thread, next);
            self.head = Some(Head { state: off.state, gil: off.gil, lock, stack: off.stack });
        }
        self.visited.push(seen);
        self.span(next, a, b);
        self.visited.pop();
        self.head = head;
    }

    /// A wait that is not followed to another thread, and the call it was in.
    fn waiting(&self, index: ThreadIndex, off: &Off) -> (Leaf, Option<Span>) {
        let calls = &self.thread(index).calls;
        let before = calls.partition_point(|call| call.start <= off.start);
        match before.checked_sub(1).and_then(|i| calls.get(i)).filter(|call| off.start < call.end) {
            Some(call) => (Leaf::BlockedIn(call.op), Some(*call)),
            None => (Leaf::Blocked(off.state, off.woken_by), None),
        }
    }

    fn thread_crosses(&self, thread: &Thread, next: ThreadIndex) -> bool {
        self.thread(next).pid != thread.pid
    }

    /// The thread that ended a wait.
    fn waker(&self, index: ThreadIndex, i: usize, a: u64, b: u64) -> Option<ThreadIndex> {
        let thread = self.thread(index);
        let off = &thread.offs[i];
        match off.woken_by {
            WokenBy::Thread => Some(off.waker),
            WokenBy::Timer if off.timed => {
                let later = self.after_timeout(thread, i);
                later.or_else(|| off.gil.then(|| self.busiest_sibling(index, a, b)).flatten())
            }
            _ if off.gil => self.busiest_sibling(index, a, b),
            _ => None,
        }
    }

    /// For a wait that timed out and was resumed at once: the thread that finally ended it.
    fn after_timeout(&self, thread: &Thread, i: usize) -> Option<ThreadIndex> {
        let first = &thread.offs[i];
        let mut last_end = first.end;
        let mut running = 0;
        for off in thread.offs.iter().skip(i + 1).take(RESUMED) {
            running += off.start.saturating_sub(last_end);
            last_end = off.end;
            if running > SAME_WAIT_NS {
                return None;
            }
            let same = off.state == first.state && off.object.abs_diff(first.object) <= SAME_OBJECT;
            if !same {
                continue;
            }
            match off.woken_by {
                WokenBy::Thread => return Some(off.waker),
                WokenBy::Timer => running = 0,
                _ => return None,
            }
        }
        None
    }

    /// The thread of the same process that ran or was ready longest: the likely holder of the GIL.
    fn busiest_sibling(&self, index: ThreadIndex, a: u64, b: u64) -> Option<ThreadIndex> {
        let siblings = self.timeline.of_process(self.thread(index).pid);
        let active = |sibling: ThreadIndex| {
            let thread = self.thread(sibling);
            let alive = thread.ended.unwrap_or(u64::MAX).min(b).saturating_sub(thread.born.unwrap_or(0).max(a));
            let first = thread.offs.partition_point(|off| off.end <= a);
            let offs = thread.offs.iter().skip(first).take_while(|off| off.start < b);
            let blocked: u64 = offs.map(|off| off.woken.min(b).saturating_sub(off.start.max(a))).sum();
            alive.saturating_sub(blocked)
        };
        let others = siblings.iter().copied().filter(|other| *other != index && self.thread(*other).watched);
        others.map(|other| (active(other), other)).filter(|(ns, _)| *ns > 0).max().map(|(_, other)| other)
    }
}
