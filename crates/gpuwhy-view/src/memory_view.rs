// SPDX-License-Identifier: Apache-2.0
//! The memory report on the screen. The first screen has the verdict, the findings that matter, memory over time and the
//! top lines at the peak. `--full` has everything, a section flag one section.

use crate::explain_view::{PROSE, list, section, verdict};
use crate::finding_view::{self, Detail, full_lines};
use crate::style::Style;
use crate::table::{Align, Table};
use crate::wrap::{fold, wrap};
use gpuwhy_memory::Report;
use gpuwhy_memory::alerts::{Alert, Level};
use gpuwhy_memory::report::{Fragmentation, Gap, GrowthKind, Holder, Oom, Source, SpaceReport, TimelinePoint, Trend};
use gpuwhy_memory::steps::Certainty;
use gpuwhy_model::units;

/// Lines in a list of holders, on the first screen, and in the list of driver calls.
const HOLDERS: usize = 10;
const SHORT_HOLDERS: usize = 3;
const DRIVER_LINES: usize = 4;
/// Rows of the chart, also on the first screen, and its widest.
const ROWS: usize = 8;
const SHORT_ROWS: usize = 5;
const COLUMNS: usize = 72;
/// Longest name on a screen.
const NAME: usize = 60;
/// Alerts shown.
const ALERTS: usize = 20;
/// Frames shown of the stack whose request was refused.
const FRAMES: usize = 6;

/// A section of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemorySection {
    /// Each time memory ran out.
    Oom,
    /// Lines that grow.
    Leaks,
    /// Memory by line at the peak.
    AtPeak,
    /// Reserved but unused memory, and calls to the driver.
    Fragmentation,
    /// Memory of the whole GPU, with hidden memory.
    Gap,
}

impl MemorySection {
    fn kinds(self) -> &'static [&'static str] {
        match self {
            Self::Oom => &["oom", "oom_risk", "killed_for_memory"],
            Self::Leaks => &["memory_leak"],
            Self::AtPeak => &[],
            Self::Fragmentation => &["fragmentation", "alloc_latency"],
            Self::Gap => &["hidden_memory"],
        }
    }
}

/// A report, and how much of it to show.
#[derive(Debug, Clone, Copy)]
pub struct MemoryView<'a> {
    /// The report.
    pub report: &'a Report,
    /// Only these sections, in full.
    pub sections: &'a [MemorySection],
    /// Without sections: the first screen, or everything.
    pub detail: Detail,
    /// The run file or bundle, for the command that shows more.
    pub run: &'a str,
}

