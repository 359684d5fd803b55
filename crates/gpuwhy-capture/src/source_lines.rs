// SPDX-License-Identifier: Apache-2.0
//! Source lines named by stacks, read while the program runs: they show what a line does with its allocations. Later,
//! or on another machine, the file may have changed or be gone.
//!
//! File names come from the traced program. Only files that its process may read are read, only regular `.py` files of
//! a limited size, and secrets are removed. The caller must drop other rights first.

use crate::secrets;
use gpuwhy_model::{AUTOCAST, SourceLine};
use gpuwhy_stacks::{Frame, Owner, Stack};
use gpuwhy_strangers::{ProcFile, Seen, look_at, look_in_root_of, read_at_most, read_proc};
use std::collections::{HashMap, HashSet};
use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A larger file is not source code written by people.
const LARGEST: u64 = 1 << 20;
/// Files kept in memory at once, and lines kept of a run.
const MOST_FILES: usize = 16;
const MOST_LINES: usize = 4_096;
/// Processes remembered.
const MOST_PROCESSES: usize = 4_096;
/// Characters kept of a line.
const MOST_TEXT: usize = 200;
/// Frames of the user's code that matter in a stack.
const OWN_FRAMES: usize = 4;

/// A place in a source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    file: String,
    line: u32,
}

/// The frames of a stack whose source is worth keeping: its top line, and its callers in the user's code.
pub fn places(stack: &Stack) -> Vec<Place> {
    let place = |frame: Frame| Some(Place { line: frame.line?, file: frame.file });
    let people = |frame: &Frame| matches!(frame.owner(), Owner::You | Owner::Package);
    let top = Frame::parse(&stack.top_line).filter(people).and_then(place);
    let own =
        Stack::parse(&stack.frames).filter(|frame| frame.owner() == Owner::You).take(OWN_FRAMES).filter_map(place);
    let mut all: Vec<Place> = Vec::new();
    for place in top.into_iter().chain(own).filter(|place| is_source(Path::new(&place.file))) {
        if !all.contains(&place) {
            all.push(place);
        }
    }
    all
}

fn is_source(path: &Path) -> bool {
    path.is_absolute() && path.extension().is_some_and(|extension| extension == "py")
}

/// Facts about a process, which may end before its lines are read.
#[derive(Debug, Clone)]
struct Known {
    /// Its view of files, a number of the kernel's.
    view: u64,
    uid: u32,
    gids: Vec<u32>,
}

/// Reads lines, each once.
#[derive(Debug, Default)]
pub struct SourceReader {
    only: Option<u32>,
    processes: HashMap<u32, Known>,
    /// By the view of files and the name in it.
    files: HashMap<(u64, String), Vec<String>>,
    done: HashSet<(u64, Place)>,
}

impl SourceReader {
    /// If set, reads only files of this user's processes: another user's file may be on a file system of theirs that
    /// never answers, and a thread waiting for it cannot be stopped.
    pub fn of_user(only: Option<u32>) -> Self {
        Self { only, ..Self::default() }
    }

    /// The lines at some places of a process's code that were not read yet.
    pub fn read(&mut self, pid: u32, places: Vec<Place>) -> Vec<SourceLine> {
        let only = self.only;
        let trusted = |process: &Known| only.is_none_or(|uid| process.uid == uid);
        let Some(process) = self.process(pid).filter(trusted) else { return Vec::new() };
        let mut lines = Vec::new();
        for place in places {
            if self.done.len() < MOST_LINES && self.done.insert((process.view, place.clone())) {
                lines.extend(self.line(pid, &process, place));
            }
        }
        lines
    }

    fn process(&mut self, pid: u32) -> Option<Known> {
        if self.processes.len() >= MOST_PROCESSES {
            self.processes.clear();
        }
        // A process that has called exec may have changed its user.
        if let Some(known) = look(pid) {
            self.processes.insert(pid, known);
        }
        self.processes.get(&pid).cloned()
    }

