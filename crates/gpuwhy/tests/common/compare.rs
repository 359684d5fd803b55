// SPDX-License-Identifier: Apache-2.0
//! The run file against simgpu's own log: counts and bytes by function, and call by call.

use gpuwhy_model::{Class, ops};
use simgpu::log::{Call, Engine, Truth};
use std::collections::BTreeMap;

/// Calls, failed calls and bytes of the calls that succeeded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    pub calls: u64,
    pub errors: u64,
    pub bytes: u64,
}

/// Whether a function is traced as a call; what PyTorch's allocator reports is compared elsewhere.
pub fn is_call(function: &str) -> bool {
    // Handles of functions are asked for again and again; that is followed for names alone.
    let asked = function == "cuKernelGetFunction";
    ops::by_function(function).is_some_and(|op| op.class != Class::Tensor && !asked)
}

/// What the program really did, by function, as far as gpuwhy traces it. Frees have no size in the counters.
pub fn true_sums(truth: &Truth) -> BTreeMap<String, Sums> {
    let traced = truth.counters().into_iter().filter(|(f, c)| is_call(f) && c.outer_calls > 0);
    traced
        .map(|(function, c)| {
            let sums = Sums { calls: c.outer_calls, errors: c.errors, bytes: c.bytes };
            (function.to_string(), sums)
        })
        .collect()
}

/// The same from a run file, of the processes the log tells about.
pub fn recorded_sums(db: &rusqlite::Connection, truth: &Truth) -> BTreeMap<String, Sums> {
    let sql = format!(
        "SELECT function, COUNT(*), SUM(ret <> 0), SUM(CASE WHEN ret = 0 AND class <> 'free' THEN bytes END) \
               FROM events WHERE pid IN ({}) AND layer NOT IN ('kernel', 'torch') GROUP BY function",
        list(&truth.pids())
    );
    let mut statement = db.prepare(&sql).unwrap();
    let rows = statement.query_map([], |row| {
        let n = |i| row.get::<_, Option<i64>>(i).map(|n| n.unwrap_or(0) as u64);
        Ok((row.get::<_, String>(0)?, Sums { calls: n(1)?, errors: n(2)?, bytes: n(3)? }))
    });
    rows.unwrap().map(Result::unwrap).collect()
}

