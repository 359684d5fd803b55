// SPDX-License-Identifier: Apache-2.0
//! What is shown of a report.

use super::*;
use gpuwhy_memory::report::{Balance, Growth, Leak};

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

fn shown(sections: &[MemorySection], style: Style) -> String {
    MemoryView { report: &report(), sections }.lines(100, style).join("\n")
}

#[test]
fn everything_is_shown_and_nothing_drives_the_terminal() {
    let text = shown(&[], Style::PLAIN);
    for part in
        ["peak 10.0 MB (10,000,512 bytes) at 9.50 s", "█ in use  ░ reserved", "leak", "1.00 MB a step, 5.00 MB/s"]
    {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(text.contains("no more since step 12") && text.contains("pre-existing: older"), "{text}");
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
    let lines = chart(&space().timeline, 100, Style::PLAIN);
    let filled: Vec<usize> = lines[..ROWS].iter().map(|line| line.matches('█').count()).collect();
    // A row of 2 MB is filled where at least its middle is reached: 15 MB and more on top, 1 MB and more at the bottom.
    assert_eq!(filled, [2, 4, 6, 8, 10, 12, 14, 16], "{}", lines.join("\n"));
    assert!(lines[0].contains("16.0 MB"), "{}", lines[0]);
    assert!(chart(&[], 100, Style::PLAIN).is_empty());
}

#[test]
fn alerts_are_told_with_their_end_and_harm_no_terminal() {
    let alert = |id: u64| Alert {
        id,
        at_ns: id * 1_000_000_000,
        cleared_ns: (id == 1).then_some(9_000_000_000),
        level: Level::Critical,
        kind: gpuwhy_memory::alerts::Kind::Leak,
        rule: "leak".into(),
        pid: Some(7),
        device: Some(0),
        gpu: None,
        value: 5e6,
        threshold: None,
        text: "leak: \x1b[2Ja.py:3".into(),
    };
    let report = Report { alerts: (1..=23).map(alert).collect(), ..report() };
    let text = MemoryView { report: &report, sections: &[] }.lines(100, Style::PLAIN).join("\n");
    for part in
        ["Alerts while it was recorded", "at 1.00 s critical (leak): leak: ", "a.py:3; over at 9.00 s", "and 3 more"]
    {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(!text.contains('\x1b'), "{text}");
    let asked = MemoryView { report: &report, sections: &[MemorySection::Leaks] }.lines(100, Style::PLAIN).join("\n");
    assert!(!asked.contains("Alerts"), "{asked}");
}