impl MemoryView<'_> {
    /// The lines for a terminal of this width.
    pub fn lines(&self, width: usize, style: Style) -> Vec<String> {
        let lines = match self.detail {
            Detail::Short if self.sections.is_empty() => self.first_screen(width, style),
            _ => self.in_full(width, style),
        };
        // Tables and charts fit already; this wraps sentences.
        lines.iter().flat_map(|line| fold(line, width)).collect()
    }

    fn first_screen(&self, width: usize, style: Style) -> Vec<String> {
        let report = self.report;
        let mut lines = verdict(&report.verdict, width, style);
        lines.extend(finding_view::lines(&report.findings, Detail::Short, width, style));
        if let Some(space) = report.spaces.first() {
            let mut picture = chart(&space.timeline, SHORT_ROWS, width, style);
            picture.extend(forecast(report).map(|text| format!("  {text}")));
            section(&mut lines, &format!("Memory over time: {}", space_title(space)), picture, style);
            section(&mut lines, "Top lines at the peak", peak_lines(space, SHORT_HOLDERS, width, style), style);
        }
        let unknown = list(&report.notes, width).into_iter().map(|line| style.yellow(&line)).collect();
        section(&mut lines, "What cannot be known", unknown, style);
        section(&mut lines, "", self.more(width, style), style);
        lines
    }

    /// The command that shows the rest, and what that is.
    fn more(&self, width: usize, style: Style) -> Vec<String> {
        let report = self.report;
        let findings = finding_view::hidden(&report.findings, Detail::Short) as u64;
        let spaces = report.spaces.len().saturating_sub(1) as u64;
        let has_more_lines = report.spaces.first().is_some_and(|space| space.at_peak.len() > SHORT_HOLDERS);
        let has_driver = report.fragmentation.iter().any(|one| !driver_lines(one, width, style).is_empty());
        let rest = [
            some(findings, "smaller finding", "smaller findings"),
            some(spaces, "more process or device", "more processes or devices"),
            has_more_lines.then(|| "all lines at the peak".to_owned()),
            (!report.spaces.is_empty()).then(|| "growth, allocations and frees".to_owned()),
            has_driver.then(|| "driver calls".to_owned()),
            (!report.gaps.is_empty()).then(|| "the whole GPU".to_owned()),
            some(report.alerts.len() as u64, "alert", "alerts"),
        ];
        let rest: Vec<String> = rest.into_iter().flatten().collect();
        if rest.is_empty() {
            return Vec::new();
        }
        let text = format!("More: gpuwhy memory --full {} ({})", units::safe(self.run, 500), rest.join(", "));
        wrap(&text, width.min(PROSE), 6).iter().map(|line| style.dim(line)).collect()
    }

    fn in_full(&self, width: usize, style: Style) -> Vec<String> {
        let report = self.report;
        let all = self.sections.is_empty();
        let mut lines = verdict(&report.verdict, width, style);
        let wanted = |kind: &str| all || self.sections.iter().any(|section| section.kinds().contains(&kind));
        for finding in report.findings.iter().filter(|finding| wanted(&finding.kind)) {
            lines.push(String::new());
            lines.extend(full_lines(finding, width, style));
        }
        let has = |section: MemorySection| all || self.sections.contains(&section);
        if all {
            for space in &report.spaces {
                let title = format!("Memory over time: {}", space_title(space));
                section(&mut lines, &title, over_time(space, width, style), style);
            }
        }
        if has(MemorySection::Oom) {
            let mut body = oom_lines(report, width, style);
            if body.is_empty() && !all {
                body = vec![format!("  {}", room_left(report))];
            }
            section(&mut lines, "Out of memory", body, style);
        }
        if has(MemorySection::Leaks) {
            section(&mut lines, "Growth", growth_lines(report, width, style), style);
            section(&mut lines, "Allocated and freed", balance_lines(report, width, style), style);
        }
        if has(MemorySection::AtPeak) {
            for space in &report.spaces {
                let title = format!("In use at the peak: {}", space_title(space));
                section(&mut lines, &title, peak_lines(space, HOLDERS, width, style), style);
            }
        }
        if has(MemorySection::Fragmentation) {
            let body = report.fragmentation.iter().flat_map(|one| driver_lines(one, width, style)).collect();
            section(&mut lines, "Allocated from the driver", body, style);
        }
        if has(MemorySection::Gap) {
            section(&mut lines, "The whole GPU", gap_lines(&report.gaps), style);
        }
        if all {
            section(&mut lines, "Alerts during the recording", alert_lines(report, style), style);
        }
        let unknown = list(&report.notes, width).into_iter().map(|line| style.yellow(&line)).collect();
        section(&mut lines, "What cannot be known", unknown, style);
        lines
    }
}

/// `3 alerts`; nothing for none.
fn some(count: u64, one: &str, many: &str) -> Option<String> {
    match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        count => Some(format!("{} {many}", units::count(count))),
    }
}

/// When the leaks fill memory, if they still can.
fn forecast(report: &Report) -> Option<String> {
    let first = report.leaks.iter().filter(|leak| leak.out_of_memory_in_ns.is_some());
    let first = first.min_by_key(|leak| leak.out_of_memory_in_ns)?;
    let steps = first.out_of_memory_in_steps.map(|n| format!(" ({} steps)", units::count(n))).unwrap_or_default();
    let time = units::time(first.out_of_memory_in_ns?);
    Some(format!("At this rate memory runs out {time}{steps} after the recording ends."))
}

fn safe(text: &str) -> String {
    units::safe(text, NAME)
}

fn device(device: Option<u32>) -> String {
    device.map_or_else(|| "a GPU".to_owned(), |number| format!("cuda:{number}"))
}

fn space_title(space: &SpaceReport) -> String {
    let by = match space.source {
        Source::Torch => "PyTorch",
        Source::Driver => "directly from the driver",
    };
    format!("{} {} on {}, {by}", safe(&space.name), space.pid, device(space.device))
}

fn table<const N: usize>(columns: [(&str, Align); N]) -> Table {
    Table::new(columns.map(|(name, align)| (name.to_owned(), Some(align))))
}

