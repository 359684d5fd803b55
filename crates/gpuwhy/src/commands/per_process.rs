// SPDX-License-Identifier: Apache-2.0
//! Calls by process and op, for `gpuwhy explain --per-process`.

use gpuwhy_model::Class;
use gpuwhy_store::{OpTotals, Reader};
use gpuwhy_view::ProcessCalls;
use gpuwhy_view::per_process::OpCalls;
use gpuwhy_why::Report;
use std::collections::BTreeMap;

/// Sums of one op: its functions together, each with its class.
#[derive(Default)]
struct Sums {
    totals: OpTotals,
    allocated: u64,
    freed: u64,
    moved: u64,
}

/// CUDA calls of the report's processes that ended in its span; processes with most time in calls first.
pub(super) fn read(reader: &Reader, report: &Report) -> gpuwhy_store::Result<Vec<ProcessCalls>> {
    let mut processes: BTreeMap<u32, BTreeMap<String, Sums>> = BTreeMap::new();
    for row in reader.op_totals_by_process(report.from_ns, Some(report.to_ns))? {
        let known = row.id.and_then(gpuwhy_model::OpId::get);
        if !report.processes.iter().any(|process| process.pid == row.pid) {
            continue;
        }
        let sums = processes.entry(row.pid).or_default().entry(row.op).or_default();
        sums.totals.merge(&row.totals);
        match known.map(|op| op.class) {
            Some(Class::Alloc) => sums.allocated += row.totals.bytes,
            Some(Class::Free) => sums.freed += row.totals.bytes,
            Some(Class::Copy | Class::Fill) => sums.moved += row.totals.bytes,
            _ => {}
        }
    }
    let name = |pid: u32| {
        let known = report.processes.iter().find(|process| process.pid == pid);
        known.map_or_else(|| format!("pid {pid}"), |process| process.name.clone())
    };
    let mut list: Vec<ProcessCalls> = processes
        .into_iter()
        .map(|(pid, ops)| ProcessCalls::new(pid, name(pid), ops.into_iter().map(calls).collect()))
        .collect();
    let total = |process: &ProcessCalls| process.ops.iter().map(|op| op.total_ns).sum::<u64>();
    list.sort_by_key(|process| (std::cmp::Reverse(total(process)), process.pid));
    Ok(list)
}

fn calls((op, sums): (String, Sums)) -> OpCalls {
    let Sums { totals, allocated, freed, moved } = sums;
    let quantile = |q| totals.histogram.quantile(q).unwrap_or(0).min(totals.max_ns);
    OpCalls {
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
        warnings: Vec::new(),
    }
}
