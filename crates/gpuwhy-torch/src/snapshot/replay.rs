// SPDX-License-Identifier: Apache-2.0
//! The exact account of requested bytes: memory from before the recording, every allocation and free, and whether
//! they add up to the snapshot's live bytes.
//!
//! Bytes count from `alloc` until `free_completed`, as in PyTorch's `requested_bytes`.

use super::hash::FastMap;
use super::model::Snapshot;
use super::rows::{Action, Entry, NOTHING, State, grow, total};

/// Still live when the snapshot was taken.
pub(super) const NEVER: u32 = u32::MAX;

/// Memory allocated before the recording began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Before {
    pub(super) address: u64,
    /// Requested bytes.
    pub(super) requested: u64,
    /// The block's size, if it is still in the snapshot.
    pub(super) block: Option<u64>,
    /// Index of the entry that freed it, or [`NEVER`].
    pub(super) freed_at: u32,
    /// The stack that allocated it, if the snapshot's block has one; else [`super::rows::NOTHING`].
    pub(super) stack: u32,
}

/// One device's account.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// For every entry that is an allocation: index of the entry that completed its free, or [`NEVER`].
    pub(super) freed_at: Vec<u32>,
    pub(super) before: Vec<Before>,
    /// Requested bytes live before the first entry.
    pub(super) before_bytes: u64,
    pub(super) allocated_bytes: u64,
    pub(super) freed_bytes: u64,
    pub(super) peak_bytes: u64,
    /// The peak is after this many entries.
    pub(super) peak_at: usize,
    /// Requested bytes of the snapshot's active blocks.
    pub(super) live_bytes: u64,
    /// Entries that contradict each other or the snapshot's blocks.
    pub(super) contradictions: u64,
}

impl Account {
    /// Before + allocated − freed.
    pub(super) fn end_bytes(&self) -> i128 {
        i128::from(self.before_bytes) + i128::from(self.allocated_bytes) - i128::from(self.freed_bytes)
    }

    /// Whether the recording adds up to the live bytes exactly, without contradiction.
    pub(super) fn reconciled(&self) -> bool {
        self.contradictions == 0 && self.end_bytes() == i128::from(self.live_bytes)
    }

    /// The account of one device.
    pub(super) fn new(snapshot: &Snapshot, device: u32) -> Self {
        let entries = snapshot.trace(device);
        let mut account = Self { freed_at: vec![NEVER; entries.len()], ..Self::default() };
        let live = account.follow(entries);
        account.compare(snapshot, device, entries, live);
        account.find_peak(entries);
        account
    }

    /// Pairs allocations with frees. Returns the address and entry of allocations without a free.
    fn follow(&mut self, entries: &[Entry]) -> FastMap<u64, Seen> {
        let mut seen: FastMap<u64, Seen> = FastMap::default();
        for (i, entry) in entries.iter().enumerate() {
            match entry.action {
                Action::Alloc => {
                    grow(&mut self.allocated_bytes, entry.size);
                    let old = seen.insert(entry.addr, Seen { entry: i as u32, live: true, requested: false });
                    self.contradictions += u64::from(old.is_some_and(|old| old.live));
                }
                Action::FreeRequested => {
                    if let Some(block) = seen.get_mut(&entry.addr) {
                        block.requested = true;
                    }
                }
                Action::FreeCompleted => {
                    grow(&mut self.freed_bytes, entry.size);
                    self.free(entries, &mut seen, i, entry);
                }
                _ => {}
            }
        }
        seen.retain(|_, block| block.live);
        seen
    }

    fn free(&mut self, entries: &[Entry], seen: &mut FastMap<u64, Seen>, i: usize, entry: &Entry) {
        match seen.get_mut(&entry.addr) {
            Some(block) if block.live => {
                let same = entries[block.entry as usize].size == entry.size;
                self.contradictions += u64::from(!same || !block.requested);
                self.freed_at[block.entry as usize] = i as u32;
                block.live = false;
            }
            // Freed twice: the allocation in between is missing.
            Some(_) => self.contradictions += 1,
            None => {
                self.before.push(Before {
                    address: entry.addr,
                    requested: entry.size,
                    block: None,
                    freed_at: i as u32,
                    stack: NOTHING,
                });
                seen.insert(entry.addr, Seen { entry: 0, live: false, requested: true });
            }
        }
    }

    /// Compares what is live after the trace with the snapshot's active blocks.
    fn compare(&mut self, snapshot: &Snapshot, device: u32, entries: &[Entry], mut live: FastMap<u64, Seen>) {
        for (_, block) in snapshot.device_blocks(device) {
            if block.state == State::Inactive {
                continue;
            }
            let requested = block.requested.unwrap_or(block.size);
            grow(&mut self.live_bytes, requested);
            match live.remove(&block.address) {
                Some(seen) => {
                    self.contradictions += u64::from(entries[seen.entry as usize].size != requested);
                }
                None => self.before.push(Before {
                    address: block.address,
                    requested,
                    block: Some(block.size),
                    freed_at: NEVER,
                    stack: block.stack,
                }),
            }
        }
        self.contradictions += live.len() as u64;
        self.before_bytes = total(self.before.iter().map(|b| b.requested));
    }

    fn find_peak(&mut self, entries: &[Entry]) {
        let mut now = i128::from(self.before_bytes);
        let mut peak = now;
        for (i, entry) in entries.iter().enumerate() {
            match entry.action {
                Action::Alloc => now += i128::from(entry.size),
                Action::FreeCompleted => now -= i128::from(entry.size),
                _ => continue,
            }
            if now > peak {
                peak = now;
                self.peak_at = i + 1;
            }
        }
        self.peak_bytes = u64::try_from(peak).unwrap_or(0);
    }

    /// Entries whose memory is live after `at` entries.
    pub(super) fn live_after<'a>(&'a self, entries: &'a [Entry], at: usize) -> impl Iterator<Item = usize> + 'a {
        let made = entries.iter().zip(&self.freed_at).take(at).enumerate();
        made.filter(move |(_, (entry, freed))| entry.action == Action::Alloc && **freed as usize >= at).map(|(i, _)| i)
    }

    /// Memory from before the recording that is live after `at` entries.
    pub(super) fn before_after(&self, at: usize) -> impl Iterator<Item = &Before> {
        self.before.iter().filter(move |before| before.freed_at as usize >= at)
    }
}

/// The last allocation at an address.
struct Seen {
    /// The entry that allocated it last.
    entry: u32,
    live: bool,
    /// The program has freed it; a stream may still use it.
    requested: bool,
}
