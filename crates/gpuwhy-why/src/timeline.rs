// SPDX-License-Identifier: Apache-2.0
//! The last seconds of every thread and CPU, so that a wait can be followed to its cause. What is older than needed
//! is forgotten, so memory does not grow with the run. Times are nanoseconds since the run began.

use crate::calls::may_wait_for_gpu;
use crate::state::{State, blocked_state, is_gil};
use crate::weights::{Between, Others, stretched};
use gpuwhy_model::{Call, Class, CpuRun, MovedWait, OffCpu, OpId, Reason, ThreadSums, WokenBy};
use std::collections::{HashMap, VecDeque};

/// Futexes whose waiters are remembered, to tell locks from queues.
const FUTEXES: usize = 32_768;
/// CPUs whose occupants are remembered.
const CPUS: usize = 4096;
/// How much longer than other things it is remembered who had a CPU, ns.
const RUNS_KEPT_NS: u64 = 2_000_000_000;
/// Tasks that are remembered of one thread to have had its CPU.
const HOLDERS: usize = 256;
/// The words of one lock or condition variable lie this close together.
pub(crate) const SAME_OBJECT: u64 = 64;

/// A thread's position in [`Timeline::threads`].
pub(crate) type ThreadIndex = u32;

/// A time off the CPU: blocked until `woken`, ready until `end`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Off {
    pub(crate) start: u64,
    pub(crate) woken: u64,
    pub(crate) end: u64,
    pub(crate) state: State,
    pub(crate) throttled: bool,
    pub(crate) gil: bool,
    pub(crate) timed: bool,
    pub(crate) io_wait: bool,
    pub(crate) object: u64,
    pub(crate) woken_by: WokenBy,
    pub(crate) waker: ThreadIndex,
    pub(crate) cpu: u16,
    pub(crate) stack: u64,
}

/// A CUDA call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) op: OpId,
    pub(crate) class: Class,
    /// Whether the time in it may be a wait for the GPU.
    pub(crate) for_gpu: bool,
    pub(crate) stack: u64,
}

/// One thread's last seconds. Everything is in order of time.
#[derive(Debug, Default)]
pub(crate) struct Thread {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    /// Whether it is one of the job's: others are known only as wakers.
    pub(crate) watched: bool,
    pub(crate) born: Option<u64>,
    pub(crate) ended: Option<u64>,
    /// The thread that made it.
    pub(crate) creator: Option<ThreadIndex>,
    pub(crate) offs: VecDeque<Off>,
    pub(crate) calls: VecDeque<Span>,
    between: Between,
    /// When its last time off the CPU ended.
    off_until: u64,
    /// Looks at what it was running: time and stack.
    pub(crate) samples: VecDeque<(u64, u64)>,
    /// When it had made a process.
    pub(crate) forks: VecDeque<u64>,
    /// On the CPU, but making room in memory: direct reclaim, compaction.
    pub(crate) memory: VecDeque<(u64, u64)>,
    moved: VecDeque<(u64, u64, u16)>,
    /// Who had the CPU while it was ready, ns by holder, of what is forgotten.
    pub(crate) held: HashMap<u32, u64>,
}

/// Who had a CPU.
#[derive(Debug, Clone, Copy)]
struct Run {
    start: u64,
    end: u64,
    holder: u32,
}

/// A task that had a CPU.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) name: String,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    pub(crate) threads: Vec<Thread>,
    index: HashMap<u32, ThreadIndex>,
    by_pid: HashMap<u32, Vec<ThreadIndex>>,
    runs: HashMap<u16, VecDeque<Run>>,
    pub(crate) holders: Vec<Holder>,
    holder_index: HashMap<(u32, u32), u32>,
    /// Of each futex, the first threads that waited there.
    futexes: HashMap<(u32, u64), [ThreadIndex; 2]>,
    /// Whether anything was off the CPU at all: else the scheduler was not followed.
    pub(crate) has_offs: bool,
}

const NO_THREAD: ThreadIndex = ThreadIndex::MAX;

impl Timeline {
    /// Starts with the threads the kernel told of.
    pub(crate) fn new(sums: &[ThreadSums]) -> Self {
        let mut timeline = Self::default();
        for life in sums {
            let index = timeline.thread(life.pid, life.tid);
            let thread = &mut timeline.threads[index as usize];
            thread.watched = true;
            // Of an id that was used again, the first birth and the last end.
            thread.born = Some(thread.born.map_or(life.born_ns, |born| born.min(life.born_ns)));
            thread.ended = life.ended.then_some(life.at_ns);
        }
        for life in sums.iter().filter(|life| life.tid != life.pid) {
            // Who made a thread is not told; its process's first thread is where to look.
            let (index, main) = (timeline.thread(life.pid, life.tid), timeline.thread(life.pid, life.pid));
            timeline.threads[index as usize].creator = Some(main);
        }
        timeline
    }

