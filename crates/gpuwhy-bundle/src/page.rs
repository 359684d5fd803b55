// SPDX-License-Identifier: Apache-2.0
//! `timeline.html`: the interactive timeline in a single file.
//!
//! Names in it come from the traced processes. They are JSON in a script element that never runs, without any character
//! that HTML could take for markup. The page's policy allows only its own script, by hash, and that script uses names as
//! text only. The page loads nothing.

use crate::{Result, Timeline};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Makes the page.
pub fn html(timeline: &Timeline) -> Result<String> {
    let data = harmless(&serde_json::to_string(timeline)?);
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text.as_bytes()));
    let mut page = String::with_capacity(PAGE.len() + STYLE.len() + SCRIPT.len() + data.len());
    let mut rest = PAGE;
    // One pass, so that braces in inserted text are not taken for placeholders.
    while let Some((before, after)) = rest.split_once('{') {
        page.push_str(before);
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        match name {
            "style" => page.push_str(STYLE),
            "script" => page.push_str(SCRIPT),
            "style_hash" => page.push_str(&hash(STYLE)),
            "script_hash" => page.push_str(&hash(SCRIPT)),
            _ => page.push_str(&data),
        }
        rest = after;
    }
    page.push_str(rest);
    Ok(page)
}

/// Escapes the characters that could end the script element. Outside of strings, JSON has none of them.
fn harmless(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                // Writing to a string does not fail.
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            _ => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_become_markup() {
        let evil = "</script><img src=x onerror=alert(1)>&amp;\u{2028}{script}";
        let timeline = Timeline {
            schema: "gpuwhy.memory-timeline/1",
            run: evil.to_owned(),
            start_monotonic_ns: 0,
            start_unix_ns: 0,
            from_ns: 0,
            to_ns: 1,
            verdict: evil.to_owned(),
            findings: Vec::new(),
            spaces: Vec::new(),
        };
        let page = html(&timeline).unwrap();
        assert_eq!(page.matches("</script>").count(), 2);
        assert!(!page.contains("<img"), "{page}");
        let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
        let read: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(read["verdict"], evil, "and keep their text");
    }

    #[test]
    fn nothing_is_loaded_from_anywhere() {
        for text in [PAGE, STYLE, SCRIPT] {
            let addresses: Vec<&str> =
                text.match_indices("http").map(|(at, _)| &text[at..(at + 30).min(text.len())]).collect();
            // The namespace of SVG is not loaded.
            assert!(
                addresses.iter().all(|at| at.starts_with("http://www.w3.org/2000/svg") || at.starts_with("http-equiv"))
            );
            assert!(!text.contains("innerHTML") && !text.contains("url(") && !text.contains("@import"));
        }
    }
}
