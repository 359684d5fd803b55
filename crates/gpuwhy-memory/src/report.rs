// SPDX-License-Identifier: Apache-2.0
//! The memory report that every view shows. Its JSON is `gpuwhy.memory/1` (docs/memory-json.md). Times are nanoseconds
//! since the run began, sizes are bytes. Names come from the traced processes.

use crate::alerts::Alert;
use crate::steps::Certainty;
use gpuwhy_model::{Finding, units};
use serde::Serialize;

/// An NVML sample this close to an event counts as simultaneous, ns.
const NOW_NS: u64 = 100_000_000;

/// The report.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// The answer in a few sentences.
    pub verdict: String,
    /// Start of the time range.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// Memory of each process on each device, most first.
    pub spaces: Vec<SpaceReport>,
    /// The steps that were found, by process.
    pub steps: Vec<StepsReport>,
    /// Lines that leak, the fastest first.
    pub leaks: Vec<Leak>,
    /// Lines that grew but do not leak, and why.
    pub growths: Vec<Growth>,
    /// Memory taken from the driver and how well it is used, by process and device.
    pub fragmentation: Vec<Fragmentation>,
    /// Memory used on each GPU beyond the job's allocations.
    pub gaps: Vec<Gap>,
    /// Each time memory ran out; of many, the first and last ones.
    pub ooms: Vec<Oom>,
    /// How often memory ran out.
    pub oom_count: u64,
    /// Processes ended by a signal and the memory they held: those with GPU memory, and those killed because main memory
    /// ran out.
    pub ends: Vec<End>,
    /// Alerts raised while the run was recorded, by time.
    pub alerts: Vec<Alert>,
    /// Findings, worst first.
    pub findings: Vec<Finding>,
    /// What cannot be known, and why.
    pub notes: Vec<String>,
}

/// How the memory was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// By PyTorch's caching allocator, for tensors.
    Torch,
    /// By CUDA calls outside PyTorch's allocator.
    Driver,
}

/// Memory of one process on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpaceReport {
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// CUDA's device number; `None` if gpuwhy did not see it being set.
    pub device: Option<u32>,
    /// How it was allocated.
    pub source: Source,
    /// Bytes in use at the end of the time range, or when the process ended: a process that ends normally has freed
    /// everything by then.
    pub allocated: u64,
    /// Bytes reserved by PyTorch then; equals `allocated` for other memory.
    pub reserved: u64,
    /// When its process ended, if that is in the time range.
    pub ended_ns: Option<u64>,
    /// The state when growth was last checked; `None` if it never was.
    pub last_look: Option<LastCheck>,
    /// The exact peak.
    pub peak_allocated: u64,
    /// When that was first reached.
    pub peak_allocated_at_ns: u64,
    /// Peak reserved by PyTorch.
    pub peak_reserved: u64,
    /// When that was first reached.
    pub peak_reserved_at_ns: u64,
    /// In use before the first report: allocated before the recording.
    pub preexisting: u64,
    /// Bytes of the peak without a recorded allocation.
    pub peak_preexisting: u64,
    /// Allocations and frees.
    pub balance: Balance,
    /// Memory in use at the peak by line, most first. With `peak_preexisting` it adds up to `peak_allocated`.
    pub at_peak: Vec<Holder>,
    /// The same at the last check; without one, at the end.
    pub at_end: Vec<Holder>,
    /// Over time.
    pub timeline: Vec<TimelinePoint>,
    /// Memory by line at each point, in a detailed report ([`crate::Analyser::in_detail`]). Too large for the JSON.
    #[serde(skip)]
    pub live: Option<LiveTimeline>,
}

/// The last time a process's memory was checked for growth: at the end of its last whole step, while it worked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LastCheck {
    /// When.
    pub at_ns: u64,
    /// Bytes in use.
    pub allocated: u64,
    /// Bytes reserved by PyTorch; equals `allocated` for other memory.
    pub reserved: u64,
}

/// Allocations and frees in the time range: `live_before` + `alloc_bytes` − `free_bytes` = `live_bytes`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Balance {
    /// Bytes of seen allocations that were live at the start of the time range.
    pub live_before: u64,
    /// Allocations that were seen.
    pub allocs: u64,
    /// Their bytes.
    pub alloc_bytes: u64,
    /// Frees of those.
    pub frees: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// Frees of memory allocated before the recording, or whose allocation was lost.
    pub unknown_frees: u64,
    /// Their bytes.
    pub unknown_free_bytes: u64,
    /// Bytes of seen allocations that are live at the end.
    pub live_bytes: u64,
    /// Their number.
    pub live: u64,
    /// Addresses allocated again without a free in between: reports were lost.
    pub lost_frees: u64,
}

