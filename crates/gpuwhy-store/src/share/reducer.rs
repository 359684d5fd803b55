// SPDX-License-Identifier: Apache-2.0
//! Reduces each text of a run for a copy. Pure.
//!
//! Different names stay different: if two files are called `train.py`, the second becomes `2/train.py`.

use crate::merge::tables::Says;
use gpuwhy_stacks::{Stack, without_place};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Replaces a hidden word.
const HIDDEN: &str = "***";
/// Different names of one kind that are kept apart: more than a run has.
const MOST_NAMES: usize = 1 << 20;
/// Words that are hidden at most, and the shortest.
const MOST_HIDDEN: usize = 1_000;
const SHORTEST_HIDDEN: usize = 3;
/// Generic folder names below `/home` and similar, which are not user names and occur in other names.
const NOBODY: &[&str] = &[
    "user", "users", "home", "root", "data", "work", "app", "apps", "shared", "python", "python3", "torch", "train",
    "model", "models", "cuda", "nvidia", "conda", "project", "projects", "code", "src",
];
/// Path prefixes that are followed by a user name.
const HOMES: &[&str] = &["/home/", "/Users/", "/torchinductor_"];

/// Reduces texts, and collects the names that stay, for the user to check.
#[derive(Default)]
pub(crate) struct Reducer {
    keep_source: bool,
    /// Hidden wherever they stand.
    hidden: BTreeSet<String>,
    files: Distinct,
    identities: HashMap<String, usize>,
    /// Programs, and files of the user's own code, as they stand in the copy.
    pub(crate) programs: BTreeSet<String>,
    pub(crate) own_files: BTreeSet<String>,
    /// Command lines that lost their arguments.
    pub(crate) commands: u64,
    /// Whether there were more names than can be kept apart.
    pub(crate) overflowed: bool,
}

/// Files by their whole names.
#[derive(Default)]
struct Distinct {
    known: HashMap<String, String>,
    taken: HashSet<String>,
}

impl Distinct {
    fn name(&mut self, file: &str) -> Option<String> {
        if let Some(known) = self.known.get(file) {
            return Some(known.clone());
        }
        if self.known.len() >= MOST_NAMES {
            return None;
        }
        let plain = without_place(file);
        let numbered = |number: usize| if number == 1 { plain.clone() } else { format!("{number}/{plain}") };
        let name = (1..).map(numbered).find(|name| !self.taken.contains(name))?;
        self.taken.insert(name.clone());
        self.known.insert(file.to_owned(), name.clone());
        Some(name)
    }
}

impl Reducer {
    pub(crate) fn new(hidden: &[String], keep_source: bool) -> Self {
        let mut reducer = Self { keep_source, ..Self::default() };
        hidden.iter().for_each(|word| reducer.hide_word(word));
        reducer
    }

    fn hide_word(&mut self, word: &str) {
        let word = word.trim();
        let harmless = NOBODY.contains(&word) || word.chars().all(|c| c.is_ascii_digit());
        if word.chars().count() >= SHORTEST_HIDDEN && !harmless && self.hidden.len() < MOST_HIDDEN {
            self.hidden.insert(word.to_owned());
        }
    }

    /// Collects user names in a text before it is reduced, because they may occur elsewhere.
    pub(crate) fn learn(&mut self, text: &str) {
        for home in HOMES {
            for (at, _) in text.match_indices(home) {
                let rest = &text[at + home.len()..];
                let end = rest.find(|c: char| c == '/' || c.is_whitespace() || "'\":,;)".contains(c));
                self.hide_word(&rest[..end.unwrap_or(rest.len())]);
            }
        }
    }

    /// The reduced text; `None` if nothing remains.
    pub(crate) fn reduce(&mut self, says: Says, text: &str) -> Option<String> {
        let reduced = match says {
            Says::Word => return Some(text.to_owned()),
            Says::Figures => return only_figures(text).then(|| text.to_owned()),
            Says::Flags => return None,
            Says::Source if !self.keep_source => return Some(String::new()),
            Says::Source | Says::Name => text.to_owned(),
            Says::Identity => return Some(self.identity(text)),
            Says::Sentence => self.sentence(text),
            Says::Program => program(text),
            Says::Command => {
                self.commands += 1;
                program(text)
            }
            Says::Path => self.file(text),
            Says::Line | Says::Frames => self.frames(text),
        };
        let reduced = self.without_hidden(&reduced);
        if matches!(says, Says::Program | Says::Command) && self.programs.len() < MOST_HIDDEN {
            self.programs.insert(reduced.clone());
        }
        Some(reduced)
    }

