// SPDX-License-Identifier: Apache-2.0
//! How fast a run is played again, with calls, times off the CPU and runs of CPUs like those of a training job:
//! `cargo run -p gpuwhy-store --release --example measure_replay -- [EVENTS] [FILE]`. Give a file that exists to play
//! that one instead of a made-up one.

use gpuwhy_model::{Call, CallFlags, CpuRun, Event, OffCpu, OpId, Reason, Wait, WokenBy, ops};
use gpuwhy_store::{NewRun, Reader, RunEnd, Writer};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Rows in a batch, as a ring buffer hands them over.
const BATCH: u64 = 10_000;
/// Nanoseconds between two events: 200,000 a second.
const PACE: u64 = 5_000;
const ORIGIN: u64 = 1_000_000_000;
const CPUS: u64 = 64;

fn call(i: u64, launch: OpId) -> Call {
    Call {
        start_ns: ORIGIN + i * PACE,
        duration_ns: 2_000 + i * 7_919 % 30_000,
        pid: 4_000,
        tid: 4_000 + (i / 7 % 4) as u32,
        op: launch,
        device: Some((i / 7 % 2) as u8),
        stream: Some(0x5555_7000_0000 + i % 3 * 4_096),
        arg0: Some(0x5555_5560_0000 + i % 97 * 0x1240),
        arg1: Some(1 + i % 4_096),
        ret: 0,
        flags: CallFlags::default(),
        weight: 1,
        stack: Some(i % 200),
    }
}

fn off_cpu(i: u64) -> OffCpu {
    let thread = (i * 7_919 % 40) as u32;
    let cpu = (i * 31 % CPUS) as u16;
    OffCpu {
        start_ns: ORIGIN + i * PACE + 700,
        duration_ns: 5_000 + i * 7_919 % 4_000_000,
        ready_ns: 2_000,
        pid: 4_000 + thread % 9,
        tid: 4_000 + thread,
        reason: Reason::Asleep,
        wait: if i.is_multiple_of(3) { Wait::Pipe } else { Wait::Futex },
        syscall: Some(202),
        file: 0,
        object: 0x7f3a_1000_0000 + i % 300 * 64,
        timeout_ns: i.is_multiple_of(3).then_some(5_000_000),
        io_wait: false,
        woken_by: WokenBy::Thread,
        waker_pid: 4_000 + (i % 9) as u32,
        waker_tid: 4_000 + (i % 40) as u32,
        left_cpu: cpu,
        cpu: (i * 17 % CPUS) as u16,
        unfinished: false,
        weight: 1,
        stack: Some(i % 50),
    }
}

fn cpu_run(i: u64) -> CpuRun {
    let turn = PACE * CPUS;
    CpuRun {
        start_ns: ORIGIN + i / CPUS * turn + i % CPUS * 13,
        duration_ns: turn,
        pid: 4_000 + (i % 9) as u32,
        tid: 4_000 + (i % 40) as u32,
        cpu: (i % CPUS) as u16,
        name: *b"python\0\0\0\0\0\0\0\0\0\0",
    }
}

/// Half of them calls, two fifths times off the CPU, a tenth runs.
fn generate(path: &Path, events: u64) -> gpuwhy_store::Result<()> {
    let run = NewRun { start_monotonic_ns: ORIGIN, ..NewRun::default() };
    let mut writer = Writer::create(path, &run)?.writer;
    let launch = ops::by_function("cudaLaunchKernel").map_or(OpId(0), |op| op.id);
    for first in (0..events).step_by(BATCH as usize) {
        let batch = || first..(first + BATCH).min(events);
        writer.write_calls(&mut batch().filter(|i| i % 10 < 5).map(|i| call(i, launch)).collect::<Vec<_>>())?;
        writer.write_off_cpu(&mut batch().filter(|i| (5..9).contains(&(i % 10))).map(off_cpu).collect::<Vec<_>>())?;
        let runs = batch().filter(|i| i % 10 == 9).map(|i| cpu_run(i / 10));
        writer.write_cpu_runs(&runs.collect::<Vec<_>>())?;
        writer.commit()?;
    }
    let done = writer.finish(&RunEnd { stop_reason: "done".into(), ..RunEnd::default() });
    done.problem.map_or(Ok(()), Err)
}

fn main() -> gpuwhy_store::Result<()> {
    let mut args = std::env::args().skip(1);
    let events: u64 = args.next().and_then(|n| n.parse().ok()).unwrap_or(2_000_000);
    let path: PathBuf = args.next().map_or_else(|| std::env::temp_dir().join("gpuwhy-replay.db"), PathBuf::from);
    if !path.exists() {
        generate(&path, events)?;
    }
    let reader = Reader::open(&path)?;
    let begin = Instant::now();
    let (mut calls, mut offs, mut others, mut last, mut sum) = (0u64, 0u64, 0u64, 0, 0u64);
    let played = reader.replay(0, None, |event| {
        assert!(event.start_ns() >= last, "in order");
        last = event.start_ns();
        sum = sum.wrapping_add(event.duration_ns() * event.weight());
        match event {
            Event::Call(_) => calls += 1,
            Event::Off(_) => offs += 1,
            _ => others += 1,
        }
        ControlFlow::Continue(())
    })?;
    let taken = begin.elapsed();
    println!(
        "{played} events ({calls} calls, {offs} off the CPU, {others} others; {sum} ns in all) in {taken:.2?}: {:.0} ns each",
        taken.as_nanos() as f64 / played.max(1) as f64
    );
    Ok(())
}
