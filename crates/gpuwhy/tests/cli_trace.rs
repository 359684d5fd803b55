// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy trace` from outside: what it refuses, how it ends, and what it prints where.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{
    GPUWHY, HeldSimjob, Place, Tracing, can_trace, number, one_at_a_time, open, refusal, sim, succeed, text, until,
};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Refused with this command's own exit code.
fn refused(command: &mut Command) -> String {
    refusal(command, 125)
}

fn trace_to(db: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(GPUWHY);
    command.args(["trace", "--budget", "none", "--db"]).arg(db).args(args);
    command
}

/// A shell script as the traced job; `$0` is simjob and `$1` its library.
fn shell(script: &str) -> [&OsStr; 5] {
    let [simjob, cudart] = [sim().simjob.as_os_str(), sim().cudart.as_os_str()];
    ["sh".as_ref(), "-c".as_ref(), script.as_ref(), simjob, cudart]
}

fn stop_reason(db: &Path) -> Option<String> {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let db = rusqlite::Connection::open_with_flags(db, flags).ok()?;
    db.query_row("SELECT stop_reason FROM sessions", [], |row| row.get(0)).ok()?
}

fn kill(signal: &str, pid: u32) {
    succeed(Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()));
}

// ---- what it refuses ----

#[test]
fn a_process_that_is_not_there_is_named() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let mut gone = Command::new("true").spawn().unwrap();
    let pid = gone.id().to_string();
    // First a zombie, which never ends because it has; then no process at all.
    until("it ends", || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z "));
    for state in ["zombie", "gone"] {
        let said = refused(&mut trace_to(&place.db(), &["--pid", &pid]));
        assert!(said.contains(&format!("no process {pid}")) && said.contains("pgrep"), "{state}: {said}");
        gone.wait().unwrap();
    }
    let said = refused(&mut trace_to(&place.db(), &["--pid", "4294967295"]));
    assert!(said.contains("4294967295"), "{said}");
    assert!(!place.db().exists(), "no run file was begun");
}

#[test]
fn processes_that_die_while_gpuwhy_attaches_do_no_harm() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    for tenth in 0..15 {
        let mut dying = Command::new("sleep").arg(format!("0.{:02}", tenth * 2)).spawn().unwrap();
        let tracing = trace_to(&place.db(), &["--quiet", "--pid", &dying.id().to_string()])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Not waited for at first: a process that stays a zombie must not be waited for by gpuwhy either.
        let output = if tenth % 2 == 0 {
            dying.wait().unwrap();
            tracing.wait_with_output().unwrap()
        } else {
            let output = tracing.wait_with_output().unwrap();
            dying.wait().unwrap();
            output
        };
        let said = text(&output);
        match output.status.code() {
            Some(0) => assert_eq!(stop_reason(&place.db()).as_deref(), Some("targets_ended"), "{said}"),
            Some(125) => assert!(said.contains(&dying.id().to_string()) && said.lines().count() == 1, "{said}"),
            code => panic!("exit code {code:?}: {said}"),
        }
    }
}

#[test]
fn a_command_that_cannot_run_is_named_before_anything_begins() {
    if !can_trace() {
        return;
    }
    let place = Place::new();
    for program in ["no-such-program", "/nowhere/job", "/etc/passwd", "/tmp"] {
        let said = refused(&mut trace_to(&place.db(), &["--", program]));
        assert!(said.contains(program) && said.contains("PATH"), "{said}");
    }
    assert!(!place.db().exists(), "no run file was begun");
}

/// A file system of the test's own, unmounted however the test ends.
struct ReadOnlyMount<'a>(&'a Path);

impl<'a> ReadOnlyMount<'a> {
    fn over(folder: &'a Path) -> Self {
        succeed(Command::new("mount").args(["-t", "tmpfs", "-o", "ro", "tmpfs"]).arg(folder));
        Self(folder)
    }
}

impl Drop for ReadOnlyMount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn a_place_where_no_run_file_can_be_is_named() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let folder = place.dir.path();
    std::fs::create_dir(folder.join("read-only")).unwrap();
    let read_only = folder.join("read-only");
    let _mount = ReadOnlyMount::over(&read_only);
    for (db, why) in [
        (folder.join("missing/run.db"), "does not exist"),
        (read_only.join("run.db"), "Read-only file system"),
        (folder.to_path_buf(), "not a regular file"),
        ("/proc/run.db".into(), "cannot create"),
        ("/dev/null".into(), "not a regular file"),
    ] {
        let said = refused(&mut trace_to(&db, &["--", "touch", folder.join("ran").to_str().unwrap()]));
        let named = said.contains(db.to_str().unwrap()) || said.contains(db.parent().unwrap().to_str().unwrap());
        assert!(named && said.contains(why) && said.contains("--db"), "{said}");
    }
    assert!(!folder.join("ran").exists(), "the job was not started");
}

