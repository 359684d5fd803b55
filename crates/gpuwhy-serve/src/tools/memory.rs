// SPDX-License-Identifier: Apache-2.0
//! `get_memory`: what uses GPU memory, and the problems found.

use super::page::{Answer, Page, Paging, pop, pop_counting};
use super::place::{RunHead, Where};
use super::{Asked, Finding};
use crate::error::ToolError;
use crate::text::{LONG, NOTICE, clean};
use gpuwhy_ask::memory::Report;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The arguments.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Arguments {
    #[serde(flatten)]
    place: Where,
    /// What entries contain (default: leaks)
    #[serde(default)]
    section: Section,
    #[serde(flatten)]
    paging: Paging,
}

/// What entries contain.
#[derive(Debug, Clone, Copy, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Section {
    /// Lines that leak, then lines that grew but do not leak
    #[default]
    Leaks,
    /// Memory in use at the peak, by line
    AtPeak,
    /// Memory in use at the end, by line
    AtEnd,
    /// Allocated and reserved over time
    Timeline,
    /// What was taken from the driver, and how much of it was used
    Fragmentation,
    /// What the device reports as used beyond what the job took
    Gap,
    /// Each time memory ran out, and processes ended by a signal
    Oom,
    /// Alerts raised while the run was recorded
    Alerts,
}

/// The answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Memory {
    #[serde(flatten)]
    head: RunHead,
    /// The answer in one or two sentences
    verdict: String,
    /// Memory by process and device, largest first
    spaces: Vec<Space>,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    more_spaces: usize,
    /// Problems, worst first
    findings: Vec<Finding>,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    more_findings: usize,
    section: Section,
    /// Objects as in gpuwhy.memory/1 (docs/memory-json.md); sizes in bytes, times in ns from the start of the run
    entries: Vec<serde_json::Map<String, Value>>,
    #[serde(flatten)]
    page: Page,
    /// What cannot be known, and why
    unknown: Vec<String>,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    more_unknown: usize,
    /// How to get what was left out
    #[serde(skip_serializing_if = "Option::is_none")]
    more: Option<&'static str>,
    note: &'static str,
}

/// Shown if something was left out.
const MORE: &str =
    "limit=50 adds what more_spaces, more_findings, more_fixes, more_links, more_at_peak and more_unknown count";

/// Memory of one process on one device.
#[derive(Debug, Serialize, JsonSchema)]
struct Space {
    pid: u32,
    name: String,
    device: Option<u32>,
    /// torch: tensors of PyTorch's allocator; driver: direct CUDA calls
    source: String,
    /// In use, and taken from the driver, when the process ended (ended_ns), otherwise at the end of the recording
    allocated: u64,
    reserved: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(default)]
    ended_ns: Option<u64>,
    /// In use at the last sample of growth by line: leaks refer to this time
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(default)]
    allocated_at_last_look: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(default)]
    last_look_ns: Option<u64>,
    /// The exact peak in use, and when
    peak_allocated: u64,
    peak_allocated_at_ns: u64,
    /// Allocated before the recording
    preexisting: u64,
    /// Lines that held the most at the peak
    at_peak: Vec<String>,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    more_at_peak: usize,
}

impl Space {
    /// Leaves out the line that held least at the peak.
    fn shorten(&mut self) -> bool {
        let popped = self.at_peak.pop().is_some();
        self.more_at_peak += usize::from(popped);
        popped
    }
}

impl Answer for Memory {
    fn shorten(&mut self) -> bool {
        // Findings describe the leaks that entries give in numbers.
        let shortened = pop(&mut self.entries)
            || self.spaces.len() > 2 && pop_counting(&mut self.spaces, &mut self.more_spaces)
            || self.findings.iter_mut().skip(1).rev().any(Finding::brief)
            || pop_counting(&mut self.findings, &mut self.more_findings)
            || self.spaces.iter_mut().rev().any(Space::shorten)
            || pop_counting(&mut self.unknown, &mut self.more_unknown)
            || self.entries.last_mut().is_some_and(trim);
        let at_peak: usize = self.spaces.iter().map(|space| space.more_at_peak).sum();
        let more = self.more_spaces + self.more_findings + self.more_unknown + at_peak > 0;
        self.more = (more || self.findings.iter().any(Finding::has_more)).then_some(MORE);
        shortened
    }

    fn page(&mut self) -> Option<(&mut Page, usize)> {
        Some((&mut self.page, self.entries.len()))
    }
}