    fn line(&mut self, pid: u32, process: &Known, place: Place) -> Option<SourceLine> {
        let key = (process.view, place.file.clone());
        if !self.files.contains_key(&key) {
            if self.files.len() >= MOST_FILES {
                self.files.clear();
            }
            let found = find(pid, process, &place.file).ok();
            self.files.insert(key.clone(), found.and_then(|found| read(&found, process)).unwrap_or_default());
        }
        let lines = self.files.get(&key)?;
        let text = lines.get(usize::try_from(place.line).ok()?.checked_sub(1)?)?;
        let around = is_loop_in(lines, place.line as usize, AUTOCAST).then(|| AUTOCAST.to_owned());
        Some(SourceLine { text: Some(kept(text)), around, file: place.file, line: place.line })
    }
}

/// The part of a line to keep. Secrets are removed before cutting: a cut secret may not be recognised.
fn kept(text: &str) -> String {
    secrets::hide(text.trim()).chars().take(MOST_TEXT).collect()
}

fn look(pid: u32) -> Option<Known> {
    let view = std::fs::metadata(format!("/proc/{pid}/ns/mnt")).ok()?.ino();
    let status = read_proc(pid, ProcFile::Status).ok()?;
    let status = String::from_utf8_lossy(&status);
    let numbers = |key: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    // The fourth is what files are opened with.
    let (uid, gid) = (*numbers("Uid:").get(3)?, *numbers("Gid:").get(3)?);
    Some(Known { view, uid, gids: numbers("Groups:").into_iter().chain([gid]).collect() })
}

/// A process's file: the process may be gone, if both see the same files.
fn find(pid: u32, process: &Known, file: &str) -> std::io::Result<Seen> {
    let own = std::fs::metadata("/proc/self/ns/mnt").map(|own| own.ino()).ok();
    let root = std::fs::read_link(format!("/proc/{pid}/root"));
    let is_ours = own == Some(process.view) && root.map_or(true, |root| root == Path::new("/"));
    if is_ours { look_at(Path::new(file)) } else { look_in_root_of(pid, file) }
}

