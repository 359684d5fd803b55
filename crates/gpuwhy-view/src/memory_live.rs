// SPDX-License-Identifier: Apache-2.0
//! `memory --live`: the memory of a run that is being recorded, on a screen that is redrawn. Shows each process's memory
//! with its recent minutes, the lines that grow, the time until memory is full, and leaks.

use crate::explain_view::PROSE;
use crate::style::Style;
use crate::table::{Align, Table};
use crate::wrap::wrap;
use gpuwhy_memory::live::{GrowingLine, LiveOom, LiveSpaceReport, Picture, RecentPoint};
use gpuwhy_memory::report::Source;
use gpuwhy_model::units;
use unicode_width::UnicodeWidthStr;

/// Processes, lines and refusals shown.
const SPACES: usize = 8;
const LINES: usize = 8;
const OOMS: usize = 3;
/// Longest name on a screen; a process's in the table, which fits 80 columns.
const NAME: usize = 44;
const PROCESS: usize = 18;
/// A row turns red if memory is full in less than this, ns.
const SOON_NS: u64 = 600_000_000_000;
/// Bars in steps of an eighth of a character's height.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// As many lines as fit the screen, the most important first.
pub fn lines(picture: &Picture, head: &str, size: (usize, usize), style: Style) -> Vec<String> {
    let (rows, width) = size;
    let mut lines = vec![style.bold(&units::safe(head, width))];
    lines.push(String::new());
    lines.extend(verdict(picture, width, style));
    let ooms = picture.ooms.iter().rev().take(OOMS).flat_map(|oom| wrap(&oom_line(oom), width.min(PROSE), 2));
    lines.extend(ooms.map(|line| style.red(&line)));
    if picture.oom_count > OOMS as u64 {
        lines.push(style.red(&format!("memory ran out {} times in total", units::count(picture.oom_count))));
    }
    lines.push(String::new());
    lines.extend(spaces(&picture.spaces, width, style));
    let growing = growing(&picture.growing, style);
    if !growing.is_empty() {
        lines.push(String::new());
        lines.extend(growing);
    }
    if !picture.notes.is_empty() {
        lines.push(String::new());
        let notes = picture.notes.iter().flat_map(|note| wrap(note, width.min(PROSE), 2));
        lines.extend(notes.map(|line| style.yellow(&line)));
    }
    lines.truncate(rows);
    lines
}

fn verdict(picture: &Picture, width: usize, style: Style) -> Vec<String> {
    let (text, of) = match (&picture.verdict, picture.verdict_at_ns) {
        (Some(text), Some(at)) => (units::safe(text, 1000), format!(" (first {})", units::time(at))),
        _ if picture.spaces.is_empty() => ("No GPU memory allocated yet.".to_owned(), String::new()),
        _ => ("Not checked for leaks yet.".to_owned(), String::new()),
    };
    let width = width.min(PROSE);
    let plain = wrap(&text, width, 0);
    let fits = plain.last().is_some_and(|last| last.width() + of.width() <= width);
    let mut lines: Vec<String> = plain.iter().map(|line| style.bold(line)).collect();
    match lines.last_mut() {
        Some(last) if fits => *last += &style.dim(&of),
        _ => lines.push(style.dim(of.trim_start())),
    }
    lines
}

/// A refused allocation in one line.
pub fn oom_line(oom: &LiveOom) -> String {
    let at = oom.line.as_deref().map(|line| format!(" at {}", units::safe(line, NAME))).unwrap_or_default();
    format!(
        "out of memory at {}: process {} asked for {} on {}{at}, {} in use",
        units::time(oom.at_ns),
        oom.pid,
        units::bytes(oom.asked),
        device(oom.device),
        units::bytes(oom.allocated)
    )
}

/// A space in one line, for output without a screen.
pub fn space_line(space: &LiveSpaceReport) -> String {
    let who = format!("{} {} on {}{}", units::safe(&space.name, NAME), space.pid, device(space.device), by(space));
    if space.ended {
        return format!("{who}: ended, peak {}", units::bytes(space.peak_allocated));
    }
    let mut line =
        format!("{who}: {} in use, {} reserved", units::bytes(space.allocated), units::bytes(space.reserved));
    if let (Some(used), Some(total)) = (space.device_used, space.device_total) {
        line += &format!(", device {} of {}", units::bytes(used), units::bytes(total));
    }
    if space.bytes_per_second >= 1.0 {
        line += &format!(", grows {}", rate(space.bytes_per_second));
    }
    if let Some(ns) = space.out_of_memory_in_ns {
        line += &format!(", full in {}", units::time(ns));
    }
    line
}

