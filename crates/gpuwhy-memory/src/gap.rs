// SPDX-License-Identifier: Apache-2.0
//! Memory used on a GPU beyond the job's allocations: CUDA contexts, NCCL, library workspaces, other processes.

use crate::facts::Facts;
use crate::report::{Gap, OtherProcess, Source, Trend};
use crate::robust::{median, spread, theil_sen};
use crate::space::{Space, SpaceKey};
use std::collections::{BTreeMap, BTreeSet};

/// Samples of a GPU and of its processes belong together if they are this close, ns.
const TOGETHER_NS: u64 = 500_000_000;
/// NVML is sampled as soon as gpuwhy sees that memory ran out; a later sample than this is another one, ns.
const THEN_NS: u64 = 300_000_000;
/// Smaller changes are ignored: bytes, and share of the gap.
const NOTABLE: f64 = 64e6;
const NOTABLE_PART: f64 = 0.1;
const TRANSIENT_PART: f64 = 0.25;
/// Samples for a trend, at most and at least.
const MOST_SAMPLES: usize = 256;
const FEWEST_SAMPLES: usize = 8;

/// A sample of a GPU, and the job's memory at that time.
#[derive(Debug, Clone, Copy)]
struct DeviceSample {
    at_ns: u64,
    used: u64,
    reserved: u64,
    direct: u64,
    others: u64,
    /// Whether the job's memory is known.
    is_reported: bool,
}

impl DeviceSample {
    fn hidden(&self) -> u64 {
        self.used.saturating_sub(self.reserved).saturating_sub(self.direct).saturating_sub(self.others)
    }
}

#[derive(Debug, Default)]
struct Watched {
    total: Option<u64>,
    samples: Vec<DeviceSample>,
    others: BTreeMap<u32, OtherProcess>,
}

/// Compares NVML's samples with the job's memory.
#[derive(Debug)]
pub(crate) struct GapWatch {
    next: usize,
    gpu_of: GpuOf,
    gpus: BTreeMap<u32, Watched>,
}

impl GapWatch {
    pub(crate) fn new(facts: &Facts) -> Self {
        Self { next: 0, gpu_of: GpuOf::new(facts), gpus: BTreeMap::new() }
    }

    /// Takes the samples before this time.
    pub(crate) fn advance(&mut self, before_ns: u64, facts: &Facts, spaces: &BTreeMap<SpaceKey, Space>) {
        while let Some(sample) = facts.gpu_seconds.get(self.next).filter(|sample| sample.at_ns < before_ns) {
            self.next += 1;
            // A driver without this figure may report 0.
            let Some(used) = sample.memory_used.filter(|_| sample.memory_total != Some(0)) else { continue };
            let (watched, gpu_of) = (self.gpus.entry(sample.gpu).or_default(), &self.gpu_of);
            watched.total = sample.memory_total.or(watched.total);
            let sum = |source: Source| {
                let on = |key: &SpaceKey| key.source == source && gpu_of.get(*key) == Some(sample.gpu);
                spaces.iter().filter(|(key, space)| on(key) && !space.ended).map(|(_, space)| space.reserved).sum()
            };
            let mut others = 0;
            for other in others_at(facts, sample.gpu, sample.at_ns) {
                others += other.bytes;
                let known =
                    watched.others.entry(other.pid).or_insert_with(|| OtherProcess { bytes: 0, ..other.clone() });
                known.bytes = known.bytes.max(other.bytes);
            }
            let (reserved, direct) = (sum(Source::Torch), sum(Source::Driver));
            let is_reported = facts.unreported_from().is_none_or(|from| sample.at_ns < from);
            let sample = DeviceSample { at_ns: sample.at_ns, used, reserved, direct, others, is_reported };
            watched.samples.push(sample);
        }
    }

