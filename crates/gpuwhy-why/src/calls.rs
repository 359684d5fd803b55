// SPDX-License-Identifier: Apache-2.0
//! The effect of CUDA calls on a GPU's queue: which calls queue work, wait for it or order it.

use crate::device::{Launch, SLOWEST_COPY};
use crate::explain::Explainer;
use crate::timeline::ThreadIndex;
use crate::weights::Others;
use gpuwhy_model::{Call, Class, Direction, Op};
use std::cmp::Reverse;

/// CUDA events that are remembered.
const EVENTS: usize = 65_536;

/// A call that only queues something and takes longer than this, ns, may have waited for room in the queue.
const QUEUING_NS: u64 = 20_000;
/// A copy to the device of at most this many bytes may return before it has waited for anything.
const SMALL_COPY: u64 = 64 << 10;

/// Whether the time in a call may be a wait for the GPU, rather than the host's own work.
pub(crate) fn may_wait_for_gpu(call: &Call, class: Class) -> bool {
    match class {
        Class::Sync => true,
        Class::Launch | Class::Fill | Class::Collective | Class::Graph | Class::Free => call.duration_ns > QUEUING_NS,
        // Copying alone does not take that long.
        Class::Copy => {
            let copying = call.arg0.unwrap_or(0).saturating_mul(SLOWEST_COPY);
            call.duration_ns > copying.saturating_add(QUEUING_NS)
        }
        _ => false,
    }
}

/// Something that becomes true when a call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Done {
    pub(crate) at: u64,
    pub(crate) start: u64,
    pub(crate) gpu: u32,
    pub(crate) pid: u32,
    pub(crate) thread: ThreadIndex,
    pub(crate) stream: Option<u64>,
    /// Work queued until this time is done.
    pub(crate) as_of: u64,
    /// Whether the call's purpose is to wait; a call that frees memory waits only as a side effect.
    pub(crate) waits: bool,
}

/// A successful call of the program, with its GPU and stream.
struct Made<'a> {
    call: &'a Call,
    op: &'a Op,
    thread: ThreadIndex,
    gpu: u32,
    stream: u64,
    /// Whether it began in the time range.
    counted: bool,
    /// The calls it represents, without itself.
    others: Others,
}

impl Made<'_> {
    /// How many calls it represents, itself included.
    fn calls(&self) -> u64 {
        self.call.calls()
    }

    /// How long they took together, ns.
    fn time_ns(&self) -> u64 {
        self.call.duration_ns.saturating_add(self.others.ns)
    }

    /// Once it returns, everything queued before is done: on one stream, or on all of the process's.
    fn done(&self, stream: Option<u64>) -> Done {
        Done {
            at: self.call.start_ns.saturating_add(self.call.duration_ns),
            start: self.call.start_ns,
            gpu: self.gpu,
            pid: self.call.pid,
            thread: self.thread,
            stream,
            as_of: self.call.start_ns,
            waits: self.op.class != Class::Free,
        }
    }
}

/// A stream's number within its process, the same for every spelling of its handle.
pub(crate) fn stream_of(call: &Call, op: &Op) -> u64 {
    let per_thread = op.function.ends_with("_ptsz") || op.function.ends_with("_ptds");
    match call.stream.unwrap_or(0) {
        // The thread's own default stream: no handle has the highest bit set.
        0 if per_thread => u64::from(call.tid) | 1 << 63,
        2 => u64::from(call.tid) | 1 << 63,
        // Two names of the legacy default stream.
        1 => 0,
        stream => stream,
    }
}

impl Explainer {
    /// A call, or a kernel event.
    pub(crate) fn call(&mut self, call: &Call) {
        if self.facts.others.contains_key(&call.pid) {
            return self.neighbours_call(call);
        }
        if !call.op.is_cuda() {
            return self.kernel_event(call);
        }
        self.ledger.call(call);
        let Some(op) = call.op.get().filter(|_| !call.flags.inner) else { return };
        let (thread, others) = self.timeline.call(call, op.class);
        let (gpu, numbered) = self.places.find(call.pid, call.device);
        *self.counts.numbered.entry(gpu).or_insert(true) &= numbered;
        if op.class == Class::Graph && op.name.contains("EndCapture") {
            // Whatever it returns. Streams that joined the capture end with it.
            self.capturing.retain(|(pid, _)| *pid != call.pid);
        }
        if call.ret != 0 && !call.flags.unfinished {
            return;
        }
        let counted = self.facts.has(call.start_ns);
        let made = Made { call, op, thread, gpu, stream: stream_of(call, op), counted, others };
        match op.class {
            // The work runs when the graph is launched, not now.
            Class::Launch | Class::Fill | Class::Collective | Class::Copy if self.is_captured(&made) => {}
            Class::Graph if op.name.contains("BeginCapture") => self.captures(&made),
            Class::Launch | Class::Fill => self.queued(&made),
            Class::Collective => {
                self.queued(&made);
                self.exchanging.insert(call.pid);
            }
            Class::Copy => self.copy(&made),
            Class::Sync if !call.flags.unfinished => self.sync(&made),
            Class::Alloc | Class::Free => self.memory(&made),
            Class::Order => self.order(&made),
            _ => {}
        }
    }

