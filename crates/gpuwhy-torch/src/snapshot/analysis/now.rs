// SPDX-License-Identifier: Apache-2.0
//! Segments at the time of the snapshot: in use, padding, stuck, returnable.

use super::holders::{Holder, Holders};
use crate::snapshot::hash::FastMap;
use crate::snapshot::model::Snapshot;
use crate::snapshot::replay::{Account, Before, NEVER};
use crate::snapshot::report::{Device, Pinned, Row, SegmentSize};
use crate::snapshot::rows::{Block, Segment, State, grow, total};
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;
/// How much of an expandable segment is mapped and unmapped at once.
const SMALL_PAGE: u64 = 2 * MIB;
const LARGE_PAGE: u64 = 20 * MIB;
/// Rows kept of lists in which only the largest matter.
const TOP: usize = 20;
/// Segments with less stuck memory are not listed.
const PINNED_AT_LEAST: u64 = MIB;

fn is_private(segment: &Segment) -> bool {
    segment.pool != (0, 0)
}

/// Fills in the figures at the time of the snapshot.
pub(super) fn measure(snapshot: &Snapshot, device: &mut Device) {
    for (segment, blocks) in snapshot.device_segments(device.index) {
        grow(&mut device.reserved_bytes, segment.total);
        device.expandable_segments |= segment.expandable;
        for block in blocks {
            let requested = block.requested.unwrap_or(block.size);
            match block.state {
                State::Allocated => grow(&mut device.allocated_bytes, block.size),
                State::Pending => grow(&mut device.pending_bytes, block.size),
                State::Inactive => continue,
            }
            grow(&mut device.requested_bytes, requested);
            grow(&mut device.rounding_bytes, block.size.saturating_sub(requested));
        }
        let (stuck, releasable) = free_of(segment, blocks);
        if is_private(segment) {
            grow(&mut device.private_pool_bytes, segment.total);
            grow(&mut device.private_pool_free_bytes, stuck.saturating_add(releasable));
        } else {
            grow(&mut device.stuck_bytes, stuck);
            grow(&mut device.releasable_bytes, releasable);
            device.largest_fit_bytes = device.largest_fit_bytes.max(largest_fit(segment, blocks));
        }
    }
    device.expandable_segments |= snapshot.settings.expandable_segments;
}

/// Free bytes of a segment: stuck, and returnable to the driver.
fn free_of(segment: &Segment, blocks: &[Block]) -> (u64, u64) {
    let free = || blocks.iter().filter(|b| b.state == State::Inactive);
    let all = total(free().map(|b| b.size));
    if blocks.iter().all(|b| b.state == State::Inactive) {
        return (0, segment.total);
    }
    if !segment.expandable {
        return (all, 0);
    }
    // Whole pages can be unmapped even while the segment is in use.
    let page = if segment.small { SMALL_PAGE } else { LARGE_PAGE };
    let whole_pages = |block: &Block| {
        let start = block.address.saturating_sub(segment.address);
        let end = start.saturating_add(block.size);
        (end / page * page).saturating_sub(start.div_ceil(page).saturating_mul(page))
    };
    let releasable = total(free().map(whole_pages));
    (all.saturating_sub(releasable), releasable)
}

/// The small pool serves requests up to 1 MiB only.
fn largest_fit(segment: &Segment, blocks: &[Block]) -> u64 {
    let largest = blocks.iter().filter(|b| b.state == State::Inactive).map(|b| b.size).max().unwrap_or(0);
    if segment.small { largest.min(MIB) } else { largest }
}

/// Segments by size, largest first.
pub(super) fn segment_sizes(snapshot: &Snapshot, device: u32) -> Vec<SegmentSize> {
    let mut sizes: BTreeMap<(u64, bool), (u64, u64)> = BTreeMap::new();
    for (segment, blocks) in snapshot.device_segments(device) {
        let (stuck, releasable) = free_of(segment, blocks);
        let size = sizes.entry((segment.total, segment.small)).or_default();
        *size = (size.0 + 1, size.1.saturating_add(stuck).saturating_add(releasable));
    }
    let rows = sizes.into_iter().rev().map(|((size_bytes, small_pool), (count, free_bytes))| SegmentSize {
        device,
        size_bytes,
        small_pool,
        count,
        free_bytes,
    });
    rows.collect()
}

/// Finds the holder of a block in use, whether the recording saw it allocated or not.
struct BlockHolders {
    entries: FastMap<u64, usize>,
    before: FastMap<u64, Before>,
}

impl BlockHolders {
    fn new(snapshot: &Snapshot, device: u32, account: &Account) -> Self {
        let entries = snapshot.trace(device);
        let live = account.live_after(entries, entries.len()).map(|i| (entries[i].addr, i)).collect();
        let stayed = account.before.iter().filter(|b| b.freed_at == NEVER);
        Self { entries: live, before: stayed.map(|b| (b.address, *b)).collect() }
    }

    fn holder(&self, holders: &mut Holders<'_>, block: &Block) -> Option<Holder> {
        if let Some(entry) = self.entries.get(&block.address) {
            return Some(holders.of_entry(*entry));
        }
        self.before.get(&block.address).map(|before| holders.of_before(before))
    }

    fn row(&self, holders: &mut Holders<'_>, block: &Block, count: u64) -> Row {
        let row = match self.holder(holders, block) {
            Some(holder) => holders.row(holder),
            None => holders.row_of_stack(block.stack),
        };
        Row { bytes: block.requested.unwrap_or(block.size), count, size_bytes: Some(block.size), ..row }
    }
}

/// The largest blocks in use, and all segments with stuck memory.
pub(super) fn blocks_and_pins(
    snapshot: &Snapshot,
    device: u32,
    account: &Account,
    holders: &mut Holders<'_>,
) -> (Vec<Row>, Vec<Pinned>) {
    let by_address = BlockHolders::new(snapshot, device, account);
    let mut used: Vec<&Block> =
        snapshot.device_blocks(device).map(|(_, b)| b).filter(|b| b.state != State::Inactive).collect();
    used.sort_by_key(|block| (std::cmp::Reverse(block.size), block.address));
    used.truncate(TOP);
    let largest = used.into_iter().map(|block| by_address.row(holders, block, 1)).collect();
    let mut pinned: Vec<Pinned> = Vec::new();
    for (segment, blocks) in snapshot.device_segments(device) {
        let stuck = free_of(segment, blocks).0;
        if is_private(segment) || stuck < PINNED_AT_LEAST {
            continue;
        }
        let used = || blocks.iter().filter(|b| b.state != State::Inactive);
        let held = total(used().map(|b| b.size));
        if let Some(largest) = used().max_by_key(|b| b.size) {
            let by = by_address.row(holders, largest, used().count() as u64);
            pinned.push(Pinned { segment_bytes: segment.total, held_bytes: held, stuck_bytes: stuck, by });
        }
    }
    pinned.sort_by_key(|p| std::cmp::Reverse(p.stuck_bytes));
    (largest, pinned)
}

/// The segments that are less than half in use, most stuck memory first.
pub(super) fn worth_showing(pinned: &[Pinned]) -> Vec<Pinned> {
    pinned.iter().filter(|p| p.held_bytes < p.segment_bytes / 2).take(TOP).cloned().collect()
}
