// SPDX-License-Identifier: Apache-2.0
//! Jobs told in a few lines: who did what, and when. Times are nanoseconds since the run began.

use crate::thinned::thinned;
use gpuwhy_model::ops::{KernelOp, by_function, kernel_op};
use gpuwhy_model::replay::Event;
use gpuwhy_model::sample::{GpuBusy, GpuProcess, GpuSample};
use gpuwhy_model::thin::Thinning;
use gpuwhy_model::{
    Call, CallFlags, CpuRun, Finding, MovedWait, OffCpu, OpId, Reason, Severity, ThreadSums, Wait, WokenBy,
};
use gpuwhy_why::{Explainer, Facts, FrameFact, ProcessFact, Report, StackFact};
use std::collections::HashMap;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1000 * MS;
/// How long a launch takes.
pub(crate) const LAUNCH: u64 = 10_000;

/// A thread of the job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Thread {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
}

/// A job as it is told.
pub(crate) struct Story {
    pub(crate) facts: Facts,
    /// Where the telling has come to; the run ends there unless the facts say otherwise.
    pub(crate) now: u64,
    events: Vec<Event>,
    stacks: HashMap<u64, StackFact>,
}

/// A time off the CPU, to be told more of.
pub(crate) struct Off<'a>(&'a mut OffCpu);

impl Off<'_> {
    /// Another thread ended it.
    pub(crate) fn by(self, waker: Thread) -> Self {
        (self.0.woken_by, self.0.waker_pid, self.0.waker_tid) = (WokenBy::Thread, waker.pid, waker.tid);
        self
    }

    /// Something else than a thread ended it.
    pub(crate) fn ended_by(self, what: WokenBy) -> Self {
        self.0.woken_by = what;
        self
    }

    /// The thread would have waited no longer than this.
    pub(crate) fn limit(self, ns: u64) -> Self {
        self.0.timeout_ns = Some(ns);
        self
    }

    /// Which futex or file.
    pub(crate) fn object(self, object: u64) -> Self {
        self.0.object = object;
        self
    }

    /// Where in its code the thread was.
    pub(crate) fn stack(self, stack: u64) -> Self {
        self.0.stack = Some(stack);
        self
    }

    /// The last part of it: ready, waiting for a CPU.
    pub(crate) fn ready(self, ns: u64) -> Self {
        self.0.ready_ns = ns;
        self
    }
}

impl Story {
    pub(crate) fn new() -> Self {
        let facts = Facts { started: true, complete: true, cores: 4, ..Facts::default() };
        Self { facts, now: 0, events: Vec::new(), stacks: HashMap::new() }
    }

    /// A process of the job, with its first thread.
    pub(crate) fn process(&mut self, pid: u32, name: &str) -> Thread {
        let fact = ProcessFact { pid, name: name.to_owned(), ..ProcessFact::default() };
        self.facts.processes.insert(pid, fact);
        self.thread(pid, pid, name)
    }

    /// Another thread of a process.
    pub(crate) fn thread(&mut self, pid: u32, tid: u32, name: &str) -> Thread {
        self.facts.threads.push(ThreadSums {
            pid,
            tid,
            name: padded(name),
            born_ns: 0,
            since_ns: 0,
            at_ns: 0,
            on_cpu_ns: 0,
            ready_ns: 0,
            blocked_ns: 0,
            throttled_ns: 0,
            switches: 0,
            page_allocations: 0,
            page_bytes: 0,
            ended: false,
            has_times: true,
        });
        Thread { pid, tid }
    }

    /// A stack whose line is this, as `train.py:138`.
    pub(crate) fn line(&mut self, line: &str) -> u64 {
        let id = self.stacks.len() as u64 + 1;
        let file = line.split(':').next().unwrap_or_default().to_owned();
        let frames = vec![FrameFact { file, line: 1, function: "main".to_owned() }];
        self.stacks.insert(id, StackFact { top_line: Some(format!("/home/me/{line} main")), frames });
        id
    }

    /// A stack of these files and functions, innermost first; each is at the line that is its position, from 1. The line it
    /// is known by is the innermost of the job's own code, else of a package, else of all.
    pub(crate) fn stack(&mut self, frames: &[(&str, &str)]) -> u64 {
        let parsed: Vec<gpuwhy_stacks::Frame> = frames
            .iter()
            .zip(1..)
            .map(|((file, function), line)| gpuwhy_stacks::Frame {
                file: (*file).to_owned(),
                function: (*function).to_owned(),
                line: Some(line),
            })
            .collect();
        let top_line = Some(gpuwhy_stacks::Stack::new(&parsed).top_line);
        let frame = |frame: gpuwhy_stacks::Frame| FrameFact {
            file: frame.file,
            line: frame.line.unwrap_or(0),
            function: frame.function,
        };
        let id = self.stacks.len() as u64 + 1;
        self.stacks.insert(id, StackFact { top_line, frames: parsed.into_iter().map(frame).collect() });
        id
    }