    /// Used memory and size of a device's GPU, from the last sample at or before this time.
    pub(crate) fn used_at(&self, key: SpaceKey, at_ns: u64) -> (Option<u64>, Option<u64>) {
        let Some(watched) = self.gpu_of.get(key).and_then(|gpu| self.gpus.get(&gpu)) else { return (None, None) };
        let place = watched.samples.partition_point(|sample| sample.at_ns <= at_ns);
        (place.checked_sub(1).and_then(|last| watched.samples.get(last)).map(|sample| sample.used), watched.total)
    }

    /// Time and used memory of the sample taken because memory ran out. If it shows less than the process `had`, memory was
    /// freed by then, and the previous sample is used.
    pub(crate) fn sample_at(&self, key: SpaceKey, at_ns: u64, had: u64) -> Option<(u64, u64)> {
        let watched = self.gpus.get(&self.gpu_of.get(key)?)?;
        let (before, after) = watched.samples.split_at(watched.samples.partition_point(|sample| sample.at_ns < at_ns));
        let then = |sample: &&DeviceSample| sample.at_ns <= at_ns.saturating_add(THEN_NS) && sample.used >= had;
        after.first().filter(then).or(before.last()).map(|sample| (sample.at_ns, sample.used))
    }

    /// Other processes on a device's GPU at the last sample, traced or not, most first.
    pub(crate) fn others_at(&self, key: SpaceKey, at_ns: u64, facts: &Facts) -> Vec<OtherProcess> {
        let Some(gpu) = self.gpu_of.get(key) else { return Vec::new() };
        let samples = self.gpus.get(&gpu).map_or(&[][..], |watched| &watched.samples);
        let place = samples.partition_point(|sample| sample.at_ns <= at_ns);
        let Some(sample) = place.checked_sub(1).and_then(|last| samples.get(last)) else { return Vec::new() };
        let mut others = users_at(facts, gpu, sample.at_ns, |pid| pid != key.pid);
        others.sort_by_key(|other| std::cmp::Reverse(other.bytes));
        others
    }

    /// The maximum used on a device's GPU in a time range.
    pub(crate) fn most_used(&self, key: SpaceKey, from_ns: u64, to_ns: u64) -> Option<u64> {
        let watched = self.gpus.get(&self.gpu_of.get(key)?)?;
        let from = watched.samples.partition_point(|sample| sample.at_ns < from_ns);
        watched.samples[from..].iter().take_while(|sample| sample.at_ns < to_ns).map(|sample| sample.used).max()
    }

    /// The gap of every GPU the job has memory on.
    pub(crate) fn finish(&self) -> Vec<Gap> {
        self.gpus.iter().filter_map(|(gpu, watched)| gap(*gpu, watched)).collect()
    }
}

/// NVML's index of the GPU a process is on: known if there is one GPU, or if the process has memory on only one. CUDA
/// numbers GPUs in another order.
#[derive(Debug, Default)]
struct GpuOf {
    only: Option<u32>,
    by_pid: BTreeMap<u32, Option<u32>>,
}

impl GpuOf {
    fn new(facts: &Facts) -> Self {
        let all: BTreeSet<u32> = facts.gpu_seconds.iter().map(|sample| sample.gpu).collect();
        let mut by_pid: BTreeMap<u32, Option<u32>> = BTreeMap::new();
        for row in &facts.gpu_processes {
            let known = by_pid.entry(row.pid).or_insert(Some(row.gpu));
            if *known != Some(row.gpu) {
                *known = None;
            }
        }
        Self { only: all.first().copied().filter(|_| all.len() == 1), by_pid }
    }

    fn get(&self, key: SpaceKey) -> Option<u32> {
        self.only.or_else(|| self.by_pid.get(&key.pid).copied().flatten())
    }
}

/// Processes that are not traced.
fn others_at(facts: &Facts, gpu: u32, at_ns: u64) -> Vec<OtherProcess> {
    users_at(facts, gpu, at_ns, |pid| !facts.processes.contains_key(&pid))
}

