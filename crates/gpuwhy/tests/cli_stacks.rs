// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy stacks` on a run file made here: no root, no GPU.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{GPUWHY, Place, refusal, succeed};
use gpuwhy_model::{Call, CallFlags, ops};
use gpuwhy_store::{NewRun, RunEnd, StackText, Writer};
use std::process::Command;

const SECOND: u64 = 1_000_000_000;

fn call(function: &str, at: u64, duration_ns: u64, stack: Option<u64>) -> Call {
    Call {
        start_ns: SECOND + at,
        duration_ns,
        pid: 12_004,
        tid: 12_004,
        op: ops::by_function(function).unwrap().id,
        device: None,
        stream: None,
        arg0: Some(1_000_000),
        arg1: None,
        ret: 0,
        flags: CallFlags::default(),
        weight: 1,
        stack,
    }
}

/// Ten seconds with three allocations of 1 MB, one of them without a stack, and two waits.
fn run(place: &Place, with_stacks: bool) {
    let new = NewRun { start_monotonic_ns: SECOND, ..NewRun::default() };
    let mut writer = Writer::create(&place.db(), &new).unwrap().writer;
    let stack = |id| with_stacks.then_some(id);
    if with_stacks {
        let frames = "/me/alloc_stress.py:74 fragmentation_pattern\n/me/alloc_stress.py:114 main";
        writer.add_stack(1, StackText { frames: frames.into(), top_line: "".into() });
        let frames = "/x/site-packages/torch/cuda/sync.py:5 synchronize\n/me/alloc_stress.py:116 main";
        writer.add_stack(2, StackText { frames: frames.into(), top_line: "".into() });
    }
    writer.set_process(12_004, "python3 train.py");
    let mut calls = [
        call("cudaMalloc", SECOND, 1_000_000, stack(1)),
        call("cudaMalloc", 2 * SECOND, 3_000_000, stack(1)),
        call("cudaMalloc", 3 * SECOND, 500_000, None),
        call("cudaStreamSynchronize", 4 * SECOND, 20_000_000, stack(2)),
        call("cudaStreamSynchronize", 9 * SECOND, 10_000_000, stack(2)),
    ];
    writer.write_calls(&mut calls).unwrap();
    writer.finish(&RunEnd { stop_monotonic_ns: 11 * SECOND, stop_reason: "exit".into(), ..RunEnd::default() });
}

fn stacks(place: &Place, args: &[&str]) -> Command {
    let mut command = Command::new(GPUWHY);
    command.arg("stacks").args(args).args(["--db", "run.db"]).current_dir(place.dir.path());
    command
}

fn answer(place: &Place, args: &[&str]) -> String {
    String::from_utf8(succeed(&mut stacks(place, args)).stdout).unwrap()
}

#[test]
fn the_lines_that_allocate() {
    let place = Place::new();
    run(&place, true);
    assert_eq!(
        answer(&place, &["--op", "cudaMalloc"]),
        "\
run.db: cudaMalloc, 3 calls, total 4.50 ms, 2 (67 %) with a Python stack

2 calls  2.00 MB  avg 2.00 ms  max 3.00 ms  total 4.00 ms   python3 train.py 12004
  alloc_stress.py:74   fragmentation_pattern          ← your code
  alloc_stress.py:114  main

1 call  1.00 MB  avg 500 µs  max 500 µs  total 500 µs   python3 train.py 12004
  no Python stack (threads and programs without Python have none)
"
    );
}

#[test]
fn everything_by_library_line_and_function() {
    let place = Place::new();
    run(&place, true);
    let text = answer(&place, &["--by", "library"]);
    let names: Vec<&str> = text.lines().filter(|line| line.starts_with("  ")).collect();
    assert_eq!(names[..4], ["  cudaStreamSync", "  torch", "  cudaMalloc", "  your code"]);
    let text = answer(&place, &["--by", "line", "--sort", "bytes", "--limit", "1"]);
    assert!(text.contains("  alloc_stress.py:74  fragmentation_pattern") && text.contains("… 1 more line, 2 calls"));
    assert!(answer(&place, &["--by", "function"]).contains("\n  alloc_stress.py  main "));
    // The last two seconds hold one wait.
    let text = answer(&place, &["--since", "2s"]);
    assert!(text.starts_with("run.db: all CUDA functions from 8.00 s on, 1 call, total 10.0 ms, all with"), "{text}");
    assert!(answer(&place, &["--from", "0s", "--to", "1500ms"]).contains(", 1 call,"));
    assert!(answer(&place, &["--pid", "7"]).ends_with(", 0 calls\n"));
}

#[test]
fn json_has_what_the_text_has() {
    let place = Place::new();
    run(&place, true);
    let json: serde_json::Value = serde_json::from_str(&answer(&place, &["--op", "cudaMalloc", "--json"])).unwrap();
    assert_eq!(json["schema"], "gpuwhy.stacks/1");
    assert_eq!((&json["op"], &json["by"], &json["calls"]), (&"cudaMalloc".into(), &"stack".into(), &3.into()));
    assert_eq!((&json["without_stack"]["calls"], &json["with_stack"]), (&1.into(), &2.into()));
    let group = &json["groups"][0];
    assert_eq!(
        (&group["total_ns"], &group["bytes"], &group["stack_id"]),
        (&4_000_000.into(), &2_000_000.into(), &1.into())
    );
    assert_eq!(group["pids"][0], serde_json::json!({"pid": 12004, "name": "python3 train.py"}));
    let frame = serde_json::json!({"file": "/me/alloc_stress.py", "line": 114, "function": "main", "yours": true});
    assert_eq!(group["frames"][1], frame);
    assert_eq!(group["top_line"], "/me/alloc_stress.py:74 fragmentation_pattern");
}

#[test]
fn a_run_without_stacks_says_so() {
    let place = Place::new();
    run(&place, false);
    let text = answer(&place, &[]);
    assert!(
        text.contains("\nthis run has no Python stacks: it was recorded with --no-stack, or the job ran no Python\n")
    );
    assert!(text.contains("\n5 calls "), "{text}");
}

#[test]
fn what_cannot_be_answered_is_one_sentence() {
    let place = Place::new();
    let missing = refusal(&mut stacks(&place, &[]), 1);
    assert!(missing.contains("no run file run.db"), "{missing}");
    run(&place, true);
    let said = refusal(&mut stacks(&place, &["--op", "cudaMaloc"]), 1);
    assert_eq!(said, "gpuwhy: unknown op \"cudaMaloc\"; this run has cudaMalloc and cudaStreamSync\n");
    assert!(refusal(&mut stacks(&place, &["--op", "sched_wakeup"]), 1).contains("sched_switch"));
    assert!(refusal(&mut stacks(&place, &["--from", "3s", "--to", "2s"]), 1).contains("invalid range"));
}
