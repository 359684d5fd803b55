// SPDX-License-Identifier: Apache-2.0
//! Secrets in command lines, replaced before anything is stored or shown: by the name of a flag, a variable, a header or
//! a key (`names`), and by their own look wherever they stand (`shapes`).
//!
//! In doubt something is hidden: a run file is passed on to others.

mod names;
mod shapes;

use names::Says;

/// What stands for a secret.
const HIDDEN: &str = "***";
/// Characters between a name and its value besides blanks: `"token": "x"`, `environ["TOKEN"] = 'x'`, `\"token\":\"x\"`.
const CLOSERS: [char; 5] = ['"', '\'', '\\', ']', ')'];

/// A command as one line, for the run file: words quoted where a shell would need it, values that look secret replaced.
pub fn command_line<S: AsRef<str>>(words: &[S]) -> String {
    let mut out = Vec::new();
    let (mut before, mut runs) = (Says::Nothing, false);
    for word in words {
        let word = word.as_ref();
        // What gpuwhy itself is told to run sends messages, and where to is often all that it takes to send one.
        let command = runs || word.starts_with("--on-alert=");
        let is_value = match before {
            // `--use-auth-token --model x`: a flag that has no value.
            Says::Secret => !word.starts_with("--"),
            Says::Perhaps => shapes::random(word),
            Says::Nothing => false,
        };
        let hidden = if command { hide(&hide_addresses(word)) } else { hide(word) };
        out.push(if is_value { HIDDEN.to_owned() } else { quote(&hidden) });
        before = says_of_next(word, before);
        runs = word == "--on-alert";
    }
    out.join(" ")
}

/// What a word says of the one after it: `--token`, `--header-auth`, `login`.
fn says_of_next(word: &str, before: Says) -> Says {
    let flag = word.starts_with('-') && !word.contains(['=', ' ', ':']);
    match names::judge(word) {
        says if flag && says != Says::Nothing => says,
        Says::Perhaps if word == "login" => Says::Perhaps,
        // `wandb login --relogin KEY`.
        _ if word.starts_with("--") && before == Says::Perhaps => before,
        _ => Says::Nothing,
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
    // `NAME=value` or `--name=value` as a whole: the value is all that follows, blanks and quotes too.
    if let Some((name, value)) = text.split_once('=')
        && is_name(name)
        && hides(name, value)
    {
        return format!("{name}={HIDDEN}");
    }
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let begins_word = !out.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let taken = if begins_word { hide_first(rest, &mut out) } else { None };
        at += taken.unwrap_or_else(|| {
            let length = rest.chars().next().map_or(1, char::len_utf8);
            out.push_str(&rest[..length]);
            length
        });
    }
    out
}

/// If something at the beginning of `rest` is or names a secret, writes it without and says how much that was.
fn hide_first(rest: &str, out: &mut String) -> Option<usize> {
    let shape = shapes::known(rest);
    if shape > 0 {
        out.push_str(HIDDEN);
        return Some(shape);
    }
    if let Some((shown, taken)) = shapes::webhook(rest) {
        out.push_str(&rest[..shown]);
        out.push_str(HIDDEN);
        return Some(taken);
    }
    if let Some(taken) = hide_login(rest, out) {
        return Some(taken);
    }
    let name_end = rest.find(|c: char| !is_name_char(c)).unwrap_or(rest.len());
    let name = &rest[..name_end];
    if name.is_empty() {
        return None;
    }
    let (value_at, value_end) = value_of(name, &rest[name_end..])?;
    let value = &rest[name_end + value_at..name_end + value_end];
    if !hides(name, value) {
        return None;
    }
    out.push_str(&rest[..name_end + value_at]);
    out.push_str(HIDDEN);
    Some(name_end + value_end)
}

/// Whether a value that a name stands for is to be hidden.
fn hides(name: &str, value: &str) -> bool {
    let says = names::judge(name);
    // Apptainer's working directory has the name of a password.
    let folder = name.trim_start_matches('-') == "pwd" && value.starts_with(['/', '.', '~']);
    match says {
        Says::Secret => !value.is_empty() && value != HIDDEN && !folder,
        Says::Perhaps => shapes::random(value),
        Says::Nothing => false,
    }
}

