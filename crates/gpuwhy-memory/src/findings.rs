// SPDX-License-Identifier: Apache-2.0
//! What is said about memory: findings of the common type, and the verdict.

use crate::facts::Facts;
use crate::fixes;
use crate::lines::{Lines, NO_LINE};
use crate::report::{Fragmentation, Gap, GrowthKind, Holder, Leak, Oom, Report, Source, Trend};
use crate::steps::Certainty;
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
/// Calls that a window needs for that.
const FEWEST_CALLS: u64 = 10;
/// Hidden memory that is told: the part of the device.
const HIDDEN_PART: f64 = 0.1;
/// A device as full as this is at risk.
const FULL: f64 = 0.92;
/// A leak that leaves less time than this is critical, ns.
const SOON_NS: u64 = 600_000_000_000;

/// All findings, worst first.
pub(crate) fn all(report: &Report, facts: &Facts, lines: &Lines) -> Vec<Finding> {
    let mut found: Vec<Finding> = report.leaks.iter().map(|leak| of_leak(leak, report, facts, lines)).collect();
    found.extend(report.ooms.last().map(|oom| of_oom(oom, report, facts)));
    found.extend(report.fragmentation.iter().filter_map(|one| of_fragmentation(one, report, facts)));
    found.extend(report.fragmentation.iter().filter_map(|one| of_latency(one, facts)));
    found.extend(report.gaps.iter().filter_map(of_gap));
    found.extend(report.gaps.iter().filter_map(|gap| of_risk(gap, report)));
    Finding::sort(&mut found);
    found
}

fn who(facts: &Facts, pid: u32, device: Option<u32>) -> String {
    let device = device.map_or_else(|| "a GPU".to_owned(), |device| format!("cuda:{device}"));
    format!("{} {pid} on {device}", facts.name(pid))
}

fn memory_link(who: String, what: String, line: Option<String>, state: String, evidence: Option<String>) -> Link {
    Link { layer: "memory".into(), who, what, line, state, ns: 0, evidence }
}

/// `1.05 MB a step`, or a second where there are no steps.
pub(crate) fn rate(leak: &Leak) -> String {
    match leak.bytes_per_step {
        Some(bytes) => format!("{} a step", units::bytes(bytes.round() as u64)),
        None => format!("{} a second", units::bytes(leak.bytes_per_second.round() as u64)),
    }
}

fn of_leak(leak: &Leak, report: &Report, facts: &Facts, lines: &Lines) -> Finding {
    let line = leak.line.clone().unwrap_or_else(|| NO_LINE.to_owned());
    let onset = match leak.onset_step {
        Some(step) => format!("step {step} ({})", units::time(leak.onset_ns)),
        None => units::time(leak.onset_ns),
    };
    let mut effect = vec![format!("{} a second", units::bytes(leak.bytes_per_second.round() as u64))];
    if let Some(ns) = leak.out_of_memory_in_ns {
        let steps = leak.out_of_memory_in_steps.map(|n| format!(" ({} steps)", units::count(n))).unwrap_or_default();
        effect.push(format!("memory runs out {}{steps} after the end of this recording", units::time(ns)));
    }
    let ran_out = report.ooms.iter().any(|oom| oom.pid == leak.pid && oom.device == leak.device);
    let peak = report.spaces.iter().filter(|space| space.pid == leak.pid && space.device == leak.device);
    let peak = peak.map(|space| space.peak_allocated).max().unwrap_or(0);
    let soon = leak.out_of_memory_in_ns.is_some_and(|ns| ns < SOON_NS);
    let severity = match leak.grown_bytes as f64 >= 0.02 * peak as f64 {
        _ if ran_out || soon => Severity::Critical,
        true => Severity::High,
        false => Severity::Medium,
    };
    let stack = leak.stack_id.map(|id| format!("SELECT timestamp, bytes FROM allocations WHERE stack_id = {id}"));
    let pieces = match leak.pieces_per_step {
        Some(each) if each >= 0.95 => {
            let (many, size) = (each.round() as u64, units::bytes(leak.piece_bytes));
            let what =
                if many == 1 { format!("one piece of {size}") } else { format!("{many} pieces of about {size}") };
            format!("keeps {what} from every step")
        }
        Some(each) if each > 0.0 => {
            format!("keeps a piece of {} about every {:.0} steps", units::bytes(leak.piece_bytes), 1.0 / each)
        }
        _ => format!("keeps pieces of {}", units::bytes(leak.piece_bytes)),
    };
    let grown = units::bytes(leak.grown_bytes);
    let state = format!("{} of {} looks kept some", leak.looks_with_growth, leak.looks);
    let (confidence, confidence_reason) = sure(leak);
    Finding {
        kind: "memory_leak".into(),
        severity,
        title: format!("{line} leaks {}: {grown} since {onset}", rate(leak)),
        lost_ns: 0,
        lost_bytes: leak.grown_bytes,
        share: 0.0,
        pid: Some(leak.pid),
        tid: None,
        chain: vec![
            memory_link(
                who(facts, leak.pid, leak.device),
                format!("holds {grown} more since {onset}"),
                None,
                state,
                None,
            ),
            memory_link(line.clone(), pieces.clone(), None, "allocated, never freed".into(), stack),
        ],
        root_cause: RootCause {
            kind: "kept_tensors".into(),
            pid: Some(leak.pid),
            name: leak.function.clone(),
            detail: format!("{line} {pieces}"),
            line: leak.line.clone(),
        },
        effect,
        fixes: fixes::leak(leak, lines.fact(leak.stack_id.map(i64::cast_unsigned))),
        confidence,
        confidence_reason,
    }
}

