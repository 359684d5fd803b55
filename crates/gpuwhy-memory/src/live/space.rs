// SPDX-License-Identifier: Apache-2.0
//! Memory of one process on one device, now and in the last minutes.

use super::{FEWEST_TICKS, OLD_NS, RECENT, SECOND, WINDOW, push};
use std::collections::{HashMap, VecDeque};

/// A call site that allocates.
#[derive(Debug, Clone, Default)]
pub(super) struct LiveSite {
    pub(super) stack: Option<u64>,
    pub(super) bytes: u64,
    pub(super) count: u64,
    floor: Floor,
}

/// The minimum of a value in each of the last ticks; 0 before its first tick.
#[derive(Debug, Clone, Default)]
struct Floor {
    now: u64,
    by_tick: VecDeque<u64>,
}

/// How something grew.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Grown {
    /// Growth from the first third of the window to the last.
    pub(super) bytes: i64,
    /// The time in between.
    pub(super) over_ns: u64,
    /// Whether it grew from each third to the next.
    pub(super) steadily: bool,
}

impl Floor {
    fn tick(&mut self, value: u64) {
        push(&mut self.by_tick, self.now.min(value), WINDOW);
        self.now = value;
    }

    /// The growth over ticks at these times.
    fn grown(&self, ticks: &VecDeque<u64>) -> Grown {
        let (n, known) = (ticks.len(), self.by_tick.len());
        if n < FEWEST_TICKS {
            return Grown::default();
        }
        let at =
            |tick: usize| (tick + known).checked_sub(n).and_then(|place| self.by_tick.get(place)).copied().unwrap_or(0);
        let third = n / 3;
        let least = |from: usize| (from..from + third).map(at).min().unwrap_or(0);
        let (first, middle, last) = (least(0), least(n / 2 - third / 2), least(n - third));
        let steadily = first < middle && middle < last;
        Grown { bytes: last.cast_signed() - first.cast_signed(), over_ns: ticks[n - third] - ticks[0], steadily }
    }
}

/// A space.
#[derive(Debug, Default)]
pub(super) struct LiveSpace {
    pub(super) allocated: u64,
    pub(super) reserved: u64,
    pub(super) peak_allocated: u64,
    /// The process has ended; its memory is gone.
    pub(super) ended: bool,
    /// When it ended.
    pub(super) ended_ns: u64,
    pub(super) sites: Vec<LiveSite>,
    /// The end of each tick, and the maxima of allocated and reserved in it.
    pub(super) recent: VecDeque<(u64, u64, u64)>,
    /// The ends of the last seconds in which anything was allocated or freed, without those that are too old. Idle seconds
    /// do not count: a job loads libraries for seconds before its first step.
    ticks: VecDeque<u64>,
    worked: bool,
    most: (u64, u64),
    live: HashMap<u64, (u64, u32)>,
    live_bytes: u64,
    site_of: HashMap<Option<u64>, u32>,
}

impl LiveSpace {
    pub(super) fn alloc(&mut self, address: u64, bytes: u64, stack: Option<u64>) {
        self.free(address);
        self.worked = true;
        let next = self.sites.len() as u32;
        let site = *self.site_of.entry(stack).or_insert(next);
        if site == next {
            self.sites.push(LiveSite { stack, ..LiveSite::default() });
        }
        self.live.insert(address, (bytes, site));
        self.live_bytes = self.live_bytes.saturating_add(bytes);
        if let Some(one) = self.sites.get_mut(site as usize) {
            one.bytes = one.bytes.saturating_add(bytes);
            one.count += 1;
        }
    }

    pub(super) fn free(&mut self, address: u64) {
        self.worked = true;
        let Some((bytes, site)) = self.live.remove(&address) else { return };
        self.live_bytes = self.live_bytes.saturating_sub(bytes);
        if let Some(one) = self.sites.get_mut(site as usize) {
            one.bytes = one.bytes.saturating_sub(bytes);
            one.count = one.count.saturating_sub(1);
            one.floor.now = one.floor.now.min(one.bytes);
        }
    }

    /// Sets the totals that the allocator reports.
    pub(super) fn totals(&mut self, allocated: u64, reserved: u64) {
        (self.allocated, self.reserved) = (allocated, reserved);
        self.peak_allocated = self.peak_allocated.max(allocated);
        self.most = (self.most.0.max(allocated), self.most.1.max(reserved));
    }

    /// The same for memory without reported totals.
    pub(super) fn totals_of_live(&mut self) {
        self.totals(self.live_bytes, self.live_bytes);
    }

    /// The process has ended: its memory is gone.
    pub(super) fn end(&mut self, at_ns: u64) {
        if !self.ended {
            let (peak_allocated, recent) = (self.peak_allocated, std::mem::take(&mut self.recent));
            *self = Self { peak_allocated, recent, ended: true, ended_ns: at_ns, ..Self::default() };
        }
    }

    pub(super) fn tick(&mut self, at_ns: u64) {
        if self.ended {
            return;
        }
        push(&mut self.recent, (at_ns, self.most.0, self.most.1), RECENT);
        self.most = (self.allocated, self.reserved);
        while self.ticks.front().is_some_and(|tick| tick.saturating_add(OLD_NS) <= at_ns) {
            self.ticks.pop_front();
        }
        if std::mem::take(&mut self.worked) {
            push(&mut self.ticks, at_ns, WINDOW);
            self.sites.iter_mut().for_each(|site| site.floor.tick(site.bytes));
        }
    }
}

impl LiveSpace {
    /// How a site's memory grew up to now. After a minute without work, nothing counts as growing.
    pub(super) fn grown(&self, site: &LiveSite, now_ns: u64) -> Grown {
        let is_idle = self.ticks.back().is_none_or(|last| last.saturating_add(WINDOW as u64 * SECOND) < now_ns);
        if is_idle { Grown::default() } else { site.floor.grown(&self.ticks) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(values: &[u64], ticks: u64) -> Grown {
        let mut floor = Floor::default();
        for value in values {
            floor.now = *value;
            floor.tick(*value);
        }
        floor.grown(&(1..=ticks).map(|tick| tick * 1_000_000_000).collect())
    }

    #[test]
    fn growth_is_that_of_the_floor_from_the_first_third_to_the_last() {
        let rising: Vec<u64> = (0..12).map(|tick| tick * 10).collect();
        assert_eq!(grown(&rising, 12), Grown { bytes: 80, over_ns: 8_000_000_000, steadily: true });
        // Up and down within the thirds is not growth.
        let noisy: Vec<u64> = (0..12).map(|tick| tick % 3 * 500).collect();
        assert_eq!((grown(&noisy, 12).bytes, grown(&noisy, 12).steadily), (0, false));
        // Seen only recently: before, it was 0.
        let late = grown(&[70, 70, 70, 70], 12);
        assert_eq!((late.bytes, late.steadily), (70, false));
        assert_eq!(grown(&rising[..4], 4), Grown::default(), "too few ticks");
        let falling: Vec<u64> = rising.iter().rev().copied().collect();
        assert_eq!(grown(&falling, 12).bytes, -80);
    }
}