/// A line that holds memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// The line that allocated it; for allocations of autograd's threads, the line that called `backward()`. `None` if no
    /// Python was running.
    pub line: Option<String>,
    /// The function that line is in.
    pub function: Option<String>,
    /// Bytes.
    pub bytes: u64,
    /// Number of allocations.
    pub count: u64,
    /// The stack that holds most of it, as in the view `stack_traces`.
    pub stack_id: Option<i64>,
}

/// A time slice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TimelinePoint {
    /// When it begins.
    pub at_ns: u64,
    /// Maximum in use.
    pub allocated: u64,
    /// Minimum in use.
    pub allocated_least: u64,
    /// Maximum reserved by PyTorch.
    pub reserved: u64,
    /// Maximum used on the device by all processes (NVML).
    pub device_used: Option<u64>,
}

/// Memory by line at each point of a timeline: at the peak of that slice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LiveTimeline {
    /// The listed lines, those that held most first.
    pub lines: Vec<LiveLine>,
    /// The device's size, if NVML reports it.
    pub device_total: Option<u64>,
    /// One for each point of the timeline.
    pub points: Vec<LivePoint>,
}

/// A line of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LiveLine {
    /// The line; `None` if no Python was running.
    pub line: Option<String>,
    /// The function that line is in.
    pub function: Option<String>,
    /// The stack that held most of its memory.
    pub stack_id: Option<i64>,
}

/// A point of it: `lines` + `others` + `unseen` = the timeline's `allocated`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LivePoint {
    /// Indices into [`LiveTimeline::lines`] and bytes, most first; at most eight.
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
    /// Process id.
    pub pid: u32,
    /// How certain the steps are.
    pub certainty: Certainty,
    /// Number of steps.
    pub steps: u64,
    /// Median length.
    pub step_ns: u64,
    /// Median number of launches.
    pub launches: u64,
    /// The call that marks them.
    pub marker_op: Option<String>,
    /// Its line.
    pub marker_line: Option<String>,
}

/// A line that leaks.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Leak {
    /// Process id.
    pub pid: u32,
    /// CUDA's device number.
    pub device: Option<u32>,
    /// The line.
    pub line: Option<String>,
    /// Its function.
    pub function: Option<String>,
    /// The stack that holds most of it.
    pub stack_id: Option<i64>,
    /// Bytes kept for each step; `None` if no steps were found.
    pub bytes_per_step: Option<f64>,
    /// Bytes kept for each second.
    pub bytes_per_second: f64,
    /// Allocations kept for each step.
    pub pieces_per_step: Option<f64>,
    /// Median size of an allocation.
    pub piece_bytes: u64,
    /// When it started.
    pub onset_ns: u64,
    /// The step in which it started.
    pub onset_step: Option<u64>,
    /// Bytes kept since then, at the last check.
    pub grown_bytes: u64,
    /// The time of the last check.
    pub last_look_ns: u64,
    /// Checks since then, at steps or in time slices.
    pub looks: u64,
    /// Those of them that kept something.
    pub looks_with_growth: u64,
    /// When all leaks of the device together fill its memory at this rate, counted from the end. `None` if the device's
    /// size is unknown, memory has already run out, or the process has ended.
    pub out_of_memory_in_ns: Option<u64>,
    /// The same in steps.
    pub out_of_memory_in_steps: Option<u64>,
    /// How certain it is.
    pub certainty: Certainty,
}

/// Why growth is not a leak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GrowthKind {
    /// It grew and then stopped: warm-up, or a full cache.
    Settled,
    /// It grows and is freed, again and again.
    Sawtooth,
    /// It grew once.
    OneOff,
    /// It holds the same amount in newer allocations: a cache or queue that replaces its entries.
    Renewed,
}

/// A line that grew but does not leak.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Growth {
    /// Process id.
    pub pid: u32,
    /// CUDA's device number.
    pub device: Option<u32>,
    /// The line.
    pub line: Option<String>,
    /// Why it is not a leak.
    pub kind: GrowthKind,
    /// Its peak.
    pub bytes: u64,
    /// When it stopped growing, if it settled.
    pub settled_ns: Option<u64>,
    /// The step in which it stopped growing.
    pub settled_step: Option<u64>,
}

