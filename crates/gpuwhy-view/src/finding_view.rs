// SPDX-License-Identifier: Apache-2.0
//! Findings on the screen: the few that matter, each in a few lines, or all of them with everything gpuwhy knows.

use crate::style::Style;
use crate::wrap::wrap;
use gpuwhy_model::{Confidence, Finding, Severity, units};
use unicode_width::UnicodeWidthStr;

/// A full finding is no wider than this, except its chain.
const BLOCK: usize = 110;
/// A short finding is no wider than this.
const SHORT: usize = 100;
/// Findings on a short screen, and the least severity that earns a place there.
const MOST_SHORT: usize = 3;
const LEAST_SHORT: Severity = Severity::Medium;
/// Where the text of a short finding begins.
const INDENT: usize = 10;
/// Where the second column of a full finding begins.
const HANG: usize = 13;
/// A link's text gets at least this many columns beside its time, else it stands above.
const LEAST_SAID: usize = 44;

/// How much of the findings is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Up to three that cost much: what it costs, why, where, what to do first.
    Short,
    /// All of them, with chains, effects and every fix.
    Full,
}

/// The findings, each after an empty line.
pub fn lines(findings: &[Finding], detail: Detail, width: usize, style: Style) -> Vec<String> {
    let of = |finding| match detail {
        Detail::Short => short_lines(finding, width, style),
        Detail::Full => full_lines(finding, width, style),
    };
    shown(findings, detail).flat_map(|finding| std::iter::once(String::new()).chain(of(finding))).collect()
}

/// How many findings a screen leaves out.
pub fn hidden(findings: &[Finding], detail: Detail) -> usize {
    findings.len() - shown(findings, detail).count()
}

fn shown(findings: &[Finding], detail: Detail) -> impl Iterator<Item = &Finding> {
    let most = if detail == Detail::Short { MOST_SHORT } else { usize::MAX };
    findings.iter().filter(move |finding| detail == Detail::Full || finding.severity >= LEAST_SHORT).take(most)
}

/// A severity's colour.
pub(crate) fn paint(text: &str, severity: Severity, style: Style) -> String {
    match severity {
        Severity::Critical | Severity::High => style.red(text),
        Severity::Medium => style.yellow(text),
        Severity::Low => style.bold(text),
        Severity::Info => style.green(text),
    }
}

/// What it costs, who waits where, why, and the first thing to do.
fn short_lines(finding: &Finding, width: usize, style: Style) -> Vec<String> {
    let width = width.min(SHORT);
    let (label, cost) = (finding.severity.label(), finding.cost());
    let room = width.saturating_sub(cost.width() + 2);
    let mut lines = wrap(&format!("{label:<INDENT$}{}", units::safe(&finding.title, 200)), room, INDENT);
    if let Some(first) = lines.first_mut() {
        let gap = if cost.is_empty() { 0 } else { width.saturating_sub(first.width() + cost.width()) };
        let title = first.strip_prefix(label).unwrap_or_default().to_owned();
        *first = format!("{}{title}{}{}", paint(label, finding.severity, style), " ".repeat(gap), style.bold(&cost));
    }
    let mut body = why(finding);
    body.extend(finding.ranked_fixes().first().map(|fix| format!("Fix: {}", fix.sentence())));
    // People act differently on a guess.
    let unsure = finding.confidence == Confidence::Low && !finding.confidence_reason.is_empty();
    body.extend(unsure.then(|| format!("Not certain: {}", units::safe(&finding.confidence_reason, 200))));
    let indented = body.iter().flat_map(|text| wrap(&format!("{:INDENT$}{text}", ""), width, INDENT));
    lines.extend(indented);
    lines
}

/// Who waits for what, at which line; then the cause.
fn why(finding: &Finding) -> Vec<String> {
    let (mut texts, root) = (Vec::new(), &finding.root_cause);
    if let Some(first) = finding.chain.first().filter(|_| finding.chain.len() > 1) {
        let line = first.line.as_deref().map(|line| format!(" ({})", units::safe(line, 120))).unwrap_or_default();
        texts.push(format!("{} {}{line}", units::safe(&first.who, 80), units::safe(&first.what, 120)));
    }
    if !root.detail.is_empty() {
        let line = root.line.as_deref().filter(|line| !root.detail.contains(line));
        let line = line.map(|line| format!(" ({})", units::safe(line, 120))).unwrap_or_default();
        texts.push(format!("{}{line}", units::safe(&root.detail, 300)));
    }
    texts
}

/// A finding as [`Finding::to_text`] lays it out, fitted to the terminal.
pub(crate) fn full_lines(finding: &Finding, width: usize, style: Style) -> Vec<String> {
    let (text, width) = (finding.to_text(), width.min(BLOCK));
    let mut lines = text.lines();
    let label = format!("[{}]", finding.severity.label());
    let kind = units::safe(&finding.kind, 40);
    let head = lines.next().unwrap_or_default();
    let title = head.strip_suffix(kind.as_str()).unwrap_or(head).trim_end();
    let room = width.saturating_sub(kind.width() + 2);
    let mut shown = wrap(title, room, label.width() + 1);
    if let Some(last) = shown.last_mut() {
        let gap = width.saturating_sub(last.width() + kind.width()).clamp(2, 88);
        *last = format!("{last}{}{}", " ".repeat(gap), style.dim(&kind));
    }
    if let Some(rest) = shown.first().and_then(|first| first.strip_prefix(&label)) {
        shown[0] = format!("{}{rest}", paint(&label, finding.severity, style));
    }
    let mut lines: Vec<&str> = lines.collect();
    let rest = lines.split_off(finding.chain.len().min(lines.len()));
    shown.extend(chain_lines(finding, &lines, width));
    shown.extend(rest.into_iter().flat_map(|line| wrap(line, width, HANG)));
    shown
}

/// A chain's lines as they are where they fit. Else the texts wrap beside the times and states, or, where that leaves too
/// little room, above them.
fn chain_lines(finding: &Finding, lines: &[&str], width: usize) -> Vec<String> {
    if lines.iter().all(|line| line.trim_end().width() <= width) {
        return lines.iter().map(|line| line.trim_end().to_owned()).collect();
    }
    let timed = finding.chain.iter().any(|link| link.ns > 0);
    let parts: Vec<(&str, String)> = finding
        .chain
        .iter()
        .zip(lines)
        .map(|(link, line)| {
            let (time, state) =
                (if link.ns > 0 { units::time(link.ns) } else { String::new() }, units::safe(&link.state, 80));
            let said = line.trim_end().strip_suffix(state.as_str()).unwrap_or(line).trim_end();
            let said = said.strip_suffix(time.as_str()).unwrap_or(said).trim_end();
            (said, if timed { format!("{time:>7}  {state}").trim_end().to_owned() } else { state })
        })
        .collect();
    let measured = parts.iter().map(|(_, measured)| measured.width()).max().unwrap_or(0);
    let room = width.saturating_sub(measured + 2);
    let mut shown = Vec::new();
    for (said, measured) in parts {
        let beside = room >= LEAST_SAID;
        let mut lines = wrap(said, if beside { room } else { width }, HANG + 2);
        match lines.first_mut().filter(|_| beside) {
            Some(first) => *first = format!("{first}{}  {measured}", " ".repeat(room.saturating_sub(first.width()))),
            None => lines.push(format!("{:1$}{2}", "", HANG + 2, measured.trim_start())),
        }
        shown.extend(lines.into_iter().map(|line| line.trim_end().to_owned()));
    }
    shown
}