/// A growing line of code in one line.
pub fn growing_line(line: &GrowingLine) -> String {
    let leak = if line.leaks { ", a leak" } else { "" };
    format!("{} +{} in {}{leak}", name(line), units::bytes(line.grown_bytes), units::time(line.over_ns))
}

fn device(device: Option<u32>) -> String {
    device.map_or_else(|| "a GPU".to_owned(), |number| format!("cuda:{number}"))
}

fn by(space: &LiveSpaceReport) -> &'static str {
    match space.source {
        Source::Torch => "",
        Source::Driver => ", directly from the driver",
    }
}

fn rate(bytes_per_second: f64) -> String {
    format!("{}/s", units::bytes(bytes_per_second.round() as u64))
}

fn spaces(spaces: &[LiveSpaceReport], width: usize, style: Style) -> Vec<String> {
    let heads = [
        ("process", Align::Left),
        ("GPU", Align::Left),
        ("in use", Align::Right),
        ("peak", Align::Right),
        ("reserved", Align::Right),
        ("growth", Align::Right),
        ("full in", Align::Right),
    ];
    let mut table = Table::new(heads.map(|(name, align)| (name.to_owned(), Some(align))));
    let shown: Vec<&LiveSpaceReport> = spaces.iter().take(SPACES).collect();
    for space in &shown {
        let source = if space.source == Source::Driver { " driver" } else { "" };
        let ended = if space.ended { " ended" } else { "" };
        table.push(vec![
            format!("{} {}{source}{ended}", units::safe(&space.name, PROCESS), space.pid),
            device(space.device),
            if space.ended { "–".to_owned() } else { units::bytes(space.allocated) },
            units::bytes(space.peak_allocated),
            if space.ended { "–".to_owned() } else { units::bytes(space.reserved) },
            if space.bytes_per_second >= 1.0 { rate(space.bytes_per_second) } else { "–".to_owned() },
            space.out_of_memory_in_ns.map_or_else(|| "–".to_owned(), units::time),
        ]);
    }
    if table.is_empty() {
        return Vec::new();
    }
    let mut drawn = table.lines(style).into_iter();
    let mut lines: Vec<String> = drawn.next().into_iter().collect();
    for (row, space) in drawn.zip(shown) {
        let alarm = space.out_of_memory_in_ns.is_some_and(|ns| ns < SOON_NS);
        lines.push(if alarm { style.red(&row) } else { row });
        lines.extend(recent(space, width, style));
    }
    lines
}

/// Memory in use in the recent minutes as a row of bars, from 0 to peak reserved, and the whole device.
fn recent(space: &LiveSpaceReport, width: usize, style: Style) -> Option<String> {
    let points = &space.recent;
    let (first, last) = (points.first()?, points.last()?);
    let top = points.iter().map(|point| point.reserved.max(point.allocated)).max().filter(|top| *top > 0)?;
    let mut end = format!("  {}, to {}", span(last.at_ns - first.at_ns), units::bytes(top));
    if let (Some(used), Some(total)) = (space.device_used, space.device_total) {
        end += &format!("; device {} of {}", units::bytes(used), units::bytes(total));
    }
    let columns = width.saturating_sub(2 + end.chars().count()).clamp(10, points.len().max(10));
    let from = points.len().saturating_sub(columns);
    let bars: String = points.iter().skip(from).map(|point| bar(point, top)).collect();
    Some(format!("  {}{}", style.green(&bars), style.dim(&end)))
}

fn span(ns: u64) -> String {
    match ns / 1_000_000_000 {
        0..=1 => "now".to_owned(),
        seconds => format!("last {seconds} s"),
    }
}

fn bar(point: &RecentPoint, top: u64) -> char {
    let eighths = (point.allocated as f64 / top as f64 * BARS.len() as f64).ceil() as usize;
    BARS[eighths.clamp(1, BARS.len()) - 1]
}

