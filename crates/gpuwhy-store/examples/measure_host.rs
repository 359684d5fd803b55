// SPDX-License-Identifier: Apache-2.0
//! How much room a time off the CPU takes and how fast the views of CPUs are, with a made-up training job:
//! `cargo run -p gpuwhy-store --release --example measure_host -- [ROWS] [FILE]`.

use gpuwhy_model::{CpuRun, MovedWait, OffCpu, Reason, Wait, WokenBy};
use gpuwhy_store::{Limits, NewRun, Reader, RunEnd, Writer};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Rows in a batch, as a ring buffer hands them over.
const BATCH: u64 = 2_000;
/// Nanoseconds between two rows: 50,000 a second.
const PACE: u64 = 20_000;
const ORIGIN: u64 = 1_000_000_000;
const CPUS: u64 = 64;

/// Spreads bits, so that neighbouring numbers look unrelated.
fn mixed(i: u64) -> u64 {
    let product = u128::from(i ^ 0x5bd1_e995) * 0x9e37_79b9_7f4a_7c15;
    product as u64 ^ (product >> 64) as u64
}

/// Forty threads of nine processes that wait for locks, pipes, sockets, files and the time, or lose the CPU.
fn off_cpu(i: u64) -> OffCpu {
    let dice = mixed(i);
    let thread = (dice >> 8) % 40;
    let (reason, wait, syscall) = match dice % 20 {
        0..=7 => (Reason::Asleep, Wait::Futex, Some(202)),
        8..=9 => (Reason::Asleep, Wait::Pipe, Some(0)),
        10..=11 => (Reason::Asleep, Wait::Socket, Some(47)),
        12..=13 => (Reason::Uninterruptible, Wait::File, Some(17)),
        14 => (Reason::Asleep, Wait::Sleep, Some(230)),
        15 => (Reason::Asleep, Wait::Gpu, Some(16)),
        16 => (Reason::Uninterruptible, Wait::PageFault, None),
        _ => (Reason::Preempted, Wait::Nothing, None),
    };
    let waits = wait != Wait::Nothing;
    let blocked_ns = if waits { 5_000 + (dice >> 20) % 4_000_000 } else { 0 };
    let ready_ns = 2_000 + (dice >> 30) % 60_000;
    let cpu = ((dice >> 40) % CPUS) as u16;
    let (file, object) = match wait {
        Wait::Futex => (0, 0x7f3a_1000_0000 + (dice >> 44) % 300 * 64),
        Wait::Pipe => (0, 80_000 + thread),
        Wait::Socket => (1, 90_000 + thread),
        Wait::File => (0xEF53, 5_000_000 + (dice >> 44) % 50_000),
        Wait::Gpu => (195 << 20, 0),
        _ => (0, 0),
    };
    let by_thread = matches!(wait, Wait::Futex | Wait::Pipe | Wait::Socket);
    OffCpu {
        start_ns: ORIGIN + i * PACE + dice % 900,
        duration_ns: blocked_ns + ready_ns,
        ready_ns,
        pid: 4_000 + thread as u32 % 9,
        tid: 4_000 + thread as u32,
        reason,
        wait,
        syscall,
        file,
        object,
        timeout_ns: (wait == Wait::Futex && dice.is_multiple_of(3)).then_some(5_000_000),
        io_wait: wait == Wait::File,
        woken_by: if !waits {
            WokenBy::Nobody
        } else if by_thread {
            WokenBy::Thread
        } else {
            WokenBy::Disk
        },
        waker_pid: if waits { 4_000 + (dice >> 50) as u32 % 9 } else { 0 },
        waker_tid: if waits { 4_000 + (dice >> 50) as u32 % 40 } else { 0 },
        left_cpu: if dice.is_multiple_of(4) { ((dice >> 34) % CPUS) as u16 } else { cpu },
        cpu,
        unfinished: false,
        weight: 1,
        stack: None,
    }
}

