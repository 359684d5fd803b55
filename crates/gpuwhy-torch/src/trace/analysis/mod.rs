// SPDX-License-Identifier: Apache-2.0
//! From rows to a report, without files or clocks.

mod account;
mod attribution;
mod findings;
mod idle;
mod launches;
mod links;
mod names;
mod rules;
mod steps;
mod timeline;
mod totals;
mod transfers;
mod warmup;

pub use account::Account;
pub use rules::Rules;

use self::idle::IdleTable;
use self::links::Links;
use self::names::Meaning;
use self::steps::FoundSteps;
use self::totals::{Attributed, Categories};
use super::report::{DeviceReport, IdleCause, Step, Steps, TraceReport};
use super::rows::{GpuRow, NO_NAME, Span, Trace};
use super::{Options, json};
use gpuwhy_model::units;
use std::cmp::Reverse;

/// Analyses a trace.
pub(super) fn analyse(mut trace: Trace, rules: &Rules, options: &Options) -> TraceReport {
    if let Some(device) = options.device {
        trace.rows.gpu.retain(|row| row.device == device);
    }
    sort(&mut trace);
    let meanings: Vec<Meaning> = trace.names.iter().map(|name| Meaning::of(name)).collect();
    let links = Links::new(&trace.rows);
    let categories = Categories::new(&trace, &links, rules);
    let found = steps::find(&trace);
    let warmup = warmup::recognise(&trace, &meanings, &found);
    let steady_from = steady_from(&trace, &links, &found, &warmup);
    let mut report = head(&trace);
    report.devices = devices(&trace, &categories, steady_from);
    report.steps = step_report(&trace, &found, &warmup);
    let gaps = idle::gaps(&trace.rows.gpu, &links);
    let attributed = attribution::attribute(&trace, &meanings, &gaps, steady_from.unwrap_or(i64::MIN));
    report.idle_causes = idle_causes(&trace, attributed.idle);
    let from = Attributed {
        trace: &trace,
        links: &links,
        categories: &categories,
        origins: &attributed.origins,
        forward: &attributed.forward,
        steady_from: steady_from.unwrap_or(i64::MIN),
    };
    std::thread::scope(|scope| {
        let rest = scope.spawn(|| {
            let mut rest = TraceReport::default();
            transfers::copies(&from, &mut rest);
            transfers::collectives(&from, &mut rest);
            transfers::graphs(&from, &mut rest);
            launches::launches(&from, &gaps, &mut rest);
            launches::syncs(&from, &meanings, &gaps, &mut rest);
            rest
        });
        totals::totals(&from, &mut report);
        let rest = rest.join().unwrap_or_default();
        report.copies = rest.copies;
        report.collectives = rest.collectives;
        report.graphs = rest.graphs;
        report.launches = rest.launches;
        report.syncs = rest.syncs;
    });
    totals::rank(&mut report, options.include_warmup);
    warnings(&trace, options, &mut report);
    report.findings = findings::findings(&report, &gaps, steady_from, options.include_warmup);
    report
}

/// Sorts rows by owner and start; of rows that start together, longer ones come first.
fn sort(trace: &mut Trace) {
    fn by_thread<R: Span>(rows: &mut [R]) {
        // Files are mostly sorted: a stable sort keeps runs as they are.
        rows.sort_by_key(|row| (row.thread(), row.start(), Reverse(row.dur())));
    }
    let rows = &mut trace.rows;
    let (python, calls, annotations) = (&mut rows.python, &mut rows.calls, &mut rows.annotations);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            by_thread(python);
            by_thread(calls);
            by_thread(annotations);
        });
        by_thread(&mut rows.ops);
        rows.gpu.sort_by_key(|row| (row.device, row.start));
    });
}