    /// The thread's position, new if need be.
    pub(crate) fn thread(&mut self, pid: u32, tid: u32) -> ThreadIndex {
        if let Some(index) = self.index.get(&tid)
            && (self.threads[*index as usize].pid == pid || pid == 0)
        {
            return *index;
        }
        let index = self.threads.len() as ThreadIndex;
        self.threads.push(Thread { pid, tid, ..Thread::default() });
        self.index.insert(tid, index);
        self.by_pid.entry(pid).or_default().push(index);
        index
    }

    /// The threads of a process.
    pub(crate) fn of_process(&self, pid: u32) -> &[ThreadIndex] {
        self.by_pid.get(&pid).map(Vec::as_slice).unwrap_or_default()
    }

    /// A CUDA call. Returns its thread, and what is known of those it stands for.
    pub(crate) fn call(&mut self, call: &Call, class: Class) -> (ThreadIndex, Others) {
        let index = self.thread(call.pid, call.tid);
        let thread = &mut self.threads[index as usize];
        thread.watched = true;
        let end = call.start_ns.saturating_add(call.duration_ns);
        let others = thread.between.take(call);
        // One inside another, made from a callback, is part of that.
        if thread.calls.back().is_none_or(|last| last.end <= call.start_ns) {
            let stack = call.stack.unwrap_or(0);
            let start = call.start_ns - others.before_ns;
            let for_gpu = may_wait_for_gpu(call, class);
            thread.calls.push_back(Span { start, end, op: call.op, class, for_gpu, stack });
        }
        (index, others)
    }

    pub(crate) fn off(&mut self, off: &OffCpu) {
        self.has_offs = true;
        let index = self.thread(off.pid, off.tid);
        let waker = if off.woken_by == WokenBy::Nobody || off.waker_tid == 0 {
            NO_THREAD
        } else {
            self.thread(off.waker_pid, off.waker_tid)
        };
        let thread = &mut self.threads[index as usize];
        thread.watched = true;
        let inside = thread.calls.iter().rev().find(|call| call.start <= off.start_ns);
        let inside = inside.filter(|call| off.start_ns < call.end).map(|call| call.class);
        let off = &stretched(off, thread.off_until);
        let end = off.start_ns.saturating_add(off.duration_ns);
        thread.off_until = thread.off_until.max(end);
        let state = blocked_state(off, inside);
        thread.offs.push_back(Off {
            start: off.start_ns,
            woken: end.saturating_sub(off.ready_ns).max(off.start_ns),
            end,
            state,
            throttled: off.reason == Reason::Throttled,
            gil: is_gil(off),
            timed: off.timeout_ns.is_some(),
            io_wait: off.io_wait,
            object: off.object,
            woken_by: off.woken_by,
            waker,
            cpu: off.cpu,
            stack: off.stack.unwrap_or(0),
        });
        if state == State::BlockedFutex && off.object != 0 {
            self.note_futex(off.pid, off.object, index);
        }
    }

    fn note_futex(&mut self, pid: u32, object: u64, thread: ThreadIndex) {
        if self.futexes.len() >= FUTEXES {
            self.futexes.clear();
        }
        let waiters = self.futexes.entry((pid, object)).or_insert([thread, NO_THREAD]);
        if waiters[0] != thread && waiters[1] == NO_THREAD {
            waiters[1] = thread;
        }
    }

    /// Whether different threads wait at the same word: then it guards something, as opposed to a queue, where one
    /// side waits for the other.
    pub(crate) fn is_lock(&self, pid: u32, object: u64) -> bool {
        self.futexes.get(&(pid, object)).is_some_and(|waiters| waiters[1] != NO_THREAD)
    }

    pub(crate) fn run(&mut self, run: &CpuRun) {
        if self.runs.len() >= CPUS && !self.runs.contains_key(&run.cpu) {
            return;
        }
        let length = run.name.iter().position(|byte| *byte == 0).unwrap_or(run.name.len());
        let name = &run.name[..length];
        let holder = *self.holder_index.entry((run.pid, run.tid)).or_insert_with(|| {
            self.holders.push(Holder { pid: run.pid, tid: run.tid, name: String::new() });
            (self.holders.len() - 1) as u32
        });
        // A shell becomes the program it runs: the last name is what people know it by.
        let known = &mut self.holders[holder as usize].name;
        if known.as_bytes() != name {
            *known = String::from_utf8_lossy(name).into_owned();
        }
        let end = run.start_ns.saturating_add(run.duration_ns);
        self.runs.entry(run.cpu).or_default().push_back(Run { start: run.start_ns, end, holder });
    }

