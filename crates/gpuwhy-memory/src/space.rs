// SPDX-License-Identifier: Apache-2.0
//! Memory of one process on one device: what is live, who holds it, the exact peak, and how it is at every look.
//!
//! The peak by site is exact without copying at every new peak: sites that changed since the last one are remembered,
//! and only those are brought up to date. Each event adds at most one such site, so all peaks together cost no more than
//! the events did.

use crate::grid::Grid;
use crate::parts::Parts;
use crate::recent::Recent;
use crate::report::{Balance, LastLook, Source};
use crate::timeline::{DETAILED_PARTS, PARTS, Timeline};
use std::collections::HashMap;

/// Which memory. Device 255: not known.
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

/// A piece of memory in use.
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
    /// At the last look: when each piece was allocated, and its size.
    pub(crate) kept: Vec<(u64, u64)>,
    /// Live bytes from a look on, where they differ from the look before.
    changes: Vec<(u32, u64)>,
    moved_since_peak: bool,
    moved_since_look: bool,
}

impl Site {
    /// Live bytes at every look.
    pub(crate) fn series(&self, looks: usize) -> Vec<u64> {
        let mut all = Vec::with_capacity(looks);
        let mut now = 0;
        let mut changes = self.changes.iter().peekable();
        for look in 0..looks {
            while let Some((_, bytes)) = changes.next_if(|(at, _)| *at as usize <= look) {
                now = *bytes;
            }
            all.push(now);
        }
        all
    }
}

/// What somebody holds: a site's place in [`Space::sites`], bytes, pieces.
pub(crate) type Held = (u32, u64, u64);

