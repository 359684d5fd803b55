// SPDX-License-Identifier: Apache-2.0
//! GPU time by kernel, category, op, module and line.

use super::links::{Links, NO_ROW};
use super::rules::{COMMUNICATION, COPIES, FILLS, Rules};
use super::timeline::{ForwardOrigins, Origin};
use crate::trace::intern::{FastMap, NameId};
use crate::trace::report::{FillTotal, KernelTotal, Recompute, Total, TraceReport};
use crate::trace::rows::{GpuKind, GpuRow, NO_NAME, Trace};

/// Most rows of a list that can grow with the job's code.
const MAX_ROWS: usize = 1000;

/// Categories of all GPU events of a trace.
#[derive(Debug)]
pub(crate) struct Categories {
    pub(crate) names: Vec<String>,
    /// For each GPU row.
    pub(crate) of_row: Vec<u16>,
}

impl Categories {
    /// By kernel name, and by op if a rule depends on the op.
    pub(crate) fn new(trace: &Trace, links: &Links, rules: &Rules) -> Self {
        let mut names = vec![COMMUNICATION.to_owned(), COPIES.to_owned(), FILLS.to_owned()];
        let mut known: FastMap<(NameId, NameId), u16> = FastMap::default();
        let mut last = ((NO_NAME, NO_NAME), 0);
        let mut id_of = |category: &str| match names.iter().position(|name| name == category) {
            Some(id) => id as u16,
            None => {
                names.push(category.to_owned());
                names.len() as u16 - 1
            }
        };
        let ops = rules.look_at_ops();
        let of_row = trace.rows.gpu.iter().map(|row| match row.kind {
            GpuKind::Copy => 1,
            GpuKind::Fill => 2,
            GpuKind::Kernel => {
                let op = if ops { links.op(row).map_or(NO_NAME, |op| trace.rows.ops[op].name) } else { NO_NAME };
                let key = (row.name, op);
                if last.0 != key {
                    let of =
                        known.entry(key).or_insert_with(|| id_of(rules.category(trace.name(row.name), trace.name(op))));
                    last = (key, *of);
                }
                last.1
            }
        });
        let of_row = of_row.collect();
        Self { names, of_row }
    }

    /// Whether a row is communication.
    pub(crate) fn is_communication(&self, row: usize) -> bool {
        self.of_row[row] == 0
    }
}

/// Time summed up.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sum {
    pub(crate) ns: u64,
    pub(crate) count: u64,
    pub(crate) steady_ns: u64,
}

impl Sum {
    #[inline]
    pub(crate) fn add(&mut self, row: &GpuRow, steady_from: i64) {
        let ns = row.dur.unsigned_abs();
        // In a forged file, durations of overlapping events can add up to anything.
        self.ns = self.ns.saturating_add(ns);
        self.count += 1;
        self.steady_ns = self.steady_ns.saturating_add(if row.start >= steady_from { ns } else { 0 });
    }
}

/// The inputs of the totals.
pub(crate) struct Attributed<'a> {
    pub(crate) trace: &'a Trace,
    pub(crate) links: &'a Links,
    pub(crate) categories: &'a Categories,
    /// For each call, where it was made from.
    pub(crate) origins: &'a [Origin],
    pub(crate) forward: &'a ForwardOrigins,
    pub(crate) steady_from: i64,
}

impl Attributed<'_> {
    /// Where a GPU event was launched from.
    pub(crate) fn origin(&self, row: usize) -> Origin {
        let call = self.links.call[row];
        let mut origin = if call == NO_ROW { Origin::NOWHERE } else { self.origins[call as usize] };
        if let Some(op) = self.links.op(&self.trace.rows.gpu[row]) {
            origin.op = self.trace.rows.ops[op].name;
        }
        // The backward runs on a thread without Python: its forward, of the same number, knows the line.
        if origin.line == NO_NAME
            && let Some((module, line)) = self.forward.get(&origin.sequence)
        {
            origin = Origin { module: *module, line: *line, ..origin };
        }
        origin
    }
}

