// SPDX-License-Identifier: Apache-2.0
//! Each process's calls, op by op, with warnings: for `gpuwhy explain --per-process` and MCP.

use crate::Result;
use gpuwhy_model::sample::ProcessSample;
use gpuwhy_model::{Class, OpId, Rates};
use gpuwhy_store::{OpTotals, Reader};
use gpuwhy_why::Report;
use gpuwhy_why::process_calls::{Circumstances, OpCalls, ProcessCalls};
use std::collections::BTreeMap;

/// Sums of one op over its functions.
#[derive(Default)]
struct Sums {
    class: Option<Class>,
    totals: OpTotals,
    rates: Rates,
    allocated: u64,
    freed: u64,
    moved: u64,
}

/// CUDA calls of a report's processes that ended in its time range; processes with most time in calls first.
pub fn process_calls(reader: &Reader, report: &Report) -> Result<Vec<ProcessCalls>> {
    let mut processes: BTreeMap<u32, BTreeMap<String, Sums>> = BTreeMap::new();
    let names: BTreeMap<u32, &str> = report.processes.iter().map(|one| (one.pid, one.name.as_str())).collect();
    for row in reader.op_totals_by_process(report.from_ns, Some(report.to_ns))? {
        if !names.contains_key(&row.pid) {
            continue;
        }
        let sums = processes.entry(row.pid).or_default().entry(row.op).or_default();
        sums.totals.merge(&row.totals);
        sums.rates.merge(&row.rates);
        sums.class = row.id.and_then(OpId::get).map(|op| op.class).or(sums.class);
        match sums.class {
            Some(Class::Alloc) => sums.allocated += row.totals.bytes,
            Some(Class::Free) => sums.freed += row.totals.bytes,
            Some(Class::Copy | Class::Fill) => sums.moved += row.totals.bytes,
            _ => {}
        }
    }
    let samples = reader.process_samples(report.from_ns, report.to_ns)?;
    let mut list: Vec<ProcessCalls> = processes
        .into_iter()
        .map(|(pid, ops)| {
            let ops = ops.into_iter().map(op_calls).collect();
            let name = names.get(&pid).copied().unwrap_or_default().to_owned();
            ProcessCalls::new(pid, name, ops, &circumstances(pid, &samples, report))
        })
        .collect();
    let total = |process: &ProcessCalls| process.ops.iter().map(|op| op.total_ns).sum::<u64>();
    list.sort_by_key(|process| (std::cmp::Reverse(total(process)), process.pid));
    Ok(list)
}

fn op_calls((op, sums): (String, Sums)) -> OpCalls {
    let Sums { class, totals, rates, allocated, freed, moved } = sums;
    let quantile = |q| totals.histogram.quantile(q).unwrap_or(0).min(totals.max_ns);
    let calls = OpCalls {
        op,
        calls: totals.calls,
        errors: totals.errors,
        p50_ns: quantile(0.5),
        p99_ns: quantile(0.99),
        max_ns: totals.max_ns,
        total_ns: totals.total_ns,
        allocated_bytes: allocated,
        freed_bytes: freed,
        moved_bytes: moved,
        ..OpCalls::default()
    };
    calls.finish(class, rates.course())
}

fn circumstances(pid: u32, samples: &[ProcessSample], report: &Report) -> Circumstances {
    let own = || samples.iter().filter(|sample| sample.pid == pid);
    let sum = |of: fn(&ProcessSample) -> u64| own().map(of).fold(0, u64::saturating_add);
    let known = Circumstances {
        swapped: own().filter_map(|sample| sample.swapped).max().unwrap_or(0),
        major_faults: (sum(|sample| sample.major_faults), sum(|sample| sample.span_ns)),
        leaks: report
            .findings
            .iter()
            .filter(|found| found.kind == "memory_leak" && found.pid == Some(pid))
            .map(|found| found.headline())
            .collect(),
        ..Circumstances::default()
    };
    let threads = report.threads.iter().filter(|thread| thread.pid == pid);
    known.with_thread(threads.max_by_key(|thread| thread.launches))
}
