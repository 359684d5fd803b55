// SPDX-License-Identifier: Apache-2.0
//! `get_causal_chains`: why a job is slow.

use super::Asked;
use super::page::{Answer, Page, Paging, pop};
use super::place::{RunHead, Where};
use crate::error::ToolError;
use crate::text::{NOTICE, clean};
use gpuwhy_model::Severity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum length of a sentence, characters.
const SENTENCE: usize = 220;

/// The arguments.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Arguments {
    #[serde(flatten)]
    place: Where,
    /// Only this kind, such as sync_bound (gpuwhy://glossary lists all)
    #[serde(default)]
    kind: Option<String>,
    /// This severity or worse
    #[serde(default)]
    severity: Option<AtLeast>,
    /// Return everything
    #[serde(default)]
    detail: bool,
    #[serde(flatten)]
    paging: Paging,
}

/// Minimum severity.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum AtLeast {
    Info,
    Low,
    Medium,
    High,
    Critical,
}

impl AtLeast {
    fn severity(self) -> Severity {
        match self {
            Self::Info => Severity::Info,
            Self::Low => Severity::Low,
            Self::Medium => Severity::Medium,
            Self::High => Severity::High,
            Self::Critical => Severity::Critical,
        }
    }
}

/// The answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Chains {
    #[serde(flatten)]
    head: RunHead,
    /// The answer in one or two sentences
    #[serde(skip_serializing_if = "String::is_empty")]
    #[serde(default)]
    verdict: String,
    /// Bounds of the time the GPU was idle; null: no GPU work was seen
    gpu_idle_min_ns: Option<u64>,
    gpu_idle_max_ns: Option<u64>,
    /// Length of the analysed time range
    wall_ns: u64,
    /// Causes, worst first
    findings: Vec<Finding>,
    /// How to get what was left out of the findings
    #[serde(skip_serializing_if = "Option::is_none")]
    more: Option<&'static str>,
    #[serde(flatten)]
    page: Page,
    note: &'static str,
    /// With detail, an answer has fewer findings, but complete ones.
    #[serde(skip)]
    #[schemars(skip)]
    detail: bool,
}

/// Shown if a finding was shortened.
const MORE: &str = "detail=true adds the fixes and chain links counted by more_fixes and more_links";
/// A chain that is too long keeps its last links, which name the cause.
const LAST_LINKS: usize = 2;
/// Characters. A long verdict is cut here if space is short, at the end of a sentence if possible.
const SHORT_VERDICT: usize = 230;

/// A cause.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct Finding {
    /// What the launching thread waited for
    kind: String,
    severity: String,
    title: String,
    /// Wall-clock time it cost
    lost_ns: u64,
    /// Memory it cost
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    lost_bytes: u64,
    pid: Option<u32>,
    /// The end of the chain
    root_cause: String,
    /// In words
    cause: String,
    /// The line of code at fault
    line: Option<String>,
    /// From the waiting thread to the cause
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(default)]
    chain: Vec<String>,
    /// Links before those
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    more_links: usize,
    /// What to do, largest saving first
    fixes: Vec<Fix>,
    /// Fixes after those
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    more_fixes: usize,
    confidence: String,
    /// With detail: SQL that shows the evidence
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(default)]
    evidence: Vec<String>,
}

/// A fix, and the most it can save if known.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct Fix {
    text: String,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    saves_ns: u64,
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    saves_bytes: u64,
}

impl Fix {
    fn new(fix: &gpuwhy_model::Fix) -> Self {
        Self { text: clean(&fix.text, SENTENCE), saves_ns: fix.saves_ns, saves_bytes: fix.saves_bytes }
    }
}

impl Finding {
    pub(crate) fn new(found: &gpuwhy_model::Finding, detail: bool) -> Self {
        let severity = found.severity.label().to_ascii_lowercase();
        let mut fixes: Vec<_> = found.fixes.iter().collect();
        fixes.sort_by_key(|fix| std::cmp::Reverse((fix.saves_ns, fix.saves_bytes)));
        let evidence = found.chain.iter().filter_map(|link| link.evidence.as_deref());
        Self {
            kind: clean(&found.kind, 40),
            severity,
            title: clean(&found.headline(), SENTENCE),
            lost_ns: found.lost_ns,
            lost_bytes: found.lost_bytes,
            pid: found.pid,
            root_cause: clean(&found.root_cause.kind, 40),
            cause: clean(&found.root_cause.detail, SENTENCE),
            line: line_of(found).map(|line| clean(line, 120)),
            chain: found.chain.iter().map(|link| clean(&link.sentence(), SENTENCE)).collect(),
            more_links: 0,
            fixes: fixes.into_iter().map(Fix::new).collect(),
            more_fixes: 0,
            confidence: format!("{:?}", found.confidence).to_ascii_lowercase(),
            evidence: evidence.filter(|_| detail).map(|sql| clean(sql, 1000)).collect(),
        }
    }

