// SPDX-License-Identifier: Apache-2.0
//! The analysis of a snapshot. Its JSON is the `memory` part of `gpuwhy.profile/1` (docs/profile-json.md); `findings` and
//! `warnings` are separate keys of the document.

use gpuwhy_model::finding::Finding;
use serde::Serialize;

/// What memory is used for, judged by stacks and lifetimes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Weights and buffers of modules.
    Parameters,
    /// Allocated in the backward and kept after it.
    Gradients,
    /// Allocated by the optimizer and kept.
    OptimizerState,
    /// Allocated and freed within the optimizer's step.
    OptimizerTemporary,
    /// Allocated in the forward.
    Activations,
    /// Activations recomputed in the backward (checkpointing).
    Recomputed,
    /// Allocated and freed within the backward.
    Backward,
    /// Collectives and sharding.
    Communication,
    /// Batches.
    Inputs,
    /// Scratch memory of cuBLAS and cuDNN.
    Workspace,
    /// Allocated before the recording began, so the line is unknown.
    PreExisting,
    /// The stack does not show it.
    Other,
}

impl Category {
    /// As in JSON, with spaces.
    pub fn label(self) -> &'static str {
        match self {
            Self::Parameters => "parameters",
            Self::Gradients => "gradients",
            Self::OptimizerState => "optimizer state",
            Self::OptimizerTemporary => "optimizer temporary",
            Self::Activations => "activations",
            Self::Recomputed => "recomputed",
            Self::Backward => "backward",
            Self::Communication => "communication",
            Self::Inputs => "inputs",
            Self::Workspace => "workspace",
            Self::PreExisting => "pre-existing",
            Self::Other => "other",
        }
    }
}

/// Bytes by the line that allocated them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Device index.
    pub device: u32,
    /// Source file of the innermost line of your code, else of a package, else of PyTorch.
    pub file: Option<String>,
    /// Line number.
    pub line: Option<u32>,
    /// Function the line is in.
    pub function: Option<String>,
    /// The PyTorch op.
    pub op: Option<String>,
    /// What it is used for.
    pub category: Category,
    /// Total requested bytes.
    pub bytes: u64,
    /// How many blocks (in `churn`: allocations).
    pub count: u64,
    /// In `churn`: the size of one allocation. In `largest_blocks`: the block's size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
}

impl Row {
    /// `train.py:42`, with the file's last name only; `None` where no line is known.
    pub fn short_line(&self) -> Option<String> {
        let file = self.file.as_deref()?;
        let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
        Some(format!("{name}:{}", self.line.unwrap_or(0)))
    }
}

/// One device's memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Device index.
    pub index: u32,
    /// Taken from the driver.
    pub reserved_bytes: u64,
    /// In blocks in use, as `torch.cuda.memory_allocated`.
    pub allocated_bytes: u64,
    /// What the program asked for, in active blocks.
    pub requested_bytes: u64,
    /// Freed by the program, but still used by a stream.
    pub pending_bytes: u64,
    /// Padding inside blocks.
    pub rounding_bytes: u64,
    /// Free parts of segments in use: too small for larger requests, and not returnable.
    pub stuck_bytes: u64,
    /// What `torch.cuda.empty_cache()` would return.
    pub releasable_bytes: u64,
    /// Reserved by private pools (CUDA graphs); not in the two above.
    pub private_pool_bytes: u64,
    /// The free part of it.
    pub private_pool_free_bytes: u64,
    /// The largest allocation that fits without reserving more.
    pub largest_fit_bytes: u64,
    /// Peak of allocated bytes, as `torch.cuda.max_memory_allocated`.
    pub peak_allocated_bytes: u64,
    /// Whether that is exact: the recording covers the whole run, and its replay ends in this snapshot.
    pub peak_allocated_exact: bool,
    /// Peak of requested bytes; exact within the recording.
    pub peak_requested_bytes: u64,
    /// Peak of reserved bytes within the recording.
    pub peak_reserved_bytes: u64,
    /// Time of the requested peak, microseconds of Unix time.
    pub peak_time_us: Option<u64>,
    /// Requested bytes live before the recording began.
    pub preexisting_bytes: u64,
    /// Requested bytes allocated during the recording.
    pub recorded_allocated_bytes: u64,
    /// Requested bytes freed during the recording.
    pub recorded_freed_bytes: u64,
    /// Whether pre-existing + allocated − freed = requested, to the byte, with no entry contradicting another.
    pub reconciled: bool,
    /// Entries of the recording.
    pub trace_entries: u64,
    /// Calls that took memory from the driver during the recording.
    pub segments_taken: u64,
    /// Calls that returned memory to it.
    pub segments_returned: u64,
    /// Whether segments can grow (`expandable_segments:True`).
    pub expandable_segments: bool,
    /// The device's memory, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// Capacity minus the peak of reserved bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headroom_bytes: Option<u64>,
}

/// Segments of one size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SegmentSize {
    /// Device index.
    pub device: u32,
    /// Size of one segment.
    pub size_bytes: u64,
    /// From the pool for requests up to 1 MiB.
    pub small_pool: bool,
    /// How many.
    pub count: u64,
    /// Free bytes in all of them.
    pub free_bytes: u64,
}

/// A segment that a few small blocks keep from being returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pinned {
    /// The segment's size.
    pub segment_bytes: u64,
    /// Bytes in use.
    pub held_bytes: u64,
    /// The free rest.
    pub stuck_bytes: u64,
    /// The largest block in it; `count` is how many there are.
    #[serde(flatten)]
    pub by: Row,
}

/// An allocation that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Oom {
    /// Microseconds of Unix time.
    pub time_us: u64,
    /// Requested bytes.
    pub asked_bytes: u64,
    /// Free on the device at that time.
    pub device_free_bytes: u64,
    /// Reserved then.
    pub reserved_bytes: u64,
    /// In blocks then.
    pub allocated_bytes: u64,
    /// Free in segments in use then.
    pub stuck_bytes: u64,
    /// Whole free segments then.
    pub releasable_bytes: u64,
    /// The largest free block then.
    pub largest_fit_bytes: u64,
    /// The line that requested it; `bytes` is the size of the request.
    #[serde(flatten)]
    pub by: Row,
    /// The line that held most memory then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_holder: Option<Row>,
}

/// Everything about the memory in a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MemoryReport {
    /// The devices in the snapshot.
    pub devices: Vec<Device>,
    /// What is live now, largest first; adds up to `requested_bytes`.
    pub live: Vec<Row>,
    /// What was live at the requested peak; adds up to `peak_requested_bytes`.
    pub peak: Vec<Row>,
    /// What was allocated and freed again during the recording, by line and size, most bytes first.
    pub churn: Vec<Row>,
    /// Allocations that failed.
    pub ooms: Vec<Oom>,
    /// The largest blocks in use.
    pub largest_blocks: Vec<Row>,
    /// Segments by size.
    pub segment_sizes: Vec<SegmentSize>,
    /// Segments that are less than half in use.
    pub pinned: Vec<Pinned>,
    /// Warnings about the numbers.
    #[serde(skip)]
    pub warnings: Vec<String>,
    /// What is wrong, worst first.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}
