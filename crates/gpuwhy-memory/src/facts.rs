// SPDX-License-Identifier: Apache-2.0
//! What the analysis is told. Times are nanoseconds since the run began.

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
    /// When it ended, where the recording knows: also after the span that is asked about.
    pub ended_ns: Option<u64>,
}

/// A time in which the allocator's reports were let go, to stay within the budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreported {
    /// From when on.
    pub from_ns: u64,
    /// Until when.
    pub to_ns: u64,
    /// In which process; absent: in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

impl Unreported {
    /// Whether it is about what a process does.
    pub fn is_of(&self, pid: u32) -> bool {
        self.pid.is_none_or(|of| of == pid)
    }
}

/// Everything the analysis is told beforehand.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The span that is asked about.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// Only these processes; empty for all.
    pub only: Vec<u32>,
    /// The traced processes, by their ids.
    pub processes: BTreeMap<u32, ProcessFact>,
    /// GPUs, second by second, by NVML; in the order of time.
    pub gpu_seconds: Vec<GpuSample>,
    /// Who has memory on which GPU, by NVML; in the order of time.
    pub gpu_processes: Vec<GpuProcess>,
    /// Reports of the allocator and calls that allocate or free which were lost.
    pub lost: u64,
    /// Times without reports. What a process with PyTorch takes from the driver then may be its allocator's or not.
    pub unreported: Vec<Unreported>,
    /// What is not certain about the recording, in words.
    pub notes: Vec<String>,
    /// What people were alerted of while it was recorded.
    pub alerts: Vec<Alert>,
}

impl Facts {
    /// The process's name, or `pid N`.
    pub fn name(&self, pid: u32) -> String {
        self.processes.get(&pid).map_or_else(|| format!("pid {pid}"), |process| process.name.clone())
    }

    /// From when on, of the span that is asked about, it is not known what PyTorch has in a process that is asked about: its
    /// allocator's reports were let go.
    pub fn unreported_from(&self) -> Option<u64> {
        self.first_unreported(|time| time.pid.is_none_or(|pid| self.wants(pid)))
    }

    /// The same of one process.
    pub fn unreported_of(&self, pid: u32) -> Option<u64> {
        self.first_unreported(|time| time.is_of(pid))
    }

    fn first_unreported(&self, is_about: impl Fn(&Unreported) -> bool) -> Option<u64> {
        let in_span = |time: &&Unreported| time.to_ns > self.from_ns && time.from_ns <= self.to_ns;
        let first = self.unreported.iter().filter(|time| is_about(time)).find(in_span)?;
        Some(first.from_ns.max(self.from_ns))
    }

    /// Whether a process is asked about.
    pub fn wants(&self, pid: u32) -> bool {
        self.only.is_empty() || self.only.contains(&pid)
    }

    /// The span's length.
    pub fn wall_ns(&self) -> u64 {
        self.to_ns.saturating_sub(self.from_ns)
    }
}

/// Where a stack stands, in words. Names are from the traced world: not safe to print as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SiteFact {
    /// The innermost line of the user's code as people say it, `train.py:138`.
    pub line: Option<String>,
    /// The same with its whole path: what tells one line from another.
    pub place: Option<String>,
    /// The function that line is in.
    pub function: Option<String>,
    /// The frames, innermost first, each `file:line function`.
    pub frames: Vec<String>,
    /// The text of that line, where the source could be read, and of what stands around its loop. Only looked at
    /// ([`crate::HINTS`]), never shown.
    pub source: Option<String>,
}
