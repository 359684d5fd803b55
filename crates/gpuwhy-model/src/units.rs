// SPDX-License-Identifier: Apache-2.0
//! Numbers formatted for people. Used only for display; everything else keeps integers.

/// A duration: `840 ns`, `7.2 ms`, `37.2 s`, `12 min 5 s`.
pub fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => scaled(ns, 1e3, "µs"),
        1_000_000..1_000_000_000 => scaled(ns, 1e6, "ms"),
        1_000_000_000..600_000_000_000 => scaled(ns, 1e9, "s"),
        _ => {
            let seconds = ns / 1_000_000_000;
            match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
                (0, m, s) => format!("{m} min {s} s"),
                (h, m, _) => format!("{h} h {m} min"),
            }
        }
    }
}

/// A size in decimal units, as GPU memory and bandwidth are quoted: `207 GB`.
pub fn bytes(n: u64) -> String {
    match n {
        0..1_000 => format!("{n} B"),
        1_000..1_000_000 => scaled(n, 1e3, "kB"),
        1_000_000..1_000_000_000 => scaled(n, 1e6, "MB"),
        1_000_000_000..1_000_000_000_000 => scaled(n, 1e9, "GB"),
        _ => scaled(n, 1e12, "TB"),
    }
}

/// A count with separated thousands: `1,203,442`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A share of a whole, `31 %`; one decimal below ten percent, `0 %` only for nothing at all.
pub fn percent(part: f64, whole: f64) -> String {
    if whole <= 0.0 {
        return "–".into();
    }
    match part / whole * 100.0 {
        0.0 => "0 %".into(),
        p if p < 0.1 => "<0.1 %".into(),
        p if p < 9.95 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

/// Three significant digits and a unit.
fn scaled(n: u64, unit: f64, name: &str) -> String {
    let value = n as f64 / unit;
    if value < 9.995 {
        format!("{value:.2} {name}")
    } else if value < 99.95 {
        format!("{value:.1} {name}")
    } else {
        format!("{value:.0} {name}")
    }
}

/// Whether a character must not be printed unchanged: it could control the terminal, change the reading direction, or is
/// invisible, so that different names would look alike.
pub fn is_unseen(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    c.is_control()
        || matches!(c,
            // Zero-width characters, marks of direction, separators, variation selectors, tags, byte order marks.
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
            // Invisible letters.
            | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{3164}' | '\u{ffa0}' | '\u{1d173}'..='\u{1d17a}')
}

/// Text from traced programs made safe to print: replaces characters for which [`is_unseen`] holds and cuts to `max`
/// characters.
pub fn safe(text: &str, max: usize) -> String {
    let mut out: String =
        text.chars().take(max).map(|c| if is_unseen(c) { char::REPLACEMENT_CHARACTER } else { c }).collect();
    if text.chars().nth(max).is_some() {
        out.pop();
        out.push('…');
    }
    out
}

/// Text from traced programs as a CSV cell, quoted where needed. Line ends and tabs stay; other characters for which
/// [`is_unseen`] holds are replaced. Spreadsheets treat a cell that begins with `=`, `+`, `-`, `@`, a tab or a line end as a
/// formula: it gets a leading apostrophe, so that they show it as text.
pub fn csv_cell(text: &str) -> String {
    let kept = |c: char| matches!(c, '\n' | '\r' | '\t') || !is_unseen(c);
    let text: String = text.chars().map(|c| if kept(c) { c } else { char::REPLACEMENT_CHARACTER }).collect();
    let mark = if text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']) { "'" } else { "" };
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{mark}{}\"", text.replace('"', "\"\""))
    } else {
        format!("{mark}{text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_readable_at_every_size() {
        let shown: Vec<String> = [0, 999, 1_000, 7_200_000, 37_200_000_000, 725_000_000_000, 7_260_000_000_000]
            .into_iter()
            .map(time)
            .collect();
        assert_eq!(shown, ["0 ns", "999 ns", "1.00 µs", "7.20 ms", "37.2 s", "12 min 5 s", "2 h 1 min"]);
    }

    #[test]
    fn sizes_counts_and_shares() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(207_000_000_000), "207 GB");
        assert_eq!(count(1_203_442), "1,203,442");
        assert_eq!(count(999), "999");
        assert_eq!(percent(31.0, 100.0), "31 %");
        assert_eq!(percent(0.01, 100.0), "<0.1 %");
        assert_eq!(percent(1.0, 0.0), "–");
    }

    #[test]
    fn hostile_names_cannot_drive_the_terminal() {
        assert_eq!(safe("a\x1b[2Jb\u{202e}c", 80), "a\u{fffd}[2Jb\u{fffd}c");
        for unseen in [
            "\u{200b}", "\u{200f}", "\u{202a}", "\u{202e}", "\u{2060}", "\u{206f}", "\u{feff}", "\u{ad}", "\u{7f}",
            "\u{9b}",
        ] {
            assert_eq!(safe(&format!("trai{unseen}n"), 80), "trai\u{fffd}n", "{unseen:?}");
        }
        assert_eq!(safe("größe 漢字 naïve 🚀", 80), "größe 漢字 naïve 🚀");
        assert_eq!(safe("abcdef", 4), "abc…");
        assert_eq!(safe("abcd", 4), "abcd");
    }

    #[test]
    fn no_name_is_a_formula_in_a_cell() {
        for (text, cell) in [
            ("train.py", "train.py"),
            ("", ""),
            ("1.5", "1.5"),
            ("=HYPERLINK(\"http://x\")", "\"'=HYPERLINK(\"\"http://x\"\")\""),
            ("+1", "'+1"),
            ("-m train", "'-m train"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'\t=1"),
            ("\r=1", "\"'\r=1\""),
            ("a=1", "a=1"),
            ("a,b", "\"a,b\""),
            ("a\nb", "\"a\nb\""),
            ("a\x1b[2J\u{202e}b\u{200b}", "a\u{fffd}[2J\u{fffd}b\u{fffd}"),
        ] {
            assert_eq!(csv_cell(text), cell);
        }
    }
}
