// SPDX-License-Identifier: Apache-2.0
//! Run files with known content, written by the store's own writer: for questions whose answer is known beforehand.

use gpuwhy_model::host::padded_name;
use gpuwhy_model::ops::{TorchOp, by_function, torch_op};
use gpuwhy_model::{Call, CallFlags, OffCpu, Reason, TensorEvent, ThreadSums, Wait, WokenBy};
use gpuwhy_store::{NewRun, RunEnd, StackText, Writer};
use std::path::Path;

pub const SECOND: u64 = 1_000_000_000;
pub const MS: u64 = 1_000_000;
/// How long the runs of [`Made::steps`] are.
pub const LONG: u64 = 20 * SECOND;
/// Where a run begins on the monotonic clock.
pub const ORIGIN: u64 = 77 * SECOND;
/// And on the wall clock.
const BEGAN: u64 = 1_700_000_000 * SECOND;

/// A run that is being made. Times are nanoseconds since it begins.
pub struct Made {
    pub writer: Writer,
    pub calls: Vec<Call>,
    pub tensors: Vec<TensorEvent>,
    pub offs: Vec<OffCpu>,
}

impl Made {
    /// Of whatever ran on the machine.
    pub fn new(path: &Path) -> Self {
        Self::of(path, None)
    }

    /// Of a command that gpuwhy started, if there is one.
    pub fn of(path: &Path, command: Option<&str>) -> Self {
        let command = command.map(str::to_owned);
        let run = NewRun { start_unix_ns: BEGAN, start_monotonic_ns: ORIGIN, command, ..NewRun::default() };
        let writer = Writer::create(path, &run).unwrap().writer;
        Self { writer, calls: Vec::new(), tensors: Vec::new(), offs: Vec::new() }
    }

    pub fn process(&mut self, pid: u32, name: &str, parent: Option<u32>) {
        self.writer.set_process(pid, name);
        self.writer.set_process_command(pid, name);
        parent.into_iter().for_each(|parent| self.writer.set_process_parent(pid, parent));
    }

    pub fn stack(&mut self, id: u64, line: &str) {
        self.writer.add_stack(id, StackText { frames: line.into(), top_line: line.into() });
    }

    /// A process that launches once in each period of a run of 20 s, waits so long for the GPU, and then, if it is said what
    /// for and where, for something else. Returns how often it launched.
    pub fn steps(&mut self, pid: u32, device: u8, period: u64, gpu_ns: u64, wait: Option<(Wait, u64)>) -> u64 {
        let (long, mut blocked) = (LONG, 0);
        for at in (0..long).step_by(usize::try_from(period).unwrap()) {
            // Of rows of one moment the file would move one.
            let (at, device) = (at + u64::from(pid) % 4096, Some(device));
            self.calls.push(Call { device, ..launch(pid, at + 1_000, 10_000) });
            self.calls.push(Call { device, ..sync(pid, at + 20_000, gpu_ns) });
            if let Some((wait, stack)) = wait {
                let begin = at + gpu_ns + 50_000;
                let ns = at + period - 50_000 - begin;
                self.offs.push(off(pid, begin, ns, wait, stack));
                blocked += ns;
            }
        }
        self.writer.set_thread_sums(ThreadSums {
            pid,
            tid: pid,
            name: padded_name(b"python3"),
            born_ns: ORIGIN,
            since_ns: ORIGIN,
            at_ns: ORIGIN + long,
            on_cpu_ns: long - blocked,
            ready_ns: 0,
            blocked_ns: blocked,
            throttled_ns: 0,
            switches: long / period,
            page_allocations: 0,
            page_bytes: 0,
            ended: false,
            has_times: true,
        });
        long / period
    }

    /// Ends the run after so long.
    pub fn finish(mut self, duration_ns: u64) {
        self.calls.sort_by_key(|call| call.start_ns);
        self.offs.sort_by_key(|off| off.start_ns);
        self.writer.write_calls(&mut self.calls).unwrap();
        self.writer.write_off_cpu(&mut self.offs).unwrap();
        self.writer.write_tensors(&mut self.tensors).unwrap();
        let done = self.writer.finish(&RunEnd {
            stop_unix_ns: BEGAN + duration_ns,
            stop_monotonic_ns: ORIGIN + duration_ns,
            stop_reason: "interrupted".into(),
            own_cost: None,
        });
        assert!(done.problem.is_none(), "{:?}", done.problem);
    }
}

/// A call of a process's main thread on device 0.
pub fn call(function: &str, pid: u32, at: u64, duration_ns: u64) -> Call {
    Call {
        start_ns: ORIGIN + at,
        duration_ns,
        pid,
        tid: pid,
        op: by_function(function).unwrap().id,
        device: Some(0),
        stream: Some(0x70),
        arg0: None,
        arg1: None,
        ret: 0,
        flags: CallFlags::default(),
        weight: 1,
        stack: None,
    }
}

pub fn launch(pid: u32, at: u64, duration_ns: u64) -> Call {
    call("cudaLaunchKernel", pid, at, duration_ns)
}

pub fn sync(pid: u32, at: u64, duration_ns: u64) -> Call {
    call("cudaStreamSynchronize", pid, at, duration_ns)
}

/// A time in which a process's main thread waited.
pub fn off(pid: u32, at: u64, duration_ns: u64, wait: Wait, stack: u64) -> OffCpu {
    let from_disk = wait == Wait::File;
    OffCpu {
        start_ns: ORIGIN + at,
        duration_ns,
        ready_ns: 0,
        pid,
        tid: pid,
        reason: Reason::Asleep,
        wait,
        syscall: None,
        file: 0,
        object: 0,
        timeout_ns: None,
        io_wait: from_disk,
        woken_by: if from_disk { WokenBy::Disk } else { WokenBy::Timer },
        waker_pid: 0,
        waker_tid: 0,
        left_cpu: 0,
        cpu: 0,
        unfinished: false,
        weight: 1,
        stack: Some(stack),
    }
}

/// A tensor of a process's main thread on device 0.
pub fn tensor(pid: u32, at: u64, bytes: u64, stack: Option<u64>) -> TensorEvent {
    TensorEvent {
        at_ns: ORIGIN + at,
        pid,
        tid: pid,
        op: torch_op(TorchOp::Alloc),
        device: 0,
        bytes,
        address: 0x7f00_0000_0000 + at,
        allocated: 1 << 20,
        reserved: 2 << 20,
        stack,
    }
}

/// A job that sleeps most of the time, with a worker that does nothing: 10 launches a second.
pub fn sleepy(made: &mut Made) -> u64 {
    made.process(1000, "python3 a.py", Some(900));
    made.process(1001, "pt_data_worker", Some(1000));
    made.stack(11, "/home/me/a.py:12 step");
    made.steps(1000, 0, 100 * MS, 20 * MS, Some((Wait::Sleep, 11)))
}

/// A job of the same shell that keeps its GPU busy, but for a short read from the disk in each step: 20 launches a second.
pub fn reading(made: &mut Made, device: u8) -> u64 {
    made.process(2000, "python3 b.py", Some(900));
    made.stack(22, "/home/me/b.py:34 load");
    made.steps(2000, device, 50 * MS, 40 * MS, Some((Wait::File, 22)))
}

/// A run of both, the second on this device; how often each launched.
pub fn two_jobs(path: &Path, device: u8) -> [u64; 2] {
    let mut made = Made::new(path);
    let launches = [sleepy(&mut made), reading(&mut made, device)];
    made.finish(LONG);
    launches
}