fn sure(leak: &Leak) -> (Confidence, String) {
    let looks = format!("something stayed from {} of {} looks", leak.looks_with_growth, leak.looks);
    match leak.certainty {
        Certainty::High => (Confidence::High, looks),
        Certainty::Medium => (Confidence::Medium, format!("{looks}; there are few steps, or they are uneven")),
        Certainty::Low => (Confidence::Medium, format!("{looks}; steps are not certain")),
        Certainty::None => {
            (Confidence::Low, format!("{looks}; no steps were found, so a cache that fills looks the same"))
        }
    }
}

fn of_oom(oom: &Oom, report: &Report, facts: &Facts) -> Finding {
    let asked = units::bytes(oom.asked);
    let line = oom.line.clone().unwrap_or_else(|| NO_LINE.to_owned());
    let unused = oom.reserved.saturating_sub(oom.allocated);
    let leak = report.leaks.iter().find(|leak| leak.pid == oom.pid && leak.device == oom.device);
    let (kind, cause_line, detail) = match leak {
        Some(leak) => {
            let by = leak.line.clone().unwrap_or_else(|| NO_LINE.to_owned());
            (
                "leak",
                leak.line.clone(),
                format!("{by} leaks {}: it held {}", rate(leak), units::bytes(leak.grown_bytes)),
            )
        }
        None if fixes::is_scattered(oom) => {
            let detail = format!("{} were reserved and free, but not {asked} in one piece", units::bytes(unused));
            ("fragmentation", oom.line.clone(), detail)
        }
        None => {
            let most = oom.live.first();
            let by = most.and_then(|most| most.line.clone());
            let held = most.map_or(0, |most| most.bytes);
            let name = by.clone().unwrap_or_else(|| NO_LINE.to_owned());
            ("too_much_live", by, format!("most memory was held by {name}: {}", units::bytes(held)))
        }
    };
    let mut chain = vec![memory_link(
        who(facts, oom.pid, oom.device),
        format!("is refused {asked}"),
        oom.line.clone(),
        format!("{} in use, {} reserved", units::bytes(oom.allocated), units::bytes(oom.reserved)),
        Some("SELECT * FROM allocations WHERE op = 'torchOutOfMemory'".into()),
    )];
    chain.extend(oom.live.iter().take(3).map(|holder| held_link(holder, oom.allocated)));
    let mut effect = vec![if oom.fatal { "the process ended".to_owned() } else { "the process went on".to_owned() }];
    if let (Some(used), Some(total)) = (oom.device_used, oom.device_total) {
        effect.push(format!("the device had {} of {} in use", units::bytes(used), units::bytes(total)));
    }
    if report.oom_count > 1 {
        effect.push(format!("memory ran out {} times", units::count(report.oom_count)));
    }
    Finding {
        kind: "oom".into(),
        severity: if oom.fatal { Severity::Critical } else { Severity::High },
        title: format!("out of memory at {}: {line} asked for {asked}", units::time(oom.at_ns)),
        lost_ns: 0,
        lost_bytes: oom.asked,
        share: 0.0,
        pid: Some(oom.pid),
        tid: Some(oom.tid),
        chain,
        root_cause: RootCause {
            kind: kind.into(),
            pid: Some(oom.pid),
            name: Some(facts.name(oom.pid)),
            detail,
            line: cause_line,
        },
        effect,
        fixes: fixes::oom(oom, &report.leaks),
        confidence: Confidence::High,
        confidence_reason: "the allocator's own report, and every allocation before it".into(),
    }
}