    fn file(&mut self, file: &str) -> String {
        let name = self.files.name(file);
        self.overflowed |= name.is_none();
        let name = name.unwrap_or_default();
        if !name.contains('/') && name.ends_with(".py") && self.own_files.len() < MOST_HIDDEN {
            self.own_files.insert(self.without_hidden(&name));
        }
        name
    }

    /// A line that is not a frame is left out, because its content is unknown.
    fn frames(&mut self, text: &str) -> String {
        let mut lines = Vec::new();
        for mut frame in Stack::parse(text) {
            frame.file = self.file(&frame.file);
            lines.push(frame.to_string());
        }
        lines.join("\n")
    }

    /// A number, after the number of a merged run.
    fn identity(&mut self, text: &str) -> String {
        let next = self.identities.len() + 1;
        let full = self.identities.len() >= MOST_NAMES;
        self.overflowed |= full;
        let number = if full { 0 } else { *self.identities.entry(text.to_owned()).or_insert(next) };
        let run = text.split_once(':').map(|(run, _)| run).filter(|run| run.parse::<u16>().is_ok());
        run.map_or_else(|| format!("/{number}"), |run| format!("{run}:/{number}"))
    }

    fn sentence(&mut self, text: &str) -> String {
        let words: Vec<String> = text.split(' ').map(|word| self.word(word)).collect();
        words.join(" ")
    }

    fn word(&mut self, word: &str) -> String {
        let opening = word.len() - word.trim_start_matches(['(', '[', '"', '\'', '`']).len();
        let (before, rest) = word.split_at(opening);
        let absolute = rest.starts_with(['/', '~']) || rest.starts_with("./") || rest.starts_with("../");
        let is_path = absolute || (rest.contains('/') && rest.contains(".py"));
        if !is_path {
            return word.to_owned();
        }
        // After the file: a line number, a mark.
        let end = rest.find([':', ',', ';', ')', ']', '"', '\'', '`']).unwrap_or(rest.len());
        let (file, after) = rest.split_at(end);
        format!("{before}{}{}", self.file(file), if after.contains('/') { "" } else { after })
    }

    fn without_hidden(&self, text: &str) -> String {
        self.hidden.iter().fold(text.to_owned(), |text, word| replace_word(&text, word))
    }
}

/// The program name at the start of a command line or process title.
fn program(text: &str) -> String {
    let first = match text.strip_prefix(['\'', '"']) {
        Some(quoted) => quoted.split(['\'', '"']).next().unwrap_or_default(),
        None => text.split_whitespace().next().unwrap_or_default(),
    };
    // `NAME=value program`: the value may be private.
    let first = first.split('=').next().unwrap_or_default();
    if is_kernel_thread(first) {
        return first.to_owned();
    }
    first.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned()
}

/// `[kworker/u8:2]`, or `ksoftirqd/0` in older run files.
fn is_kernel_thread(name: &str) -> bool {
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.split_once('/').is_some_and(|(kind, rest)| {
        let number = rest.strip_prefix('u').unwrap_or(rest);
        kind.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
            && number.starts_with(|c: char| c.is_ascii_digit())
            && !rest.contains('/')
    })
}

/// Whether a text is JSON without any text in it but the names of its fields.
fn only_figures(text: &str) -> bool {
    fn plain(value: &serde_json::Value) -> bool {
        match value {
            serde_json::Value::String(_) => false,
            serde_json::Value::Array(values) => values.iter().all(plain),
            serde_json::Value::Object(fields) => fields.values().all(plain),
            _ => true,
        }
    }
    serde_json::from_str(text).is_ok_and(|value| plain(&value))
}