    pub(crate) fn moved(&mut self, moved: &MovedWait) {
        let index = self.thread(moved.pid, moved.tid);
        let end = moved.start_ns.saturating_add(moved.duration_ns);
        self.threads[index as usize].moved.push_back((moved.start_ns, end, moved.cpu));
    }

    /// Forgets what ended before a moment. Who had the CPU while a thread was ready is summed up before that, as far as
    /// it lies in the span.
    pub(crate) fn forget(&mut self, before: u64, span: (u64, u64)) {
        for index in 0..self.threads.len() {
            self.sum_held(index, before, span);
        }
        for thread in &mut self.threads {
            drop_while(&mut thread.offs, |off| off.end < before);
            drop_while(&mut thread.calls, |call| call.end < before);
            drop_while(&mut thread.samples, |sample| sample.0 < before);
            drop_while(&mut thread.forks, |fork| *fork < before);
            drop_while(&mut thread.memory, |span| span.1 < before);
            drop_while(&mut thread.moved, |wait| wait.1 < before);
        }
        // A thread may have been ready for long: who had the CPU then is asked when that is over.
        for runs in self.runs.values_mut() {
            drop_while(runs, |run| run.end.saturating_add(RUNS_KEPT_NS) < before);
        }
    }

    fn sum_held(&mut self, index: usize, before: u64, (from, to): (u64, u64)) {
        let mut held = std::mem::take(&mut self.threads[index].held);
        for off in self.threads[index].offs.iter().take_while(|off| off.end < before) {
            let (a, b) = (off.woken.max(from), off.end.min(to));
            if a < b && !off.throttled {
                self.holders(index as ThreadIndex, off, a, b, &mut |a, b, holder| {
                    if let Some(holder) = holder
                        && (held.len() < HOLDERS || held.contains_key(&holder))
                    {
                        let sum: &mut u64 = held.entry(holder).or_default();
                        *sum = sum.saturating_add(b - a);
                    }
                });
            }
        }
        self.threads[index].held = held;
    }

    /// Who had the CPUs for which a ready thread waited from `a` to `b`; `None` for parts in which nobody did.
    pub(crate) fn holders(
        &self,
        thread: ThreadIndex,
        off: &Off,
        a: u64,
        b: u64,
        each: &mut dyn FnMut(u64, u64, Option<u32>),
    ) {
        let mut at = a;
        let waits = &self.threads[thread as usize].moved;
        let first = waits.partition_point(|wait| wait.1 <= a);
        for (start, end, cpu) in waits.iter().skip(first).copied().take_while(|wait| wait.0 < b) {
            let (start, end) = (start.max(at), end.min(b));
            if start < end {
                self.on_cpu(thread, off.cpu, at, start, each);
                self.on_cpu(thread, cpu, start, end, each);
                at = end;
            }
        }
        self.on_cpu(thread, off.cpu, at, b, each);
    }

    fn on_cpu(&self, thread: ThreadIndex, cpu: u16, a: u64, b: u64, each: &mut dyn FnMut(u64, u64, Option<u32>)) {
        let mut at = a;
        if let Some(runs) = self.runs.get(&cpu) {
            let first = runs.partition_point(|run| run.end <= a);
            for run in runs.iter().skip(first).take_while(|run| run.start < b) {
                let holder = &self.holders[run.holder as usize];
                // A thread does not wait for itself: that is a row stored a nanosecond late because of a tie.
                if holder.tid == self.threads[thread as usize].tid || run.end.min(b) <= at {
                    continue;
                }
                if run.start > at {
                    each(at, run.start, None);
                }
                let start = run.start.max(at);
                let end = run.end.min(b);
                // Task 0 is "nobody": the CPU was idle and the thread on its way.
                each(start, end, (holder.pid != 0 || holder.tid != 0).then_some(run.holder));
                at = end;
            }
        }
        if at < b {
            each(at, b, None);
        }
    }
}

fn drop_while<T>(queue: &mut VecDeque<T>, old: impl Fn(&T) -> bool) {
    while queue.front().is_some_and(&old) {
        queue.pop_front();
    }
}
