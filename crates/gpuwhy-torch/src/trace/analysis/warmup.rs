// SPDX-License-Identifier: Apache-2.0
//! Finds warm-up: first steps that are slower because of one-time costs.

use super::names::Meaning;
use super::steps::{Found, FoundSteps};
use crate::trace::rows::{Span, Trace};

/// A first step this much slower than the rest is warm-up.
const OUTLIER: f64 = 1.5;
/// With a single step to compare with, it must be this much slower.
const OUTLIER_OF_TWO: f64 = 3.0;
/// A one-time cost of this share of a step makes it warm-up, whatever its duration.
const ONE_TIME_SHARE: f64 = 0.1;
/// Normal variation between steps.
const NOISE_NS: i64 = 1_000_000;

/// One-time costs within a step.
#[derive(Debug, Clone, Copy, Default)]
struct Costs {
    loading: i64,
    autotune: i64,
    allocator: i64,
    profiler: i64,
}

/// For each step, why it is warm-up. Only consecutive first steps can be.
pub(crate) fn recognise(trace: &Trace, meanings: &[Meaning], steps: &FoundSteps) -> Vec<Option<&'static str>> {
    let items = &steps.items;
    let mut reasons = vec![None; items.len()];
    let costs = costs(trace, meanings, items);
    for i in 0..items.len() {
        let rest: Vec<i64> = items[i + 1..].iter().filter(|s| s.complete).map(|s| s.end - s.start).collect();
        let Some(usual) = median(rest.clone()) else { break };
        let duration = items[i].end - items[i].start;
        let factor = if rest.len() == 1 { OUTLIER_OF_TWO } else { OUTLIER };
        let excess = duration - usual;
        let slow = duration as f64 > usual as f64 * factor && excess > NOISE_NS;
        let one_time = costs[i].loading.saturating_add(costs[i].autotune);
        let compiles = one_time as f64 > duration as f64 * ONE_TIME_SHARE && excess > NOISE_NS;
        if !slow && !compiles {
            break;
        }
        reasons[i] = Some(reason(costs[i], excess));
    }
    reasons
}

/// The one-time cost that explains most of the extra time, if it explains a quarter or more.
fn reason(costs: Costs, excess: i64) -> &'static str {
    let named = [
        (costs.loading, "loading"),
        (costs.autotune, "autotune"),
        (costs.allocator, "allocator"),
        (costs.profiler, "profiler"),
    ];
    match named.into_iter().max_by_key(|(ns, _)| *ns) {
        Some((ns, name)) if ns.saturating_mul(4) >= excess => name,
        _ => "outlier",
    }
}

fn costs(trace: &Trace, meanings: &[Meaning], items: &[Found]) -> Vec<Costs> {
    let mut costs = vec![Costs::default(); items.len()];
    let mut add = |start: i64, dur: i64, put: &dyn Fn(&mut Costs, i64)| {
        let after = items.partition_point(|item| item.start <= start);
        if after > 0 && start < items[after - 1].end {
            put(&mut costs[after - 1], dur);
        }
    };
    let meaning = |name: u32| meanings.get(name as usize).copied().unwrap_or_default();
    for call in &trace.rows.calls {
        let meaning = meaning(call.name);
        if meaning.is(Meaning::LOADING) {
            add(call.start, call.dur, &|c, ns| c.loading = c.loading.saturating_add(ns));
        } else if meaning.is(Meaning::ALLOCATOR) {
            add(call.start, call.dur, &|c, ns| c.allocator = c.allocator.saturating_add(ns));
        }
    }
    for cost in &trace.rows.overhead {
        if meaning(cost.name).is(Meaning::LOADING) {
            add(cost.start, cost.dur, &|c, ns| c.loading = c.loading.saturating_add(ns));
        } else {
            add(cost.start, cost.dur, &|c, ns| c.profiler = c.profiler.saturating_add(ns));
        }
    }
    // Compiler frames nest: only the outermost of each thread counts.
    let mut covered = i64::MIN;
    for span in trace.rows.python.iter().chain(&trace.rows.annotations) {
        let meaning = meaning(span.name);
        if !meaning.is(Meaning::LOADING) && !meaning.is(Meaning::AUTOTUNE) || span.start < covered {
            continue;
        }
        covered = span.end();
        if meaning.is(Meaning::AUTOTUNE) {
            add(span.start, span.dur, &|c, ns| c.autotune = c.autotune.saturating_add(ns));
        } else {
            add(span.start, span.dur, &|c, ns| c.loading = c.loading.saturating_add(ns));
        }
    }
    costs
}

/// The median.
pub(crate) fn median(mut values: Vec<i64>) -> Option<i64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}