fn users_at(facts: &Facts, gpu: u32, at_ns: u64, is_wanted: impl Fn(u32) -> bool) -> Vec<OtherProcess> {
    let rows = &facts.gpu_processes;
    let from = rows.partition_point(|row| row.at_ns + TOGETHER_NS < at_ns);
    let close = rows[from..].iter().take_while(|row| row.at_ns <= at_ns + TOGETHER_NS);
    let mut found: BTreeMap<u32, OtherProcess> = BTreeMap::new();
    for row in close.filter(|row| row.gpu == gpu && is_wanted(row.pid)) {
        let bytes = row.bytes.unwrap_or(0);
        found.insert(row.pid, OtherProcess { pid: row.pid, name: row.name(), bytes });
    }
    found.into_values().collect()
}

fn gap(gpu: u32, watched: &Watched) -> Option<Gap> {
    // Only samples with known memory of the job, once it has some.
    let compares = |sample: &DeviceSample| sample.is_reported && sample.reserved.saturating_add(sample.direct) > 0;
    let samples: Vec<DeviceSample> = watched.samples.iter().copied().filter(compares).collect();
    let last = samples.last()?;
    let mut hidden: Vec<f64> = samples.iter().map(|sample| sample.hidden() as f64).collect();
    let most = hidden.iter().copied().fold(0.0, f64::max);
    let usual = median(&mut hidden);
    let points: Vec<(f64, f64)> =
        samples.iter().map(|sample| (sample.at_ns as f64 / 1e9, sample.hidden() as f64)).collect();
    let (trend, drift) = trend(&spread(&points, MOST_SAMPLES), usual, most);
    let mut others: Vec<OtherProcess> = watched.others.values().cloned().collect();
    others.sort_by_key(|other| std::cmp::Reverse(other.bytes));
    Some(Gap {
        gpu,
        memory_total: watched.total,
        used: last.used,
        peak_used: samples.iter().map(|sample| sample.used).max().unwrap_or(0),
        reserved: last.reserved,
        direct: last.direct,
        others,
        hidden: usual as u64,
        hidden_most: most as u64,
        trend,
        drift_per_second: drift,
        looks: samples.len() as u64,
    })
}

fn trend(points: &[(f64, f64)], usual: f64, most: f64) -> (Trend, f64) {
    let notable = NOTABLE.max(NOTABLE_PART * usual);
    if points.len() >= FEWEST_SAMPLES {
        let grown = |points: &[(f64, f64)]| {
            let span = points.last().map_or(0.0, |last| last.0 - points[0].0);
            theil_sen(points).map_or(0.0, |slope| slope * span)
        };
        let (first, second) = points.split_at(points.len() / 2);
        let (all, first, second) = (grown(points), grown(first), grown(second));
        let lasts = all.abs() >= notable && first * all > 0.0 && second * all > 0.0 && second.abs() >= 0.2 * all.abs();
        if lasts {
            return (Trend::Drifting, theil_sen(points).unwrap_or(0.0));
        }
    }
    let transient = most - usual >= NOTABLE.max(TRANSIENT_PART * usual);
    (if transient { Trend::Transient } else { Trend::Steady }, 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trend_of(values: &[f64]) -> Trend {
        let points: Vec<(f64, f64)> = values.iter().enumerate().map(|(i, y)| (i as f64, *y)).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        trend(&points, median(&mut values.to_vec()), most).0
    }

    #[test]
    fn trends_are_recognised() {
        let flat: Vec<f64> = (0..40).map(|i| 1e9 + f64::from(i % 3) * 1e6).collect();
        assert_eq!(trend_of(&flat), Trend::Steady);
        let mut spike = flat.clone();
        spike[20] = 3e9;
        assert_eq!(trend_of(&spike), Trend::Transient);
        let grows: Vec<f64> = (0..40).map(|i| 1e9 + f64::from(i) * 2e7).collect();
        assert_eq!(trend_of(&grows), Trend::Drifting);
        let once: Vec<f64> = (0..40).map(|i| if i < 5 { 5e8 } else { 1e9 }).collect();
        assert_eq!(trend_of(&once), Trend::Steady);
    }
}