/// Replaces a word, but not inside a longer word.
fn replace_word(text: &str, word: &str) -> String {
    if !text.contains(word) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for (found, _) in text.match_indices(word) {
        let end = found + word.len();
        let before = text[..found].chars().next_back().is_some_and(char::is_alphanumeric);
        let after = text[end..].chars().next().is_some_and(char::is_alphanumeric);
        if before || after || found < at {
            continue;
        }
        out.push_str(&text[at..found]);
        out.push_str(HIDDEN);
        at = end;
    }
    out + &text[at..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_becomes_what_its_kind_says() {
        let mut reducer = Reducer::new(&["node7.lab".into()], false);
        reducer.learn("/home/ann/train/train.py:5 step");
        for (says, text, left) in [
            (Says::Word, "exit", Some("exit")),
            (Says::Name, "ann_kernel<float>", Some("***_kernel<float>")),
            (Says::Figures, "{\"own\": {\"cpu_ns\": 5}}", Some("{\"own\": {\"cpu_ns\": 5}}")),
            (Says::Figures, "{\"own\": \"/home/ann\"}", None),
            (Says::Flags, "--db /home/ann/x.db", None),
            (Says::Source, "token = 'x'", Some("")),
            (Says::Program, "python3 train.py --token x", Some("python3")),
            (Says::Program, "/home/ann/bin/my-train", Some("my-train")),
            (Says::Program, "kworker/u8:2", Some("kworker/u8:2")),
            (Says::Program, "[kworker/u8:2]", Some("[kworker/u8:2]")),
            (Says::Program, "ksoftirqd/0", Some("ksoftirqd/0")),
            (Says::Program, "ann/0secret/x", Some("x")),
            (Says::Program, "pt_data_worker", Some("pt_data_worker")),
            (Says::Program, "", Some("")),
            (Says::Command, "TOKEN=x /opt/run", Some("TOKEN")),
            (Says::Command, "'/home/ann/my dir/run it' --secret", Some("run it")),
            (Says::Path, "/home/ann/train/train.py", Some("train.py")),
            (Says::Path, "/srv/other/train.py", Some("2/train.py")),
            (Says::Path, "/home/ann/train/train.py", Some("train.py")),
            (Says::Path, "/home/ann/lib/python3.12/site-packages/torch/x.py", Some("/site-packages/torch/x.py")),
            (Says::Line, "/srv/other/train.py:7 step", Some("2/train.py:7 step")),
            (Says::Line, "no line at /home/ann", Some("")),
            (Says::Frames, "/home/ann/train/train.py:7 f\n/home/ann/ann.py:? ann", Some("train.py:7 f\n***.py:? ***")),
            (
                Says::Sentence,
                "grows by 5 MB/s at /home/ann/train/train.py:88, pid 5",
                Some("grows by 5 MB/s at train.py:88, pid 5"),
            ),
            (Says::Sentence, "seen (src/secret/x.py:3) on node7.lab", Some("seen (x.py:3) on ***")),
            (Says::Identity, "/user.slice/user-1000.slice", Some("/1")),
            (Says::Identity, "1:/user.slice", Some("1:/2")),
            (Says::Identity, "/user.slice/user-1000.slice", Some("/1")),
        ] {
            assert_eq!(reducer.reduce(says, text).as_deref(), left, "{says:?} {text}");
        }
        assert!(
            reducer.programs.contains("python3") && reducer.own_files.contains("train.py") && reducer.commands == 2
        );
        let mut keeping = Reducer::new(&[], true);
        assert_eq!(keeping.reduce(Says::Source, "x = 1").as_deref(), Some("x = 1"));
    }

    #[test]
    fn words_are_hidden_as_words_and_common_ones_never() {
        let mut reducer = Reducer::default();
        for text in ["/home/data/x", "/home/python/x", "/home/al/x", "/home/1000/x", "/Users/bea/x"] {
            reducer.learn(text);
        }
        assert_eq!(reducer.hidden.iter().collect::<Vec<_>>(), ["bea"]);
        assert_eq!(replace_word("bea beach bea-x xbea _bea_", "bea"), "*** beach ***-x xbea _***_");
    }
}
