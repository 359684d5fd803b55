// SPDX-License-Identifier: Apache-2.0
//! Replays PyTorch's caching allocator by address, to get the size of whole blocks rather than of requests.
//!
//! No search for a free block is needed, as every allocation names its address. Neighbouring free blocks of a
//! segment always merge, so the free blocks are just the gaps between the live ones.

use super::model::{Settings, Snapshot};
use super::replay::{Account, Before};
use super::rows::{Action, Entry, State, grow, total};
use std::collections::BTreeMap;

/// Every block is a multiple of this.
const MIN_BLOCK: u64 = 512;
/// Requests up to this size come from the small pool, whose free blocks are always split.
const SMALL: u64 = 1 << 20;
/// OOM events analysed; a loop that catches them can make thousands.
const MAX_OOMS: usize = 100;

/// The allocator's state at one time, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) reserved: u64,
    pub(super) allocated: u64,
    /// Free parts of segments in use.
    pub(super) stuck: u64,
    /// Completely free segments.
    pub(super) releasable: u64,
    /// The largest gap.
    pub(super) largest_gap: u64,
}

/// The result of the replay.
#[derive(Debug, Default)]
pub(super) struct Played {
    pub(super) peak_allocated: u64,
    pub(super) peak_reserved: u64,
    /// Memory taken from and returned to the driver during the recording: calls and bytes.
    pub(super) taken: (u64, u64),
    pub(super) given_back: (u64, u64),
    /// How often the cache was emptied, and memory taken after the first time: calls and bytes.
    pub(super) flushes: u64,
    pub(super) taken_again: (u64, u64),
    /// Entry index and state of each OOM.
    pub(super) ooms: Vec<(usize, Held)>,
    pub(super) oom_count: u64,
    /// The replay ends in the snapshot's blocks, and no entry broke the allocator's rules.
    pub(super) consistent: bool,
    /// Nothing was reserved or allocated before the first entry.
    pub(super) from_start: bool,
}

impl Played {
    fn count_taken(&mut self, size: u64) {
        let add = |(calls, bytes): (u64, u64)| (calls + 1, bytes.saturating_add(size));
        self.taken = add(self.taken);
        if self.flushes > 0 {
            self.taken_again = add(self.taken_again);
        }
    }
}

fn gives_back(entry: &Entry) -> bool {
    matches!(entry.action, Action::SegmentFree | Action::SegmentUnmap)
}

#[derive(Debug, Clone, Copy)]
struct Region {
    end: u64,
    expandable: bool,
}

#[derive(Debug, Clone, Copy)]
struct Live {
    size: u64,
    /// Freed by the program, not yet by the stream.
    pending: bool,
}

struct Player<'a> {
    settings: &'a Settings,
    regions: BTreeMap<u64, Region>,
    live: BTreeMap<u64, Live>,
    reserved: u64,
    allocated: u64,
    contradictions: u64,
    /// The region of the last allocation, most likely also that of the next; empty at first.
    near: (u64, Region),
}

/// Replays a device's recording.
pub(super) fn play(snapshot: &Snapshot, device: u32, account: &Account) -> Played {
    let entries = snapshot.trace(device);
    let mut player = Player::at_start(snapshot, device, entries, &account.before);
    let mut played = Played {
        peak_allocated: player.allocated,
        peak_reserved: player.reserved,
        from_start: !entries.is_empty() && player.regions.is_empty() && account.before.is_empty(),
        ..Played::default()
    };
    for (i, entry) in entries.iter().enumerate() {
        match entry.action {
            Action::Alloc => player.alloc(entry),
            // Nearly always the free completes at once: handle both together.
            Action::FreeRequested if completes(entries.get(i + 1), entry) => {}
            Action::FreeRequested => player.free_requested(entry.addr),
            Action::FreeCompleted => player.free_completed(entry.addr),
            Action::SegmentAlloc | Action::SegmentMap => {
                player.reserve(entry.addr, entry.size, entry.action == Action::SegmentMap);
                played.count_taken(entry.size);
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                player.release(entry.addr, entry.size);
                let goes_on = i.checked_sub(1).is_some_and(|before| gives_back(&entries[before]));
                played.flushes += u64::from(!goes_on);
                played.given_back = (played.given_back.0 + 1, played.given_back.1.saturating_add(entry.size));
            }
            Action::Oom => {
                played.oom_count += 1;
                if played.ooms.len() < MAX_OOMS {
                    played.ooms.push((i, player.held()));
                }
            }
            Action::Other => {}
        }
        played.peak_allocated = played.peak_allocated.max(player.allocated);
        played.peak_reserved = played.peak_reserved.max(player.reserved);
    }
    played.consistent = player.contradictions == 0 && player.ends_as(snapshot, device);
    played
}

