// SPDX-License-Identifier: Apache-2.0
//! A table of text, its columns as wide as they need to be.

use crate::style::Style;
use unicode_width::UnicodeWidthStr;

/// Which side of a column the text stands at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows of cells under a heading.
#[derive(Debug, Clone, Default)]
pub struct Table {
    pub(crate) heading: Vec<(String, Option<Align>)>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these column headings.
    pub fn new(columns: impl IntoIterator<Item = (String, Option<Align>)>) -> Self {
        Self { heading: columns.into_iter().collect(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn push(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// How many rows it has.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines: heading first, columns two blanks apart, nothing after a line's last character.
    pub fn lines(&self, style: Style) -> Vec<String> {
        let layout = TableLayout::fit(&self.heading, &self.rows);
        let mut lines = vec![style.bold(&layout.heading())];
        lines.extend(self.rows.iter().map(|row| layout.line(row)));
        lines
    }
}

/// The columns of a table: for rows that stream, fitted to the first of them.
#[derive(Debug, Clone)]
pub struct TableLayout {
    columns: Vec<Column>,
}

#[derive(Debug, Clone)]
struct Column {
    name: String,
    width: usize,
    align: Align,
}

impl TableLayout {
    /// Columns as wide as their widest cell. Where no side is asked for, a column that holds only numbers stands right.
    pub fn fit(heading: &[(String, Option<Align>)], rows: &[Vec<String>]) -> Self {
        let column = |(i, (name, align)): (usize, &(String, Option<Align>))| {
            let cells = || rows.iter().filter_map(|row| row.get(i));
            let width = cells().map(|cell| cell.width()).chain([name.width()]).max().unwrap_or(0);
            let numeric = || !rows.is_empty() && cells().all(|cell| is_number(cell));
            let align = align.unwrap_or_else(|| if numeric() { Align::Right } else { Align::Left });
            Column { name: name.clone(), width, align }
        };
        Self { columns: heading.iter().enumerate().map(column).collect() }
    }

    /// The line with the names of the columns.
    pub fn heading(&self) -> String {
        self.draw(self.columns.iter().map(|column| column.name.as_str()))
    }

    /// A row as a line. A cell wider than its column pushes the others of its row aside.
    pub fn line(&self, cells: &[String]) -> String {
        self.draw(cells.iter().map(String::as_str))
    }

    fn draw<'a>(&self, cells: impl Iterator<Item = &'a str>) -> String {
        let mut line = String::new();
        for (i, (cell, column)) in cells.zip(&self.columns).enumerate() {
            if i > 0 {
                line.push_str("  ");
            }
            let gap = std::iter::repeat_n(' ', column.width.saturating_sub(cell.width()));
            match column.align {
                Align::Left => {
                    line.push_str(cell);
                    line.extend(gap);
                }
                Align::Right => {
                    line.extend(gap);
                    line.push_str(cell);
                }
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

pub(crate) fn is_number(cell: &str) -> bool {
    cell.is_empty() || cell == "NULL" || cell.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_also_with_wide_characters() {
        let mut table = Table::new([("name".to_owned(), None), ("n".to_owned(), None)]);
        table.push(vec!["訓練.py".into(), "7".into()]);
        table.push(vec!["a".into(), "1234".into()]);
        assert_eq!(table.lines(Style::PLAIN), ["name        n", "訓練.py     7", "a        1234"]);
    }

    #[test]
    fn rows_after_the_first_need_not_fit() {
        let heading = [("n".to_owned(), None), ("word".to_owned(), None), ("x".to_owned(), Some(Align::Right))];
        let rows = [["1", "a", "2"], ["NULL", "bb", "30"]].map(|row| row.map(str::to_owned).to_vec());
        let layout = TableLayout::fit(&heading, &rows);
        assert_eq!(layout.heading(), "   n  word   x");
        let line = |cells: [&str; 3]| layout.line(&cells.map(str::to_owned));
        assert_eq!(line(["12", "c", "4"]), "  12  c      4");
        assert_eq!(line(["12345", "longer", "4"]), "12345  longer   4");
    }
}
