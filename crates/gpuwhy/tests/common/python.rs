// SPDX-License-Identifier: Apache-2.0
//! Python programs under gpuwhy: the interpreters at hand, and what the programs wrote about their own stacks.

use super::{GPUWHY, Place, Tracing, open, sim, succeed, text};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Frames that the kernel walks; of deeper stacks the outermost are left out.
const MAX_FRAMES: usize = 128;

/// The scripts load the runtime, and it the driver.
const CUDA_LIBRARIES: i64 = 2;

const SCRIPTS: &[(&str, &str)] = &[
    ("planting.py", include_str!("../python/planting.py")),
    ("plants.py", include_str!("../python/plants.py")),
    ("moments.py", include_str!("../python/moments.py")),
];

/// An interpreter: what it says it is, and how to start it.
#[derive(Debug, Clone)]
pub struct Interpreter {
    pub version: String,
    pub minor: u8,
    pub program: PathBuf,
}

/// Every build of Python 3.8 and later at hand, once: on PATH, pyenv's, and those in `GPUWHY_PYTHONS` (a list with
/// colons).
pub fn interpreters() -> Vec<Interpreter> {
    let mut found = BTreeMap::new();
    for program in programs() {
        let question = "import sys; print(sys.version_info[1], sys.version.replace(chr(10), ' '))";
        let Ok(output) = Command::new(&program).args(["-I", "-c", question]).output() else { continue };
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let Some((minor, version)) = text.split_once(' ') else { continue };
        let Ok(minor) = minor.parse::<u8>() else { continue };
        if minor >= 8 {
            let interpreter = Interpreter { version: version.to_owned(), minor, program };
            found.entry((minor, interpreter.version.clone())).or_insert(interpreter);
        }
    }
    assert!(!found.is_empty(), "no Python 3.8 or later: put one on PATH, or name it in GPUWHY_PYTHONS");
    found.into_values().collect()
}

fn programs() -> Vec<PathBuf> {
    let mut programs: Vec<PathBuf> = Vec::new();
    if let Some(list) = std::env::var_os("GPUWHY_PYTHONS") {
        programs.extend(std::env::split_paths(&list));
    }
    let names = || (8..=15).map(|minor| format!("python3.{minor}")).chain(["python3".into()]);
    for folder in std::env::var_os("PATH").iter().flat_map(std::env::split_paths) {
        programs.extend(names().map(|name| folder.join(name)));
    }
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let pyenv = std::env::var_os("PYENV_ROOT").map(PathBuf::from).or(home.map(|home| home.join(".pyenv")));
    for version in pyenv.iter().filter_map(|root| root.join("versions").read_dir().ok()).flatten().flatten() {
        programs.push(version.path().join("bin/python3"));
    }
    // pyenv's shims are shell scripts that start some interpreter or complain.
    programs.retain(|path| path.exists() && !path.parent().is_some_and(|folder| folder.ends_with("shims")));
    programs
}

/// A frame of the truth: file, function, line.
pub type TrueFrame = (String, String, u32);

/// A line that a program wrote about itself.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub enum Told {
    /// A call it was about to make.
    Call(PlantedCall),
    /// A call in a thread that runs no Python.
    Bare {
        pid: u32,
        op: String,
    },
    /// A time it spent at one line.
    Sleep(Moment),
    Lock(Moment),
    Queue(Moment),
    /// Work in one function: the line is the first.
    Busy(Moment),
}

#[derive(Debug, Clone, Deserialize)]
pub struct PlantedCall {
    pub situation: String,
    pub pid: u32,
    pub tid: u32,
    pub op: String,
    /// The column of `events` that has `value` for this call only.
    pub column: String,
    pub value: i64,
    pub ret: i64,
    frames: Vec<TrueFrame>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Moment {
    pub pid: u32,
    pub tid: u32,
    pub begin: i64,
    pub end: i64,
    pub cpu_ns: i64,
    pub frames: Vec<TrueFrame>,
}

/// Frames as the run file writes them.
pub fn in_words(frames: &[TrueFrame]) -> String {
    let line = |(file, function, line): &TrueFrame| format!("{file}:{line} {function}");
    frames.iter().take(MAX_FRAMES).map(line).collect::<Vec<_>>().join("\n")
}

impl PlantedCall {
    pub fn frames(&self) -> String {
        in_words(&self.frames)
    }

