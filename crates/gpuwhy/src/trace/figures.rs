// SPDX-License-Identifier: Apache-2.0
//! Turns the writer's sums into the rows of the op table.

use crate::trace::writer::Snapshot;
use gpuwhy_model::OpId;
use gpuwhy_store::OpTotals;
use gpuwhy_view::{OpRow, OpsTable};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Keeps the previous counts, for rates.
#[derive(Default)]
pub(crate) struct Figures {
    last_calls: HashMap<String, u64>,
    last_at: Duration,
}

impl Figures {
    /// The table as of the snapshot, functions of one op merged. `lost`: events that never reached the writer, by function.
    /// Events not yet in the file for other reasons count as lost, too, until they are.
    pub(crate) fn table(&mut self, snapshot: &Snapshot, lost: &HashMap<OpId, u64>) -> OpsTable {
        let elapsed = snapshot.elapsed;
        let mut by_op: BTreeMap<(&str, bool), (OpTotals, u64)> = BTreeMap::new();
        let name = |id: OpId| (id.get().map_or("unknown", |op| op.name.as_str()), !id.is_cuda());
        for (id, totals) in &snapshot.totals {
            by_op.entry(name(*id)).or_default().0.merge(totals);
        }
        for (id, count) in lost.iter().chain(&snapshot.missing.lost).chain(&snapshot.missing.waiting) {
            by_op.entry(name(*id)).or_default().1 += count;
        }
        let since = elapsed.saturating_sub(self.last_at).as_secs_f64();
        let mut table = OpsTable::default();
        for ((op, host), (totals, lost)) in by_op {
            let before = self.last_calls.insert(op.to_owned(), totals.calls).unwrap_or(0);
            let rate = if since > 0.0 { totals.calls.saturating_sub(before) as f64 / since } else { 0.0 };
            table.rows.push(OpRow { host, ..row(op, &totals, lost, rate, elapsed) });
        }
        self.last_at = elapsed;
        table.sort();
        table
    }

    /// The table at the end: rates are over the whole run.
    pub(crate) fn final_table(snapshot: &Snapshot, lost: &HashMap<OpId, u64>) -> OpsTable {
        Self::default().table(snapshot, lost)
    }
}

fn row(op: &str, totals: &OpTotals, lost: u64, per_second: f64, elapsed: Duration) -> OpRow {
    let quantile = |q| totals.histogram.quantile(q).unwrap_or(0).min(totals.max_ns);
    OpRow {
        op: op.to_owned(),
        calls: totals.calls,
        per_second,
        errors: totals.errors,
        p50_ns: quantile(0.5),
        p95_ns: quantile(0.95),
        p99_ns: quantile(0.99),
        max_ns: totals.max_ns,
        total_ns: totals.total_ns,
        share: totals.total_ns as f64 / (elapsed.as_nanos() as f64).max(1.0),
        bytes: totals.bytes,
        lost,
        host: false,
    }
}
