// SPDX-License-Identifier: Apache-2.0
//! What `gpuwhy trace` may still do while it traces, and that it does its work with that (`docs/privileges.md`).
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::mcp::{Served, Web, made_run};
use common::{GPUWHY, Place, can_trace, number, one_at_a_time, refusal, sim, succeed, text, until};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// The caller of sudo, as far as gpuwhy can tell.
const NOBODY: u32 = 65534;
/// Whoever else there is.
const SOMEBODY: u32 = 1;
/// CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH.
const FOUR: &str = "000000c000080004";
const NAMES: &str = "+bpf,+perfmon,+sys_ptrace,+dac_read_search";

fn with_sudo(command: &mut Command) -> &mut Command {
    command.env("SUDO_UID", NOBODY.to_string()).env("SUDO_GID", NOBODY.to_string())
}

/// A folder of somebody's that nobody else may enter.
fn private_folder(place: &Place, name: &str, owner: u32) -> PathBuf {
    std::fs::set_permissions(place.dir.path(), Permissions::from_mode(0o755)).unwrap();
    let folder = place.dir.path().join(name);
    std::fs::create_dir(&folder).unwrap();
    chown(&folder, Some(owner), Some(owner)).unwrap();
    std::fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
    folder
}

/// `gpuwhy trace` with a file of its own choice, knowing nothing of the simulated libraries.
fn trace_to(db: &Path) -> Command {
    let mut command = Command::new(GPUWHY);
    command.args(["trace", "--budget", "none", "--quiet", "--db"]).arg(db);
    command
}

/// A process that runs until it is told to end, however its test ends.
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take();
        Self { child, stdin }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn end(mut self) -> std::process::Output {
        // One who waits for a line gets one; one who waits for none has ended, or does not read it.
        let _ = self.stdin.take().map(|mut stdin| stdin.write_all(b"end\n"));
        self.child.wait_with_output().unwrap()
    }
}

/// The fields of every thread's status.
fn threads(pid: u32) -> Vec<BTreeMap<String, String>> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    // One may end between the two looks.
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let fields = |text: String| {
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        pairs.map(|(name, value)| (name.to_owned(), value.trim().replace('\t', " "))).collect()
    };
    texts.map(fields).collect()
}

fn assert_reduced(pid: u32, user: u32, caps: &str) {
    let found = threads(pid);
    for name in ["gpuwhy", "run-file", "samples", "sources"] {
        assert!(found.iter().any(|thread| thread["Name"] == name), "{name} in {found:?}");
    }
    for thread in found {
        // What it reads ends in the run file: it keeps only the right to see where a process has its files.
        let effective = if thread["Name"] == "sources" { "0000000000080000" } else { caps };
        for (field, expected) in [
            ("CapEff", effective),
            ("CapPrm", caps),
            ("CapBnd", caps),
            ("CapInh", "0000000000000000"),
            ("CapAmb", "0000000000000000"),
            ("NoNewPrivs", "1"),
            ("Uid", &format!("{user} {user} {user} {user}")),
            ("Gid", &format!("{user} {user} {user} {user}")),
        ] {
            assert_eq!(thread[field], expected, "{field} of {}", thread["Name"]);
        }
    }
}

/// Starts a trace of a job that waits, and gives its pid and the job's first words.
fn start_waiting(command: &mut Command, script: &str) -> (Running, String) {
    command.args(["--", "sh", "-c", &format!("{script}; echo up; read -r line")]).stdout(Stdio::piped());
    let mut running = Running::start(command);
    let mut said = String::new();
    let mut stdout = BufReader::new(running.child.stdout.take().unwrap());
    while !said.ends_with("up\n") {
        assert!(stdout.read_line(&mut said).unwrap() > 0, "{said}");
    }
    (running, said)
}

// ---- what is given up ----

#[test]
fn every_thread_keeps_four_capabilities_and_the_job_keeps_all() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let ours = std::fs::read_to_string("/proc/self/status").unwrap();
    let (running, said) = start_waiting(&mut trace_to(&place.db()), "grep -E '^(Cap|NoNew)' /proc/$$/status");
    assert_reduced(running.child.id(), 0, FOUR);
    for field in ["CapPrm", "CapEff", "CapBnd", "NoNewPrivs"] {
        let line = ours.lines().find(|line| line.starts_with(field)).unwrap();
        assert!(said.contains(line), "{line:?} in {said}");
    }
    let output = running.end();
    assert!(output.status.success() && !text(&output).contains("warning"), "{}", text(&output));
}

