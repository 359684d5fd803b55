// SPDX-License-Identifier: Apache-2.0
//! Findings of the merged runs: what was found in each, with the numbers of the result.

use super::copy::{pid, time};
use super::input::{Input, Shift};
use crate::findings::{insert, json};
use crate::{Error, Result};
use gpuwhy_model::Finding;
use rusqlite::{Connection, Row, params};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Maximum number of time ranges with findings in one run: more than any real run has.
const MAX_ANSWERS: usize = 100_000;

/// A time range that was explained.
type Span = (Option<i64>, Option<i64>);

/// The time ranges that findings are about, which distinguish answers.
#[derive(Default)]
pub(crate) struct Spans(HashSet<Span>);

/// A finding as its table has it.
struct Found {
    detected_at: i64,
    severity: String,
    kind: String,
    summary: String,
    root_cause: Option<String>,
    explanation: Option<String>,
    recommendations: Option<String>,
    pid: Option<i64>,
    tid: Option<i64>,
    lost_ns: Option<i64>,
    span: Span,
    finding: Option<String>,
}

/// Copies the findings of a run.
pub(crate) fn copy(db: &Connection, path: &Path, input: &Input, known: &mut Spans) -> Result<()> {
    let newer = if input.has(2) { "tid, from_ns, to_ns, finding" } else { "NULL, NULL, NULL, NULL" };
    let sql = format!(
        "SELECT detected_at, severity, kind, summary, root_cause, explanation, recommendations, pid, lost_ns, {newer}
         FROM causal_chain_ ORDER BY id"
    );
    let mut select = input.db.prepare(&sql).map_err(|source| input.failed(source))?;
    let mut rows = select.raw_query();
    let mut spans: HashMap<Span, Span> = HashMap::new();
    while let Some(row) = rows.next().map_err(|source| input.failed(source))? {
        let found = found(row).map_err(|source| input.failed(source))?;
        if spans.len() >= MAX_ANSWERS && !spans.contains_key(&found.span) {
            return Err(input.refuse(format!("it has findings about more than {MAX_ANSWERS} time ranges")));
        }
        let span = *spans.entry(found.span).or_insert_with(|| known.free(found.span, &input.shift));
        store(db, input, &found, span).map_err(|error| match error {
            Failed::Input(what) => input.refuse(what),
            Failed::Write(source) => Error::CannotWriteMerged { path: path.into(), source },
        })?;
    }
    known.0.extend(spans.into_values());
    Ok(())
}

impl Spans {
    /// The time range in the result. A later answer about the same range replaces an earlier one, but an answer of
    /// another run must not, so the end of its range is moved by a nanosecond.
    fn free(&self, (from, to): Span, shift: &Shift) -> Span {
        let moved = |at: Option<i64>| at.map(|at| time(at, shift));
        let mut span = (moved(from), moved(to));
        while self.0.contains(&span) {
            span.1 = Some(span.1.unwrap_or(0).saturating_add(1));
        }
        span
    }
}

enum Failed {
    Input(String),
    Write(rusqlite::Error),
}

fn found(row: &Row<'_>) -> rusqlite::Result<Found> {
    Ok(Found {
        detected_at: row.get(0)?,
        severity: row.get(1)?,
        kind: row.get(2)?,
        summary: row.get(3)?,
        root_cause: row.get(4)?,
        explanation: row.get(5)?,
        recommendations: row.get(6)?,
        pid: row.get(7)?,
        lost_ns: row.get(8)?,
        tid: row.get(9)?,
        span: (row.get(10)?, row.get(11)?),
        finding: row.get(12)?,
    })
}

/// A finding that is whole is written anew, so that its words and its JSON say the same.
fn store(db: &Connection, input: &Input, found: &Found, span: Span) -> std::result::Result<(), Failed> {
    let shift = &input.shift;
    let detected_at = time(found.detected_at, shift);
    let whole = found.finding.as_deref().and_then(|text| serde_json::from_str::<Finding>(text).ok());
    if let (Some(mut finding), (Some(from), Some(to))) = (whole, span) {
        renumber(&mut finding, shift)
            .ok_or_else(|| Failed::Input("a finding names a process that is in no run".into()))?;
        let text = json(&finding).map_err(Failed::Write)?;
        return insert(db, [from, to, detected_at], &finding, &text).map(|_| ()).map_err(Failed::Write);
    }
    let known = |number: Option<i64>| match number.map(|number| pid(number, shift)) {
        Some(None) => Err(Failed::Input("a finding names a process that is in no run".into())),
        Some(number) => Ok(number),
        None => Ok(None),
    };
    let values = params![
        detected_at,
        found.severity,
        found.kind,
        found.summary,
        found.root_cause,
        found.explanation,
        found.recommendations,
        known(found.pid)?,
        known(found.tid)?,
        found.lost_ns,
        span.0,
        span.1
    ];
    let sql = "INSERT INTO causal_chain_ (detected_at, severity, kind, summary, root_cause, explanation,
        recommendations, pid, tid, lost_ns, from_ns, to_ns) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
    db.prepare_cached(sql).and_then(|mut insert| insert.execute(values)).map(|_| ()).map_err(Failed::Write)
}