fn indented(table: &Table, width: usize, style: Style) -> Vec<String> {
    if table.is_empty() {
        return Vec::new();
    }
    let lines = table.lines_within(width.saturating_sub(2), &["reserved"], style);
    lines.into_iter().map(|line| format!("  {line}")).collect()
}

/// The exact peaks, and a chart.
fn over_time(space: &SpaceReport, width: usize, style: Style) -> Vec<String> {
    let exact = units::count(space.peak_allocated);
    let peak_at = units::time(space.peak_allocated_at_ns);
    let mut lines = vec![format!("  peak {} ({exact} bytes) at {peak_at}", units::bytes(space.peak_allocated))];
    if space.source == Source::Torch {
        lines.push(format!("  peak reserved {}", units::bytes(space.peak_reserved)));
    }
    lines.extend(space.last_look.map(|look| {
        let when = format!("last checked at {}", units::time(look.at_ns));
        in_use(&when, space.source, look.allocated, look.reserved)
    }));
    lines.push(match space.ended_ns {
        // Its cached memory was freed with it.
        Some(at) => format!("  process ended at {}: {} in use", units::time(at), units::bytes(space.allocated)),
        None => in_use("end of the recording", space.source, space.allocated, space.reserved),
    });
    if space.preexisting > 0 {
        lines.push(format!("  pre-existing {}: allocated before the first report", units::bytes(space.preexisting)));
    }
    lines.extend(chart(&space.timeline, ROWS, width, style));
    lines
}

/// Memory in use and cached at one time.
fn in_use(when: &str, source: Source, allocated: u64, reserved: u64) -> String {
    let cached = match source {
        Source::Torch => format!(", {} cached", units::bytes(reserved.saturating_sub(allocated))),
        Source::Driver => String::new(),
    };
    format!("  {when}: {} in use{cached}", units::bytes(allocated))
}

/// A bar chart: full blocks are in use, grey ones reserved.
fn chart(points: &[TimelinePoint], rows: usize, width: usize, style: Style) -> Vec<String> {
    let top = points.iter().map(|point| point.reserved.max(point.allocated)).max().unwrap_or(0);
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Vec::new() };
    if top == 0 {
        return Vec::new();
    }
    let columns = width.saturating_sub(14).clamp(10, COLUMNS).min(points.len());
    let column = |i: usize| &points[points.len() * i / columns..(points.len() * (i + 1) / columns).max(1)];
    let mut lines = Vec::new();
    for row in (0..rows).rev() {
        // A row is filled from its middle on.
        let level = top as f64 * (row as f64 + 0.5) / rows as f64;
        let label = if row == rows - 1 { units::bytes(top) } else { String::new() };
        let mut line = format!("  {label:>9} ▏");
        let (mut text, mut kind) = (String::new(), ' ');
        for i in 0..columns {
            let most = |pick: fn(&TimelinePoint) -> u64| column(i).iter().map(pick).max().unwrap_or(0) as f64;
            let cell = match () {
                () if most(|point| point.allocated) >= level => '█',
                () if most(|point| point.reserved) >= level => '░',
                () => ' ',
            };
            if cell != kind {
                line += &painted(&std::mem::take(&mut text), kind, style);
                kind = cell;
            }
            text.push(cell);
        }
        line += &painted(&text, kind, style);
        lines.push(line.trim_end().to_owned());
    }
    let time = |ns: u64| if ns == 0 { "0 s".to_owned() } else { units::time(ns) };
    let (from, to) = (time(first.at_ns), time(last.at_ns));
    let gap = columns.saturating_sub(from.chars().count() + to.chars().count()).max(1);
    lines.push(format!("  {:>9}  {from}{}{to}", "", " ".repeat(gap)));
    let reserved = points.iter().any(|point| point.reserved > point.allocated);
    let legend = if reserved { "█ in use  ░ reserved" } else { "█ in use" };
    lines.push(style.dim(&format!("  {:>9}  {legend}", "")));
    lines
}

fn painted(text: &str, kind: char, style: Style) -> String {
    match kind {
        '█' => style.green(text),
        '░' => style.dim(text),
        _ => text.to_owned(),
    }
}

fn holder_name(holder: &Holder) -> String {
    match (&holder.line, &holder.function) {
        (Some(line), Some(function)) => safe(&format!("{line} {function}")),
        (Some(line), None) => safe(line),
        (None, Some(function)) => safe(function),
        (None, None) => "no Python line".to_owned(),
    }
}

