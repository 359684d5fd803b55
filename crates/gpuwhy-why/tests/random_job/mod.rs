// SPDX-License-Identifier: Apache-2.0
//! A job made of random actions: a thread launches, copies, waits, sleeps and is preempted; another wakes it. The GPU
//! runs kernels one at a time in the order of their streams. When each ran is known.

use gpuwhy_model::ops::by_function;
use gpuwhy_model::replay::Event;
use gpuwhy_model::{Call, CallFlags, Class, OffCpu, Reason, ThreadSums, Wait, WokenBy};

const PID: u32 = 100;
const HELPER: u32 = 101;
/// A thread that waits for streams in the middle of the first one's bursts.
const OTHER: u32 = 102;
const STREAMS: usize = 3;
/// Events used in turn.
const EVENTS: usize = 4;

/// Random numbers that are the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// What happened.
pub(crate) struct Job {
    pub(crate) events: Vec<Event>,
    pub(crate) sums: Vec<ThreadSums>,
    pub(crate) end: u64,
    kernels: Vec<(u64, u64)>,
}

struct Making {
    random: Random,
    now: u64,
    events: Vec<Event>,
    kernels: Vec<(u64, u64)>,
    /// When each stream has done what is queued.
    streams: [u64; STREAMS],
    engine: u64,
    copier: u64,
    recorded: [(usize, u64); EVENTS],
    off_ns: (u64, u64),
    helper_off_ns: u64,
    /// When the other thread is done with its last wait; `None` if there are no bursts.
    other_free: Option<u64>,
}

impl Job {
    pub(crate) fn new(seed: u64) -> Self {
        Self::made(seed, false)
    }

    /// A job that launches, copies and records in bursts, while another thread waits for its streams.
    pub(crate) fn with_bursts(seed: u64) -> Self {
        Self::made(seed, true)
    }

    fn made(seed: u64, bursts: bool) -> Self {
        let mut making = Making {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            now: 1_000_000,
            events: Vec::new(),
            kernels: Vec::new(),
            streams: [0; STREAMS],
            engine: 0,
            copier: 0,
            recorded: [(0, 0); EVENTS],
            off_ns: (0, 0),
            helper_off_ns: 0,
            other_free: bursts.then_some(0),
        };
        // Some jobs rarely wait for the GPU, some all the time.
        let waits = 1 + making.random.below(40);
        for _ in 0..600 {
            making.act(waits);
        }
        making.finish()
    }

    /// The same job, seen only from a moment on.
    pub(crate) fn without_the_first(&self, ns: u64) -> Self {
        let events = self.events.iter().filter(|event| event.start_ns() >= ns).copied().collect();
        Self { events, sums: self.sums.clone(), end: self.end, kernels: self.kernels.clone() }
    }

    /// Puts a collective before each wait for a stream or the device. It takes no time on the GPU: it may have been done.
    pub(crate) fn exchange_before_waits(&mut self) {
        let Some(collective) = by_function("ncclAllReduce") else { panic!("NCCL is not in the op table") };
        let mut events = Vec::with_capacity(self.events.len());
        for event in &self.events {
            if let Event::Call(call) = event
                && call.op.get().is_some_and(|op| op.class == Class::Sync)
            {
                let stream = call.arg0.or(Some(0x1000));
                let start_ns = call.start_ns.saturating_sub(500);
                events.push(Event::Call(Call { start_ns, duration_ns: 400, op: collective.id, stream, ..*call }));
            }
            events.push(*event);
        }
        events.sort_by_key(Event::start_ns);
        self.events = events;
    }

    /// Time without a kernel.
    pub(crate) fn idle(&self, from: u64, to: u64) -> u64 {
        let busy: u64 = self.kernels.iter().map(|(start, end)| end.min(&to).saturating_sub(*start.max(&from))).sum();
        to - from - busy
    }
}

