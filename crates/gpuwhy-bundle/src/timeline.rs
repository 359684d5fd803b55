// SPDX-License-Identifier: Apache-2.0
//! `timeline.json`: memory over time by line, and when what happened. The picture and the page show the same.

use gpuwhy_memory::Report;
use gpuwhy_memory::report::{LiveLine, LivePoint, Source, SpaceReport, TimelinePoint};
use gpuwhy_model::{Finding, Fix, units};
use serde::Serialize;
use std::io::{self, Write};

/// The file's name and version.
const SCHEMA: &str = "gpuwhy.memory-timeline/1";

/// The file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timeline {
    /// `gpuwhy.memory-timeline/1`.
    pub schema: &'static str,
    /// The run file.
    pub run: String,
    /// The start of the run on `CLOCK_MONOTONIC`.
    pub start_monotonic_ns: u64,
    /// The start on the wall clock, Unix nanoseconds.
    pub start_unix_ns: u64,
    /// Start of the time range.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// The answer in words.
    pub verdict: String,
    /// Findings, worst first.
    pub findings: Vec<Advice>,
    /// Memory of each process on each device, most first.
    pub spaces: Vec<SpaceTimeline>,
}

/// A finding in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// `critical`, `high`, `medium`, `low` or `info`.
    pub severity: String,
    /// Title and cost.
    pub title: String,
    /// Fixes, the one that saves most first.
    pub fixes: Vec<String>,
}

impl Advice {
    fn new(finding: &Finding) -> Self {
        let mut fixes: Vec<&Fix> = finding.fixes.iter().collect();
        fixes.sort_by_key(|fix| std::cmp::Reverse((fix.saves_bytes, fix.saves_ns)));
        Self {
            severity: finding.severity.label().to_ascii_lowercase(),
            title: finding.headline(),
            fixes: fixes.into_iter().map(|fix| fix.text.clone()).collect(),
        }
    }
}

/// Memory of one process on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpaceTimeline {
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// CUDA's device number.
    pub device: Option<u32>,
    /// PyTorch's allocator or the driver.
    pub source: Source,
    /// The device's size, if NVML reports it.
    pub device_total: Option<u64>,
    /// What happened, by time.
    pub marks: Vec<Mark>,
    /// The lines that the points refer to.
    pub lines: Vec<LiveLine>,
    /// The time slices.
    pub points: Vec<Point>,
}

/// A time slice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// How much memory.
    #[serde(flatten)]
    pub memory: TimelinePoint,
    /// Which lines held it.
    #[serde(flatten)]
    pub live: LivePoint,
}

/// A marked time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mark {
    /// When.
    pub at_ns: u64,
    /// `peak`, `leak` (its onset), `oom` or `end` (by a signal).
    pub kind: &'static str,
    /// Bytes in use then, if known.
    pub bytes: Option<u64>,
    /// Its label.
    pub text: String,
}

impl Timeline {
    /// From a detailed report.
    pub fn new(run: &crate::Run, report: &Report) -> Self {
        Self {
            schema: SCHEMA,
            run: run.file.clone(),
            start_monotonic_ns: run.start_monotonic_ns,
            start_unix_ns: run.start_unix_ns,
            from_ns: report.from_ns,
            to_ns: report.to_ns,
            verdict: report.verdict.clone(),
            findings: report.findings.iter().map(Advice::new).collect(),
            spaces: report.spaces.iter().map(|space| space_timeline(space, report)).collect(),
        }
    }