fn read(found: &Seen, process: &Known) -> Option<Vec<String>> {
    let metadata = found.metadata();
    if metadata.len() > LARGEST || !may_read(metadata, process) {
        return None;
    }
    let file = found.open().ok()?;
    if !is_source(&real_path(&file)?) {
        return None;
    }
    let bytes = read_at_most(&file, LARGEST as usize).ok()?;
    Some(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
}

/// Where a file lies: a link may have led anywhere.
fn real_path(file: &File) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

/// Whether a process may read a file, by the file's mode.
fn may_read(file: &Metadata, process: &Known) -> bool {
    let mode = file.mode();
    match () {
        () if process.uid == 0 => true,
        () if process.uid == file.uid() => mode & 0o400 != 0,
        () if process.gids.contains(&file.gid()) => mode & 0o040 != 0,
        () => mode & 0o004 != 0,
    }
}

/// Whether a line, counted from 1, stands in a loop, and that in a `with` block of its function that has this word.
fn is_loop_in(lines: &[String], number: usize, word: &str) -> bool {
    let (Some(above), Some(line)) = (lines.get(..number.saturating_sub(1)), lines.get(number.wrapping_sub(1))) else {
        return false;
    };
    let (mut depth, mut in_loop) = (indent(line), false);
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

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn own() -> Known {
        look(std::process::id()).unwrap()
    }

    fn place(file: &Path, line: u32) -> Place {
        Place { file: file.to_str().unwrap().to_owned(), line }
    }

    #[test]
    fn blocks_around_a_loop_are_found() {
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
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let found = [7, 10, 13, 0, 99].map(|number| is_loop_in(&lines, number, AUTOCAST));
        assert_eq!(found, [true, false, false, false, false]);
    }

    #[test]
    fn a_stack_names_its_line_and_who_called_it() {
        let frame = |file: &str, line| Frame { file: file.into(), function: "f".into(), line };
        let stack = Stack::new(&[
            frame("/usr/lib/python3.11/threading.py", Some(1)),
            frame("/v/site-packages/torch/nn.py", Some(2)),
            frame("/home/me/model.py", Some(3)),
            frame("<string>", Some(4)),
            frame("/home/me/model.py", Some(3)),
            frame("/home/me/train.py", None),
            frame("/home/me/main.py", Some(5)),
        ]);
        let named: Vec<(String, u32)> = places(&stack).into_iter().map(|place| (place.file, place.line)).collect();
        // Of the four innermost frames of user code, two have no source and one is there twice.
        assert_eq!(named, [("/home/me/model.py".to_owned(), 3)]);
    }

    #[test]
    fn a_line_is_read_once_without_its_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.py");
        let long = "x".repeat(999);
        std::fs::write(&path, format!("one\n    api_key = 'hunter2secret'; two()\n{long}\n")).unwrap();
        let mut reader = SourceReader::default();
        let pid = std::process::id();
        let wanted = || (0..=4).map(|line| place(&path, line)).collect::<Vec<_>>();
        let lines = reader.read(pid, wanted());
        let texts: Vec<&str> = lines.iter().filter_map(|line| line.text.as_deref()).collect();
        assert_eq!((texts.len(), texts[0], texts[2].len()), (3, "one", MOST_TEXT));
        assert!(texts[1].starts_with("api_key") && !texts[1].contains("hunter2"), "{}", texts[1]);
        assert_eq!(reader.read(pid, wanted()), []);
    }

    #[test]
    fn what_is_no_source_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        symlink("/dev/zero", at("device.py")).unwrap();
        symlink("/proc/self/environ", at("environment.py")).unwrap();
        symlink("/etc/passwd", at("passwords.py")).unwrap();
        std::process::Command::new("mkfifo").arg(at("pipe.py")).status().unwrap();
        std::fs::create_dir(at("folder.py")).unwrap();
        File::create(at("large.py")).unwrap().set_len(LARGEST + 1).unwrap();
        std::fs::write(at("real.py"), "yes\n").unwrap();
        symlink(at("real.py"), at("link.py")).unwrap();
        let read = |name: &str| look_at(&at(name)).ok().and_then(|found| read(&found, &own()));
        for name in ["device.py", "environment.py", "passwords.py", "pipe.py", "folder.py", "large.py", "gone.py"] {
            assert_eq!(read(name), None, "{name}");
        }
        assert_eq!(read("link.py"), Some(vec!["yes".to_owned()]));
        let names = ["/etc/passwd", "a.py", "/a/b.pyc"].map(|name| is_source(Path::new(name)));
        assert_eq!(names, [false, false, false]);
    }

    #[test]
    fn only_what_the_process_may_read_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.py");
        std::fs::write(&path, "one\n").unwrap();
        let found = std::fs::metadata(&path).unwrap();
        let other = |gids: &[u32]| Known { view: 0, uid: found.uid().wrapping_add(7), gids: gids.to_vec() };
        for (mode, gids, readable) in [
            (0o600, vec![found.gid()], false),
            (0o640, vec![found.gid()], true),
            (0o640, vec![], false),
            (0o604, vec![], true),
        ] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let found = look_at(&path).unwrap();
            assert_eq!(read(&found, &other(&gids)).is_some(), readable, "{mode:o} {gids:?}");
        }
    }

    #[test]
    fn a_process_that_is_gone_was_known_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.py");
        std::fs::write(&path, "one\ntwo\n").unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let mut reader = SourceReader::default();
        assert_eq!(reader.read(child.id(), vec![place(&path, 1)]).len(), 1);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(reader.read(child.id(), vec![place(&path, 2)]).len(), 1);
        assert_eq!(SourceReader::default().read(child.id(), vec![place(&path, 2)]), []);
        let own = own().uid;
        for (only, lines) in [(None, 1), (Some(own), 1), (Some(own.wrapping_add(1)), 0)] {
            let read = SourceReader::of_user(only).read(std::process::id(), vec![place(&path, 2)]);
            assert_eq!(read.len(), lines, "{only:?}");
        }
    }
}