impl Making {
    fn act(&mut self, waits: u64) {
        let stream = self.random.below(STREAMS as u64) as usize;
        match self.random.below(60 + waits) {
            kind @ 0..36 if self.other_free.is_some() => self.burst(stream, kind),
            0..25 => self.launch(stream),
            25..32 => self.copy(stream),
            32..36 => self.record(stream),
            36..44 => self.now += self.random.below(300_000),
            44..48 => self.sleep(),
            48..52 => self.preempted(),
            52..56 => self.wait_for_helper(),
            56..60 => self.wait_event(),
            60..62 => self.wait("cudaDeviceSynchronize", None, *self.streams.iter().max().unwrap_or(&0)),
            _ => self.wait("cudaStreamSynchronize", Some(stream), self.streams[stream]),
        }
        self.now += 1 + self.random.below(20_000);
    }

    fn call(&mut self, function: &str, duration: u64, stream: Option<usize>, arg0: Option<u64>, arg1: Option<u64>) {
        let Some(op) = by_function(function) else { panic!("{function} is not in the op table") };
        let call = Call {
            start_ns: self.now,
            duration_ns: duration,
            pid: PID,
            tid: PID,
            op: op.id,
            device: Some(0),
            stream: stream.map(|stream| 0x1000 + stream as u64),
            arg0,
            arg1,
            ret: 0,
            flags: CallFlags::default(),
            weight: 1,
            stack: None,
        };
        self.events.push(Event::Call(call));
    }

    /// The same calls again and again, with hardly any time between; sometimes of one kind, sometimes of several.
    fn burst(&mut self, stream: usize, kind: u64) {
        let count = 1 + self.random.below(60);
        let mixed = self.random.below(2) == 0;
        let (one, other) = (stream, self.random.below(STREAMS as u64) as usize);
        let bytes = self.random.below(40_000);
        let event = self.random.below(EVENTS as u64) as usize;
        for _ in 0..count {
            let kind = if mixed { self.random.below(36) } else { kind };
            let stream = if mixed && self.random.below(4) == 0 { other } else { one };
            match kind {
                0..25 => self.launch(stream),
                25..32 => self.copy_bytes(stream, bytes, 1),
                _ => self.record_event(stream, event),
            }
            if self.random.below(40) == 0 {
                self.other_waits(stream);
            }
            self.now += 1 + self.random.below(6_000);
        }
    }

    /// The other thread begins to wait for a stream, spinning, while this one goes on.
    fn other_waits(&mut self, stream: usize) {
        let late = self.random.below(3_000);
        let Some(free) = self.other_free.as_mut().filter(|free| **free < self.now) else { return };
        let took = self.streams[stream].saturating_sub(self.now) + late + 500;
        *free = self.now + took;
        self.call("cudaStreamSynchronize", took, Some(stream), Some(0x1000 + stream as u64), None);
        if let Some(Event::Call(call)) = self.events.last_mut() {
            call.tid = OTHER;
        }
    }

    fn launch(&mut self, stream: usize) {
        let took = 2_000 + self.random.below(10_000);
        self.call("cuLaunchKernel", took, Some(stream), None, None);
        // The GPU takes it up at some moment of the call.
        let begin = (self.now + self.random.below(took)).max(self.streams[stream]).max(self.engine);
        let longest = if self.other_free.is_some() { 20_000 } else { 400_000 };
        let end = begin + 1_000 + self.random.below(longest);
        self.kernels.push((begin, end));
        (self.streams[stream], self.engine) = (end, end);
        self.now += took;
    }

    /// From pinned memory: the call returns at once.
    fn copy(&mut self, stream: usize) {
        let bytes = self.random.below(4_000_000);
        self.copy_bytes(stream, bytes, 1 + self.random.0 % 2);
    }

    fn copy_bytes(&mut self, stream: usize, bytes: u64, direction: u64) {
        self.call("cudaMemcpyAsync", 3_000, Some(stream), Some(bytes), Some(direction));
        let begin = self.now.max(self.streams[stream]).max(self.copier);
        let end = begin + bytes / 20;
        (self.streams[stream], self.copier) = (end, end);
        self.now += 3_000;
    }

    fn record(&mut self, stream: usize) {
        let event = self.random.below(EVENTS as u64) as usize;
        self.record_event(stream, event);
    }

    fn record_event(&mut self, stream: usize, event: usize) {
        self.call("cudaEventRecord", 1_000, Some(stream), Some(event as u64 + 1), None);
        self.recorded[event] = (stream, self.streams[stream]);
        self.now += 1_000;
    }