/// Numbers as SQL wants them in a list.
pub fn list(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// One call as the run file has it.
#[derive(Debug)]
pub struct Recorded {
    pub start_ns: u64,
    pub end_ns: u64,
    pub function: String,
    pub device: Option<i64>,
    pub stream: Option<i64>,
    pub arg1: Option<i64>,
    pub bytes: Option<i64>,
    pub direction: Option<String>,
    pub ret: Option<i64>,
}

/// A thread's calls, in the order in which they began.
pub type ByThread<T> = BTreeMap<(u32, u32), Vec<T>>;

/// Every call of a view (`events` or `inner_events`), by thread.
pub fn recorded_calls(db: &rusqlite::Connection, view: &str) -> ByThread<Recorded> {
    let origin: i64 = db.query_row("SELECT start_monotonic_ns FROM sessions", [], |row| row.get(0)).unwrap();
    let sql = format!(
        "SELECT pid, tid, timestamp, duration_ns, function, device, stream, arg1, bytes, direction, ret \
         FROM {view} WHERE layer NOT IN ('kernel', 'torch') ORDER BY timestamp"
    );
    let mut statement = db.prepare(&sql).unwrap();
    let rows = statement.query_map([], |row| {
        let start_ns = (origin + row.get::<_, i64>(2)?) as u64;
        let call = Recorded {
            start_ns,
            end_ns: start_ns + row.get::<_, i64>(3)? as u64,
            function: row.get(4)?,
            device: row.get(5)?,
            stream: row.get(6)?,
            arg1: row.get(7)?,
            bytes: row.get(8)?,
            direction: row.get(9)?,
            ret: row.get(10)?,
        };
        Ok(((row.get(0)?, row.get(1)?), call))
    });
    let mut by_thread: ByThread<Recorded> = BTreeMap::new();
    for row in rows.unwrap() {
        let (thread, call) = row.unwrap();
        by_thread.entry(thread).or_default().push(call);
    }
    by_thread
}

/// The calls gpuwhy should report as the program's, from the log: those of traced functions that neither the runtime
/// library nor NCCL made. A call inside one of the driver's is the program's own again: the driver calls no
/// traced function by itself, only the program's code back. A launch through the runtime made there is the one
/// thing that cannot be told from what the outer call does itself.
pub fn true_calls(truth: &Truth) -> ByThread<Call> {
    let mut by_thread: ByThread<Call> = BTreeMap::new();
    for call in truth.calls() {
        by_thread.entry((call.pid, call.tid)).or_default().push(call);
    }
    for calls in by_thread.values_mut() {
        calls.sort_by_key(|call| (call.enter_ns, call.depth));
        let mut by_runtime: Vec<bool> = Vec::new(); // or NCCL, for each open call
        calls.retain(|call| {
            by_runtime.truncate(usize::from(call.depth));
            let inner = by_runtime.last().copied().unwrap_or(false);
            by_runtime.push(call.function.starts_with("cuda") || call.function.starts_with("nccl"));
            let op = ops::by_function(&call.function).filter(|_| is_call(&call.function));
            op.is_some_and(|op| !(inner || op.seen_at_driver && call.depth > 0))
        });
    }
    by_thread.retain(|_, calls| !calls.is_empty());
    by_thread
}

/// Sizes of what was freed, by process, thread and address, in order of time.
fn freed(truth: &Truth) -> BTreeMap<(u32, u32, u64), Vec<(u64, u64)>> {
    let mut freed: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for event in truth.memory().filter(|event| !event.is_alloc) {
        freed.entry((event.pid, event.tid, event.pointer)).or_default().push((event.time_ns, event.bytes));
    }
    freed
}

/// Insists that the run file has exactly the calls of the log, with their times, arguments and results.
pub fn assert_same_calls(truth: &Truth, db: &rusqlite::Connection) {
    let (expected, recorded) = (true_calls(truth), recorded_calls(db, "events"));
    assert_eq!(expected.keys().collect::<Vec<_>>(), recorded.keys().collect::<Vec<_>>(), "threads that made calls");
    let freed = freed(truth);
    let (mut frees, mut sized) = (0, 0);
    for (thread, expected) in &expected {
        let recorded = &recorded[thread];
        for (truth, got) in expected.iter().zip(recorded) {
            assert_same_call(truth, got);
            let op = ops::by_function(&got.function).unwrap();
            if op.class == Class::Free && truth.ret == 0 {
                frees += 1;
                let sizes = freed.get(&(truth.pid, truth.tid, truth.pointer));
                let size = sizes.and_then(|s| s.iter().find(|(t, _)| (truth.enter_ns..=truth.exit_ns).contains(t)));
                if let Some((_, size)) = size {
                    assert_eq!(got.bytes, Some(*size as i64), "size freed by {truth:?}");
                    sized += 1;
                }
            }
        }
        assert_eq!(expected.len(), recorded.len(), "number of calls of thread {thread:?}");
    }
    assert!(frees == 0 || sized * 2 > frees, "most frees have a size to compare: {sized} of {frees}");
}

fn assert_same_call(truth: &Call, got: &Recorded) {
    let op = ops::by_function(&truth.function).unwrap();
    assert_eq!(got.function, *truth.function, "{truth:?} {got:?}");
    assert_eq!(got.ret, Some(i64::from(truth.ret)), "return code of {truth:?}");
    // A tie may be moved by nanoseconds.
    const TIE: u64 = 100;
    if op.seen_at_driver && got.start_ns > truth.enter_ns {
        // The runtime's launches are measured at the driver, inside the call.
        assert!(got.end_ns <= truth.exit_ns + TIE, "{truth:?} ended before {got:?}");
    } else {
        // The probes are outside the function, the log's clock is inside.
        assert!(got.start_ns <= truth.enter_ns + TIE, "{truth:?} began before {got:?}");
        assert!(got.end_ns + TIE >= truth.exit_ns, "{truth:?} ended after {got:?}");
    }
    if op.has_stream() {
        assert_eq!(got.stream, Some(truth.stream as i64), "stream of {truth:?}");
    } else {
        assert_eq!(got.stream, None);
    }
    if let Some(device) = got.device {
        assert_eq!(device, i64::from(truth.device), "device of {truth:?}");
    }
    if op.class != Class::Free && op.decode.arg0_is_bytes() && truth.ret == 0 {
        assert_eq!(got.bytes, Some(truth.bytes as i64), "bytes of {truth:?}");
    }
    if matches!(op.class, Class::Alloc | Class::Free) && truth.ret == 0 {
        assert_eq!(got.arg1, Some(truth.pointer as i64), "pointer of {truth:?}");
    }
    let direction = match truth.direction {
        Engine::HostToDevice => "HtoD",
        Engine::DeviceToHost => "DtoH",
        Engine::DeviceToDevice => "DtoD",
        Engine::HostToHost => "HtoH",
        Engine::Compute => return,
    };
    if op.class == Class::Copy && got.direction.as_deref() != Some("default") {
        assert_eq!(got.direction.as_deref(), Some(direction), "direction of {truth:?}");
    }
}
