// SPDX-License-Identifier: Apache-2.0
//! The header of an `events.json`: everything the analysis needs before the first event.

use gpuwhy_memory::alerts::Alert;
use gpuwhy_memory::steps::Certainty;
use gpuwhy_memory::{Facts, HINTS, ProcessFact, ProcessSteps, SiteFact, Unreported};
use gpuwhy_model::ops::by_function;
use gpuwhy_model::sample::{GpuProcess, GpuSample};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// The file's name and version.
pub(crate) const SCHEMA: &str = "gpuwhy.memory-events/1";

/// The file without its events.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The version of gpuwhy that wrote it.
    pub gpuwhy: String,
    /// The run.
    pub run: Run,
    /// The selected time range and processes.
    pub part: Selection,
    /// Lost events: reports of the allocator, and calls that allocate or free.
    pub lost: u64,
    /// Times in which the allocator's reports were paused.
    pub unreported: Vec<Unreported>,
    /// Caveats about the recording.
    pub notes: Vec<String>,
    /// The traced processes.
    pub processes: Vec<Process>,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// The steps that were found in each process.
    pub steps: Vec<Steps>,
    /// Call sites, by number.
    pub sites: Vec<Site>,
    /// NVML's samples of the GPUs' memory.
    pub device_samples: Vec<DeviceSample>,
    /// NVML's samples of the processes on them.
    pub device_processes: Vec<DeviceProcess>,
    /// Alerts raised while it was recorded.
    pub alerts: Vec<Alert>,
    /// How many events follow.
    pub event_count: u64,
}

/// A run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The path of its file, as it was given.
    pub file: String,
    /// Its start on the wall clock, Unix nanoseconds.
    pub start_unix_ns: u64,
    /// Its start on `CLOCK_MONOTONIC`.
    pub start_monotonic_ns: u64,
    /// Its length.
    pub duration_ns: u64,
    /// The traced command, if gpuwhy started it.
    pub command: Option<String>,
}

/// The selected time range and processes of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// Start of the range.
    pub from_ns: u64,
    /// End of the range.
    pub to_ns: u64,
    /// The processes; empty means all.
    pub pids: Vec<u32>,
}

/// A process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// When it ended, if the run knows.
    #[serde(default)]
    pub ended_ns: Option<u64>,
}

/// A GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML's index.
    pub gpu: u32,
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
}

/// A process's steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Steps {
    /// The process.
    pub pid: u32,
    /// How certain the steps are.
    pub certainty: Certainty,
    /// The call that marks a step.
    pub marker: Option<Marker>,
    /// Launches in a step, the median.
    pub launches: u64,
    /// A step's length, the median.
    pub step_ns: u64,
    /// When the process first launched, waited or allocated.
    pub active_from_ns: u64,
    /// When it last did.
    pub active_to_ns: u64,
    /// Whether PyTorch's allocator reports in it.
    pub has_tensors: bool,
    /// Steps before the selected time range.
    pub before: u64,
    /// The time of each step's mark.
    pub marks_ns: Vec<u64>,
}

/// The call that marks a step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// The function.
    pub function: String,
    /// Where it is called from.
    pub site: Option<u32>,
}

/// A call site.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// Its number in this file.
    pub site: u32,
    /// Its stack's id in the run file.
    pub stack_id: i64,
    /// The innermost line of the user's code, `train.py:138`.
    pub line: Option<String>,
    /// The same with its whole path and function.
    pub place: Option<String>,
    /// The function that line is in.
    pub function: Option<String>,
    /// The frames, innermost first; null if the run file has none.
    pub frames: Option<Vec<String>>,
    /// The words in the line's source that show how to fix a leak, if the source could be read.
    pub hints: Vec<String>,
}

/// A GPU's memory at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSample {
    /// When.
    pub at_ns: u64,
    /// NVML's index.
    pub gpu: u32,
    /// In use, by all processes and the driver.
    pub memory_used: Option<u64>,
    /// Its size.
    pub memory_total: Option<u64>,
}

/// A process's memory on a GPU at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceProcess {
    /// When.
    pub at_ns: u64,
    /// NVML's index.
    pub gpu: u32,
    /// The process.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its memory there.
    pub bytes: Option<u64>,
}

impl Site {
    /// From a resolved stack; without `fact` only the ids.
    pub fn new(site: u32, stack: u64, fact: Option<&SiteFact>) -> Self {
        let known = Self { site, stack_id: stack.cast_signed(), ..Self::default() };
        let Some(fact) = fact else { return known };
        let source = fact.source.as_deref().unwrap_or_default();
        let hints = HINTS.iter().filter(|word| source.contains(**word)).map(|word| (*word).to_owned()).collect();
        let SiteFact { line, place, function, frames, .. } = fact.clone();
        Self { line, place, function, frames: Some(frames), hints, ..known }
    }