#[test]
fn with_sudo_it_becomes_the_caller_and_what_it_writes_is_theirs() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let folder = private_folder(&place, "theirs", NOBODY);
    let db = folder.join("run.db");
    let (running, said) = start_waiting(with_sudo(&mut trace_to(&db)), "id -u; grep NoNew /proc/$$/status");
    assert!(said.starts_with("65534\nNoNewPrivs:\t0\n"), "{said}");
    assert_reduced(running.child.id(), NOBODY, FOUR);
    let beside = |end: &str| PathBuf::from(format!("{}{end}", db.display()));
    until("SQLite's files are there", || ["-wal", "-shm"].iter().all(|end| beside(end).exists()));
    for end in ["", "-wal", "-shm"] {
        let found = std::fs::metadata(beside(end)).unwrap();
        assert_eq!((found.uid(), found.gid()), (NOBODY, NOBODY), "{end}");
    }
    let output = running.end();
    assert!(output.status.success() && !text(&output).contains("warning"), "{}", text(&output));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "one file is left");
}

#[test]
fn roots_run_file_in_another_users_folder_is_written_and_what_that_takes_is_said() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let folder = private_folder(&place, "home", SOMEBODY);
    let db = folder.join("run.db");
    let mut command = Command::new(GPUWHY);
    let (running, _) = start_waiting(command.arg("trace").arg("--db").arg(&db), "true");
    assert_reduced(running.child.id(), 0, "000000c000080006");
    let output = running.end();
    assert!(output.status.success() && text(&output).contains("CAP_DAC_OVERRIDE"), "{}", text(&output));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "one file is left");
    assert_eq!(number(&common::open(&db), "SELECT COUNT(*) FROM sessions WHERE stop_reason = 'exit'"), 1);
}

// ---- whose rights a run file is made with ----

#[test]
fn with_sudo_a_folder_that_the_caller_may_not_write_to_is_refused() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let roots = private_folder(&place, "roots", 0);
    let theirs = private_folder(&place, "theirs", NOBODY);
    std::fs::write(roots.join("notes"), "mine").unwrap();
    symlink(&roots, theirs.join("way-in")).unwrap();
    for db in [roots.join("run.db"), roots.join("notes"), theirs.join("way-in/run.db"), theirs.join("way-in/notes")] {
        let said = refusal(with_sudo(trace_to(&db).args(["--", "touch"]).arg(theirs.join("ran"))), 125);
        assert!(said.contains("Permission denied") && said.contains("user 65534, who called sudo"), "{said}");
    }
    assert!(!theirs.join("ran").exists(), "the job was not started");
    assert_eq!(std::fs::read_dir(&roots).unwrap().count(), 1, "nothing was made");
    assert_eq!(std::fs::read_to_string(roots.join("notes")).unwrap(), "mine");
    // A link at the name itself is moved aside, and what it leads to is left alone.
    symlink(roots.join("notes"), theirs.join("run.db")).unwrap();
    succeed(with_sudo(trace_to(&theirs.join("run.db")).args(["--", "true"])));
    assert_eq!(std::fs::read_to_string(roots.join("notes")).unwrap(), "mine");
    assert!(std::fs::symlink_metadata(theirs.join("run.db")).unwrap().is_file());
}

// ---- what must go on working ----