/// Maps a finding to the ids of the result: its process and thread, those in its chain, and its evidence SQL. `None`
/// for an id that no process of the run can have.
fn renumber(finding: &mut Finding, shift: &Shift) -> Option<()> {
    for number in [&mut finding.pid, &mut finding.tid, &mut finding.root_cause.pid].into_iter().flatten() {
        *number = renumbered(*number, shift)?;
    }
    for link in &mut finding.chain {
        if matches!(link.layer.as_str(), "thread" | "process") {
            link.who = with_number(&link.who, shift);
        }
        link.evidence = link.evidence.as_deref().map(|sql| with_numbers(sql, shift));
    }
    Some(())
}

fn renumbered(number: u32, shift: &Shift) -> Option<u32> {
    pid(i64::from(number), shift).and_then(|number| u32::try_from(number).ok())
}

/// `python3 4821`, `python3 4821 thread 4830`: the numbers are the process's and the thread's.
fn with_number(who: &str, shift: &Shift) -> String {
    if let Some((process, thread)) = who.rsplit_once(" thread ") {
        return format!("{} thread {}", with_number(process, shift), numbers(thread, shift));
    }
    let number = who.rsplit_once(' ').and_then(|(name, number)| Some((name, renumbered(number.parse().ok()?, shift)?)));
    number.map_or_else(|| who.to_owned(), |(name, number)| format!("{name} {number}"))
}

/// SQL with the numbers after `pid` and `tid` changed, in `tid = 7` as in `tid IN (7, 8)`.
fn with_numbers(sql: &str, shift: &Shift) -> String {
    let mut out = String::with_capacity(sql.len() + 16);
    let mut rest = sql;
    loop {
        let begins = ["pid = ", "tid = ", "pid IN (", "tid IN ("];
        let next = begins.iter().filter_map(|begin| Some(rest.find(begin)? + begin.len())).min();
        let Some(next) = next else { return out + rest };
        let (before, list) = rest.split_at(next);
        let end = list.find(|c: char| !c.is_ascii_digit() && !", ".contains(c)).unwrap_or(list.len());
        let (list, after) = list.split_at(end);
        out.push_str(before);
        out.push_str(&numbers(list, shift));
        rest = after;
    }
}

/// Every number of a list, and what stands between them.
fn numbers(list: &str, shift: &Shift) -> String {
    let parts = list.split_inclusive(|c: char| !c.is_ascii_digit()).map(|part| {
        let digits = part.trim_end_matches(|c: char| !c.is_ascii_digit());
        match digits.parse().ok().and_then(|number| renumbered(number, shift)) {
            Some(number) => format!("{number}{}", &part[digits.len()..]),
            None => part.to_owned(),
        }
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sql_and_names_get_the_results_numbers() {
        let shift = Shift { slot: 1, slots: 1, ..Shift::default() };
        for (before, after) in [
            (
                "SELECT ns FROM ledger WHERE tid = 7 ORDER BY ns",
                "SELECT ns FROM ledger WHERE tid = 4194311 ORDER BY ns",
            ),
            ("WHERE tid IN (7, 8) AND pid = 9", "WHERE tid IN (4194311, 4194312) AND pid = 4194313"),
            ("WHERE tid = 7", "WHERE tid = 4194311"),
            ("SELECT pid, 7 FROM events WHERE tid = x", "SELECT pid, 7 FROM events WHERE tid = x"),
            ("WHERE tid = 99999999999", "WHERE tid = 99999999999"),
            ("", ""),
        ] {
            assert_eq!(with_numbers(before, &shift), after);
        }
        assert_eq!(with_number("python3 4821", &shift), "python3 4199125");
        assert_eq!(with_number("a 7 thread 8", &shift), "a 4194311 thread 4194312");
        assert_eq!(with_number("2 workers", &shift), "2 workers");
        assert_eq!(renumbered(1 << 22, &shift), None);
    }
}
