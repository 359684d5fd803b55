// SPDX-License-Identifier: Apache-2.0
//! Bounds of a GPU's idle time from the host's calls. While no kernel of any traced process is queued, the GPU is certainly
//! idle; while a thread waits for one, it is certainly busy; the rest could be either.
//!
//! *Idle* means that no kernel runs: copies alone do not make a GPU busy, here as in NVML.

use crate::timeline::ThreadIndex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;

/// Work queued before the recording is done after this long, ns.
const UNSEEN_WORK_NS: u64 = 5_000_000_000;
/// How long a GPU may go on with the work of a process that has ended, ns.
const CLEARING_NS: u64 = 200_000_000;
/// A shorter wait may be no wait: the work may have been done already, ns.
pub(crate) const REAL_WAIT_NS: u64 = 20_000;
/// Streams kept per stream that it waits for.
const JOINS: usize = 16;
/// No copy is slower than this, ns a byte: 1 GB/s.
pub(crate) const SLOWEST_COPY: u64 = 1;
/// A wait at least this long, ns, without queued work seen was for work that was not seen.
const UNSEEN_WAIT_NS: u64 = 1_000_000;
/// An idle interval is cut into at most this many pieces.
const MOST_PIECES: u64 = 4096;
/// Busy times that may still be revoked: as many as there can be until a row that represents others arrives.
const CLAIMS: usize = 4096;
/// How long finished intervals are kept, ns: NVML's samples come late.
const REMEMBERED_NS: u64 = 4_000_000_000;

/// A stream of a process.
pub(crate) type StreamKey = (u32, u64);

/// An interval in which the GPU was idle for certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Idle {
    pub(crate) gpu: u32,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The thread that ended it by a launch, or the last that launched; `None` before the first launch.
    pub(crate) launcher: Option<ThreadIndex>,
    /// Whether it began after a wait for the GPU.
    pub(crate) after_wait: bool,
    /// Whether it is over.
    pub(crate) whole: bool,
}

/// Work that a thread waited for: a process's work on one stream or all, queued until a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) gpu: u32,
    pub(crate) pid: u32,
    pub(crate) stream: Option<u64>,
    pub(crate) as_of: u64,
}

/// Kernels launched by one thread in one stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Launch {
    /// Earliest possible launch of the first.
    pub(crate) first: u64,
    /// Launch of the last.
    pub(crate) last: u64,
    pub(crate) count: u64,
}

/// One GPU.
#[derive(Debug, Default)]
pub(crate) struct Gpu {
    /// Streams with kernels that may not be done, with the time of the newest launch.
    kernels: HashMap<StreamKey, u64>,
    /// Bytes copied in a stream after its newest kernel.
    trailing: HashMap<StreamKey, u64>,
    /// All copies before kernels are done by then: a kernel may have to wait for one, even on another stream.
    copied_by: u64,
    /// For a stream that waits for others: since when, for which, queued until when.
    joins: HashMap<StreamKey, Vec<(u64, u64, u64)>>,
    idle_since: Option<u64>,
    after_wait: bool,
    /// Nothing is certain before this.
    certain_from: u64,
    pub(crate) launcher: Option<ThreadIndex>,
    /// Kernels launched in the span.
    pub(crate) launches: u64,
    /// Certain idle and busy time so far.
    pub(crate) idle_ns: u64,
    pub(crate) busy_ns: u64,
    busy_until: u64,
    /// Recent busy times: when each was known, and its length.
    claims: VecDeque<(u64, u64)>,
    /// Time in which several processes had work, and since when they do now.
    pub(crate) shared_ns: u64,
    shared_since: Option<u64>,
    /// Recent certain idle intervals.
    recent: VecDeque<(u64, u64)>,
}

/// Times in which launches were lost, or other processes could use the GPU: nothing is certain there.
#[derive(Debug, Default)]
pub(crate) struct Unsure {
    everywhere: Vec<(u64, u64)>,
    by_gpu: BTreeMap<u32, Vec<(u64, u64)>>,
}