/// A process of somebody's that, when told so, loads libraries from a folder that only they may enter.
fn late_loader(folder: &Path) -> (Running, BufReader<std::process::ChildStdout>) {
    for (from, name) in [(&sim().cuda, "libcuda.so.1"), (&sim().cudart, "libcudart.so.13"), (&sim().simjob, "simjob")] {
        std::fs::copy(from, folder.join(name)).unwrap();
        chown(folder.join(name), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    }
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"read -r line; exec "$0/simjob" --cudart "$0/libcudart.so.13" --calls 100 --hold"#]);
    shell.arg(folder).uid(SOMEBODY).gid(SOMEBODY).stdout(Stdio::piped());
    let mut job = Running::start(&mut shell);
    let stdout = BufReader::new(job.child.stdout.take().unwrap());
    (job, stdout)
}

/// Traces [`late_loader`], which loads its libraries long after rights were given up.
fn trace_late_libraries(sudo: bool, flags: &[&str], caps: &[&str]) {
    let place = Place::new();
    let owner = if sudo { NOBODY } else { 0 };
    let db = private_folder(&place, "theirs", owner).join("run.db");
    let (mut job, mut stdout) = late_loader(&private_folder(&place, "hidden", SOMEBODY));
    let mut command = trace_to(&db);
    command.args(flags).arg("--pid").arg(job.child.id().to_string()).stdout(Stdio::piped());
    let tracing = Running::start(if sudo { with_sudo(&mut command) } else { &mut command });
    let count = |sql: &str| {
        let db = rusqlite::Connection::open_with_flags(&db, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
        db.query_row(sql, [], |row| row.get::<_, i64>(0)).ok()
    };
    let is_reduced = |thread: &BTreeMap<String, String>| thread["Name"] == "samples" && thread["NoNewPrivs"] == "1";
    until("rights are given up", || threads(tracing.child.id()).iter().any(is_reduced));
    assert!(threads(tracing.child.id()).iter().all(|thread| caps.contains(&thread["CapPrm"].as_str())), "{flags:?}");
    job.tell("go");
    let mut ready = String::new();
    stdout.read_line(&mut ready).unwrap();
    assert!(ready.starts_with("ready "), "{ready}");
    until("its libraries are attached to", || count("SELECT COUNT(*) FROM libraries").is_some_and(|n| n >= 2));
    // What only its owner and CAP_SYS_PTRACE may read of a process: what it reads and writes.
    let sampled = "SELECT COUNT(*) FROM process_seconds WHERE read_bytes IS NOT NULL";
    until("it is sampled", || count(sampled).is_some_and(|n| n > 0));
    job.tell("go");
    let output = job.end();
    assert!(output.status.success(), "{}", text(&output));
    let output = tracing.end();
    assert!(output.status.success() && !text(&output).contains("warning"), "{flags:?}: {}", text(&output));
    assert!(!text(&output).contains("not explained"), "{}", text(&output));
    let db = common::open(&db);
    assert_eq!(number(&db, "SELECT COUNT(*) FROM events WHERE op = 'cudaLaunchKernel'"), 100, "{flags:?}");
}

#[test]
fn libraries_loaded_afterwards_by_another_user_are_still_attached_to() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    trace_late_libraries(false, &[], &[FOUR]);
    for flavour in ["session", "multi"] {
        trace_late_libraries(true, &["--probes", flavour], &[FOUR]);
    }
    // Some kernels want CAP_SYS_ADMIN for these.
    trace_late_libraries(true, &["--probes", "plain"], &[FOUR, "000000c000280004"]);
}

#[test]
fn with_sudo_a_signal_still_reaches_the_job() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let db = private_folder(&place, "theirs", NOBODY).join("run.db");
    let (running, _) = start_waiting(with_sudo(&mut trace_to(&db)), "trap 'exit 9' TERM");
    succeed(Command::new("kill").arg("-TERM").arg(running.child.id().to_string()));
    let mut running = running;
    assert_eq!(running.child.wait().unwrap().code(), Some(9));
}

// ---- a server ----

/// A run file for `owner` alone, in a folder that everybody may enter.
fn private_run(folder: &Path, name: &str, owner: u32) -> PathBuf {
    let path = folder.join(name);
    made_run(&path, 1_000, 3, "train");
    chown(&path, Some(owner), Some(owner)).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path
}

/// A server over these files: what it may do, and whether it reads each.
fn serves(command: &mut Command, files: &[&Path]) -> (Vec<BTreeMap<String, String>>, Vec<bool>) {
    let mut served = Served::start(command);
    let count = |file: &&Path| json!({"sql": "SELECT COUNT(*) FROM events", "run": file});
    let answers: Vec<_> = files.iter().map(count).map(|arguments| served.call("run_sql", arguments)).collect();
    let found = threads(served.pid());
    assert!(found.len() > 1, "its workers are there");
    (found, answers.iter().map(Result::is_ok).collect())
}

fn assert_each(threads: &[BTreeMap<String, String>], expected: &[(&str, &str)]) {
    for thread in threads {
        for (field, value) in expected {
            assert_eq!(thread[*field].trim(), *value, "{field} of {}", thread["Name"]);
        }
    }
}

