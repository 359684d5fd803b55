// SPDX-License-Identifier: Apache-2.0
//! The analysis of a trace as plain data: the `trace` part of `gpuwhy.profile/1` (docs/profile-json.md).
//!
//! `total_ns` and `count` cover the whole recording; `steady_ns` is the part of `total_ns` after warm-up. Lists are sorted by
//! `steady_ns`, or by `total_ns` if warm-up is included.

use super::analysis::Account;
use gpuwhy_model::{Confidence, Finding};
use serde::Serialize;

/// One trace, analysed.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TraceReport {
    /// Events in the file, of every kind.
    pub events: u64,
    /// Bytes of JSON read (after decompression).
    pub json_bytes: u64,
    /// The job's rank and how many there are, when the job was distributed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// How many ranks there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub world_size: Option<u64>,
    /// Unix time of the first event, in nanoseconds, when the file says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_unix_ns: Option<u64>,
    /// Whether Python stacks were recorded, so that lines can be named.
    pub with_stack: bool,
    /// Each device's time.
    pub devices: Vec<DeviceReport>,
    /// Training steps.
    pub steps: Steps,
    /// GPU time by kind of work.
    pub categories: Vec<Total>,
    /// GPU time by kernel, copies and fills included.
    pub kernels: Vec<KernelTotal>,
    /// GPU time by the op that launched it.
    pub ops: Vec<Total>,
    /// GPU time by the innermost `nn.Module`; backward work counts for the module of its forward.
    pub modules: Vec<Total>,
    /// GPU time by Python line; backward work counts for the line of its forward.
    pub lines: Vec<Total>,
    /// Fills by op and the dimensions of what was filled.
    pub fills: Vec<FillTotal>,
    /// Copies by direction.
    pub copies: Vec<CopyTotal>,
    /// Collectives by kind.
    pub collectives: Vec<CollectiveTotal>,
    /// CUDA graphs replayed.
    pub graphs: Vec<GraphTotal>,
    /// What launching cost.
    pub launches: Launches,
    /// Forward work done again by activation checkpointing.
    pub recompute: Recompute,
    /// Calls in which the CPU waited for the GPU.
    pub syncs: Vec<SyncTotal>,
    /// What kept devices idle; for each device, these add up to its `idle_ns`.
    pub idle_causes: Vec<IdleCause>,
    /// Findings; the caller merges them with those of other files.
    #[serde(skip)]
    pub findings: Vec<Finding>,
    /// What could not be read, or is not certain; the caller merges them with those of other files.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

/// A device and where its time went.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DeviceReport {
    /// Its number in the trace.
    pub index: i32,
    /// As in `NVIDIA H200`; empty when the file does not say.
    pub name: String,
    /// Its memory, when the file says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The whole recording.
    #[serde(flatten)]
    pub account: Account,
    /// After warm-up, when there was some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steady: Option<Account>,
    /// Streams that did something.
    pub streams: u32,
    /// Sum of all durations: more than `busy_ns` where streams overlap.
    pub event_ns: u64,
}

/// Training steps and how they were found.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Steps {
    /// How many, the cut-off one not counted unless the profiler itself counted it.
    pub count: u64,
    /// `profiler_step`, `optimizer_step`, `annotation`, `python_function`, `dataloader`, `periodicity` or `none`.
    pub method: String,
    /// How sure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Confidence>,
    /// Median duration of complete steps after warm-up.
    pub median_ns: u64,
    /// Each step, in order.
    pub items: Vec<Step>,
}

/// One step, on the CPU's clock: the GPU may finish its work later.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Step {
    /// As the trace names it.
    pub name: String,
    /// From the start of the trace.
    pub start_ns: u64,
    /// How long.
    pub duration_ns: u64,
    /// How long the busiest device worked meanwhile.
    pub busy_ns: u64,
    /// Whether all of it is in the recording.
    pub complete: bool,
    /// Why it counts as warm-up, when it does: `loading`, `autotune`, `allocator`, `profiler` or `outlier`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup: Option<String>,
}

/// Time by something.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Total {
    /// Of the category, op, module or line.
    pub name: String,
    /// Sum of durations.
    pub total_ns: u64,
    /// Events.
    pub count: u64,
    /// Of `total_ns`, after warm-up.
    pub steady_ns: u64,
}

