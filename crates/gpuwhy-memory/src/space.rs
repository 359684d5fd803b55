// SPDX-License-Identifier: Apache-2.0
//! Memory of one process on one device: live memory by call site, the exact peak, and the state at every check.
//!
//! The peak by site is exact without copying everything at every new peak: only sites that changed since the last peak are
//! copied. Each event adds at most one such site, so all peaks together cost no more than the events.

use crate::grid::Grid;
use crate::live_slices::LiveSlices;
use crate::recent_history::RecentHistory;
use crate::report::{Balance, LastCheck, Source};
use crate::timeline::{DETAILED_SLICES, SLICES, Timeline};
use std::collections::HashMap;

/// Identifies a space. Device 255 means unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SpaceKey {
    pub(crate) pid: u32,
    pub(crate) device: u8,
    pub(crate) source: Source,
}

pub(crate) const UNKNOWN_DEVICE: u8 = u8::MAX;

impl SpaceKey {
    pub(crate) fn device(self) -> Option<u32> {
        (self.device != UNKNOWN_DEVICE).then_some(u32::from(self.device))
    }
}

/// A live allocation.
#[derive(Debug, Clone, Copy)]
struct Live {
    bytes: u64,
    since_ns: u64,
    site: u32,
}

/// A call site that allocates.
#[derive(Debug, Clone, Default)]
pub(crate) struct Site {
    pub(crate) stack: Option<u64>,
    pub(crate) bytes: u64,
    pub(crate) count: u64,
    /// The same at the peak.
    pub(crate) peak_bytes: u64,
    pub(crate) peak_count: u64,
    /// Allocations live at the last check: time and size.
    pub(crate) kept: Vec<(u64, u64)>,
    /// Checks at which live bytes changed, and the bytes.
    changes: Vec<(u32, u64)>,
    moved_since_peak: bool,
    moved_since_check: bool,
}

impl Site {
    /// Live bytes at every check.
    pub(crate) fn series(&self, checks: usize) -> Vec<u64> {
        let mut all = Vec::with_capacity(checks);
        let mut now = 0;
        let mut changes = self.changes.iter().peekable();
        for check in 0..checks {
            while let Some((_, bytes)) = changes.next_if(|(at, _)| *at as usize <= check) {
                now = *bytes;
            }
            all.push(now);
        }
        all
    }
}

/// What a site holds: its index in [`Space::sites`], bytes, allocations.
pub(crate) type Held = (u32, u64, u64);

/// A space.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) allocated: u64,
    pub(crate) reserved: u64,
    pub(crate) peak: (u64, u64),
    pub(crate) peak_seen: u64,
    pub(crate) peak_reserved: (u64, u64),
    pub(crate) allocated_at_peak_reserved: u64,
    pub(crate) preexisting: Option<u64>,
    pub(crate) balance: Balance,
    pub(crate) sites: Vec<Site>,
    pub(crate) timeline: Timeline,
    /// Live memory by site in each slice of the timeline, for a detailed report.
    pub(crate) slices: Option<LiveSlices>,
    pub(crate) grid: Grid,
    /// The process has ended; its memory is gone.
    pub(crate) ended: bool,
    pub(crate) recent: RecentHistory,
    /// The stack of the last allocation.
    pub(crate) last_stack: Option<u64>,
    /// Live memory at the last check, once that has come.
    pub(crate) at_last_check: Option<Vec<Held>>,
    /// The totals then.
    pub(crate) last_check: Option<LastCheck>,
    /// Allocations and frees between the first and the last check.
    pub(crate) between_checks: (u64, u64),
    from_ns: u64,
    live: HashMap<u64, Live>,
    site_of: HashMap<Option<u64>, u32>,
    moved_since_peak: Vec<u32>,
    moved_since_check: Vec<u32>,
    next_check: usize,
    at_first_check: (u64, u64),
    begun: bool,
}

