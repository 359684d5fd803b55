// SPDX-License-Identifier: Apache-2.0
//! What `memory --live` shows, second by second. Its JSON is `gpuwhy.memory-live/1` (docs/memory-json.md).

use super::space::{Grown, LiveSpace};
use super::{Device, Tracker};
use crate::facts::SiteFact;
use crate::report::Source;
use crate::space::SpaceKey;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// Lines listed.
const MOST_LINES: usize = 16;
/// Less growth is ignored, bytes.
const LEAST_GROWTH: i64 = 64 << 10;
/// Growth that fills memory only after this long is no danger: two days, ns.
const FAR_NS: f64 = 1.728e14;

/// A run's memory now.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Picture {
    /// Events up to here are included, nanoseconds since the run began.
    pub at_ns: u64,
    /// Memory of each process on each device, most first.
    pub spaces: Vec<LiveSpaceReport>,
    /// Lines whose memory grew in the last seconds with work: those that grow steadily first, then by how much.
    pub growing: Vec<GrowingLine>,
    /// The last times memory ran out.
    pub ooms: Vec<LiveOom>,
    /// How often memory ran out.
    pub oom_count: u64,
    /// The last processes with memory that ended.
    pub ends: Vec<LiveEnd>,
    /// The verdict of the last examination of the whole run; `None` before the first.
    pub verdict: Option<String>,
    /// That examination covers the run up to here.
    pub verdict_at_ns: Option<u64>,
    /// Caveats about the recording so far.
    pub notes: Vec<String>,
}

/// Memory of one process on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LiveSpaceReport {
    /// Process.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// CUDA's device number; `None` if gpuwhy did not see it being set.
    pub device: Option<u32>,
    /// How it was allocated.
    pub source: Source,
    /// Bytes in use.
    pub allocated: u64,
    /// Bytes reserved.
    pub reserved: u64,
    /// The peak so far.
    pub peak_allocated: u64,
    /// Used on the device by all processes; `None` without NVML.
    pub device_used: Option<u64>,
    /// Its memory.
    pub device_total: Option<u64>,
    /// How fast memory in use grows: the rate of the leaks found, otherwise of steady growth.
    pub bytes_per_second: f64,
    /// When memory runs out at that rate.
    pub out_of_memory_in_ns: Option<u64>,
    /// The process has ended.
    pub ended: bool,
    /// The last minutes, for a chart.
    #[serde(skip)]
    pub recent: Vec<RecentPoint>,
}

/// About a second of the recent past.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecentPoint {
    /// Its end.
    pub at_ns: u64,
    /// Maximum in use.
    pub allocated: u64,
    /// Maximum reserved.
    pub reserved: u64,
}

/// A line that holds more than some seconds ago.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GrowingLine {
    /// Process.
    pub pid: u32,
    /// CUDA's number of the device.
    pub device: Option<u32>,
    /// The line; `None` if no Python was running.
    pub line: Option<String>,
    /// The function that line is in.
    pub function: Option<String>,
    /// Bytes it holds now.
    pub bytes: u64,
    /// Number of allocations.
    pub count: u64,
    /// How much its minimum in a second grew.
    pub grown_bytes: u64,
    /// The time over which it grew.
    pub over_ns: u64,
    /// Whether it grew from each third of that time to the next, and not just once.
    pub steadily: bool,
    /// Whether the last examination of the whole run found it to be a leak.
    pub leaks: bool,
}

/// Memory ran out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LiveOom {
    /// When.
    pub at_ns: u64,
    /// Process.
    pub pid: u32,
    /// CUDA's number of the device.
    pub device: Option<u32>,
    /// Bytes asked for.
    pub asked: u64,
    /// In use.
    pub allocated: u64,
    /// The line that asked.
    pub line: Option<String>,
}

/// A process that had memory ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LiveEnd {
    /// When.
    pub at_ns: u64,
    /// Process.
    pub pid: u32,
    /// The signal that ended it; 0 for none.
    pub signal: u32,
}

impl Tracker {
    /// The stacks a picture needs: those that hold or held memory, and those that were refused it.
    pub fn stacks(&self) -> Vec<u64> {
        let sites = self.spaces.values().flat_map(|space| &space.sites);
        let refused = self.refused.iter().filter_map(|refused| refused.stack);
        sites.filter_map(|site| site.stack).chain(refused).collect()
    }

    /// The processes a picture needs.
    pub fn pids(&self) -> Vec<u32> {
        self.spaces.keys().map(|key| key.pid).collect()
    }

