// SPDX-License-Identifier: Apache-2.0
//! Scans a text in one pass and in linear time: positions found ahead are cached until the scan reaches them, a name is
//! judged once, and a possible secret is examined only for a limited length.

use super::commands::{Command, Secret};
use super::names::{self, Says};
use super::{HIDDEN, commands, shapes};

/// Characters allowed between a name and its value, in addition to blanks: `"token": "x"`, `environ["TOKEN"] = 'x'`,
/// `\"token\":\"x\"`.
const CLOSERS: [char; 5] = ['"', '\'', '\\', ']', ')'];
/// The longest name that is judged whole, bytes; of a longer one its end.
const LONGEST_NAME: usize = 128;
/// The longest scheme of an address, bytes.
const LONGEST_SCHEME: usize = 32;

/// A place found ahead.
#[derive(Default)]
struct Ahead {
    /// From where it was looked for; `None`: not yet.
    from: Option<usize>,
    at: usize,
}

impl Ahead {
    /// The first match at or after `from`; the end of the text if there is none.
    fn find(&mut self, text: &str, from: usize, looked: &mut usize, find: impl Fn(&str) -> Option<usize>) -> usize {
        if self.from.is_none_or(|known| from < known || from > self.at) {
            self.at = find(&text[from..]).map_or(text.len(), |length| from + length);
            self.from = Some(from);
            *looked += self.at - from;
        }
        self.at
    }
}

/// The last `@` before some end.
#[derive(Default)]
struct LastAt {
    end: Option<usize>,
    at: Option<usize>,
}

impl LastAt {
    fn find(&mut self, text: &str, from: usize, end: usize, looked: &mut usize) -> Option<usize> {
        if self.end != Some(end) {
            self.end = Some(end);
            self.at = text[from..end].rfind('@').map(|at| from + at);
            *looked += end - from;
        }
        self.at.filter(|at| *at >= from)
    }
}

/// The pass.
pub(super) struct Scanner<'a> {
    text: &'a str,
    out: String,
    /// Number of examined bytes, with repetition: the cost of a text.
    looked: usize,
    word_end: Ahead,
    sign: Ahead,
    path: Ahead,
    colon: Ahead,
    name_end: Ahead,
    last_of_authority: LastAt,
    last_of_word: LastAt,
    /// Up to here names have been judged.
    judged: usize,
    /// Whose arguments these are.
    command: Option<&'static Command>,
}