fn growing(rows: &[GrowingLine], style: Style) -> Vec<String> {
    let heads = [
        ("grown", Align::Right),
        ("in", Align::Right),
        ("held now", Align::Right),
        ("allocs", Align::Right),
        ("", Align::Left),
        ("line", Align::Left),
    ];
    let mut table = Table::new(heads.map(|(name, align)| (name.to_owned(), Some(align))));
    for line in rows.iter().take(LINES) {
        let kind = match (line.leaks, line.steadily) {
            (true, _) => "leak",
            (false, true) => "growing",
            (false, false) => "once",
        };
        table.push(vec![
            format!("+{}", units::bytes(line.grown_bytes)),
            units::time(line.over_ns),
            units::bytes(line.bytes),
            units::count(line.count),
            kind.to_owned(),
            name(line),
        ]);
    }
    if table.is_empty() { Vec::new() } else { table.lines(style) }
}

fn name(line: &GrowingLine) -> String {
    match (&line.line, &line.function) {
        (Some(line), Some(function)) => units::safe(&format!("{line} {function}"), NAME),
        (Some(line), None) => units::safe(line, NAME),
        _ => "no Python line".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture() -> Picture {
        let point = |i: u64| RecentPoint { at_ns: i * 1_000_000_000, allocated: i * 1_000_000, reserved: 16_000_000 };
        let space = LiveSpaceReport {
            pid: 4821,
            name: "python3\x1b[2J".into(),
            device: Some(0),
            source: Source::Torch,
            allocated: 146_000_000,
            reserved: 149_000_000,
            peak_allocated: 148_000_000,
            device_used: Some(200_000_000),
            device_total: Some(268_000_000),
            bytes_per_second: 26e6,
            out_of_memory_in_ns: Some(41_000_000_000),
            ended: false,
            recent: (1..=16).map(point).collect(),
        };
        let line = GrowingLine {
            line: Some("train.py:31".into()),
            function: Some("step".into()),
            grown_bytes: 63_000_000,
            over_ns: 20_000_000_000,
            leaks: true,
            ..GrowingLine::default()
        };
        let oom = LiveOom { at_ns: 9, pid: 4821, asked: 20_000_000, line: Some("a.py:3".into()), ..LiveOom::default() };
        Picture {
            spaces: vec![space],
            growing: vec![line],
            ooms: vec![oom],
            oom_count: 1,
            verdict: Some("train.py:31 leaks 524 kB a step since step 4.".into()),
            verdict_at_ns: Some(10_000_000_000),
            notes: vec!["from 5 s on only some stacks".into()],
            ..Picture::default()
        }
    }

    #[test]
    fn the_screen_is_complete_and_harmless_to_a_terminal() {
        let text = lines(&picture(), "gpuwhy memory  run.db", (24, 80), Style::PLAIN).join("\n");
        for part in [
            "leaks 524 kB",
            "first 10.0 s",
            "26.0 MB/s",
            "41.0 s",
            "device 200 MB of 268 MB",
            "▁▁▂▂",
            "█",
            "+63.0 MB",
            "leak",
            "train.py:31 step",
            "only some stacks",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(
            text.contains("out of memory at 9 ns: process 4821 asked for 20.0 MB on a GPU at a.py:3, 0 B"),
            "{text}"
        );
        assert!(!text.contains('\x1b'), "{text:?}");
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{widest:?} columns:\n{text}");
        let long = "train.py:31 leaks 524 kB a step since step 4, and this sentence nearly fills its line.";
        let long = Picture { verdict: Some(long.into()), ..picture() };
        let shown = lines(&long, "gpuwhy memory  run.db", (24, 90), Style::PLAIN);
        assert_eq!(shown[3], "(first 10.0 s)", "{shown:#?}");
        let narrow = lines(&picture(), "gpuwhy memory  run.db", (4, 80), Style::PLAIN);
        assert_eq!(narrow.len(), 4, "no more lines than the screen has");
    }

    #[test]
    fn an_empty_screen_says_so() {
        let text = lines(&Picture::default(), "gpuwhy memory", (24, 80), Style::PLAIN).join("\n");
        assert!(text.contains("No GPU memory allocated yet."), "{text}");
    }

    #[test]
    fn a_space_and_a_line_fit_one_line_each() {
        let picture = picture();
        let said = space_line(&picture.spaces[0]);
        assert!(
            said.contains("146 MB in use, 149 MB reserved, device 200 MB of 268 MB, grows 26.0 MB/s, full in 41.0 s")
        );
        assert!(!said.contains('\x1b'), "{said:?}");
        let ended = LiveSpaceReport { ended: true, ..picture.spaces[0].clone() };
        assert!(space_line(&ended).ends_with("on cuda:0: ended, peak 148 MB"));
        assert_eq!(growing_line(&picture.growing[0]), "train.py:31 step +63.0 MB in 20.0 s, a leak");
    }
}
