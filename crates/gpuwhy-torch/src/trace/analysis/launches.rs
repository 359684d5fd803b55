// SPDX-License-Identifier: Apache-2.0
//! What launching and waiting cost the CPU.

use super::idle::Gap;
use super::links::NO_ROW;
use super::names::{Meaning, line_text};
use super::totals::Attributed;
use crate::trace::intern::NameId;
use crate::trace::report::{Launches, SyncTotal, TraceReport};
use crate::trace::rows::{NO_NAME, Span};
use std::collections::HashMap;

/// Fills in the cost of launches.
pub(crate) fn launches(from: &Attributed<'_>, gaps: &[Gap], report: &mut TraceReport) {
    let calls = &from.trace.rows.calls;
    let mut seen = vec![false; calls.len()];
    let mut durations = Vec::new();
    let mut ahead = Vec::new();
    let mut launches = Launches::default();
    for (row, call) in from.trace.rows.gpu.iter().zip(&from.links.call) {
        if *call == NO_ROW {
            launches.unlinked += 1;
            continue;
        }
        let launch = &calls[*call as usize];
        ahead.push((row.start - launch.start).max(0).unsigned_abs());
        if !std::mem::replace(&mut seen[*call as usize], true) {
            durations.push(launch.dur.unsigned_abs());
        }
    }
    let waited = gaps.iter().filter(|gap| gap.call != NO_ROW);
    let waited = waited.map(|gap| (gap, &calls[gap.call as usize])).filter(|(gap, call)| call.start >= gap.from);
    let mut latency: Vec<u64> = waited.map(|(gap, call)| (gap.to - call.start).max(0).unsigned_abs()).collect();
    launches.count = durations.len() as u64;
    launches.total_ns = durations.iter().fold(0, |sum: u64, ns| sum.saturating_add(*ns));
    launches.call_p50_ns = percentile(&mut durations, 50);
    launches.latency_p50_ns = percentile(&mut latency, 50);
    launches.latency_p99_ns = percentile(&mut latency, 99);
    launches.ahead_p50_ns = percentile(&mut ahead, 50);
    report.launches = launches;
}

fn percentile(values: &mut [u64], percent: usize) -> u64 {
    if values.is_empty() {
        return 0;
    }
    let rank = ((values.len() - 1) * percent) / 100;
    *values.select_nth_unstable(rank).1
}

/// Fills in calls that waited for the GPU, with the idle time that followed them.
pub(crate) fn syncs(from: &Attributed<'_>, meanings: &[Meaning], gaps: &[Gap], report: &mut TraceReport) {
    let calls = &from.trace.rows.calls;
    let is_sync = |name: NameId| meanings.get(name as usize).is_some_and(|m| m.is(Meaning::SYNC));
    let key = |call: usize| {
        let origin = from.origins[call];
        (calls[call].name, origin.op, origin.line)
    };
    let mut found: HashMap<(NameId, NameId, NameId), SyncTotal> = HashMap::new();
    for (index, call) in calls.iter().enumerate().filter(|(_, call)| is_sync(call.name)) {
        let sync = found.entry(key(index)).or_default();
        sync.total_ns = sync.total_ns.saturating_add(call.dur.unsigned_abs());
        sync.count += 1;
    }
    for gap in gaps.iter().filter(|gap| gap.call != NO_ROW && gap.to > from.steady_from) {
        let launch = &calls[gap.call as usize];
        // Calls of a thread follow each other: back to the first that ended before the gap began.
        let earlier = calls[..gap.call as usize].iter().enumerate().rev();
        let during = earlier.take_while(|(_, call)| call.thread == launch.thread && call.end() >= gap.from);
        if let Some((index, _)) = during.into_iter().find(|(_, call)| is_sync(call.name)) {
            let sync = found.entry(key(index)).or_default();
            sync.idle_after_ns = sync.idle_after_ns.saturating_add(gap.to.abs_diff(gap.from));
        }
    }
    report.syncs = found
        .into_iter()
        .map(|((name, op, line), sync)| SyncTotal {
            name: from.trace.name(name).to_owned(),
            op: from.trace.name(op).to_owned(),
            line: (line != NO_NAME).then(|| line_text(from.trace.name(line))),
            ..sync
        })
        .collect();
}