/// A range to hide: the text up to `keep` stays, from there to `end` it is replaced.
struct Cut {
    keep: usize,
    end: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            text,
            out: String::with_capacity(text.len()),
            looked: 0,
            word_end: Ahead::default(),
            sign: Ahead::default(),
            path: Ahead::default(),
            colon: Ahead::default(),
            name_end: Ahead::default(),
            last_of_authority: LastAt::default(),
            last_of_word: LastAt::default(),
            judged: 0,
            command: None,
        }
    }

    /// The text without secrets, and how many bytes were looked at for it.
    pub(super) fn run(mut self) -> (String, usize) {
        let mut at = 0;
        let mut before = None;
        while let Some(next) = self.text[at..].chars().next() {
            self.looked += 1;
            let begins_word = !before.is_some_and(|c: char| c.is_ascii_alphanumeric() || c == '_');
            let cut = if begins_word { self.cut_at(at) } else { None };
            if let Some(cut) = cut.filter(|cut| cut.end > at) {
                self.out.push_str(&self.text[at..cut.keep]);
                self.out.push_str(HIDDEN);
                at = cut.end;
                before = Some('*');
                continue;
            }
            if matches!(next, ';' | '|' | '&' | '\n') {
                self.command = None;
            }
            self.out.push(next);
            at += next.len_utf8();
            before = Some(next);
        }
        (self.out, self.looked)
    }

    /// The range to hide if a secret, or the name of one, starts here.
    fn cut_at(&mut self, at: usize) -> Option<Cut> {
        let (kept, length) = shapes::known(&self.text[at..]);
        if length > 0 {
            self.looked += length;
            return Some(Cut { keep: at + kept, end: at + length });
        }
        self.login(at).or_else(|| self.named(at))
    }

    /// `scheme://user:password@host` and `user:password@host`: the password goes.
    fn login(&mut self, at: usize) -> Option<Cut> {
        let text = self.text;
        let ends_word = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>');
        let word_end = self.word_end.find(text, at, &mut self.looked, |rest| rest.find(ends_word));
        let sign = self.sign.find(text, at, &mut self.looked, |rest| rest.find("://"));
        let scheme = |end: usize| {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
            end - at <= LONGEST_SCHEME && text[at..end].bytes().all(is_part)
        };
        let start = match sign {
            sign if sign >= word_end => at,
            sign if scheme(sign) => sign + 3,
            // `--proxy=http://…`: its turn comes.
            _ => return None,
        };
        let has_scheme = start > at;
        let ends_authority = |rest: &str| rest.find(['/', '?', '#']);
        let authority_end = self.path.find(text, start, &mut self.looked, ends_authority).min(word_end);
        let colon = self.colon.find(text, start, &mut self.looked, |rest| rest.find(':'));
        let (host_at, colon) = match self.last_of_authority.find(text, start, authority_end, &mut self.looked) {
            Some(host_at) => (host_at, Some(colon).filter(|colon| *colon < host_at)),
            // A slash in the password: no port follows the colon, and there is an `@` further on.
            None if has_scheme && colon < authority_end => {
                let port = text[colon + 1..authority_end].bytes().all(|byte| byte.is_ascii_digit());
                let last = self.last_of_word.find(text, start, word_end, &mut self.looked);
                (last.filter(|_| !port)?, Some(colon))
            }
            None => return None,
        };
        // Images are named by a sum: `image:tag@sha256:…`.
        let is_sum = text[host_at + 1..].starts_with("sha");
        let keep = match colon {
            Some(colon) if has_scheme || (colon > at && !is_sum && &text[at..colon] != "mailto") => colon + 1,
            // A token instead of a user.
            None if has_scheme && host_at - start >= 20 => start,
            _ => return None,
        };
        Some(Cut { keep, end: host_at })
    }

    /// A name with a secret value.
    fn named(&mut self, at: usize) -> Option<Cut> {
        let text = self.text;
        if at < self.judged {
            return None;
        }
        let end = self.name_end.find(text, at, &mut self.looked, |rest| rest.find(|c| !is_name_char(c)));
        let name = &text[at..end];
        if name.is_empty() {
            return None;
        }
        self.judged = end;
        if let Some(command) = commands::named(name) {
            self.command = Some(command);
        }
        if let Some(cut) = self.of_command(at, end) {
            return Some(cut);
        }
        // A scheme of authorisation and what it carries.
        if matches!(name, "Bearer" | "bearer" | "Basic") {
            let blanks = blanks_at(text, end);
            let (from, to) = self.value_after(end + blanks, false);
            let carries = name != "Basic" || (to - from >= 12 && text[from..to].contains(|c: char| !c.is_lowercase()));
            return (blanks > 0 && carries).then_some(Cut { keep: from, end: to });
        }
        // Names are ASCII, so any index is a character boundary.
        let says = names::judge(&name[name.len().saturating_sub(LONGEST_NAME)..]);
        self.looked += name.len().min(LONGEST_NAME);
        if says == Says::Nothing {
            return None;
        }
        let (from, whole_line) = self.value_begin(name, end)?;
        let from = self.skip(from);
        let value = &text[from + usize::from(text[from..].starts_with(['"', '\'']))..];
        if says == Says::Perhaps {
            let length = shapes::random_prefix(value)?;
            self.looked += length;
            let from = text.len() - value.len();
            return Some(Cut { keep: from, end: from + length });
        }
        if is_folder(name, value) {
            return None;
        }
        let (from, to) = self.value_after(from, whole_line);
        let value = &text[from..to];
        (!value.is_empty() && value != HIDDEN).then_some(Cut { keep: from, end: to })
    }

    /// `curl -u me:password`, `sshpass -ppassword` inside a longer text.
    fn of_command(&mut self, at: usize, end: usize) -> Option<Cut> {
        let text = self.text;
        let command = self.command.filter(|_| text[at..].starts_with('-'))?;
        let (from, secret) = match command.flag(&text[at..end])? {
            (secret, None) => {
                let gap = text[end..].len() - text[end..].trim_start_matches([' ', '\t', '=']).len();
                if gap == 0 {
                    return None;
                }
                (end + gap, secret)
            }
            (secret, Some(attached)) => (at + attached, secret),
        };
        let (from, to) = self.value_after(from, false);
        let keep = match secret {
            Secret::Whole => from,
            Secret::AfterColon => from + text[from..to].find(':')? + 1,
        };
        (to > keep).then_some(Cut { keep, end: to })
    }

    /// Where a name's value starts, and whether it extends to the end of the line; `None` if it has no value.
    fn value_begin(&mut self, name: &str, end: usize) -> Option<(usize, bool)> {
        let after = &self.text[end..];
        let closed = after.len() - after.trim_start_matches(CLOSERS).len();
        let blanks = after[closed..].len() - after[closed..].trim_start().len();
        self.looked += closed + blanks;
        let sign = closed + blanks + 1;
        match after[closed + blanks..].chars().next() {
            Some('=') => Some((end + sign, false)),
            // Headers and YAML go on to the end of the line; `token://` is an address.
            Some(':') if !after[sign..].starts_with("//") => Some((end + sign, true)),
            // `setenv("TOKEN", "x")`.
            Some(',') if closed > 0 && after[sign..].trim_start().starts_with(['"', '\'']) => Some((end + sign, false)),
            // `--token x`, `wandb login x` inside a longer text.
            Some(_) if closed == 0 && blanks > 0 && (name.starts_with('-') || name == "login") => {
                (!after[blanks..].starts_with("--")).then_some((end, false))
            }
            _ => None,
        }
    }

    /// Past blanks, and what else may stand before a value.
    fn skip(&mut self, from: usize) -> usize {
        let begins = |c: char| c.is_whitespace() || c == '=' || c == '>' || c == '\\';
        let start = self.text.len() - self.text[from..].trim_start_matches(begins).len();
        self.looked += start - from;
        start
    }

    /// The value after blanks and an opening quote at `from`. Without a quote, it ends at a blank or delimiter; with
    /// `whole_line`, at the end of the line.
    fn value_after(&mut self, from: usize, whole_line: bool) -> (usize, usize) {
        let text = self.text;
        let start = self.skip(from);
        let quote = text[start..].chars().next().filter(|c| matches!(c, '"' | '\''));
        let start = start + quote.map_or(0, char::len_utf8);
        let open = text[start..].starts_with(['[', '{']);
        let ends = |c: char| match quote {
            // An escaped quote also ends a quoted value inside another quoted text.
            Some(quote) => c == quote || c == '\\',
            // Several values: hide everything.
            None if open => false,
            None if whole_line => matches!(c, '\n' | '"' | '\'' | ',' | '}' | ']'),
            None => c.is_whitespace() || matches!(c, ',' | ';' | '&' | '"' | '\'' | ')' | '}' | ']' | '|'),
        };
        let end = text[start..].find(ends).map_or(text.len(), |length| start + length);
        self.looked += end - start;
        (start, end)
    }
}

fn blanks_at(text: &str, at: usize) -> usize {
    text[at..].len() - text[at..].trim_start_matches(' ').len()
}

/// Apptainer's working directory has the name of a password.
pub(super) fn is_folder(name: &str, value: &str) -> bool {
    name.trim_start_matches('-') == "pwd" && value.starts_with(['/', '.', '~'])
}

pub(super) fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}