/// Time by kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct KernelTotal {
    /// As written by the compiler.
    pub name: String,
    /// By the rules.
    pub category: String,
    /// Sum of durations.
    pub total_ns: u64,
    /// How often it ran.
    pub count: u64,
    /// Of `total_ns`, after warm-up.
    pub steady_ns: u64,
}

/// Time spent filling memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FillTotal {
    /// The op, when linked.
    pub op: String,
    /// Its input dimensions as written, when recorded.
    pub dims: String,
    /// Sum of durations.
    pub total_ns: u64,
    /// How many.
    pub count: u64,
    /// Bytes, where the trace says (fills by the copy engine).
    pub bytes: u64,
}

/// Copies of one direction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CopyTotal {
    /// `HtoD`, `DtoH`, `DtoD`, `PtoP`, `HtoH` or `other`.
    pub direction: String,
    /// Sum of bytes.
    pub bytes: u64,
    /// Sum of durations.
    pub total_ns: u64,
    /// How many.
    pub count: u64,
    /// Of `total_ns`, after warm-up.
    pub steady_ns: u64,
    /// Bytes a second while copying; absent when bytes were not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<u64>,
    /// Of these, from or to pageable memory.
    pub pageable_bytes: u64,
    /// Time of the pageable ones.
    pub pageable_ns: u64,
    /// Of `pageable_ns`, after warm-up.
    pub pageable_steady_ns: u64,
    /// How many of them.
    pub pageable_count: u64,
}

/// Collectives of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CollectiveTotal {
    /// `allreduce`.
    pub name: String,
    /// Ranks that take part; 0 when not recorded.
    pub group_size: u32,
    /// Element type; empty when not recorded.
    pub dtype: String,
    /// Bytes of messages; 0 when not recorded.
    pub bytes: u64,
    /// Sum of kernel durations, waiting for other ranks included.
    pub total_ns: u64,
    /// Kernels.
    pub count: u64,
    /// Of `total_ns`, after warm-up.
    pub steady_ns: u64,
}

/// A CUDA graph.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct GraphTotal {
    /// The trace's number for it; 0 when it gives none.
    pub id: u32,
    /// How often it was launched.
    pub launches: u64,
    /// Kernels, copies and fills it ran.
    pub kernels: u64,
    /// Sum of their durations.
    pub total_ns: u64,
    /// Of `total_ns`, what could be traced back to an op.
    pub attributed_ns: u64,
}

/// What launching cost the CPU, and how far ahead of the GPU it was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Launches {
    /// Calls that started work on a device.
    pub count: u64,
    /// Time in them.
    pub total_ns: u64,
    /// Median duration of such a call.
    pub call_p50_ns: u64,
    /// From a call to its work's start, where the device was waiting for it: median.
    pub latency_p50_ns: u64,
    /// The same, 99th percentile.
    pub latency_p99_ns: u64,
    /// From a call to its work's start, over all launches: median. Long means that the CPU runs ahead.
    pub ahead_p50_ns: u64,
    /// GPU events whose launch is not in the trace.
    pub unlinked: u64,
}

/// Forward work done again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Recompute {
    /// Kernel time of it.
    pub total_ns: u64,
    /// Kernels.
    pub count: u64,
    /// Of `total_ns`, after warm-up.
    pub steady_ns: u64,
}

/// Waiting for the GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SyncTotal {
    /// The CUDA call.
    pub name: String,
    /// The op it was made in, when in one.
    pub op: String,
    /// The Python line, when recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    /// Time in the call: the GPU may have worked all that time.
    pub total_ns: u64,
    /// How many.
    pub count: u64,
    /// Idle time of devices that began before such a call returned: the queue had run empty.
    pub idle_after_ns: u64,
}

/// What kept a device idle.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct IdleCause {
    /// The device.
    pub device: i32,
    /// `cpu_op`, `python`, `dataloader`, `sync`, `launch_latency`, `allocator`, `loading`, `cuda_call`, `profiler`,
    /// `queued` or `unknown`.
    pub cause: String,
    /// The op, call or function; empty when not known.
    pub name: String,
    /// The Python line, when recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    /// Idle time.
    pub total_ns: u64,
    /// How many times it held the device up; an idle interval may count more than once.
    pub count: u64,
    /// Of `total_ns`, after warm-up.
    pub steady_ns: u64,
}
