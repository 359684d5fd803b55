// SPDX-License-Identifier: Apache-2.0
//! Time off the CPU by force or by choice: sleeping, kept waiting, yielding, throttled, stopped. Each scenario also
//! has every account of tests/common/accounts.rs checked for each of its threads.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::cgroup::Cgroup;
use common::host::{HostRun, Off, Window, close, emulated};
use common::{can_trace, one_at_a_time, succeed};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

fn with_reason<'a>(rows: &'a [Off], reason: &'a str) -> impl Iterator<Item = &'a Off> {
    rows.iter().filter(move |row| row.reason == reason)
}

#[test]
fn a_sleeper_is_asleep_until_its_timer() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let run = HostRun::attached(&["sleep", "--count", "20", "--ms", "50"]);
    run.check();
    let sleeps = run.told("sleep");
    assert_eq!(sleeps.len(), 20);
    let mut by_timer = 0;
    for sleep in sleeps {
        let [begin, end] = ["begin", "end"].map(|key| sleep[key].as_i64().unwrap());
        let rows = run.off(run.pid, begin, end);
        let asleep: Vec<&Off> = rows.iter().filter(|row| row.blocked()).collect();
        let [row] = asleep[..] else { panic!("{} times asleep in one sleep: {rows:?}", asleep.len()) };
        assert_eq!([&row.reason, &row.wait], ["asleep", "sleep"], "{row:?}");
        // Some machines hide tasks of their own from every tracepoint: an interrupt that came while one of those ran
        // is not seen, and nobody is named then. Another than the timer never is.
        assert!(["timer", ""].contains(&row.woken_by.as_str()), "{row:?}");
        by_timer += i32::from(row.woken_by == "timer");
        assert_eq!(row.syscall, "clock_nanosleep");
        // A timer may fire late, never early.
        assert!(row.woken() >= begin + 50_000_000 && row.end() <= end, "from {begin} to {end}: {row:?}");
        let limit = row.timeout_ns.unwrap();
        assert!(close(limit, 50_000_000, 0.0, 1_000_000), "it wanted 50 ms, not {limit} ns");
    }
    assert!(by_timer >= 16, "{by_timer} of 20 sleeps ended by the timer");
    // What else there is, is what the kernel counted as involuntary: see `check_windows`.
}

/// What had the CPU while the victim waited, by thread, as the run file has it for the victim's window.
fn held(run: &HostRun, victim: &Window) -> BTreeMap<(u32, String), i64> {
    let mut statement = run
        .db
        .prepare(
            "SELECT holder_tid, holder_name, SUM(duration_ns) FROM cpu_held \
             WHERE tid = ?1 AND timestamp BETWEEN ?2 AND ?3 GROUP BY 1, 2",
        )
        .unwrap();
    let range = (victim.tid, victim.begin - run.origin, victim.end - run.origin);
    let rows = statement.query_map(range, |row| Ok(((row.get(0)?, row.get(1)?), row.get(2)?)));
    rows.unwrap().map(Result::unwrap).collect()
}

#[test]
fn a_victims_waiting_is_the_run_time_of_its_hogs() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let run = HostRun::attached(&["hogs", "--cpu", "0", "--ms", "500"]);
    run.check();
    let victim = run.window("victim");
    let rows = run.off_in(&victim);
    assert!(rows.iter().all(|row| row.reason == "preempted"), "it never blocks: {rows:?}");
    let ready: i64 = rows.iter().map(|row| row.ready).sum();
    assert_eq!(ready, rows.iter().map(|row| row.duration).sum::<i64>(), "all of it is waiting for the CPU");
    let held = held(&run, &victim);
    let mut hogs_ran = 0;
    for hog in run.told("hog") {
        let [pid, truth] = ["pid", "cpu_ns"].map(|key| hog[key].as_i64().unwrap());
        let name = hog["name"].as_str().unwrap();
        let got = held[&(pid as u32, name.to_owned())];
        // Two clocks: the hog's own CPU time, and when the CPU was switched.
        let share = if emulated() { 0.5 } else { 0.02 };
        assert!(close(got, truth, share, run.steal_ns), "{name} ran {truth} ns, held the CPU for {got}");
        hogs_ran += truth;
    }
    // Kernel threads have their moments there, too; they are named, and part of the sum.
    let others: i64 = held.iter().filter(|((_, name), _)| !name.starts_with("hog-")).map(|(_, ns)| ns).sum();
    assert!(
        emulated() || close(ready - others, hogs_ran, 0.02, run.steal_ns),
        "waited {ready}, hogs ran {hogs_ran}, {held:?}"
    );
    // Tasks of the machine's own that its tracepoints hide have no name to be held by.
    assert!(close(held.values().sum(), ready, 0.01, run.steal_ns), "{held:?} does not add up to {ready}");
}

/// A process whose main thread sleeps and another, of another name, keeps CPU 0 busy.
const RENAMED: &str = "
import os, threading, time
os.sched_setaffinity(0, {0})
def spin():
    with open(f'/proc/self/task/{threading.get_native_id()}/comm', 'w') as comm:
        comm.write('opt cgu.07')
    print('ready', flush=True)
    while True:
        pass
