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
    heading: Vec<(String, Option<Align>)>,
    rows: Vec<Vec<String>>,
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
        let widths: Vec<usize> = (0..self.heading.len())
            .map(|i| {
                let cells = self.rows.iter().filter_map(|row| row.get(i));
                cells.map(|c| c.width()).chain([self.heading[i].0.width()]).max().unwrap_or(0)
            })
            .collect();
        let draw = |cells: &mut dyn Iterator<Item = &String>| {
            let mut line = String::new();
            for (i, cell) in cells.enumerate().take(widths.len()) {
                let gap = " ".repeat(widths[i].saturating_sub(cell.width()));
                if i > 0 {
                    line.push_str("  ");
                }
                match self.align(i) {
                    Align::Left => line.extend([cell.as_str(), &gap]),
                    Align::Right => line.extend([gap.as_str(), cell]),
                }
            }
            line.truncate(line.trim_end().len());
            line
        };
        let mut lines = vec![style.bold(&draw(&mut self.heading.iter().map(|(name, _)| name)))];
        lines.extend(self.rows.iter().map(|row| draw(&mut row.iter())));
        lines
    }

    /// As asked, else right for a column that holds only numbers.
    fn align(&self, column: usize) -> Align {
        self.heading[column].1.unwrap_or_else(|| {
            let numeric = |c: &String| c.is_empty() || c == "NULL" || c.parse::<f64>().is_ok();
            let all = self.rows.iter().filter_map(|row| row.get(column)).all(numeric);
            if all && !self.rows.is_empty() { Align::Right } else { Align::Left }
        })
    }
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
}