impl<'a> Player<'a> {
    /// The state before the first entry: today's segments with the recording's changes undone, and the blocks
    /// that were there before.
    fn at_start(snapshot: &'a Snapshot, device: u32, entries: &[Entry], before: &[Before]) -> Self {
        let mut player = Self {
            settings: &snapshot.settings,
            regions: BTreeMap::new(),
            live: BTreeMap::new(),
            reserved: 0,
            allocated: 0,
            contradictions: 0,
            near: (0, Region { end: 0, expandable: false }),
        };
        for (segment, _) in snapshot.device_segments(device) {
            player.reserve(segment.address, segment.total, segment.expandable);
        }
        for entry in entries.iter().rev() {
            match entry.action {
                Action::SegmentAlloc | Action::SegmentMap => player.release(entry.addr, entry.size),
                Action::SegmentFree => player.reserve(entry.addr, entry.size, false),
                Action::SegmentUnmap => player.reserve(entry.addr, entry.size, true),
                _ => {}
            }
        }
        player.contradictions = 0;
        for block in before {
            let size = block.block.unwrap_or_else(|| rounded(player.settings, block.requested));
            player.live.insert(block.address, Live { size, pending: false });
        }
        for block in before.iter().filter(|b| b.block.is_none()) {
            player.widen(block);
        }
        player.allocated = total(player.live.values().map(|b| b.size));
        player
    }

    /// The large pool never leaves a free block of 1 MiB or less: such a remainder stays part of the block before it.
    fn widen(&mut self, block: &Before) {
        let size = rounded(self.settings, block.requested);
        let Some((gap, expandable)) = self.gap(block.address) else { return };
        if size > SMALL && !expandable && gap > size && gap - size <= SMALL {
            self.live.insert(block.address, Live { size: gap, pending: false });
        }
    }

    /// From `address` to the next live block or the segment's end, and whether the segment is expandable.
    fn gap(&mut self, address: u64) -> Option<(u64, bool)> {
        if address < self.near.0 || address >= self.near.1.end {
            let (start, region) = self.regions.range(..=address).next_back().filter(|(_, r)| address < r.end)?;
            self.near = (*start, *region);
        }
        let region = self.near.1;
        let next = self.live.range(address.saturating_add(1)..).next().map_or(region.end, |(next, _)| *next);
        Some((next.min(region.end).saturating_sub(address), region.expandable))
    }

    fn alloc(&mut self, entry: &Entry) {
        let wanted = rounded(self.settings, entry.size);
        let size = match self.gap(entry.addr) {
            Some((gap, expandable)) if gap >= wanted => {
                if self.splits(wanted, gap - wanted, expandable) {
                    wanted
                } else {
                    gap
                }
            }
            // Larger than the gap, or outside every segment: the recording is incomplete.
            _ => {
                self.contradictions += 1;
                wanted
            }
        };
        if let Some(old) = self.live.insert(entry.addr, Live { size, pending: false }) {
            self.contradictions += 1;
            self.allocated = self.allocated.saturating_sub(if old.pending { 0 } else { old.size });
        }
        grow(&mut self.allocated, size);
    }

    /// Whether the allocator splits a free block, leaving `rest`.
    fn splits(&self, wanted: u64, rest: u64, expandable: bool) -> bool {
        if wanted <= SMALL || expandable || self.settings.expandable_segments {
            rest >= MIN_BLOCK
        } else {
            rest > SMALL && self.settings.max_split_size.is_none_or(|limit| wanted < limit)
        }
    }