/// The memory.
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
    /// Who held memory in each part of it, where that is wanted.
    pub(crate) parts: Option<Parts>,
    pub(crate) grid: Grid,
    /// The process has ended, and all its memory with it.
    pub(crate) ended: bool,
    /// The last minutes.
    pub(crate) recent: Recent,
    /// Where the last piece was allocated.
    pub(crate) last_stack: Option<u64>,
    /// What was live at the last look; until then nothing.
    pub(crate) at_last_look: Option<Vec<Held>>,
    /// The totals then.
    pub(crate) last_look: Option<LastLook>,
    /// Allocations and frees until then, from the first look on.
    pub(crate) between_looks: (u64, u64),
    from_ns: u64,
    live: HashMap<u64, Live>,
    site_of: HashMap<Option<u64>, u32>,
    moved_since_peak: Vec<u32>,
    moved_since_look: Vec<u32>,
    next_look: usize,
    at_first_look: (u64, u64),
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
            timeline: Timeline::new(from_ns, to_ns, PARTS),
            parts: None,
            grid,
            ended: false,
            recent: Recent::default(),
            last_stack: None,
            at_last_look: None,
            last_look: None,
            between_looks: (0, 0),
            from_ns,
            live: HashMap::new(),
            site_of: HashMap::new(),
            moved_since_peak: Vec::new(),
            moved_since_look: Vec::new(),
            next_look: 0,
            at_first_look: (0, 0),
            begun: false,
        }
    }

    /// With a finer timeline that knows who held memory.
    pub(crate) fn in_detail(self, to_ns: u64) -> Self {
        Self { timeline: Timeline::new(self.from_ns, to_ns, DETAILED_PARTS), parts: Some(Parts::default()), ..self }
    }

    /// A piece was allocated; the totals after it, where somebody tells them.
    pub(crate) fn alloc(&mut self, at: u64, address: u64, bytes: u64, stack: Option<u64>, told: Option<(u64, u64)>) {
        self.before(at);
        if self.preexisting.is_none() {
            self.preexisting = Some(told.map_or(0, |(allocated, _)| allocated.saturating_sub(bytes)));
        }
        if let Some(old) = self.live.remove(&address) {
            // Its free was not seen.
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
        self.totals(at, told);
    }

    /// A piece was freed.
    pub(crate) fn free(&mut self, at: u64, address: u64, bytes: u64, told: Option<(u64, u64)>) {
        self.before(at);
        if self.preexisting.is_none() {
            self.preexisting = Some(told.map_or(0, |(allocated, _)| allocated.saturating_add(bytes)));
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
        self.totals(at, told);
    }

    /// The totals are told without anything being allocated or freed.
    pub(crate) fn told(&mut self, at: u64, allocated: u64, reserved: u64) {
        self.before(at);
        self.preexisting.get_or_insert(allocated);
        self.totals(at, Some((allocated, reserved)));
    }

    /// Memory was given back to the driver, which the allocator does not report.
    pub(crate) fn returned(&mut self, at: u64, bytes: u64) {
        self.before(at);
        self.totals(at, Some((self.allocated, self.reserved.saturating_sub(bytes))));
    }

    /// What is live now, by site.
    pub(crate) fn held(&self) -> Vec<Held> {
        let held = |(site, one): (usize, &Site)| (one.bytes > 0).then_some((site as u32, one.bytes, one.count));
        self.sites.iter().enumerate().filter_map(held).collect()
    }

    /// What is in use and was not seen being allocated.
    pub(crate) fn unseen(&self) -> u64 {
        self.allocated.saturating_sub(self.balance.live_bytes)
    }

    /// Whether a piece at this address is live.
    pub(crate) fn has(&self, address: u64) -> bool {
        self.live.contains_key(&address)
    }

    /// Takes the looks that are due, up to the end.
    pub(crate) fn finish(&mut self, to_ns: u64) {
        self.before(to_ns.saturating_add(1));
        if let Some(parts) = &mut self.parts {
            parts.finish();
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
        if !std::mem::replace(&mut one.moved_since_look, true) {
            self.moved_since_look.push(site);
        }
        if let Some(parts) = &mut self.parts {
            parts.moved(site, one.bytes);
        }
    }

    /// What must be noted before something changes at this moment.
    fn before(&mut self, at: u64) {
        while self.grid.at.get(self.next_look).is_some_and(|due| *due < at) {
            self.look();
        }
        if !self.begun && at >= self.from_ns {
            self.begun = true;
            let Balance { live, live_bytes, .. } = self.balance;
            self.balance = Balance { live_before: live_bytes, live, live_bytes, ..Balance::default() };
            if let Some(parts) = &mut self.parts {
                parts.begin(self.allocated);
            }
            // What there was when the span began counts for its peak.
            if self.preexisting.is_some() && !self.ended {
                self.note_totals(self.from_ns);
            }
        }
        if at >= self.from_ns
            && let Some(parts) = &mut self.parts
        {
            parts.enter(self.timeline.part_at(at), self.allocated);
        }
    }

    fn look(&mut self) {
        let look = self.next_look as u32;
        if look == 0 {
            self.at_first_look = (self.balance.allocs, self.balance.frees);
        }
        for site in std::mem::take(&mut self.moved_since_look) {
            let Some(one) = self.sites.get_mut(site as usize) else { continue };
            one.moved_since_look = false;
            if one.changes.last().map_or(0, |last| last.1) != one.bytes {
                one.changes.push((look, one.bytes));
            }
        }
        self.next_look += 1;
        if self.next_look == self.grid.at.len() {
            for piece in self.live.values() {
                if let Some(site) = self.sites.get_mut(piece.site as usize) {
                    site.kept.push((piece.since_ns, piece.bytes));
                }
            }
            for site in &mut self.sites {
                site.kept.sort_unstable();
            }
            let Balance { allocs, frees, .. } = self.balance;
            let (before, freed_before) = self.at_first_look;
            self.between_looks = (allocs.saturating_sub(before), frees.saturating_sub(freed_before));
            self.at_last_look = Some(self.held());
            let at_ns = self.grid.at.last().copied().unwrap_or_default();
            self.last_look = Some(LastLook { at_ns, allocated: self.allocated, reserved: self.reserved });
        }
    }

    fn totals(&mut self, at: u64, told: Option<(u64, u64)>) {
        (self.allocated, self.reserved) = told.unwrap_or((self.balance.live_bytes, self.balance.live_bytes));
        if at >= self.from_ns {
            self.note_totals(at);
        }
    }

    fn note_totals(&mut self, at: u64) {
        self.timeline.set(at, self.allocated, self.reserved);
        if let Some(parts) = &mut self.parts {
            parts.total(self.allocated);
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

    fn space(looks: Vec<u64>) -> Space {
        Space::new(Grid { at: looks, stride: 1 }, 0, 1_000)
    }

    #[test]
    fn the_peak_by_site_is_that_of_the_moment_of_the_peak() {
        let mut space = space(vec![]);
        let mut total = 0;
        let mut step = |space: &mut Space, at, address, bytes: i64, stack| {
            total += bytes;
            let told = Some((total as u64, total as u64));
            if bytes > 0 {
                space.alloc(at, address, bytes as u64, Some(stack), told);
            } else {
                space.free(at, address, bytes.unsigned_abs(), told);
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
    fn what_was_there_before_is_told_from_the_first_report() {
        let mut space = space(vec![]);
        space.alloc(1, 0x10, 100, None, Some((1_100, 4_000)));
        assert_eq!((space.preexisting, space.unseen()), (Some(1_000), 1_000));
        space.free(2, 0x99, 400, Some((700, 4_000)));
        assert_eq!((space.unseen(), space.balance.unknown_free_bytes), (600, 400));
        assert_eq!((space.peak, space.peak_seen), ((1_100, 1), 100));
    }

    #[test]
    fn looks_see_what_is_live_then_and_what_stays() {
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
    fn an_address_given_out_twice_is_counted_as_a_lost_free() {
        let mut space = space(vec![]);
        space.alloc(1, 1, 7, None, None);
        space.alloc(2, 1, 9, None, None);
        assert_eq!((space.balance.lost_frees, space.balance.live_bytes, space.balance.live), (1, 9, 1));
    }
}