/// Memory by line: the first `most` lines, and the sum of the others.
fn holders(rows: &[Holder], of: u64, most: usize) -> Table {
    let mut table =
        table([("bytes", Align::Right), ("share", Align::Right), ("allocations", Align::Right), ("line", Align::Left)]);
    for holder in rows.iter().take(most) {
        table.push(vec![
            units::bytes(holder.bytes),
            units::percent(holder.bytes as f64, of as f64),
            units::count(holder.count),
            holder_name(holder),
        ]);
    }
    let rest = rows.get(most..).unwrap_or_default();
    if !rest.is_empty() {
        let (bytes, count) = rest.iter().fold((0, 0), |sum, holder| (sum.0 + holder.bytes, sum.1 + holder.count));
        let share = units::percent(bytes as f64, of as f64);
        table.push(vec![units::bytes(bytes), share, units::count(count), "all other lines".to_owned()]);
    }
    table
}

fn peak_lines(space: &SpaceReport, most: usize, width: usize, style: Style) -> Vec<String> {
    let mut table = holders(&space.at_peak, space.peak_allocated, most);
    if space.peak_preexisting > 0 {
        let bytes = space.peak_preexisting;
        let share = units::percent(bytes as f64, space.peak_allocated as f64);
        let line = "pre-existing: allocated before the first report".to_owned();
        table.push(vec![units::bytes(bytes), share, String::new(), line]);
    }
    indented(&table, width, style)
}

fn growth_lines(report: &Report, width: usize, style: Style) -> Vec<String> {
    let heads = [("", Align::Left), ("line", Align::Left), ("growth", Align::Left), ("since", Align::Left)];
    let mut table = table(heads);
    for leak in &report.leaks {
        let line = leak.line.as_deref().map_or_else(|| "no Python line".to_owned(), safe);
        let second = format!("{}/s", units::bytes(leak.bytes_per_second.round() as u64));
        let growth = match leak.bytes_per_step {
            Some(bytes) => format!("{} a step, {second}", units::bytes(bytes.round() as u64)),
            None => second,
        };
        let since = leak.onset_step.map(|step| format!("step {step}, ")).unwrap_or_default();
        table.push(vec!["leak".into(), line, growth, format!("{since}{}", units::time(leak.onset_ns))]);
    }
    for growth in report.growths.iter().take(HOLDERS) {
        let line = growth.line.as_deref().map_or_else(|| "no Python line".to_owned(), safe);
        let kind = match growth.kind {
            GrowthKind::Settled => "settled",
            GrowthKind::Sawtooth => "sawtooth",
            GrowthKind::OneOff => "once",
            GrowthKind::Renewed => "renewed",
        };
        let at = growth.settled_step.map(|step| format!("no growth since step {step}")).unwrap_or_default();
        table.push(vec![kind.into(), line, format!("peak {}, not a leak", units::bytes(growth.bytes)), at]);
    }
    let mut lines = indented(&table, width, style);
    for steps in &report.steps {
        lines.push(format!("  {}", steps_line(steps)));
    }
    lines
}

fn steps_line(steps: &gpuwhy_memory::report::StepsReport) -> String {
    let certainty = match steps.certainty {
        Certainty::None => return format!("process {}: no steps found, so growth is judged by time", steps.pid),
        Certainty::Low => "not certain",
        Certainty::Medium => "likely",
        Certainty::High => "certain",
    };
    let op = steps.marker_op.as_deref().unwrap_or("a call");
    let line = steps.marker_line.as_deref().map(|line| format!(" at {}", safe(line))).unwrap_or_default();
    format!(
        "process {}: {} steps of {}, {} launches each, marked by {}{line} ({certainty})",
        steps.pid,
        units::count(steps.steps),
        units::time(steps.step_ns),
        units::count(steps.launches),
        safe(op)
    )
}

