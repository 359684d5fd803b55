// SPDX-License-Identifier: Apache-2.0
//! What the tests share: the simulated stack, gpuwhy runs, the truth log and the run file side by side.
//!
//! Everything here is real but the GPU: real processes, real probes in this kernel, a real run file.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

pub mod accounts;
pub mod cgroup;
pub mod compare;
pub mod host;
pub mod jobs;
pub mod made;
pub mod mcp;
pub mod python;
pub mod terminal;

use simgpu::Installed;
use simgpu::log::Truth;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The binary under test.
pub const GPUWHY: &str = env!("CARGO_BIN_EXE_gpuwhy");

/// Whether this test can run here. Under CI a machine that cannot trace is a failure, not a reason to skip.
pub fn can_trace() -> bool {
    // A shell that runs the tests in the background has them ignore Ctrl-C, and gpuwhy would leave it at that.
    // SAFETY: the default, which no code of ours is called by.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    assert!(root || std::env::var_os("CI").is_none(), "this test needs root, and CI must not skip it");
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

/// The ways of attaching that this kernel has, best first, by when each came into Linux.
pub fn ways_of_attaching() -> Vec<&'static str> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|word| word.trim().parse::<u32>().ok());
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    let since = [("session", (6, 13)), ("multi", (6, 6)), ("plain", (5, 15))];
    since.into_iter().filter(|(_, since)| version >= *since).map(|(way, _)| way).collect()
}

/// One trace at a time: two would compete for the two cores, and "every process" would see the other's.
pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

static SIM: OnceLock<(TempDir, Installed)> = OnceLock::new();

extern "C" fn remove_sim() {
    if let Some((dir, _)) = SIM.get() {
        let _ = std::fs::remove_dir_all(dir.path());
    }
}

/// The simulated stack, installed once before this test process starts any other.
pub fn sim() -> &'static Installed {
    let (_, installed) = SIM.get_or_init(|| {
        // A static is never dropped: the folder is removed when the process ends.
        // SAFETY: registers a function that lives as long as the program.
        unsafe { libc::atexit(remove_sim) };
        let dir = tempfile::Builder::new().prefix("gpuwhy-test-sim-").tempdir().unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), mode).unwrap();
        let installed = simgpu::install(dir.path()).unwrap();
        (dir, installed)
    });
    installed
}

/// A folder for one test's run file and truth log.
pub struct Place {
    pub dir: TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("gpuwhy-test-").tempdir().unwrap() }
    }

    pub fn db(&self) -> PathBuf {
        self.dir.path().join("run.db")
    }

    pub fn log(&self) -> PathBuf {
        self.dir.path().join("truth")
    }

    pub fn truth(&self) -> Truth {
        Truth::read(&self.log()).unwrap()
    }

    pub fn run_file(&self) -> rusqlite::Connection {
        open(&self.db())
    }

    /// `gpuwhy trace` with this place's file; add arguments, then run it.
    pub fn trace(&self) -> Command {
        let mut command = Command::new(GPUWHY);
        // Tests are about what is recorded; those of the budget say another.
        command.arg("trace").args(["--budget", "none"]).arg("--db").arg(self.db());
        command.env("SIMGPU_LOG", self.log()).env("SIMGPU_LOG_LEVEL", "full");
        command.env("LD_LIBRARY_PATH", &sim().dir);
        command
    }

    /// simjob by itself, logging into this place.
    pub fn simjob(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&sim().simjob);
        command.arg("--cudart").arg(&sim().cudart).args(args);
        command.env("SIMGPU_LOG", self.log()).env("SIMGPU_LOG_LEVEL", "full");
        command
    }
}

/// Opens a run file with plain SQLite, as any other client would.
pub fn open(path: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open_with_flags(path, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap()
}

/// Runs a command that must be refused: with this exit code, one line of gpuwhy's on stderr, nothing on stdout.
pub fn refusal(command: &mut Command, code: i32) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{command:?} said {said}");
    let one_line = said.ends_with('\n') && said.matches('\n').count() == 1;
    assert!(one_line && said.starts_with("gpuwhy: "), "not one line of gpuwhy's: {said:?}");
    assert!(!said.contains('\x1b'), "{said:?}");
    assert!(output.stdout.is_empty(), "half an answer: {}", text(&output));
    said
}

/// Runs a command to its end and insists that it succeeded.
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?} failed: {}\n{}", output.status, text(&output));
    output
}

/// Everything a command printed.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// One number from a run file.
pub fn number(db: &rusqlite::Connection, sql: &str) -> i64 {
    db.query_row(sql, [], |row| row.get::<_, Option<i64>>(0)).unwrap().unwrap_or(0)
}

/// Waits until a condition holds; fails after half a minute.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(30), "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A simjob that waits to be told to go on, its processes known.
pub struct HeldSimjob {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
    pub pids: Vec<u32>,
}

impl HeldSimjob {
    /// Starts it (`--hold` is added) and waits until its libraries are loaded.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.arg("--hold").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let pids = line.strip_prefix("ready ").unwrap_or_else(|| panic!("simjob said {line:?}"));
        let pids = pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        Self { child, stdout, pids }
    }

    /// The process that started the others.
    pub fn parent(&self) -> u32 {
        self.child.id()
    }

    /// Lets it go on.
    pub fn go(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }

    /// Its end and what it said.
    pub fn end(mut self) -> (ExitStatus, String) {
        let mut said = String::new();
        self.stdout.read_line(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }
}

/// A gpuwhy in the background.
pub struct Tracing {
    child: Child,
    db: PathBuf,
}

impl Tracing {
    /// Starts it and waits until it has attached to this many libraries.
    pub fn start(command: &mut Command, place: &Place, libraries: i64) -> Self {
        let child = command.arg("--quiet").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let tracing = Self { child, db: place.db() };
        tracing.wait_for_libraries(libraries);
        tracing
    }

    /// Starts it as it is, and waits for nothing.
    pub fn spawn(command: &mut Command, place: &Place) -> Self {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { child, db: place.db() }
    }

    /// Waits until the run file, read while it is written, tells of this many libraries.
    pub fn wait_for_libraries(&self, libraries: i64) {
        until("gpuwhy attaches", || {
            let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
            let Ok(db) = rusqlite::Connection::open_with_flags(&self.db, flags) else { return false };
            let count = db.query_row("SELECT COUNT(*) FROM libraries", [], |row| row.get::<_, i64>(0));
            count.is_ok_and(|n| n >= libraries)
        });
    }

    /// Waits until the run file tells of every CUDA library that a process has mapped.
    pub fn wait_for_process(&self, pid: u32) {
        until("gpuwhy attaches to the process", || {
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
            let paths =
                maps.lines().filter(|line| line.contains("libcuda")).filter_map(|line| line.split(' ').next_back());
            let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
            let Ok(db) = rusqlite::Connection::open_with_flags(&self.db, flags) else { return false };
            let known = |path: &str| {
                let count = db.query_row("SELECT COUNT(*) FROM libraries WHERE path = ?1", [path], |row| row.get(0));
                count.is_ok_and(|n: i64| n > 0)
            };
            paths.into_iter().all(known)
        });
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: &str) {
        succeed(Command::new("kill").arg(format!("-{signal}")).arg(self.child.id().to_string()));
    }

    /// Waits for its end.
    pub fn end(self) -> Output {
        self.child.wait_with_output().unwrap()
    }

    /// Ctrl-C, and its end.
    pub fn interrupt(self) -> Output {
        self.signal("INT");
        self.end()
    }
}
