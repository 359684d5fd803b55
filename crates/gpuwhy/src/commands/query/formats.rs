// SPDX-License-Identifier: Apache-2.0
//! How rows are written: a table, comma-separated values, an array of JSON objects.

use gpuwhy_model::units;
use gpuwhy_store::Value;
use gpuwhy_view::{FittedTable, Style, Table, TableLayout};
use std::borrow::Cow;
use std::io::{Result, Write};

/// Column widths are fitted to this many rows at the start.
const ROWS_FITTED: usize = 1_000;

/// Writes rows one at a time.
pub(super) trait RowFormat {
    fn row(&mut self, columns: &[String], row: &[Value<'_>]) -> Result<()>;

    /// Called after the last row; `columns` is used if there was none.
    fn end(&mut self, columns: &[String]) -> Result<()>;
}

/// A table for people.
pub(super) struct TableRows<W> {
    out: W,
    style: Style,
    /// Columns of the terminal, if there is one.
    width: Option<usize>,
    /// The first rows, kept until the columns are fitted.
    first: Vec<Vec<String>>,
    layout: Option<Layout>,
}

enum Layout {
    /// As wide as its cells: for files and pipes.
    Wide(TableLayout),
    /// Within a terminal.
    Fitted(FittedTable),
}

impl<W: Write> TableRows<W> {
    pub(super) fn new(out: W, style: Style, width: Option<usize>) -> Self {
        Self { out, style, width, first: Vec::new(), layout: None }
    }

    /// How many columns did not fit the terminal.
    pub(super) fn left_out(&self) -> usize {
        match &self.layout {
            Some(Layout::Fitted(fitted)) => fitted.left_out(),
            _ => 0,
        }
    }

    fn begin(&mut self, columns: &[String]) -> Result<()> {
        let heading: Vec<_> = columns.iter().map(|name| (units::safe(name, 200), None)).collect();
        let first = std::mem::take(&mut self.first);
        let layout = match self.width {
            None => Layout::Wide(TableLayout::fit(&heading, &first)),
            Some(width) => {
                let mut table = Table::new(heading);
                first.iter().for_each(|row| table.push(row.clone()));
                Layout::Fitted(FittedTable::fit(&table, width))
            }
        };
        let heading = match &layout {
            Layout::Wide(layout) => vec![layout.heading()],
            Layout::Fitted(layout) => layout.heading(),
        };
        for line in heading {
            writeln!(self.out, "{}", self.style.bold(&line))?;
        }
        for row in first {
            self.write(&layout, &row)?;
        }
        self.layout = Some(layout);
        Ok(())
    }

    fn write(&mut self, layout: &Layout, row: &[String]) -> Result<()> {
        match layout {
            Layout::Wide(layout) => writeln!(self.out, "{}", layout.line(row)),
            Layout::Fitted(layout) => layout.lines(row).iter().try_for_each(|line| writeln!(self.out, "{line}")),
        }
    }
}

impl<W: Write> RowFormat for TableRows<W> {
    fn row(&mut self, columns: &[String], row: &[Value<'_>]) -> Result<()> {
        let cells: Vec<String> = row.iter().map(shown).collect();
        if let Some(layout) = self.layout.take() {
            let written = self.write(&layout, &cells);
            self.layout = Some(layout);
            return written;
        }
        self.first.push(cells);
        if self.first.len() < ROWS_FITTED { Ok(()) } else { self.begin(columns) }
    }

    fn end(&mut self, columns: &[String]) -> Result<()> {
        if self.layout.is_none() {
            self.begin(columns)?;
        }
        self.out.flush()
    }
}

/// A value in a table: safe to print, never empty for NULL.
fn shown(value: &Value<'_>) -> String {
    match value {
        Value::Null => "NULL".into(),
        Value::Int(n) => n.to_string(),
        Value::Real(x) => real(*x),
        Value::Text(text) => units::safe(&one_line(text), 500),
        Value::Blob(bytes) => format!("<{} bytes>", bytes.len()),
    }
}

/// A text of several lines, such as a finding's recommendations, as one line.
fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains('\n') {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.lines().filter(|line| !line.trim().is_empty()).collect::<Vec<_>>().join(" · "))
}

/// Up to six decimals, without the rounding noise of binary fractions.
fn real(x: f64) -> String {
    if !x.is_finite() || x.abs() >= 1e15 {
        return x.to_string();
    }
    let text = format!("{x:.6}");
    let text = text.trim_end_matches('0');
    if text.ends_with('.') { format!("{text}0") } else { text.to_owned() }
}

/// An array of objects.
pub(super) struct JsonRows<W> {
    out: W,
    /// Column names as JSON strings; of columns with the same name, only the last is written.
    names: Vec<Option<String>>,
}

impl<W: Write> JsonRows<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, names: Vec::new() }
    }
}