impl Space {
    pub(crate) fn new(grid: Grid, from_ns: u64, to_ns: u64) -> Self {
        Self {
            allocated: 0,
            reserved: 0,
            peak: (0, from_ns),
            peak_seen: 0,
            peak_reserved: (0, from_ns),
            allocated_at_peak_reserved: 0,
            preexisting: None,
            balance: Balance::default(),
            sites: Vec::new(),
            timeline: Timeline::new(from_ns, to_ns, SLICES),
            slices: None,
            grid,
            ended: false,
            recent: RecentHistory::default(),
            last_stack: None,
            at_last_check: None,
            last_check: None,
            between_checks: (0, 0),
            from_ns,
            live: HashMap::new(),
            site_of: HashMap::new(),
            moved_since_peak: Vec::new(),
            moved_since_check: Vec::new(),
            next_check: 0,
            at_first_check: (0, 0),
            begun: false,
        }
    }

    /// With a finer timeline, and live memory by site.
    pub(crate) fn in_detail(self, to_ns: u64) -> Self {
        Self {
            timeline: Timeline::new(self.from_ns, to_ns, DETAILED_SLICES),
            slices: Some(LiveSlices::default()),
            ..self
        }
    }

    /// An allocation. `totals` are allocated and reserved after it, if the allocator reports them.
    pub(crate) fn alloc(&mut self, at: u64, address: u64, bytes: u64, stack: Option<u64>, totals: Option<(u64, u64)>) {
        self.before(at);
        if self.preexisting.is_none() {
            self.preexisting = Some(totals.map_or(0, |(allocated, _)| allocated.saturating_sub(bytes)));
        }
        if let Some(old) = self.live.remove(&address) {
            // The free of the old allocation was lost.
            self.balance.lost_frees += 1;
            self.gone(old);
        }
        self.last_stack = stack;
        let site = self.site(stack);
        self.live.insert(address, Live { bytes, since_ns: at, site });
        self.balance.allocs += 1;
        self.balance.alloc_bytes = self.balance.alloc_bytes.saturating_add(bytes);
        self.balance.live += 1;
        self.balance.live_bytes = self.balance.live_bytes.saturating_add(bytes);
        if let Some(holder) = self.sites.get_mut(site as usize) {
            holder.bytes = holder.bytes.saturating_add(bytes);
            holder.count += 1;
        }
        self.moved(site);
        self.set_totals(at, totals);
    }

    /// A free. `totals` as in [`Self::alloc`].
    pub(crate) fn free(&mut self, at: u64, address: u64, bytes: u64, totals: Option<(u64, u64)>) {
        self.before(at);
        if self.preexisting.is_none() {
            self.preexisting = Some(totals.map_or(0, |(allocated, _)| allocated.saturating_add(bytes)));
        }
        match self.live.remove(&address) {
            Some(old) => {
                self.balance.frees += 1;
                self.gone(old);
            }
            None => {
                self.balance.unknown_frees += 1;
                self.balance.unknown_free_bytes = self.balance.unknown_free_bytes.saturating_add(bytes);
            }
        }
        self.set_totals(at, totals);
    }

    /// A report of the totals without an allocation or free.
    pub(crate) fn report(&mut self, at: u64, allocated: u64, reserved: u64) {
        self.before(at);
        self.preexisting.get_or_insert(allocated);
        self.set_totals(at, Some((allocated, reserved)));
    }

    /// Memory was returned to the driver, which the allocator does not report.
    pub(crate) fn returned(&mut self, at: u64, bytes: u64) {
        self.before(at);
        self.set_totals(at, Some((self.allocated, self.reserved.saturating_sub(bytes))));
    }

    /// Live memory by site.
    pub(crate) fn held(&self) -> Vec<Held> {
        let held = |(site, one): (usize, &Site)| (one.bytes > 0).then_some((site as u32, one.bytes, one.count));
        self.sites.iter().enumerate().filter_map(held).collect()
    }

