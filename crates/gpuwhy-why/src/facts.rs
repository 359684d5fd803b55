// SPDX-License-Identifier: Apache-2.0
//! Facts about a run other than its events. Times are nanoseconds since the run began.

use gpuwhy_model::ThreadSums;
use gpuwhy_model::sample::{CgroupSample, GpuBusy, GpuError, GpuProcess, GpuSample, SystemSample};
use gpuwhy_stacks::{Owner, frame_owner};
use std::collections::BTreeMap;

/// A process of the run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessFact {
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its command line, where known.
    pub command: Option<String>,
    /// Start, where known; negative before the run.
    pub started: Option<i64>,
    /// End, where seen.
    pub ended: Option<i64>,
}

/// Events or details that were lost, by cause.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LossFact {
    /// Name of the cause.
    pub cause: String,
    /// Short name of the op, where known.
    pub op: Option<String>,
    /// How often.
    pub count: u64,
    /// Whether whole events are gone.
    pub loses_event: bool,
}

/// Input of the analysis before the events.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Start of the time range to explain.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// Whether gpuwhy started the job, so that nothing happened before the recording.
    pub started: bool,
    /// Whether the run has an end, or gpuwhy was killed.
    pub complete: bool,
    /// The job's processes, by their ids.
    pub processes: BTreeMap<u32, ProcessFact>,
    /// Processes of other jobs of the run: only their work on the same GPU matters.
    pub others: BTreeMap<u32, ProcessFact>,
    /// The job's threads with the kernel's sums; a reused thread id occurs more than once.
    pub threads: Vec<ThreadSums>,
    /// The machine, second by second.
    pub system: Vec<SystemSample>,
    /// The job's cgroups.
    pub cgroups: Vec<CgroupSample>,
    /// GPUs, second by second.
    pub gpu_seconds: Vec<GpuSample>,
    /// NVML's utilisation samples.
    pub busy: Vec<GpuBusy>,
    /// Processes with memory on each GPU.
    pub gpu_processes: Vec<GpuProcess>,
    /// Xid errors.
    pub gpu_errors: Vec<GpuError>,
    /// What was lost.
    pub loss: Vec<LossFact>,
    /// The seconds of the run in which CUDA calls were lost, in order.
    pub lossy_seconds: Vec<u64>,
    /// Times in which functions that launch work were not watched.
    pub unwatched: Vec<(u64, u64)>,
    /// Logical CPUs.
    pub cores: u32,
}

impl Facts {
    /// The process's name, or `pid N`.
    pub fn name(&self, pid: u32) -> String {
        let known = self.processes.get(&pid).or_else(|| self.others.get(&pid));
        known.map_or_else(|| format!("pid {pid}"), |process| process.name.clone())
    }

    /// Whether a process's launches were recorded, whatever its job.
    pub fn is_recorded(&self, pid: u32) -> bool {
        self.is_traced(pid) || self.others.contains_key(&pid)
    }

    /// Whether a process belongs to the job.
    pub fn is_traced(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Time within the range in which launches were not watched.
    pub fn unwatched_ns(&self) -> u64 {
        let mut spans = self.unwatched.clone();
        spans.sort_unstable();
        let (mut at, mut sum) = (self.from_ns, 0);
        for (from, to) in spans {
            let (from, to) = (from.max(at), to.min(self.to_ns));
            sum += to.saturating_sub(from);
            at = at.max(to);
        }
        sum
    }

    /// Whether a time lies in the range.
    pub fn has(&self, at_ns: u64) -> bool {
        (self.from_ns..self.to_ns).contains(&at_ns)
    }

    /// The range's length.
    pub fn wall_ns(&self) -> u64 {
        self.to_ns.saturating_sub(self.from_ns)
    }
}

/// A frame of a Python stack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FrameFact {
    /// Source file.
    pub file: String,
    /// Line.
    pub line: u32,
    /// Function.
    pub function: String,
}

/// A stack in words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StackFact {
    /// The innermost line of the user's code, `train.py:138`.
    pub top_line: Option<String>,
    /// Frames, innermost first.
    pub frames: Vec<FrameFact>,
}

impl StackFact {
    /// The owner of `top_line`: the user, a package or the standard library.
    pub(crate) fn owner(&self) -> Owner {
        let owners = self.frames.iter().map(|frame| frame_owner(&frame.file, &frame.function));
        owners.min().unwrap_or(Owner::Native)
    }
}