impl<W: Write> RowFormat for JsonRows<W> {
    fn row(&mut self, columns: &[String], row: &[Value<'_>]) -> Result<()> {
        let begins = self.names.is_empty();
        if begins {
            let is_last = |i: usize| !columns[i + 1..].contains(&columns[i]);
            let name = |i: usize| is_last(i).then(|| serde_json::Value::from(columns[i].as_str()).to_string());
            self.names = (0..columns.len()).map(name).collect();
        }
        self.out.write_all(if begins { b"[\n{" } else { b",\n{" })?;
        let named = self.names.iter().zip(row).filter_map(|(name, value)| Some((name.as_ref()?, value)));
        for (i, (name, value)) in named.enumerate() {
            self.out.write_all(if i > 0 { b"," } else { b"" })?;
            self.out.write_all(name.as_bytes())?;
            self.out.write_all(b":")?;
            match value {
                Value::Null => self.out.write_all(b"null")?,
                Value::Int(n) => write!(self.out, "{n}")?,
                Value::Real(x) => serde_json::to_writer(&mut self.out, x)?,
                Value::Text(text) => serde_json::to_writer(&mut self.out, text)?,
                Value::Blob(bytes) => write!(self.out, "\"{}\"", hex(bytes))?,
            }
        }
        self.out.write_all(b"}")
    }

    fn end(&mut self, _: &[String]) -> Result<()> {
        self.out.write_all(if self.names.is_empty() { b"[]\n" } else { b"\n]\n" })?;
        self.out.flush()
    }
}

/// Comma-separated values as in RFC 4180, but with \n line ends. Text comes from traced programs, so it is escaped such
/// that no spreadsheet evaluates it as a formula; numbers are written unchanged.
pub(super) struct CsvRows<W> {
    out: W,
    has_heading: bool,
}

impl<W: Write> CsvRows<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, has_heading: false }
    }

    fn line(&mut self, cells: impl Iterator<Item = String>) -> Result<()> {
        for (i, cell) in cells.enumerate() {
            self.out.write_all(if i > 0 { b"," } else { b"" })?;
            self.out.write_all(cell.as_bytes())?;
        }
        self.out.write_all(b"\n")
    }

    fn begin(&mut self, columns: &[String]) -> Result<()> {
        self.has_heading = true;
        self.line(columns.iter().map(|name| units::csv_cell(name)))
    }
}

impl<W: Write> RowFormat for CsvRows<W> {
    fn row(&mut self, columns: &[String], row: &[Value<'_>]) -> Result<()> {
        if !self.has_heading {
            self.begin(columns)?;
        }
        self.line(row.iter().map(|value| match value {
            Value::Null => String::new(),
            Value::Blob(bytes) => hex(bytes),
            Value::Text(text) => units::csv_cell(text),
            Value::Int(n) => n.to_string(),
            Value::Real(x) => x.to_string(),
        }))
    }

    fn end(&mut self, columns: &[String]) -> Result<()> {
        if !self.has_heading {
            self.begin(columns)?;
        }
        self.out.flush()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_cells_read_well() {
        assert_eq!(real(0.1 + 0.2), "0.3");
        assert_eq!(real(2.0), "2.0");
        assert_eq!(real(f64::NAN), "NaN");
        assert_eq!(shown(&Value::Blob(&[1, 2])), "<2 bytes>");
    }

    #[test]
    fn lines_of_a_text_are_apart_in_a_cell() {
        assert_eq!(shown(&Value::Text("raise num_workers\r\n\nread less\n".into())), "raise num_workers · read less");
        assert_eq!(shown(&Value::Text("a\x1bb".into())), "a\u{fffd}b");
    }

    #[test]
    fn a_table_fits_a_terminal_and_says_what_it_leaves_out() {
        let columns = ["n", "recommendations", "first_ns", "last_ns"].map(str::to_owned);
        let advice = "raise num_workers\nread the files from a local disk";
        let row = [Value::Int(1), Value::Text(advice.into()), Value::Int(1_234_567_890), Value::Int(9_876_543_210)];
        let written = |width| {
            let mut rows = TableRows::new(Vec::new(), Style::PLAIN, width);
            rows.row(&columns, &row).unwrap();
            rows.end(&columns).unwrap();
            (rows.left_out(), String::from_utf8(rows.out).unwrap())
        };
        let (left_out, text) = written(Some(40));
        assert_eq!(left_out, 1, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 40) && text.contains("1234567890"), "{text}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let found = words(&text);
        assert!(words(&advice.replace('\n', " · ")).iter().all(|word| found.contains(word)), "{text}");
        let (left_out, text) = written(None);
        assert_eq!((left_out, text.lines().count()), (0, 2), "{text}");
    }

    #[test]
    fn strangers_names_are_no_formulas_in_csv_and_numbers_stay() {
        let mut rows = CsvRows::new(Vec::new());
        let columns = ["=cmd", "n"].map(str::to_owned);
        for (text, number) in [("=1+1", Value::Int(-5)), ("@x\u{202e}", Value::Real(-0.5)), ("plain", Value::Null)] {
            rows.row(&columns, &[Value::Text(text.into()), number]).unwrap();
        }
        rows.end(&columns).unwrap();
        assert_eq!(String::from_utf8(rows.out).unwrap(), "'=cmd,n\n'=1+1,-5\n'@x\u{fffd},-0.5\nplain,\n");
    }

    #[test]
    fn each_name_is_once_in_an_object() {
        let mut rows = JsonRows::new(Vec::new());
        let columns = ["pid", "n", "pid"].map(str::to_owned);
        rows.row(&columns, &[Value::Int(1), Value::Real(f64::NAN), Value::Text("a\"b".into())]).unwrap();
        rows.end(&columns).unwrap();
        assert_eq!(String::from_utf8(rows.out).unwrap(), "[\n{\"n\":null,\"pid\":\"a\\\"b\"}\n]\n");
    }
}
