// SPDX-License-Identifier: Apache-2.0
//! A part of a run's time means the same to every command and tool: what lies outside of it counts nowhere.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::made::{Made, SECOND, launch, sync, tensor};
use common::mcp::Served;
use common::{GPUWHY, Place, succeed};
use serde_json::{Value, json};
use std::process::Command;

const PID: u32 = 4821;
const LAUNCHES: u64 = 300;
/// Launches end here, in the midst of a second: whole seconds are no excuse.
const QUIET_FROM: u64 = 1_300_000_000;

/// A run of ten seconds that launches and allocates in the first 1.3 of them, and then only waits.
fn run() -> Place {
    let place = Place::new();
    let mut made = Made::new(&place.db());
    made.process(PID, "python3 train.py", None);
    made.stack(7, "/home/me/train.py:12 step");
    for i in 0..LAUNCHES {
        made.calls.push(launch(PID, i * QUIET_FROM / LAUNCHES, 9_000));
    }
    made.calls.push(sync(PID, QUIET_FROM - 2_000_000, 1_000_000));
    made.tensors.extend((0..20).map(|i| tensor(PID, i * 50_000_000, 512 * i, Some(7))));
    // Waits that are no launches: calls there are in both parts.
    made.calls.extend((2..9).map(|second| sync(PID, second * SECOND, 5_000_000)));
    made.finish(10 * SECOND);
    place
}

fn json_of(place: &Place, command: &str, args: &[&str]) -> Value {
    let mut asked = Command::new(GPUWHY);
    asked.arg(command).arg("--db").arg(place.db()).args(args).arg("--json");
    serde_json::from_slice(&succeed(&mut asked).stdout).unwrap()
}

/// The part after the last launch, as the commands are asked for it: within a second and over several, and by `--since`.
const QUIET: [&[&str]; 3] = [&["--from", "1310ms", "--to", "1900ms"], &["--from", "1310ms"], &["--since", "8600ms"]];
/// And before it.
const BUSY: [&[&str]; 2] = [&["--to", "1310ms"], &[]];

fn sum(list: &Value, key: &str) -> u64 {
    list.as_array().unwrap().iter().map(|one| one[key].as_u64().unwrap()).sum()
}

/// Calls of an op in `per_process`.
fn calls(report: &Value, op: &str) -> u64 {
    let ops = report["per_process"].as_array().unwrap().iter().flat_map(|one| one["ops"].as_array().unwrap());
    ops.filter(|one| one["op"] == op).map(|one| one["calls"].as_u64().unwrap()).sum()
}

#[test]
fn launches_outside_of_the_part_are_in_no_figure_of_explain() {
    let place = run();
    for (parts, launches) in [(&QUIET[..], 0), (&BUSY[..], LAUNCHES)] {
        for args in parts {
            let report = json_of(&place, "explain", &[args, &["--per-process"][..]].concat());
            assert_eq!(sum(&report["gpus"], "launches"), launches, "the GPU table with {args:?}: {report:#}");
            assert_eq!(sum(&report["processes"], "launches"), launches, "{args:?}");
            assert_eq!(calls(&report, "cudaLaunchKernel"), launches, "calls by process with {args:?}: {report:#}");
        }
    }
    let report = json_of(&place, "explain", &["--from", "2500ms", "--to", "4500ms", "--per-process"]);
    assert_eq!(calls(&report, "cudaStreamSync"), 2, "those at 3 s and 4 s: {report:#}");
}

#[test]
fn the_allocators_reports_are_summed_by_line_as_events_counts_them() {
    let place = run();
    for (parts, reports) in [(&QUIET[..], 0), (&BUSY[..], 20)] {
        for args in parts {
            let stacks = json_of(&place, "stacks", &[args, &["--op", "torchAlloc", "--by", "line"][..]].concat());
            assert_eq!((&stacks["calls"], &stacks["unit"]), (&json!(reports), &json!("calls")), "{args:?}: {stacks:#}");
            let launches = json_of(&place, "stacks", args);
            assert_eq!(calls_in(&launches, "cudaLaunchKernel") > 0, reports > 0, "{args:?}: {launches:#}");
        }
    }
    let stacks = json_of(&place, "stacks", &["--op", "torchAlloc", "--by", "line", "--sort", "bytes"]);
    let events = place.run_file();
    let bytes = common::number(&events, "SELECT SUM(bytes * weight) FROM events WHERE op = 'torchAlloc'");
    assert_eq!(stacks["groups"][0]["bytes"], bytes, "{stacks:#}");
    assert_eq!(stacks["groups"][0]["name"], "/home/me/train.py:12 step");
    assert_eq!(stacks["groups"].as_array().unwrap().len(), 1);
    let elsewhere = json_of(&place, "stacks", &["--op", "torchAlloc", "--pid", "1"]);
    assert_eq!(elsewhere["calls"], 0);
}

/// Calls of an op that groups of all calls have.
fn calls_in(stacks: &Value, op: &str) -> u64 {
    let groups = stacks["groups"].as_array().unwrap().iter().chain(Some(&stacks["without_stack"]));
    let ops = groups.filter_map(|group| group["ops"].as_array()).flatten();
    ops.filter(|one| one["op"] == op).map(|one| one["calls"].as_u64().unwrap()).sum()
}

#[test]
fn every_tool_counts_only_what_is_in_the_part() {
    let place = run();
    let mut served = Served::run(&place.db());
    for (part, launches) in [
        (json!({"from": "1310ms", "to": "1900ms"}), 0),
        (json!({"from": "1310ms"}), 0),
        (json!({"since": "8600ms"}), 0),
        (json!({"to": "1310ms"}), LAUNCHES),
        (json!({}), LAUNCHES),
    ] {
        let stats = served.call("get_trace_stats", part.clone()).unwrap();
        let op = |name: &str| stats["ops"].as_array().unwrap().iter().find(|op| op["op"] == name).cloned();
        assert_eq!(op("cudaLaunchKernel").map_or(0, |op| op["calls"].as_u64().unwrap()), launches, "{part}: {stats:#}");
        assert_eq!(sum(&stats["processes"], "launches"), launches, "{part}");
        let mut asked = part.clone();
        asked["op"] = json!("cudaLaunchKernel");
        assert_eq!(served.call("get_stacks", asked).unwrap()["calls"], launches, "{part}");
        let mut asked = part.clone();
        asked["op"] = json!("torchAlloc");
        let reports = if launches > 0 { 20 } else { 0 };
        assert_eq!(served.call("get_stacks", asked).unwrap()["calls"], reports, "{part}");
        let chains = served.call("get_causal_chains", part.clone()).unwrap();
        let silent = chains["verdict"].as_str().unwrap_or_default().contains("No GPU work was seen");
        assert_eq!(silent, launches == 0, "{part}: {chains:#}");
    }
    // Pieces of whole seconds begin with the second the part begins in, and say so.
    let timeline = served.call("get_timeline", json!({"from": "1310ms", "to": "4s"})).unwrap();
    assert_eq!(sum(&timeline["buckets"], "launches"), 0, "{timeline:#}");
}
