// SPDX-License-Identifier: Apache-2.0
//! Each process's CUDA calls, op by op, and warnings about them. Its JSON is `per_process` of `gpuwhy explain
//! --per-process --json` (docs/explain-json.md).

use crate::report::ThreadReport;
use crate::state::State;
use gpuwhy_model::rate::Course;
use gpuwhy_model::{Class, units};
use serde::Serialize;

/// A tail gets a warning from this many times the median on, if it is this long. With fewer calls it means nothing.
const TAIL_TIMES: f64 = 5.0;
const TAIL_NS: u64 = 50_000;
const TAIL_CALLS: u64 = 100;
/// Launches get a warning when their rate fell by this much, both from the peak and from the usual rate before.
const DROP: f64 = 0.5;
/// A launching thread gets a warning when it had no CPU for this share of its time.
const READY: f64 = 0.1;
/// A process gets a warning from this many major page faults a second on.
const FAULTS: f64 = 10.0;

/// A process.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ProcessCalls {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Bytes allocated by all ops together.
    pub allocated_bytes: u64,
    /// Bytes freed.
    pub freed_bytes: u64,
    /// What was allocated and not freed; negative when more was freed.
    pub balance_bytes: i64,
    /// Warnings about the process.
    pub warnings: Vec<String>,
    /// Its ops, most time first.
    pub ops: Vec<OpCalls>,
}

/// One op of a process. Times in ns.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct OpCalls {
    /// Short name.
    pub op: String,
    /// Calls made by the program.
    pub calls: u64,
    /// Calls that returned an error.
    pub errors: u64,
    /// Median duration.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// p99 / p50; `None` with few calls.
    pub tail_ratio: Option<f64>,
    /// Longest.
    pub max_ns: u64,
    /// All durations together.
    pub total_ns: u64,
    /// Calls in the second with most of them.
    pub peak_per_second: Option<f64>,
    /// How far the median second of the last quarter lies below that peak, 0 to 1; `None` where the run was too short.
    pub drop: Option<f64>,
    /// Bytes it allocated.
    pub allocated_bytes: u64,
    /// Bytes it freed.
    pub freed_bytes: u64,
    /// Bytes it copied or filled.
    pub moved_bytes: u64,
    /// Warnings.
    pub warnings: Vec<String>,
}

/// Facts about a process other than its calls.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Circumstances {
    /// Its peak memory in swap, bytes.
    pub swapped: u64,
    /// Major page faults, and the time in which they were counted, ns.
    pub major_faults: (u64, u64),
    /// How long its launching thread was ready without a CPU, and how long it was watched, ns.
    pub ready: (u64, u64),
    /// Its leaking lines: headlines of findings.
    pub leaks: Vec<String>,
}

impl Circumstances {
    /// Adds the ledger of the process's thread that launches most.
    pub fn with_thread(self, thread: Option<&ThreadReport>) -> Self {
        let ready = |thread: &ThreadReport| thread.ledger.get(State::Ready.name()).copied().unwrap_or(0);
        let ready = thread.filter(|thread| thread.launches > 0).map(|thread| (ready(thread), thread.wall_ns));
        Self { ready: ready.unwrap_or_default(), ..self }
    }
}

impl OpCalls {
    /// Adds what follows from the other figures and from how the op's rate went.
    pub fn finish(mut self, class: Option<Class>, course: Option<Course>) -> Self {
        self.tail_ratio = tail_ratio(self.calls, self.p50_ns, self.p99_ns);
        self.peak_per_second = course.map(|course| course.peak);
        self.drop = course.map(|course| course.drop());
        self.warnings = self.warnings_of(class, course);
        self
    }

