// SPDX-License-Identifier: Apache-2.0
//! How long `gpuwhy stacks` takes on a run with many calls:
//! `cargo run -p gpuwhy-store --release --example measure_stacks -- [CALLS] [FILE]`.

use gpuwhy_model::{Call, CallFlags, OpId, ops};
use gpuwhy_store::{Limits, NewRun, Reader, RunEnd, Span, StackError, StackKey, StackQuestion, StackText, Writer};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

/// Different stacks, each thirty frames deep.
const STACKS: u64 = 500;
const BATCH: u64 = 10_000;

/// A call every 5 µs from four processes, one in ten without a stack.
fn call(i: u64) -> Call {
    let functions = ["cudaLaunchKernel", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaMalloc", "cudaStreamSynchronize"];
    Call {
        start_ns: 1_000_000_000 + i * 5_000,
        duration_ns: 2_000 + i * 7919 % 30_000,
        pid: 4_000 + (i / 7 % 4) as u32,
        tid: 4_000 + (i / 7 % 16) as u32,
        op: ops::by_function(functions[(i % 5) as usize]).map_or(OpId(0), |op| op.id),
        device: Some(0),
        stream: None,
        arg0: Some(4096),
        arg1: None,
        ret: 0,
        flags: CallFlags::default(),
        weight: 1,
        stack: (!i.is_multiple_of(10)).then_some(1 + i * 31 % STACKS),
    }
}

fn stack(i: u64) -> StackText {
    let package = |n: u64| format!("/opt/lib/python3.12/site-packages/torch/nn/modules/m{n}.py:{} M.forward", 10 + i);
    let mut frames: Vec<String> = (0..25).map(package).collect();
    frames.extend((0..5).map(|n| format!("/home/me/job/train{n}.py:{} step", 1 + i % 90)));
    StackText { top_line: frames[25].clone(), frames: frames.join("\n") }
}

fn main() -> Result<(), StackError> {
    let mut args = std::env::args().skip(1);
    let calls: u64 = args.next().and_then(|n| n.parse().ok()).unwrap_or(2_000_000);
    let path: PathBuf = args.next().map_or_else(|| std::env::temp_dir().join("gpuwhy-measure.db"), PathBuf::from);
    let run = NewRun { start_monotonic_ns: 1_000_000_000, ..NewRun::default() };
    let mut writer = Writer::create(&path, &run)?.writer;
    (1..=STACKS).for_each(|i| writer.add_stack(i, stack(i)));
    for first in (0..calls).step_by(BATCH as usize) {
        let mut batch: Vec<Call> = (first..(first + BATCH).min(calls)).map(call).collect();
        writer.write_calls(&mut batch)?;
    }
    writer.finish(&RunEnd { stop_reason: "done".into(), ..RunEnd::default() });
    let reader = Reader::open(&path)?;
    let all = StackQuestion::default();
    for (name, question) in [
        ("by stack", all.clone()),
        ("by line", StackQuestion { by: StackKey::Line, ..all.clone() }),
        ("by library", StackQuestion { by: StackKey::Library, ..all.clone() }),
        ("cudaMalloc", StackQuestion { op: Some("cudaMalloc".into()), ..all.clone() }),
        ("a tenth of the time", StackQuestion { span: Span::Between(0, Some(calls * 500)), ..all }),
    ] {
        let begin = Instant::now();
        let answer = reader.stacks(&question)?;
        println!("{name}: {} calls in {} groups, {:.0?}", answer.all.calls, answer.groups.len(), begin.elapsed());
    }
    let sql = "SELECT stack_id, pid, SUM(weight), SUM(duration_ns), MAX(duration_ns), SUM(bytes) FROM events
        WHERE layer <> 'kernel' GROUP BY stack_id, pid";
    let begin = Instant::now();
    let rows = reader.query(sql, &Limits::default(), |_, _| ControlFlow::Continue(()))?.rows;
    println!("for comparison, GROUP BY on the view: {rows} rows, {:.0?}", begin.elapsed());
    Ok(())
}
