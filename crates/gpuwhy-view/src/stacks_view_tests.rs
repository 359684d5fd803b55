// SPDX-License-Identifier: Apache-2.0
//! The exact text of `gpuwhy stacks`.

use super::*;

fn frame(file: &str, line: u32, function: &str) -> FrameView {
    let yours = !file.contains("site-packages");
    FrameView { file: file.into(), line: Some(line), function: function.into(), yours }
}

fn group(frames: Vec<FrameView>) -> GroupView {
    GroupView {
        calls: 4_009,
        total_ns: 4_089_000_000,
        avg_ns: 1_020_000,
        max_ns: 2_100_000,
        bytes: 207_000_000_000,
        pids: vec![ProcessView { pid: 12_004, name: "python3 train.py".into() }],
        stack_id: Some(7),
        stacks: 1,
        frames,
        ..GroupView::default()
    }
}

fn report(groups: Vec<GroupView>) -> StacksReport {
    StacksReport {
        schema: "gpuwhy.stacks/1",
        run: "gpuwhy.db".into(),
        op: Some("cudaMalloc".into()),
        by: "stack".into(),
        sort: "total".into(),
        unit: CountedUnit::Calls,
        from_ns: None,
        to_ns: None,
        calls: 4_009,
        total_ns: 4_089_000_000,
        with_stack: 4_009,
        without_stack: None,
        note: None,
        groups,
        more: MoreGroups::default(),
    }
}

fn text(report: &StacksReport) -> String {
    report.lines(false, Style::PLAIN).join("\n")
}

#[test]
fn a_stack_with_its_figures() {
    let file = "/home/me/alloc_stress.py";
    let frames = vec![frame(file, 74, "fragmentation_pattern"), frame(file, 114, "main"), frame(file, 1, "<module>")];
    assert_eq!(
        text(&report(vec![group(frames)])),
        "\
gpuwhy.db: cudaMalloc, 4,009 calls, total 4.09 s, all with a Python stack

4,009 calls  207 GB  avg 1.02 ms  max 2.10 ms  total 4.09 s   python3 train.py 12004
  alloc_stress.py:74   fragmentation_pattern          ← your code
  alloc_stress.py:114  main
  alloc_stress.py:1    <module>"
    );
}

#[test]
fn what_has_no_stack_and_what_is_left_out_is_said() {
    let pids = (1..=5).map(|pid| ProcessView { pid, name: format!("w:{pid}") }).collect();
    let op = |op: &str, total_ns| OpView { op: op.into(), calls: 1, total_ns };
    let ops = vec![op("cudaMalloc", 3_271_200_000), op("cudaFree", 800_000_000), op("cudaMemset", 1)];
    let without = GroupView { calls: 1, ops, bytes: 0, pids, ..group(Vec::new()) };
    let report = StacksReport {
        with_stack: 4_008,
        without_stack: Some(without),
        note: Some("note".into()),
        more: MoreGroups { groups: 2, calls: 12 },
        from_ns: Some(1_000_000_000),
        op: None,
        ..report(Vec::new())
    };
    assert_eq!(
        text(&report),
        "\
gpuwhy.db: all CUDA functions from 1.00 s on, 4,009 calls, total 4.09 s, 4,008 (>99 %) with a Python stack
note

… 2 more stacks, 12 calls

1 call  avg 1.02 ms  max 2.10 ms  total 4.09 s   w:1 1, w:2 2, w:3 3 and 2 more processes
  cudaMalloc 80 %, cudaFree 20 %
  no Python stack (threads and programs without Python have none)"
    );
}

#[test]
fn long_stacks_are_cut_but_keep_your_line_and_the_outermost() {
    let torch = |n: u32| frame(&format!("/x/site-packages/torch/m{n}.py"), n, "forward");
    let mut frames: Vec<FrameView> = (0..10).map(torch).collect();
    frames.push(frame("/me/train.py", 12, "step"));
    frames.extend((11..13).map(torch));
    frames.push(frame("/me/train.py", 99, "<module>"));
    let report = report(vec![group(frames)]);
    let lines = report.lines(false, Style::PLAIN);
    assert_eq!(
        lines[8..],
        [
            "  m5.py:5      forward",
            "  … 4 more",
            "  train.py:12  step                           ← your code",
            "  … 2 more",
            "  train.py:99  <module>",
        ]
    );
    assert_eq!(report.lines(true, Style::PLAIN).len(), 3 + 14);
}

#[test]
fn one_frame_is_not_worth_leaving_out() {
    let frames: Vec<FrameView> = (0..8).map(|n| frame("/me/a.py", n, "f")).collect();
    assert_eq!(report(vec![group(frames)]).lines(false, Style::PLAIN).len(), 3 + 8);
}

#[test]
fn files_of_one_name_are_told_apart_and_packages_are_dim() {
    let frames = vec![frame("/x/site-packages/torch/utils.py", 1, "f"), frame("/me/utils.py", 2, "g")];
    let lines = report(vec![group(frames)]).lines(false, Style::COLOUR);
    assert_eq!(lines[3], "\x1b[2m  torch/utils.py:1  f\x1b[0m");
    assert!(lines[4].starts_with("  me/utils.py:2     g ") && lines[4].ends_with("\x1b[32m← your code\x1b[0m"));
}

#[test]
fn samples_and_waits_have_their_own_words() {
    let line = vec![FrameView { line: None, ..frame("/me/train.py", 0, "load") }];
    let mut samples = report(vec![GroupView { bytes: 0, ..group(line.clone()) }]);
    samples.unit = CountedUnit::Samples;
    let lines = samples.lines(false, Style::PLAIN);
    assert_eq!(lines[2], "4,009 samples  CPU time 4.09 s   python3 train.py 12004");
    assert_eq!(lines[3], "  train.py  load                           ← your code");

    let wait = |reason: &str, wait: Option<&str>, total_ns| WaitView {
        reason: reason.into(),
        wait: wait.map(str::to_owned),
        times: 1,
        total_ns,
    };
    let waits = vec![
        wait("asleep", Some("pipe"), 3_271_200_000),
        wait("asleep", Some("sleep"), 600_000_000),
        wait("preempted", None, 100_000_000),
        wait("new", None, 1),
    ];
    let mut off = report(vec![GroupView { waits, bytes: 0, ..group(line) }]);
    off.unit = CountedUnit::OffCpu;
    let lines = off.lines(false, Style::PLAIN);
    assert!(lines[2].starts_with("4,009 times off CPU  avg 1.02 ms"));
    assert_eq!(lines[3], "  asleep on pipe 80 %, asleep for a set time 15 %, preempted 2.4 %");
}

#[test]
fn names_cannot_drive_the_terminal() {
    let mut hostile = group(vec![frame("/me/\x1b[2J.py", 1, "f\x07")]);
    hostile.pids[0].name = "\x1b]0;x".into();
    let lines = text(&report(vec![hostile, GroupView { name: Some("lib\x1b".into()), ..group(Vec::new()) }]));
    assert!(!lines.contains(['\x1b', '\x07']), "{lines:?}");
}
