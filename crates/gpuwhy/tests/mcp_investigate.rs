// SPDX-License-Identifier: Apache-2.0
//! An assistant's work: troubles drawn at random are found through MCP alone, and a run is asked about while it is recorded.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::mcp::{Served, clients};
use common::{GPUWHY, HeldSimjob, Place, Tracing, can_trace, one_at_a_time, sim, succeed};
use serde_json::json;
use std::path::Path;
use std::process::Command;

/// `score/investigate.py` reads nothing but answers of tools; what was planted it looks up only afterwards.
#[test]
fn a_scripted_investigation_finds_planted_troubles_and_their_lines() {
    let Some(tools) = clients().filter(|_| can_trace()) else { return };
    let _lock = one_at_a_time();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../score/investigate.py");
    let mut investigate = Command::new(tools.join("mcp-python/bin/python"));
    investigate.arg("-B").arg(script).env("GPUWHY", GPUWHY).env("SIMGPU_LIB", &sim().dir);
    let output = succeed(&mut investigate);
    let told = String::from_utf8_lossy(&output.stdout);
    let right = told.lines().filter(|line| line.ends_with(": right")).count();
    assert_eq!(right, 3, "{told}");
    print!("{told}");
}

#[test]
fn a_run_is_answered_about_while_it_is_recorded_and_after() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let db = place.db();
    let mut served = Served::run(&db);
    let nothing = served.refused("get_trace_stats", json!({}));
    assert!(nothing.contains("list_runs") && nothing.contains("record"), "it says what to do: {nothing}");
    let mut job = HeldSimjob::start(&mut place.simjob(&["--calls", "1000", "--mix", "mixed"]));
    let pid = job.pids[0];
    let tracing = Tracing::start(place.trace().arg("--pid").arg(pid.to_string()), &place, 2);
    let running = served.call("get_trace_stats", json!({})).unwrap();
    assert_eq!(running["state"], "running", "{running}");
    job.go();
    assert!(job.end().0.success());
    assert!(tracing.end().status.success());
    let ended = served.call("get_trace_stats", json!({"limit": 100})).unwrap();
    assert_eq!(ended["state"], "ended", "{ended}");
    let calls: u64 = ended["ops"].as_array().unwrap().iter().map(|op| op["calls"].as_u64().unwrap()).sum();
    let truth: u64 = common::compare::true_sums(&place.truth()).values().map(|sums| sums.calls).sum();
    assert_eq!(calls, truth);
    let within = "SELECT SUM(weight) FROM events WHERE timestamp >= :from_ns AND timestamp < :to_ns AND pid = :pid";
    let part = json!({"sql": within, "from": "10ms", "to": "1h", "pid": pid});
    let asked = served.call("run_sql", part).unwrap()["rows"][0][0].as_i64();
    let sql = format!("SELECT SUM(weight) FROM events WHERE timestamp >= 10000000 AND pid = {pid}");
    assert_eq!(asked, Some(common::number(&place.run_file(), &sql)));
    let ignored = served.refused("run_sql", json!({"sql": "SELECT COUNT(*) FROM events", "since": "1s"}));
    assert!(ignored.contains(":from_ns"), "{ignored}");
    assert!(served.end().success());
}