impl Unsure {
    pub(crate) fn new(everywhere: Vec<(u64, u64)>, by_gpu: BTreeMap<u32, Vec<(u64, u64)>>) -> Self {
        Self { everywhere, by_gpu }
    }

    /// The parts of an interval that are certain.
    pub(crate) fn certain(&self, gpu: u32, from: u64, to: u64, mut each: impl FnMut(u64, u64)) {
        let mut at = from;
        let own = self.by_gpu.get(&gpu).map(Vec::as_slice).unwrap_or_default();
        let mut spans = near(&self.everywhere, from, to).to_vec();
        spans.extend(near(own, from, to));
        spans.sort_unstable();
        for (start, end) in &spans {
            if *start > at {
                each(at, *start);
            }
            at = at.max(*end);
        }
        if at < to {
            each(at, to);
        }
    }
}

/// The spans that touch a time; they must be ordered and must not overlap.
fn near(spans: &[(u64, u64)], from: u64, to: u64) -> &[(u64, u64)] {
    let first = spans.partition_point(|span| span.1 <= from);
    let last = spans.partition_point(|span| span.0 < to);
    &spans[first.min(last)..last]
}

/// How much of one time lies in another.
fn overlap(a: u64, b: u64, from: u64, to: u64) -> u64 {
    b.min(to).saturating_sub(a.max(from))
}

/// All GPUs, by gpuwhy's number.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    pub(crate) gpus: BTreeMap<u32, Gpu>,
    pub(crate) unsure: Unsure,
    from: u64,
    to: u64,
    started: bool,
}

impl Devices {
    /// `started`: the job was recorded from its beginning.
    pub(crate) fn new(from: u64, to: u64, started: bool, unsure: Unsure) -> Self {
        Self { gpus: BTreeMap::new(), unsure, from, to, started }
    }

    fn gpu(&mut self, gpu: u32, now: u64) -> &mut Gpu {
        let (from, started) = (self.from, self.started);
        self.gpus.entry(gpu).or_insert_with(|| {
            let certain_from = if started { 0 } else { now.saturating_add(UNSEEN_WORK_NS) };
            let idle_since = started.then_some(from);
            Gpu { idle_since, certain_from, ..Gpu::default() }
        })
    }

    /// Kernels are launched. Returns the idle interval that this ends. If another thread's wait began one after the first
    /// launch, it may have been over at once.
    pub(crate) fn launch(&mut self, gpu: u32, stream: StreamKey, made: &Launch, thread: ThreadIndex) -> Option<Idle> {
        let now = made.last;
        let span = self.from..self.to;
        let state = self.gpu(gpu, now);
        state.launcher = Some(thread);
        if span.contains(&now) {
            state.launches = state.launches.saturating_add(made.count);
        }
        if state.kernels.insert(stream, now).is_none() {
            state.note_sharing(now, &span);
        }
        state.trailing.remove(&stream);
        let since = state.idle_since.take()?;
        let after_wait = std::mem::take(&mut state.after_wait);
        let to = made.first.max(since);
        let idle = Idle { gpu, from: since, to, launcher: Some(thread), after_wait, whole: true };
        self.settle(idle)
    }

    /// Copies are queued by a thread: the first at the earlier time at the soonest, the last at the later one.
    pub(crate) fn copy(
        &mut self,
        gpu: u32,
        stream: StreamKey,
        (first, now): (u64, u64),
        bytes: u64,
        thread: ThreadIndex,
    ) {
        let state = self.gpu(gpu, now);
        // In a job that only copies, the copying thread is the one that feeds the GPU.
        state.launcher.get_or_insert(thread);
        if first < now {
            // Waits since then may have been for these copies, which are only known now.
            let revoked: u64 = state.claims.iter().filter(|(at, _)| *at > first).map(|(_, ns)| ns).sum();
            state.claims.retain(|(at, _)| *at <= first);
            state.busy_ns = state.busy_ns.saturating_sub(revoked);
        }
        let ns = bytes.saturating_mul(SLOWEST_COPY);
        let trailing = state.trailing.entry(stream).or_default();
        *trailing = trailing.saturating_add(ns);
        state.copied_by = state.copied_by.max(now).saturating_add(ns);
    }

