// SPDX-License-Identifier: Apache-2.0
//! A line that keeps what it allocates.

use super::{headline, memory_link, named, who};
use crate::backward::calls_backward;
use crate::facts::Facts;
use crate::fixes;
use crate::lines::Lines;
use crate::report::{Leak, Oom, Report};
use crate::steps::Certainty;
use gpuwhy_model::{Confidence, Finding, RootCause, Severity, units};

/// A leak that fills memory sooner than this is critical, ns.
const SOON_NS: u64 = 600_000_000_000;
/// A leak that has taken this share of the peak is of high severity.
const MUCH: f64 = 0.02;

pub(super) fn finding(leak: &Leak, report: &Report, facts: &Facts, lines: &Lines) -> Finding {
    let line = named(leak.line.as_ref());
    let onset = match leak.onset_step {
        Some(step) => format!("step {step} ({})", units::time(leak.onset_ns)),
        None => units::time(leak.onset_ns),
    };
    let (grown, pieces) = (units::bytes(leak.grown_bytes), pieces(leak));
    let stack = leak.stack_id.map(|id| {
        // Allocations that autograd's threads make for the line have no stack.
        let is_backward = lines.fact(Some(id.cast_unsigned())).is_some_and(calls_backward);
        let or_none = if is_backward { " OR stack_id IS NULL" } else { "" };
        format!("SELECT timestamp, bytes FROM allocations WHERE stack_id = {id}{or_none}")
    });
    let (confidence, confidence_reason) = sure(leak);
    let more = format!("has kept {grown} since {onset}");
    let title = headline(leak);
    Finding {
        lost_bytes: leak.grown_bytes,
        pid: Some(leak.pid),
        chain: vec![
            memory_link(who(facts, leak.pid, leak.device), more, None, stayed(leak), None),
            memory_link(
                line.clone(),
                pieces.clone(),
                None,
                format!("not freed by {}, when last checked", units::time(leak.last_look_ns)),
                stack,
            ),
        ],
        root_cause: RootCause {
            kind: "kept_tensors".into(),
            pid: Some(leak.pid),
            name: leak.function.clone(),
            detail: format!("{line} {pieces}"),
            line: leak.line.clone(),
        },
        effect: effect(leak, report),
        fixes: fixes::leak(leak, &report.leaks, lines),
        confidence,
        confidence_reason,
        ..Finding::new("memory_leak", severity(leak, report), title)
    }
}

fn severity(leak: &Leak, report: &Report) -> Severity {
    let ran_out = report.ooms.iter().any(|oom| oom.pid == leak.pid && oom.device == leak.device);
    let of_it = report.spaces.iter().filter(|space| space.pid == leak.pid && space.device == leak.device);
    let peak = of_it.map(|space| space.peak_allocated).max().unwrap_or(0);
    if ran_out || leak.out_of_memory_in_ns.is_some_and(|ns| ns < SOON_NS) {
        Severity::Critical
    } else if leak.grown_bytes as f64 >= MUCH * peak as f64 {
        Severity::High
    } else {
        Severity::Medium
    }
}

/// What each step leaves behind.
fn pieces(leak: &Leak) -> String {
    let size = units::bytes(leak.piece_bytes);
    match leak.pieces_per_step {
        Some(each) if each >= 1.5 => format!("keeps {each:.0} allocations of about {size} from every step"),
        Some(each) if each >= 0.95 => format!("keeps one allocation of {size} from every step"),
        Some(each) if each > 0.0 => format!("keeps an allocation of {size} about every {:.0} steps", 1.0 / each),
        _ => format!("keeps allocations of {size}"),
    }
}

fn effect(leak: &Leak, report: &Report) -> Vec<String> {
    let mut effect = vec![format!("grows by {} a second", units::bytes(leak.bytes_per_second.round() as u64))];
    effect.extend(course(leak, report));
    if let Some(ns) = leak.out_of_memory_in_ns {
        let steps = leak.out_of_memory_in_steps.map(|n| format!(" ({} steps)", units::count(n))).unwrap_or_default();
        effect.push(format!("at this rate memory runs out {}{steps} after the recording ends", units::time(ns)));
    }
    effect
}

/// How far a leak got that is over: memory ran out, or the process ended.
fn course(leak: &Leak, report: &Report) -> Option<String> {
    let of_it = |oom: &&Oom| (oom.pid, oom.device) == (leak.pid, leak.device);
    if let Some(oom) = report.ooms.iter().find(of_it) {
        return Some(format!("memory ran out at {}", units::time(oom.at_ns)));
    }
    let space = report.spaces.iter().find(|space| (space.pid, space.device) == (leak.pid, leak.device))?;
    let (ended, look) = (space.ended_ns?, space.last_look?);
    let (used, at) = (units::bytes(look.allocated), units::time(look.at_ns));
    Some(format!("{used} in use at {at}; the process ended at {} with memory left", units::time(ended)))
}

/// How many steps, or time slices, left something behind.
fn stayed(leak: &Leak) -> String {
    let of = if leak.bytes_per_step.is_some() { "steps" } else { "time slices" };
    format!("{} of {} {of} left some behind", units::count(leak.looks_with_growth), units::count(leak.looks))
}

fn sure(leak: &Leak) -> (Confidence, String) {
    let stayed = stayed(leak);
    match leak.certainty {
        Certainty::High => (Confidence::High, stayed),
        Certainty::Medium => (Confidence::Medium, format!("{stayed}; the steps are few or uneven")),
        Certainty::Low => (Confidence::Medium, format!("{stayed}; the steps are a guess")),
        Certainty::None => {
            (Confidence::Low, format!("{stayed}; no steps were found, so a cache that is still filling looks the same"))
        }
    }
}