#[test]
fn under_sudo_a_server_becomes_the_caller_and_roots_alone_reads_only() {
    if !can_trace() {
        return;
    }
    let place = Place::new();
    std::fs::set_permissions(place.dir.path(), Permissions::from_mode(0o755)).unwrap();
    let folder = place.dir.path();
    let [theirs, roots, others] = [("theirs.db", NOBODY), ("roots.db", 0), ("others.db", SOMEBODY)]
        .map(|(name, owner)| private_run(folder, name, owner));
    let files = [theirs.as_path(), &roots, &others];
    let mcp = || {
        let mut command = Command::new(GPUWHY);
        command.args(["mcp", "--dir"]).arg(folder);
        command
    };
    let none = "0000000000000000";
    let (found, read) = serves(with_sudo(&mut mcp()), &files);
    let groups = String::from_utf8(succeed(Command::new("id").args(["-G", &NOBODY.to_string()])).stdout).unwrap();
    let ids = format!("{NOBODY} {NOBODY} {NOBODY} {NOBODY}");
    let caps = [("CapPrm", none), ("CapEff", none), ("CapInh", none), ("CapAmb", none), ("NoNewPrivs", "1")];
    assert_each(&found, &caps);
    assert_each(&found, &[("Uid", &ids), ("Gid", &ids), ("Groups", groups.trim())]);
    assert_eq!(read, [true, false, false], "the caller's files only");
    // Root's own: CAP_DAC_READ_SEARCH, with which it reads what root was asked to serve, and writes nothing.
    let (found, read) = serves(mcp().env_remove("SUDO_UID"), &files);
    let reading = "0000000000000004";
    assert_each(&found, &[("CapPrm", reading), ("CapEff", reading), ("CapBnd", reading), ("NoNewPrivs", "1")]);
    assert_eq!(read, [true, true, true]);
    // Over HTTP it is the same.
    let web = Web::start(with_sudo(mcp().args(["--http", ":0"])));
    assert_each(&threads(web.pid()), &caps);
    let token = web.bearer();
    let asked = |file: &Path| {
        web.call(&[("Authorization", &token)], "run_sql", &json!({"sql": "SELECT COUNT(*) FROM events", "run": file}))
    };
    assert!(asked(&theirs).is_ok() && asked(&roots).is_err());
}

// ---- without root ----

fn as_user_with_the_four() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps", NAMES, "--ambient-caps", NAMES]);
    command
}

#[test]
fn a_user_with_the_four_capabilities_needs_no_root_and_the_job_does_not_get_them() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let folder = private_folder(&place, "theirs", NOBODY);
    std::fs::copy(GPUWHY, folder.join("gpuwhy")).unwrap();
    let script = r#"grep ^Cap /proc/$$/status; "$0" --cudart "$1" --calls 100"#;
    let mut command = as_user_with_the_four();
    command
        .arg(folder.join("gpuwhy"))
        .args(["trace", "--budget", "none", "--quiet", "--db"])
        .arg(folder.join("run.db"));
    command.args(["--", "sh", "-c", script]).arg(&sim().simjob).arg(&sim().cudart);
    let output = succeed(command.env("LD_LIBRARY_PATH", &sim().dir));
    let said = text(&output);
    for set in ["CapPrm", "CapEff", "CapAmb"] {
        assert!(said.contains(&format!("{set}:\t0000000000000000\n")), "{said}");
    }
    assert!(!said.contains("warning"), "{said}");
    let db = common::open(&folder.join("run.db"));
    assert_eq!(number(&db, "SELECT COUNT(*) FROM events WHERE op = 'cudaLaunchKernel'"), 100);
    // What is not for tracing is done without them: they read every file.
    let private = private_folder(&place, "private", SOMEBODY).join("run.db");
    std::fs::copy(folder.join("run.db"), &private).unwrap();
    let mut query = as_user_with_the_four();
    query.arg(folder.join("gpuwhy")).args(["query", "--db"]).arg(private).arg("SELECT 1");
    let output = query.output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{}", text(&output));
}

/// A copy of gpuwhy whose file has capabilities, as `docs/privileges.md` says; root's, so that others may only run it.
fn with_file_capabilities(place: &Place, capabilities: &str) -> PathBuf {
    std::fs::set_permissions(place.dir.path(), Permissions::from_mode(0o755)).unwrap();
    let binary = place.dir.path().join("gpuwhy");
    std::fs::copy(GPUWHY, &binary).unwrap();
    std::fs::set_permissions(&binary, Permissions::from_mode(0o755)).unwrap();
    succeed(Command::new("setcap").arg(capabilities).arg(&binary));
    binary
}