threading.Thread(target=spin, daemon=True).start()
time.sleep(60)
";

#[test]
fn who_had_the_cpu_goes_by_the_processs_name_not_the_threads() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let mut hog = Command::new("python3").args(["-c", RENAMED]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(hog.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", hog.id())).unwrap();
    let run = HostRun::attached(&["spin", "--ms", "300", "--cpu", "0"]);
    hog.kill().unwrap();
    hog.wait().unwrap();
    let mut statement = run.db.prepare("SELECT DISTINCT holder_name FROM cpu_held WHERE holder_pid = ?1").unwrap();
    let names: Vec<String> = statement.query_map([hog.id()], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(names, [comm.trim()]);
    let kernels = "SELECT COUNT(*) FROM cpu_runs WHERE (name LIKE 'kworker%' OR name LIKE 'ksoftirqd%')";
    assert_eq!(run.number(kernels), 0, "kernel threads have names in brackets");
}

#[test]
fn offering_the_cpu_is_not_losing_it() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let run = HostRun::attached(&["yield", "--count", "3000"]);
    run.check();
    for name in ["yielder-0", "yielder-1"] {
        let window = run.window(name);
        let rows = run.off_in(&window);
        let yielded = with_reason(&rows, "yielded").count() as i64;
        // A tick takes the CPU now and then, sometimes on the way into the call or out of it.
        assert!(yielded <= 3030 && yielded * 10 >= window.involuntary * 9, "{yielded} of {window:?}");
        assert!(with_reason(&rows, "yielded").all(|row| row.syscall == "sched_yield" && row.ready == row.duration));
    }
}

#[test]
fn being_stopped_is_neither_sleep_nor_waiting_for_a_cpu() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let run = HostRun::attached(&["stop", "--count", "5"]);
    run.check();
    let window = run.window("stopped");
    let rows = run.off_in(&window);
    let stopped: Vec<&Off> = with_reason(&rows, "stopped").collect();
    let stops = run.told("stop");
    assert_eq!(stopped.len(), stops.len());
    for (row, stop) in stopped.iter().zip(stops) {
        let [begin, end] = ["begin", "end"].map(|key| stop[key].as_i64().unwrap());
        // The parent is told of the stop a moment before the CPU is given away.
        assert!(row.start <= begin + 1_000_000 && row.woken() >= end, "stopped from {begin} to {end}: {row:?}");
        assert_eq!((row.woken_by.as_str(), row.waker_tid), ("thread", run.pid), "continued by its parent: {row:?}");
    }
}

#[test]
fn a_quota_throttles_for_as_long_as_the_cgroup_says() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let Some(group) = Cgroup::with("cpu") else { return };
    group.limit_cpu(20);
    let before = group.throttled_ns();
    let run = HostRun::attached_after(&["spin", "--ms", "500", "--cpu", "0"], |pid| group.add(pid));
    let truth = group.throttled_ns() - before;
    run.check();
    let throttled = run.number(&format!("SELECT throttled_ns FROM thread_time WHERE tid = {}", run.pid));
    assert!(truth > 1_000_000_000, "500 ms of CPU time at 20 % are 2 s of waiting, not {truth}");
    assert!(close(throttled, truth, 0.02, 0), "throttled for {throttled} ns, the cgroup says {truth}");
    let rows = run.off_in(&run.window("main"));
    let unwoken = |row: &Off| row.ready == row.duration && row.woken_by.is_empty();
    assert!(with_reason(&rows, "throttled").all(unwoken), "nobody wakes it");
    let by_rows: i64 = with_reason(&rows, "throttled").map(|row| row.ready).sum();
    assert!(close(by_rows, throttled, 0.001, 100_000), "{by_rows} in rows, {throttled} in the sum");
}

#[test]
fn threads_from_before_and_after_are_all_followed() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let run = HostRun::attached(&["threads", "--threads", "8", "--late", "8"]);
    run.check();
    let [early, late] = ["early", "late"].map(|kind| {
        run.number(&format!("SELECT COUNT(*) FROM thread_time WHERE pid = {} AND name LIKE '{kind}-%'", run.pid))
    });
    assert_eq!((early, late), (8, 8));
    for window in run.windows().iter().filter(|window| window.tid != window.pid) {
        let born = run.number(&format!("SELECT born FROM thread_time WHERE tid = {}", window.tid));
        let since = run.number(&format!("SELECT since FROM thread_time WHERE tid = {}", window.tid));
        let first = window.begin - run.origin;
        assert!(born <= since && since <= first, "{window:?}: born at {born}, followed since {since}");
        if window.name.starts_with("late") {
            assert!(close(since, born, 0.0, 1_000_000), "{window:?}: followed since {since}, born at {born}");
            let new = format!("SELECT COUNT(*) FROM off_cpu WHERE tid = {} AND reason = 'new'", window.tid);
            assert_eq!(run.number(&new), 1, "it was made and then ran: {window:?}");
        } else {
            assert!(born < 0, "{window:?} was there before gpuwhy, which says {born}");
        }
    }
}

