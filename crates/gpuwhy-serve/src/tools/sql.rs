// SPDX-License-Identifier: Apache-2.0
//! `run_sql`: one SELECT, read-only as enforced by SQLite, limited in time, rows and bytes.

use super::Asked;
use super::page::{Answer, pop};
use super::place::{RunHead, Time, Where};
use crate::error::ToolError;
use crate::text::{NOTICE, clean};
use gpuwhy_store::{Limits, Value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::ops::ControlFlow;
use std::time::Duration;

/// Default number of rows.
const USUAL_ROWS: u32 = 50;
/// Maximum number of rows.
const MOST_ROWS: u32 = 1_000;
/// Default timeout.
const USUAL_TIME: Duration = Duration::from_secs(5);
/// Maximum timeout.
const MOST_TIME: Duration = Duration::from_secs(30);
/// Maximum size of a text or blob inside a query, bytes, so that no SQL function takes long.
const VALUE: i32 = 256 << 10;
/// Maximum length of a text in a cell, characters.
const CELL: usize = 400;
/// The same if the answer is too long.
const SHORT: usize = 40;
/// Maximum number of columns.
const COLUMNS: usize = 64;

/// The arguments.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Arguments {
    /// One SELECT on the views. With from, to, since or pid, it must use :from_ns, :to_ns or :pid
    sql: String,
    #[serde(flatten)]
    place: Where,
    /// Maximum rows (default 50, at most 1000); more_rows tells whether there are more
    #[serde(default)]
    limit: Option<u32>,
    /// Give up after this time (default 5s, at most 30s)
    #[serde(default)]
    timeout: Option<Time>,
}

/// The answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Rows {
    #[serde(flatten)]
    head: RunHead,
    columns: Vec<String>,
    /// The values of each row, in column order
    rows: Vec<Vec<Json>>,
    /// There are more rows: aggregate, add LIMIT and OFFSET, or give limit
    more_rows: bool,
    /// Columns left out for brevity: select only the ones you need
    #[serde(skip_serializing_if = "super::page::is_zero")]
    #[serde(default)]
    more_columns: usize,
    note: &'static str,
}

impl Answer for Rows {
    fn shorten(&mut self) -> bool {
        // Drops an eighth of the rows at a time until the answer fits. The last row stays and is shortened.
        if self.rows.len() > 1 {
            self.more_rows = true;
            self.rows.truncate(self.rows.len() - self.rows.len().div_ceil(8));
            return true;
        }
        self.cut_texts() || self.leave_out_a_column()
    }
}

impl Rows {
    fn cut_texts(&mut self) -> bool {
        let cells = self.rows.iter_mut().flatten().filter_map(|cell| match cell {
            Json::String(text) => Some(text),
            _ => None,
        });
        let mut cut = false;
        for text in cells.chain(&mut self.columns).filter(|text| text.chars().count() > SHORT) {
            *text = clean(text, SHORT);
            cut = true;
        }
        cut
    }

    fn leave_out_a_column(&mut self) -> bool {
        if !pop(&mut self.columns) {
            return false;
        }
        self.rows.iter_mut().for_each(|row| row.truncate(self.columns.len()));
        self.more_columns += 1;
        true
    }
}

pub(crate) fn answer(asked: &Asked<'_>, arguments: Arguments) -> Result<Rows, ToolError> {
    let run = asked.runs.get(arguments.place.run.as_deref())?;
    let session = run.session(asked.work)?;
    let values = values(&arguments, session.duration_ns)?;
    let time = arguments.timeout.map_or(USUAL_TIME, |time| time.0).min(MOST_TIME).max(Duration::from_millis(1));
    let rows = arguments.limit.unwrap_or(USUAL_ROWS).clamp(1, MOST_ROWS);
    let limits = Limits { time, rows: u64::from(rows), value: VALUE };
    let (mut found, mut bytes, mut cut) = (Vec::new(), 0, false);
    let outcome = run.reader(asked.work)?.query_with(&arguments.sql, &values, &limits, |_, row| {
        let row: Vec<Json> = row.iter().take(COLUMNS).map(json).collect();
        bytes += row.iter().map(|value| value.as_str().map_or(8, str::len)).sum::<usize>();
        found.push(row);
        cut = bytes > 48_000;
        if cut { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(Rows {
        head: RunHead::of(&run, &session),
        columns: outcome.columns.iter().take(COLUMNS).map(|name| clean(name, 80)).collect(),
        rows: found,
        more_rows: outcome.more || cut,
        more_columns: outcome.columns.len().saturating_sub(COLUMNS),
        note: NOTICE,
    })
}

/// Values of the statement's parameters. A time range or pid that the statement does not use is an error; otherwise the
/// answer would silently be about the whole run.
fn values(arguments: &Arguments, run_ns: u64) -> Result<[(&'static str, i64); 3], ToolError> {
    let place = &arguments.place;
    let (from, to) = place.part()?.span(run_ns)?;
    let asked = [
        (place.from.is_some() || place.since.is_some(), ":from_ns"),
        (place.to.is_some(), ":to_ns"),
        (place.pid.is_some(), ":pid"),
    ];
    if let Some((_, unused)) = asked.into_iter().find(|(given, name)| *given && !arguments.sql.contains(name)) {
        let example = "WHERE timestamp >= :from_ns AND timestamp < :to_ns AND pid = :pid";
        return Err(ToolError::Arguments(format!(
            "the statement does not use {unused}: add {example}, or leave that argument out"
        )));
    }
    let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
    Ok([(":from_ns", signed(from)), (":to_ns", signed(to)), (":pid", place.pid.map_or(-1, i64::from))])
}

fn json(value: &Value<'_>) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Int(n) => (*n).into(),
        Value::Real(x) => (*x).into(),
        Value::Text(text) => clean(text, CELL).into(),
        Value::Blob(bytes) => format!("<{} bytes>", bytes.len()).into(),
    }
}
