// SPDX-License-Identifier: Apache-2.0
//! What is known about a run's GPU memory: what every view shows. Its JSON is `gpuwhy.memory/1` (docs/memory-json.md).
//! Times are nanoseconds since the run began, sizes are bytes. Names are from the traced world.

use crate::alerts::Alert;
use crate::steps::Certainty;
use gpuwhy_model::{Finding, units};
use serde::Serialize;

/// What was said further away than this is not told as if it were said then, ns.
const NOW_NS: u64 = 100_000_000;

/// The report.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// In words, for a tired engineer.
    pub verdict: String,
    /// The span.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// Memory of each process on each device, most first.
    pub spaces: Vec<SpaceReport>,
    /// The steps that were found, by process.
    pub steps: Vec<StepsReport>,
    /// Lines that keep what they allocate, most a second first.
    pub leaks: Vec<Leak>,
    /// Lines that hold more than at first, but do not leak: and why not.
    pub growths: Vec<Growth>,
    /// What is taken from the driver, and how well it is used; by process and device.
    pub fragmentation: Vec<Fragmentation>,
    /// What the device says is used beyond what the job took; by GPU.
    pub gaps: Vec<Gap>,
    /// Every time memory ran out (of many, the first and the last).
    pub ooms: Vec<Oom>,
    /// How often memory ran out.
    pub oom_count: u64,
    /// Processes that a signal ended, and what they held: those with GPU memory, and those killed for want of main memory.
    pub ends: Vec<End>,
    /// Alerts that were raised while it was recorded, in the order of time.
    pub alerts: Vec<Alert>,
    /// Answers, worst first.
    pub findings: Vec<Finding>,
    /// What cannot be known, and why.
    pub notes: Vec<String>,
}

/// Who took the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Tensors, by PyTorch's caching allocator.
    Torch,
    /// Calls to CUDA that are not PyTorch's allocator's.
    Driver,
}

/// Memory of one process on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpaceReport {
    /// Process.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// CUDA's number of the device; `None` where it was not seen being set.
    pub device: Option<u32>,
    /// Who took it.
    pub source: Source,
    /// Bytes in use at the end of the span, or when its process ended: by then a process that ends well has freed everything.
    pub allocated: u64,
    /// Bytes that PyTorch had from the driver at that moment; as `allocated` of other memory.
    pub reserved: u64,
    /// When its process ended, if that is in the span.
    pub ended_ns: Option<u64>,
    /// What was in use when lines were last looked at for growth; `None` where that never happened.
    pub last_look: Option<LastLook>,
    /// The most in use at any moment, exactly.
    pub peak_allocated: u64,
    /// When that was reached first.
    pub peak_allocated_at_ns: u64,
    /// The most that PyTorch had from the driver.
    pub peak_reserved: u64,
    /// When that was reached first.
    pub peak_reserved_at_ns: u64,
    /// In use before the first report: older than the recording.
    pub preexisting: u64,
    /// Of the peak, what no recorded allocation explains.
    pub peak_preexisting: u64,
    /// What was allocated and freed.
    pub balance: Balance,
    /// What was in use at the peak, by line, most first. Adds up to `peak_allocated`, with `peak_preexisting`.
    pub at_peak: Vec<Holder>,
    /// The same at the last look; without one, at the end.
    pub at_end: Vec<Holder>,
    /// Over time.
    pub timeline: Vec<TimelinePoint>,
    /// Who held memory at each point of it, where that was asked for ([`crate::Analyser::in_detail`]): too much for a
    /// report that is read, and so no part of its JSON.
    #[serde(skip)]
    pub live: Option<LiveTimeline>,
}

/// The last time at which a process's memory was looked at for growth: at the end of its last whole step, while it worked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LastLook {
    /// When.
    pub at_ns: u64,
    /// Bytes in use.
    pub allocated: u64,
    /// Bytes that PyTorch had from the driver; as `allocated` of other memory.
    pub reserved: u64,
}

/// Allocations and frees of the span: `live_before` + `alloc_bytes` − `free_bytes` = `live_bytes`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Balance {
    /// Bytes of seen allocations that were live when the span began.
    pub live_before: u64,
    /// Allocations that were seen.
    pub allocs: u64,
    /// Their bytes.
    pub alloc_bytes: u64,
    /// Frees of those.
    pub frees: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// Frees of what is older than the recording (or whose allocation was lost).
    pub unknown_frees: u64,
    /// Their bytes.
    pub unknown_free_bytes: u64,
    /// Bytes of seen allocations that are live at the end.
    pub live_bytes: u64,
    /// How many those are.
    pub live: u64,
    /// Addresses that were given out again though no free was seen: reports were lost.
    pub lost_frees: u64,
}

/// Somebody who holds memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// The line that allocated it; of what autograd's threads allocated, the one that called `backward()`. `None` where no
    /// Python was running.
    pub line: Option<String>,
    /// The function that line is in.
    pub function: Option<String>,
    /// Bytes.
    pub bytes: u64,
    /// In so many pieces.
    pub count: u64,
    /// The stack that holds most of it, as in the view `stack_traces`.
    pub stack_id: Option<i64>,
}