#[test]
fn a_name_that_is_no_text_is_fine() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let db = place.dir.path().join(OsStr::from_bytes(b"run-\xff.db"));
    succeed(&mut trace_to(&db, &["--quiet", "--", "true"]));
    assert_eq!(stop_reason(&db).as_deref(), Some("exit"));
}

// ---- what stands at its file's name ----

#[test]
fn a_file_that_has_the_name_is_kept_under_another() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let mut kept = vec![b"my notes".to_vec()];
    std::fs::write(place.db(), &kept[0]).unwrap();
    for _ in 0..2 {
        let said = text(&succeed(&mut trace_to(&place.db(), &["--", "true"])));
        let line = said.lines().find(|line| line.contains("renamed the existing ")).unwrap_or_else(|| panic!("{said}"));
        let (_, name) = line.rsplit_once(" to ").unwrap();
        assert_eq!(&std::fs::read(name).unwrap(), kept.last().unwrap(), "{name} has what was there");
        assert_eq!(stop_reason(&place.db()).as_deref(), Some("exit"));
        kept.push(std::fs::read(place.db()).unwrap());
    }
    assert_eq!(std::fs::read_dir(place.dir.path()).unwrap().count(), 3, "two kept, one new");
}

#[test]
fn a_file_that_another_gpuwhy_writes_is_refused() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let mut job = HeldSimjob::start(&mut place.simjob(&["--calls", "500"]));
    let first = Tracing::start(place.trace().args(["--pid", &job.parent().to_string()]), &place, 2);
    let said = refused(&mut trace_to(&place.db(), &["--", "true"]));
    assert!(said.contains(place.db().to_str().unwrap()) && said.contains("another gpuwhy"), "{said}");
    job.go();
    assert!(job.end().0.success());
    let output = first.end();
    assert!(output.status.success(), "{}", text(&output));
    let launches = number(&place.run_file(), "SELECT COUNT(*) FROM events WHERE op = 'cudaLaunchKernel'");
    assert_eq!(launches, 500, "the first was not disturbed");
}

// ---- how it ends ----

#[test]
fn it_ends_with_the_jobs_exit_code() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -SEGV $$", 139)] {
        let output = trace_to(&place.db(), &["--quiet", "--", "sh", "-c", script]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{script}: {}", text(&output));
        assert_eq!(stop_reason(&place.db()).as_deref(), Some("exit"));
    }
}

/// Starts a job under gpuwhy and waits for its first line.
fn start_talking(place: &Place, args: &[&str], script: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut command = trace_to(&place.db(), args);
    command.args(["--quiet", "--", "sh", "-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    (child, stdout)
}

#[test]
fn a_signal_sent_to_it_reaches_the_job() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    for (script, signal, code) in [
        ("echo up; exec sleep 60", "TERM", 143),
        ("echo up; exec sleep 60", "HUP", 129),
        ("trap 'exit 9' TERM; echo up; sleep 60 & wait; kill $!", "TERM", 9),
    ] {
        let (mut child, _stdout) = start_talking(&place, &[], script);
        kill(signal, child.id());
        assert_eq!(child.wait().unwrap().code(), Some(code), "{script}");
        assert_eq!(stop_reason(&place.db()).as_deref(), Some("exit"));
    }
}

#[test]
fn a_duration_ends_the_trace_but_not_the_job() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let script = "echo up; read line; exit 5";
    let (mut child, _stdout) = start_talking(&place, &["--duration", "200ms"], script);
    until("the trace ends", || stop_reason(&place.db()).as_deref() == Some("duration"));
    assert_eq!(child.try_wait().unwrap(), None, "gpuwhy waits for the job");
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));

    let (mut child, _stdout) = start_talking(&place, &["--duration", "200ms"], "echo up; exec sleep 60");
    until("the trace ends", || stop_reason(&place.db()).as_deref() == Some("duration"));
    kill("TERM", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(143), "signals still reach the job");
}

