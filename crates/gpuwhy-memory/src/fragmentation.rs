// SPDX-License-Identifier: Apache-2.0
//! Reserved memory that tensors do not use, memory that goes back and forth between PyTorch and the driver, and the
//! driver's latency.

use crate::driver::DriverSide;
use crate::lines::{LineKey, Lines};
use crate::report::{DriverLine, Fragmentation, Source};
use crate::space::{Space, SpaceKey, UNKNOWN_DEVICE};
use std::collections::{BTreeMap, BTreeSet};

/// Lines listed with driver calls.
const MOST_LINES: usize = 16;

/// The account of each process and device.
pub(crate) fn accounts(
    spaces: &BTreeMap<SpaceKey, Space>,
    drivers: &BTreeMap<u32, DriverSide>,
    lines: &Lines,
) -> Vec<Fragmentation> {
    let mut all = Vec::new();
    for (pid, driver) in drivers {
        let devices: BTreeSet<u8> = spaces.keys().filter(|key| key.pid == *pid).map(|key| key.device).collect();
        // Times of calls are per process: reported with its first device.
        let mut times = Some(driver);
        for device in devices {
            let key = |source: Source| SpaceKey { pid: *pid, device, source };
            let (torch, direct) = (spaces.get(&key(Source::Torch)), spaces.get(&key(Source::Driver)));
            let mut one = account(torch, direct, lines);
            (one.pid, one.device) = (*pid, (device != UNKNOWN_DEVICE).then_some(u32::from(device)));
            if let Some(sums) = driver.devices.get(&device) {
                one.segments = sums.segments;
                one.segment_bytes = sums.segment_bytes;
                (one.returned, one.returned_bytes) = (sums.returned.count, sums.returned.bytes);
                (one.retaken_bytes, one.churn_ns) = (sums.retaken_bytes, sums.churn_ns);
                let by = sums.returned_by.iter().map(|(stack, back)| (*stack, back.bytes, back.count));
                one.returned_by = lines.holders(by);
            }
            if let Some(driver) = times.take() {
                one.latency = driver.latency();
                (one.driver_ns, one.late_allocs, one.late_ns) = driver.sums();
                one.late_span_ns = driver.late_span_ns();
                one.driver_by = asked_by(driver, lines);
            }
            all.push(one);
        }
    }
    all
}

/// Driver calls by line.
fn asked_by(driver: &DriverSide, lines: &Lines) -> Vec<DriverLine> {
    let mut by_line: BTreeMap<LineKey, (DriverLine, u64)> = BTreeMap::new();
    for (stack, asked) in &driver.asked_by {
        let (one, most) = by_line.entry(lines.key(*stack)).or_default();
        one.calls += asked.calls;
        one.bytes = one.bytes.saturating_add(asked.bytes);
        one.total_ns = one.total_ns.saturating_add(asked.total_ns);
        one.late_ns = one.late_ns.saturating_add(asked.late_ns);
        // Ties are broken the same way every time.
        if (asked.total_ns, *stack) >= (*most, one.stack_id.map(i64::cast_unsigned)) {
            *most = asked.total_ns;
            one.stack_id = stack.map(u64::cast_signed);
            one.line = lines.line(*stack);
            one.function = lines.fact(*stack).and_then(|fact| fact.function.clone());
        }
    }
    let mut all: Vec<DriverLine> = by_line.into_values().map(|(one, _)| one).collect();
    all.sort_by(|a, b| b.total_ns.cmp(&a.total_ns).then_with(|| a.line.cmp(&b.line)));
    all.truncate(MOST_LINES);
    all
}

fn account(torch: Option<&Space>, direct: Option<&Space>, lines: &Lines) -> Fragmentation {
    let mut one = Fragmentation::default();
    if let Some(space) = torch {
        one.peak_reserved = space.peak_reserved.0;
        one.allocated_then = space.allocated_at_peak_reserved;
        one.cached = space.reserved.saturating_sub(space.allocated);
    }
    if let Some(space) = direct {
        let held =
            |site: &crate::space::Site| (site.stack, site.peak_bytes.max(site.bytes), site.peak_count.max(site.count));
        one.past_allocator = lines.holders(space.sites.iter().map(held));
    }
    one
}