    fn warnings_of(&self, class: Option<Class>, course: Option<Course>) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(times) = self.tail_ratio.filter(|times| *times >= TAIL_TIMES && self.p99_ns >= TAIL_NS) {
            warnings.push(format!("p99 {} × p50", units::count(times.round() as u64)));
        }
        match self.errors {
            0 => {}
            1 => warnings.push("1 call returned an error".to_owned()),
            n => warnings.push(format!("{} calls returned an error", units::count(n))),
        }
        // The rates of other ops vary as a job goes on; launches are its pace.
        let fell = |course: &Course| course.sure && course.drop() >= DROP && course.last <= course.early * (1.0 - DROP);
        if let Some(course) = course.filter(|course| class == Some(Class::Launch) && fell(course)) {
            let [last, peak] = [course.last, course.peak].map(|rate| units::count(rate.round() as u64));
            warnings.push(format!("fell from {peak}/s to {last}/s"));
        }
        warnings
    }
}

/// p99 / p50; `None` with few calls, whose p99 is just the longest.
pub fn tail_ratio(calls: u64, p50_ns: u64, p99_ns: u64) -> Option<f64> {
    (calls >= TAIL_CALLS && p50_ns > 0).then(|| p99_ns as f64 / p50_ns as f64)
}

impl ProcessCalls {
    /// Combines a process's ops and finds what deserves a warning.
    pub fn new(pid: u32, name: String, mut ops: Vec<OpCalls>, circumstances: &Circumstances) -> Self {
        ops.sort_by(|a, b| (b.total_ns, b.calls, &a.op).cmp(&(a.total_ns, a.calls, &b.op)));
        let sum = |of: fn(&OpCalls) -> u64| ops.iter().map(of).fold(0, u64::saturating_add);
        let (allocated_bytes, freed_bytes) = (sum(|op| op.allocated_bytes), sum(|op| op.freed_bytes));
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let balance_bytes = signed(allocated_bytes) - signed(freed_bytes);
        let leaks = &circumstances.leaks;
        // A leak says more than the balance, and "not a leak" would be wrong.
        let balance = balance(balance_bytes).filter(|_| balance_bytes < 0 || leaks.is_empty());
        let warnings = leaks.iter().cloned().chain(balance).chain(of_process(circumstances)).collect();
        Self { pid, name, allocated_bytes, freed_bytes, balance_bytes, warnings, ops }
    }

    /// All warnings, those about an op with its name.
    pub fn all_warnings(&self) -> Vec<String> {
        let of_ops = self.ops.iter().flat_map(|op| op.warnings.iter().map(move |what| format!("{}: {what}", op.op)));
        of_ops.chain(self.warnings.iter().cloned()).collect()
    }
}

fn balance(bytes: i64) -> Option<String> {
    let difference = units::bytes(bytes.unsigned_abs());
    match bytes {
        0 => None,
        1.. => Some(format!(
            "frees {difference} less than it allocates: not a leak on its own, caches such as PyTorch's keep memory"
        )),
        _ => Some(format!(
            "frees {difference} more than it allocates: allocated before recording, or outside the time range"
        )),
    }
}

