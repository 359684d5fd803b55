// SPDX-License-Identifier: Apache-2.0
//! The run file that `gpuwhy trace` leaves: what it says of the run, whose it is, and what it survives.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{GPUWHY, HeldSimjob, Place, Tracing, can_trace, number, one_at_a_time, open, sim, succeed, text, until};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

const NOBODY: u32 = 65534;

/// A text of the session's row, `None` for NULL.
fn session(db: &rusqlite::Connection, column: &str) -> Option<String> {
    let sql = format!("SELECT CAST({column} AS TEXT) FROM sessions");
    db.query_row(&sql, [], |row| row.get(0)).unwrap()
}

fn launches(db: &Path) -> i64 {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let sql = "SELECT COUNT(*) FROM events WHERE op = 'cudaLaunchKernel'";
    let open = rusqlite::Connection::open_with_flags(db, flags);
    open.and_then(|db| db.query_row(sql, [], |row| row.get(0))).unwrap_or(0)
}

/// What every finished run must say of itself.
fn assert_adds_up(db: &rusqlite::Connection) {
    let [seen, stored, lost] =
        ["seen", "stored", "lost"].map(|what| number(db, &format!("SELECT events_{what} FROM sessions")));
    assert_eq!(seen, stored + lost);
    // Wake-ups are told by the rows of the times off CPU they end.
    assert_eq!(stored, number(db, "SELECT COUNT(*) FROM events WHERE op <> 'sched_wakeup'"));
    assert_eq!(lost, number(db, "SELECT SUM(count) FROM loss WHERE loses_event"));
    assert_eq!(number(db, "SELECT seconds_missing FROM sessions"), 0);
    let check: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}

// ---- what it says of the run ----

#[test]
fn the_session_tells_of_machine_and_command_without_secrets() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let script = r#""$0" --cudart "$1" --calls 100"#;
    let mut command = place.trace();
    command.args(["--quiet", "--", "sh", "-c", script]).arg(&sim().simjob).arg(&sim().cudart);
    succeed(command.args(["--api-key=xyz-1", "--hf-token", "xyz-2", "--epochs=3"]));
    let db = place.run_file();
    assert_eq!(number(&db, "SELECT COUNT(*) FROM sessions"), 1);
    assert_adds_up(&db);
    assert_eq!(launches(&place.db()), 100);
    for column in ["start", "stop", "cpu", "kernel", "version", "own_cost"] {
        assert!(session(&db, column).is_some_and(|text| !text.is_empty()), "{column}");
    }
    for column in ["cores", "memory_bytes", "duration_ns", "start_unix_ns", "start_monotonic_ns"] {
        assert!(number(&db, &format!("SELECT {column} FROM sessions")) > 0, "{column}");
    }
    assert!(session(&db, "stop") > session(&db, "start"));
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(session(&db, "kernel").as_deref(), Some(release.trim()));
    assert_eq!(session(&db, "python"), None, "there was none");
    assert_eq!(session(&db, "stop_reason").as_deref(), Some("exit"));
    let own: Value = serde_json::from_str(&session(&db, "own_cost").unwrap()).unwrap();
    assert!(own["cpu_ns"].as_u64() > Some(0) && own["peak_memory_bytes"].as_u64() > Some(0), "{own}");

    let command = session(&db, "command").unwrap();
    assert!(command.starts_with("sh -c '\"$0\" --cudart"), "{command}");
    assert!(command.ends_with(" --api-key=*** --hf-token *** --epochs=3"), "{command}");
    let flags = session(&db, "flags").unwrap();
    assert_eq!(flags, format!("trace --budget none --db {} --quiet", place.db().display()));
    let bytes = std::fs::read(place.db()).unwrap();
    assert!(!bytes.windows(4).any(|part| part == b"xyz-"), "a secret is in the file");
}

#[test]
fn a_python_job_has_its_version_and_name() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let args = ["--steps", "3", "--workers", "1"];
    succeed(place.trace().args(["--quiet", "--", "python3"]).arg(&sim().train_py).args(args));
    let db = place.run_file();
    assert_adds_up(&db);
    let version = "import sys; print('%d.%d' % sys.version_info[:2])";
    let version = text(&succeed(Command::new("python3").args(["-c", version])));
    assert_eq!(session(&db, "python").as_deref(), Some(version.trim()));
    assert_eq!(number(&db, "SELECT COUNT(DISTINCT pid) FROM events WHERE layer <> 'kernel'"), 1);
    let mut names = db
        .prepare("SELECT name FROM process_names WHERE pid IN (SELECT pid FROM events WHERE layer <> 'kernel')")
        .unwrap();
    let names: Vec<String> = names.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(names, ["python3 train.py"], "exactly one row");
    let twice = "SELECT COUNT(*) - COUNT(DISTINCT pid) FROM process_names";
    assert_eq!(number(&db, twice), 0, "one row a pid");
}

// ---- whose it is ----