fn held_link(holder: &Holder, of: u64) -> Link {
    let who = holder.line.clone().or(holder.function.clone()).unwrap_or_else(|| NO_LINE.to_owned());
    let what = format!("held {} in {} pieces", units::bytes(holder.bytes), units::count(holder.count));
    memory_link(who, what, None, format!("{} of what was in use", units::percent(holder.bytes as f64, of as f64)), None)
}

fn of_fragmentation(one: &Fragmentation, report: &Report, facts: &Facts) -> Option<Finding> {
    let unused = one.peak_reserved.saturating_sub(one.allocated_then);
    let stuck = unused >= UNUSED_BYTES && unused as f64 >= UNUSED_PART * one.peak_reserved as f64;
    let late = one.late_span_ns;
    let churns = one.retaken_bytes > 0 && one.churn_ns >= DRIVER_NS && one.churn_ns as f64 >= DRIVER_PART * late as f64;
    if !stuck && !churns {
        return None;
    }
    let (bytes, reserved) = (units::bytes(unused), units::bytes(one.peak_reserved));
    let ran_out =
        report.ooms.iter().any(|oom| oom.pid == one.pid && oom.device == one.device && fixes::is_scattered(oom));
    let by = one.returned_by.first();
    let (title, cause, detail) = if churns {
        let line = by.and_then(|by| by.line.clone()).unwrap_or_else(|| NO_LINE.to_owned());
        let again = units::bytes(one.retaken_bytes);
        (
            format!("{again} went back to the driver and were taken again: {} lost", units::time(one.churn_ns)),
            "empty_cache",
            format!("{line} gives cached memory back {} times", units::count(one.returned)),
        )
    } else {
        let detail = format!("at the most reserved, {} were in use", units::bytes(one.allocated_then));
        (format!("{bytes} of {reserved} reserved were not in use at the peak"), "unused_segments", detail)
    };
    let share = units::percent(unused as f64, one.peak_reserved as f64);
    let state = format!("{} segments, {} given back", units::count(one.segments), units::count(one.returned));
    Some(Finding {
        kind: "fragmentation".into(),
        severity: if ran_out { Severity::High } else { Severity::Low },
        title,
        lost_ns: one.churn_ns,
        lost_bytes: unused,
        share: if late == 0 { 0.0 } else { (one.churn_ns as f64 / late as f64).min(1.0) },
        pid: Some(one.pid),
        tid: None,
        chain: vec![memory_link(
            who(facts, one.pid, one.device),
            format!("left {share} of {reserved} unused"),
            None,
            state,
            None,
        )],
        root_cause: RootCause {
            kind: cause.into(),
            pid: Some(one.pid),
            name: Some(facts.name(one.pid)),
            detail,
            line: by.filter(|_| churns).and_then(|by| by.line.clone()),
        },
        effect: vec![format!("{} in calls that allocate and free", units::time(one.driver_ns))],
        fixes: fixes::fragmentation(one),
        confidence: if churns { Confidence::High } else { Confidence::Medium },
        confidence_reason:
            "reserved and allocated are PyTorch's own figures; which free blocks fit which request is not seen".into(),
    })
}

