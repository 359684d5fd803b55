// SPDX-License-Identifier: Apache-2.0
//! Which lines made the calls: the figures of each group and its frames. The same data is the JSON of
//! `gpuwhy stacks --json` (docs/stacks-json.md).

use crate::paths::ShortPaths;
use crate::style::Style;
use gpuwhy_model::units;
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

/// Innermost frames of a long stack that are always shown.
const INNERMOST: usize = 6;
/// The least width of the function column, so that the marks of most stacks line up.
const FUNCTION_WIDTH: usize = 29;
/// No name is longer than this on a screen.
const NAME: usize = 120;
/// Processes, ops and waits named for each group.
const NAMED: usize = 3;

/// The whole report.
#[derive(Debug, Clone, Serialize)]
pub struct StacksReport {
    /// The format of the JSON.
    pub schema: &'static str,
    /// The run file.
    pub run: String,
    /// The op; `None` for all CUDA calls.
    pub op: Option<String>,
    /// How calls are grouped: `stack`, `line`, `function` or `library`.
    pub by: String,
    /// What they are sorted by.
    pub sort: String,
    /// What is counted.
    pub unit: CountedUnit,
    /// The start of the time range, nanoseconds since the run began.
    pub from_ns: Option<u64>,
    /// The end of the time range.
    pub to_ns: Option<u64>,
    /// The number of calls.
    pub calls: u64,
    /// Their time.
    pub total_ns: u64,
    /// How many of them have a stack.
    pub with_stack: u64,
    /// The calls without a stack.
    pub without_stack: Option<GroupView>,
    /// A remark about the whole answer.
    pub note: Option<String>,
    /// The groups, largest first.
    pub groups: Vec<GroupView>,
    /// The groups left out.
    pub more: MoreGroups,
}

/// Groups left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MoreGroups {
    /// How many.
    pub groups: usize,
    /// Calls in them.
    pub calls: u64,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CountedUnit {
    /// Calls of a function.
    Calls,
    /// Samples of running threads.
    Samples,
    /// Times off the CPU.
    OffCpu,
    /// Anything else.
    Events,
}

impl CountedUnit {
    fn of(self, n: u64) -> String {
        let name = match (self, n) {
            (Self::Calls, 1) => "call",
            (Self::Calls, _) => "calls",
            (Self::Samples, 1) => "sample",
            (Self::Samples, _) => "samples",
            (Self::OffCpu, 1) => "time off CPU",
            (Self::OffCpu, _) => "times off CPU",
            (Self::Events, 1) => "event",
            (Self::Events, _) => "events",
        };
        format!("{} {name}", units::count(n))
    }
}

/// A group.
#[derive(Debug, Clone, Default, Serialize)]
pub struct GroupView {
    /// The line, function or library; of a stack, its `top_line`. `None` if unknown.
    pub name: Option<String>,
    /// How many.
    pub calls: u64,
    /// Their time.
    pub total_ns: u64,
    /// Its average.
    pub avg_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their processes, the one with most time first.
    pub pids: Vec<ProcessView>,
    /// The ops in the group, most time first; only without `--op`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<OpView>,
    /// Why threads were off the CPU, most time first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<WaitView>,
    /// Of a stack, its id in `stack_traces`.
    pub stack_id: Option<i64>,
    /// How many different stacks are in it.
    pub stacks: usize,
    /// Of a stack or line: the innermost line of your code, else of a package.
    pub top_line: Option<String>,
    /// Of a stack, its frames, innermost first; of a line or function, only that frame.
    pub frames: Vec<FrameView>,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessView {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

/// An op of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OpView {
    /// Its short name.
    pub op: String,
    /// How many calls.
    pub calls: u64,
    /// Their time.
    pub total_ns: u64,
}

/// Why threads were off the CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaitView {
    /// Why they left.
    pub reason: String,
    /// What they waited for.
    pub wait: Option<String>,
    /// How often.
    pub times: u64,
    /// For how long.
    pub total_ns: u64,
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FrameView {
    /// The source file.
    pub file: String,
    /// The line in it.
    pub line: Option<u32>,
    /// The function.
    pub function: String,
    /// Whether it is your code.
    pub yours: bool,
}

impl StacksReport {
    /// The report as lines; `full` shows all frames of long stacks.
    pub fn lines(&self, full: bool, style: Style) -> Vec<String> {
        let mut lines = vec![style.bold(&self.heading())];
        if let Some(note) = &self.note {
            lines.push(style.yellow(&units::safe(note, 300)));
        }
        let shown: Vec<Vec<Line<'_>>> = self.groups.iter().map(|group| cut(&group.frames, full)).collect();
        let frames = shown.iter().flatten().filter_map(|line| match line {
            Line::Frame(frame, _) => Some(frame.file.as_str()),
            Line::More(_) => None,
        });
        let paths = ShortPaths::new(frames);
        for (group, frames) in self.groups.iter().zip(&shown) {
            lines.push(String::new());
            lines.push(self.figures(group, style));
            lines.extend(parts(group, style));
            lines.extend(self.body(group, frames, &paths, style));
        }
        if self.more.groups > 0 {
            let (n, what) = (self.more.groups, self.group_word(self.more.groups));
            let more = format!("… {} more {what}, {}", units::count(n as u64), self.unit.of(self.more.calls));
            lines.extend([String::new(), style.dim(&more)]);
        }
        if let Some(group) = &self.without_stack {
            lines.push(String::new());
            lines.push(self.figures(group, style));
            lines.extend(parts(group, style));
            lines.push(style.dim("  no Python stack (threads and programs without Python have none)"));
        }
        lines
    }

