// SPDX-License-Identifier: Apache-2.0
//! The kernel's walker against real interpreters: every frame of every thread, line by line, with what the thread
//! itself wrote down.

#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in test functions; their helpers are the same")]
#![allow(clippy::disallowed_methods, reason = "reads its own interpreters")]

mod common;

use common::{Interpreter, interpreters};
use gpuwhy_stacks::python::host::Walker;
use gpuwhy_stacks::python::{self, Code, Found, Memory, PyCode, STATUS_NO_STATE, STATUS_OK, STATUS_TRUNCATED};
use gpuwhy_stacks::{Frame, Stack};
use serde::Deserialize;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What a thread wrote about itself.
#[derive(Debug, Deserialize)]
struct Truth {
    situation: String,
    thread_pointer: u64,
    tid: u32,
    /// File, function, line; innermost first.
    frames: Vec<(String, String, u32)>,
}

/// A Python program whose threads wait in their situations; killed when dropped.
struct Job {
    child: Child,
    truths: Vec<Truth>,
    _folder: tempfile::TempDir,
}

impl Job {
    fn start(program: &Path, env: &[(&str, &Path)]) -> Self {
        let folder = tempfile::Builder::new().prefix("gpuwhy-py").tempdir().unwrap();
        let script = folder.path().join("situations.py");
        std::fs::write(&script, include_str!("situations.py")).unwrap();
        let mut child = Command::new(program)
            .arg(&script)
            .arg(folder.path())
            .envs(env.iter().copied())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n", "{}", program.display());
        let mut job = Self { child, truths: Vec::new(), _folder: folder };
        job.wait_for_all();
        job
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The main thread writes its own truth after it said "ready"; each thread then still has to enter its read.
    fn wait_for_all(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let path = self._folder.path().join("truth");
        while !self.truths.iter().any(|truth| truth.situation == "main_thread") {
            assert!(Instant::now() < deadline, "the main thread never got there");
            let text = std::fs::read_to_string(&path).unwrap();
            let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
            self.truths = whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            std::thread::yield_now();
        }
        for truth in &self.truths {
            wait_until_reading(self.pid(), truth.tid);
        }
    }
}

/// Until a thread is inside its read of standard input.
fn wait_until_reading(pid: u32, tid: u32) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let (syscall, reading) = (format!("/proc/{pid}/task/{tid}/syscall"), format!("{} 0x0 ", libc::SYS_read));
    while !std::fs::read_to_string(&syscall).unwrap().starts_with(&reading) {
        assert!(Instant::now() < deadline, "thread {tid} never began to wait");
        std::thread::yield_now();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Names code objects as gpuwhy would, from records of the kernel.
struct Names<'a> {
    found: &'a Found,
    walker: Walker,
    memory: Memory,
    codes: HashMap<(u64, u32), Code>,
    cut_tables: usize,
}

impl<'a> Names<'a> {
    fn new(pid: u32, found: &'a Found) -> Self {
        let (walker, memory) = (Walker::new(pid, found.process), Memory::of(pid).unwrap());
        Self { found, walker, memory, codes: HashMap::new(), cut_tables: 0 }
    }