fn head(trace: &Trace) -> TraceReport {
    let start = trace.tally.bounds.and_then(|(from, _)| u64::try_from(from).ok());
    TraceReport {
        events: trace.tally.events,
        json_bytes: trace.json_bytes,
        rank: trace.header.rank,
        world_size: trace.header.world_size,
        start_unix_ns: trace.header.base_time_ns.zip(start).and_then(|(base, start)| base.checked_add(start)),
        with_stack: !trace.rows.python.is_empty(),
        ..TraceReport::default()
    }
}

/// When warm-up ended on the GPU: the start of the first work launched by the first step after warm-up.
fn steady_from(trace: &Trace, links: &Links, found: &FoundSteps, warmup: &[Option<&'static str>]) -> Option<i64> {
    let warm = warmup.iter().take_while(|reason| reason.is_some()).count();
    let step = if warm == 0 { None } else { found.items.get(warm) }?;
    let launched_later = trace.rows.gpu.iter().zip(&links.call).filter_map(|(row, call)| {
        let call = trace.rows.calls.get(*call as usize)?;
        (call.start >= step.start).then_some(row.start)
    });
    Some(launched_later.min().unwrap_or(step.start))
}

fn devices(trace: &Trace, categories: &Categories, steady_from: Option<i64>) -> Vec<DeviceReport> {
    let gpu = &trace.rows.gpu;
    let mut reports = Vec::new();
    let mut first = 0;
    for rows in gpu.chunk_by(|a, b| a.device == b.device) {
        let numbered = || rows.iter().zip(first..);
        let work = |(row, index): (&'_ GpuRow, usize)| account::work(row, categories.is_communication(index));
        let with_work = || numbered().map(|(row, index)| (row, work((row, index))));
        let mut streams: Vec<i32> = rows.iter().map(|row| row.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        let index = rows[0].device;
        let known = trace.header.devices.iter().find(|device| device.id == index);
        reports.push(DeviceReport {
            index,
            name: known.map(|device| device.name.clone()).unwrap_or_default(),
            memory_bytes: known.map(|device| device.memory_bytes).filter(|bytes| *bytes > 0),
            account: account::account(with_work(), None),
            steady: steady_from.map(|from| account::account(with_work(), Some((from, i64::MAX)))),
            streams: u32::try_from(streams.len()).unwrap_or(u32::MAX),
            event_ns: rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.dur.unsigned_abs())),
        });
        first += rows.len();
    }
    reports
}

fn step_report(trace: &Trace, found: &FoundSteps, warmup: &[Option<&'static str>]) -> Steps {
    let zero = trace.tally.bounds.map_or(0, |(from, _)| from);
    let busy = busy_intervals(&trace.rows.gpu);
    let item = |(step, reason): (&steps::Found, &Option<&'static str>)| Step {
        name: step.name.clone(),
        start_ns: u64::try_from(step.start - zero).unwrap_or(0),
        duration_ns: step.end.abs_diff(step.start),
        busy_ns: busy.iter().map(|device| overlap(device, step.start, step.end)).max().unwrap_or(0),
        complete: step.complete,
        warmup: reason.map(str::to_owned),
    };
    let items: Vec<Step> = found.items.iter().zip(warmup).map(item).collect();
    let steady = found.items.iter().zip(warmup).filter(|(step, reason)| step.complete && reason.is_none());
    let median = warmup::median(steady.map(|(step, _)| step.end - step.start).collect());
    Steps {
        count: found.counted as u64,
        method: found.method.to_owned(),
        confidence: found.confidence,
        median_ns: median.map_or(0, i64::unsigned_abs),
        items,
    }
}

/// For each device, the intervals in which it was busy.
fn busy_intervals(gpu: &[GpuRow]) -> Vec<Vec<(i64, i64)>> {
    let merge = |rows: &[GpuRow]| {
        let mut merged: Vec<(i64, i64)> = Vec::new();
        for row in rows {
            match merged.last_mut() {
                Some((_, end)) if row.start <= *end => *end = row.end().max(*end),
                _ => merged.push((row.start, row.end())),
            }
        }
        merged
    };
    gpu.chunk_by(|a, b| a.device == b.device).map(merge).collect()
}

fn overlap(intervals: &[(i64, i64)], from: i64, to: i64) -> u64 {
    let first = intervals.partition_point(|(_, end)| *end <= from);
    let inside = intervals[first..].iter().take_while(|(start, _)| *start < to);
    inside.map(|(start, end)| (*end).min(to).abs_diff((*start).max(from))).sum()
}

fn idle_causes(trace: &Trace, table: IdleTable) -> Vec<IdleCause> {
    table
        .into_cells()
        .map(|((device, label), cell)| IdleCause {
            device,
            cause: label.cause.key().to_owned(),
            name: names::line_text(trace.name(label.name)),
            line: (label.line != NO_NAME).then(|| names::line_text(trace.name(label.line))),
            total_ns: cell.ns,
            count: cell.count,
            steady_ns: cell.steady_ns,
        })
        .collect()
}

/// Adds warnings about what could not be read or is not in the trace.
fn warnings(trace: &Trace, options: &Options, report: &mut TraceReport) {
    let tally = &trace.tally;
    let mut say = |when: bool, what: String| {
        if when {
            report.warnings.push(what);
        }
    };
    let n = units::count;
    let cut = tally.truncated_at.map(|at| format!(" (inside the event at byte {})", n(at))).unwrap_or_default();
    say(
        !tally.closed,
        format!("the file ends before the end of its list of events{cut}: the rest of the trace is missing"),
    );
    let first = tally.first_unreadable.map(|at| format!(", the first at byte {}", n(at))).unwrap_or_default();
    say(tally.unreadable > 0, format!("left out {} places that could not be read{first}", n(tally.unreadable)));
    say(
        tally.recovered > 0,
        format!("{} events have unescaped quotes and were read on a best-effort basis", n(tally.recovered)),
    );
    say(tally.timeless > 0, format!("{} events without a usable time are left out", n(tally.timeless)));
    say(tally.negative > 0, format!("{} events with a negative duration count as 0", n(tally.negative)));
    say(
        tally.dropped > 0,
        format!("dropped {} events beyond the number gpuwhy keeps: figures cover the others", n(tally.dropped)),
    );
    let mut others: Vec<_> = tally.others.iter().collect();
    others.sort_by_key(|(_, count)| Reverse(**count));
    let named = |(name, count): &(&Vec<u8>, &u64)| format!("{} {}", n(**count), units::safe(&json::unescape(name), 40));
    let mut named: Vec<String> = others.iter().take(4).map(named).collect();
    if others.len() > named.len() {
        named.push("…".into());
    }
    say(
        tally.other > 0,
        format!("{} events of categories that gpuwhy does not analyse: {}", n(tally.other), named.join(", ")),
    );
    let no_gpu = report.devices.is_empty();
    match options.device {
        Some(device) => say(no_gpu, format!("this trace has no GPU events of device {device}")),
        None if tally.other > 0 => {
            say(no_gpu, "this trace has no GPU events that gpuwhy analyses (CUDA, ROCm, XPU)".into());
        }
        None => say(
            no_gpu,
            "this trace has no GPU events: it was recorded on the CPU only, or without CUDA activities".into(),
        ),
    }
    say(
        options.quick,
        "--quick: CPU ops and Python functions were not read, so idle time and kernels are not traced back to them"
            .into(),
    );
    let unlinked = report.launches.unlinked;
    say(unlinked > 0, format!("{} GPU events have no launch call in the trace", n(unlinked)));
    let anonymous: u64 = report.graphs.iter().map(|graph| graph.total_ns - graph.attributed_ns).sum();
    say(
        anonymous > 0,
        format!(
            "{} of GPU time ran in CUDA graphs: the trace does not show which op or line it belongs to",
            units::time(anonymous)
        ),
    );
}