fn balance_lines(report: &Report, width: usize, style: Style) -> Vec<String> {
    let heads = [
        ("", Align::Left),
        ("allocated", Align::Right),
        ("freed", Align::Right),
        ("left at end", Align::Right),
        ("last checked", Align::Right),
        ("cached", Align::Right),
    ];
    let mut table = table(heads);
    let mut times = Vec::new();
    for space in &report.spaces {
        let balance = &space.balance;
        let look = space.last_look;
        let cached = look.filter(|_| space.source == Source::Torch);
        table.push(vec![
            space_title(space),
            format!("{} × {}", units::bytes(balance.alloc_bytes), units::count(balance.allocs)),
            format!("{} × {}", units::bytes(balance.free_bytes), units::count(balance.frees)),
            units::bytes(balance.live_bytes),
            look.map_or_else(String::new, |look| units::bytes(look.allocated)),
            cached.map_or_else(String::new, |look| units::bytes(look.reserved.saturating_sub(look.allocated))),
        ]);
        times.extend(when(space).filter(|when| !times.contains(when)));
    }
    let mut lines = indented(&table, width, style);
    lines.extend(times.into_iter().map(|when| style.dim(&format!("  {when}"))));
    lines
}

/// The times of a process's figures.
fn when(space: &SpaceReport) -> Option<String> {
    let look = units::time(space.last_look?.at_ns);
    let end = match space.ended_ns {
        Some(at) => format!("the process ended at {}", units::time(at)),
        None => "the end is the end of the recording".to_owned(),
    };
    Some(format!("process {}: last checked at {look}; {end}", space.pid))
}

fn driver_lines(one: &Fragmentation, width: usize, style: Style) -> Vec<String> {
    let mut lines = Vec::new();
    if one.peak_reserved > 0 {
        lines.push(format!(
            "  {}, process {}: peak reserved {}, of which {} was in use ({} unused); {} segments, {} returned",
            device(one.device),
            one.pid,
            units::bytes(one.peak_reserved),
            units::bytes(one.allocated_then),
            units::percent(one.peak_reserved.saturating_sub(one.allocated_then) as f64, one.peak_reserved as f64),
            units::count(one.segments),
            units::count(one.returned)
        ));
    }
    if one.retaken_bytes > 0 {
        let by = one.returned_by.first().map(|by| format!(" (most by {})", holder_name(by))).unwrap_or_default();
        lines.push(format!(
            "  {} returned to the driver{by}, {} taken again; these calls took {}",
            units::bytes(one.returned_bytes),
            units::bytes(one.retaken_bytes),
            units::time(one.churn_ns)
        ));
    }
    if !one.past_allocator.is_empty() {
        let sum: u64 = one.past_allocator.iter().map(|holder| holder.bytes).sum();
        lines.push("  allocated outside PyTorch's allocator:".to_owned());
        let by_line = indented(&holders(&one.past_allocator, sum, HOLDERS), width, style);
        lines.extend(by_line.into_iter().map(|line| format!("  {line}")));
    }
    let busy: Vec<_> = one.latency.iter().filter(|window| window.calls > 0).collect();
    if let (Some(first), Some(last)) = (busy.first(), busy.last()) {
        let calls = busy.iter().map(|window| window.calls).sum();
        lines.push(format!(
            "  {} allocating calls: median {} → {}, p99 {} → {}; {} in total, with frees",
            units::count(calls),
            units::time(first.p50_ns),
            units::time(last.p50_ns),
            units::time(first.p99_ns),
            units::time(last.p99_ns),
            units::time(one.driver_ns)
        ));
        let by_line = indented(&driver_by_line(one), width, style).into_iter().map(|line| format!("  {line}"));
        lines.extend(by_line);
    }
    lines
}

/// Driver calls that allocate or free, by line.
fn driver_by_line(one: &Fragmentation) -> Table {
    let mut table =
        table([("time", Align::Right), ("calls", Align::Right), ("allocated", Align::Right), ("line", Align::Left)]);
    for by in one.driver_by.iter().take(DRIVER_LINES) {
        let holder = Holder { line: by.line.clone(), function: by.function.clone(), ..Holder::default() };
        let name = holder_name(&holder);
        table.push(vec![units::time(by.total_ns), units::count(by.calls), units::bytes(by.bytes), name]);
    }
    table
}

fn gap_lines(gaps: &[Gap]) -> Vec<String> {
    let mut lines = Vec::new();
    for gap in gaps {
        let total = gap.memory_total.map(|total| format!(" of {}", units::bytes(total))).unwrap_or_default();
        let trend = match gap.trend {
            Trend::Steady => "steady".to_owned(),
            Trend::Transient => format!("up to {} at times", units::bytes(gap.hidden_most)),
            Trend::Drifting => format!("drifting by {}/s", units::bytes(gap.drift_per_second.abs() as u64)),
        };
        lines.push(format!("  GPU {}: {}{total} used", gap.gpu, units::bytes(gap.used)));
        lines.push(format!(
            "    {} reserved by the job's PyTorch, {} allocated by the job outside it",
            units::bytes(gap.reserved),
            units::bytes(gap.direct)
        ));
        for other in gap.others.iter().take(HOLDERS) {
            lines.push(format!(
                "    {} held by {} {}, which is not part of this job",
                units::bytes(other.bytes),
                safe(&other.name),
                other.pid
            ));
        }
        lines.push(format!(
            "    {} hidden: CUDA contexts, NCCL, library workspaces ({trend}, {} samples)",
            units::bytes(gap.hidden),
            units::count(gap.looks)
        ));
    }
    lines
}