    fn frame(&mut self, frame: &python::PyFrame) -> Frame {
        let key = (frame.code, frame.check);
        if !self.codes.contains_key(&key) {
            let raw = PyCode::from_bytes(&self.walker.read_code(frame.code)).unwrap();
            assert_eq!(raw.code, frame.code);
            assert_eq!(u32::from(raw.status), STATUS_OK);
            assert!(self.walker.reads() <= 9, "{}", self.walker.reads());
            let whole = raw.is_table_cut().then(|| self.memory.line_table(&self.found.process, raw.code).unwrap());
            self.cut_tables += usize::from(whole.is_some());
            let code = Code::new(self.found.version, &raw, whole.as_deref());
            // What gpuwhy reads itself is the same, and known by the same check.
            let read = self.memory.code(&self.found.process, frame.code, frame.check).unwrap();
            assert_eq!(read.as_ref(), Some(&code));
            assert_eq!(self.memory.code(&self.found.process, frame.code, !frame.check).unwrap(), None);
            self.codes.insert(key, code);
        }
        self.codes[&key].frame(frame.lasti)
    }
}

/// The true frame as it may be written: names too long for a record are cut.
fn expected((file, function, line): &(String, String, u32)) -> Frame {
    let width = |text: &str| match text.chars().map(u32::from).max().unwrap_or(0) {
        0..=0xff => 1,
        0x100..=0xffff => 2,
        _ => 4,
    };
    let (room, length) = (256 / width(file), file.chars().count());
    let file = if length > room {
        let end: String = file.chars().skip(length - room).collect();
        format!("…{end}")
    } else {
        file.clone()
    };
    assert!(function.chars().count() * width(function) <= 128);
    Frame { file, function: function.clone(), line: Some(*line) }
}

/// Compares all threads of a job; returns how many stacks and frames were equal.
fn compare(job: &Job, interpreter: &Interpreter) -> (usize, usize) {
    let found = python::find(job.pid()).unwrap();
    assert_eq!((found.version.major, found.version.minor), (3, interpreter.minor));
    if let Some(table) = python::offsets(found.version).filter(|_| !found.free_threaded) {
        assert_eq!(found.process.at, table, "what {} publishes is what the table has", interpreter.version);
    }
    let mut names = Names::new(job.pid(), &found);
    let mut walker = Walker::new(job.pid(), found.process);
    let (mut frames, mut hashes) = (0, HashMap::new());
    for truth in &job.truths {
        let place = format!("{} on {}", truth.situation, interpreter.version);
        let tstate = walker.find_tstate(truth.thread_pointer, 0);
        assert_ne!(tstate, 0, "{place}");
        assert_eq!(walker.find_tstate(truth.thread_pointer, tstate), tstate);
        assert_eq!(walker.reads(), 2, "a known thread state");
        let stack = walker.walk(tstate);
        let reads = walker.reads();
        let mut wanted: Vec<Frame> = truth.frames.iter().map(expected).collect();
        let status = if wanted.len() > python::MAX_FRAMES { STATUS_TRUNCATED } else { STATUS_OK };
        wanted.truncate(python::MAX_FRAMES);
        let seen: Vec<Frame> = stack.frames().iter().map(|frame| names.frame(frame)).collect();
        assert_eq!(Stack::new(&seen).frames, Stack::new(&wanted).frames, "{place}");
        assert_eq!(stack.status, status, "{place}");
        assert!(reads <= 3 * seen.len() as u64 + 20, "{place}: {reads} reads for {} frames", seen.len());
        let hash = walker.site_hash(truth.thread_pointer, tstate);
        // One for each frame up to 3.10; code that is run once takes five more.
        let most = if interpreter.minor <= 10 { 60 } else { 20 };
        assert!(walker.reads() <= most, "{place}: {} reads for a hash", walker.reads());
        assert_eq!(walker.site_hash(truth.thread_pointer, tstate), hash);
        assert_eq!(hashes.insert(hash, &truth.situation), None, "{place}: a hash of its own");
        frames += seen.len();
    }
    assert!(names.cut_tables > 0, "the long function's lines did not fit a record");
    (job.truths.len(), frames)
}

#[test]
fn every_stack_is_the_true_one_line_by_line() {
    for interpreter in interpreters() {
        let job = Job::start(&interpreter.program, &[]);
        let (stacks, frames) = compare(&job, &interpreter);
        println!("{}: {stacks} stacks, {frames} frames equal", interpreter.version);
    }
}

#[test]
fn in_a_virtual_environment() {
    for interpreter in interpreters() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("bin/python");
        let real = interpreter.program.canonicalize().unwrap();
        if std::fs::read(&real).unwrap().starts_with(b"#!") {
            continue; // a script that starts an interpreter cannot be linked to
        }
        std::fs::create_dir(folder.path().join("bin")).unwrap();
        std::os::unix::fs::symlink(&real, &program).unwrap();
        let home = format!("home = {}\n", real.parent().unwrap().display());
        std::fs::write(folder.path().join("pyvenv.cfg"), home).unwrap();
        compare(&Job::start(&program, &[]), &interpreter);
    }
}

