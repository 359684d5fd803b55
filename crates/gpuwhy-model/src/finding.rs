// SPDX-License-Identifier: Apache-2.0
//! The answer: what cost time or memory, who waited for whom, why, and what to do.
//!
//! Everything gpuwhy concludes, from a live trace, a profiler trace or a memory snapshot, is a
//! [`Finding`]. JSON comes from serde, text from [`Finding::to_text`]; no view writes its own.

use crate::units;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// How bad it is, by what it cost.
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

/// How sure gpuwhy is, and thereby how it may be said.
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

/// What a cause cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// Wall-clock nanoseconds; 0 when it cost no time.
    #[serde(default)]
    pub ns: u64,
    /// Bytes; 0 when it cost no memory.
    #[serde(default)]
    pub bytes: u64,
    /// The length of what was looked at, so that a share can be told; 0 when unknown.
    #[serde(default)]
    pub of_ns: u64,
}

/// One link of the chain: somebody, what they did, how long, and how we know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Thread, process, device or file: `python3 4821`.
    pub who: String,
    /// What it did: `waits for the next batch`.
    pub what: String,
    /// Source line, when known: `train.py:138`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    /// For how long.
    pub ns: u64,
    /// State or measurement behind it: `blocked, pipe`.
    pub evidence: String,
}

/// What stood at the end of the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootCause {
    /// Machine-readable: `cpu_bound_worker`.
    pub kind: String,
    /// In words.
    pub summary: String,
    /// Source line, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
}

/// Something to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fix {
    /// The change, specific to what was measured.
    pub action: String,
    /// At most this much time is saved; 0 when not known.
    #[serde(default)]
    pub saves_ns: u64,
    /// At most this much memory is saved; 0 when not known.
    #[serde(default)]
    pub saves_bytes: u64,
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was waited for, machine-readable: `input_starved`.
    pub kind: String,
    /// How bad.
    pub severity: Severity,
    /// One line: `GPU starved 37.2 s of 120 s: waiting for data workers`.
    pub title: String,
    /// What it cost.
    pub lost: Lost,
    /// From the one who waited to the one at fault.
    pub chain: Vec<Link>,
    /// The one at fault.
    pub root_cause: RootCause,
    /// What it did to the job, with figures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<String>,
    /// What to do, most saving first.
    pub fixes: Vec<Fix>,
    /// How sure.
    pub confidence: Confidence,
    /// The process it is about, when it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

impl Finding {
    /// Worst first: by severity, then by what was lost.
    pub fn sort(findings: &mut [Self]) {
        findings.sort_by_key(|f| std::cmp::Reverse((f.severity, f.lost.ns, f.lost.bytes)));
    }

    /// The finding as a block of plain text. Names from the traced world are made safe to print.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let title = units::safe(&self.title, 200);
        let head = format!("[{}] {title}", self.severity.label());
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{head:<88}  {}", units::safe(&self.kind, 40));
        for (i, link) in self.chain.iter().enumerate() {
            let (label, arrow) = if i == 0 { ("chain", "") } else { ("", "← ") };
            let _ = writeln!(out, "  {label:<8}{arrow}{}", link_text(link));
        }
        let root = &self.root_cause;
        let line = root.line.as_deref().map(|l| format!(" ({})", units::safe(l, 120))).unwrap_or_default();
        let _ = writeln!(out, "  {:<8}{}{line}", "cause", units::safe(&root.summary, 200));
        for (i, effect) in self.effects.iter().enumerate() {
            let _ = writeln!(out, "  {:<8}{}", if i == 0 { "effect" } else { "" }, units::safe(effect, 200));
        }
        let mut fixes: Vec<&Fix> = self.fixes.iter().collect();
        fixes.sort_by_key(|fix| std::cmp::Reverse((fix.saves_ns, fix.saves_bytes)));
        for (i, fix) in fixes.into_iter().enumerate() {
            let _ = writeln!(out, "  {:<8}{}", if i == 0 { "fix" } else { "" }, fix_text(fix));
        }
        if self.confidence != Confidence::High {
            let how = if self.confidence == Confidence::Low { "inferred" } else { "measured in part" };
            let _ = writeln!(out, "  {:<8}{how}", "sure?");
        }
        out
    }
}

fn link_text(link: &Link) -> String {
    let line = link.line.as_deref().map(|l| format!(", {}", units::safe(l, 120))).unwrap_or_default();
    let said = format!("{} {}{line}", units::safe(&link.who, 80), units::safe(&link.what, 120));
    // A link about memory took no time worth telling.
    let time = if link.ns > 0 { units::time(link.ns) } else { String::new() };
    format!("{said:<64} {time:>9}   {}", units::safe(&link.evidence, 80))
}

fn fix_text(fix: &Fix) -> String {
    let action = units::safe(&fix.action, 300);
    match (fix.saves_ns, fix.saves_bytes) {
        (0, 0) => action,
        (ns, 0) => format!("{action}: saves up to {}", units::time(ns)),
        (0, bytes) => format!("{action}: saves up to {}", units::bytes(bytes)),
        (ns, bytes) => format!("{action}: saves up to {} and {}", units::time(ns), units::bytes(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starved() -> Finding {
        Finding {
            kind: "input_starved".into(),
            severity: Severity::High,
            title: "GPU starved 37.2 s of 120 s (31 %): waiting for data workers".into(),
            lost: Lost { ns: 37_200_000_000, bytes: 0, of_ns: 120_000_000_000 },
            chain: vec![
                Link {
                    who: "python3 4821".into(),
                    what: "waits for the next batch".into(),
                    line: Some("train.py:138".into()),
                    ns: 37_200_000_000,
                    evidence: "blocked, pipe".into(),
                },
                Link {
                    who: "pt_data_worker:0–3".into(),
                    what: "decode on the CPU".into(),
                    line: Some("data.py:51".into()),
                    ns: 34_100_000_000,
                    evidence: "running".into(),
                },
            ],
            root_cause: RootCause {
                kind: "cpu_bound_worker".into(),
                summary: "4 data workers decode on the CPU 92 % of their time".into(),
                line: Some("data.py:51".into()),
            },
            effects: vec!["launches 1,200/s → 640/s".into()],
            fixes: vec![
                Fix { action: "cache decoded samples".into(), saves_ns: 1_000_000_000, saves_bytes: 0 },
                Fix { action: "num_workers 4 → 6".into(), saves_ns: 31_000_000_000, saves_bytes: 0 },
            ],
            confidence: Confidence::Medium,
            pid: Some(4821),
        }
    }

    #[test]
    fn text_reads_from_the_waiter_to_the_fix() {
        let text = starved().to_text();
        let order = [
            "[HIGH] GPU starved",
            "chain   python3 4821",
            "← pt_data_worker:0–3",
            "cause   4 data workers",
            "effect  launches",
            "fix     num_workers 4 → 6: saves up to 31.0 s",
            "cache decoded samples",
            "measured in part",
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
    }

    #[test]
    fn worst_comes_first() {
        let mut list = vec![starved(), starved(), starved()];
        list[0].severity = Severity::Low;
        list[1].lost.ns = 1;
        Finding::sort(&mut list);
        assert_eq!(list[0].lost.ns, 37_200_000_000);
        assert_eq!(list[2].severity, Severity::Low);
    }

    #[test]
    fn names_from_the_traced_world_are_defused() {
        let mut finding = starved();
        finding.chain[0].who = "evil\x1b]0;owned\x07".into();
        assert!(!finding.to_text().contains('\x1b'));
    }
}
