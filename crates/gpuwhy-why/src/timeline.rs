// SPDX-License-Identifier: Apache-2.0
//! The last seconds of every thread and CPU, so that a wait can be followed to its cause. Older events are dropped, so
//! memory does not grow with the run. Times are nanoseconds since the run began.

use crate::calls::may_wait_for_gpu;
use crate::state::{State, blocked_state, is_gil};
use crate::weights::{Between, Others, stretched};
use gpuwhy_model::{Call, Class, CpuRun, MovedWait, OffCpu, OpId, Reason, ThreadSums, WokenBy};
use std::collections::{HashMap, VecDeque};

/// Futexes whose waiters are kept, to distinguish locks from queues.
const FUTEXES: usize = 32_768;
/// CPUs whose running tasks are kept.
const CPUS: usize = 4096;
/// The tasks that had a CPU are kept this much longer than other events, ns.
const RUNS_KEPT_NS: u64 = 2_000_000_000;
/// Tasks kept per thread that had its CPU.
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
    /// Whether it belongs to the job: other threads are known only as wakers.
    pub(crate) watched: bool,
    pub(crate) born: Option<u64>,
    pub(crate) ended: Option<u64>,
    /// The thread that created it.
    pub(crate) creator: Option<ThreadIndex>,
    pub(crate) offs: VecDeque<Off>,
    pub(crate) calls: VecDeque<Span>,
    between: Between,
    /// When its last time off the CPU ended.
    off_until: u64,
    /// CPU samples: time and stack.
    pub(crate) samples: VecDeque<(u64, u64)>,
    /// When it forked.
    pub(crate) forks: VecDeque<u64>,
    /// On the CPU but freeing memory in the kernel: direct reclaim, compaction.
    pub(crate) memory: VecDeque<(u64, u64)>,
    moved: VecDeque<(u64, u64, u16)>,
    /// Who had the CPU while it was ready, ns by holder, from dropped events.
    pub(crate) held: HashMap<u32, u64>,
}

/// A time in which a task had a CPU.
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

/// All threads and CPUs.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    pub(crate) threads: Vec<Thread>,
    index: HashMap<u32, ThreadIndex>,
    by_pid: HashMap<u32, Vec<ThreadIndex>>,
    runs: HashMap<u16, VecDeque<Run>>,
    pub(crate) holders: Vec<Holder>,
    holder_index: HashMap<(u32, u32), u32>,
    /// The first threads that waited at each futex.
    futexes: HashMap<(u32, u64), [ThreadIndex; 2]>,
    /// Whether any time off the CPU was recorded: else the scheduler was not.
    pub(crate) has_offs: bool,
}

const NO_THREAD: ThreadIndex = ThreadIndex::MAX;

impl Timeline {
    /// Starts with the threads of the kernel's sums.
    pub(crate) fn new(sums: &[ThreadSums]) -> Self {
        let mut timeline = Self::default();
        for life in sums {
            let index = timeline.thread(life.pid, life.tid);
            let thread = &mut timeline.threads[index as usize];
            thread.watched = true;
            // A reused id gets the first birth and the last end.
            thread.born = Some(thread.born.map_or(life.born_ns, |born| born.min(life.born_ns)));
            thread.ended = life.ended.then_some(life.at_ns);
        }
        for life in sums.iter().filter(|life| life.tid != life.pid) {
            // The creating thread is not recorded; take the process's first thread.
            let (index, main) = (timeline.thread(life.pid, life.tid), timeline.thread(life.pid, life.pid));
            timeline.threads[index as usize].creator = Some(main);
        }
        timeline
    }

    /// The thread's position; adds it if it is new.
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

    /// A CUDA call. Returns its thread, and the calls it represents.
    pub(crate) fn call(&mut self, call: &Call, class: Class) -> (ThreadIndex, Others) {
        let index = self.thread(call.pid, call.tid);
        let thread = &mut self.threads[index as usize];
        thread.watched = true;
        let end = call.start_ns.saturating_add(call.duration_ns);
        let others = thread.between.take(call);
        // A call inside another, made from a callback, is part of it.
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

    /// Whether different threads wait at the same futex: then it is a lock. At a queue one side waits for the other.
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
        // A shell becomes the program it runs: keep the last name.
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

    /// Drops what ended before a time. First sums up who had the CPU while a thread was ready within the range.
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
        // A thread may be ready for long: who had the CPU is looked up when that ends.
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

    /// The tasks that had the CPUs for which a ready thread waited from `a` to `b`; `None` while the CPU was idle.
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
                // A thread does not wait for itself: this row was stored a nanosecond late because of a tie.
                if holder.tid == self.threads[thread as usize].tid || run.end.min(b) <= at {
                    continue;
                }
                if run.start > at {
                    each(at, run.start, None);
                }
                let start = run.start.max(at);
                let end = run.end.min(b);
                // Task 0 is the idle task: the thread was about to run.
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