fn of_latency(one: &Fragmentation, facts: &Facts) -> Option<Finding> {
    let late = one.late_span_ns;
    // What goes back and forth is told as fragmentation.
    let lost = one.late_ns.saturating_sub(one.churn_ns);
    let busy: Vec<_> = one.latency.iter().filter(|window| window.calls >= FEWEST_CALLS).collect();
    let (first, last) = (busy.first()?, busy.last()?);
    let slower = last.at_ns > first.at_ns && last.p50_ns as f64 >= SLOWER * first.p50_ns.max(1) as f64;
    let costs = lost >= DRIVER_NS && lost as f64 >= DRIVER_PART * late as f64;
    if !costs {
        return None;
    }
    let share = lost as f64 / late.max(1) as f64;
    let by = one.past_allocator.first().or(one.returned_by.first());
    let line = by.and_then(|by| by.line.clone());
    let name = line.clone().unwrap_or_else(|| NO_LINE.to_owned());
    let trend = format!(
        "median {} → {}, p99 {} → {}",
        units::time(first.p50_ns),
        units::time(last.p50_ns),
        units::time(first.p99_ns),
        units::time(last.p99_ns)
    );
    let severity = if share >= 0.1 {
        Severity::High
    } else if share >= 0.03 {
        Severity::Medium
    } else {
        Severity::Low
    };
    Some(Finding {
        kind: "alloc_latency".into(),
        severity,
        title: format!(
            "{} in calls that allocate and free GPU memory{}",
            units::time(lost),
            if slower { ", which become slower" } else { "" }
        ),
        lost_ns: lost,
        lost_bytes: 0,
        share: share.min(1.0),
        pid: Some(one.pid),
        tid: None,
        chain: vec![Link {
            layer: "cuda".into(),
            who: who(facts, one.pid, one.device),
            what: format!("asks the driver for memory {} times after its start", units::count(one.late_allocs)),
            line: line.clone(),
            state: trend.clone(),
            ns: lost,
            evidence: Some(
                "SELECT second, op, calls, total_ns, max_ns FROM seconds WHERE op IN ('cudaMalloc', 'cudaFree')".into(),
            ),
        }],
        root_cause: RootCause {
            kind: "driver_allocations".into(),
            pid: Some(one.pid),
            name: Some(facts.name(one.pid)),
            detail: format!("{name} takes memory from the driver again and again"),
            line,
        },
        effect: vec![trend],
        fixes: fixes::latency(one),
        confidence: Confidence::High,
        confidence_reason: "the calls' own times".into(),
    })
}

fn of_gap(gap: &Gap) -> Option<Finding> {
    let others: u64 = gap.others.iter().map(|other| other.bytes).sum();
    let total = gap.memory_total.filter(|total| *total > 0)?;
    let much = (gap.hidden.max(others)) as f64 >= HIDDEN_PART * total as f64;
    if !much && gap.trend != Trend::Drifting {
        return None;
    }
    let trend = match gap.trend {
        Trend::Steady => "steady".to_owned(),
        Trend::Transient => format!("at times {}", units::bytes(gap.hidden_most)),
        Trend::Drifting => format!("drifting by {} a second", units::bytes(gap.drift_per_second.abs() as u64)),
    };
    let by_others = others > gap.hidden;
    let name = |other: &crate::report::OtherProcess| format!("{} {}", other.name, other.pid);
    let named = gap.others.first().map(name);
    let bytes = units::bytes(if by_others { others } else { gap.hidden });
    let title = if by_others {
        format!("{bytes} of GPU {} belong to other processes", gap.gpu)
    } else {
        format!("{bytes} of GPU {} are used beyond what PyTorch reserved ({trend})", gap.gpu)
    };
    let mut chain = vec![memory_link(
        format!("GPU {}", gap.gpu),
        format!("has {} of {} in use", units::bytes(gap.used), units::bytes(total)),
        None,
        format!("{} reserved, {} taken past it", units::bytes(gap.reserved), units::bytes(gap.direct)),
        Some(format!("SELECT timestamp, memory_used FROM gpu_seconds WHERE gpu = {}", gap.gpu)),
    )];
    chain.extend(gap.others.iter().take(3).map(|other| {
        memory_link(name(other), format!("has {}", units::bytes(other.bytes)), None, "not of this job".into(), None)
    }));
    let contexts = "CUDA contexts, NCCL buffers and workspaces of libraries are not PyTorch's";
    let detail = match &named {
        Some(named) if by_others => format!("{named} uses the same GPU"),
        _ => contexts.to_owned(),
    };
    Some(Finding {
        kind: "hidden_memory".into(),
        severity: if gap.trend == Trend::Drifting { Severity::Medium } else { Severity::Low },
        title,
        lost_ns: 0,
        lost_bytes: if by_others { others } else { gap.hidden },
        share: 0.0,
        pid: None,
        tid: None,
        chain,
        root_cause: RootCause {
            kind: if by_others { "other_process".into() } else { "outside_allocator".into() },
            pid: gap.others.first().filter(|_| by_others).map(|other| other.pid),
            name: named.filter(|_| by_others),
            detail,
            line: None,
        },
        effect: vec![format!("that memory is not there for tensors ({trend})")],
        fixes: fixes::hidden(gap),
        confidence: Confidence::Medium,
        confidence_reason: "the driver's figure of the whole device, once a second, less what was seen being taken"
            .into(),
    })
}