    /// Memory in use whose allocation was not seen.
    pub(crate) fn unseen(&self) -> u64 {
        self.allocated.saturating_sub(self.balance.live_bytes)
    }

    /// Whether the allocation at this address is live.
    pub(crate) fn has(&self, address: u64) -> bool {
        self.live.contains_key(&address)
    }

    /// Does the remaining checks.
    pub(crate) fn finish(&mut self, to_ns: u64) {
        self.before(to_ns.saturating_add(1));
        if let Some(slices) = &mut self.slices {
            slices.finish();
        }
    }

    fn gone(&mut self, old: Live) {
        self.balance.free_bytes = self.balance.free_bytes.saturating_add(old.bytes);
        self.balance.live -= 1;
        self.balance.live_bytes = self.balance.live_bytes.saturating_sub(old.bytes);
        if let Some(site) = self.sites.get_mut(old.site as usize) {
            site.bytes = site.bytes.saturating_sub(old.bytes);
            site.count = site.count.saturating_sub(1);
        }
        self.moved(old.site);
    }

    fn site(&mut self, stack: Option<u64>) -> u32 {
        let next = self.sites.len() as u32;
        let site = *self.site_of.entry(stack).or_insert(next);
        if site == next {
            self.sites.push(Site { stack, ..Site::default() });
        }
        site
    }

    fn moved(&mut self, site: u32) {
        let Some(one) = self.sites.get_mut(site as usize) else { return };
        if !std::mem::replace(&mut one.moved_since_peak, true) {
            self.moved_since_peak.push(site);
        }
        if !std::mem::replace(&mut one.moved_since_check, true) {
            self.moved_since_check.push(site);
        }
        if let Some(slices) = &mut self.slices {
            slices.moved(site, one.bytes);
        }
    }

    /// Does what is due before a change at this time: checks, the start of the range, the timeline.
    fn before(&mut self, at: u64) {
        while self.grid.at.get(self.next_check).is_some_and(|due| *due < at) {
            self.check();
        }
        if !self.begun && at >= self.from_ns {
            self.begun = true;
            let Balance { live, live_bytes, .. } = self.balance;
            self.balance = Balance { live_before: live_bytes, live, live_bytes, ..Balance::default() };
            if let Some(slices) = &mut self.slices {
                slices.begin(self.allocated);
            }
            // Memory in use at the start of the range counts for its peak.
            if self.preexisting.is_some() && !self.ended {
                self.note_totals(self.from_ns);
            }
        }
        if at >= self.from_ns
            && let Some(slices) = &mut self.slices
        {
            slices.enter(self.timeline.slice_at(at), self.allocated);
        }
    }

    fn check(&mut self) {
        let check = self.next_check as u32;
        if check == 0 {
            self.at_first_check = (self.balance.allocs, self.balance.frees);
        }
        for site in std::mem::take(&mut self.moved_since_check) {
            let Some(one) = self.sites.get_mut(site as usize) else { continue };
            one.moved_since_check = false;
            if one.changes.last().map_or(0, |last| last.1) != one.bytes {
                one.changes.push((check, one.bytes));
            }
        }
        self.next_check += 1;
        if self.next_check == self.grid.at.len() {
            for piece in self.live.values() {
                if let Some(site) = self.sites.get_mut(piece.site as usize) {
                    site.kept.push((piece.since_ns, piece.bytes));
                }
            }
            for site in &mut self.sites {
                site.kept.sort_unstable();
            }
            let Balance { allocs, frees, .. } = self.balance;
            let (before, freed_before) = self.at_first_check;
            self.between_checks = (allocs.saturating_sub(before), frees.saturating_sub(freed_before));
            self.at_last_check = Some(self.held());
            let at_ns = self.grid.at.last().copied().unwrap_or_default();
            self.last_check = Some(LastCheck { at_ns, allocated: self.allocated, reserved: self.reserved });
        }
    }

