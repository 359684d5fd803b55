// SPDX-License-Identifier: Apache-2.0
//! Facts that the analysis needs before the first event. Times are nanoseconds since the run began.

use crate::alerts::Alert;
use gpuwhy_model::sample::{GpuProcess, GpuSample};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A process of the run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessFact {
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// When it ended, if the recording knows: also after the selected time range.
    pub ended_ns: Option<u64>,
}

/// A time in which the allocator's reports were paused to stay within the budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreported {
    /// Its start.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// The process; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

impl Unreported {
    /// Whether reports of this process were paused.
    pub fn is_of(&self, pid: u32) -> bool {
        self.pid.is_none_or(|of| of == pid)
    }
}

/// Everything the analysis needs before the first event.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Start of the time range.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// Only these processes; empty means all.
    pub only: Vec<u32>,
    /// The traced processes, by id.
    pub processes: BTreeMap<u32, ProcessFact>,
    /// NVML's samples of the GPUs, by time.
    pub gpu_seconds: Vec<GpuSample>,
    /// NVML's samples of the processes on the GPUs, by time.
    pub gpu_processes: Vec<GpuProcess>,
    /// Lost events: reports of the allocator, and calls that allocate or free.
    pub lost: u64,
    /// Times without reports. Driver allocations of a process with PyTorch then may or may not be its allocator's.
    pub unreported: Vec<Unreported>,
    /// Caveats about the recording.
    pub notes: Vec<String>,
    /// Alerts raised while it was recorded.
    pub alerts: Vec<Alert>,
}

impl Facts {
    /// The process's name, or `pid N`.
    pub fn name(&self, pid: u32) -> String {
        self.processes.get(&pid).map_or_else(|| format!("pid {pid}"), |process| process.name.clone())
    }

    /// The first time in the range at which reports of a selected process were paused: from then on PyTorch's memory is
    /// unknown.
    pub fn unreported_from(&self) -> Option<u64> {
        self.first_unreported(|time| time.pid.is_none_or(|pid| self.wants(pid)))
    }

    /// The same for one process.
    pub fn unreported_of(&self, pid: u32) -> Option<u64> {
        self.first_unreported(|time| time.is_of(pid))
    }

    fn first_unreported(&self, is_about: impl Fn(&Unreported) -> bool) -> Option<u64> {
        let in_span = |time: &&Unreported| time.to_ns > self.from_ns && time.from_ns <= self.to_ns;
        let first = self.unreported.iter().filter(|time| is_about(time)).find(in_span)?;
        Some(first.from_ns.max(self.from_ns))
    }

    /// Whether a process is selected.
    pub fn wants(&self, pid: u32) -> bool {
        self.only.is_empty() || self.only.contains(&pid)
    }

    /// The length of the time range.
    pub fn wall_ns(&self) -> u64 {
        self.to_ns.saturating_sub(self.from_ns)
    }
}

/// A resolved stack. Its names come from the traced processes: not safe to print as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SiteFact {
    /// The innermost line of the user's code, `train.py:138`.
    pub line: Option<String>,
    /// The same with its whole path, which identifies the line.
    pub place: Option<String>,
    /// The function that line is in.
    pub function: Option<String>,
    /// The frames, innermost first, each `file:line function`.
    pub frames: Vec<String>,
    /// The text of that line, if the source could be read, and of what is around its loop. Only searched for
    /// [`crate::HINTS`], never shown.
    pub source: Option<String>,
}
