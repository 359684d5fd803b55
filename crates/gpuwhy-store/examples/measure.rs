// SPDX-License-Identifier: Apache-2.0
//! How fast the writer is and how much room a call takes, with calls like those of a training loop:
//! `cargo run -p gpuwhy-store --release --example measure -- [CALLS] [FILE] [MAX_BYTES]`.

use gpuwhy_model::{Call, CallFlags, ops};
use gpuwhy_store::{Limits, NewRun, Reader, RunEnd, Writer};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Calls in a batch, as a ring buffer hands them over.
const BATCH: u64 = 10_000;
/// Nanoseconds between two calls: 200,000 a second.
const PACE: u64 = 5_000;

/// Launches, copies, allocations and waits of four threads, each delivered when it ends.
fn call(i: u64) -> Call {
    let functions = [
        "cudaLaunchKernel",
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
        "cudaLaunchKernel",
        "cudaMalloc",
        "cudaStreamSynchronize",
    ];
    let function = functions[(i % 6) as usize];
    let (arg0, arg1) = match function {
        "cudaLaunchKernel" => (0x5555_5560_0000 + i % 97 * 0x1240, 1 + i % 4096),
        "cudaMemcpyAsync" => (4 * (1 + i % 1_000_000), 1),
        "cudaMalloc" => (512 * (1 + i % 100_000), 0x7f11_0000_0000 + i * 512),
        _ => (0x5555_7000_0000, 0),
    };
    let duration_ns = if i % 6 == 5 { 20_000 + i * 7919 % 4_000_000 } else { 2_000 + i * 7919 % 30_000 };
    Call {
        start_ns: 1_000_000_000 + (i * PACE).saturating_sub(duration_ns),
        duration_ns,
        pid: 4_000,
        tid: 4_000 + (i / 7 % 4) as u32,
        op: ops::by_function(function).map(|op| op.id).unwrap_or(gpuwhy_model::OpId(0)),
        device: Some((i / 7 % 2) as u8),
        stream: (i % 6 != 4).then_some(0x5555_7000_0000 + i % 3 * 4096),
        arg0: Some(arg0),
        arg1: Some(arg1),
        ret: 0,
        flags: CallFlags::default(),
        weight: 1,
        stack: None,
    }
}

fn main() -> gpuwhy_store::Result<()> {
    let mut args = std::env::args().skip(1);
    let calls: u64 = args.next().and_then(|n| n.parse().ok()).unwrap_or(2_000_000);
    let path: PathBuf = args.next().map_or_else(|| std::env::temp_dir().join("gpuwhy-measure.db"), PathBuf::from);
    let max_size = args.next().and_then(|n| n.parse().ok());
    let run = NewRun { start_monotonic_ns: 1_000_000_000, max_size, ..NewRun::default() };
    let mut writer = Writer::create(&path, &run)?.writer;
    let (mut spent, mut longest_commit) = (Duration::ZERO, Duration::ZERO);
    for first in (0..calls).step_by(BATCH as usize) {
        let mut batch: Vec<Call> = (first..(first + BATCH).min(calls)).map(call).collect();
        let begin = Instant::now();
        writer.write_calls(&mut batch)?;
        // Twice a second of the run.
        if first / BATCH % 10 == 9 {
            let begin = Instant::now();
            writer.commit()?;
            longest_commit = longest_commit.max(begin.elapsed());
        }
        spent += begin.elapsed();
    }
    let begin = Instant::now();
    let done = writer.finish(&RunEnd { stop_reason: "done".into(), ..RunEnd::default() });
    spent += begin.elapsed();
    println!("{} events are weights of others, lost: {:?}", done.thinned, done.lost);
    println!(
        "{calls} calls in {spent:.2?}: {:.3} µs a call, {:.1} bytes a call, longest commit {longest_commit:.1?}, closing {:.1?}",
        spent.as_secs_f64() * 1e6 / calls as f64,
        done.size_bytes as f64 / calls as f64,
        begin.elapsed(),
    );
    let reader = Reader::open(&path)?;
    for (name, sql) in QUERIES {
        let begin = Instant::now();
        let outcome = reader.query(sql, &Limits::default(), |_, _| ControlFlow::Continue(()))?;
        println!("{name}: {} rows in {:.0?}", outcome.rows, begin.elapsed());
    }
    Ok(())
}

/// The queries of docs/run-file.md that go over every call.
const QUERIES: [(&str, &str); 4] = [
    (
        "allocations by window",
        "SELECT (timestamp / 30000000000) * 30 AS window_sec, COUNT(*) AS allocs, AVG(duration_ns)/1000 AS avg_us, MAX(duration_ns)/1000 AS max_us, SUM(arg0)/1048576 AS total_mb FROM events WHERE op = 'cudaMalloc' GROUP BY window_sec ORDER BY window_sec;",
    ),
    (
        "off-CPU by process",
        "SELECT pn.name AS process, COUNT(*) AS context_switches, SUM(duration_ns)/1e9 AS total_off_cpu_sec, MAX(duration_ns)/1e6 AS worst_stall_ms FROM events e JOIN process_names pn ON e.pid = pn.pid WHERE op = 'sched_switch' AND timestamp > (SELECT MAX(timestamp) - 120000000000 FROM events) GROUP BY pn.name ORDER BY total_off_cpu_sec DESC LIMIT 10;",
    ),
    (
        "waits by window",
        "SELECT (timestamp / 10000000000) * 10 AS window_sec, COUNT(CASE WHEN op = 'sched_switch' THEN 1 END) AS ctx_switches, COUNT(CASE WHEN op = 'cudaStreamSync' THEN 1 END) AS sync_calls, AVG(CASE WHEN op = 'cudaStreamSync' THEN duration_ns END)/1000 AS sync_avg_us FROM events GROUP BY window_sec ORDER BY window_sec;",
    ),
    ("everything by op", "SELECT op, COUNT(*), SUM(duration_ns), SUM(bytes) FROM events GROUP BY op"),
];