    /// From `now` on, a stream's work comes after another stream's work that was queued until `as_of`.
    pub(crate) fn joins(&mut self, gpu: u32, stream: StreamKey, now: u64, other: u64, as_of: u64) {
        let joins = self.gpu(gpu, now).joins.entry(stream).or_default();
        joins.retain(|(_, known, _)| *known != other);
        if joins.len() < JOINS {
            joins.push((now, other, as_of));
        }
    }

    /// A thread waited from `start` to `end`; now the work is done. It may have been done since `sure_until`, when the thread
    /// stopped checking.
    ///
    /// A wait for work whose queueing was not seen ends the idle interval it fell into, which is returned.
    pub(crate) fn done(&mut self, work: &Work, start: u64, end: u64, sure_until: u64) -> Option<Idle> {
        let (from, to) = (self.from, self.to);
        let Work { gpu, pid, stream, as_of } = *work;
        let state = self.gpu(gpu, start);
        let concerned = |key: &StreamKey| key.0 == pid && stream.is_none_or(|stream| stream == key.1);
        let waited_for = state.kernels.iter().any(|(key, at)| concerned(key) && (*at <= start || as_of < start));
        let trailing = state
            .trailing
            .iter()
            .filter(|(key, _)| concerned(key))
            .fold(0, |sum: u64, (_, ns)| sum.saturating_add(*ns));
        let waited = end.saturating_sub(start) >= REAL_WAIT_NS;
        let mut busy = None;
        if waited_for && waited && start >= state.certain_from {
            // Not counted: copies before and after the kernels, and the way back to the host.
            let begin = start.max(state.busy_until).max(state.copied_by.saturating_sub(trailing)).max(from);
            let until = sure_until.min(end.saturating_sub(REAL_WAIT_NS)).saturating_sub(trailing).min(to);
            state.busy_until = state.busy_until.max(until);
            busy = (begin < until).then_some((begin, until));
        }
        let unseen = !waited_for && sure_until.saturating_sub(start) >= UNSEEN_WAIT_NS && state.copied_by < start;
        state.trailing.retain(|key, _| !concerned(key));
        let had = !state.kernels.is_empty();
        state.kernels.retain(|key, at| !concerned(key) || *at > as_of);
        if let Some(stream) = stream {
            for (since, other, other_as_of) in state.joins.get(&(pid, stream)).into_iter().flatten() {
                if *since <= as_of {
                    state.kernels.retain(|key, at| *key != (pid, *other) || *at > *other_as_of);
                }
            }
        }
        state.note_sharing(end, &(from..to));
        let launcher = state.launcher;
        let ended = state.idle_since.filter(|since| unseen && *since < end);
        if ended.is_some() || (state.kernels.is_empty() && state.idle_since.is_none() && (had || !self.started)) {
            let state = self.gpu(gpu, start);
            state.idle_since = Some(end);
            state.after_wait = waited && waited_for && sure_until > start;
        }
        if let Some((begin, until)) = busy {
            // Other processes on the GPU do not matter here; lost events do.
            let lost: u64 =
                near(&self.unsure.everywhere, begin, until).iter().map(|(a, b)| overlap(*a, *b, begin, until)).sum();
            let claimed = (until - begin).saturating_sub(lost);
            let state = self.gpu(gpu, start);
            state.busy_ns += claimed;
            state.claims.push_back((end, claimed));
            if state.claims.len() > CLAIMS {
                state.claims.pop_front();
            }
        }
        let idle = |since| Idle { gpu, from: since, to: start, launcher, after_wait: false, whole: true };
        ended.map(idle).and_then(|idle| self.settle(idle))
    }

