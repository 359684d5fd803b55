// SPDX-License-Identifier: Apache-2.0
//! The explanation of a run, which every view shows. Its JSON is `gpuwhy.explain/1` (docs/explain-json.md).

use crate::verdict::{serious_without_time, urgent};
use gpuwhy_model::{Finding, Severity};
use serde::Serialize;
use std::collections::BTreeMap;

/// The explanation.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// The answer in one or two sentences.
    pub verdict: String,
    /// Checks that passed, with figures: `locks: no time lost`.
    pub healthy: Vec<String>,
    /// The machine, and the basis of shares and bounds.
    pub context: Vec<String>,
    /// Start of the time range, nanoseconds since the run began.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// Its length.
    pub wall_ns: u64,
    /// The steady state: from the end of startup to the last launch; `None` if the job launched nothing.
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
    /// Findings, worst first.
    pub findings: Vec<Finding>,
    /// The jobs of a run with several, worst first; all other fields are then about all jobs together.
    pub jobs: Vec<JobReport>,
    /// Jobs with work for a GPU that `jobs` leaves out.
    pub more_jobs: u64,
}

impl Report {
    /// Adds findings about the job's memory. Those that ended the job, or will, open the verdict; other serious ones end it.
    pub fn add_findings(&mut self, mut findings: Vec<Finding>) {
        Finding::sort(&mut findings);
        self.verdict.insert_str(0, &urgent(&findings));
        self.verdict.push_str(&serious_without_time(&findings));
        self.findings.append(&mut findings);
        Finding::sort(&mut self.findings);
    }
}

/// One job of several.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct JobReport {
    /// Its process with most launches.
    pub pid: u32,
    /// That process's name.
    pub name: String,
    /// Its command line, where known.
    pub command: Option<String>,
    /// All its processes.
    pub pids: Vec<u32>,
    /// How many of them launched kernels.
    pub ranks: u64,
    /// Kernels launched.
    pub launches: u64,
    /// Its GPU (of several, the one that idled most) had no kernel of this job to run for at least this long.
    pub gpu_idle_min_ns: Option<u64>,
    /// And for at most this long.
    pub gpu_idle_max_ns: Option<u64>,
    /// Severity of its worst finding.
    pub severity: Option<Severity>,
    /// Its verdict.
    pub verdict: String,
    /// Its worst finding in one line.
    pub summary: String,
}

/// One GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GpuReport {
    /// In a run with several jobs, the job that used it: its [`JobReport::pid`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<u32>,
    /// NVML's index where known, else CUDA's ordinal.
    pub device: u32,
    /// NVML's index, where known.
    pub nvml_index: Option<u32>,
    /// Idle at least, ns.
    pub idle_min_ns: u64,
    /// Idle at most, ns.
    pub idle_max_ns: u64,
    /// The part of `idle_min_ns` that the host's calls alone show.
    pub host_idle_min_ns: u64,
    /// Idle at least by NVML's samples alone.
    pub nvml_idle_min_ns: Option<u64>,
    /// The rate nvidia-smi shows, mean, percent.
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
    /// Consequences for the answer.
    pub notes: Vec<String>,
    /// Whether too much was lost to say that all is well.
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
    /// How long it was watched in the time range.
    pub wall_ns: u64,
    /// Nanoseconds by state; they add up to `wall_ns`.
    pub ledger: BTreeMap<&'static str, u64>,
    /// Of `running_cuda`, by op.
    pub cuda: BTreeMap<String, u64>,
    /// Part of `ready`: who had the CPU, most time first.
    pub held_by: Vec<HeldBy>,
}

/// A process that had the CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HeldBy {
    /// The task's name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// For how long.
    pub ns: u64,
}