fn of_process(known: &Circumstances) -> Vec<String> {
    let mut warnings = Vec::new();
    let (ready, watched) = known.ready;
    if watched > 0 && ready as f64 >= READY * watched as f64 {
        // Not a share: other shares are of the steady state, this is of the thread's whole life.
        warnings.push(format!("its launching thread was ready without a CPU for {}", units::time(ready)));
    }
    if known.swapped > 0 {
        warnings.push(format!("up to {} of its memory was in swap", units::bytes(known.swapped)));
    }
    let (faults, ns) = known.major_faults;
    let rate = faults as f64 * 1e9 / ns.max(1) as f64;
    if rate >= FAULTS {
        warnings.push(format!("{} major page faults a second", units::count(rate.round() as u64)));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(op: &str, calls: u64, times: [u64; 3], bytes: [u64; 2]) -> OpCalls {
        let [p50_ns, p99_ns, total_ns] = times;
        let [allocated_bytes, freed_bytes] = bytes;
        OpCalls { op: op.into(), calls, p50_ns, p99_ns, total_ns, allocated_bytes, freed_bytes, ..Default::default() }
    }

    fn process(ops: Vec<OpCalls>, known: &Circumstances) -> ProcessCalls {
        let ops = ops.into_iter().map(|op| op.finish(None, None)).collect();
        ProcessCalls::new(4821, "python3".into(), ops, known)
    }

    #[test]
    fn tails_errors_and_memory_that_stays_get_warnings() {
        let failing = OpCalls { errors: 2, ..op("cudaMalloc", 3, [2_000, 3_000, 8_000], [5_000_000_000, 0]) };
        let ops = vec![
            failing,
            op("cudaStreamSync", 200, [7_000, 7_200_000, 90_000_000], [0, 0]),
            op("cudaFree", 1, [2_000, 40_000, 2_000], [0, 2_000_000_000]),
        ];
        let process = process(ops, &Circumstances::default());
        assert_eq!(process.ops.iter().map(|op| op.op.as_str()).collect::<Vec<_>>()[0], "cudaStreamSync");
        assert_eq!(process.ops[0].warnings, ["p99 1,029 × p50"]);
        assert_eq!(process.ops[0].tail_ratio, Some(7_200.0 / 7.0));
        assert_eq!(process.ops[1].warnings, ["2 calls returned an error"]);
        assert_eq!((process.ops[2].warnings.len(), process.ops[2].tail_ratio), (0, None), "one call has no tail");
        assert_eq!(process.balance_bytes, 3_000_000_000);
        assert!(process.warnings[0].starts_with("frees 3.00 GB less than it allocates"), "{:?}", process.warnings);
        let all = process.all_warnings();
        assert_eq!(&all[..2], ["cudaStreamSync: p99 1,029 × p50", "cudaMalloc: 2 calls returned an error"]);
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn a_pace_that_fell_and_short_resources_get_warnings() {
        let launches = || op("cudaLaunchKernel", 2_000, [7_000, 9_000, 90_000], [0, 0]);
        let fell = Course { peak: 120.0, early: 100.0, last: 30.0, sure: true };
        let finished = launches().finish(Some(Class::Launch), Some(fell));
        assert_eq!((finished.peak_per_second, finished.drop), (Some(120.0), Some(0.75)));
        assert_eq!(finished.warnings, ["fell from 120/s to 30/s"]);
        let short = launches().finish(Some(Class::Launch), Some(Course { sure: false, ..fell }));
        assert_eq!(short.warnings, Vec::<String>::new(), "a few seconds may be chance");
        let none: [&str; 0] = [];
        // Copies come and go; and one busy second at the start is no usual pace.
        assert_eq!(launches().finish(Some(Class::Copy), Some(fell)).warnings, none);
        let burst = Course { peak: 120.0, early: 40.0, last: 40.0, sure: true };
        assert_eq!(launches().finish(Some(Class::Launch), Some(burst)).warnings, none);
        let short = Circumstances {
            swapped: 3_000_000,
            major_faults: (50, 2_000_000_000),
            ready: (1_000_000_000, 8_000_000_000),
            ..Circumstances::default()
        };
        let expected = [
            "its launching thread was ready without a CPU for 1.00 s",
            "up to 3.00 MB of its memory was in swap",
            "25 major page faults a second",
        ];
        assert_eq!(process(vec![launches()], &short).warnings, expected);
        let well = Circumstances { major_faults: (3, 2_000_000_000), ready: (1, 20), ..Circumstances::default() };
        assert_eq!(process(vec![launches()], &well).all_warnings(), none);
    }

    #[test]
    fn a_leak_is_reported_and_not_denied() {
        let leaks = vec!["a.py:3 leaks 1.00 MB a step: 203 MB since step 4".to_owned()];
        let ops = || vec![op("cudaMalloc", 3, [1, 1, 1], [7, 0])];
        let leaking = Circumstances { leaks: leaks.clone(), ..Circumstances::default() };
        assert_eq!(process(ops(), &leaking).warnings, leaks);
        assert!(process(ops(), &Circumstances::default()).warnings[0].contains("not a leak on its own"));
    }

    #[test]
    fn more_freed_than_allocated_is_no_leak() {
        let process = process(vec![op("cudaFree", 1, [1, 1, 1], [0, 7])], &Circumstances::default());
        assert!(process.warnings[0].starts_with("frees 7 B more"), "{:?}", process.warnings);
        assert_eq!(process.balance_bytes, -7);
    }
}
