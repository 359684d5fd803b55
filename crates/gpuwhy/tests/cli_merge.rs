// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy merge`: two recorded runs become one that every command understands.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{GPUWHY, Place, can_trace, number, one_at_a_time, open, refusal, sim, succeed, text};
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

const PIDS: i64 = 1 << 22;

/// Two runs of a job, and a folder for what is made of them; `None` where none can be recorded.
fn recorded() -> Option<(Place, [PathBuf; 2])> {
    if !can_trace() {
        return None;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let paths = ["node0.db", "node1.db"].map(|name| place.dir.path().join(name));
    for (path, calls) in paths.iter().zip(["2000", "900"]) {
        let run = Place::new();
        let mut command = run.trace();
        command.args(["--quiet", "--"]).arg(&sim().simjob).arg("--cudart").arg(&sim().cudart);
        succeed(command.args(["--calls", calls, "--mix", "mixed"]));
        std::fs::copy(run.db(), path).unwrap();
    }
    Some((place, paths))
}

fn merge(output: &Path, inputs: &[PathBuf]) -> Command {
    let mut command = Command::new(GPUWHY);
    command.arg("merge").args(inputs).arg("-o").arg(output);
    command
}

fn by_op(path: &Path) -> BTreeMap<String, i64> {
    let db = open(path);
    let mut statement = db.prepare("SELECT op, SUM(weight) FROM events GROUP BY op").unwrap();
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
}

fn processes(path: &Path) -> Vec<(i64, String)> {
    let db = open(path);
    let mut statement = db.prepare("SELECT pid, name FROM processes ORDER BY pid").unwrap();
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
}

#[test]
fn two_runs_become_one_that_has_both() {
    let Some((place, inputs)) = recorded() else { return };
    let all = place.dir.path().join("all.db");
    let said = text(&succeed(&mut merge(&all, &inputs)));
    assert!(said.contains("all.db: 2 runs, ") && said.contains("node1.db: process ids + 4194304, started "), "{said}");
    let mut expected = by_op(&inputs[0]);
    for (op, count) in by_op(&inputs[1]) {
        *expected.entry(op).or_default() += count;
    }
    assert_eq!(by_op(&all), expected);
    let mut expected = processes(&inputs[0]);
    let renumbered = |(pid, name): (i64, String)| {
        let (pid, own) = (pid + PIDS, format!("pid {pid}"));
        (pid, if name == own { format!("pid {pid}") } else { name })
    };
    expected.extend(processes(&inputs[1]).into_iter().map(renumbered));
    assert_eq!(processes(&all), expected);
    let (first, second, both) = (open(&inputs[0]), open(&inputs[1]), open(&all));
    let sums = |sql: &str| assert_eq!(number(&both, sql), number(&first, sql) + number(&second, sql), "{sql}");
    sums("SELECT SUM(calls) + SUM(total_ns) FROM seconds");
    sums("SELECT SUM(duration_ns) FROM off_cpu");
    sums("SELECT COUNT(*) FROM thread_time");
    sums("SELECT COUNT(*) FROM cpu_held");
    sums("SELECT SUM(duration_ns) FROM cpu_held");
    sums("SELECT SUM(ns) FROM ledger");
    sums("SELECT events_stored FROM sessions");
    let offset = "SELECT start_unix_ns FROM sessions";
    let later = number(&second, offset) - number(&first, offset);
    assert_eq!(number(&both, "SELECT clock_offset_ns FROM merged WHERE input = 1"), later);
    let last = "SELECT MAX(timestamp) FROM events";
    assert_eq!(number(&both, last), number(&second, last) + later);
}

#[test]
fn every_command_understands_the_result() {
    let Some((place, inputs)) = recorded() else { return };
    let all = place.dir.path().join("all.db");
    succeed(&mut merge(&all, &inputs));
    let gpuwhy = |args: &[&str]| text(&succeed(Command::new(GPUWHY).args(args).arg("--db").arg(&all)));
    let sql = "SELECT input, human_time(clock_offset_ns) AS later FROM merged";
    assert!(gpuwhy(&["query", "--csv", sql]).starts_with("input,later\n0,0 ns\n1,"));
    assert!(gpuwhy(&["stacks"]).contains("all CUDA functions"));
    let report: serde_json::Value = serde_json::from_str(&gpuwhy(&["explain", "--json", "--per-process"])).unwrap();
    let processes: Vec<i64> =
        report["processes"].as_array().into_iter().flatten().filter_map(|process| process["pid"].as_i64()).collect();
    assert!(report["schema"] == "gpuwhy.explain/1", "{report}");
    assert!(processes.iter().any(|pid| *pid > PIDS) && processes.iter().any(|pid| *pid < PIDS), "{processes:?}");
    let again = place.dir.path().join("again.db");
    succeed(&mut merge(&again, &[all, inputs[1].clone()]));
    assert_eq!(number(&open(&again), "SELECT COUNT(*) FROM merged"), 3);
}

#[test]
fn what_cannot_be_merged_is_said_in_one_line() {
    let place = Place::new();
    let path = |name: &str| place.dir.path().join(name);
    let said = refusal(&mut merge(&path("all.db"), &[path("a.db"), path("b.db")]), 1);
    assert!(said.contains("a.db") && said.contains("No such file"), "{said}");
    std::fs::write(path("all.db"), "precious").unwrap();
    let said = refusal(&mut merge(&path("all.db"), &[path("a.db"), path("b.db")]), 1);
    assert!(said.contains("all.db already exists: give -o another name"), "{said}");
    let one = Command::new(GPUWHY).args(["merge", "-o", "x.db", "a.db"]).output().unwrap();
    assert_eq!(one.status.code(), Some(2), "one run is nothing to merge");
    assert_eq!(std::fs::read_dir(place.dir.path()).unwrap().count(), 1);
}

#[test]
fn with_sudo_the_result_belongs_to_its_caller() {
    let Some((place, inputs)) = recorded() else { return };
    let mine = inputs.iter().map(PathBuf::as_path).chain([place.dir.path()]);
    mine.for_each(|path| chown(path, Some(65_534), Some(65_534)).unwrap());
    let all = place.dir.path().join("all.db");
    succeed(merge(&all, &inputs).env("SUDO_UID", "65534").env("SUDO_GID", "65534"));
    let owner = std::fs::metadata(&all).unwrap();
    assert_eq!((owner.uid(), owner.gid(), owner.mode() & 0o777), (65_534, 65_534, 0o600));
    assert_eq!(std::fs::read_dir(place.dir.path()).unwrap().count(), 3);
    // Not where only root may write.
    chown(place.dir.path(), Some(0), Some(0)).unwrap();
    let mut command = merge(&place.dir.path().join("other.db"), &inputs);
    let said = refusal(command.env("SUDO_UID", "65534").env("SUDO_GID", "65534"), 1);
    assert!(said.contains("Permission denied"), "{said}");
}
