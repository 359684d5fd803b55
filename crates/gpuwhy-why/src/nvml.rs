// SPDX-License-Identifier: Apache-2.0
//! GPU idle time by NVML's utilisation samples, combined into windows of about a second.
//!
//! A sample never shows less busy time than there was, within half a percent, so the rest is certainly idle. With very short
//! kernels it overstates busy time: it is never an upper bound of idle time.

use crate::facts::Facts;
use gpuwhy_model::sample::{GpuBusy, GpuProcess};
use std::collections::{BTreeMap, BTreeSet};

/// How long a window should be, ns.
const WINDOW_NS: u64 = 1_000_000_000;
/// Samples further apart than this do not follow each other, ns.
const GAP_NS: u64 = 1_000_000_000;
/// By how much the samples' times may be off, ns.
const SHIFT_NS: u64 = 2_000_000;
/// By how much the percentages may be off.
const ROUNDING: f64 = 0.5;

/// A window and how long the GPU idled in it, at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) gpu: u32,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) idle_ns: u64,
    /// Likely idle time: without the margins for rounding and clocks.
    pub(crate) likely_ns: u64,
}

/// The windows of all GPUs within the span, in order of their ends.
pub(crate) fn windows(facts: &Facts) -> Vec<Window> {
    let mut by_gpu: BTreeMap<u32, Vec<GpuBusy>> = BTreeMap::new();
    for sample in &facts.busy {
        by_gpu.entry(sample.gpu).or_default().push(*sample);
    }
    let mut windows = Vec::new();
    for (gpu, mut samples) in by_gpu {
        samples.sort_by_key(|sample| sample.at_ns);
        of_gpu(gpu, &samples, facts, &mut windows);
    }
    windows.sort_by_key(|window| window.to);
    windows
}

fn of_gpu(gpu: u32, samples: &[GpuBusy], facts: &Facts, windows: &mut Vec<Window>) {
    let mut open: Option<(u64, u64, f64)> = None;
    let mut close = |open: &mut Option<(u64, u64, f64)>| {
        if let Some((from, to, idle)) = open.take()
            && from < to
        {
            let rounding = ROUNDING / 100.0 * (to - from) as f64;
            let least = (idle - rounding).max(0.0) as u64;
            windows.push(Window { gpu, from, to, idle_ns: least.saturating_sub(SHIFT_NS), likely_ns: idle as u64 });
        }
    };
    for pair in samples.windows(2) {
        let (from, to) = (pair[0].at_ns, pair[1].at_ns);
        if from < facts.from_ns || to > facts.to_ns || to - from > GAP_NS || from >= to {
            close(&mut open);
            continue;
        }
        let share = 1.0 - f64::from(pair[1].percent.min(100)) / 100.0;
        let (_, until, idle) = open.get_or_insert((from, from, 0.0));
        *until = to;
        *idle += share * (to - from) as f64;
        if open.is_some_and(|(from, to, _)| to - from >= WINDOW_NS) {
            close(&mut open);
        }
    }
    close(&mut open);
}

/// Maps a process's CUDA device to a GPU. CUDA's ordinals are per process; NVML shows which process has memory where.
#[derive(Debug, Default)]
pub(crate) struct Places {
    of_process: BTreeMap<u32, Vec<u32>>,
    only: Option<u32>,
}

impl Places {
    pub(crate) fn new(facts: &Facts) -> Self {
        let mut of_process: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for process in &facts.gpu_processes {
            of_process.entry(process.pid).or_default().insert(process.gpu);
        }
        let gpus: BTreeSet<u32> = facts
            .busy
            .iter()
            .map(|sample| sample.gpu)
            .chain(facts.gpu_seconds.iter().map(|sample| sample.gpu))
            .collect();
        let only = gpus.first().copied().filter(|_| gpus.len() == 1);
        let of_process = of_process.into_iter().map(|(pid, gpus)| (pid, gpus.into_iter().collect())).collect();
        Self { of_process, only }
    }

    /// The GPU's number, and whether that is NVML's.
    pub(crate) fn find(&self, pid: u32, device: Option<u8>) -> (u32, bool) {
        if let Some(only) = self.only {
            return (only, true);
        }
        let ordinal = usize::from(device.unwrap_or(0));
        match self.of_process.get(&pid).map(Vec::as_slice) {
            Some([only]) => (*only, true),
            // Which of several is CUDA's first is a guess: enough to keep them apart, not more.
            Some(gpus) if ordinal < gpus.len() => (gpus[ordinal], false),
            _ => (u32::from(device.unwrap_or(0)), false),
        }
    }
}

/// When processes that were not recorded had memory on a GPU: what they queued there is unknown.
pub(crate) fn shared(facts: &Facts) -> BTreeMap<u32, Vec<(u64, u64)>> {
    let mut spans: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    let sampled =
        |gpu: u32| facts.gpu_seconds.iter().filter(move |sample| sample.gpu == gpu).map(|sample| sample.at_ns);
    let mut seen: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    // A process with memory but no kernels does not matter.
    let foreign = |process: &&GpuProcess| !facts.is_recorded(process.pid) && process.sm_percent != Some(0);
    for process in facts.gpu_processes.iter().filter(foreign) {
        seen.entry(process.gpu).or_default().push(process.at_ns);
    }
    for (gpu, mut times) in seen {
        times.sort_unstable();
        let list = spans.entry(gpu).or_default();
        let (first, last) = (sampled(gpu).min().unwrap_or(0), sampled(gpu).max().unwrap_or(u64::MAX));
        for at in times {
            // Samples are a second apart: the process may have come a second before and stayed a second longer.
            // One in the first sample was there before it; one in the last sample stayed.
            let near = WINDOW_NS / 2;
            let from = if at <= first.saturating_add(near) { 0 } else { at.saturating_sub(WINDOW_NS * 5 / 4) };
            let to = if at.saturating_add(near) >= last { u64::MAX } else { at.saturating_add(WINDOW_NS * 5 / 4) };
            match list.last_mut() {
                Some(last) if last.1 >= from => last.1 = to,
                _ => list.push((from, to)),
            }
        }
    }
    spans
}