/// Fills in kernels, categories, ops, modules, lines, fills and recomputation.
pub(crate) fn totals(from: &Attributed<'_>, report: &mut TraceReport) {
    let names = from.trace.names.len();
    let mut kernels = vec![Sum::default(); names];
    let mut kernel_category = vec![0u16; names];
    let [mut ops, mut modules, mut lines] = [(); 3].map(|()| vec![Sum::default(); names]);
    let mut categories = vec![Sum::default(); from.categories.names.len()];
    let mut fills: FastMap<(NameId, NameId), (Sum, u64)> = FastMap::default();
    let fill_category = from.categories.names.iter().position(|name| name == FILLS);
    let mut again = Sum::default();
    for (index, row) in from.trace.rows.gpu.iter().enumerate() {
        let origin = from.origin(index);
        let category = usize::from(from.categories.of_row[index]);
        categories[category].add(row, from.steady_from);
        for (sums, name) in
            [(&mut kernels, row.name), (&mut ops, origin.op), (&mut modules, origin.module), (&mut lines, origin.line)]
        {
            if let Some(sum) = sums.get_mut(name as usize) {
                sum.add(row, from.steady_from);
            }
        }
        if let Some(slot) = kernel_category.get_mut(row.name as usize) {
            *slot = category as u16;
        }
        if Some(category) == fill_category {
            let dims = from.links.op(row).map_or(NO_NAME, |op| from.trace.rows.ops[op].dims);
            let (sum, bytes) = fills.entry((origin.op, dims)).or_default();
            sum.add(row, from.steady_from);
            *bytes = bytes.saturating_add(row.bytes);
        }
        if origin.recompute {
            again.add(row, from.steady_from);
        }
    }
    report.recompute = Recompute { total_ns: again.ns, count: again.count, steady_ns: again.steady_ns };
    report.kernels = used(&kernels)
        .map(|(id, sum)| KernelTotal {
            name: from.trace.name(id).to_owned(),
            category: from.categories.names[usize::from(kernel_category[id as usize])].clone(),
            total_ns: sum.ns,
            count: sum.count,
            steady_ns: sum.steady_ns,
        })
        .collect();
    let named = |sums: &[Sum], text: &dyn Fn(&str) -> String| -> Vec<Total> {
        used(sums).map(|(id, sum)| total(text(from.trace.name(id)), sum)).collect()
    };
    report.ops = named(&ops, &str::to_owned);
    report.modules = named(&modules, &|name| name.trim_start_matches("nn.Module: ").to_owned());
    report.lines = named(&lines, &super::names::line_text);
    let with_time = categories.iter().enumerate().filter(|(_, sum)| sum.count > 0);
    report.categories = with_time.map(|(id, sum)| total(from.categories.names[id].clone(), *sum)).collect();
    report.fills = fills.into_iter().map(|(key, (sum, bytes))| fill(from.trace, key, sum, bytes)).collect();
}

fn used(sums: &[Sum]) -> impl Iterator<Item = (NameId, Sum)> {
    (0..).zip(sums).filter(|(_, sum)| sum.count > 0).map(|(id, sum)| (id, *sum))
}

fn total(name: String, sum: Sum) -> Total {
    Total { name, total_ns: sum.ns, count: sum.count, steady_ns: sum.steady_ns }
}

fn fill(trace: &Trace, (op, dims): (NameId, NameId), sum: Sum, bytes: u64) -> FillTotal {
    let (op, dims) = (trace.name(op).to_owned(), trace.name(dims).to_owned());
    FillTotal { op, dims, total_ns: sum.ns, count: sum.count, bytes }
}

/// Sorts lists by cost, largest first, and cuts those without a bound.
pub(crate) fn rank(report: &mut TraceReport, by_total: bool) {
    macro_rules! rank {
        ($($list:ident),*) => {$(
            report.$list.sort_by(|a, b| {
                let cost = |x: u64, y: u64| if by_total { x } else { y };
                cost(b.total_ns, b.steady_ns).cmp(&cost(a.total_ns, a.steady_ns))
                    .then(b.total_ns.cmp(&a.total_ns))
                    .then_with(|| a.name.cmp(&b.name))
            });
        )*};
    }
    rank!(categories, kernels, ops, modules, lines, collectives);
    report.idle_causes.sort_by(|a, b| {
        let cost = |c: &crate::trace::report::IdleCause| if by_total { c.total_ns } else { c.steady_ns };
        (cost(b).cmp(&cost(a)).then(b.total_ns.cmp(&a.total_ns)))
            .then_with(|| (&a.cause, &a.name, &a.line, a.device).cmp(&(&b.cause, &b.name, &b.line, b.device)))
    });
    report.fills.sort_by(|a, b| b.total_ns.cmp(&a.total_ns).then_with(|| (&a.op, &a.dims).cmp(&(&b.op, &b.dims))));
    report.copies.sort_by(|a, b| b.total_ns.cmp(&a.total_ns).then_with(|| a.direction.cmp(&b.direction)));
    report.syncs.sort_by(|a, b| b.total_ns.cmp(&a.total_ns).then_with(|| (&a.name, &a.op).cmp(&(&b.name, &b.op))));
    report.graphs.sort_by(|a, b| b.total_ns.cmp(&a.total_ns).then(a.id.cmp(&b.id)));
    report.ops.truncate(MAX_ROWS);
    report.modules.truncate(MAX_ROWS);
    report.lines.truncate(MAX_ROWS);
    report.fills.truncate(MAX_ROWS);
    report.syncs.truncate(MAX_ROWS);
}