/// For a run that did not run out of memory: how close it came.
fn room_left(report: &Report) -> String {
    let most = report.spaces.iter().map(|space| space.peak_reserved.max(space.peak_allocated)).max().unwrap_or(0);
    if most == 0 {
        return "Memory did not run out: the job allocated none.".to_owned();
    }
    let gpu = report.gaps.iter().filter_map(|gap| Some((gap.used.max(most), gap.memory_total?)));
    match gpu.min_by_key(|(used, total)| total.saturating_sub(*used)) {
        Some((used, total)) => format!(
            "Memory did not run out: peak {} of {}, {} ({}) stayed free.",
            units::bytes(used),
            units::bytes(total),
            units::bytes(total.saturating_sub(used)),
            units::percent(total.saturating_sub(used) as f64, total as f64)
        ),
        None => {
            format!("Memory did not run out: peak {}. Without NVML the GPU's size is unknown.", units::bytes(most))
        }
    }
}

fn oom_lines(report: &Report, width: usize, style: Style) -> Vec<String> {
    let mut lines = Vec::new();
    if report.oom_count > report.ooms.len() as u64 {
        lines.push(format!("  {} times; the first and last:", units::count(report.oom_count)));
    }
    for oom in &report.ooms {
        lines.extend(one_oom(oom, width, style));
    }
    for end in &report.ends {
        let why = if end.oom_killed { " (the kernel killed it: main memory ran out)" } else { "" };
        lines.push(format!(
            "  at {} {} {} ended by signal {}{why} with {} in use",
            units::time(end.at_ns),
            safe(&end.name),
            end.pid,
            end.signal,
            units::bytes(end.allocated)
        ));
        if let Some(line) = &end.last_line {
            lines.push(style.dim(&format!("    last allocation at {}", safe(line))));
        }
        lines.extend(indented(&holders(&end.live, end.allocated, HOLDERS), width, style));
    }
    lines
}

fn alert_lines(report: &Report, style: Style) -> Vec<String> {
    let line = |alert: &Alert| {
        let level = match alert.level {
            Level::Warning => style.yellow(alert.level.name()),
            Level::Critical => style.red(alert.level.name()),
        };
        let over = alert.cleared_ns.map(|ns| format!("; ended at {}", units::time(ns))).unwrap_or_default();
        let (rule, text) = (safe(&alert.rule), units::safe(&alert.text, 300));
        format!("  at {} {level} ({rule}): {text}{over}", units::time(alert.at_ns))
    };
    let mut lines: Vec<String> = report.alerts.iter().take(ALERTS).map(line).collect();
    let more = report.alerts.len().saturating_sub(ALERTS) as u64;
    if more > 0 {
        lines.push(format!("  and {} more (SQL view `alerts`)", units::count(more)));
    }
    lines
}

fn one_oom(oom: &Oom, width: usize, style: Style) -> Vec<String> {
    let step = oom.step.map(|step| format!(" (step {step})")).unwrap_or_default();
    let mut lines = vec![format!(
        "  at {}{step} process {} asked for {} on {}: {} in use, {} reserved{}",
        units::time(oom.at_ns),
        oom.pid,
        units::bytes(oom.asked),
        device(oom.device),
        units::bytes(oom.allocated),
        units::bytes(oom.reserved),
        if oom.fatal { "; the process ended" } else { "" }
    )];
    lines.extend(oom.device_words().map(|words| format!("  {words}")));
    lines.extend(oom.stack.iter().take(FRAMES).map(|frame| style.dim(&format!("    {}", units::safe(frame, 120)))));
    lines.extend(indented(&holders(&oom.live, oom.allocated, HOLDERS), width, style));
    lines
}

#[cfg(test)]
#[path = "memory_view_tests.rs"]
mod tests;
