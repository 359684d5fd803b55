// SPDX-License-Identifier: Apache-2.0
//! Numbers as people read them. Used only where something is drawn; everything else keeps integers.

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

/// A count with thousands apart: `1,203,442`.
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

/// Text from the traced world made safe to print: control characters (which could drive the terminal)
/// and bidirectional overrides replaced, the length cut to `max` characters.
pub fn safe(text: &str, max: usize) -> String {
    let mut out: String = text
        .chars()
        .take(max)
        .map(|c| match c {
            c if c.is_control() => '\u{fffd}',
            '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
            c => c,
        })
        .collect();
    if text.chars().nth(max).is_some() {
        out.pop();
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well_at_every_size() {
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
        assert_eq!(safe("abcdef", 4), "abc…");
        assert_eq!(safe("abcd", 4), "abcd");
    }
}