/// A static interpreter whose file is gone, and which is not called after its version.
#[test]
fn after_the_interpreter_was_deleted() {
    for interpreter in interpreters() {
        let question = "import sys, sysconfig; print(sysconfig.get_config_var('Py_ENABLE_SHARED'), sys.base_prefix)";
        let output = Command::new(&interpreter.program).args(["-c", question]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let real = interpreter.program.canonicalize().unwrap();
        let Some(prefix) = text.trim().strip_prefix("0 ") else { continue };
        if std::fs::read(&real).unwrap().starts_with(b"#!") {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("interpreter");
        std::fs::copy(&real, &program).unwrap();
        let job = Job::start(&program, &[("PYTHONHOME", &PathBuf::from(prefix))]);
        std::fs::remove_file(&program).unwrap();
        compare(&job, &interpreter);
    }
}

/// Two lines that reach the same call through the same frames, as two layers of a model do.
#[test]
fn the_hash_of_a_call_site_knows_the_line_of_the_caller() {
    let script = "import os, threading
class Layer:
    def __call__(self, x): return self.call(x)
    def call(self, x): return self.forward(x)
    def forward(self, x): return step(x)
def step(x):
    print('at', flush=True); os.read(0, 1)
def model(layer):
    for x in range(2):
        layer(x)
    layer(3)
print(threading.get_ident(), flush=True)
model(Layer())";
    for interpreter in interpreters() {
        let mut child = Command::new(&interpreter.program)
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let thread_pointer = lines.next().unwrap().unwrap().parse().unwrap();
        let mut hashes = Vec::new();
        while let Some(Ok(_at)) = lines.next() {
            wait_until_reading(child.id(), child.id());
            let mut walker = Walker::new(child.id(), python::find(child.id()).unwrap().process);
            let tstate = walker.find_tstate(thread_pointer, 0);
            hashes.push(walker.site_hash(thread_pointer, tstate));
            assert_eq!(walker.site_hash(thread_pointer + 8, tstate), 0, "another thread's state");
            child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        }
        child.wait().unwrap();
        let [first, again, other] = hashes[..] else { panic!("{hashes:?}") };
        assert_ne!(first, 0);
        assert_eq!(first, again, "{}", interpreter.version);
        assert_ne!(first, other, "{}", interpreter.version);
    }
}

/// A thread that ended leaves its state's memory behind, id and all.
#[test]
fn a_thread_that_ended_has_no_state_any_more() {
    let script = "import os, sys, threading
t = threading.Thread(target=lambda: (print(threading.get_ident(), flush=True), os.read(0, 1)))
t.start(); t.join(); print('gone', flush=True); os.read(0, 1)";
    for interpreter in interpreters() {
        let mut child = Command::new(&interpreter.program)
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let thread_pointer = lines.next().unwrap().unwrap().parse().unwrap();
        let found = python::find(child.id()).unwrap();
        let mut walker = Walker::new(child.id(), found.process);
        let tstate = walker.find_tstate(thread_pointer, 0);
        assert_ne!(tstate, 0);
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "gone");
        assert_eq!(walker.find_tstate(thread_pointer, tstate), 0, "{}", interpreter.version);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}

#[test]
fn threads_without_python_and_memory_without_anything() {
    let interpreter = interpreters().pop().unwrap();
    let job = Job::start(&interpreter.program, &[]);
    let found = python::find(job.pid()).unwrap();
    let mut walker = Walker::new(job.pid(), found.process);
    assert_eq!(walker.find_tstate(0x1234_5678, 0), 0, "no thread has this pointer");
    assert_eq!(walker.find_tstate(0x1234_5678, 8), 0, "nor is there a thread state at 8");
    assert_eq!((walker.walk(0).status, walker.walk(0).count), (STATUS_NO_STATE, 0));
    assert_eq!(walker.walk(8).status, python::STATUS_UNREADABLE);
    assert_eq!(walker.site_hash(0, 8), 0);
    let record = PyCode::from_bytes(&walker.read_code(8)).unwrap();
    assert_eq!(u32::from(record.status), python::STATUS_UNREADABLE);
}
