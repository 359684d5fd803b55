// SPDX-License-Identifier: Apache-2.0
//! Where events begin: cutting a file into parts that can be read on their own, and finding back after broken text.
//!
//! An event's start looks like nothing else in a trace: `}`, a comma (or the list's `[`), `{` and one of the few keys
//! an event may begin with. The objects inside events (`"args": {"name": …}`) follow a colon, and the `{lambda()#1}`
//! of C++ names is not followed by a key.

use super::event::is_event;
use memchr::{memchr, memrchr};

/// The first place at or after `from` where an event seems to begin.
pub(super) fn next_start(data: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(found) = memchr(b'{', data.get(at..)?) {
        at += found;
        if looks_like_start(data, at) {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// The last place, not at the very start, where an event begins that is complete: what comes before can be read
/// without what comes after.
pub(super) fn last_start(data: &[u8]) -> Option<usize> {
    let mut end = data.len();
    while let Some(at) = memrchr(b'{', &data[..end]) {
        if at == 0 {
            return None;
        }
        if looks_like_start(data, at) && is_event(&data[at..]) {
            return Some(at);
        }
        end = at;
    }
    None
}

fn looks_like_start(data: &[u8], at: usize) -> bool {
    let before = data[..at].trim_ascii_end();
    let follows = match before.split_last() {
        Some((b',', rest)) => rest.trim_ascii_end().ends_with(b"}"),
        Some((b'[', _)) => true,
        _ => false,
    };
    follows && begins_with_event_key(&data[at + 1..])
}

fn begins_with_event_key(rest: &[u8]) -> bool {
    let Some(rest) = rest.trim_ascii_start().strip_prefix(b"\"") else { return false };
    // The longest key is four bytes.
    let Some(quote) = memchr(b'"', rest.get(..5).unwrap_or(rest)) else { return false };
    let known = matches!(&rest[..quote], b"ph" | b"cat" | b"name" | b"pid" | b"tid" | b"ts" | b"dur" | b"id" | b"args");
    known && rest[quote + 1..].trim_ascii_start().first() == Some(&b':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_events_only() {
        let text = br#"[{"ph":"M","args":{"name":"x"}},{"ph":"X","name":"f<{lambda()#1}>, {lambda","args":{"a":[{"z":1},{"q":2}]}},
            {"ph": "X"#;
        let first = next_start(text, 0).unwrap();
        assert_eq!(first, 1);
        let second = next_start(text, first + 1).unwrap();
        assert!(text[second..].starts_with(br#"{"ph":"X","name":"f<"#));
        assert_eq!(last_start(text), Some(second), "the incomplete last event is no place to cut");
        assert_eq!(last_start(b"{\"ph\": \"X\"}"), None);
    }
}
