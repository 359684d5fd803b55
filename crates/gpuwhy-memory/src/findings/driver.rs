// SPDX-License-Identifier: Apache-2.0
//! Findings about PyTorch and the driver: reserved memory that stays unused, and time spent in driver calls.

use super::{memory_link, named, who};
use crate::facts::Facts;
use crate::fixes;
use crate::report::{Fragmentation, LatencyWindow, Report};
use gpuwhy_model::{Confidence, Finding, Link, RootCause, Severity, units};

/// Unused memory is reported from this many bytes, and this share of the reserved memory, on.
const UNUSED_BYTES: u64 = 64 << 20;
const UNUSED_PART: f64 = 0.2;
/// Time in driver calls is reported from this share of the time after startup on,
const DRIVER_PART: f64 = 0.01;
/// and from this much on, ns.
const DRIVER_NS: u64 = 10_000_000;
/// Calls "get slower" when their median grows by this factor.
const SLOWER: f64 = 2.0;
/// A window with fewer calls has no median worth comparing.
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
        format!("PyTorch returned {} to the driver only to take it again", units::bytes(one.retaken_bytes))
    } else {
        let percent = units::percent(unused as f64, one.peak_reserved as f64);
        format!("{percent} of the {reserved} that PyTorch reserved was unused")
    };
    let share = if churns { (one.churn_ns as f64 / late.max(1.0)).min(1.0) } else { 0.0 };
    let severity = match ran_out {
        true => Severity::High,
        false => Severity::of_share(share).max(Severity::Low),
    };
    let time =
        (one.driver_ns > 0).then(|| format!("{} in driver calls that allocate or free", units::time(one.driver_ns)));
    let left = format!("left {} of {reserved} unused", units::percent(unused as f64, one.peak_reserved as f64));
    let state = format!("{} segments, {} returned", units::count(one.segments), units::count(one.returned));
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
            "reserved and in use are PyTorch's own figures; gpuwhy does not see which free blocks fit which request"
                .into(),
        ..Finding::new("fragmentation", severity, title)
    })
}

fn cause(one: &Fragmentation, churns: bool) -> RootCause {
    if churns {
        let line = one.returned_by.first().and_then(|by| by.line.clone());
        let times = units::count(one.returned);
        let detail = format!("{} returns cached memory to the driver {times} times", named(line.as_ref()));
        return RootCause { kind: "empty_cache".into(), detail, line, ..RootCause::default() };
    }
    let (used, reserved) = (units::bytes(one.allocated_then), units::bytes(one.peak_reserved));
    let detail = format!("when PyTorch had reserved {reserved}, its peak, tensors used {used}");
    RootCause { kind: "unused_segments".into(), detail, ..RootCause::default() }
}

pub(super) fn latency(one: &Fragmentation, facts: &Facts) -> Option<Finding> {
    // Memory that goes back and forth is reported as fragmentation.
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
    let ending = if slower { ", and it gets slower" } else { "" };
    let title = format!("Allocating and freeing memory in the driver takes time{ending}");
    let evidence = "SELECT second, op, calls, total_ns, max_ns FROM seconds WHERE op IN ('cudaMalloc', 'cudaFree')";
    let severity = Severity::of_share(share).max(Severity::Low);
    Some(Finding {
        lost_ns: lost,
        share: share.min(1.0),
        pid: Some(one.pid),
        chain: vec![Link {
            layer: "cuda".into(),
            who: who(facts, one.pid, one.device),
            what: format!("asks the driver for memory {} times after startup", units::count(one.late_allocs)),
            line: line.clone(),
            state: trend.clone(),
            ns: lost,
            evidence: Some(evidence.into()),
        }],
        root_cause: RootCause {
            kind: "driver_allocations".into(),
            pid: Some(one.pid),
            name: Some(facts.name(one.pid)),
            detail: format!("{} keeps taking memory from the driver", named(line.as_ref())),
            line,
        },
        effect: vec![trend],
        fixes: fixes::latency(one),
        confidence_reason: "the measured time of the calls".into(),
        ..Finding::new("alloc_latency", severity, title)
    })
}
