// SPDX-License-Identifier: Apache-2.0
//! A finding: what cost time or memory, who waited for whom, why, and what to do.
//!
//! Every conclusion, from a run file, a profiler trace or a memory snapshot, is a [`Finding`]. JSON comes from serde, the
//! full text from [`Finding::to_text`].

use crate::units;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Least and most columns of a link's text before its time.
const SAID_WIDTH: (usize, usize) = (61, 96);
/// Columns of a label such as `fix`.
const LABEL: usize = 11;
/// Kinds that, when critical, say what ended the process.
const ENDINGS: [&str; 2] = ["oom", "killed_for_memory"];

/// How bad a finding is, by its cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Cost little.
    Low,
    /// Cost noticeably.
    Medium,
    /// Cost much.
    High,
    /// Ended the job or will.
    Critical,
}

impl Severity {
    /// The severity of losing this share of the time.
    pub fn of_share(share: f64) -> Self {
        match share {
            share if share >= 0.10 => Self::High,
            share if share >= 0.03 => Self::Medium,
            share if share >= 0.01 => Self::Low,
            _ => Self::Info,
        }
    }

    /// As printed in brackets: `HIGH`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Info => "INFO",
            Self::Low => "LOW",
            Self::Medium => "MEDIUM",
            Self::High => "HIGH",
            Self::Critical => "CRITICAL",
        }
    }
}

/// How certain a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Inferred from a pattern.
    Low,
    /// Measured in part, inferred in part.
    Medium,
    /// Measured.
    High,
}

/// One link of a chain: a thread, process or device, what it did, for how long, and the evidence.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Where it happened: `gpu`, `cuda`, `thread`, `process`, `kernel` or `memory`.
    pub layer: String,
    /// Thread, process, device or file: `python3 4821`.
    pub who: String,
    /// What it did: `waits for the next batch`.
    pub what: String,
    /// Source line, when known: `train.py:138`.
    #[serde(default)]
    pub line: Option<String>,
    /// Ledger state or measurement behind it: `blocked, pipe`.
    pub state: String,
    /// For how long; 0 for a link about memory.
    pub ns: u64,
    /// SQL against the run file's views that shows it.
    #[serde(default)]
    pub evidence: Option<String>,
}

/// The cause at the end of the chain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootCause {
    /// Machine-readable: `cpu_bound_worker`.
    pub kind: String,
    /// The process at fault, when it is one.
    #[serde(default)]
    pub pid: Option<u32>,
    /// The name of the process, device or cgroup at fault.
    #[serde(default)]
    pub name: Option<String>,
    /// One line, with figures.
    pub detail: String,
    /// Source line, when known.
    #[serde(default)]
    pub line: Option<String>,
}

/// A change that helps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fix {
    /// The change, specific to what was measured.
    pub text: String,
    /// Upper bound of the time saved; 0 when unknown.
    #[serde(default)]
    pub saves_ns: u64,
    /// Upper bound of the memory saved; 0 when unknown.
    #[serde(default)]
    pub saves_bytes: u64,
}

/// One problem, its cost and its cause.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What was waited for, machine-readable: `input_starved`.
    pub kind: String,
    /// Severity.
    pub severity: Severity,
    /// One line, without the cost: `Data loading is too slow`.
    pub title: String,
    /// Wall-clock nanoseconds it cost; 0 when it cost no time.
    #[serde(default)]
    pub lost_ns: u64,
    /// Whether `lost_ns` is an upper bound.
    #[serde(default)]
    pub is_upper_bound: bool,
    /// Bytes it cost; 0 when it cost no memory.
    #[serde(default)]
    pub lost_bytes: u64,
    /// `lost_ns` as a share of the time examined, 0 to 1; 0 when it cost no time.
    #[serde(default)]
    pub share: f64,
    /// The process concerned, if it is one.
    #[serde(default)]
    pub pid: Option<u32>,
    /// The thread concerned, if it is one.
    #[serde(default)]
    pub tid: Option<u32>,
    /// From the waiting thread to the cause.
    pub chain: Vec<Link>,
    /// The cause.
    pub root_cause: RootCause,
    /// Effects on the job, with figures.
    #[serde(default)]
    pub effect: Vec<String>,
    /// Fixes, the one that saves most first.
    pub fixes: Vec<Fix>,
    /// Confidence.
    pub confidence: Confidence,
    /// What was measured and what was inferred.
    pub confidence_reason: String,
}

impl Fix {
    /// The change and what it saves: `num_workers 4 → 6 (saves up to 31.0 s)`. Names are made safe to print.
    pub fn sentence(&self) -> String {
        let text = units::safe(&self.text, 300);
        match (self.saves_ns, self.saves_bytes) {
            (0, 0) => text,
            (ns, 0) => format!("{text} (saves up to {})", units::time(ns)),
            (0, bytes) => format!("{text} (saves up to {})", units::bytes(bytes)),
            (ns, bytes) => format!("{text} (saves up to {} and {})", units::time(ns), units::bytes(bytes)),
        }
    }
}