    /// Another job's call: only its GPU work matters.
    fn neighbours_call(&mut self, call: &Call) {
        if !call.op.is_cuda() {
            return self.neighbour_kernel_event(call);
        }
        let Some(op) = call.op.get().filter(|_| !call.flags.inner) else { return };
        if call.ret == 0 || call.flags.unfinished {
            let (gpu, _) = self.places.find(call.pid, call.device);
            self.neighbours.call(call, op, gpu);
        }
    }

    fn is_captured(&self, made: &Made<'_>) -> bool {
        !self.capturing.is_empty() && self.capturing.contains(&(made.call.pid, made.stream))
    }

    /// The capture of a graph begins, or another stream joins it.
    fn captures(&mut self, made: &Made<'_>) {
        if self.capturing.len() < EVENTS {
            self.capturing.insert((made.call.pid, made.stream));
        }
    }

    /// Work for the GPU's multiprocessors.
    fn queued(&mut self, made: &Made<'_>) {
        let call = made.call;
        if made.counted && made.op.class == Class::Launch {
            self.counts.users.insert((call.pid, made.gpu));
            *self.counts.launchers.entry(made.thread).or_default() += made.calls();
            self.slices.at(call.start_ns).launches += made.calls();
        }
        let launch = Launch { first: made.others.first, last: call.start_ns, count: made.calls() };
        let idle = self.devices.launch(made.gpu, (call.pid, made.stream), &launch, made.thread);
        self.due.extend(idle);
    }

    fn copy(&mut self, made: &Made<'_>) {
        let call = made.call;
        let bytes = call.arg0.unwrap_or(0).saturating_mul(made.calls());
        let is = |direction: Direction| call.arg1 == Some(direction as u64);
        let when = (made.others.first, call.start_ns);
        self.devices.copy(made.gpu, (call.pid, made.stream), when, bytes, made.thread);
        if is(Direction::DtoD) {
            // It may be a kernel.
            self.queued(made);
        } else if !made.op.has_stream() && is(Direction::DtoH) && !call.flags.unfinished {
            self.done.push(Reverse(made.done(Some(made.stream))));
        } else if !made.op.has_stream() && is(Direction::HtoD) && bytes > SMALL_COPY && !call.flags.unfinished {
            // It begins when the stream's earlier work is done; how much of the call that took is unknown.
            self.done.push(Reverse(Done { waits: false, ..made.done(Some(made.stream)) }));
        }
        if made.counted {
            let slice = self.slices.at(call.start_ns);
            slice.copies += made.calls();
            slice.copy_ns = slice.copy_ns.saturating_add(made.time_ns());
            slice.copy_bytes = slice.copy_bytes.saturating_add(bytes);
        }
    }

    fn memory(&mut self, made: &Made<'_>) {
        let call = made.call;
        // Freeing a null pointer does not wait; freeing memory waits for all work of the device.
        let plain = made.op.name == "cudaFree" || made.op.name == "cuMemFree";
        if plain && call.arg1.is_some_and(|pointer| pointer != 0) {
            self.done.push(Reverse(made.done(None)));
        }
        if made.counted {
            let slice = self.slices.at(call.start_ns);
            slice.allocs += made.calls();
            slice.alloc_ns = slice.alloc_ns.saturating_add(made.time_ns());
            slice.alloc_stacks.add(call.stack.unwrap_or(0), made.time_ns());
        }
    }

    fn order(&mut self, made: &Made<'_>) {
        let call = made.call;
        let event = (call.pid, call.arg0.unwrap_or(0));
        if made.op.name.contains("EventRecord") {
            if self.recorded.len() >= EVENTS {
                self.recorded.clear();
            }
            self.recorded.insert(event, (made.stream, call.start_ns));
        } else if let Some((other, as_of)) = self.recorded.get(&event).copied() {
            if self.capturing.contains(&(call.pid, other)) {
                // From now on this stream is captured with the one it waits for.
                self.captures(made);
                return;
            }
            self.devices.joins(made.gpu, (call.pid, made.stream), call.start_ns, other, as_of);
        }
    }

    fn sync(&mut self, made: &Made<'_>) {
        let call = made.call;
        if made.counted {
            let slice = self.slices.at(call.start_ns);
            let waited = made.time_ns();
            slice.syncs += made.calls();
            slice.waited_ns = slice.waited_ns.saturating_add(waited);
            slice.sync_stacks.add(call.stack.unwrap_or(0), waited);
            self.counts.sync_times.record_many(call.duration_ns, made.calls());
            if self.exchanging.contains(&call.pid) {
                slice.exchanged_ns = slice.exchanged_ns.saturating_add(waited);
                slice.exchange_stacks.add(call.stack.unwrap_or(0), waited);
            }
        }
        self.exchanging.remove(&call.pid);
        let name = &made.op.name;
        let done = if name.contains("Event") {
            // An event whose recording was not seen may stand for anything.
            let recorded = call.arg0.and_then(|event| self.recorded.get(&(call.pid, event)).copied());
            recorded.map(|(stream, as_of)| Done { as_of, ..made.done(Some(stream)) })
        } else {
            Some(made.done(name.contains("Stream").then_some(made.stream)))
        };
        self.done.extend(done.map(Reverse));
    }
}