#[test]
fn with_sudo_the_job_runs_as_its_caller_and_the_file_is_theirs() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    chown(place.dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let script = r#"id -u; id -g; id -G; "$0" --cudart "$1" --calls 100"#;
    let mut command = place.trace();
    command.env("SUDO_UID", "65534").env("SUDO_GID", "65534");
    command.args(["--quiet", "--", "sh", "-c", script]).arg(&sim().simjob).arg(&sim().cudart);
    let output = succeed(&mut command);
    assert!(output.stdout.starts_with(b"65534\n65534\n65534\n"), "{}", text(&output));

    let found = std::fs::metadata(place.db()).unwrap();
    assert_eq!((found.uid(), found.gid()), (NOBODY, NOBODY));
    let left: Vec<PathBuf> = std::fs::read_dir(place.dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
    let beside = |path: &PathBuf| path.to_str().unwrap().starts_with(&format!("{}-", place.db().display()));
    assert!(!left.iter().any(beside), "no -wal, no -shm: {left:?}");
    // Bytes 18 and 19 of an SQLite file: 1 for a rollback journal, 2 for a -wal.
    assert_eq!(std::fs::read(place.db()).unwrap()[18..20], [1, 1]);

    let binary = place.dir.path().join("gpuwhy");
    std::fs::copy(GPUWHY, &binary).unwrap();
    let mut theirs = Command::new("setpriv");
    theirs.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(binary).args(["query", "--db"]);
    let sql = "SELECT COUNT(*) AS n FROM events WHERE op = 'cudaLaunchKernel'";
    assert_eq!(text(&succeed(theirs.arg(place.db()).args(["--csv", sql]))), "n\n100\n");
    assert!(std::fs::metadata(place.db()).unwrap().permissions().mode() & 0o600 == 0o600);
}

// ---- what it survives ----

#[test]
fn killed_it_keeps_what_was_committed_and_the_job_goes_on() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let mut first = HeldSimjob::start(&mut place.simjob(&["--calls", "5000"]));
    let mut second = HeldSimjob::start(&mut place.simjob(&["--calls", "60000", "--rate", "30000"]));
    let pids = [first.parent().to_string(), second.parent().to_string()];
    let tracing = Tracing::start(place.trace().args(["--pid", &pids[0], "--pid", &pids[1]]), &place, 2);
    first.go();
    assert!(first.end().0.success());
    until("the first job's calls are in the file while it is written", || launches(&place.db()) == 5000);
    second.go();
    until("the second job is on its way", || launches(&place.db()) > 8000);
    let read = launches(&place.db());
    tracing.signal("KILL");
    assert_eq!(tracing.end().status.code(), None, "it had no chance to say goodbye");
    let (status, said) = second.end();
    assert!(status.success() && said.contains("\"calls\":60000,") && said.contains("\"errors\":0,"), "{said}");

    let mut query = Command::new(GPUWHY);
    query.args(["query", "--csv", "--db"]).arg(place.db());
    let sql = "SELECT stop, stop_reason, duration_ns > 0, events_stored - \
               (SELECT COUNT(*) FROM events WHERE op <> 'sched_wakeup') FROM sessions";
    let answer = text(&succeed(query.arg(sql)));
    assert_eq!(answer.lines().nth(1), Some(",,1,0"), "{answer}");
    let kept = launches(&place.db());
    assert!(kept >= read, "{read} could be read before, {kept} after");
    let whole: String = place.run_file().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(whole, "ok");

    let said = text(&succeed(place.trace().args(["--", "true"])));
    let line = said.lines().find(|line| line.contains("renamed the existing ")).unwrap_or_else(|| panic!("{said}"));
    let aside = Path::new(line.rsplit_once(" to ").unwrap().1);
    assert_eq!(launches(aside), kept, "moved aside whole, its -wal with it");
}

/// A small disk of the test's own, unmounted however the test ends.
struct SmallDisk<'a>(&'a Place);

impl<'a> SmallDisk<'a> {
    fn under(place: &'a Place, size: &str) -> Self {
        let disk = Self(place);
        std::fs::create_dir(disk.folder()).unwrap();
        let options = format!("size={size}");
        succeed(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(disk.folder()));
        disk
    }

    fn folder(&self) -> PathBuf {
        self.0.dir.path().join("disk")
    }

    fn db(&self) -> PathBuf {
        self.folder().join("run.db")
    }

    fn filler(&self) -> PathBuf {
        self.folder().join("filler")
    }

    /// Takes every byte that is left.
    fn fill(&self) {
        let mut filler = std::fs::File::create(self.filler()).unwrap();
        let _ = std::io::copy(&mut std::io::repeat(1), &mut filler);
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.folder()).status();
    }
}

/// A trace onto the disk: JSON lines from its stdout, its stderr in a file.
struct TracingOnto {
    child: std::process::Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    stderr: PathBuf,
}

