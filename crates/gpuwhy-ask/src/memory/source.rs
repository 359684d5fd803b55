// SPDX-License-Identifier: Apache-2.0
//! Lines of source files, where they can be read: they tell what a line does with what it allocates.
//!
//! Names of files come from the traced world. Only plain files of a source's size are read, and nothing of them is shown.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;

/// A larger file is no source of a person's.
const LARGEST: u64 = 4 << 20;
/// Files that are looked into.
const MOST_FILES: usize = 256;

/// Files read so far.
#[derive(Debug, Default)]
pub(super) struct Sources {
    files: HashMap<String, Vec<String>>,
    /// What was asked about lines and the blocks around their loops: many stacks go through the same lines.
    loops: HashMap<(String, usize, &'static str), bool>,
}

impl Sources {
    /// A line, counted from 1.
    pub(super) fn line(&mut self, file: &str, number: usize) -> Option<String> {
        if !self.files.contains_key(file) {
            if self.files.len() >= MOST_FILES {
                return None;
            }
            self.files.insert(file.to_owned(), read(file).unwrap_or_default());
        }
        self.files.get(file)?.get(number.checked_sub(1)?).cloned()
    }

    /// Whether a line stands in a loop, and that in a `with` block of its function that has this word.
    pub(super) fn is_loop_in(&mut self, file: &str, number: usize, word: &'static str) -> bool {
        let asked = (file.to_owned(), number, word);
        if let Some(known) = self.loops.get(&asked) {
            return *known;
        }
        let found = self.find_loop_in(file, number, word);
        self.loops.insert(asked, found);
        found
    }

    fn find_loop_in(&mut self, file: &str, number: usize, word: &str) -> bool {
        let Some(line) = self.line(file, number) else { return false };
        let above = self.files.get(file).and_then(|lines| lines.get(..number.saturating_sub(1))).unwrap_or_default();
        let (mut depth, mut in_loop) = (indent(&line), false);
        for line in above.iter().rev() {
            let text = line.trim_start();
            if text.is_empty() || text.starts_with('#') || indent(line) >= depth {
                continue;
            }
            // A block's first line: it has less before it than all that is in it.
            depth = indent(line);
            let text = text.strip_prefix("async ").unwrap_or(text);
            if text.starts_with("def ") || text.starts_with("class ") {
                return false;
            }
            in_loop |= text.starts_with("for ") || text.starts_with("while ");
            if in_loop && text.starts_with("with ") && text.contains(word) {
                return true;
            }
        }
        false
    }
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn read(file: &str) -> Option<Vec<String>> {
    if !(file.starts_with('/') && file.ends_with(".py")) {
        return None;
    }
    // A pipe must not hold us up.
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(file).ok()?;
    let found = opened.metadata().ok()?;
    if !found.is_file() || found.len() > LARGEST {
        return None;
    }
    BufReader::new(opened.take(LARGEST)).lines().collect::<Result<_, _>>().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_around_a_loop_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.py");
        let text = "\
def train():
    with torch.autocast('cuda'):
        # once for all
        for x in data:

            if x:
                step(x)
    for x in data:
        with torch.autocast('cuda'):
            step(x)
def step(x):
    for y in x:
        use(y)
";
        std::fs::write(&path, text).unwrap();
        let mut sources = Sources::default();
        let mut found = |number| sources.is_loop_in(path.to_str().unwrap(), number, "autocast(");
        assert_eq!([7, 10, 13, 0, 99].map(&mut found), [true, false, false, false, false]);
    }

    #[test]
    fn lines_of_plain_source_files_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.py");
        std::fs::write(&path, "one\ntwo\n").unwrap();
        let mut sources = Sources::default();
        let name = path.to_str().unwrap();
        assert_eq!(sources.line(name, 2).as_deref(), Some("two"));
        assert_eq!((sources.line(name, 0), sources.line(name, 3)), (None, None));
        assert_eq!(sources.line("/etc/passwd", 1), None);
        assert_eq!(sources.line("/dev/zero.py", 1), None);
    }
}
