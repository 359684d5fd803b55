// SPDX-License-Identifier: Apache-2.0
//! Replaces secrets in command lines before anything is stored or shown. They are recognised by the name of a flag,
//! variable, header or key (`names`), by the program that takes them (`commands`), and by their format (`shapes`).
//!
//! When in doubt, a text is hidden, because run files are passed on. The time is linear in the length of the text
//! (`scanner`), and only the start of very long texts is kept.

mod commands;
mod names;
mod scanner;
mod shapes;

use commands::{Command, Secret};
use names::Says;
use scanner::{Scanner, is_folder, is_name_char};
use std::borrow::Cow;

/// Replaces a secret.
const HIDDEN: &str = "***";
/// Maximum length of an examined text, and of a command line, bytes. The rest is dropped, because it may hold a secret.
const LONGEST: usize = 64 << 10;
/// Marks the dropped rest.
const REST: &str = "…";

/// A command as one line, for the run file: words quoted where a shell would need it, values that look secret replaced.
pub fn command_line<S: AsRef<str>>(words: &[S]) -> String {
    let mut out = String::new();
    let mut next = Next::Nothing;
    let mut command = None;
    for (i, word) in words.iter().map(AsRef::as_ref).enumerate() {
        if i > 0 {
            out.push(' ');
        }
        if out.len() > LONGEST {
            out.push_str(REST);
            break;
        }
        command = commands::named(word).or(command);
        // The --on-alert command sends messages, and its address is often all it takes to send one.
        let sends = word.starts_with("--on-alert=") || i > 0 && words[i - 1].as_ref() == "--on-alert";
        let shown = if sends { Cow::Owned(hide_addresses(word)) } else { Cow::Borrowed(word) };
        out.push_str(&quote(&hide_word(&shown, next, command)));
        next = next_of(word, next, command);
    }
    out
}

/// What a word implies about the next one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Nothing,
    /// It may be a secret; its look decides.
    Perhaps,
    /// It is one, unless it is a flag.
    Secret,
    /// It follows a flag of a known program.
    OfCommand(Secret),
}

/// A word without what is secret in it.
fn hide_word(word: &str, before: Next, command: Option<&Command>) -> String {
    let is_value = match before {
        // `--use-auth-token --model x`: a flag that has no value.
        Next::Secret => !word.starts_with("--"),
        Next::Perhaps => shapes::random(word),
        Next::OfCommand(secret) => return hide_part(word, 0, secret).unwrap_or_else(|| hide(word)),
        Next::Nothing => false,
    };
    if is_value {
        return HIDDEN.to_owned();
    }
    let attached = command.filter(|_| word.starts_with('-')).and_then(|command| command.flag(word));
    match attached {
        Some((secret, Some(at))) => hide_part(word, at, secret).unwrap_or_else(|| hide(word)),
        _ => hide(word),
    }
}

/// A word whose secret starts at `at`, or after the first colon from there; `None` if there is no colon.
fn hide_part(word: &str, at: usize, secret: Secret) -> Option<String> {
    let from = match secret {
        Secret::Whole => at,
        Secret::AfterColon => at + word.get(at..)?.find(':')? + 1,
    };
    Some(format!("{}{HIDDEN}", word.get(..from)?))
}

/// What a word implies about the next one: `--token`, `--header-auth`, `login`, `-u` of curl.
fn next_of(word: &str, before: Next, command: Option<&Command>) -> Next {
    if let Some((secret, None)) = command.and_then(|command| command.flag(word)) {
        return Next::OfCommand(secret);
    }
    let flag = word.starts_with('-') && !word.contains(['=', ' ', ':']);
    match names::judge(word) {
        Says::Secret if flag => Next::Secret,
        Says::Perhaps if flag || word == "login" => Next::Perhaps,
        // `wandb login --relogin KEY`.
        _ if word.starts_with("--") && before == Next::Perhaps => before,
        _ => Next::Nothing,
    }
}

/// Of each address only the host stays.
fn hide_addresses(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        let end = after.find(|c: char| c.is_whitespace() || "\"'<>|;".contains(c)).unwrap_or(after.len());
        let path = after[..end].find(['/', '?', '#']);
        out.push_str(before);
        match path {
            Some(path) if path + 1 < end => {
                out.push_str(&after[..=path]);
                out.push_str(HIDDEN);
            }
            _ => out.push_str(&after[..end]),
        }
        rest = &after[end..];
    }
    out + rest
}

/// Text of any kind (an argument, a process's title, a line of code) with secrets replaced.
pub fn hide(text: &str) -> String {
    hide_and_count(text).0
}

/// The same, and how many bytes were looked at for it.
fn hide_and_count(text: &str) -> (String, usize) {
    let whole = text.len() <= LONGEST;
    let examined = if whole { text } else { &text[..text.floor_char_boundary(LONGEST)] };
    // `NAME=value` or `--name=value` as a whole: the value is all that follows, blanks and quotes too.
    if let Some((name, value)) = examined.split_once('=')
        && is_name(name)
        && hides(name, value)
    {
        return (format!("{name}={HIDDEN}"), examined.len());
    }
    let (mut out, looked) = Scanner::new(examined).run();
    if !whole {
        // The last word was not seen to its end, and half a secret may not look like one.
        out.truncate(out.rfind(char::is_whitespace).unwrap_or(0));
        out.push_str(REST);
    }
    (out, looked + examined.len())
}

/// Whether to hide the value of a name.
fn hides(name: &str, value: &str) -> bool {
    match names::judge(name) {
        Says::Secret => !value.is_empty() && value != HIDDEN && !is_folder(name, value),
        Says::Perhaps => shapes::random(value),
        Says::Nothing => false,
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_name_char)
}

fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    // The replacement is ours and not a shell pattern.
    if !word.is_empty() && word.replace(HIDDEN, "").chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests;