    pub fn depth(&self) -> usize {
        self.frames.len()
    }
}

/// A folder with the scripts, at the same path for every run made in it.
pub struct Scripts {
    dir: TempDir,
}

impl Scripts {
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("gpuwhy-test-py-").tempdir().unwrap();
        for (name, text) in SCRIPTS {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A virtual environment's interpreter.
    pub fn venv(&self, interpreter: &Interpreter) -> PathBuf {
        let folder = self.path("venv");
        succeed(Command::new(&interpreter.program).args(["-m", "venv", "--without-pip"]).arg(&folder));
        folder.join("bin/python")
    }

    /// Lets gpuwhy start a script and read to its end.
    pub fn trace(&self, program: &Path, script: &str, gpuwhy: &[&str]) -> PythonRun {
        let place = Place::new();
        let mut command = place.trace();
        settle(&mut command, &place).arg("--quiet").args(gpuwhy).arg("--");
        succeed(command.arg(program).arg(self.path(script)));
        PythonRun::read(place)
    }

    /// Starts a script that waits for a line, attaches gpuwhy to it and lets it run to its end.
    pub fn attach(&self, program: &Path, script: &str) -> PythonRun {
        let place = Place::new();
        let mut command = Command::new(program);
        settle(&mut command, &place).arg(self.path(script)).env("LD_LIBRARY_PATH", &sim().dir);
        let mut job = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(job.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n", "{}", program.display());
        let mut gpuwhy = Command::new(GPUWHY);
        gpuwhy.args(["trace", "--budget", "none", "--pid", &job.id().to_string(), "--db"]).arg(place.db());
        let tracing = Tracing::start(&mut gpuwhy, &place, CUDA_LIBRARIES);
        job.stdin.take().unwrap().write_all(b"go\n").unwrap();
        assert!(job.wait().unwrap().success(), "{script}");
        let ended = tracing.end();
        assert!(ended.status.success(), "{}", text(&ended));
        PythonRun::read(place)
    }
}

/// What a script needs to know, and what it must not leave behind.
fn settle<'a>(command: &'a mut Command, place: &Place) -> &'a mut Command {
    command.env("TRUTH", place.dir.path().join("told")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env_remove("SIMGPU_LOG")
}

/// A call as the run file has it.
#[derive(Debug, Clone)]
pub struct Recorded {
    pub pid: u32,
    pub tid: u32,
    pub op: String,
    pub ret: Option<i64>,
    pub stack_id: Option<i64>,
    pub frames: Option<String>,
    pub top_line: Option<String>,
    arg0: Option<i64>,
    stream: Option<i64>,
}

/// A Python program that ran to its end under gpuwhy.
pub struct PythonRun {
    pub db: rusqlite::Connection,
    pub told: Vec<Told>,
    pub calls: Vec<Recorded>,
    _place: Place,
}

impl PythonRun {
    pub fn read(place: Place) -> Self {
        let text = std::fs::read_to_string(place.dir.path().join("told")).unwrap();
        let told = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let db = open(&place.db());
        assert_eq!(super::number(&db, "SELECT events_lost FROM sessions"), 0, "nothing was lost");
        let sql = "SELECT e.pid, e.tid, e.op, e.ret, e.stack_id, s.frames, s.top_line, e.arg0, e.stream \
                   FROM events AS e LEFT JOIN stack_traces AS s ON s.stack_id = e.stack_id WHERE e.layer <> 'kernel'";
        let recorded = |row: &rusqlite::Row<'_>| {
            Ok(Recorded {
                pid: row.get(0)?,
                tid: row.get(1)?,
                op: row.get(2)?,
                ret: row.get(3)?,
                stack_id: row.get(4)?,
                frames: row.get(5)?,
                top_line: row.get(6)?,
                arg0: row.get(7)?,
                stream: row.get(8)?,
            })
        };
        let calls = db.prepare(sql).unwrap().query_map([], recorded).unwrap().map(Result::unwrap).collect();
        Self { db, told, calls, _place: place }
    }

    pub fn planted(&self) -> impl Iterator<Item = &PlantedCall> {
        self.told.iter().filter_map(|told| if let Told::Call(call) = told { Some(call) } else { None })
    }

    /// The run file's only row of a planted call.
    pub fn recorded(&self, call: &PlantedCall) -> Result<&Recorded, String> {
        let is_it = |row: &&Recorded| {
            let value = if call.column == "stream" { row.stream } else { row.arg0 };
            row.pid == call.pid && row.tid == call.tid && row.op == call.op && value == Some(call.value)
        };
        let rows: Vec<&Recorded> = self.calls.iter().filter(is_it).collect();
        match rows[..] {
            [row] => Ok(row),
            _ => Err(format!("{} rows", rows.len())),
        }
    }

    fn compare_one(&self, call: &PlantedCall) -> Result<(), String> {
        let row = self.recorded(call)?;
        if row.ret != Some(call.ret) {
            return Err(format!("returned {:?}, not {}", row.ret, call.ret));
        }
        let (wanted, got) = (call.frames(), row.frames.clone().unwrap_or_else(|| "no stack".into()));
        if got != wanted {
            return Err(format!("\n--- true\n{wanted}\n--- recorded\n{got}"));
        }
        // The function that plants is the program's own code, like all that is not installed.
        let innermost = wanted.lines().next().unwrap_or_default();
        let top = row.top_line.as_deref().unwrap_or_default();
        if top == innermost { Ok(()) } else { Err(format!("top line {top:?}, not {innermost:?}")) }
    }

    /// Insists that every planted call has its true stack, and that one stack has one id. Returns how many calls and
    /// frames were compared, and the ids by stack.
    pub fn compare(&self, place: &str) -> (usize, usize, HashMap<String, i64>) {
        let calls = self.planted().count();
        let wrong: Vec<_> = self.planted().filter_map(|call| Some((call, self.compare_one(call).err()?))).collect();
        let names: BTreeSet<_> = wrong.iter().map(|(call, _)| &call.situation).collect();
        let details: Vec<_> =
            wrong.iter().map(|(call, why)| format!("{} {}: {why}", call.situation, call.op)).collect();
        let some = details[..details.len().min(3)].join("\n");
        let count = wrong.len();
        assert!(wrong.is_empty(), "{place}: {count} of {calls} calls are wrong, in {names:?}; such as\n{some}");
        let (mut ids, mut stacks) = (HashMap::new(), HashMap::new());
        for call in self.planted() {
            let (frames, id) = (call.frames(), self.recorded(call).unwrap().stack_id.unwrap());
            assert_eq!(*ids.entry(frames.clone()).or_insert(id), id, "{place}: one stack, one id");
            assert_eq!(*stacks.entry(id).or_insert(frames.clone()), frames, "{place}: one id, one stack");
        }
        (calls, self.planted().map(|call| call.depth().min(MAX_FRAMES)).sum(), ids)
    }
}