    /// The picture. `sites` resolves stacks, `names` processes; missing ones are shown without a name.
    pub fn picture(&self, at_ns: u64, sites: &HashMap<u64, SiteFact>, names: &HashMap<u32, String>) -> Picture {
        let mut spaces: Vec<LiveSpaceReport> =
            self.spaces.iter().map(|(key, space)| self.space_report(*key, space, names)).collect();
        spaces.sort_by_key(|space| (space.ended, std::cmp::Reverse(space.reserved.max(space.allocated))));
        let ooms = self.refused.iter().map(|refused| LiveOom {
            at_ns: refused.at_ns,
            pid: refused.key.pid,
            device: refused.key.device(),
            asked: refused.asked,
            allocated: refused.allocated,
            line: refused.stack.and_then(|stack| sites.get(&stack)?.line.clone()),
        });
        Picture {
            at_ns,
            spaces,
            growing: self.growing(sites),
            ooms: ooms.collect(),
            oom_count: self.oom_count,
            ends: self.ends.iter().copied().collect(),
            verdict: self.judged.as_ref().map(|judged| judged.verdict.clone()),
            verdict_at_ns: self.judged.as_ref().map(|judged| judged.at_ns),
            notes: Vec::new(),
        }
    }

    /// NVML's figures of a process's GPU: known if there is one GPU, or if the process was seen on only one.
    fn device_of(&self, pid: u32) -> Device {
        let only = self.gpus.values().next().filter(|_| self.gpus.len() == 1);
        let own = self.gpu_of.get(&pid).copied().flatten().and_then(|gpu| self.gpus.get(&gpu));
        only.or(own).copied().unwrap_or_default()
    }

    fn space_report(&self, key: SpaceKey, space: &LiveSpace, names: &HashMap<u32, String>) -> LiveSpaceReport {
        let device = self.device_of(key.pid);
        // A leak is reported once, with PyTorch's memory if there is any.
        let of_torch = SpaceKey { source: Source::Torch, ..key };
        let is_first = key == of_torch || !self.spaces.contains_key(&of_torch);
        let rates = self.judged.as_ref().filter(|_| is_first).map(|judged| &judged.rates);
        let leak = rates.and_then(|rates| rates.get(&(key.pid, key.device())));
        let growing = || space.sites.iter().map(|site| rate(space.grown(site, self.next_tick))).sum();
        let rate = if space.ended { 0.0 } else { leak.copied().unwrap_or_else(growing) };
        let left = device.total.zip(device.used).map(|(total, used)| {
            total.saturating_sub(used).saturating_add(space.reserved.saturating_sub(space.allocated)) as f64
        });
        let full = left.filter(|_| rate > 0.0).map(|left| left / rate * 1e9).filter(|ns| *ns < FAR_NS);
        let point = |(at_ns, allocated, reserved): &(u64, u64, u64)| RecentPoint {
            at_ns: *at_ns,
            allocated: *allocated,
            reserved: *reserved,
        };
        LiveSpaceReport {
            pid: key.pid,
            name: names.get(&key.pid).cloned().unwrap_or_else(|| format!("pid {}", key.pid)),
            device: key.device(),
            source: key.source,
            allocated: space.allocated,
            reserved: space.reserved,
            peak_allocated: space.peak_allocated,
            device_used: device.used,
            device_total: device.total,
            bytes_per_second: rate,
            out_of_memory_in_ns: full.map(|ns| ns as u64),
            ended: space.ended,
            recent: space.recent.iter().map(point).collect(),
        }
    }

    fn growing(&self, sites: &HashMap<u64, SiteFact>) -> Vec<GrowingLine> {
        let mut by_line: BTreeMap<(u32, Option<u32>, String), (GrowingLine, i64)> = BTreeMap::new();
        for (key, space) in self.spaces.iter().filter(|(_, space)| !space.ended) {
            for site in &space.sites {
                let fact = site.stack.and_then(|stack| sites.get(&stack));
                let place = fact.and_then(|fact| fact.place.clone()).unwrap_or_default();
                let (line, grown) = by_line.entry((key.pid, key.device(), place)).or_default();
                let own = space.grown(site, self.next_tick);
                (line.pid, line.device) = (key.pid, key.device());
                line.line = fact.and_then(|fact| fact.line.clone());
                line.function = fact.and_then(|fact| fact.function.clone());
                line.bytes = line.bytes.saturating_add(site.bytes);
                line.count += site.count;
                line.over_ns = line.over_ns.max(own.over_ns);
                line.steadily |= own.steadily;
                *grown += own.bytes;
            }
        }
        let leaking = |one: &GrowingLine| {
            let key = one.line.clone().map(|line| (one.pid, one.device, line));
            key.is_some_and(|key| self.judged.as_ref().is_some_and(|all| all.lines.contains(&key)))
        };
        let mut all: Vec<GrowingLine> = by_line
            .into_values()
            .filter(|(_, grown)| *grown >= LEAST_GROWTH)
            .map(|(line, grown)| GrowingLine { grown_bytes: grown.unsigned_abs(), leaks: leaking(&line), ..line })
            .collect();
        all.sort_by_key(|line| std::cmp::Reverse((line.steadily, line.grown_bytes)));
        all.truncate(MOST_LINES);
        all
    }
}

/// Bytes a second, if growth is steady and large enough.
fn rate(grown: Grown) -> f64 {
    if grown.steadily && grown.bytes >= LEAST_GROWTH && grown.over_ns > 0 {
        grown.bytes as f64 / grown.over_ns as f64 * 1e9
    } else {
        0.0
    }
}
