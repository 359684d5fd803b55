// SPDX-License-Identifier: Apache-2.0
//! Fits a table into a number of columns without breaking words or numbers: text wraps in its cell; where that is not
//! enough, the least important columns are dropped.

use crate::style::Style;
use crate::table::{Align, Table, is_number};
use crate::wrap::wrap;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Between two columns.
const GAP: usize = 2;
/// Width of a text column below which other columns are dropped, and its minimum.
const TEXT: usize = 20;
const LEAST_TEXT: usize = 10;

impl Table {
    /// The lines, none wider than `width` if possible: text wraps, then the columns in `spare` are dropped, in that order.
    pub fn lines_within(&self, width: usize, spare: &[&str], style: Style) -> Vec<String> {
        let natural: Vec<usize> = (0..self.heading.len()).map(|i| self.widest(i)).collect();
        if total(&natural) <= width {
            return self.lines(style);
        }
        let mut shown: Vec<usize> = (0..self.heading.len()).collect();
        let mut spare = spare.iter().filter_map(|name| self.heading.iter().position(|(head, _)| head == name));
        loop {
            if let Some(widths) = self.fit(&shown, width, TEXT) {
                return self.draw(&shown, &widths, style);
            }
            match spare.next() {
                Some(gone) => shown.retain(|i| *i != gone),
                None => break,
            }
        }
        let natural = || shown.iter().map(|i| natural[*i]).collect();
        let widths = self.fit(&shown, width, LEAST_TEXT).unwrap_or_else(natural);
        self.draw(&shown, &widths, style)
    }

    /// The given alignment, else right for a column with only numbers.
    fn align(&self, column: usize) -> Align {
        let numbers =
            || !self.rows.is_empty() && self.rows.iter().filter_map(|row| row.get(column)).all(|cell| is_number(cell));
        self.heading[column].1.unwrap_or_else(|| if numbers() { Align::Right } else { Align::Left })
    }

    fn widest(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width());
        cells.chain([self.heading[column].0.width()]).max().unwrap_or(0)
    }

    /// Column widths that fit: the widest text column shrinks first, down to `least`. `None` if they do not fit.
    fn fit(&self, shown: &[usize], width: usize, least: usize) -> Option<Vec<usize>> {
        let mut widths: Vec<usize> = shown.iter().map(|i| self.narrowest(*i)).collect();
        while total(&widths) > width {
            let text = (0..shown.len()).filter(|i| self.align(shown[*i]) == Align::Left && widths[*i] > least);
            let widest = text.max_by_key(|i| widths[*i])?;
            let over = total(&widths) - width;
            widths[widest] = widths[widest].saturating_sub(over).max(least);
        }
        Some(widths)
    }

    /// A column's width, its heading wrapped.
    fn narrowest(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width());
        let words = self.heading[column].0.split(' ').map(|word| word.width());
        cells.chain(words).max().unwrap_or(0)
    }

    fn draw(&self, shown: &[usize], widths: &[usize], style: Style) -> Vec<String> {
        let heading: Vec<String> = self.heading.iter().map(|(name, _)| name.clone()).collect();
        let aligns: Vec<Align> = shown.iter().map(|i| self.align(*i)).collect();
        let mut lines: Vec<String> = one_row(&heading, shown, widths, &aligns).iter().map(|l| style.bold(l)).collect();
        lines.extend(self.rows.iter().flat_map(|row| one_row(row, shown, widths, &aligns)));
        lines
    }
}

/// A table's columns within a width, fitted to the table's rows: also for rows that follow.
#[derive(Debug, Clone)]
pub struct FittedTable {
    heading: Vec<String>,
    shown: Vec<usize>,
    widths: Vec<usize>,
    aligns: Vec<Align>,
}

impl FittedTable {
    /// Text wraps in its cell; where that is not enough, the last columns go.
    pub fn fit(table: &Table, width: usize) -> Self {
        let mut shown: Vec<usize> = (0..table.heading.len()).collect();
        let widths = loop {
            if let Some(widths) = table.fit(&shown, width, TEXT) {
                break widths;
            }
            if shown.len() <= 1 {
                break vec![width; shown.len()];
            }
            shown.pop();
        };
        let aligns = shown.iter().map(|i| table.align(*i)).collect();
        Self { heading: table.heading.iter().map(|(name, _)| name.clone()).collect(), shown, widths, aligns }
    }

    /// How many columns did not fit.
    pub fn left_out(&self) -> usize {
        self.heading.len() - self.shown.len()
    }

    /// The names of the columns.
    pub fn heading(&self) -> Vec<String> {
        self.lines(&self.heading)
    }

    /// A row as lines. Of a word that is wider than its column, each part has a line of its own.
    pub fn lines(&self, row: &[String]) -> Vec<String> {
        let mut row = row.to_vec();
        for (i, width) in self.shown.iter().zip(&self.widths) {
            if let Some(cell) = row.get_mut(*i).filter(|cell| cell.width() > *width) {
                *cell = broken(cell, *width);
            }
        }
        one_row(&row, &self.shown, &self.widths, &self.aligns)
    }
}