/// A part of the span.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TimelinePoint {
    /// When it begins.
    pub at_ns: u64,
    /// The most that was in use in it.
    pub allocated: u64,
    /// The least.
    pub allocated_least: u64,
    /// The most that PyTorch had from the driver.
    pub reserved: u64,
    /// What the device said was used, by all.
    pub device_used: Option<u64>,
}

/// Who held memory at each point of a timeline: at the moment of that part in which most was in use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LiveTimeline {
    /// The lines told of, those that held most first.
    pub lines: Vec<LiveLine>,
    /// The device's memory, where NVML tells.
    pub device_total: Option<u64>,
    /// As many as the timeline has.
    pub points: Vec<LivePoint>,
}

/// A line of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LiveLine {
    /// The line; `None` where no Python was running.
    pub line: Option<String>,
    /// The function that line is in.
    pub function: Option<String>,
    /// The stack that held most of it.
    pub stack_id: Option<i64>,
}

/// A point of it: `lines` + `others` + `unseen` = the timeline's `allocated`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LivePoint {
    /// Places in [`LiveTimeline::lines`] and bytes, most first; no more than eight.
    #[serde(rename = "live")]
    pub lines: Vec<(u32, u64)>,
    /// Bytes of all other lines.
    pub others: u64,
    /// Bytes in use whose allocation was not seen.
    pub unseen: u64,
}

/// A process's steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct StepsReport {
    /// Process.
    pub pid: u32,
    /// How sure it is that these are steps.
    pub certainty: Certainty,
    /// How many.
    pub steps: u64,
    /// Length, the median.
    pub step_ns: u64,
    /// Launches in one, the median.
    pub launches: u64,
    /// The call that marks them.
    pub marker_op: Option<String>,
    /// Its line.
    pub marker_line: Option<String>,
}

/// A line that keeps what it allocates.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Leak {
    /// Process.
    pub pid: u32,
    /// CUDA's number of the device.
    pub device: Option<u32>,
    /// The line.
    pub line: Option<String>,
    /// Its function.
    pub function: Option<String>,
    /// The stack that holds most of it.
    pub stack_id: Option<i64>,
    /// Kept for each step; `None` where no steps were found.
    pub bytes_per_step: Option<f64>,
    /// Kept for each second.
    pub bytes_per_second: f64,
    /// Pieces kept for each step.
    pub pieces_per_step: Option<f64>,
    /// One piece's size, the median.
    pub piece_bytes: u64,
    /// When it began.
    pub onset_ns: u64,
    /// In which step.
    pub onset_step: Option<u64>,
    /// Kept since then, at the last look.
    pub grown_bytes: u64,
    /// When that look was.
    pub last_look_ns: u64,
    /// Steps (or parts of the time) since then that were looked at.
    pub looks: u64,
    /// Of them, those that kept something.
    pub looks_with_growth: u64,
    /// When memory will have run out at this rate, all leaks of the device together, counted from the end; `None` where
    /// the device's size is not known, and where nothing can run out any more: it did already, or the process has ended.
    pub out_of_memory_in_ns: Option<u64>,
    /// The same in steps.
    pub out_of_memory_in_steps: Option<u64>,
    /// How sure.
    pub certainty: Certainty,
}

/// Why growth is no leak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GrowthKind {
    /// It grew, and then no more: warm-up, or a cache that is full.
    Settled,
    /// It grows and is given back, again and again.
    Sawtooth,
    /// It grew once.
    OneOff,
    /// It holds as much as before, in newer pieces: a cache or queue that is renewed.
    Renewed,
}

/// A line that holds more than at first, but does not leak.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Growth {
    /// Process.
    pub pid: u32,
    /// CUDA's number of the device.
    pub device: Option<u32>,
    /// The line.
    pub line: Option<String>,
    /// Why it is no leak.
    pub kind: GrowthKind,
    /// The most it held.
    pub bytes: u64,
    /// From when on it grew no more, where it settled.
    pub settled_ns: Option<u64>,
    /// In which step.
    pub settled_step: Option<u64>,
}

/// How memory is taken from the driver.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Fragmentation {
    /// Process.
    pub pid: u32,
    /// CUDA's number of the device; `None` for calls of which it is not known.
    pub device: Option<u32>,
    /// The most that PyTorch had reserved, and when.
    pub peak_reserved: u64,
    /// In use at that moment.
    pub allocated_then: u64,
    /// Reserved and not in use at the end.
    pub cached: u64,
    /// Allocations of PyTorch's allocator from the driver.
    pub segments: u64,
    /// Their bytes.
    pub segment_bytes: u64,
    /// What it gave back (`empty_cache()`, or because memory ran out).
    pub returned: u64,
    /// Its bytes.
    pub returned_bytes: u64,
    /// Of those bytes, what was taken again later.
    pub retaken_bytes: u64,
    /// The time that took, taking and giving.
    pub churn_ns: u64,
    /// Lines that gave memory back, most bytes first.
    pub returned_by: Vec<Holder>,
    /// Allocations from the driver past PyTorch's allocator, by line.
    pub past_allocator: Vec<Holder>,
    /// Calls that allocate, in ten parts of the process's work; told once, with its first device.
    pub latency: Vec<LatencyWindow>,
    /// Lines that take memory from the driver or give it back, most time first; told once, too.
    pub driver_by: Vec<DriverLine>,
    /// Time in calls that allocate or free.
    pub driver_ns: u64,
    /// After the first fifth of its work: for how long.
    pub late_span_ns: u64,
    /// How often memory was taken from the driver then.
    pub late_allocs: u64,
    /// And the time in those calls and in frees.
    pub late_ns: u64,
}