#[test]
fn a_duration_ends_an_attached_trace() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let mut job = HeldSimjob::start(&mut place.simjob(&["--calls", "100"]));
    succeed(&mut trace_to(&place.db(), &["--quiet", "--duration", "300ms", "--pid", &job.parent().to_string()]));
    assert_eq!(stop_reason(&place.db()).as_deref(), Some("duration"));
    job.go();
    let (status, said) = job.end();
    assert!(status.success() && said.contains("\"calls\":100,"), "{said}");
}

/// Whether the code of a library in a process is what its file says: probes change it.
fn code_is_untouched(pid: u32, library: &Path) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let line = maps.lines().find(|l| l.ends_with(library.to_str().unwrap()) && l.contains(" r-xp ")).unwrap();
    let fields: Vec<&str> = line.split_whitespace().collect();
    let hex = |text| u64::from_str_radix(text, 16).unwrap();
    let (start, end) = fields[0].split_once('-').map(|(a, b)| (hex(a), hex(b))).unwrap();
    let mut code = vec![0; (end - start) as usize];
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    memory.read_exact_at(&mut code, start).unwrap();
    let mut file = vec![0; code.len()];
    // The last page goes on beyond the end of the file.
    let known = std::fs::File::open(library).unwrap().read_at(&mut file, hex(fields[2])).unwrap();
    code[..known] == file[..known]
}

#[test]
fn ctrl_c_ends_an_attached_trace_and_takes_every_probe_along() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let mut job = HeldSimjob::start(&mut place.simjob(&["--calls", "3000", "--mix", "mixed"]));
    assert!(code_is_untouched(job.pids[0], &sim().cudart));
    let tracing = Tracing::start(place.trace().args(["--pid", &job.parent().to_string()]), &place, 2);
    assert!(!code_is_untouched(job.pids[0], &sim().cudart), "there are probes while it traces");
    let output = tracing.interrupt();
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(stop_reason(&place.db()).as_deref(), Some("interrupted"));
    for library in [&sim().cudart, &sim().cuda] {
        assert!(code_is_untouched(job.pids[0], library), "a probe was left in {}", library.display());
    }
    job.go();
    let (status, said) = job.end();
    assert!(status.success() && said.contains("\"calls\":3000,") && said.contains("\"errors\":0,"), "{said}");
}

// ---- what it prints where ----

#[test]
fn the_jobs_output_passes_through_untouched() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let script = r"printf 'one\n\033[1mtwo\0'; printf 'oops' >&2";
    let output = succeed(&mut trace_to(&place.db(), &["--", "sh", "-c", script]));
    assert_eq!(output.stdout, b"one\n\x1b[1mtwo\0");
    assert!(text(&output).contains("oops"));
}

fn traced_simjob(place: &Place, flags: &[&str]) -> Output {
    let job = shell(r#"exec "$0" --cudart "$1" --calls 200"#);
    succeed(place.trace().args(flags).arg("--").args(job))
}

#[test]
fn without_a_terminal_there_are_no_escape_codes() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let output = traced_simjob(&place, &["--verbose"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains(['\x1b', '\r']), "{stderr:?}");
    assert!(stderr.contains("tracing the job"), "{stderr}");
    assert!(stderr.lines().any(|line| line.starts_with("cudaLaunchKernel ")), "{stderr}");
    assert!(stderr.contains("gpuwhy: recorded 20") && stderr.contains(", none lost\n"), "{stderr}");
    assert!(stderr.contains(" events stored") && stderr.contains("gpuwhy itself: "), "{stderr}");
}

#[test]
fn quiet_says_only_how_it_ended() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let stderr = String::from_utf8(traced_simjob(&place, &["--quiet"]).stderr).unwrap();
    let first = stderr.lines().find(|line| !line.is_empty());
    assert!(first.is_some_and(|line| line.starts_with("The GPU was idle at least ")), "{stderr}");
    assert!(stderr.contains("\ngpuwhy: recorded ") && stderr.contains(", none lost\n"), "{stderr}");
    assert!(!stderr.contains("tracing") && !stderr.contains("cudaLaunchKernel"), "{stderr}");
}

