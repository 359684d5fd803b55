// SPDX-License-Identifier: Apache-2.0
//! What the analysis of a snapshot says. Its JSON is the `memory` part of `gpuwhy.profile/1`
//! (docs/profile-json.md); `findings` and `warnings` go beside it, not into it.

use gpuwhy_model::finding::Finding;
use serde::Serialize;

/// What memory is used for, as far as stacks tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Weights and buffers of modules.
    Parameters,
    /// Made in the backward and kept beyond it.
    Gradients,
    /// Made by the optimizer and kept.
    OptimizerState,
    /// Made and freed within the optimizer's step.
    OptimizerTemporary,
    /// Made in the forward.
    Activations,
    /// Activations made again in the backward (checkpointing).
    Recomputed,
    /// Made and freed within the backward.
    Backward,
    /// Collectives and sharding.
    Communication,
    /// Batches.
    Inputs,
    /// Scratch memory of cuBLAS and cuDNN.
    Workspace,
    /// Allocated before the recording began; by whom is not known.
    PreExisting,
    /// The stack does not tell.
    Other,
}

impl Category {
    /// As in JSON, with blanks.
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

/// Bytes by who asked for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Device index.
    pub device: u32,
    /// Source file of the line in your code (without one: in a package, then in PyTorch).
    pub file: Option<String>,
    /// Line number.
    pub line: Option<u32>,
    /// Function the line is in.
    pub function: Option<String>,
    /// The PyTorch op.
    pub op: Option<String>,
    /// What for.
    pub category: Category,
    /// Requested bytes, all together.
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
    /// Taken from the device.
    pub reserved_bytes: u64,
    /// In blocks the program holds; as `torch.cuda.memory_allocated`.
    pub allocated_bytes: u64,
    /// What the program asked for, in active blocks.
    pub requested_bytes: u64,
    /// Freed by the program, still used by a stream.
    pub pending_bytes: u64,
    /// Inside blocks, beyond what was asked for.
    pub rounding_bytes: u64,
    /// Free parts of segments that are in use: neither usable for larger requests nor returnable.
    pub stuck_bytes: u64,
    /// What `torch.cuda.empty_cache()` would return.
    pub releasable_bytes: u64,
    /// Reserved by private pools (CUDA graphs), apart from the above.
    pub private_pool_bytes: u64,
    /// Of that, not in use.
    pub private_pool_free_bytes: u64,
    /// The largest allocation that fits without taking more from the device.
    pub largest_fit_bytes: u64,
    /// Most that blocks took; as `torch.cuda.max_memory_allocated`.
    pub peak_allocated_bytes: u64,
    /// Whether that is exact: the recording covers the whole run and playing it again ends in this snapshot.
    pub peak_allocated_exact: bool,
    /// Most that was asked for at one time; exact within the recording.
    pub peak_requested_bytes: u64,
    /// Most that was reserved within the recording.
    pub peak_reserved_bytes: u64,
    /// When the requested peak stood, microseconds of Unix time.
    pub peak_time_us: Option<u64>,
    /// Requested bytes live before the recording began.
    pub preexisting_bytes: u64,
    /// Requested bytes allocated during the recording.
    pub recorded_allocated_bytes: u64,
    /// Requested bytes freed during the recording.
    pub recorded_freed_bytes: u64,
    /// Whether pre-existing + allocated − freed = requested, to the byte, with no entry contradicting another.
    pub reconciled: bool,
    /// Steps in the recording.
    pub trace_entries: u64,
    /// Calls that took memory from the device during the recording.
    pub segments_taken: u64,
    /// Calls that gave memory back to it.
    pub segments_returned: u64,
    /// Whether segments can grow (`expandable_segments:True`).
    pub expandable_segments: bool,
    /// The device's memory, when told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// Capacity less the most that was reserved.
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
    /// In use of it.
    pub held_bytes: u64,
    /// The rest.
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
    /// What was asked for.
    pub asked_bytes: u64,
    /// Free on the device at that moment.
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
    /// Who asked; `bytes` is what was asked for.
    #[serde(flatten)]
    pub by: Row,
    /// The line that held most then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_holder: Option<Row>,
}

/// Everything about the memory in a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MemoryReport {
    /// One for each device there is anything about.
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
    /// Segments held by little.
    pub pinned: Vec<Pinned>,
    /// What to know about the numbers.
    #[serde(skip)]
    pub warnings: Vec<String>,
    /// What is wrong, worst first.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}
