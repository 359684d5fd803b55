// SPDX-License-Identifier: Apache-2.0
//! Memory that ran out: what was asked, who had it, and whose fault it was.

use super::{memory_link, named, rate, who};
use crate::facts::Facts;
use crate::fixes;
use crate::report::{Holder, Oom, Report};
use gpuwhy_model::{Finding, Link, RootCause, Severity, units};

pub(super) fn finding(oom: &Oom, report: &Report, facts: &Facts) -> Finding {
    let asked = units::bytes(oom.asked);
    let mut chain = vec![memory_link(
        who(facts, oom.pid, oom.device),
        format!("is refused {asked}"),
        oom.line.clone(),
        format!("{} in use, {} reserved", units::bytes(oom.allocated), units::bytes(oom.reserved)),
        Some("SELECT * FROM allocations WHERE op = 'torchOutOfMemory'".into()),
    )];
    chain.extend(oom.live.iter().take(3).map(|holder| held_link(holder, oom.allocated)));
    let severity = if oom.fatal { Severity::Critical } else { Severity::High };
    let ended = if oom.fatal { "; the process ended" } else { "" };
    let title =
        format!("out of memory at {}: {} asked for {asked}{ended}", units::time(oom.at_ns), named(oom.line.as_ref()));
    Finding {
        lost_bytes: oom.asked,
        pid: Some(oom.pid),
        tid: Some(oom.tid),
        chain,
        root_cause: RootCause { pid: Some(oom.pid), name: Some(facts.name(oom.pid)), ..cause(oom, report) },
        effect: effect(oom, report),
        fixes: fixes::oom(oom, &report.leaks),
        confidence_reason: "the allocator's own report, and every allocation before it".into(),
        ..Finding::new("oom", severity, title)
    }
}

/// Somebody else on the device, if that is more than what leaks; a request for more than there can be; a leak, if there is one;
/// memory in too small pieces; or whoever held most.
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
        let detail = format!("other processes on the GPU had {}: {}", units::bytes(bytes), names.join(", "));
        return because("other_process", None, detail);
    }
    if let Some(bytes) = fixes::had_outside(oom).filter(is_more) {
        let detail =
            format!("{} were in use outside this process's PyTorch allocator (see hidden_memory)", units::bytes(bytes));
        return because("outside_allocator", None, detail);
    }
    if fixes::is_too_large(oom) {
        let detail = format!("{} asked for more at once than all that was in use", named(oom.line.as_ref()));
        return because("large_request", oom.line.clone(), detail);
    }
    if let Some(leak) = leak {
        let (by, held) = (named(leak.line.as_ref()), units::bytes(leak.grown_bytes));
        return because("leak", leak.line.clone(), format!("{by} leaks {}: it held {held}", rate(leak)));
    }
    if fixes::is_scattered(oom) {
        let unused = units::bytes(oom.reserved.saturating_sub(oom.allocated));
        let detail = format!("{unused} were reserved and free, but not {} in one piece", units::bytes(oom.asked));
        return because("fragmentation", oom.line.clone(), detail);
    }
    let most = oom.live.first();
    let (by, held) = (most.and_then(|most| most.line.clone()), most.map_or(0, |most| most.bytes));
    let detail = format!("most memory was held by {}: {}", named(by.as_ref()), units::bytes(held));
    because("too_much_live", by, detail)
}

fn effect(oom: &Oom, report: &Report) -> Vec<String> {
    let mut effect = vec![if oom.fatal { "it ended the process".to_owned() } else { "the process went on".to_owned() }];
    effect.extend(oom.device_words());
    if report.oom_count > 1 {
        effect.push(format!("memory ran out {} times", units::count(report.oom_count)));
    }
    effect
}

fn held_link(holder: &Holder, of: u64) -> Link {
    let who = named(holder.line.as_ref().or(holder.function.as_ref()));
    let what = format!("held {} in {} pieces", units::bytes(holder.bytes), units::count(holder.count));
    memory_link(who, what, None, format!("{} of what was in use", units::percent(holder.bytes as f64, of as f64)), None)
}
