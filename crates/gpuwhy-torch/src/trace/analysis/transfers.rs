// SPDX-License-Identifier: Apache-2.0
//! Copies, collectives and CUDA graphs.

use super::links::NO_ROW;
use super::totals::{Attributed, Sum};
use crate::trace::report::{CollectiveTotal, CopyTotal, GraphTotal, TraceReport};
use crate::trace::rows::{CommRow, GpuKind, NO_NAME, NONE};
use std::collections::{BTreeMap, HashMap};

/// Fills in copies.
pub(crate) fn copies(from: &Attributed<'_>, report: &mut TraceReport) {
    let mut by_direction: BTreeMap<&'static str, CopyTotal> = BTreeMap::new();
    for row in from.trace.rows.gpu.iter().filter(|row| row.kind == GpuKind::Copy) {
        let name = from.trace.name(row.name);
        let direction = direction(name);
        let copy = by_direction.entry(direction).or_default();
        let ns = row.dur.unsigned_abs();
        copy.bytes = copy.bytes.saturating_add(row.bytes);
        copy.total_ns = copy.total_ns.saturating_add(ns);
        copy.count += 1;
        let steady_ns = if row.start >= from.steady_from { ns } else { 0 };
        copy.steady_ns = copy.steady_ns.saturating_add(steady_ns);
        if name.contains("Pageable") {
            copy.pageable_bytes = copy.pageable_bytes.saturating_add(row.bytes);
            copy.pageable_ns = copy.pageable_ns.saturating_add(ns);
            copy.pageable_steady_ns = copy.pageable_steady_ns.saturating_add(steady_ns);
            copy.pageable_count += 1;
        }
    }
    report.copies = by_direction
        .into_iter()
        .map(|(direction, mut copy)| {
            copy.direction = direction.to_owned();
            copy.bytes_per_s = rate(copy.bytes, copy.total_ns);
            copy
        })
        .collect();
}

/// Bytes per second.
pub(crate) fn rate(bytes: u64, ns: u64) -> Option<u64> {
    (bytes > 0 && ns > 0).then(|| u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(ns)).unwrap_or(u64::MAX))
}

fn direction(name: &str) -> &'static str {
    const KNOWN: [(&str, &str); 9] = [
        ("HtoD", "HtoD"),
        ("DtoH", "DtoH"),
        ("DtoD", "DtoD"),
        ("PtoP", "PtoP"),
        ("HtoH", "HtoH"),
        ("HostToDevice", "HtoD"),
        ("DeviceToHost", "DtoH"),
        ("DeviceToDevice", "DtoD"),
        ("HostToHost", "HtoH"),
    ];
    KNOWN.iter().find(|(word, _)| name.contains(word)).map_or("other", |(_, direction)| direction)
}

/// Fills in collectives.
pub(crate) fn collectives(from: &Attributed<'_>, report: &mut TraceReport) {
    let comms = &from.trace.rows.comms;
    let by_kernel: HashMap<u64, &CommRow> =
        comms.iter().filter(|c| c.correlation != NONE).map(|c| (c.correlation, c)).collect();
    let by_op: HashMap<u64, &CommRow> =
        comms.iter().filter(|c| c.correlation == NONE && c.external != NONE).map(|c| (c.external, c)).collect();
    let mut found: BTreeMap<(String, u32, String), (Sum, u64)> = BTreeMap::new();
    for (index, row) in from.trace.rows.gpu.iter().enumerate() {
        if row.kind != GpuKind::Kernel || !from.categories.is_communication(index) {
            continue;
        }
        let comm = by_kernel.get(&row.correlation).or_else(|| by_op.get(&row.external));
        let (name, group, dtype, bytes) = match comm {
            Some(comm) => {
                let dtype = from.trace.name(comm.dtype);
                let bytes = comm.elements.saturating_mul(element_bytes(dtype));
                (from.trace.name(comm.name).to_owned(), comm.group_size, dtype.to_owned(), bytes)
            }
            None => (collective(from.trace.name(row.name)).to_owned(), 0, String::new(), 0),
        };
        let (sum, total) = found.entry((name, group, dtype)).or_default();
        sum.add(row, from.steady_from);
        *total = total.saturating_add(bytes);
    }
    report.collectives = found
        .into_iter()
        .map(|((name, group_size, dtype), (sum, bytes))| CollectiveTotal {
            name,
            group_size,
            dtype,
            bytes,
            total_ns: sum.ns,
            count: sum.count,
            steady_ns: sum.steady_ns,
        })
        .collect();
}

/// The collective named by a kernel.
fn collective(kernel: &str) -> &'static str {
    const KNOWN: [(&str, &str); 9] = [
        ("allreduce", "allreduce"),
        ("reducescatter", "reduce_scatter"),
        ("allgather", "allgather"),
        ("alltoall", "alltoall"),
        ("sendrecv", "send_recv"),
        ("broadcast", "broadcast"),
        ("bcast", "broadcast"),
        ("gather", "gather"),
        ("reduce", "reduce"),
    ];
    let plain = kernel.to_lowercase().replace('_', "");
    KNOWN.iter().find(|(word, _)| plain.contains(word)).map_or("other", |(_, name)| name)
}

fn element_bytes(dtype: &str) -> u64 {
    match dtype.to_lowercase().trim_start_matches("c10::") {
        "double" | "long" | "long int" | "int64" | "float64" | "complexfloat" => 8,
        "float" | "int" | "int32" | "float32" => 4,
        "half" | "bfloat16" | "short" | "float16" => 2,
        "byte" | "char" | "bool" | "int8" | "uint8" => 1,
        name if name.starts_with("float8") => 1,
        _ => 0,
    }
}

/// Fills in CUDA graphs: by the id the trace gives, or the launching call's name.
pub(crate) fn graphs(from: &Attributed<'_>, report: &mut TraceReport) {
    let rows = &from.trace.rows;
    let launches_graph =
        |call: u32| call != NO_ROW && from.trace.name(rows.calls[call as usize].name).contains("GraphLaunch");
    let mut found: BTreeMap<u32, (GraphTotal, Option<u32>)> = BTreeMap::new();
    for (index, row) in rows.gpu.iter().enumerate() {
        let call = from.links.call[index];
        if row.graph == 0 && !launches_graph(call) {
            continue;
        }
        let (graph, last) = found.entry(row.graph).or_default();
        graph.id = row.graph;
        graph.kernels += 1;
        let ns = row.dur.unsigned_abs();
        graph.total_ns = graph.total_ns.saturating_add(ns);
        let attributed = if from.origin(index).op == NO_NAME { 0 } else { ns };
        graph.attributed_ns = graph.attributed_ns.saturating_add(attributed);
        // A replay's kernels follow each other and share their launch.
        graph.launches += u64::from(*last != Some(call) && call != NO_ROW);
        *last = Some(call);
    }
    report.graphs = found.into_values().map(|(graph, _)| graph).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_vendors() {
        assert_eq!(direction("Memcpy HtoD (Pageable -> Device)"), "HtoD");
        assert_eq!(direction("CopyDeviceToHost"), "DtoH");
        assert_eq!(direction("Memcpy"), "other");
        assert_eq!(collective("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL"), "reduce_scatter");
        assert_eq!(collective("ncclKernel_AllReduce_RING_LL_Sum_float"), "allreduce");
        assert_eq!(element_bytes("BFloat16"), 2);
        assert_eq!(rate(10, 0), None);
        assert_eq!(rate(u64::MAX, 1), Some(u64::MAX));
    }
}