    /// `gpuwhy.db: cudaMalloc, 4,009 calls, total 4.10 s, 3,010 (75 %) with a Python stack`
    fn heading(&self) -> String {
        let op = self.op.as_deref().map_or_else(|| "all CUDA functions".to_owned(), |op| units::safe(op, NAME));
        let mut line = format!("{}: {op}", units::safe(&self.run, NAME));
        match (self.from_ns, self.to_ns) {
            (Some(from), Some(to)) => line += &format!(" from {} to {}", units::time(from), units::time(to)),
            (Some(from), None) if from > 0 => line += &format!(" from {} on", units::time(from)),
            (None, Some(to)) => line += &format!(" up to {}", units::time(to)),
            _ => {}
        }
        line += &format!(", {}", self.unit.of(self.calls));
        if self.calls > 0 {
            line += &format!(", total {}, {} with a Python stack", units::time(self.total_ns), self.stacked());
        }
        line
    }

    fn stacked(&self) -> String {
        let with = units::count(self.with_stack);
        match (self.with_stack, units::percent(self.with_stack as f64, self.calls as f64)) {
            (0, _) => "none".into(),
            (n, _) if n == self.calls => "all".into(),
            // Do not round to 100 % while some are missing.
            (_, share) if share == "100 %" => format!("{with} (>99 %)"),
            (_, share) => format!("{with} ({share})"),
        }
    }

    /// `4,009 calls  207 GB  avg 1.02 ms  max 2.10 ms  total 4.10 s   python3 train.py 12004`
    fn figures(&self, group: &GroupView, style: Style) -> String {
        let mut parts = vec![style.bold(&self.unit.of(group.calls))];
        if group.bytes > 0 {
            parts.push(units::bytes(group.bytes));
        }
        // Every sample stands for the same time, so an average or maximum says nothing.
        if self.unit != CountedUnit::Samples {
            parts.push(format!("avg {}", units::time(group.avg_ns)));
            parts.push(format!("max {}", units::time(group.max_ns)));
        }
        let total = if self.unit == CountedUnit::Samples { "CPU time" } else { "total" };
        parts.push(format!("{total} {}", units::time(group.total_ns)));
        format!("{}   {}", parts.join("  "), processes(&group.pids))
    }