impl Link {
    /// `python3 4821 waits for the next batch (train.py:138): 37.2 s, blocked, pipe`. Names are not made safe to print.
    pub fn sentence(&self) -> String {
        let line = self.line.as_deref().map(|line| format!(" ({line})")).unwrap_or_default();
        let time = (self.ns > 0).then(|| units::time(self.ns));
        let state = (!self.state.is_empty()).then(|| self.state.clone());
        let measured: Vec<String> = time.into_iter().chain(state).collect();
        let measured = if measured.is_empty() { String::new() } else { format!(": {}", measured.join(", ")) };
        format!("{} {}{line}{measured}", self.who, self.what)
    }
}

impl Finding {
    /// A measured finding without cost, chain, cause or fixes.
    pub fn new(kind: &str, severity: Severity, title: String) -> Self {
        Self {
            kind: kind.to_owned(),
            severity,
            title,
            lost_ns: 0,
            is_upper_bound: false,
            lost_bytes: 0,
            share: 0.0,
            pid: None,
            tid: None,
            chain: Vec::new(),
            root_cause: RootCause::default(),
            effect: Vec::new(),
            fixes: Vec::new(),
            confidence: Confidence::High,
            confidence_reason: String::new(),
        }
    }

    /// Sorts worst first: by severity, then findings that ended the job, then by cost.
    pub fn sort(findings: &mut [Self]) {
        findings.sort_by_key(|f| std::cmp::Reverse((f.severity, f.ended_job(), f.lost_ns, f.lost_bytes)));
    }

    /// Whether it ended the job.
    pub fn ended_job(&self) -> bool {
        self.severity == Severity::Critical && ENDINGS.contains(&self.kind.as_str())
    }

    /// The cost: `37.2 s · 31 %`, `63.4 MB`, or empty.
    pub fn cost(&self) -> String {
        let bound = if self.is_upper_bound { "up to " } else { "" };
        match (self.lost_ns, self.lost_bytes) {
            (0, 0) => String::new(),
            (0, bytes) => units::bytes(bytes),
            (ns, _) if self.share > 0.0 => {
                format!("{bound}{} · {}", units::time(ns), units::percent(self.share, 1.0))
            }
            (ns, _) => format!("{bound}{}", units::time(ns)),
        }
    }

    /// Title and cost in one line: `Data loading is too slow (37.2 s · 31 %)`.
    pub fn headline(&self) -> String {
        let cost = self.cost();
        if cost.is_empty() { self.title.clone() } else { format!("{} ({cost})", self.title) }
    }

    /// The fixes, the one that saves most first.
    pub fn ranked_fixes(&self) -> Vec<&Fix> {
        let mut fixes: Vec<&Fix> = self.fixes.iter().collect();
        fixes.sort_by_key(|fix| std::cmp::Reverse((fix.saves_ns, fix.saves_bytes)));
        fixes
    }

    /// The whole finding as plain text. Names from traced programs are made safe to print.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let title = units::safe(&self.headline(), 240);
        let head = format!("[{}] {title}", self.severity.label());
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{head:<88}  {}", units::safe(&self.kind, 40));
        // Times are aligned.
        let said: Vec<String> = self.chain.iter().enumerate().map(|(i, link)| said_of(i, link)).collect();
        let width = said.iter().map(|said| said.chars().count()).max().unwrap_or(0).clamp(SAID_WIDTH.0, SAID_WIDTH.1);
        for (i, (link, said)) in self.chain.iter().zip(said).enumerate() {
            // A link about memory has no time.
            let time = if link.ns > 0 { units::time(link.ns) } else { String::new() };
            let (label, state) = (if i == 0 { "chain" } else { "" }, units::safe(&link.state, 80));
            let _ = writeln!(out, "  {label:<LABEL$}{said:<width$} {time:>9}   {state}");
        }
        let root = &self.root_cause;
        let line = root.line.as_deref().filter(|line| !root.detail.contains(line));
        let line = line.map(|l| format!(" ({})", units::safe(l, 120))).unwrap_or_default();
        let _ = writeln!(out, "  {:<LABEL$}{}{line}", "cause", units::safe(&root.detail, 200));
        for (i, effect) in self.effect.iter().enumerate() {
            let _ = writeln!(out, "  {:<LABEL$}{}", if i == 0 { "effect" } else { "" }, units::safe(effect, 200));
        }
        for (i, fix) in self.ranked_fixes().into_iter().enumerate() {
            let _ = writeln!(out, "  {:<LABEL$}{}", if i == 0 { "fix" } else { "" }, fix.sentence());
        }
        if self.confidence != Confidence::High {
            let _ = writeln!(out, "  {:<LABEL$}{}", "confidence", units::safe(&self.confidence_reason, 200));
        }
        out
    }
}