#[test]
fn with_json_stdout_has_json_lines_and_nothing_else() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let job = shell(r#"echo the job speaks; "$0" --cudart "$1" --calls 300 >&2; read line"#);
    let mut command = place.trace();
    command.arg("--json").arg("--").args(job).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        (stdout.read_line(&mut line).unwrap() > 0).then(|| serde_json::from_str::<Value>(&line).unwrap())
    };
    let launches = |line: &Value| {
        let rows = line["ops"].as_array().unwrap();
        rows.iter().find(|row| row["op"] == "cudaLaunchKernel").cloned()
    };
    let seen = loop {
        let line = next().unwrap();
        assert_eq!(line["type"], "progress");
        for key in ["elapsed_ns", "stored", "lost"] {
            assert!(line[key].is_u64(), "{key} in {line}");
        }
        if let Some(row) = launches(&line) {
            break row;
        }
    };
    for key in
        ["calls", "errors", "p50_ns", "p95_ns", "p99_ns", "max_ns", "total_ns", "bytes", "lost", "per_second", "share"]
    {
        assert!(seen[key].is_number(), "{key} in {seen}");
    }
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let rest: Vec<Value> = std::iter::from_fn(&mut next).collect();
    let summary = rest.last().unwrap();
    assert_eq!(summary["type"], "summary");
    assert_eq!(launches(summary).unwrap()["calls"], 300);
    assert_eq!(summary["file"], place.db().to_str().unwrap());
    let [seen, stored, lost] = ["seen", "stored", "lost"].map(|key| summary[key].as_i64().unwrap());
    let db = open(&place.db());
    assert_eq!(seen, number(&db, "SELECT events_seen FROM sessions"));
    assert_eq!((stored, lost), (number(&db, "SELECT COUNT(*) FROM events WHERE op <> 'sched_wakeup'"), 0));
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(text(&output).contains("the job speaks\n"), "the job's stdout is on stderr");
}

/// What a trace prints on a terminal of 40 lines, until the table shows its op and then to the end.
fn on_a_terminal(place: &Place, environment: &str) -> String {
    let job = r#"sh -c '"$0" --cudart "$1" --calls 300; echo scrolled; timeout --foreground 25 head -n 1'"#;
    let line = format!(
        "stty rows 40 cols 120; {environment} exec {GPUWHY} --verbose trace --db {} -- {job} {} {}",
        place.db().display(),
        sim().simjob.display(),
        sim().cudart.display()
    );
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env_remove("NO_COLOR");
    command.env("LD_LIBRARY_PATH", &sim().dir);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut shown, mut part) = (Vec::new(), [0; 4096]);
    let mut stdout = child.stdout.take().unwrap();
    while !String::from_utf8_lossy(&shown).contains("cudaLaunchKernel") {
        let n = stdout.read(&mut part).unwrap();
        assert!(n > 0, "ended without a table: {}", String::from_utf8_lossy(&shown));
        shown.extend_from_slice(&part[..n]);
    }
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    stdout.read_to_end(&mut shown).unwrap();
    assert!(child.wait().unwrap().success());
    String::from_utf8(shown).unwrap()
}

#[test]
fn on_a_terminal_a_table_redraws_below_the_jobs_output() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let shown = on_a_terminal(&place, "");
    let (before, end) = shown.rsplit_once("\x1b[r").expect("the terminal is given back");
    assert!(before.contains("\x1b[1;26r"), "14 of 40 lines are kept: {before:?}");
    assert!(before.contains("cudaLaunchKernel") && before.contains("scrolled"), "{before:?}");
    assert!(before.contains("\x1b[1mop "), "headings are bold: {before:?}");
    assert!(end.contains("cudaLaunchKernel") && end.contains("gpuwhy: recorded "), "{end:?}");
    assert!(!end.contains("\x1b[2K"), "nothing redraws any more: {end:?}");
}

#[test]
fn no_color_is_respected_on_a_terminal() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let shown = on_a_terminal(&place, "NO_COLOR=1");
    assert!(shown.contains("\x1b[1;26r") && shown.contains("\x1b[r"), "it still redraws: {shown:?}");
    let colours = shown
        .split("\x1b[")
        .skip(1)
        .filter(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m'));
    assert_eq!(colours.count(), 0, "{shown:?}");
}

#[test]
fn a_trace_goes_on_when_nobody_reads_its_progress_any_more() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let script = r#""$0" trace --json --db "$1" -- "$2" --cudart "$3" --calls 30000 --rate 10000 | head -1"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, GPUWHY]).arg(place.db()).arg(&sim().simjob).arg(&sim().cudart);
    succeed(shell.env("LD_LIBRARY_PATH", &sim().dir));
    let db = place.run_file();
    assert_eq!(number(&db, "SELECT COUNT(*) FROM events WHERE op = 'cudaLaunchKernel'"), 30_000);
    assert_eq!(number(&db, "SELECT COUNT(*) FROM sessions WHERE stop_reason = 'exit'"), 1, "it ended in order");
}
