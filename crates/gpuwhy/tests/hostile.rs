// SPDX-License-Identifier: Apache-2.0
//! Processes that want to keep gpuwhy from its work: files and memory that never arrive.
#![allow(clippy::unwrap_used)]

mod common;

use common::compare::{recorded_sums, true_sums};
use common::jobs::{assert_exact, losses};
use common::{HeldSimjob, Place, Tracing, can_trace, number, one_at_a_time, sim, succeed, text, until};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A process with a CUDA runtime and a libpython that nobody can read, until it is dropped.
struct Stalling(Child, tempfile::TempDir);

impl Stalling {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = format!("{}/tests/python/stalling_files.py", env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new("python3");
        command.arg(script).arg(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child, folder)
    }
}

impl Drop for Stalling {
    fn drop(&mut self) {
        // Whoever waits for its files is let go with it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn files_that_cannot_be_read_keep_nobody_else_waiting() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let arguments = ["--mix", "mixed", "--calls", "140000", "--rate", "20000"];
    let mut job = HeldSimjob::start(&mut place.simjob(&arguments));
    let tracing = Tracing::start(&mut place.trace(), &place, 2);
    let stalling = Stalling::start();
    job.go();
    let (ended, said) = job.end();
    assert!(ended.success(), "{said}");
    tracing.signal("INT");
    let pid = tracing.pid();
    let has_ended = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('Z')
    };
    // The files are as unreadable as before.
    until("gpuwhy ends", has_ended);
    let output = tracing.end();
    assert!(output.status.success(), "{}", text(&output));
    let (db, truth) = (place.run_file(), place.truth());
    assert_eq!(recorded_sums(&db, &truth), true_sums(&truth));
    assert_eq!(losses(&db), [("process_unread".to_owned(), 1)], "the one that stalls, and nothing else");
    let named = format!("SELECT COUNT(*) FROM libraries WHERE path LIKE '{}%'", stalling.1.path().display());
    assert_eq!(number(&place.run_file(), &named), 0);
    let warning = format!("process {} is not watched further: reading its libraries took more than", stalling.0.id());
    assert!(text(&output).contains(&warning), "{}", text(&output));
}

#[test]
fn a_process_whose_libpython_cannot_be_read_is_traced_without_it() {
    if !can_trace() {
        return;
    }
    let (_lock, place, stalling) = (one_at_a_time(), Place::new(), Stalling::start());
    let pid = stalling.0.id().to_string();
    let mut command = place.trace();
    command.args(["--pid", &pid, "--duration", "1"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tracing = command.spawn().unwrap();
    until("gpuwhy ends", || tracing.try_wait().unwrap().is_some());
    let output = tracing.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains(&format!("process {pid} is not watched further")), "{}", text(&output));
}

/// Copies of the driver that a user other than root owns and has mapped.
const COPIES: usize = 120;

#[test]
fn a_user_with_many_copies_of_a_library_blinds_nobody_else() {
    if !can_trace() {
        return;
    }
    let (_lock, place, folder) = (one_at_a_time(), Place::new(), tempfile::tempdir().unwrap());
    for copy in 0..COPIES {
        let own = folder.path().join(copy.to_string());
        std::fs::create_dir(&own).unwrap();
        std::fs::copy(&sim().cuda, own.join("libcuda.so.1")).unwrap();
    }
    succeed(Command::new("chown").args(["-R", "65534:65534"]).arg(folder.path()));
    let maps_all = "import glob, mmap, sys\n\
                    files = [open(name, 'rb') for name in glob.glob(sys.argv[1] + '/*/*')]\n\
                    maps = [mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC) for f in files]\n\
                    print('ready', flush=True)\n\
                    sys.stdin.read()";
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", maps_all]);
    let mut stranger = command.arg(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(stranger.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let tracing = Tracing::start(&mut place.trace(), &place, 90);
    let mut job = HeldSimjob::start(&mut place.simjob(&["--mix", "mixed", "--calls", "20000"]));
    job.pids.iter().for_each(|pid| tracing.wait_for_process(*pid));
    job.go();
    let (ended, said) = job.end();
    assert!(ended.success(), "{said}");
    let output = tracing.interrupt();
    drop(stranger.stdin.take());
    let pid = stranger.id();
    stranger.wait().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert_exact(&place);
    let never = format!("SELECT COUNT(*) FROM unwatched WHERE pid = {pid} AND to_ns IS NULL");
    let of_stranger = format!("SELECT COUNT(*) FROM libraries WHERE path LIKE '{}%'", folder.path().display());
    let db = place.run_file();
    assert_eq!(number(&db, &never) + number(&db, &of_stranger), COPIES as i64, "watched, or noted as not watched");
    let said = text(&output);
    assert!(number(&db, &never) > 0 && said.contains("not watched:"), "{said}");
    assert_eq!(said.matches("cannot be reached").count(), 1, "said once for each process: {said}");
}
