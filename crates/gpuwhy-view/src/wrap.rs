// SPDX-License-Identifier: Apache-2.0
//! Long lines broken at blanks.

use unicode_width::UnicodeWidthStr;

/// The text in lines of at most `width` columns; all but the first begin with `hang` blanks. A word that is wider than
/// that stays whole, and blanks between columns stay as they are.
pub fn wrap(text: &str, width: usize, hang: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = text.trim_end().to_owned();
    while columns(&rest) > width {
        let Some(at) = break_at(&rest, width, hang) else { break };
        let next = format!("{:hang$}{}", "", rest[at..].trim_start());
        rest.truncate(rest[..at].trim_end().len());
        lines.push(std::mem::replace(&mut rest, next));
    }
    lines.push(rest);
    lines
}

/// Breaks a line at blanks for a narrower terminal; the rest is indented a little more.
pub fn fold(line: &str, width: usize) -> Vec<String> {
    let indent = line.len() - line.trim_start_matches(' ').len();
    // With almost no room beside the indent, drop the indent.
    if indent + 2 > width / 2 { wrap(line, width, 2) } else { wrap(line, width, indent + 2) }
}

/// The columns a text takes; escape sequences take none.
fn columns(text: &str) -> usize {
    if !text.contains('\x1b') {
        return text.width();
    }
    let (mut plain, mut escape) = (String::with_capacity(text.len()), false);
    for c in text.chars() {
        if escape || c == '\x1b' {
            escape = !(escape && c.is_ascii_alphabetic());
        } else {
            plain.push(c);
        }
    }
    plain.width()
}

/// The last blank that fits; else the first there is. Never one before the hang: the rest must get shorter. Never one
/// between a number and its unit.
fn break_at(text: &str, width: usize, hang: usize) -> Option<usize> {
    let beyond = |at: &usize| *at > hang && !text[..*at].trim().is_empty() && !is_before_unit(text, *at);
    let mut blanks = text.match_indices(' ').map(|(at, _)| at).filter(beyond).peekable();
    let first = blanks.peek().copied();
    blanks.take_while(|at| columns(&text[..*at]) <= width).last().or(first)
}

/// Whether the blank there is the one in `6.37 s`.
fn is_before_unit(text: &str, blank: usize) -> bool {
    let next = &text[blank + 1..];
    let end = next.find(|c: char| !c.is_alphabetic() && c != '%').unwrap_or(next.len());
    let unit = &next[..end];
    text[..blank].ends_with(|c: char| c.is_ascii_digit()) && (UNITS.contains(&unit) || unit.starts_with('%'))
}

/// The units that `gpuwhy_model::units` and the samples of a machine are written in.
const UNITS: [&str; 17] =
    ["ns", "µs", "ms", "s", "min", "h", "B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "MHz", "GHz", "W"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_goes_on_below_itself() {
        assert_eq!(fold("  at 3.04 s memory ran out", 16), ["  at 3.04 s", "    memory ran", "    out"]);
        assert_eq!(fold("\x1b[33mab cd\x1b[0m", 5), ["\x1b[33mab cd\x1b[0m"]);
        assert_eq!(fold("          a b c", 14), ["          a b", "  c"]);
    }

    #[test]
    fn a_number_keeps_its_unit() {
        assert_eq!(wrap("the GPU was idle for 6.37 s of it", 25, 2), ["the GPU was idle for", "  6.37 s of it"]);
        assert_eq!(wrap("it took (12 %), 5 µs/call", 8, 0), ["it took", "(12 %),", "5 µs/call"]);
        assert_eq!(wrap("in 5 steps", 4, 0), ["in 5", "steps"]);
        assert_eq!(wrap("5    s", 4, 0), ["5", "s"]);
        for (number, unit) in [(gpuwhy_model::units::time as fn(u64) -> String, 3), (gpuwhy_model::units::bytes, 3)] {
            for n in (0..17).map(|digits| unit * 10_u64.pow(digits)) {
                let text = number(n);
                // `12 min 5 s` are two numbers.
                let parts = wrap(&text, 1, 0);
                assert!(parts.iter().all(|part| part.contains(' ')), "{parts:?}");
            }
        }
        assert_eq!(wrap(&gpuwhy_model::units::percent(1.0, 3.0), 1, 0), ["33 %"]);
    }

    #[test]
    fn lines_break_at_blanks_and_hang() {
        assert_eq!(wrap("a bc def", 80, 2), ["a bc def"]);
        assert_eq!(wrap("a bc def ghi", 6, 2), ["a bc", "  def", "  ghi"]);
        assert_eq!(wrap("  fix  訓練 訓練", 12, 4), ["  fix  訓練", "    訓練"]);
        assert_eq!(wrap("averylongword x", 4, 0), ["averylongword", "x"]);
        assert_eq!(wrap("averylongword", 4, 0), ["averylongword"]);
        assert_eq!(wrap("          averylongword", 4, 10), ["          averylongword"]);
        assert_eq!(wrap("", 4, 0), [""]);
    }
}