    /// Drops the chain and all fixes but the best, and counts what it drops.
    pub(super) fn brief(&mut self) -> bool {
        self.cut_chain(0) | self.cut_fixes(1)
    }

    /// Keeps the last links.
    fn cut_chain(&mut self, keep: usize) -> bool {
        let gone = self.chain.len().saturating_sub(keep);
        self.chain.drain(..gone);
        self.more_links += gone;
        gone > 0
    }

    fn cut_fixes(&mut self, keep: usize) -> bool {
        let gone = self.fixes.len().saturating_sub(keep);
        self.fixes.truncate(keep);
        self.more_fixes += gone;
        gone > 0
    }

    /// Whether something was left out.
    pub(super) fn has_more(&self) -> bool {
        self.more_links > 0 || self.more_fixes > 0
    }
}

/// The line at fault: the root cause's, otherwise the deepest line in the chain.
fn line_of(found: &gpuwhy_model::Finding) -> Option<&str> {
    let in_chain = || found.chain.iter().rev().find_map(|link| link.line.as_deref());
    found.root_cause.line.as_deref().or_else(in_chain)
}

impl Answer for Chains {
    fn shorten(&mut self) -> bool {
        if self.detail && pop(&mut self.findings) {
            return true;
        }
        let shortened = self.findings.iter_mut().skip(1).rev().any(Finding::brief)
            || shorter_verdict(&mut self.verdict)
            || pop(&mut self.findings)
            || self.findings.first_mut().is_some_and(|first| first.cut_chain(LAST_LINKS) || first.brief());
        self.more = self.findings.iter().any(Finding::has_more).then_some(MORE);
        shortened
    }

    fn page(&mut self) -> Option<(&mut Page, usize)> {
        Some((&mut self.page, self.findings.len()))
    }
}

/// Keeps the sentences that fit and marks the cut.
fn shorter_verdict(verdict: &mut String) -> bool {
    if verdict.chars().count() <= SHORT_VERDICT {
        return false;
    }
    let end = verdict.char_indices().nth(SHORT_VERDICT - 2).map_or(verdict.len(), |(at, _)| at);
    match verdict[..end].rfind(". ") {
        Some(at) if at > end / 2 => *verdict = format!("{} …", &verdict[..=at]),
        _ => *verdict = clean(verdict, SHORT_VERDICT),
    }
    true
}

pub(crate) fn answer(asked: &Asked<'_>, arguments: Arguments) -> Result<Chains, ToolError> {
    let run = asked.runs.get(arguments.place.run.as_deref())?;
    let explained = run.explained(&arguments.place.part()?, asked.work)?;
    let report = &explained.report;
    let least = arguments.severity.map_or(Severity::Info, AtLeast::severity);
    let wanted = |found: &&gpuwhy_model::Finding| {
        found.severity >= least && arguments.kind.as_ref().is_none_or(|kind| *kind == found.kind)
    };
    let found: Vec<_> = report.findings.iter().filter(wanted).collect();
    let (found, page) = arguments.paging.cut(found, 8, Some(&run))?;
    // The first page had the verdict.
    let verdict = if arguments.paging.cursor.is_none() { clean(&report.verdict, 420) } else { String::new() };
    Ok(Chains {
        head: RunHead::of(&run, &explained.session),
        verdict,
        gpu_idle_min_ns: report.gpu_idle_min_ns,
        gpu_idle_max_ns: report.gpu_idle_max_ns,
        wall_ns: report.wall_ns,
        findings: found.into_iter().map(|found| Finding::new(found, arguments.detail)).collect(),
        more: None,
        page,
        note: NOTICE,
        detail: arguments.detail,
    })
}
