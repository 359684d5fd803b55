// SPDX-License-Identifier: Apache-2.0
//! Memory that is reserved for nothing, and time that taking it costs.

use super::{memory_link, named, who};
use crate::facts::Facts;
use crate::fixes;
use crate::report::{Fragmentation, LatencyWindow, Report};
use gpuwhy_model::{Confidence, Finding, Link, RootCause, Severity, units};

/// Memory that is reserved and not used is told from here on: bytes, and the part of what is reserved.
const UNUSED_BYTES: u64 = 64 << 20;
const UNUSED_PART: f64 = 0.2;
/// Time in the driver's calls that is told: the part of the time after the start.
const DRIVER_PART: f64 = 0.01;
/// And no less than this, ns.
const DRIVER_NS: u64 = 10_000_000;
/// By this factor calls must have become slower.
const SLOWER: f64 = 2.0;
/// Calls that a part of the time needs for that.
const FEWEST_CALLS: u64 = 10;

pub(super) fn fragmentation(one: &Fragmentation, report: &Report, facts: &Facts) -> Option<Finding> {
    let unused = one.peak_reserved.saturating_sub(one.allocated_then);
    let stuck = unused >= UNUSED_BYTES && unused as f64 >= UNUSED_PART * one.peak_reserved as f64;
    let late = one.late_span_ns as f64;
    let churns = one.retaken_bytes > 0 && one.churn_ns >= DRIVER_NS && one.churn_ns as f64 >= DRIVER_PART * late;
    if !stuck && !churns {
        return None;
    }
    let of_it = |oom: &&crate::report::Oom| oom.pid == one.pid && oom.device == one.device;
    let ran_out = report.ooms.iter().filter(of_it).any(fixes::is_scattered);
    let reserved = units::bytes(one.peak_reserved);
    let title = if churns {
        let again = units::bytes(one.retaken_bytes);
        format!("{again} went back to the driver and were taken again: {} lost", units::time(one.churn_ns))
    } else {
        format!("{} of {reserved} reserved were not in use at the peak", units::bytes(unused))
    };
    let share = if churns { (one.churn_ns as f64 / late.max(1.0)).min(1.0) } else { 0.0 };
    let severity = match ran_out {
        true => Severity::High,
        false => Severity::of_share(share).max(Severity::Low),
    };
    let time = (one.driver_ns > 0).then(|| format!("{} in calls that allocate and free", units::time(one.driver_ns)));
    let left = format!("left {} of {reserved} unused", units::percent(unused as f64, one.peak_reserved as f64));
    let state = format!("{} segments, {} given back", units::count(one.segments), units::count(one.returned));
    Some(Finding {
        lost_ns: if churns { one.churn_ns } else { 0 },
        lost_bytes: unused,
        share,
        pid: Some(one.pid),
        chain: vec![memory_link(who(facts, one.pid, one.device), left, None, state, None)],
        root_cause: RootCause { pid: Some(one.pid), name: Some(facts.name(one.pid)), ..cause(one, churns) },
        effect: time.into_iter().collect(),
        fixes: fixes::fragmentation(one),
        confidence: if churns { Confidence::High } else { Confidence::Medium },
        confidence_reason:
            "reserved and allocated are PyTorch's own figures; which free blocks fit which request is not seen".into(),
        ..Finding::new("fragmentation", severity, title)
    })
}

fn cause(one: &Fragmentation, churns: bool) -> RootCause {
    if churns {
        let line = one.returned_by.first().and_then(|by| by.line.clone());
        let times = units::count(one.returned);
        let detail = format!("{} gives cached memory back {times} times", named(line.as_ref()));
        return RootCause { kind: "empty_cache".into(), detail, line, ..RootCause::default() };
    }
    let detail = format!("at the most reserved, {} were in use", units::bytes(one.allocated_then));
    RootCause { kind: "unused_segments".into(), detail, ..RootCause::default() }
}

pub(super) fn latency(one: &Fragmentation, facts: &Facts) -> Option<Finding> {
    // What goes back and forth is told as fragmentation.
    let lost = one.late_ns.saturating_sub(one.churn_ns);
    let share = lost as f64 / one.late_span_ns.max(1) as f64;
    let busy: Vec<&LatencyWindow> = one.latency.iter().filter(|window| window.calls >= FEWEST_CALLS).collect();
    let (first, last) = (busy.first()?, busy.last()?);
    if lost < DRIVER_NS || share < DRIVER_PART {
        return None;
    }
    let slower = last.at_ns > first.at_ns && last.p50_ns as f64 >= SLOWER * first.p50_ns.max(1) as f64;
    let line = one.driver_by.iter().max_by_key(|by| by.late_ns).and_then(|by| by.line.clone());
    let change = |from: u64, to: u64| format!("{} → {}", units::time(from), units::time(to));
    let trend = format!("median {}, p99 {}", change(first.p50_ns, last.p50_ns), change(first.p99_ns, last.p99_ns));
    let ending = if slower { ", which become slower" } else { "" };
    let title = format!("{} in calls that allocate and free GPU memory{ending}", units::time(lost));
    let evidence = "SELECT second, op, calls, total_ns, max_ns FROM seconds WHERE op IN ('cudaMalloc', 'cudaFree')";
    let severity = Severity::of_share(share).max(Severity::Low);
    Some(Finding {
        lost_ns: lost,
        share: share.min(1.0),
        pid: Some(one.pid),
        chain: vec![Link {
            layer: "cuda".into(),
            who: who(facts, one.pid, one.device),
            what: format!("asks the driver for memory {} times after its start", units::count(one.late_allocs)),
            line: line.clone(),
            state: trend.clone(),
            ns: lost,
            evidence: Some(evidence.into()),
        }],
        root_cause: RootCause {
            kind: "driver_allocations".into(),
            pid: Some(one.pid),
            name: Some(facts.name(one.pid)),
            detail: format!("{} takes memory from the driver again and again", named(line.as_ref())),
            line,
        },
        effect: vec![trend],
        fixes: fixes::latency(one),
        confidence_reason: "the calls' own times".into(),
        ..Finding::new("alloc_latency", severity, title)
    })
}