    /// The same, but inside the code of a queue that the line reads from.
    pub(crate) fn line_in_queue(&mut self, line: &str) -> u64 {
        let id = self.line(line);
        let get = FrameFact { file: "/usr/lib/python3/queue.py".to_owned(), line: 171, function: "get".to_owned() };
        if let Some(stack) = self.stacks.get_mut(&id) {
            stack.frames.insert(0, get);
        }
        id
    }

    /// A CUDA call.
    pub(crate) fn call(&mut self, thread: Thread, function: &str, at: u64, ns: u64) -> &mut Call {
        let Some(op) = by_function(function) else { panic!("{function} is not in the op table") };
        self.push_call(thread, op.id, at, ns)
    }

    fn push_call(&mut self, thread: Thread, op: OpId, at: u64, ns: u64) -> &mut Call {
        let call = Call {
            start_ns: at,
            duration_ns: ns,
            pid: thread.pid,
            tid: thread.tid,
            op,
            device: Some(0),
            stream: None,
            arg0: None,
            arg1: None,
            ret: 0,
            flags: CallFlags::default(),
            weight: 1,
            stack: None,
        };
        self.events.push(Event::Call(call));
        match self.events.last_mut() {
            Some(Event::Call(call)) => call,
            _ => unreachable!("it was just pushed"),
        }
    }

    pub(crate) fn launch(&mut self, thread: Thread, at: u64) {
        self.call(thread, "cuLaunchKernel", at, LAUNCH).stream = Some(0x1000);
    }

    pub(crate) fn sync(&mut self, thread: Thread, at: u64, ns: u64) -> &mut Call {
        self.call(thread, "cudaDeviceSynchronize", at, ns)
    }

    /// A kernel and a spinning wait for it: `ns` later the GPU has nothing to do.
    pub(crate) fn kernel(&mut self, thread: Thread, ns: u64) {
        self.launch(thread, self.now);
        self.sync(thread, self.now + LAUNCH, ns - LAUNCH);
        self.now += ns;
    }

