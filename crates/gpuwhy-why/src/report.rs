// SPDX-License-Identifier: Apache-2.0
//! The explanation of a run: what every view shows. Its JSON is `gpuwhy.explain/1` (docs/explain-json.md).

use crate::verdict::{besides, urgent};
use gpuwhy_model::{Finding, Severity};
use serde::Serialize;
use std::collections::BTreeMap;

/// The explanation.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// In words, for a tired engineer.
    pub verdict: String,
    /// What was checked and is well, with figures.
    pub healthy: Vec<String>,
    /// The machine, and what cannot be known.
    pub context: Vec<String>,
    /// The span, nanoseconds since the run began.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// Its length.
    pub wall_ns: u64,
    /// When the job ran steadily: after its start, until its last launch; `None` if it launched nothing.
    pub steady: Option<(u64, u64)>,
    /// The GPU had no kernel to run for at least this long; of several GPUs, the one that idled most.
    pub gpu_idle_min_ns: Option<u64>,
    /// And for at most this long.
    pub gpu_idle_max_ns: Option<u64>,
    /// Each GPU.
    pub gpus: Vec<GpuReport>,
    /// What was lost.
    pub loss: LossReport,
    /// The job's processes.
    pub processes: Vec<ProcessReport>,
    /// Where each thread's time went; those that launch first, then by time on a CPU.
    pub threads: Vec<ThreadReport>,
    /// Answers, worst first.
    pub findings: Vec<Finding>,
    /// Of a run with several jobs, each of them, the worst first; all else is then of all of them together.
    pub jobs: Vec<JobReport>,
    /// Jobs with work for a GPU that `jobs` leaves out.
    pub more_jobs: u64,
}

impl Report {
    /// Adds what was found elsewhere: with the job's memory. What ended the job, or will, opens the verdict; what is serious
    /// besides ends it.
    pub fn add_findings(&mut self, mut findings: Vec<Finding>) {
        Finding::sort(&mut findings);
        self.verdict.insert_str(0, &urgent(&findings));
        self.verdict.push_str(&besides(&findings));
        self.findings.append(&mut findings);
        Finding::sort(&mut self.findings);
    }
}

/// One job of several.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct JobReport {
    /// The process of it that launched most.
    pub pid: u32,
    /// That one's name.
    pub name: String,
    /// Its command line, where known.
    pub command: Option<String>,
    /// All its processes.
    pub pids: Vec<u32>,
    /// How many of them launched kernels.
    pub ranks: u64,
    /// Kernels launched.
    pub launches: u64,
    /// Its GPU, or the one that idled most, had no kernel of it to run for at least this long.
    pub gpu_idle_min_ns: Option<u64>,
    /// And for at most this long.
    pub gpu_idle_max_ns: Option<u64>,
    /// How bad its worst finding is; `None` if it has none.
    pub severity: Option<Severity>,
    /// Its verdict.
    pub verdict: String,
    /// The same in one line: its worst finding.
    pub summary: String,
}

/// One GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GpuReport {
    /// Of several jobs, the one it was used by: its [`JobReport::pid`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<u32>,
    /// gpuwhy's number of it: NVML's where that is known, else CUDA's.
    pub device: u32,
    /// NVML's index, where known.
    pub nvml_index: Option<u32>,
    /// Idle at least, ns.
    pub idle_min_ns: u64,
    /// Idle at most, ns.
    pub idle_max_ns: u64,
    /// Of the former, what the host's side alone shows.
    pub host_idle_min_ns: u64,
    /// And what NVML's samples alone show.
    pub nvml_idle_min_ns: Option<u64>,
    /// What nvidia-smi would say, percent, on average.
    pub rate_percent: Option<f64>,
    /// Launches.
    pub launches: u64,
    /// Where the bounds come from, in words.
    pub basis: String,
}

/// What was lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LossReport {
    /// Events.
    pub events: u64,
    /// What that means for the answer.
    pub notes: Vec<String>,
    /// Whether that is so much that nobody can say that all is well.
    #[serde(skip)]
    pub too_much: bool,
}

/// A process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ProcessReport {
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its command line, where known.
    pub command: Option<String>,
    /// Kernels it launched.
    pub launches: u64,
}

/// A thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ThreadReport {
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// The thread's name.
    pub name: String,
    /// Kernels it launched.
    pub launches: u64,
    /// How long it was watched in the span.
    pub wall_ns: u64,
    /// Nanoseconds by state; they add up to `wall_ns`.
    pub ledger: BTreeMap<&'static str, u64>,
    /// Of `running_cuda`, by op.
    pub cuda: BTreeMap<String, u64>,
    /// Of `ready`: who had the CPU, most first.
    pub held_by: Vec<HeldBy>,
}

/// Somebody who had the CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HeldBy {
    /// The task's name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// For how long.
    pub ns: u64,
}