/// How memory is taken from the driver.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Fragmentation {
    /// Process id.
    pub pid: u32,
    /// CUDA's device number; `None` for calls whose device is unknown.
    pub device: Option<u32>,
    /// Peak reserved by PyTorch.
    pub peak_reserved: u64,
    /// In use at that time.
    pub allocated_then: u64,
    /// Cached at the end.
    pub cached: u64,
    /// Allocations of PyTorch's allocator from the driver.
    pub segments: u64,
    /// Their bytes.
    pub segment_bytes: u64,
    /// Segments it returned (`empty_cache()`, or because memory ran out).
    pub returned: u64,
    /// Their bytes.
    pub returned_bytes: u64,
    /// How many of those bytes it took again later.
    pub retaken_bytes: u64,
    /// Time spent returning and taking again.
    pub churn_ns: u64,
    /// Lines that returned memory, most bytes first.
    pub returned_by: Vec<Holder>,
    /// Driver allocations outside PyTorch's allocator, by line.
    pub past_allocator: Vec<Holder>,
    /// Allocating calls in ten slices of the process's work; only with its first device.
    pub latency: Vec<LatencyWindow>,
    /// Lines that take memory from the driver or return it, most time first; only with the first device.
    pub driver_by: Vec<DriverLine>,
    /// Time in calls that allocate or free.
    pub driver_ns: u64,
    /// The time after the first fifth of the process's work.
    pub late_span_ns: u64,
    /// Driver allocations in that time.
    pub late_allocs: u64,
    /// Time in those calls and in frees.
    pub late_ns: u64,
}

/// A line whose work makes the driver allocate or free.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DriverLine {
    /// The line; `None` if no Python was running.
    pub line: Option<String>,
    /// The function that line is in.
    pub function: Option<String>,
    /// Calls that allocate or free.
    pub calls: u64,
    /// Bytes allocated.
    pub bytes: u64,
    /// Time in these calls.
    pub total_ns: u64,
    /// Of that time, how much was after the first fifth of the process's work.
    pub late_ns: u64,
    /// The stack with most of the time.
    pub stack_id: Option<i64>,
}

/// The latency of allocating calls in a time slice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LatencyWindow {
    /// When it begins.
    pub at_ns: u64,
    /// Calls.
    pub calls: u64,
    /// The median.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// Total time.
    pub total_ns: u64,
}

/// How the gap behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trend {
    /// Always about the same.
    Steady,
    /// Much larger at times.
    Transient,
    /// Growing or shrinking throughout.
    Drifting,
}

/// Memory used on a GPU beyond the job's allocations.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gap {
    /// NVML's index of the GPU.
    pub gpu: u32,
    /// Its size.
    pub memory_total: Option<u64>,
    /// Used at the last sample, by all processes.
    pub used: u64,
    /// The maximum of all samples.
    pub peak_used: u64,
    /// Reserved by the job's PyTorch allocators at the last sample.
    pub reserved: u64,
    /// Allocated by the job outside them.
    pub direct: u64,
    /// Other processes, by name.
    pub others: Vec<OtherProcess>,
    /// Hidden memory, the median of all samples: CUDA contexts, NCCL, library workspaces.
    pub hidden: u64,
    /// Its maximum.
    pub hidden_most: u64,
    /// How it behaves.
    pub trend: Trend,
    /// Bytes a second, if it drifts.
    pub drift_per_second: f64,
    /// Number of samples.
    pub looks: u64,
}

/// A process that is not part of the job and holds memory on its GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OtherProcess {
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its maximum.
    pub bytes: u64,
}

/// Memory ran out.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Oom {
    /// When.
    pub at_ns: u64,
    /// The step.
    pub step: Option<u64>,
    /// Process id.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// CUDA's device number.
    pub device: Option<u32>,
    /// Bytes asked for.
    pub asked: u64,
    /// In use.
    pub allocated: u64,
    /// Reserved.
    pub reserved: u64,
    /// Used on the device: sampled at once or, if that was too late, before.
    pub device_used: Option<u64>,
    /// The time of that sample.
    pub device_used_at_ns: Option<u64>,
    /// The device's size.
    pub device_total: Option<u64>,
    /// Other processes on the device at that sample, traced or not, most first.
    pub others: Vec<OtherProcess>,
    /// Whether the process ended within five seconds.
    pub fatal: bool,
    /// The line that asked.
    pub line: Option<String>,
    /// The stack it asked from, innermost frame first.
    pub stack: Vec<String>,
    /// Its id.
    pub stack_id: Option<i64>,
    /// Memory in use by line, most first.
    pub live: Vec<Holder>,
    /// Memory in use without a recorded allocation.
    pub preexisting: u64,
    /// Memory over the two minutes before.
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
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The signal.
    pub signal: u32,
    /// Whether the kernel killed it because main memory ran out.
    pub oom_killed: bool,
    /// Memory in use then, on all devices.
    pub allocated: u64,
    /// How much of that was allocated outside PyTorch's allocator.
    pub direct: u64,
    /// Memory in use by line, most first.
    pub live: Vec<Holder>,
    /// The line of its last allocation, on the device with most of its memory.
    pub last_line: Option<String>,
    /// The stack of that allocation, innermost frame first.
    pub last_stack: Vec<String>,
    /// Memory over the two minutes before, on that device.
    pub before: Vec<TimelinePoint>,
}