/// The text with a blank wherever a word would be wider than that.
fn broken(text: &str, width: usize) -> String {
    let pieces = text.split(' ').flat_map(|word| in_pieces(word, width));
    let pieces = pieces.map(|piece| {
        let (mut out, mut used) = (String::with_capacity(piece.len()), 0);
        for c in piece.chars() {
            let wide = c.width().unwrap_or(0);
            if used + wide > width && used > 0 {
                out.push(' ');
                used = 0;
            }
            used += wide;
            out.push(c);
        }
        out
    });
    pieces.collect::<Vec<_>>().join(" ")
}

fn total(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

/// A row as lines, as many as its tallest cell needs.
fn one_row(row: &[String], shown: &[usize], widths: &[usize], aligns: &[Align]) -> Vec<String> {
    let cell = |(i, width): (&usize, &usize)| match row.get(*i) {
        Some(text) => wrap(text, *width, 0).iter().flat_map(|line| in_pieces(line, *width)).collect(),
        None => Vec::new(),
    };
    let cells: Vec<Vec<String>> = shown.iter().zip(widths).map(cell).collect();
    let tall = cells.iter().map(Vec::len).max().unwrap_or(0);
    let draw = |at: usize| {
        let mut line = String::new();
        for (i, cell) in cells.iter().enumerate() {
            let text = cell.get(at).map_or("", String::as_str);
            let gap = " ".repeat(widths[i].saturating_sub(text.width()));
            if i > 0 {
                line.push_str("  ");
            }
            match aligns[i] {
                Align::Left => line.extend([text, &gap]),
                Align::Right => line.extend([gap.as_str(), text]),
            }
        }
        line.truncate(line.trim_end().len());
        line
    };
    (0..tall).map(draw).collect()
}

/// Breaks a word that is too long, such as a path, after a slash, dot, underscore, comma or colon; without one it stays whole.
fn in_pieces(word: &str, width: usize) -> Vec<String> {
    let (mut pieces, mut rest) = (Vec::new(), word);
    while rest.width() > width {
        let ends = rest
            .char_indices()
            .filter(|(_, c)| matches!(c, '/' | '.' | '_' | ',' | ':'))
            .map(|(at, c)| at + c.len_utf8());
        match ends.take_while(|end| rest[..*end].width() <= width).last().filter(|end| *end < rest.len()) {
            Some(end) => {
                pieces.push(rest[..end].to_owned());
                rest = &rest[end..];
            }
            None => break,
        }
    }
    pieces.push(rest.to_owned());
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(heads: &[(&str, Align)], rows: &[&[&str]]) -> Table {
        let mut table = Table::new(heads.iter().map(|(name, align)| ((*name).to_owned(), Some(*align))));
        rows.iter().for_each(|row| table.push(row.iter().map(|cell| (*cell).to_owned()).collect()));
        table
    }

    #[test]
    fn text_wraps_in_its_cell_and_numbers_stay() {
        let heads = [("thread", Align::Left), ("cached, no leak", Align::Right), ("mostly", Align::Left)];
        let table = table(&heads, &[&["python3", "201 MB", "pt_data_worker 20221 had the CPU for 264 ms"]]);
        assert_eq!(table.lines_within(200, &[], Style::PLAIN), table.lines(Style::PLAIN));
        assert_eq!(
            table.lines_within(42, &[], Style::PLAIN),
            [
                "thread   cached,  mostly",
                "         no leak",
                "python3   201 MB  pt_data_worker 20221 had",
                "                  the CPU for 264 ms",
            ]
        );
    }

    #[test]
    fn the_least_important_columns_are_dropped_where_wrapping_is_not_enough() {
        let heads = [("op", Align::Left), ("calls", Align::Right), ("p95", Align::Right), ("p99", Align::Right)];
        let table = table(&heads, &[&["cudaLaunchKernel", "123,456", "847 ns", "4.74 µs"]]);
        assert_eq!(
            table.lines_within(36, &["p95", "calls"], Style::PLAIN),
            ["op                  calls      p99", "cudaLaunchKernel  123,456  4.74 µs"]
        );
        assert_eq!(
            table.lines_within(25, &["p95", "calls"], Style::PLAIN),
            ["op                    p99", "cudaLaunchKernel  4.74 µs"]
        );
    }

    #[test]
    fn rows_that_follow_fit_too() {
        let heads = [("n", Align::Right), ("word", Align::Left), ("end_ns", Align::Right)];
        let table = table(&heads, &[&["1", "a word or two and some more of them", "1234567890"]]);
        let fitted = FittedTable::fit(&table, 30);
        assert_eq!((fitted.left_out(), fitted.heading()), (1, vec!["n  word".to_owned()]));
        let row = ["2", "_ZN2atnativevectorizedelementwisekernelILi4 x", "1"].map(str::to_owned);
        assert_eq!(fitted.lines(&row), ["2  _", "   ZN2atnativevectorizedelemen", "   twisekernelILi4 x"]);
        assert_eq!(FittedTable::fit(&table, 80).left_out(), 0);
    }

    #[test]
    fn a_long_path_goes_on_after_a_slash() {
        let heads = [("bytes", Align::Right), ("line", Align::Left)];
        let table = table(&heads, &[&["1 kB", "site-packages/transformers/modeling_utils.py:110 load"]]);
        let lines = table.lines_within(40, &[], Style::PLAIN);
        assert!(lines.iter().all(|line| line.width() <= 40), "{lines:#?}");
        let joined: String = lines[1..].iter().map(|line| line.trim_start()).collect();
        assert_eq!(joined, "1 kB  site-packages/transformers/modeling_utils.py:110load");
    }
}