    /// The resolved stack. The analysis needs no more of the source than the hints.
    fn fact(&self) -> Option<SiteFact> {
        let hints: Vec<&str> = self.hints.iter().map(String::as_str).filter(|hint| HINTS.contains(hint)).collect();
        Some(SiteFact {
            line: self.line.clone(),
            place: self.place.clone(),
            function: self.function.clone(),
            frames: self.frames.clone()?,
            source: (!hints.is_empty()).then(|| hints.join("\n")),
        })
    }
}

impl Steps {
    /// From the steps that were found; `site` maps a stack to its number.
    pub fn new(pid: u32, found: &ProcessSteps, site: impl Fn(u64) -> Option<u32>) -> Self {
        let marker = found
            .marker
            .and_then(|(op, stack)| Some(Marker { function: op.get()?.function.clone(), site: stack.and_then(site) }));
        Self {
            pid,
            certainty: found.certainty,
            marker,
            launches: found.launches,
            step_ns: found.step_ns,
            active_from_ns: found.active_ns.0,
            active_to_ns: found.active_ns.1,
            has_tensors: found.has_tensors,
            before: found.before,
            marks_ns: found.marks.clone(),
        }
    }
}

impl Header {
    /// Sets NVML's samples.
    pub fn set_devices(&mut self, seconds: &[GpuSample], processes: &[GpuProcess]) {
        let sample = |one: &GpuSample| DeviceSample {
            at_ns: one.at_ns,
            gpu: one.gpu,
            memory_used: one.memory_used,
            memory_total: one.memory_total,
        };
        let process = |one: &GpuProcess| DeviceProcess {
            at_ns: one.at_ns,
            gpu: one.gpu,
            pid: one.pid,
            name: one.name(),
            bytes: one.bytes,
        };
        self.device_samples = seconds.iter().map(sample).collect();
        self.device_processes = processes.iter().map(process).collect();
    }

    /// The facts for an analysis of these processes; without `pids`, of all in the file.
    pub fn facts(&self, pids: &[u32]) -> Facts {
        let sample = |one: &DeviceSample| GpuSample {
            at_ns: one.at_ns,
            gpu: one.gpu,
            memory_used: one.memory_used,
            memory_total: one.memory_total,
            ..GpuSample::default()
        };
        let user = |one: &DeviceProcess| {
            let mut name = [0; 16];
            name.iter_mut().zip(one.name.bytes()).for_each(|(to, from)| *to = from);
            GpuProcess { at_ns: one.at_ns, gpu: one.gpu, pid: one.pid, bytes: one.bytes, name, ..GpuProcess::default() }
        };
        let wanted = |pid: Option<u32>| pids.is_empty() || pid.is_none_or(|pid| pids.contains(&pid));
        let process =
            |one: &Process| (one.pid, ProcessFact { pid: one.pid, name: one.name.clone(), ended_ns: one.ended_ns });
        Facts {
            from_ns: self.part.from_ns,
            to_ns: self.part.to_ns,
            only: if pids.is_empty() { self.part.pids.clone() } else { pids.to_vec() },
            processes: self.processes.iter().map(process).collect(),
            gpu_seconds: self.device_samples.iter().map(sample).collect(),
            gpu_processes: self.device_processes.iter().map(user).collect(),
            lost: self.lost,
            unreported: self.unreported.clone(),
            notes: self.notes.clone(),
            alerts: self.alerts.iter().filter(|alert| wanted(alert.pid)).cloned().collect(),
        }
    }

    /// The steps for an analysis. Drops a marker whose function this gpuwhy does not know.
    pub fn found_steps(&self) -> BTreeMap<u32, ProcessSteps> {
        let stack = |site: u32| self.sites.get(site as usize).map(|site| site.stack_id.cast_unsigned());
        let found = |one: &Steps| {
            let marker = one
                .marker
                .as_ref()
                .and_then(|marker| Some((by_function(&marker.function)?.id, marker.site.and_then(stack))));
            let steps = ProcessSteps {
                certainty: one.certainty,
                marker,
                marks: one.marks_ns.clone(),
                before: one.before,
                launches: one.launches,
                step_ns: one.step_ns,
                active_ns: (one.active_from_ns, one.active_to_ns),
                has_tensors: one.has_tensors,
            };
            (one.pid, steps)
        };
        self.steps.iter().map(found).collect()
    }

    /// The resolved call sites, by stack id.
    pub fn site_facts(&self) -> HashMap<u64, SiteFact> {
        self.sites.iter().filter_map(|site| Some((site.stack_id.cast_unsigned(), site.fact()?))).collect()
    }
}
