// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy query`: read-only SQL on a run file. Rows are written as they are found and not kept.

mod formats;

use crate::cli::Query;
use crate::output;
use crate::thinned::Thinned;
use formats::{CsvRows, JsonRows, RowFormat, TableRows};
use gpuwhy_model::{LossCause, units};
use gpuwhy_store::{Limits, Reader};
use std::io::{BufWriter, StdoutLock, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;

/// Default number of rows on a terminal.
const TERMINAL_ROWS: u64 = 1_000;
/// Size of the output buffer, bytes.
const BUFFER: usize = 64 << 10;

pub(crate) fn run(args: &Query) -> anyhow::Result<ExitCode> {
    let (file, sql) = args.run_and_sql().unwrap_or_else(|wrong| wrong.exit());
    gpuwhy_store::limit_memory(args.memory.0.unwrap_or(u64::MAX));
    let reader = output::open(file)?;
    let Some(sql) = sql else {
        output::show(gpuwhy_ask::schema::lines(&reader)?)?;
        return Ok(ExitCode::SUCCESS);
    };
    let is_table = !args.json && !args.csv;
    let terminal = output::terminal_columns();
    let by_default = if terminal.is_some() { TERMINAL_ROWS } else { u64::MAX };
    let limits = Limits { time: args.timeout, rows: args.rows.unwrap_or(by_default), ..Limits::default() };
    let out = BufWriter::with_capacity(BUFFER, Output { reader: &reader, stdout: std::io::stdout().lock() });
    let mut left_out = 0;
    let more = if args.json {
        print(&reader, sql, &limits, &mut JsonRows::new(out))?
    } else if args.csv {
        print(&reader, sql, &limits, &mut CsvRows::new(out))?
    } else {
        let mut rows = TableRows::new(out, output::stdout_style(), terminal);
        let more = print(&reader, sql, &limits, &mut rows)?;
        left_out = rows.left_out();
        more
    };
    if left_out > 0 {
        let columns = if left_out == 1 { "1 column does".to_owned() } else { format!("{left_out} columns do") };
        output::say_aside(&format!(
            "gpuwhy: {columns} not fit the terminal: select fewer, or pipe the table (| less -S)"
        ));
    }
    if more {
        let rows = units::count(limits.rows);
        let advice = if is_table || terminal.is_some() { ": raise --rows, or pipe to less" } else { "" };
        output::say_aside(&format!("gpuwhy: showing the first {rows} rows; there are more{advice}"));
    }
    if let Some(note) = thinned(&reader)?.note() {
        output::say_aside(&format!("gpuwhy: {note}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Standard output. Time spent waiting for its reader does not count against the query's time limit.
struct Output<'a> {
    reader: &'a Reader,
    stdout: StdoutLock<'static>,
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.reader.off_the_clock(|| self.stdout.write(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.reader.off_the_clock(|| self.stdout.flush())
    }
}

/// Prints the answer and returns whether the limits cut it. If an error cuts it, the output is still closed as its
/// format requires, and the error says after how many rows.
fn print(reader: &Reader, sql: &str, limits: &Limits, format: &mut impl RowFormat) -> anyhow::Result<bool> {
    let (mut printed, mut names, mut failed) = (0u64, Vec::new(), None);
    let outcome = reader.query(sql, limits, |columns, row| {
        if printed == 0 {
            names = columns.to_vec();
        }
        printed += 1;
        failed = format.row(columns, row).err();
        if failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    if let Some(error) = failed {
        return Err(error.into());
    }
    match outcome {
        Ok(outcome) => {
            format.end(&outcome.columns)?;
            Ok(outcome.more)
        }
        Err(error) if printed == 0 => Err(with_advice(error)),
        Err(error) => {
            format.end(&names)?;
            let rows = units::count(printed);
            Err(with_advice(error).context(format!("the output is incomplete: it ends after {rows} rows")))
        }
    }
}

/// Adds what the user can do about an error.
fn with_advice(error: gpuwhy_store::Error) -> anyhow::Error {
    let wants_memory = matches!(error, gpuwhy_store::Error::TooMuchMemory);
    let error = anyhow::Error::from(error);
    if wants_memory { error.context("out of memory: raise the limit with --memory") } else { error }
}

/// Whether the number of rows is the number of events.
fn thinned(reader: &Reader) -> gpuwhy_store::Result<Thinned> {
    let session = reader.session()?;
    let loss = reader.loss()?;
    let refused = loss.iter().filter(|row| row.cause == LossCause::SizeCap.name()).map(|row| row.count).sum();
    Ok(Thinned { stored: session.events_stored, thinned: session.thinned, refused, max_size: session.max_size })
}
