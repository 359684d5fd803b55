// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy query`: SQL on a run file, read-only.

use crate::cli::Query;
use crate::output;
use crate::thinned::Thinned;
use gpuwhy_model::{LossCause, units};
use gpuwhy_store::{Limits, Reader, Value};
use gpuwhy_view::Table;
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;

/// A table on the screen is aligned as a whole, so its rows are held in memory: no more than these.
const TABLE_ROWS: u64 = 100_000;

pub(crate) fn run(args: &Query) -> anyhow::Result<ExitCode> {
    let reader = Reader::open(&args.db)?;
    let Some(sql) = &args.sql else {
        gpuwhy_ask::schema::lines(&reader)?.iter().for_each(|line| println!("{line}"));
        return Ok(ExitCode::SUCCESS);
    };
    let limits = Limits { time: args.timeout, ..Limits::default() };
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.json {
        print_json(&reader, sql, &limits, &mut out)?;
    } else if args.csv {
        print_csv(&reader, sql, &limits, &mut out)?;
    } else {
        print_table(&reader, sql, &Limits { rows: TABLE_ROWS, ..limits }, &mut out)?;
    }
    out.flush()?;
    if let Some(note) = thinned(&reader)?.note() {
        output::say_aside(&format!("gpuwhy: {note}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether counting rows is counting events.
fn thinned(reader: &Reader) -> gpuwhy_store::Result<Thinned> {
    let session = reader.session()?;
    let loss = reader.loss()?;
    let refused = loss.iter().filter(|row| row.cause == LossCause::SizeCap.name()).map(|row| row.count).sum();
    Ok(Thinned { stored: session.events_stored, thinned: session.thinned, refused, max_size: session.max_size })
}

/// The answer to a question as a table, and whether there was more than the limits allow.
pub(super) fn table(reader: &Reader, sql: &str, limits: &Limits) -> gpuwhy_store::Result<(Table, bool)> {
    let mut rows = Vec::new();
    let outcome = reader.query(sql, limits, |_, row| {
        rows.push(row.iter().map(shown).collect());
        ControlFlow::Continue(())
    })?;
    let mut table = Table::new(outcome.columns.iter().map(|name| (units::safe(name, 200), None)));
    rows.into_iter().for_each(|row| table.push(row));
    Ok((table, outcome.more))
}

fn print_table(reader: &Reader, sql: &str, limits: &Limits, out: &mut impl Write) -> anyhow::Result<()> {
    let (table, more) = table(reader, sql, limits)?;
    for line in table.lines(output::stdout_style()) {
        writeln!(out, "{line}")?;
    }
    if more {
        writeln!(out, "… more than {} rows: add a LIMIT, or use --csv or --json", units::count(limits.rows))?;
    }
    Ok(())
}

/// A value in a table: safe to print, never empty for NULL.
fn shown(value: &Value<'_>) -> String {
    match value {
        Value::Null => "NULL".into(),
        Value::Int(n) => n.to_string(),
        Value::Real(x) => real(*x),
        Value::Text(text) => units::safe(text, 500),
        Value::Blob(bytes) => format!("<{} bytes>", bytes.len()),
    }
}

/// Up to six digits after the point, without the noise binary fractions leave.
fn real(x: f64) -> String {
    if !x.is_finite() || x.abs() >= 1e15 {
        return x.to_string();
    }
    let text = format!("{x:.6}");
    let text = text.trim_end_matches('0');
    if text.ends_with('.') { format!("{text}0") } else { text.to_owned() }
}

/// An array of objects, written row by row.
fn print_json(reader: &Reader, sql: &str, limits: &Limits, out: &mut impl Write) -> anyhow::Result<()> {
    let mut first = true;
    let mut failed = None;
    reader.query(sql, limits, |columns, row| {
        let object: serde_json::Map<String, serde_json::Value> =
            columns.iter().cloned().zip(row.iter().map(json)).collect();
        let separator = if std::mem::take(&mut first) { "[\n" } else { ",\n" };
        let text = serde_json::Value::Object(object).to_string();
        keep_going(write!(out, "{separator}{text}"), &mut failed)
    })?;
    writeln!(out, "{}]", if first { "[" } else { "\n" })?;
    failed.map_or(Ok(()), |error| Err(error.into()))
}

fn json(value: &Value<'_>) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Int(n) => (*n).into(),
        Value::Real(x) => (*x).into(),
        Value::Text(text) => text.as_ref().into(),
        Value::Blob(bytes) => hex(bytes).into(),
    }
}

fn print_csv(reader: &Reader, sql: &str, limits: &Limits, out: &mut impl Write) -> anyhow::Result<()> {
    let mut failed = None;
    let mut headed = false;
    let outcome = reader.query(sql, limits, |columns, row| {
        let mut text = String::new();
        if !std::mem::replace(&mut headed, true) {
            text = csv_line(columns.iter().cloned());
        }
        text += &csv_line(row.iter().map(|value| match value {
            Value::Null => String::new(),
            Value::Blob(bytes) => hex(bytes),
            Value::Text(text) => text.to_string(),
            Value::Int(n) => n.to_string(),
            Value::Real(x) => x.to_string(),
        }));
        keep_going(out.write_all(text.as_bytes()), &mut failed)
    })?;
    if !headed {
        out.write_all(csv_line(outcome.columns.into_iter()).as_bytes())?;
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

fn csv_line(cells: impl Iterator<Item = String>) -> String {
    let quoted: Vec<String> =
        cells
            .map(|cell| {
                if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell }
            })
            .collect();
    quoted.join(",") + "\r\n"
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn keep_going(outcome: std::io::Result<()>, failed: &mut Option<std::io::Error>) -> ControlFlow<()> {
    match outcome {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            *failed = Some(error);
            ControlFlow::Break(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_cells_read_well() {
        assert_eq!(real(0.1 + 0.2), "0.3");
        assert_eq!(real(2.0), "2.0");
        assert_eq!(real(f64::NAN), "NaN");
        assert_eq!(
            csv_line(["a,b".to_owned(), "say \"x\"".to_owned(), "1".to_owned()].into_iter()),
            "\"a,b\",\"say \"\"x\"\"\",1\r\n"
        );
        assert_eq!(shown(&Value::Blob(&[1, 2])), "<2 bytes>");
    }
}
