// SPDX-License-Identifier: Apache-2.0
//! Tests of the memory report on the screen.

use super::*;
use gpuwhy_memory::report::{Balance, Growth, Leak};
use gpuwhy_model::{Finding, Fix, RootCause, Severity};

fn space() -> SpaceReport {
    let point = |i: u64| TimelinePoint {
        at_ns: i * 1_000_000_000,
        allocated: i * 1_000_000,
        allocated_least: 0,
        reserved: 16_000_000,
        device_used: None,
    };
    SpaceReport {
        pid: 7,
        name: "python3\x1b[2J".into(),
        device: Some(0),
        source: Source::Torch,
        allocated: 9_000_000,
        reserved: 16_000_000,
        ended_ns: None,
        last_look: None,
        peak_allocated: 10_000_512,
        peak_allocated_at_ns: 9_500_000_000,
        peak_reserved: 16_000_000,
        peak_reserved_at_ns: 0,
        preexisting: 0,
        peak_preexisting: 512,
        balance: Balance::default(),
        at_peak: vec![Holder { line: Some("a.py:3".into()), bytes: 10_000_000, count: 2, ..Holder::default() }],
        at_end: Vec::new(),
        timeline: (0..=16).map(point).collect(),
        live: None,
    }
}

fn report() -> Report {
    Report {
        verdict: "a.py:3 leaks 1.00 MB a step since step 4.".into(),
        spaces: vec![space()],
        leaks: vec![Leak {
            line: Some("a.py:3".into()),
            bytes_per_step: Some(1e6),
            bytes_per_second: 5e6,
            onset_step: Some(4),
            ..Leak::default()
        }],
        growths: vec![Growth {
            pid: 7,
            device: Some(0),
            line: Some("b.py:9".into()),
            kind: GrowthKind::Settled,
            bytes: 5_000_000,
            settled_ns: Some(1),
            settled_step: Some(12),
        }],
        ..Report::default()
    }
}

fn view<'a>(report: &'a Report, sections: &'a [MemorySection]) -> MemoryView<'a> {
    MemoryView { report, sections, detail: Detail::Full, run: "run.db" }
}

fn shown(sections: &[MemorySection], style: Style) -> String {
    view(&report(), sections).lines(100, style).join("\n")
}

#[test]
fn the_first_screen_has_the_answer_and_says_what_else_there_is() {
    let leak = Leak { out_of_memory_in_ns: Some(41_000_000_000), out_of_memory_in_steps: Some(205), ..Leak::default() };
    let holder = |n: u64| Holder { line: Some(format!("a.py:{n}")), bytes: n, count: 1, ..Holder::default() };
    let space = SpaceReport { at_peak: (1..=9).rev().map(holder).collect(), peak_preexisting: 0, ..space() };
    let finding = |n: u64, severity: Severity| Finding {
        lost_bytes: 63_400_000,
        root_cause: RootCause { detail: "a.py:3 keeps one allocation of 524 kB".into(), ..RootCause::default() },
        fixes: vec![Fix { text: "keep .item()".into(), saves_ns: 0, saves_bytes: 63_400_000 }],
        ..Finding::new("memory_leak", severity, format!("a.py:{n} leaks"))
    };
    let report = Report {
        leaks: vec![leak],
        spaces: vec![space.clone(), space],
        findings: vec![finding(1, Severity::High), finding(2, Severity::Low)],
        ..report()
    };
    let shown = MemoryView { detail: Detail::Short, ..view(&report, &[]) }.lines(100, Style::PLAIN);
    let text = shown.join("\n");
    for part in [
        "a.py:3 leaks 1.00 MB a step since step 4.",
        "HIGH      a.py:1 leaks",
        "63.4 MB\n",
        "Fix: keep .item() (saves up to 63.4 MB)",
        "█ in use",
        "At this rate memory runs out 41.0 s (205 steps) after the recording ends.",
        "a.py:7\n",
        "all other lines",
        "More: gpuwhy memory --full run.db (1 smaller finding, 1 more process or device, all lines",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(!text.contains("a.py:2 leaks") && !text.contains("a.py:6") && !text.contains("b.py:9"), "{text}");
    assert!(shown.len() <= 28, "{} lines:\n{text}", shown.len());
    let wide = shown.iter().find(|line| line.chars().count() > 100);
    assert_eq!(wide, None);
    let nothing = MemoryView { detail: Detail::Short, ..view(&Report::default(), &[]) }.lines(100, Style::PLAIN);
    assert!(!nothing.join("\n").contains("More"), "{nothing:?}");
}

#[test]
fn the_full_report_is_complete_and_harmless_to_a_terminal() {
    let text = shown(&[], Style::PLAIN);
    for part in
        ["peak 10.0 MB (10,000,512 bytes) at 9.50 s", "█ in use  ░ reserved", "leak", "1.00 MB a step, 5.00 MB/s"]
    {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(text.contains("no growth since step 12") && text.contains("pre-existing: allocated before"), "{text}");
    assert!(!text.contains('\x1b'), "{text:?}");
    assert!(shown(&[], Style::COLOUR).contains("\x1b[32m"));
}

#[test]
fn a_section_is_shown_alone() {
    let text = shown(&[MemorySection::AtPeak], Style::PLAIN);
    assert!(text.contains("a.py:3") && text.contains("In use at the peak"), "{text}");
    assert!(!text.contains("b.py:9") && !text.contains('█'), "{text}");
}

#[test]
fn the_chart_rises_with_what_is_in_use() {
    let lines = chart(&space().timeline, ROWS, 100, Style::PLAIN);
    let filled: Vec<usize> = lines[..ROWS].iter().map(|line| line.matches('█').count()).collect();
    // A row of 2 MB is filled if at least its middle is reached: 15 MB and more at the top, 1 MB and more at the bottom.
    assert_eq!(filled, [2, 4, 6, 8, 10, 12, 14, 16], "{}", lines.join("\n"));
    assert!(lines[0].contains("16.0 MB"), "{}", lines[0]);
    assert!(chart(&[], ROWS, 100, Style::PLAIN).is_empty());
}

#[test]
fn alerts_are_listed_with_their_end_and_harmless_to_a_terminal() {
    let alert = |id: u64| Alert {
        id,
        at_ns: id * 1_000_000_000,
        cleared_ns: (id == 1).then_some(9_000_000_000),
        level: Level::Critical,
        kind: gpuwhy_memory::alerts::AlertKind::Leak,
        rule: "leak".into(),
        pid: Some(7),
        device: Some(0),
        gpu: None,
        value: 5e6,
        threshold: None,
        text: "leak: \x1b[2Ja.py:3".into(),
    };
    let report = Report { alerts: (1..=23).map(alert).collect(), ..report() };
    let text = view(&report, &[]).lines(100, Style::PLAIN).join("\n");
    for part in
        ["Alerts during the recording", "at 1.00 s critical (leak): leak: ", "a.py:3; ended at 9.00 s", "and 3 more"]
    {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(!text.contains('\x1b'), "{text}");
    let asked = view(&report, &[MemorySection::Leaks]).lines(100, Style::PLAIN).join("\n");
    assert!(!asked.contains("Alerts"), "{asked}");
}
