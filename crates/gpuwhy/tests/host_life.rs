// SPDX-License-Identifier: Apache-2.0
//! Processes that come and go: forks, execs, exits, kills.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::cgroup::Cgroup;
use common::host::HostRun;
use common::{can_trace, one_at_a_time};

/// Rows of one op, as the given columns of numbers.
fn rows<const N: usize>(run: &HostRun, columns: [&str; N], op: &str) -> Vec<[i64; N]> {
    let sql = format!("SELECT {} FROM events WHERE op = '{op}' ORDER BY timestamp", columns.join(", "));
    let mut statement = run.db.prepare(&sql).unwrap();
    let rows = statement.query_map([], |row| {
        let mut numbers = [0; N];
        for (i, number) in numbers.iter_mut().enumerate() {
            *number = row.get::<_, Option<i64>>(i)?.unwrap_or(0);
        }
        Ok(numbers)
    });
    rows.unwrap().map(Result::unwrap).collect()
}

fn names_of(run: &HostRun, pid: u32) -> i64 {
    run.number(&format!("SELECT COUNT(*) FROM process_names WHERE pid = {pid}"))
}

#[test]
fn a_fork_storm_leaves_one_fork_one_exit_and_one_name_each() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let run = HostRun::attached(&["forkstorm", "--count", "300"]);
    run.check();
    let processes = run.processes();
    assert_eq!(processes.len(), 375, "300 children, and every fourth has one");
    assert!(processes.iter().any(|p| p.signal == 9) && processes.iter().any(|p| p.code == 255));
    let mut forks = rows(&run, ["pid", "arg0"], "process_fork");
    let mut exits = rows(&run, ["pid", "arg0", "arg1"], "process_exit");
    let mut made: Vec<_> = processes.iter().map(|p| [i64::from(p.parent), i64::from(p.pid)]).collect();
    let mut gone: Vec<_> = processes.iter().map(|p| [i64::from(p.pid), p.code, p.signal]).collect();
    gone.push([i64::from(run.pid), 0, 0]);
    for list in [&mut forks, &mut made] {
        list.sort_unstable();
    }
    for list in [&mut exits, &mut gone] {
        list.sort_unstable();
    }
    assert_eq!(forks, made, "parents and children");
    assert_eq!(exits, gone, "processes, exit codes and signals");
    for process in &processes {
        assert_eq!(names_of(&run, process.pid), 1, "names of {process:?}");
        let of = |column: &str| run.number(&format!("SELECT {column} FROM processes WHERE pid = {}", process.pid));
        assert_eq!(of("parent"), i64::from(process.parent));
        let dead = process.reaped - run.origin;
        assert!(of("started") < of("ended") && of("ended") <= dead, "{process:?}");
    }
}

#[test]
fn a_threads_end_is_not_the_processs() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let run = HostRun::attached(&["threads", "--threads", "4", "--late", "4"]);
    assert_eq!(
        rows(&run, ["pid", "tid", "arg0", "arg1"], "process_exit"),
        [[i64::from(run.pid), i64::from(run.pid), 0, 0]]
    );
    assert!(rows(&run, ["arg0"], "process_fork").is_empty(), "a thread is no process");
    assert_eq!(run.number("SELECT COUNT(*) FROM thread_time WHERE ended"), 9);
}

#[test]
fn a_process_that_execs_goes_on_under_its_number() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    for variant in ["main", "thread"] {
        let run = HostRun::attached(&["exec", "--variant", variant, "--count", "5"]);
        run.check_sums();
        run.check_windows();
        let exec = run.told("exec")[0];
        let before = exec["time"].as_i64().unwrap() - run.origin;
        let execs = rows(&run, ["pid", "timestamp"], "process_exec");
        let [[pid, at]] = execs[..] else { panic!("{variant}: {execs:?}") };
        let after = run.told("sleep")[0]["begin"].as_i64().unwrap() - run.origin;
        assert_eq!(pid, i64::from(run.pid));
        assert!(before <= at && at <= after, "{variant}: {before} {at} {after}");
        assert_eq!(rows(&run, ["pid", "arg0", "arg1"], "process_exit"), [[pid, 0, 0]], "{variant}: it ended once");
        assert_eq!(names_of(&run, run.pid), 1);
        let command: String =
            run.db.query_row("SELECT command FROM processes WHERE pid = ?1", [run.pid], |row| row.get(0)).unwrap();
        assert!(command.starts_with("sleeper sleep"), "known as what it became: {command}");
        for sleep in run.told("sleep") {
            let [begin, end] = ["begin", "end"].map(|key| sleep[key].as_i64().unwrap());
            let rows = run.off(run.pid, begin, end);
            let slept = rows.iter().filter(|row| row.wait == "sleep" && row.woken_by == "timer").count();
            assert_eq!(slept, 1, "{variant}: after the exec as before: {rows:?}");
        }
        if variant == "thread" {
            // The thread that did it took the place of the first; the one it was, and its sibling, are gone.
            let tid = exec["tid"].as_i64().unwrap();
            assert_ne!(tid, pid);
            let alive = run.number(&format!("SELECT COUNT(*) FROM off_cpu WHERE tid <> {pid} AND timestamp > {after}"));
            assert_eq!(alive, 0);
        }
    }
}

#[test]
fn a_process_killed_for_want_of_memory_is_said_to_be() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let Some(group) = Cgroup::with("memory") else { return };
    group.limit_memory(64 << 20);
    let run = HostRun::attached_after(&["oom"], |pid| group.add(pid));
    run.check_sums();
    let processes = run.processes();
    let [glutton] = &processes[..] else { panic!("{processes:?}") };
    assert_eq!(glutton.signal, 9, "the kernel killed it");
    let kills = rows(&run, ["pid", "arg0"], "oom_kill");
    let [[pid, resident]] = kills[..] else { panic!("{kills:?}") };
    assert_eq!(pid, i64::from(glutton.pid));
    assert!((32 << 20..=80 << 20).contains(&resident), "most of 64 MiB: {resident}");
    assert!(rows(&run, ["pid", "arg0", "arg1"], "process_exit").contains(&[pid, 0, 9]));
    // Before it kills, the kernel has whoever asks for memory look for some.
    let reclaims = rows(&run, ["pid", "duration_ns"], "direct_reclaim");
    assert!(reclaims.iter().any(|[of, duration]| *of == pid && *duration > 0), "{reclaims:?}");
}