    fn wait_event(&mut self) {
        let event = self.random.below(EVENTS as u64) as usize;
        let (_, done) = self.recorded[event];
        if done == 0 {
            return;
        }
        let took = done.saturating_sub(self.now) + 1_000 + self.random.below(5_000);
        self.call("cudaEventSynchronize", took, None, Some(event as u64 + 1), None);
        self.now += took;
    }

    /// Waiting spins, or blocks and learns of it late; either may be preempted.
    fn wait(&mut self, function: &str, stream: Option<usize>, done: u64) {
        let begin = self.now;
        let gpu = done.saturating_sub(begin);
        let late = self.random.below(60_000);
        let took = gpu + late + 500;
        self.call(function, took, stream, stream.map(|stream| 0x1000 + stream as u64), None);
        if self.random.below(2) == 0 && gpu > 2_000 {
            // Blocked until the GPU was done, then ready for a while.
            self.off(PID, begin + 1_000, gpu - 1_000, late, Wait::Poll, WokenBy::Interrupt);
        } else if late > 30_000 {
            self.off(PID, begin + gpu, 0, late, Wait::Nothing, WokenBy::Nobody);
        }
        self.now = begin + took;
    }

    fn off(&mut self, tid: u32, start: u64, blocked: u64, ready: u64, wait: Wait, woken_by: WokenBy) {
        let off = OffCpu {
            start_ns: start,
            duration_ns: blocked + ready,
            ready_ns: ready,
            pid: PID,
            tid,
            reason: if wait == Wait::Nothing { Reason::Preempted } else { Reason::Asleep },
            wait,
            syscall: None,
            file: 0,
            object: 0x5000,
            timeout_ns: None,
            io_wait: false,
            woken_by,
            waker_pid: if woken_by == WokenBy::Thread { PID } else { 0 },
            waker_tid: if woken_by == WokenBy::Thread { HELPER } else { 0 },
            left_cpu: 0,
            cpu: 0,
            unfinished: false,
            weight: 1,
            stack: None,
        };
        self.events.push(Event::Off(off));
        if tid == PID {
            self.off_ns.0 += blocked;
            self.off_ns.1 += ready;
        } else {
            self.helper_off_ns += blocked;
        }
    }

    fn sleep(&mut self) {
        let (blocked, ready) = (1_000 + self.random.below(3_000_000), self.random.below(50_000));
        self.off(PID, self.now, blocked, ready, Wait::Sleep, WokenBy::Timer);
        self.now += blocked + ready;
    }

    fn preempted(&mut self) {
        let ready = 1_000 + self.random.below(2_000_000);
        self.off(PID, self.now, 0, ready, Wait::Nothing, WokenBy::Nobody);
        self.now += ready;
    }

    /// The helper works for a part of the time, and sleeps before that.
    fn wait_for_helper(&mut self) {
        let blocked = 10_000 + self.random.below(2_000_000);
        self.off(PID, self.now, blocked, 1_000, Wait::Futex, WokenBy::Thread);
        let asleep = self.random.below(blocked - 5_000) + 1;
        self.off(HELPER, self.now + 1_000, asleep, 0, Wait::Sleep, WokenBy::Timer);
        self.now += blocked + 1_000;
    }

    fn finish(mut self) -> Job {
        let end = self.now.max(self.engine).max(self.other_free.unwrap_or(0)) + 100_000;
        self.events.sort_by_key(Event::start_ns);
        let of = |tid: u32, blocked: u64, ready: u64| ThreadSums {
            pid: PID,
            tid,
            name: *b"job\0\0\0\0\0\0\0\0\0\0\0\0\0",
            born_ns: 0,
            since_ns: 0,
            at_ns: end,
            on_cpu_ns: end - blocked - ready,
            ready_ns: ready,
            blocked_ns: blocked,
            throttled_ns: 0,
            switches: 0,
            page_allocations: 0,
            page_bytes: 0,
            ended: false,
            has_times: true,
        };
        let mut sums = vec![of(PID, self.off_ns.0, self.off_ns.1), of(HELPER, self.helper_off_ns, 0)];
        sums.extend(self.other_free.map(|_| of(OTHER, 0, 0)));
        Job { events: self.events, sums, end, kernels: self.kernels }
    }
}