    fn body(&self, group: &GroupView, frames: &[Line<'_>], paths: &ShortPaths<'_>, style: Style) -> Vec<String> {
        if frames.is_empty() {
            let name = group.name.as_ref().map_or("frames unknown".into(), |name| units::safe(name, NAME));
            return vec![format!("  {name}")];
        }
        let place = |frame: &FrameView| {
            let file = units::safe(paths.short(&frame.file), NAME);
            match frame.line {
                Some(line) => format!("{file}:{line}"),
                None => file,
            }
        };
        let rows: Vec<(String, String)> = frames
            .iter()
            .map(|line| match line {
                Line::Frame(frame, _) => (place(frame), units::safe(&frame.function, NAME)),
                Line::More(_) => Default::default(),
            })
            .collect();
        let width = rows.iter().map(|(place, _)| place.width()).max().unwrap_or(0);
        frames.iter().zip(&rows).map(|(line, row)| frame_line(line, row, width, style)).collect()
    }

    fn group_word(&self, n: usize) -> &'static str {
        match (self.by.as_str(), n) {
            ("line", 1) => "line",
            ("line", _) => "lines",
            ("function", 1) => "function",
            ("function", _) => "functions",
            ("library", 1) => "library",
            ("library", _) => "libraries",
            (_, 1) => "stack",
            _ => "stacks",
        }
    }
}

/// One line under a group.
enum Line<'a> {
    /// A frame, and whether it is the innermost frame of your code.
    Frame(&'a FrameView, bool),
    /// The number of frames left out here.
    More(usize),
}

/// The frames to show: the innermost ones, the first of your code and the outermost. The rest is counted.
fn cut(frames: &[FrameView], full: bool) -> Vec<Line<'_>> {
    let mine = frames.iter().position(|frame| frame.yours);
    let mut lines = Vec::new();
    let mut left_out = Vec::new();
    for (at, frame) in frames.iter().enumerate() {
        let line = Line::Frame(frame, Some(at) == mine);
        if full || at < INNERMOST || Some(at) == mine || at + 1 == frames.len() {
            close_gap(&mut lines, &mut left_out);
            lines.push(line);
        } else {
            left_out.push(line);
        }
    }
    lines
}

/// Counts the frames of a gap. A single frame is shown: counting it would take as much room.
fn close_gap<'a>(lines: &mut Vec<Line<'a>>, left_out: &mut Vec<Line<'a>>) {
    match left_out.len() {
        0 | 1 => lines.append(left_out),
        n => {
            lines.push(Line::More(n));
            left_out.clear();
        }
    }
}

fn frame_line(line: &Line<'_>, (place, function): &(String, String), width: usize, style: Style) -> String {
    let gap = |text: &str, width: usize| " ".repeat(width.saturating_sub(text.width()));
    match line {
        Line::More(n) => style.dim(&format!("  … {n} more")),
        Line::Frame(frame, first) => {
            let text = format!("  {place}{}  {function}", gap(place, width));
            match (first, frame.yours) {
                (true, _) => format!("{text}{}  {}", gap(function, FUNCTION_WIDTH), style.green("← your code")),
                (false, true) => text,
                (false, false) => style.dim(&text),
            }
        }
    }
}

/// `python3 train.py 12004, pt_data_worker:0 12010 and 2 more processes`
fn processes(pids: &[ProcessView]) -> String {
    let shown: Vec<String> = pids
        .iter()
        .take(NAMED)
        .map(|process| {
            // A process without a name is called `pid 7`: do not repeat the number.
            let unnamed = process.name == format!("pid {}", process.pid);
            let name = units::safe(&process.name, 40);
            if unnamed { name } else { format!("{name} {}", process.pid) }
        })
        .collect();
    let text = shown.join(", ");
    match pids.len().saturating_sub(NAMED) {
        0 => text,
        1 => format!("{text} and 1 more process"),
        n => format!("{text} and {} more processes", units::count(n as u64)),
    }
}

/// `  cudaMalloc 80 %, cudaFree 20 %` or `  asleep on pipe 80 %, preempted 12 %`
fn parts(group: &GroupView, style: Style) -> Option<String> {
    let ops = group.ops.iter().map(|op| (units::safe(&op.op, NAME), op.total_ns));
    let parts: Vec<(String, u64)> = ops.chain(group.waits.iter().map(|wait| (wait.words(), wait.total_ns))).collect();
    let [(only, _)] = parts.as_slice() else {
        let shown: Vec<String> = parts
            .iter()
            .take(NAMED)
            .enumerate()
            // Skip shares below 0.1 %.
            .filter(|(at, (_, ns))| *at == 0 || ns.saturating_mul(1000) > group.total_ns)
            .map(|(_, (what, ns))| format!("{what} {}", units::percent(*ns as f64, group.total_ns as f64)))
            .collect();
        return (!shown.is_empty()).then(|| format!("  {}", style.yellow(&shown.join(", "))));
    };
    Some(format!("  {}", style.yellow(only)))
}

impl WaitView {
    fn words(&self) -> String {
        let reason = units::safe(&self.reason, 40);
        match self.wait.as_deref() {
            None | Some("other") => reason,
            Some("sleep") => format!("{reason} for a set time"),
            Some(what) => format!("{reason} on {}", units::safe(what, 40)),
        }
    }
}

#[cfg(test)]
#[path = "stacks_view_tests.rs"]
mod tests;