    /// The thread waits.
    pub(crate) fn off(&mut self, thread: Thread, at: u64, ns: u64, wait: Wait) -> Off<'_> {
        let off = OffCpu {
            start_ns: at,
            duration_ns: ns,
            ready_ns: 0,
            pid: thread.pid,
            tid: thread.tid,
            reason: Reason::Asleep,
            wait,
            syscall: None,
            file: 0,
            object: 0,
            timeout_ns: None,
            io_wait: matches!(wait, Wait::File | Wait::BlockDevice),
            woken_by: WokenBy::Nobody,
            waker_pid: 0,
            waker_tid: 0,
            left_cpu: 0,
            cpu: 0,
            unfinished: false,
            weight: 1,
            stack: None,
        };
        self.events.push(Event::Off(off));
        match self.events.last_mut() {
            Some(Event::Off(off)) => Off(off),
            _ => unreachable!("it was just pushed"),
        }
    }

    /// The thread could run, but gets no time on a CPU.
    pub(crate) fn without_cpu(&mut self, thread: Thread, at: u64, ns: u64, cpu: u16) {
        let off = self.off(thread, at, ns, Wait::Nothing).ready(ns);
        (off.0.reason, off.0.cpu) = (Reason::Preempted, cpu);
    }

    /// The thread could run, but its cgroup has no quota left.
    pub(crate) fn without_quota(&mut self, thread: Thread, at: u64, ns: u64) {
        self.off(thread, at, ns, Wait::Nothing).ready(ns).0.reason = Reason::Throttled;
    }

    /// Somebody has a CPU.
    pub(crate) fn has_cpu(&mut self, pid: u32, name: &str, cpu: u16, at: u64, ns: u64) {
        let run = CpuRun { start_ns: at, duration_ns: ns, pid, tid: pid, cpu, name: padded(name) };
        self.events.push(Event::Run(run));
    }

    /// A ready thread waited for another CPU than the one it got.
    pub(crate) fn moved(&mut self, thread: Thread, cpu: u16, at: u64, ns: u64) {
        let moved = MovedWait { start_ns: at, duration_ns: ns, pid: thread.pid, tid: thread.tid, cpu };
        self.events.push(Event::Moved(moved));
    }

    /// A look at what a running thread does.
    pub(crate) fn sample(&mut self, thread: Thread, at: u64, stack: u64) {
        self.push_call(thread, kernel_op(KernelOp::CpuSample), at, 0).stack = Some(stack);
    }

    /// The process ends now.
    pub(crate) fn exits(&mut self, thread: Thread) {
        let now = self.now;
        self.push_call(thread, kernel_op(KernelOp::ProcessExit), now, 0);
        if let Some(process) = self.facts.processes.get_mut(&thread.pid) {
            process.ended = i64::try_from(now).ok();
        }
        for sums in self.facts.threads.iter_mut().filter(|sums| sums.pid == thread.pid) {
            (sums.ended, sums.at_ns) = (true, now);
        }
    }

    /// NVML's utilisation samples, five a second until now.
    pub(crate) fn nvml_busy(&mut self, gpu: u32, percent: u32) {
        let looks = (0..=self.now).step_by((SECOND / 5) as usize);
        self.facts.busy.extend(looks.map(|at_ns| GpuBusy { at_ns, gpu, percent }));
    }

    /// What NVML says of the GPU, once a second until now; `of` changes what differs from a GPU at full clocks.
    pub(crate) fn nvml_seconds(&mut self, gpu: u32, of: impl Fn(u64, &mut GpuSample)) {
        for second in 1..=self.now / SECOND {
            let at_ns = second * SECOND;
            let mut sample =
                GpuSample { at_ns, gpu, sm_mhz: Some(2000), rate_percent: Some(97), ..GpuSample::default() };
            of(second, &mut sample);
            self.facts.gpu_seconds.push(sample);
        }
    }

    /// A process has memory on a GPU, as NVML says once a second until now.
    pub(crate) fn on_gpu(&mut self, pid: u32, name: &str, gpu: u32, sm_percent: Option<u32>) {
        for second in 1..=self.now / SECOND {
            let (at_ns, name) = (second * SECOND, padded(name));
            self.facts.gpu_processes.push(GpuProcess { at_ns, gpu, pid, bytes: Some(1 << 30), sm_percent, name });
        }
    }

    /// Explains it, in the order of time, and checks what must hold of every explanation.
    pub(crate) fn tell(mut self) -> Report {
        if self.facts.to_ns == 0 {
            self.facts.to_ns = self.now;
        }
        self.events.sort_by_key(Event::start_ns);
        self.sum_up();
        let thin = thinned(&self.events, Thinning { longest: 65_536, mix_stacks: true }, usize::MAX);
        let few = Self { events: thin, facts: self.facts.clone(), stacks: self.stacks.clone(), ..self };
        let few = few.explain();
        let report = self.explain();
        let top = |report: &Report| report.findings.first().map(|found| found.kind.clone());
        assert_eq!(top(&few), top(&report), "thinned, the answer is another");
        for thread in &report.threads {
            assert_eq!(thread.ledger.values().sum::<u64>(), thread.wall_ns, "{thread:?}");
        }
        assert!(report.gpu_idle_min_ns <= report.gpu_idle_max_ns, "{report:?}");
        assert!(report.gpu_idle_max_ns <= Some(report.wall_ns), "{report:?}");
        report
    }

    /// Explains it in the order in which it was told.
    pub(crate) fn explain(self) -> Report {
        let mut explainer = Explainer::new(self.facts);
        for event in &self.events {
            explainer.feed(event);
        }
        let stacks = self.stacks;
        explainer.finish(&mut |wanted| wanted.iter().filter_map(|id| Some((*id, stacks.get(id)?.clone()))).collect())
    }

    /// The kernel's sums of each thread.
    fn sum_up(&mut self) {
        for sums in &mut self.facts.threads {
            let offs = self.events.iter().filter_map(|event| match event {
                Event::Off(off) if off.tid == sums.tid => Some(off),
                _ => None,
            });
            for off in offs {
                sums.ready_ns += off.ready_ns;
                sums.blocked_ns += off.duration_ns - off.ready_ns;
                sums.throttled_ns += if off.reason == Reason::Throttled { off.ready_ns } else { 0 };
                sums.switches += 1;
            }
            if !sums.ended {
                sums.at_ns = self.facts.to_ns;
            }
            sums.on_cpu_ns = sums.at_ns - sums.ready_ns - sums.blocked_ns;
        }
    }
}

fn padded(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    let length = name.len().min(15);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    bytes
}

/// The finding of a kind; there must be exactly one.
pub(crate) fn found<'a>(report: &'a Report, kind: &str) -> &'a Finding {
    let mut list = report.findings.iter().filter(|found| found.kind == kind);
    match (list.next(), list.next()) {
        (Some(found), None) => found,
        _ => panic!("not one {kind} in {:#?}\n{}", report.findings, report.verdict),
    }
}

/// Kinds of the findings that are worth acting on, worst first.
pub(crate) fn serious(report: &Report) -> Vec<&str> {
    let serious = report.findings.iter().filter(|found| found.severity >= Severity::Medium);
    serious.map(|found| found.kind.as_str()).collect()
}

/// Whether two times are the same within a hundredth.
#[track_caller]
pub(crate) fn assert_about(got: u64, planted: u64) {
    assert!(got.abs_diff(planted) <= planted / 100, "{got} is not about {planted}");
}