/// `← pt_data_worker:0 decodes on the CPU, data.py:51`; the first link has no arrow.
fn said_of(place: usize, link: &Link) -> String {
    let arrow = if place == 0 { "" } else { "← " };
    let line = link.line.as_deref().map(|l| format!(", {}", units::safe(l, 120))).unwrap_or_default();
    format!("{arrow}{} {}{line}", units::safe(&link.who, 80), units::safe(&link.what, 120))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starved() -> Finding {
        Finding {
            kind: "input_starved".into(),
            severity: Severity::High,
            title: "Data loading is too slow".into(),
            lost_ns: 37_200_000_000,
            is_upper_bound: false,
            lost_bytes: 0,
            share: 0.31,
            pid: Some(4821),
            tid: Some(4821),
            chain: vec![
                Link {
                    layer: "thread".into(),
                    who: "python3 4821".into(),
                    what: "waits for the next batch".into(),
                    line: Some("train.py:138".into()),
                    state: "blocked, pipe".into(),
                    ns: 37_200_000_000,
                    evidence: Some("SELECT SUM(blocked_ns) FROM off_cpu WHERE tid = 4821 AND wait = 'pipe'".into()),
                },
                Link {
                    layer: "process".into(),
                    who: "pt_data_worker:0–3".into(),
                    what: "decode on the CPU".into(),
                    line: Some("data.py:51".into()),
                    state: "running".into(),
                    ns: 34_100_000_000,
                    evidence: None,
                },
            ],
            root_cause: RootCause {
                kind: "cpu_bound_worker".into(),
                pid: Some(4822),
                name: Some("pt_data_worker:0".into()),
                detail: "4 data workers decode on the CPU 92 % of their time".into(),
                line: Some("data.py:51".into()),
            },
            effect: vec!["launches 1,200/s → 640/s".into()],
            fixes: vec![
                Fix { text: "cache decoded samples".into(), saves_ns: 1_000_000_000, saves_bytes: 0 },
                Fix { text: "num_workers 4 → 6".into(), saves_ns: 31_000_000_000, saves_bytes: 0 },
            ],
            confidence: Confidence::Medium,
            confidence_reason: "who filled the pipe is inferred from who wrote last".into(),
        }
    }

    #[test]
    fn text_reads_from_the_waiter_to_the_fix() {
        let text = starved().to_text();
        let order = [
            "[HIGH] Data loading is too slow (37.2 s · 31 %)",
            "chain      python3 4821",
            "← pt_data_worker:0–3",
            "cause      4 data workers",
            "effect     launches",
            "fix        num_workers 4 → 6 (saves up to 31.0 s)",
            "cache decoded samples",
            "confidence who filled the pipe",
        ];
        let mut at = 0;
        for part in order {
            let found = text[at..].find(part).unwrap_or_else(|| panic!("{part:?} missing or out of order in:\n{text}"));
            at += found + part.len();
        }
    }

    #[test]
    fn json_goes_both_ways() {
        let finding = starved();
        let json = serde_json::to_string(&finding).unwrap();
        assert_eq!(serde_json::from_str::<Finding>(&json).unwrap(), finding);
        assert!(json.contains(r#""severity":"high""#));
        assert!(json.contains(r#""evidence":null"#), "keys are there even without a value: {json}");
    }

    #[test]
    fn a_measured_finding_has_no_confidence_line() {
        let finding = Finding { confidence: Confidence::High, ..starved() };
        assert!(!finding.to_text().contains("confidence"));
        assert!(finding.to_text().contains("37.2 s   blocked, pipe"), "{}", finding.to_text());
    }

    #[test]
    fn worst_comes_first() {
        let mut list = vec![starved(), starved(), starved()];
        list[0].severity = Severity::Low;
        list[1].lost_ns = 1;
        Finding::sort(&mut list);
        assert_eq!(list[0].lost_ns, 37_200_000_000);
        assert_eq!(list[2].severity, Severity::Low);
    }

    #[test]
    fn names_from_the_traced_world_are_defused() {
        let mut finding = starved();
        let evil = String::from("evil\x1b]0;owned\x07");
        finding.chain[0].who.clone_from(&evil);
        finding.chain[0].state.clone_from(&evil);
        finding.root_cause.detail.clone_from(&evil);
        finding.effect.push(evil.clone());
        finding.fixes[0].text.clone_from(&evil);
        finding.confidence_reason = evil;
        assert!(!finding.to_text().contains('\x1b'));
    }
}