/// A line whose work makes the driver allocate or free.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DriverLine {
    /// The line; `None` where no Python was running.
    pub line: Option<String>,
    /// The function that line is in.
    pub function: Option<String>,
    /// Calls that allocate or free.
    pub calls: u64,
    /// Bytes that were taken.
    pub bytes: u64,
    /// Time in these calls.
    pub total_ns: u64,
    /// Of that, after the first fifth of the process's work.
    pub late_ns: u64,
    /// The stack with most of that time.
    pub stack_id: Option<i64>,
}

/// How long calls that allocate took in a part of the span.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LatencyWindow {
    /// When it begins.
    pub at_ns: u64,
    /// Calls.
    pub calls: u64,
    /// The median.
    pub p50_ns: u64,
    /// 99 of 100 took no longer.
    pub p99_ns: u64,
    /// Time in all.
    pub total_ns: u64,
}

/// How the gap behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trend {
    /// Always about the same.
    Steady,
    /// At times much larger.
    Transient,
    /// It grows, or shrinks, all the time.
    Drifting,
}

/// What a GPU says is used beyond what the job's allocations explain.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gap {
    /// NVML's index of the GPU.
    pub gpu: u32,
    /// Its memory.
    pub memory_total: Option<u64>,
    /// Used at the last look, by all.
    pub used: u64,
    /// The most that any look found.
    pub peak_used: u64,
    /// Reserved by the job's PyTorch allocators then.
    pub reserved: u64,
    /// Taken by the job past them.
    pub direct: u64,
    /// Other processes, by name.
    pub others: Vec<OtherProcess>,
    /// What is left, the median of all looks: CUDA contexts, NCCL, workspaces of libraries.
    pub hidden: u64,
    /// The most it was.
    pub hidden_most: u64,
    /// How it behaves.
    pub trend: Trend,
    /// Bytes a second, where it drifts.
    pub drift_per_second: f64,
    /// Looks.
    pub looks: u64,
}

/// A process that is not the job's and has memory on its GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OtherProcess {
    /// Process.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The most it had.
    pub bytes: u64,
}

/// Memory ran out.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Oom {
    /// When.
    pub at_ns: u64,
    /// In which step.
    pub step: Option<u64>,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// CUDA's number of the device.
    pub device: Option<u32>,
    /// What was asked for.
    pub asked: u64,
    /// In use.
    pub allocated: u64,
    /// From the driver.
    pub reserved: u64,
    /// What the device said was used: at once, or at the look before where it was not asked in time.
    pub device_used: Option<u64>,
    /// When it said so.
    pub device_used_at_ns: Option<u64>,
    /// Its memory.
    pub device_total: Option<u64>,
    /// Other processes on it at that look, traced or not, most first.
    pub others: Vec<OtherProcess>,
    /// Whether the process ended within five seconds.
    pub fatal: bool,
    /// The line that asked.
    pub line: Option<String>,
    /// The stack it asked from, innermost frame first.
    pub stack: Vec<String>,
    /// Its id.
    pub stack_id: Option<i64>,
    /// What was in use, by line, most first.
    pub live: Vec<Holder>,
    /// In use without a recorded allocation.
    pub preexisting: u64,
    /// The two minutes before.
    pub before: Vec<TimelinePoint>,
}

impl Oom {
    /// What NVML reported, in words, and how long before or after, if not at the same time.
    pub fn device_words(&self) -> Option<String> {
        let (used, total) = (units::bytes(self.device_used?), units::bytes(self.device_total?));
        let at = self.device_used_at_ns?;
        let when = match self.at_ns.abs_diff(at) {
            ..=NOW_NS => String::new(),
            by if at < self.at_ns => format!(", {} earlier", units::time(by)),
            by => format!(", {} later", units::time(by)),
        };
        Some(format!("the device had {used} of {total} in use{when}"))
    }
}

/// A signal ended a process.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct End {
    /// When.
    pub at_ns: u64,
    /// Process.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The signal.
    pub signal: u32,
    /// Whether the kernel chose it for want of main memory.
    pub oom_killed: bool,
    /// In use then, all devices.
    pub allocated: u64,
    /// Of that, what was taken past PyTorch's allocator.
    pub direct: u64,
    /// What was in use, by line, most first.
    pub live: Vec<Holder>,
    /// The line that allocated last, on the device on which it had most.
    pub last_line: Option<String>,
    /// The stack that was from, innermost frame first.
    pub last_stack: Vec<String>,
    /// The two minutes before, on that device.
    pub before: Vec<TimelinePoint>,
}
