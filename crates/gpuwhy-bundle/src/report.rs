// SPDX-License-Identifier: Apache-2.0
//! The report as `gpuwhy.memory/1` (docs/memory-json.md), whole or without what other files of the bundle contain.

use gpuwhy_memory::Report;
use serde_json::Value;

/// The JSON's name and version.
const SCHEMA: &str = "gpuwhy.memory/1";

/// The report as JSON; `start_monotonic_ns` is the start of the run.
pub fn json(run: &str, start_monotonic_ns: u64, report: &Report) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(report)?;
    if let Some(object) = value.as_object_mut() {
        object.insert("schema".into(), SCHEMA.into());
        object.insert("run".into(), run.into());
        object.insert("start_monotonic_ns".into(), start_monotonic_ns.into());
    }
    Ok(value)
}

/// `stats.json`: the same without the timelines, which are in `timeline.json`.
pub fn stats(run: &str, start_monotonic_ns: u64, report: &Report) -> serde_json::Result<Value> {
    let mut report = report.clone();
    report.spaces.iter_mut().for_each(|space| space.timeline.clear());
    json(run, start_monotonic_ns, &report)
}