pub(crate) fn answer(asked: &Asked<'_>, arguments: Arguments) -> Result<Memory, ToolError> {
    let run = asked.runs.get(arguments.place.run.as_deref())?;
    let examined = run.examined(&arguments.place.part()?, asked.work)?;
    let report = &examined.report;
    let (entries, page) = arguments.paging.cut(entries(report, arguments.section)?, 20, Some(&run))?;
    let spaces = report.spaces.iter().map(|space| Space {
        pid: space.pid,
        name: clean(&space.name, 40),
        device: space.device,
        source: format!("{:?}", space.source).to_ascii_lowercase(),
        allocated: space.allocated,
        reserved: space.reserved,
        ended_ns: space.ended_ns,
        allocated_at_last_look: space.last_look.map(|look| look.allocated),
        last_look_ns: space.last_look.map(|look| look.at_ns),
        peak_allocated: space.peak_allocated,
        peak_allocated_at_ns: space.peak_allocated_at_ns,
        preexisting: space.preexisting,
        at_peak: space.at_peak.iter().take(3).map(holder).collect(),
        more_at_peak: 0,
    });
    Ok(Memory {
        head: RunHead::of(&run, &examined.session),
        verdict: clean(&report.verdict, 420),
        spaces: spaces.collect(),
        more_spaces: 0,
        findings: report.findings.iter().map(|found| Finding::new(found, false)).collect(),
        more_findings: 0,
        section: arguments.section,
        entries,
        page,
        unknown: report.notes.iter().map(|note| clean(note, 200)).collect(),
        more_unknown: 0,
        more: None,
        note: NOTICE,
    })
}

fn holder(holder: &gpuwhy_ask::memory::Holder) -> String {
    let line = holder.line.as_deref().unwrap_or("no Python line");
    clean(&format!("{line}: {} in {}", gpuwhy_model::units::bytes(holder.bytes), holder.count), 100)
}

/// The entries of a section, as the JSON of `gpuwhy memory` has them.
fn entries(report: &Report, section: Section) -> Result<Vec<serde_json::Map<String, Value>>, ToolError> {
    let first = report.spaces.first();
    let json = match section {
        Section::Leaks => [serde_json::to_value(&report.leaks), serde_json::to_value(&report.growths)],
        Section::AtPeak => [serde_json::to_value(first.map(|space| &space.at_peak)), Ok(Value::Null)],
        Section::AtEnd => [serde_json::to_value(first.map(|space| &space.at_end)), Ok(Value::Null)],
        Section::Timeline => [serde_json::to_value(first.map(|space| &space.timeline)), Ok(Value::Null)],
        Section::Fragmentation => [serde_json::to_value(&report.fragmentation), Ok(Value::Null)],
        Section::Gap => [serde_json::to_value(&report.gaps), Ok(Value::Null)],
        Section::Oom => [serde_json::to_value(&report.ooms), serde_json::to_value(&report.ends)],
        Section::Alerts => [serde_json::to_value(&report.alerts), Ok(Value::Null)],
    };
    let mut entries = Vec::new();
    for list in json {
        let list = list.map_err(|wrong| ToolError::Fault(wrong.to_string()))?;
        if let Value::Array(list) = list {
            entries.extend(list.into_iter().filter_map(|entry| match cleaned(entry) {
                Value::Object(entry) => Some(entry),
                _ => None,
            }));
        }
    }
    Ok(entries)
}

/// Halves the longest list in an entry.
fn trim(entry: &mut serde_json::Map<String, Value>) -> bool {
    let lists = entry.values_mut().filter_map(Value::as_array_mut);
    match lists.max_by_key(|list| list.len()).filter(|list| !list.is_empty()) {
        Some(list) => {
            list.truncate(list.len() / 2);
            true
        }
        None => false,
    }
}

/// Cleans and cuts every text, and drops nulls.
fn cleaned(value: Value) -> Value {
    match value {
        Value::String(text) => clean(&text, LONG).into(),
        Value::Array(list) => list.into_iter().map(cleaned).collect(),
        Value::Object(object) => {
            let kept = object.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, cleaned(value))).collect())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn lines_at_the_peak_that_are_left_out_are_counted() {
        let space = |pid| Space {
            pid,
            name: "python3 train.py".into(),
            device: Some(0),
            source: "torch".into(),
            allocated: 1 << 30,
            reserved: 2 << 30,
            ended_ns: None,
            allocated_at_last_look: None,
            last_look_ns: None,
            peak_allocated: 1 << 30,
            peak_allocated_at_ns: 5_000_000_000,
            preexisting: 0,
            at_peak: (0..3).map(|i| format!("train.py:{i}: 300 MB in 12")).collect(),
            more_at_peak: 0,
        };
        let memory = Memory {
            head: RunHead::new(Path::new("run.db"), &Default::default(), false),
            verdict: "No leak was found".into(),
            spaces: vec![space(1), space(2)],
            more_spaces: 0,
            findings: Vec::new(),
            more_findings: 0,
            section: Section::Leaks,
            entries: Vec::new(),
            page: Page::default(),
            unknown: Vec::new(),
            more_unknown: 0,
            more: None,
            note: NOTICE,
        };
        let value = crate::tools::page::fit(memory, 1_500).unwrap();
        for space in value["spaces"].as_array().unwrap() {
            let left = space["at_peak"].as_array().unwrap().len() as u64;
            assert_eq!(left + space["more_at_peak"].as_u64().unwrap_or(0), 3, "{value}");
        }
        assert_eq!(value["more"], MORE);
    }
}