/// A user without any capability.
fn as_somebody_else() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--ambient-caps=-all"]);
    command
}

#[test]
fn a_file_with_capabilities_lets_anybody_trace_and_the_job_does_not_get_them() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let binary = with_file_capabilities(&place, "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep");
    let folder = private_folder(&place, "theirs", NOBODY);
    let check = text(&as_somebody_else().arg(&binary).arg("check").output().unwrap());
    assert!(check.contains("user 65534 with capabilities") && check.contains("Ready to trace"), "{check}");
    let script =
        r#"grep -E '^(Cap|NoNew)' /proc/$$/status; echo "libraries $LD_LIBRARY_PATH"; "$0" --cudart "$1" --calls 100"#;
    let mut command = as_somebody_else();
    command.arg(&binary).args(["trace", "--budget", "none", "--quiet", "--db"]).arg(folder.join("run.db"));
    command.args(["--", "sh", "-c", script]).arg(&sim().simjob).arg(&sim().cudart);
    let said = text(&succeed(command.env("LD_LIBRARY_PATH", &sim().dir)));
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert!(said.contains(&format!("{set}:\t0000000000000000\n")), "{said}");
    }
    assert!(said.contains("NoNewPrivs:\t0\n"), "{said}");
    // The dynamic linker takes it from gpuwhy, whose file has capabilities; it is the job's.
    assert!(said.contains(&format!("libraries {}\n", sim().dir.display())), "{said}");
    assert!(!said.contains("warning"), "{said}");
    let db = common::open(&folder.join("run.db"));
    assert_eq!(number(&db, "SELECT COUNT(*) FROM events WHERE op = 'cudaLaunchKernel'"), 100);
}

#[test]
fn capabilities_that_are_missing_are_named() {
    if !can_trace() {
        return;
    }
    let place = Place::new();
    let binary = with_file_capabilities(&place, "cap_bpf,cap_sys_ptrace,cap_dac_read_search+ep");
    let output = as_somebody_else().arg(&binary).arg("check").output().unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("without CAP_PERFMON") && said.contains("setcap"), "{said}");
    let said = refusal(as_somebody_else().arg(&binary).args(["trace", "--pid", "1"]), 125);
    assert!(said.contains("sudo"), "{said}");
}

/// Nobody gets anything loaded into a gpuwhy that has capabilities.
#[test]
fn a_file_with_capabilities_loads_nothing_that_its_user_names() {
    if !can_trace() {
        return;
    }
    let place = Place::new();
    let binary = with_file_capabilities(&place, "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep");
    let bare = place.dir.path().join("bare");
    std::fs::copy(GPUWHY, &bare).unwrap();
    let said = |binary: &Path| {
        let mut command = as_somebody_else();
        command.args(["env", "LD_PRELOAD=/nowhere/libpreloaded.so"]).arg(binary).arg("--version");
        text(&succeed(&mut command))
    };
    assert!(!said(&binary).contains("libpreloaded"), "the dynamic linker did not try");
    assert!(said(&bare).contains("libpreloaded"), "without capabilities it does");
}

#[test]
fn two_capabilities_are_enough_for_a_users_own_job() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let binary = with_file_capabilities(&place, "cap_bpf,cap_perfmon+ep");
    let folder = private_folder(&place, "theirs", NOBODY);
    let check = text(&as_somebody_else().arg(&binary).arg("check").output().unwrap());
    let lacks = "without CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH: can trace only their own processes";
    assert!(check.contains(lacks) && check.contains("Ready to trace"), "{check}");
    let mut command = as_somebody_else();
    command.arg(&binary).args(["trace", "--budget", "none", "--quiet", "--db"]).arg(folder.join("run.db")).arg("--");
    command.arg(&sim().simjob).arg("--cudart").arg(&sim().cudart).args(["--calls", "100"]);
    let said = text(&succeed(command.env("LD_LIBRARY_PATH", &sim().dir)));
    assert!(!said.contains("warning"), "{said}");
    let db = common::open(&folder.join("run.db"));
    assert_eq!(number(&db, "SELECT COUNT(*) FROM events WHERE op = 'cudaLaunchKernel'"), 100);
}