    fn free_requested(&mut self, address: u64) {
        match self.live.get_mut(&address) {
            Some(block) if !block.pending => {
                block.pending = true;
                self.allocated = self.allocated.saturating_sub(block.size);
            }
            _ => self.contradictions += 1,
        }
    }

    fn free_completed(&mut self, address: u64) {
        match self.live.remove(&address) {
            Some(block) if !block.pending => self.allocated = self.allocated.saturating_sub(block.size),
            Some(_) => {}
            None => self.contradictions += 1,
        }
    }

    fn reserve(&mut self, address: u64, size: u64, expandable: bool) {
        self.near.1.end = 0;
        let mut region = Region { end: address.saturating_add(size), expandable };
        let mut start = address;
        if expandable {
            // Pages mapped side by side are one range to allocate from.
            if let Some(after) = self.regions.get(&region.end).filter(|r| r.expandable).copied() {
                self.regions.remove(&region.end);
                region.end = after.end;
            }
            if let Some((&left, _)) =
                self.regions.range(..address).next_back().filter(|(_, r)| r.expandable && r.end == address)
            {
                start = left;
            }
        }
        self.regions.insert(start, region);
        self.reserved = self.reserved.saturating_add(size);
    }

    fn release(&mut self, address: u64, size: u64) {
        self.near.1.end = 0;
        let end = address.saturating_add(size);
        let found = self.regions.range(..=address).next_back().filter(|(_, r)| end <= r.end);
        let Some((&start, &region)) = found else {
            self.contradictions += 1;
            return;
        };
        self.regions.remove(&start);
        if start < address {
            self.regions.insert(start, Region { end: address, ..region });
        }
        if end < region.end {
            self.regions.insert(end, region);
        }
        self.reserved = self.reserved.saturating_sub(size);
    }

    fn held(&self) -> Held {
        let mut held = Held { reserved: self.reserved, allocated: self.allocated, ..Held::default() };
        for (&start, region) in &self.regions {
            let mut at = start;
            let mut free = 0;
            for (&address, block) in self.live.range(start..region.end) {
                let gap = address.saturating_sub(at);
                grow(&mut free, gap);
                held.largest_gap = held.largest_gap.max(gap);
                at = address.saturating_add(block.size);
            }
            let last = region.end.saturating_sub(at);
            held.largest_gap = held.largest_gap.max(last);
            grow(if at == start { &mut held.releasable } else { &mut held.stuck }, free.saturating_add(last));
        }
        held
    }

    /// Whether the live blocks are the snapshot's, address by address and byte by byte.
    fn ends_as(&self, snapshot: &Snapshot, device: u32) -> bool {
        let mut active = 0;
        for (_, block) in snapshot.device_blocks(device).filter(|(_, b)| b.state != State::Inactive) {
            active += 1;
            let same = self.live.get(&block.address);
            if same.is_none_or(|l| l.size != block.size || l.pending != (block.state == State::Pending)) {
                return false;
            }
        }
        active == self.live.len()
    }
}

/// Whether `next` completes the free that `entry` requests.
fn completes(next: Option<&Entry>, entry: &Entry) -> bool {
    next.is_some_and(|next| next.action == Action::FreeCompleted && next.addr == entry.addr)
}

/// The block size for a request.
pub(super) fn rounded(settings: &Settings, size: u64) -> u64 {
    if size < MIN_BLOCK {
        return MIN_BLOCK;
    }
    let class = size.ilog2().saturating_sub(20).min(15) as usize;
    let divisions = settings.roundup_divisions[class];
    if divisions > 1 && size > MIN_BLOCK.saturating_mul(divisions) && !size.is_power_of_two() {
        // Divisions are a power of two in PyTorch; round anything else down to one.
        let step = (1u64 << size.ilog2()) >> divisions.ilog2();
        return size.div_ceil(step.max(1)).saturating_mul(step.max(1));
    }
    size.div_ceil(MIN_BLOCK).saturating_mul(MIN_BLOCK)
}