fn of_risk(gap: &Gap, report: &Report) -> Option<Finding> {
    let total = gap.memory_total.filter(|total| *total > 0)?;
    if report.oom_count > 0 || (gap.peak_used as f64) < FULL * total as f64 {
        return None;
    }
    let left = total.saturating_sub(gap.peak_used);
    let title = format!("GPU {} had {} of {} left at its fullest", gap.gpu, units::bytes(left), units::bytes(total));
    Some(Finding {
        kind: "oom_risk".into(),
        severity: Severity::Medium,
        title,
        lost_ns: 0,
        lost_bytes: 0,
        share: 0.0,
        pid: None,
        tid: None,
        chain: vec![memory_link(
            format!("GPU {}", gap.gpu),
            format!("was {} full", units::percent(gap.peak_used as f64, total as f64)),
            None,
            format!("{} in use", units::bytes(gap.peak_used)),
            None,
        )],
        root_cause: RootCause {
            kind: "little_room".into(),
            detail: format!("{} are left for a larger batch, another size or a leak", units::bytes(left)),
            ..RootCause::default()
        },
        effect: Vec::new(),
        fixes: fixes::risk(total),
        confidence: Confidence::High,
        confidence_reason: "the device's own figure".into(),
    })
}

/// The report in a few sentences.
pub(crate) fn verdict(report: &Report) -> String {
    let mut said = Vec::new();
    if let Some(oom) = report.ooms.last() {
        let times = if report.oom_count > 1 { format!(" {} times", report.oom_count) } else { String::new() };
        let line = oom.line.as_deref().unwrap_or(NO_LINE);
        said.push(format!("Memory ran out{times}: {line} asked for {}.", units::bytes(oom.asked)));
    }
    for leak in report.leaks.iter().take(3) {
        let line = leak.line.as_deref().unwrap_or(NO_LINE);
        let since = leak.onset_step.map_or_else(|| units::time(leak.onset_ns), |step| format!("step {step}"));
        said.push(format!("{line} leaks {} since {since}.", rate(leak)));
    }
    if said.is_empty() && !report.spaces.is_empty() {
        said.push("No leak was found.".to_owned());
    }
    if let Some(space) = report.spaces.iter().find(|space| space.source == Source::Torch).or(report.spaces.first()) {
        let most = space.at_peak.first();
        let by = most.map_or_else(String::new, |most| {
            let line = most.line.as_deref().unwrap_or(NO_LINE);
            format!(", most of it held by {line} ({})", units::bytes(most.bytes))
        });
        said.push(format!(
            "At most {} were in use at {}{by}; {} were reserved.",
            units::bytes(space.peak_allocated),
            units::time(space.peak_allocated_at_ns),
            units::bytes(space.peak_reserved)
        ));
    }
    let settled = report.growths.iter().filter(|growth| growth.kind == GrowthKind::Settled).count();
    if report.leaks.is_empty() && settled > 0 {
        let lines = if settled == 1 { "1 line".to_owned() } else { format!("{settled} lines") };
        said.push(format!("{lines} grew at first and settled: warm-up or a full cache, not a leak."));
    }
    if said.is_empty() {
        said.push("No GPU memory was allocated in this time.".to_owned());
    }
    said.join(" ")
}
