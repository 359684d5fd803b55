// SPDX-License-Identifier: Apache-2.0
//! What ended a job, or will, comes before where its time went, on every screen; and what is said of a line's source comes from
//! the run file, wherever the question is asked.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::made::{LONG, MS, Made, ORIGIN, SECOND, call, sleepy, tensor};
use common::mcp::Served;
use common::{GPUWHY, Place, succeed};
use gpuwhy_model::ops::{TorchOp, torch_op};
use gpuwhy_model::{SourceLine, TensorEvent};
use serde_json::{Value, json};
use std::process::Command;

const PID: u32 = 1000;
const MB: u64 = 1 << 20;
/// The line that keeps what it allocates.
const KEEPER: u64 = 33;
const LINE: &str = "/home/me/a.py:40";

/// A job that sleeps most of the time and keeps 1 MB of every step; at the end it is refused more, and ends.
fn leaking(text: Option<&str>) -> Place {
    let place = Place::new();
    let mut made = Made::new(&place.db());
    sleepy(&mut made);
    made.stack(KEEPER, &format!("{LINE} keep"));
    let text = text.map(str::to_owned);
    made.writer.add_source_line(SourceLine { file: "/home/me/a.py".into(), line: 40, text, around: None });
    let mut used = 0;
    let mut event = |op: TorchOp, at: u64, bytes: u64, address: u64| {
        used = if op == TorchOp::Free {
            used - bytes
        } else if op == TorchOp::Alloc {
            used + bytes
        } else {
            used
        };
        TensorEvent {
            op: torch_op(op),
            address,
            allocated: used,
            reserved: 300 * MB,
            ..tensor(PID, at, bytes, Some(KEEPER))
        }
    };
    let mut events = Vec::new();
    for step in 0..190 {
        let (at, address) = (step * 100 * MS + 30 * MS, 0x7f00_0000_0000 + (step << 24));
        events.push(event(TorchOp::Alloc, at, 4 * MB, address));
        events.push(event(TorchOp::Alloc, at + MS, MB, address + 8 * MB));
        events.push(event(TorchOp::Free, at + 2 * MS, 4 * MB, address));
    }
    let end = 190 * 100 * MS;
    events.push(event(TorchOp::OutOfMemory, end, 8 * MB, 0));
    made.tensors.extend(events);
    let mut exit = call("process_exit", PID, end + 200 * MS, 0);
    (exit.arg0, exit.arg1, exit.device, exit.stream) = (Some(1), Some(0), None, None);
    made.calls.push(exit);
    made.writer.set_process_times(PID, None, Some(ORIGIN + end + 200 * MS));
    made.finish(LONG + SECOND);
    place
}

fn said(place: &Place, command: &str, args: &[&str]) -> String {
    let mut asked = Command::new(GPUWHY);
    String::from_utf8(succeed(asked.arg(command).arg("--db").arg(place.db()).args(args)).stdout).unwrap()
}

fn json_of(place: &Place, command: &str, args: &[&str]) -> Value {
    serde_json::from_str(&said(place, command, &[args, &["--json"]].concat())).unwrap()
}

#[test]
fn what_ended_the_job_is_said_first_everywhere() {
    let place = leaking(None);
    let (ended, leaks) = ("Out of memory at 19.0 s in a.py:40; the process ended.", "a.py:40 leaks ");
    let is_first = |verdict: &str| {
        let rest = verdict.strip_prefix(ended).unwrap_or_else(|| panic!("{verdict}"));
        assert!(rest.trim_start().starts_with(leaks) && rest.contains("the launching thread sleeps"), "{verdict}");
    };
    let kinds = |findings: &Value| -> Vec<String> {
        findings.as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap().to_owned()).collect()
    };
    let report = json_of(&place, "explain", &[]);
    is_first(report["verdict"].as_str().unwrap());
    assert_eq!(kinds(&report["findings"])[..3], ["oom", "memory_leak", "host_sleep"], "{report:#}");
    let text = said(&place, "explain", &[]);
    assert!(
        text.split("\n\n").nth(1).is_some_and(|verdict| verdict.starts_with("Out of memory at 19.0 s in a.py:40")),
        "{text}"
    );
    let mut served = Served::run(&place.db());
    let stats = served.call("get_trace_stats", json!({})).unwrap();
    assert!(stats["verdict"].as_str().unwrap().starts_with(ended), "{stats:#}");
    assert!(stats["findings"][0].as_str().unwrap().starts_with("oom: Out of memory"), "{stats:#}");
    let chains = served.call("get_causal_chains", json!({})).unwrap();
    assert!(chains["verdict"].as_str().unwrap().starts_with(ended), "{chains:#}");
    assert_eq!(kinds(&chains["findings"])[..2], ["oom", "memory_leak"], "{chains:#}");
    // A part that ends before tells what it is about, and no more.
    let before = json_of(&place, "explain", &["--to", "10s"]);
    assert!(!before["verdict"].as_str().unwrap().contains("ut of memory"), "{before:#}");
}

#[test]
fn screens_agree_about_a_leak() {
    let place = leaking(None);
    for screen in [said(&place, "memory", &["--full"]), said(&place, "explain", &["--full", "--per-process"])] {
        let screen = screen.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(!screen.contains("runs out"), "nothing can run out any more: {screen}");
        assert!(screen.contains("memory ran out at 19.0 s"), "{screen}");
        assert!(!screen.contains("never freed") && !screen.contains("not a leak on its own"), "{screen}");
    }
    let report = json_of(&place, "explain", &["--per-process"]);
    let own = report["per_process"].as_array().unwrap().iter().find(|one| one["pid"] == PID).unwrap();
    assert!(own["warnings"][0].as_str().unwrap().starts_with("a.py:40 leaks "), "{own:#}");
    let memory = json_of(&place, "memory", &[]);
    let (space, leak) = (&memory["spaces"][0], &memory["leaks"][0]);
    assert_eq!(space["last_look"]["at_ns"], leak["last_look_ns"], "{leak:#}");
    assert_eq!((&leak["out_of_memory_in_ns"], &space["ended_ns"]), (&Value::Null, &json!(19_200 * MS)), "{space:#}");
    let severity = |report: &Value| {
        let all = report["findings"].as_array().unwrap();
        all.iter().find(|one| one["kind"] == "memory_leak").unwrap()["severity"].clone()
    };
    assert_eq!(severity(&report), severity(&memory));
}

#[test]
fn fixes_come_from_the_source_that_the_run_file_has() {
    let fix = |text: Option<&str>| {
        let memory = json_of(&leaking(text), "memory", &[]);
        let all = memory["findings"].as_array().unwrap();
        let leak = all.iter().find(|one| one["kind"] == "memory_leak").unwrap();
        leak["fixes"][0]["text"].as_str().unwrap().to_owned()
    };
    assert!(fix(Some("self.kept.append(output.detach().clone())")).contains("a detached clone"));
    assert!(fix(Some("losses.append(loss)")).contains("keep loss.item()"));
    assert!(fix(None).contains("find what keeps its tensors"));
}
