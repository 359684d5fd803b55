// SPDX-License-Identifier: Apache-2.0
//! `compare_runs`: what improved and what got worse.

use super::Asked;
use super::page::{Answer, Page, Paging, pop};
use super::place::{Time, Where};
use crate::error::ToolError;
use crate::text::{NOTICE, PATH, clean};
use gpuwhy_ask::compare::{Change, Side, compare};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The arguments.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Arguments {
    /// The baseline run file (see list_runs)
    before: String,
    /// The run file to compare with it (default: the served run)
    #[serde(default)]
    after: Option<String>,
    /// In both runs: from this time on
    #[serde(default)]
    from: Option<Time>,
    /// In both runs: up to this time
    #[serde(default)]
    to: Option<Time>,
    /// In both runs: only the last 90s, 2m
    #[serde(default)]
    since: Option<Time>,
    #[serde(flatten)]
    paging: Paging,
}

/// The answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Compared {
    before: OneRun,
    after: OneRun,
    /// Changes, largest first
    changes: Vec<Changed>,
    #[serde(flatten)]
    page: Page,
    note: &'static str,
}

/// One of the two.
#[derive(Debug, Serialize, JsonSchema)]
struct OneRun {
    run: String,
    duration_ns: u64,
    launches_per_second: f64,
    /// Lower bound of the share of time the GPU was idle, 0 to 1
    gpu_idle_min: Option<f64>,
    verdict: String,
}

/// Something that changed.
#[derive(Debug, Serialize, JsonSchema)]
struct Changed {
    /// A finding's kind, an op, or launch_rate
    what: String,
    /// Share of wall-clock time, 0 to 1 (for ops: of all threads together); launch_rate: launches per second
    before: f64,
    after: f64,
    text: String,
}

impl Answer for Compared {
    fn shorten(&mut self) -> bool {
        pop(&mut self.changes)
    }

    fn page(&mut self) -> Option<(&mut Page, usize)> {
        Some((&mut self.page, self.changes.len()))
    }
}

pub(crate) fn answer(asked: &Asked<'_>, arguments: Arguments) -> Result<Compared, ToolError> {
    let before = asked.runs.get(Some(&arguments.before))?;
    let after = asked.runs.get(arguments.after.as_deref())?;
    let (from, to, since) = (arguments.from, arguments.to, arguments.since);
    let part = Where { from, to, since, ..Where::default() }.part()?;
    let facts =
        |run: &crate::runs::Run| Ok::<_, ToolError>((run.stats(&part, asked.work)?, run.explained(&part, asked.work)?));
    let (left, right) = (facts(&before)?, facts(&after)?);
    let compared = compare((&left.0, &left.1), (&right.0, &right.1));
    let (changes, page) = arguments.paging.cut(compared.changes, 12, Some(&after))?;
    Ok(Compared {
        before: one(&before.path, &compared.before),
        after: one(&after.path, &compared.after),
        changes: changes.into_iter().map(changed).collect(),
        page,
        note: NOTICE,
    })
}

fn one(path: &std::path::Path, side: &Side) -> OneRun {
    OneRun {
        run: clean(&path.to_string_lossy(), PATH),
        duration_ns: side.wall_ns,
        launches_per_second: rounded(side.launches_per_second),
        gpu_idle_min: side.idle_min.map(rounded),
        verdict: clean(&side.verdict, 220),
    }
}

fn changed(change: Change) -> Changed {
    let Change { what, before, after, words } = change;
    Changed { what: clean(&what, 60), before: rounded(before), after: rounded(after), text: clean(&words, 240) }
}

/// Rounds to four decimals.
fn rounded(x: f64) -> f64 {
    (x * 1e4).round() / 1e4
}