#[test]
fn a_job_that_gpuwhy_starts_is_followed_from_its_beginning() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let run = HostRun::launched(&["threads", "--threads", "4", "--late", "4"]);
    run.check();
    let main = run.window("main");
    let since = run.number(&format!("SELECT since FROM thread_time WHERE tid = {}", main.tid));
    assert!(since + run.origin <= main.begin);
    assert_eq!(run.number("SELECT COUNT(*) FROM thread_time"), 9);
}

#[test]
fn a_burst_of_switches_is_counted_to_the_last() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let run = HostRun::attached(&["switches", "--ms", "500", "--cpu", "0"]);
    run.check_sums();
    run.check_schedstat();
    for window in run.windows() {
        let range = format!("BETWEEN {} AND {}", window.begin - run.origin, window.end - run.origin);
        let rows =
            run.number(&format!("SELECT SUM(weight) FROM off_cpu WHERE tid = {} AND timestamp {range}", window.tid));
        assert_eq!(rows, window.voluntary + window.involuntary, "{window:?}");
    }
}

// ---- beside perf ----

/// `perf sched record` of the whole machine, until told to stop.
struct Perf {
    child: Child,
    data: PathBuf,
}

impl Perf {
    /// Its own view of the mounts has the tracepoints' folder, which need not be mounted otherwise.
    fn start(folder: &Path) -> Self {
        let data = folder.join("perf.data");
        let script = "mount -t tracefs nodev /sys/kernel/tracing && \
                      exec perf sched record -k CLOCK_MONOTONIC -o \"$0\" -- sh -c 'echo up; exec cat >&2'";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script]).arg(&data).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n", "perf records: it starts its command when it does");
        Self { child, data }
    }

    /// Times off the CPU of one thread: when it left (in microseconds), how long it had run, and how long it had
    /// been away before that.
    fn end(mut self, tid: u32) -> Vec<PerfRow> {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
        let output = succeed(Command::new("perf").args(["sched", "timehist", "-i"]).arg(&self.data));
        let text = String::from_utf8(output.stdout).unwrap();
        let ours = format!("[{tid}]");
        text.lines().filter(|line| line.contains(&ours)).map(PerfRow::parse).collect()
    }
}

#[derive(Debug)]
struct PerfRow {
    left: i64,
    away: i64,
    ran: i64,
}

impl PerfRow {
    /// `12121.123270 [0000]  victim[21743]  0.003 0.039 0.765`: seconds, then milliseconds of wait, delay and run.
    fn parse(line: &str) -> Self {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let nanoseconds = |text: &str, digits: usize| {
            let (whole, fraction) = text.split_once('.').unwrap();
            format!("{whole}{fraction:0<digits$}").parse::<i64>().unwrap()
        };
        let [wait, delay, run] = [3, 2, 1].map(|back| nanoseconds(fields[fields.len() - back], 6));
        Self { left: nanoseconds(fields[0], 9), away: wait + delay, ran: run }
    }
}

#[test]
fn perf_sched_timehist_agrees() {
    if !can_trace() {
        return;
    }
    if Command::new("perf").arg("version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "this test needs perf, and CI must not skip it");
        eprintln!("skipped: no perf");
        return;
    }
    let _lock = one_at_a_time();
    let folder = tempfile::Builder::new().prefix("gpuwhy-test-perf-").tempdir().unwrap();
    // A CPU that is never idle: perf misses switches from some CPUs' idle thread, and is then wrong about how long
    // the next thread ran.
    let mut perf = None;
    let run = HostRun::attached_after(&["hogs", "--cpu", "0", "--ms", "500"], |_| {
        perf = Some(Perf::start(folder.path()));
    });
    let victim = run.window("victim");
    let mut theirs = perf.unwrap().end(victim.tid);
    theirs.retain(|row| (victim.begin..victim.end).contains(&row.left));
    let ours = run.off_in(&victim);
    assert_eq!(ours.len(), theirs.len(), "switches");
    // Both look at the same event, one after the other; each row tells of the run that it ends.
    let (mut away, mut ran, mut same) = ((0, 0), (0, 0), 0);
    for (pair, theirs) in ours.windows(2).zip(&theirs[1..]) {
        assert!(close(pair[1].start, theirs.left, 0.0, 1_000_000), "{pair:?} {theirs:?}");
        let run = pair[1].start - pair[0].end();
        same += usize::from(close(pair[0].duration, theirs.away, 0.01, 20_000) && close(run, theirs.ran, 0.01, 20_000));
        away = (away.0 + pair[0].duration, away.1 + theirs.away);
        ran = (ran.0 + run, ran.1 + theirs.ran);
    }
    // perf may miss a switch made by some other thread, too: not every row can be asked to agree.
    assert!(same * 20 >= (ours.len() - 1) * 19, "{same} of {} agree", ours.len() - 1);
    assert!(close(away.0, away.1, 0.02, 0) && close(ran.0, ran.1, 0.02, 0), "away {away:?}, ran {ran:?}");
}