    /// Writes it with a line for each point.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let text = |value: &dyn erased::Json| value.json();
        write!(out, "{{\"schema\": {}", text(&self.schema)?)?;
        write!(out, ",\n\"run\": {}", text(&self.run)?)?;
        write!(out, ",\n\"start_monotonic_ns\": {}", self.start_monotonic_ns)?;
        write!(out, ",\n\"start_unix_ns\": {}", self.start_unix_ns)?;
        write!(out, ",\n\"from_ns\": {},\n\"to_ns\": {}", self.from_ns, self.to_ns)?;
        write!(out, ",\n\"verdict\": {},\n\"findings\": {}", text(&self.verdict)?, text(&self.findings)?)?;
        write!(out, ",\n\"spaces\": [")?;
        for (number, space) in self.spaces.iter().enumerate() {
            let SpaceTimeline { pid, name, device, source, device_total, marks, lines, points } = space;
            write!(out, "{}\n{{\"pid\": {pid}", if number > 0 { "," } else { "" })?;
            write!(out, ", \"name\": {}, \"device\": {}", text(name)?, text(device)?)?;
            write!(out, ", \"source\": {}, \"device_total\": {}", text(source)?, text(device_total)?)?;
            write!(out, ",\n\"marks\": {},\n\"lines\": {},\n\"points\": [", text(marks)?, text(lines)?)?;
            for (number, point) in points.iter().enumerate() {
                write!(out, "{}\n{}", if number > 0 { "," } else { "" }, text(point)?)?;
            }
            write!(out, "\n]}}")?;
        }
        writeln!(out, "\n]}}")
    }
}

/// Any value as JSON.
mod erased {
    pub(super) trait Json {
        fn json(&self) -> std::io::Result<String>;
    }

    impl<T: serde::Serialize> Json for T {
        fn json(&self) -> std::io::Result<String> {
            Ok(serde_json::to_string(self)?)
        }
    }
}

fn space_timeline(space: &SpaceReport, report: &Report) -> SpaceTimeline {
    let live = space.live.clone().unwrap_or_default();
    let mut held = live.points.into_iter();
    let point = |memory: &TimelinePoint| Point { memory: *memory, live: held.next().unwrap_or_default() };
    SpaceTimeline {
        pid: space.pid,
        name: space.name.clone(),
        device: space.device,
        source: space.source,
        device_total: live.device_total,
        marks: marks(space, report),
        lines: live.lines,
        points: space.timeline.iter().map(point).collect(),
    }
}

fn marks(space: &SpaceReport, report: &Report) -> Vec<Mark> {
    let mut marks = Vec::new();
    if space.peak_allocated > 0 {
        let text = format!("peak: {} in use", units::bytes(space.peak_allocated));
        marks.push(Mark { at_ns: space.peak_allocated_at_ns, kind: "peak", bytes: Some(space.peak_allocated), text });
    }
    // A leak or refusal has a process and a device, but no source: it belongs to the first space.
    let mine = |other: &&SpaceReport| (other.pid, other.device) == (space.pid, space.device);
    let first = report.spaces.iter().find(mine).is_some_and(|first| first.source == space.source);
    for leak in report.leaks.iter().filter(|leak| first && (leak.pid, leak.device) == (space.pid, space.device)) {
        let line = leak.line.as_deref().unwrap_or("code without a Python line");
        let rate = match leak.bytes_per_step {
            Some(bytes) => format!("{} a step", units::bytes(bytes.round() as u64)),
            None => format!("{} a second", units::bytes(leak.bytes_per_second.round() as u64)),
        };
        let text = format!("leak starts: {line} keeps {rate}");
        marks.push(Mark { at_ns: leak.onset_ns, kind: "leak", bytes: None, text });
    }
    for oom in report.ooms.iter().filter(|oom| first && (oom.pid, oom.device) == (space.pid, space.device)) {
        let line = oom.line.as_deref().unwrap_or("code without a Python line");
        let text = format!("out of memory: {line} asked for {}", units::bytes(oom.asked));
        marks.push(Mark { at_ns: oom.at_ns, kind: "oom", bytes: Some(oom.allocated), text });
    }
    for end in report.ends.iter().filter(|end| end.pid == space.pid) {
        let why = if end.oom_killed { ": main memory ran out" } else { "" };
        let text = format!("ended by signal {}{why}", end.signal);
        marks.push(Mark { at_ns: end.at_ns, kind: "end", bytes: None, text });
    }
    marks.sort_by_key(|mark| mark.at_ns);
    marks
}
