// SPDX-License-Identifier: Apache-2.0
//! Memory ran out: what was asked for, which lines held the rest, and why there was no more.

use super::{memory_link, named, rate, who};
use crate::facts::Facts;
use crate::fixes;
use crate::report::{Holder, Oom, Report};
use gpuwhy_model::{Finding, Link, RootCause, Severity, units};

pub(super) fn finding(oom: &Oom, report: &Report, facts: &Facts) -> Finding {
    let asked = units::bytes(oom.asked);
    let mut chain = vec![memory_link(
        who(facts, oom.pid, oom.device),
        format!("asks for {asked} and is refused"),
        oom.line.clone(),
        format!("{} in use, {} reserved", units::bytes(oom.allocated), units::bytes(oom.reserved)),
        Some("SELECT * FROM allocations WHERE op = 'torchOutOfMemory'".into()),
    )];
    chain.extend(oom.live.iter().take(3).map(|holder| held_link(holder, oom.allocated)));
    let severity = if oom.fatal { Severity::Critical } else { Severity::High };
    let ended = if oom.fatal { "; the process ended" } else { "" };
    let title = format!("Out of memory at {} in {}{ended}", units::time(oom.at_ns), named(oom.line.as_ref()));
    Finding {
        lost_bytes: oom.asked,
        pid: Some(oom.pid),
        tid: Some(oom.tid),
        chain,
        root_cause: RootCause { pid: Some(oom.pid), name: Some(facts.name(oom.pid)), ..cause(oom, report) },
        effect: effect(oom, report),
        fixes: fixes::oom(oom, &report.leaks),
        confidence_reason: "the allocator's own report and every allocation before it".into(),
        ..Finding::new("oom", severity, title)
    }
}

/// In this order: other processes or hidden memory, if larger than the leak; a request that is too large; a leak;
/// fragmentation; the line that held most.
fn cause(oom: &Oom, report: &Report) -> RootCause {
    let because = |kind: &str, line: Option<String>, detail: String| RootCause {
        kind: kind.to_owned(),
        detail,
        line,
        ..RootCause::default()
    };
    let leak = report.leaks.iter().find(|leak| leak.pid == oom.pid && leak.device == oom.device);
    let is_more = |bytes: &u64| leak.is_none_or(|leak| *bytes > leak.grown_bytes);
    if let Some(bytes) = fixes::had_by_others(oom).filter(is_more) {
        let names: Vec<String> =
            oom.others.iter().take(3).map(|other| format!("{} ({})", other.name, other.pid)).collect();
        let detail = format!("other processes on the GPU held {}: {}", units::bytes(bytes), names.join(", "));
        return because("other_process", None, detail);
    }
    if let Some(bytes) = fixes::had_outside(oom).filter(is_more) {
        let detail = format!(
            "{} was in use outside this process's PyTorch allocator (gpuwhy memory --gap)",
            units::bytes(bytes)
        );
        return because("outside_allocator", None, detail);
    }
    if fixes::is_too_large(oom) {
        let detail = format!("{} asked for more at once than was in use in total", named(oom.line.as_ref()));
        return because("large_request", oom.line.clone(), detail);
    }
    if let Some(leak) = leak {
        let (by, held) = (named(leak.line.as_ref()), units::bytes(leak.grown_bytes));
        return because("leak", leak.line.clone(), format!("{by} leaks {} and held {held}", rate(leak)));
    }
    if fixes::is_scattered(oom) {
        let unused = units::bytes(oom.reserved.saturating_sub(oom.allocated));
        let asked = units::bytes(oom.asked);
        let detail = format!("{unused} was reserved and free, but not {asked} in one piece");
        return because("fragmentation", oom.line.clone(), detail);
    }
    let most = oom.live.first();
    let (by, held) = (most.and_then(|most| most.line.clone()), most.map_or(0, |most| most.bytes));
    let detail = format!("{} held the most: {}", named(by.as_ref()), units::bytes(held));
    because("too_much_live", by, detail)
}

fn effect(oom: &Oom, report: &Report) -> Vec<String> {
    let mut effect = vec![if oom.fatal { "the process ended".to_owned() } else { "the process went on".to_owned() }];
    effect.extend(oom.device_words());
    if report.oom_count > 1 {
        effect.push(format!("memory ran out {} times", units::count(report.oom_count)));
    }
    effect
}

fn held_link(holder: &Holder, of: u64) -> Link {
    let who = named(holder.line.as_ref().or(holder.function.as_ref()));
    let count = units::count(holder.count);
    let allocations = if holder.count == 1 { "allocation" } else { "allocations" };
    let what = format!("held {} in {count} {allocations}", units::bytes(holder.bytes));
    memory_link(who, what, None, format!("{} of memory in use", units::percent(holder.bytes as f64, of as f64)), None)
}