/// The runs between two rows: every CPU changes hands now and then, without a gap.
fn cpu_run(i: u64) -> CpuRun {
    let turn = PACE * CPUS;
    CpuRun {
        start_ns: ORIGIN + i / CPUS * turn,
        duration_ns: turn,
        pid: if i.is_multiple_of(3) { 0 } else { 4_000 + (i % 9) as u32 },
        tid: if i.is_multiple_of(3) { 0 } else { 4_000 + (i % 40) as u32 },
        cpu: (i % CPUS) as u16,
        name: *b"python\0\0\0\0\0\0\0\0\0\0",
    }
}

fn main() -> gpuwhy_store::Result<()> {
    let mut args = std::env::args().skip(1);
    let rows: u64 = args.next().and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let path: PathBuf = args.next().map_or_else(|| std::env::temp_dir().join("gpuwhy-measure.db"), PathBuf::from);
    let run = NewRun { start_monotonic_ns: ORIGIN, ..NewRun::default() };
    let mut writer = Writer::create(&path, &run)?.writer;
    let mut spent = Duration::ZERO;
    for first in (0..rows).step_by(BATCH as usize) {
        let mut batch: Vec<OffCpu> = (first..(first + BATCH).min(rows)).map(off_cpu).collect();
        let begin = Instant::now();
        writer.write_off_cpu(&mut batch)?;
        if first / BATCH % 10 == 9 {
            writer.commit()?;
        }
        spent += begin.elapsed();
    }
    writer.commit()?;
    let runs: Vec<CpuRun> = (0..rows).map(cpu_run).collect();
    runs.chunks(BATCH as usize).try_for_each(|batch| writer.write_cpu_runs(batch))?;
    let moved: Vec<MovedWait> = (0..rows).step_by(50).map(|i| moved_wait(&off_cpu(i))).collect();
    writer.write_moved_waits(&moved)?;
    let done = writer.finish(&RunEnd { stop_reason: "done".into(), ..RunEnd::default() });
    println!(
        "{rows} times off the CPU: {:.3} µs each, {:.1} bytes each with as many runs of CPUs",
        spent.as_secs_f64() * 1e6 / rows as f64,
        done.size_bytes as f64 / rows as f64,
    );
    let reader = Reader::open(&path)?;
    for sql in QUERIES {
        let begin = Instant::now();
        let mut last = String::new();
        let outcome = reader.query(sql, &Limits::default(), |_, values| {
            last = format!("{values:?}");
            ControlFlow::Continue(())
        })?;
        println!("{:.0?} for {} rows, the last {last}: {sql}", begin.elapsed(), outcome.rows);
    }
    Ok(())
}

/// The first half of a row's ready time, for another CPU.
fn moved_wait(row: &OffCpu) -> MovedWait {
    MovedWait {
        start_ns: row.start_ns + row.duration_ns - row.ready_ns,
        duration_ns: row.ready_ns / 2,
        pid: row.pid,
        tid: row.tid,
        cpu: row.left_cpu,
    }
}

const QUERIES: [&str; 9] = [
    "SELECT SUM(pgsize) * 1.0 / (SELECT COUNT(*) FROM off_) AS bytes_a_row FROM dbstat
         WHERE name IN ('off_', 'off_context_', 'waker_')",
    "SELECT op, COUNT(*) FROM events GROUP BY op",
    "SELECT COUNT(*) FROM events WHERE op = 'cudaMalloc'",
    "SELECT COUNT(*), SUM(duration_ns) FROM events WHERE timestamp BETWEEN 1000000000 AND 1100000000",
    "SELECT timestamp, op FROM events ORDER BY timestamp DESC LIMIT 5",
    "SELECT reason, wait, SUM(blocked_ns), SUM(ready_ns) FROM off_cpu GROUP BY reason, wait",
    "SELECT COUNT(*), SUM(duration_ns) FROM cpu_waits",
    "SELECT COUNT(*), SUM(duration_ns) FROM cpu_held",
    "SELECT holder_name, SUM(duration_ns) FROM cpu_held WHERE pid = 4000 GROUP BY holder_name",
];