/// Where in `after`, the text that follows a name, its value stands; `None` if it has none.
fn value_of(name: &str, after: &str) -> Option<(usize, usize)> {
    // A scheme of authorisation and what it carries.
    if matches!(name, "Bearer" | "bearer" | "Basic") {
        let blanks = after.len() - after.trim_start_matches(' ').len();
        let (from, to) = value_after(after, blanks, false);
        let carries = name != "Basic" || (to - from >= 12 && after[from..to].contains(|c: char| !c.is_lowercase()));
        return (blanks > 0 && carries).then_some((from, to));
    }
    let closed = after.len() - after.trim_start_matches(CLOSERS).len();
    let blanks = after[closed..].len() - after[closed..].trim_start().len();
    let mark = after[closed + blanks..].chars().next();
    let sign = closed + blanks + 1;
    match mark {
        Some('=') => Some(value_after(after, sign, false)),
        // Headers and YAML go on to the end of the line; `token://` is an address.
        Some(':') if !after[sign..].starts_with("//") => Some(value_after(after, sign, true)),
        // `setenv("TOKEN", "x")`.
        Some(',') if closed > 0 && after[sign..].trim_start().starts_with(['"', '\'']) => {
            Some(value_after(after, sign, false))
        }
        // `--token x` inside a longer text.
        Some(_) if closed == 0 && blanks > 0 && name.starts_with('-') => {
            let (from, to) = value_after(after, 0, false);
            (!after[from..].starts_with("--")).then_some((from, to))
        }
        _ => None,
    }
}

/// The value that begins after blanks and an opening quote at `from`. Without a quote it ends at a blank or a mark;
/// with `whole_line` at the line's.
fn value_after(text: &str, from: usize, whole_line: bool) -> (usize, usize) {
    let begins = |c: char| c.is_whitespace() || c == '=' || c == '>' || c == '\\';
    let start = text.len() - text[from..].trim_start_matches(begins).len();
    let quote = text[start..].chars().next().filter(|c| matches!(c, '"' | '\''));
    let start = start + quote.map_or(0, char::len_utf8);
    let open = text[start..].starts_with(['[', '{']);
    let ends = |c: char| match quote {
        // An escaped quote ends the value of a quoted text inside another, too.
        Some(quote) => c == quote || c == '\\',
        // Several of them: everything goes.
        None if open => false,
        None if whole_line => matches!(c, '\n' | '"' | '\'' | ',' | '}' | ']'),
        None => c.is_whitespace() || matches!(c, ',' | ';' | '&' | '"' | '\'' | ')' | '}' | ']' | '|'),
    };
    (start, text[start..].find(ends).map_or(text.len(), |length| start + length))
}

/// `scheme://user:password@host` and `user:password@host`: the password goes.
fn hide_login(rest: &str, out: &mut String) -> Option<usize> {
    let run =
        &rest[..rest.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>')).unwrap_or(rest.len())];
    let scheme_end = run.find("://").map(|at| at + 3);
    let is_scheme = |end: usize| run[..end - 3].chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    let start = match scheme_end {
        Some(end) if is_scheme(end) => end,
        // `--proxy=http://…`: its turn comes.
        Some(_) => return None,
        None => 0,
    };
    let authority_end = run[start..].find(['/', '?', '#']).map_or(run.len(), |at| start + at);
    let (host_at, colon) = match run[start..authority_end].rfind('@') {
        Some(at) => (start + at, run[start..start + at].find(':').map(|colon| start + colon)),
        // A slash in the password: what follows the colon is no port, and there is an `@` further on.
        None if start > 0 => {
            let colon = start + run[start..authority_end].find(':')?;
            let port = run[colon + 1..authority_end].bytes().all(|byte| byte.is_ascii_digit());
            let at = run.rfind('@').filter(|_| !port)?;
            (at, Some(colon))
        }
        None => return None,
    };
    // Images are named by a sum: `image:tag@sha256:…`.
    let is_sum = run[host_at + 1..].starts_with("sha");
    match colon {
        Some(colon) if start > 0 || (colon > 0 && !is_sum && &run[..colon] != "mailto") => {
            out.push_str(&run[..=colon]);
        }
        // A token instead of a user.
        None if start > 0 && host_at - start >= 20 => out.push_str(&run[..start]),
        _ => return None,
    }
    out.push_str(HIDDEN);
    Some(host_at)
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_name_char)
}

fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    // What stands for a secret is ours, and no pattern of the shell's.
    if !word.is_empty() && word.replace(HIDDEN, "").chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests;