    /// A process has ended, and its work with it.
    pub(crate) fn gone(&mut self, pid: u32, now: u64) {
        let span = self.from..self.to;
        for state in self.gpus.values_mut() {
            let before = state.kernels.len();
            state.kernels.retain(|key, _| key.0 != pid);
            state.trailing.retain(|key, _| key.0 != pid);
            if state.kernels.len() < before {
                // Its queued work may still run while the driver cleans up.
                state.certain_from = state.certain_from.max(now.saturating_add(CLEARING_NS));
                if state.kernels.is_empty() && state.idle_since.is_none() {
                    state.idle_since = Some(now);
                }
            }
            state.note_sharing(now, &span);
        }
    }

    /// The first parts of idle intervals that have lasted longer than `longest`, so that no more need be kept.
    pub(crate) fn lasting(&mut self, now: u64, longest: u64) -> Vec<Idle> {
        let mut parts = Vec::new();
        for (gpu, state) in &mut self.gpus {
            while let Some(since) =
                state.idle_since.filter(|since| *since < now && since.saturating_add(longest) <= now)
            {
                // Never cut into very many pieces: a damaged file may claim any time.
                let to = since.saturating_add(longest.max((now - since) / MOST_PIECES));
                let after_wait = state.after_wait;
                parts.push(Idle { gpu: *gpu, from: since, to, launcher: state.launcher, after_wait, whole: false });
                state.idle_since = Some(to);
            }
        }
        parts.into_iter().filter_map(|idle| self.settle(idle)).collect()
    }

    /// Intervals still open at the end.
    pub(crate) fn finish(&mut self, end: u64) -> Vec<Idle> {
        let mut rest = Vec::new();
        let span = self.from..self.to;
        for (gpu, state) in &mut self.gpus {
            state.shared_until(end, &span);
            if let Some(since) = state.idle_since.take() {
                let (launcher, after_wait) = (state.launcher, state.after_wait);
                rest.push(Idle { gpu: *gpu, from: since, to: end, launcher, after_wait, whole: true });
            }
        }
        rest.into_iter().filter_map(|idle| self.settle(idle)).collect()
    }

    /// Clips an interval to the time range and to what is certain, and counts it.
    fn settle(&mut self, mut idle: Idle) -> Option<Idle> {
        let state = self.gpus.get_mut(&idle.gpu)?;
        idle.from = idle.from.max(self.from).max(state.certain_from);
        idle.to = idle.to.min(self.to);
        if idle.from >= idle.to {
            return None;
        }
        while state.recent.front().is_some_and(|old| old.1.saturating_add(REMEMBERED_NS) < idle.to) {
            state.recent.pop_front();
        }
        let mut certain = 0;
        self.unsure.certain(idle.gpu, idle.from, idle.to, |from, to| {
            certain += to - from;
            state.recent.push_back((from, to));
        });
        state.idle_ns += certain;
        (certain > 0).then_some(idle)
    }
}

impl Gpu {
    /// Whether there are kernels that may not be done.
    pub(crate) fn has_work(&self) -> bool {
        !self.kernels.is_empty()
    }

    /// Notes whether several processes have work now.
    fn note_sharing(&mut self, now: u64, span: &Range<u64>) {
        let first = self.kernels.keys().next().map(|key| key.0);
        let several = self.kernels.keys().any(|key| Some(key.0) != first);
        match several {
            true => _ = self.shared_since.get_or_insert(now),
            false => self.shared_until(now, span),
        }
    }

    /// Ends a time of sharing, if any, and counts the part within the range.
    fn shared_until(&mut self, now: u64, span: &Range<u64>) {
        let since = self.shared_since.take().unwrap_or(now);
        self.shared_ns += overlap(since, now, span.start, span.end);
    }

    /// Certain idle intervals between two times, the open one included.
    pub(crate) fn idle_between(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let open = self.idle_since.map(|since| (since.max(self.certain_from), u64::MAX));
        let all = self.recent.iter().copied().chain(open);
        all.map(|(a, b)| (a.max(from), b.min(to))).filter(|(a, b)| a < b).collect()
    }
}
