// SPDX-License-Identifier: Apache-2.0
//! From a snapshot to a report, device by device: first everything is measured, then findings are made.

mod findings;
mod growth;
mod holders;
mod now;

use super::Options;
use super::allocator::{self, Held, Played};
use super::model::Snapshot;
use super::place::Places;
use super::replay::Account;
use super::report::{Device, MemoryReport, Oom, Row};
use super::rows::Action;
use gpuwhy_model::{Finding, units};
use holders::Holders;

/// Churn rows kept.
const MAX_CHURN: usize = 100;
/// Recordings shorter than this are not worth a second thread.
const LONG_TRACE: usize = 50_000;

/// Analyses every device asked for.
pub(super) fn report(snapshot: &Snapshot, options: &Options) -> MemoryReport {
    let mut report = MemoryReport { warnings: snapshot.warnings.clone(), ..MemoryReport::default() };
    let devices = snapshot.devices();
    if let Some(wanted) = options.device
        && !devices.contains(&wanted)
    {
        report.warnings.push(format!("the snapshot has nothing about device {wanted}; its devices are {devices:?}"));
    }
    for device in devices {
        if options.device.is_none_or(|wanted| wanted == device) {
            add_device(snapshot, device, options, &mut report);
        }
    }
    let by_bytes = |rows: &mut Vec<Row>| rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    by_bytes(&mut report.live);
    by_bytes(&mut report.peak);
    by_bytes(&mut report.churn);
    report.churn.truncate(MAX_CHURN);
    Finding::sort(&mut report.findings);
    report
}

fn add_device(snapshot: &Snapshot, index: u32, options: &Options, report: &mut MemoryReport) {
    let account = Account::new(snapshot, index);
    let entries = snapshot.trace(index);
    let mut holders = Holders::new(index, Places::new(snapshot), entries, &account);
    let (played, (live, peak, churn)) = beside(
        entries.len() >= LONG_TRACE,
        || allocator::play(snapshot, index, &account),
        || (holders.live_after(entries.len()), holders.live_after(account.peak_at), holders.churn(MAX_CHURN)),
    );
    let mut device = Device { index, ..Device::default() };
    now::measure(snapshot, &mut device);
    add_recording(&mut device, snapshot, &account, &played);
    device.capacity_bytes = options.capacity_bytes;
    device.headroom_bytes =
        options.capacity_bytes.and_then(|capacity| capacity.checked_sub(device.peak_reserved_bytes));
    if let (Some(capacity), None) = (device.capacity_bytes, device.headroom_bytes) {
        report.warnings.push(format!(
            "cuda:{index}: the GPU's memory was given as {} bytes, but the peak reserved {}: give the real size",
            units::count(capacity),
            units::count(device.peak_reserved_bytes)
        ));
    }
    // A recording that was cut off never adds up; a warning has said that it was.
    if !snapshot.trace_cut(index) {
        warn_if_inexact(&device, &account, &played, report);
    }

    let (largest, pinned) = now::blocks_and_pins(snapshot, index, &account, &mut holders);
    let ooms = ooms(snapshot, index, &played, &mut holders);
    let growth = growth::find(snapshot, index, &account, &mut holders);
    let measured =
        findings::Measured { device: &device, played: &played, pinned: &pinned, ooms: &ooms, growth: &growth };
    report.findings.extend(findings::find(&measured));
    report.live.extend(live);
    report.peak.extend(peak);
    report.churn.extend(churn);
    report.largest_blocks.extend(largest);
    report.segment_sizes.extend(now::segment_sizes(snapshot, index));
    report.pinned.extend(now::worth_showing(&pinned));
    report.ooms.extend(ooms);
    report.devices.push(device);
}

/// Runs both; the first on its own thread if `worth_it` and a thread can be started.
fn beside<A: Send + Default, B>(worth_it: bool, first: impl Fn() -> A + Sync, second: impl FnOnce() -> B) -> (A, B) {
    if !worth_it {
        return (first(), second());
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, &first);
        let b = second();
        let a = match thread {
            Ok(thread) => thread.join().unwrap_or_default(),
            Err(_) => first(),
        };
        (a, b)
    })
}

fn add_recording(device: &mut Device, snapshot: &Snapshot, account: &Account, played: &Played) {
    let entries = snapshot.trace(device.index);
    device.peak_requested_bytes = account.peak_bytes;
    device.preexisting_bytes = account.before_bytes;
    device.recorded_allocated_bytes = account.allocated_bytes;
    device.recorded_freed_bytes = account.freed_bytes;
    device.reconciled = account.reconciled();
    device.peak_allocated_bytes = played.peak_allocated.max(device.allocated_bytes);
    device.peak_allocated_exact =
        played.from_start && played.consistent && device.reconciled && !snapshot.trace_cut(device.index);
    device.peak_reserved_bytes = played.peak_reserved.max(device.reserved_bytes);
    device.trace_entries = entries.len() as u64;
    device.segments_taken = played.taken.0;
    device.segments_returned = played.given_back.0;
    let at_peak = account.peak_at.checked_sub(1).and_then(|i| entries.get(i));
    device.peak_time_us = at_peak.map(|entry| entry.time_us).filter(|time| *time > 0);
}

fn warn_if_inexact(device: &Device, account: &Account, played: &Played, report: &mut MemoryReport) {
    let index = device.index;
    if device.trace_entries == 0 {
        return;
    }
    if !device.reconciled {
        report.warnings.push(format!(
            "cuda:{index}: the recording does not add up: {} before + {} allocated − {} freed = {} bytes, but {} are \
             live and {} entries contradict others; peaks are not exact",
            units::count(device.preexisting_bytes),
            units::count(device.recorded_allocated_bytes),
            units::count(device.recorded_freed_bytes),
            signed(account.end_bytes()),
            units::count(device.requested_bytes),
            units::count(account.contradictions)
        ));
    }
    if !played.from_start {
        report.warnings.push(format!(
            "cuda:{index}: the recording began late ({} bytes were allocated before it): peaks cover only the time \
             after that, and peak_allocated_bytes is approximate",
            units::count(device.preexisting_bytes)
        ));
    } else if device.reconciled && !played.consistent {
        report.warnings.push(format!(
            "cuda:{index}: replaying the allocations does not lead to this snapshot's blocks: peak_allocated_bytes is \
             approximate"
        ));
    }
}

/// The sum; a damaged file can make it negative.
fn signed(n: i128) -> String {
    let digits = units::count(u64::try_from(n.unsigned_abs()).unwrap_or(u64::MAX));
    if n < 0 { format!("−{digits}") } else { digits }
}

fn ooms(snapshot: &Snapshot, index: u32, played: &Played, holders: &mut Holders<'_>) -> Vec<Oom> {
    let entries = snapshot.trace(index);
    let mut ooms = Vec::new();
    for &(at, Held { reserved, allocated, stuck, releasable, largest_gap }) in &played.ooms {
        let Some(entry) = entries.get(at).filter(|e| e.action == Action::Oom) else { continue };
        let by = Row { bytes: entry.size, count: 1, ..holders.row_of_entry(at) };
        ooms.push(Oom {
            time_us: entry.time_us,
            asked_bytes: entry.size,
            device_free_bytes: entry.addr,
            reserved_bytes: reserved,
            allocated_bytes: allocated,
            stuck_bytes: stuck,
            releasable_bytes: releasable,
            largest_fit_bytes: largest_gap,
            by,
            largest_holder: holders.live_after(at).into_iter().next(),
        });
    }
    ooms
}