impl TracingOnto {
    /// Starts it and waits until it has attached to the jobs.
    fn start(disk: &SmallDisk<'_>, jobs: &[&HeldSimjob]) -> Self {
        let stderr = disk.0.dir.path().join("stderr");
        let mut command = Command::new(GPUWHY);
        command.args(["trace", "--budget", "none", "--json", "--db"]).arg(disk.db());
        jobs.iter().for_each(|job| _ = command.arg("--pid").arg(job.parent().to_string()));
        command.stdout(Stdio::piped()).stderr(std::fs::File::create(&stderr).unwrap());
        let mut child = command.spawn().unwrap();
        until("gpuwhy attaches", || {
            let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
            let db = rusqlite::Connection::open_with_flags(disk.db(), flags);
            db.and_then(|db| db.query_row("SELECT COUNT(*) FROM libraries", [], |row| row.get(0))) == Ok(2)
        });
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, stderr }
    }

    fn line(&mut self) -> Option<Value> {
        self.lines.next().map(|line| serde_json::from_str(&line.unwrap()).unwrap())
    }

    /// Reads progress until something holds.
    fn wait_for(&mut self, what: &str, holds: impl Fn(&Value) -> bool) {
        let minute = 60_000_000_000;
        while let Some(line) = self.line().filter(|line| !holds(line)) {
            assert!(line["elapsed_ns"].as_i64() < Some(minute), "never {what}: {line}");
        }
    }

    /// Its summary, which must agree with the file, and what it said on stderr.
    fn end(mut self, db: &Path) -> (Value, String) {
        let mut summary = Value::Null;
        while let Some(line) = self.line() {
            summary = line;
        }
        let stderr = std::fs::read_to_string(&self.stderr).unwrap();
        assert!(self.child.wait().unwrap().success(), "{stderr}");
        let db = open(db);
        assert_adds_up(&db);
        for (key, column) in [("seen", "events_seen"), ("stored", "events_stored"), ("lost", "events_lost")] {
            assert_eq!(summary[key], number(&db, &format!("SELECT {column} FROM sessions")), "{key} in {summary}");
        }
        let failed = number(&db, "SELECT SUM(count) FROM loss WHERE cause = 'write_failed'");
        assert_eq!(summary["loss_by_cause"]["write_failed"].as_i64().unwrap_or(0), failed);
        (summary, stderr)
    }
}

#[test]
fn on_a_disk_that_fills_up_it_goes_on_says_so_and_counts() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let disk = SmallDisk::under(&place, "1m");
    let mut few = HeldSimjob::start(&mut place.simjob(&["--calls", "5000"]));
    let mut many = HeldSimjob::start(&mut place.simjob(&["--calls", "90000", "--rate", "60000"]));
    let tracing = TracingOnto::start(&disk, &[&few, &many]);
    few.go();
    assert!(few.end().0.success());
    until("the few are committed", || launches(&disk.db()) == 5000);
    many.go();
    let (status, report) = many.end();
    assert!(status.success() && report.contains("\"calls\":90000,"), "the job is unharmed: {report}");
    let (summary, warnings) = tracing.end(&disk.db());
    let full = format!("the disk with {} is full: keeping events in memory", disk.db().display());
    assert!(warnings.matches(&full).count() <= 1, "said when it begins, not over and over: {warnings}");
    assert!(summary["lost"].as_i64() > Some(0), "{summary}");
    let problem = summary["problem"].as_str().unwrap_or_default();
    assert!(problem.contains("was full until the end") && problem.contains(disk.db().to_str().unwrap()), "{summary}");
    assert!(launches(&disk.db()) >= 5000, "what was committed is kept");
    let seen = number(&open(&disk.db()), "SELECT SUM(calls) FROM seconds WHERE op = 'cudaLaunchKernel'");
    assert_eq!(seen, 95_000, "seconds are exact all the same");
}

#[test]
fn when_space_is_freed_everything_is_stored() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let disk = SmallDisk::under(&place, "4m");
    let mut first = HeldSimjob::start(&mut place.simjob(&["--calls", "4000"]));
    let mut second = HeldSimjob::start(&mut place.simjob(&["--calls", "3000"]));
    let mut tracing = TracingOnto::start(&disk, &[&first, &second]);
    disk.fill();
    first.go();
    assert!(first.end().0.success());
    tracing.wait_for("in trouble", |line| line["trouble"].is_string());
    assert_eq!(launches(&disk.db()), 0, "nothing could be stored");
    std::fs::remove_file(disk.filler()).unwrap();
    tracing.wait_for("well again", |line| line["trouble"].is_null());
    assert_eq!(launches(&disk.db()), 4000, "what was kept is stored");
    second.go();
    assert!(second.end().0.success());
    let (summary, warnings) = tracing.end(&disk.db());
    for said in ["is full: keeping events in memory", "is writable again"] {
        assert_eq!(warnings.matches(said).count(), 1, "{said}: {warnings}");
    }
    assert_eq!(launches(&disk.db()), 7000);
    assert_eq!((summary["lost"].as_i64(), &summary["problem"]), (Some(0), &Value::Null), "{summary}");
    let seen = number(&open(&disk.db()), "SELECT SUM(calls) FROM seconds WHERE op = 'cudaLaunchKernel'");
    assert_eq!(seen, 7000);
    let mut beside = std::fs::read_dir(disk.folder()).unwrap().map(|e| e.unwrap().file_name());
    assert_eq!((beside.next(), beside.next()), (Some("run.db".into()), None), "closed into one file");
}