    fn set_totals(&mut self, at: u64, totals: Option<(u64, u64)>) {
        (self.allocated, self.reserved) = totals.unwrap_or((self.balance.live_bytes, self.balance.live_bytes));
        if at >= self.from_ns {
            self.note_totals(at);
        }
    }

    fn note_totals(&mut self, at: u64) {
        self.timeline.set(at, self.allocated, self.reserved);
        if let Some(slices) = &mut self.slices {
            slices.total(self.allocated);
        }
        self.recent.note(at, self.allocated, self.reserved);
        if self.reserved > self.peak_reserved.0 {
            self.peak_reserved = (self.reserved, at);
            self.allocated_at_peak_reserved = self.allocated;
        }
        if self.allocated > self.peak.0 {
            self.peak = (self.allocated, at);
            self.peak_seen = self.balance.live_bytes;
            for site in std::mem::take(&mut self.moved_since_peak) {
                if let Some(one) = self.sites.get_mut(site as usize) {
                    one.moved_since_peak = false;
                    (one.peak_bytes, one.peak_count) = (one.bytes, one.count);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(checks: Vec<u64>) -> Space {
        Space::new(Grid { at: checks, stride: 1 }, 0, 1_000)
    }

    #[test]
    fn the_peak_by_site_is_that_at_the_time_of_the_peak() {
        let mut space = space(vec![]);
        let mut total = 0;
        let mut step = |space: &mut Space, at, address, bytes: i64, stack| {
            total += bytes;
            let totals = Some((total as u64, total as u64));
            if bytes > 0 {
                space.alloc(at, address, bytes as u64, Some(stack), totals);
            } else {
                space.free(at, address, bytes.unsigned_abs(), totals);
            }
        };
        step(&mut space, 1, 0x10, 100, 1);
        step(&mut space, 2, 0x20, 50, 2);
        step(&mut space, 3, 0x20, -50, 2);
        step(&mut space, 4, 0x30, 70, 3);
        step(&mut space, 5, 0x10, -100, 1);
        step(&mut space, 6, 0x40, 20, 2);
        assert_eq!((space.peak, space.allocated), ((170, 4), 90));
        let peaks: Vec<u64> = space.sites.iter().map(|site| site.peak_bytes).collect();
        assert_eq!(peaks, [100, 0, 70]);
        assert_eq!(space.balance.live_bytes, space.balance.alloc_bytes - space.balance.free_bytes);
    }

    #[test]
    fn the_first_report_shows_pre_existing_memory() {
        let mut space = space(vec![]);
        space.alloc(1, 0x10, 100, None, Some((1_100, 4_000)));
        assert_eq!((space.preexisting, space.unseen()), (Some(1_000), 1_000));
        space.free(2, 0x99, 400, Some((700, 4_000)));
        assert_eq!((space.unseen(), space.balance.unknown_free_bytes), (600, 400));
        assert_eq!((space.peak, space.peak_seen), ((1_100, 1), 100));
    }

    #[test]
    fn checks_see_live_memory_and_the_last_what_stays() {
        let mut space = space(vec![10, 20, 30]);
        space.alloc(5, 1, 7, Some(1), None);
        space.alloc(15, 2, 5, Some(1), None);
        space.free(17, 1, 7, None);
        space.alloc(25, 3, 1, Some(2), None);
        space.finish(100);
        assert_eq!(space.sites[0].series(3), [7, 5, 5]);
        assert_eq!(space.sites[1].series(3), [0, 0, 1]);
        assert_eq!((space.sites[0].kept.clone(), space.sites[1].kept.clone()), (vec![(15, 5)], vec![(25, 1)]));
    }

    #[test]
    fn an_address_allocated_twice_counts_as_a_lost_free() {
        let mut space = space(vec![]);
        space.alloc(1, 1, 7, None, None);
        space.alloc(2, 1, 9, None, None);
        assert_eq!((space.balance.lost_frees, space.balance.live_bytes, space.balance.live), (1, 9, 1));
    }
}
