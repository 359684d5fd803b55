// SPDX-License-Identifier: Apache-2.0
//! Events by stack, line, function and library, of a small run that can be added up by hand.

use crate::support::{call, create, end, off_cpu};
use gpuwhy_model::{Call, OffCpu, Reason, Wait};
use gpuwhy_store::{
    GroupKey, PartSums, Reader, Span, StackAnswer, StackError, StackGroup, StackKey, StackQuestion, StackSort,
    StackText, StackUnit,
};
use std::path::Path;
use tempfile::TempDir;

const STEP: &str = "/home/me/train.py:10 step\n/home/me/train.py:50 main";
const TORCH: &str =
    "/x/site-packages/torch/nn/linear.py:7 Linear.forward\n/home/me/train.py:12 step\n/home/me/train.py:50 main";
const ONLY_TORCH: &str = "/usr/lib/python3.12/threading.py:3 wait\n/x/site-packages/torch/data.py:9 loop";
const SECOND: u64 = 1_000_000_000;

fn made(function: &str, at: u64, duration_ns: u64, pid: u32, stack: Option<u64>) -> Call {
    Call { pid, tid: pid, stack, ..call(function, at, duration_ns) }
}

/// Ten seconds: allocations of 4,096 bytes each, waits for the GPU, samples and times off the CPU.
fn run(path: &Path) {
    let mut writer = create(path);
    for (id, frames) in [(1, STEP), (2, TORCH), (3, ONLY_TORCH)] {
        writer.add_stack(id, StackText { frames: frames.into(), top_line: String::new() });
    }
    writer.set_process(100, "python3 train.py");
    let mut calls = vec![
        made("cudaMalloc", 1, 100, 100, Some(1)),
        made("cudaMalloc", 2 * SECOND, 300, 100, Some(1)),
        made("cudaMalloc", 3 * SECOND, 150, 200, Some(1)),
        made("cudaMalloc", 4 * SECOND, 50, 100, Some(2)),
        made("cudaStreamSynchronize", 5 * SECOND, 1_000, 100, Some(3)),
        made("cudaStreamSynchronize_ptsz", 6 * SECOND, 2_000, 100, None),
        made("cudaMalloc", 9 * SECOND, 7, 100, Some(99)),
        made("cpu_sample", 7 * SECOND, 20_000_000, 100, Some(2)),
    ];
    calls.push(Call {
        flags: gpuwhy_model::CallFlags { inner: true, unfinished: false },
        ..made("cudaMalloc", 8, 9_999, 100, Some(1))
    });
    writer.write_calls(&mut calls).unwrap();
    let wait = |at, duration, reason, wait, stack| OffCpu { pid: 100, reason, wait, stack, ..off_cpu(at, duration, 0) };
    let mut waits = vec![
        wait(10, 800, Reason::Asleep, Wait::Pipe, Some(1)),
        wait(1_000, 100, Reason::Asleep, Wait::Pipe, Some(1)),
        wait(2_000, 100, Reason::Preempted, Wait::Nothing, Some(1)),
        wait(3_000, 5, Reason::Asleep, Wait::Futex, None),
    ];
    writer.write_off_cpu(&mut waits).unwrap();
    assert!(writer.finish(&end()).problem.is_none());
}

fn ask(question: StackQuestion) -> StackAnswer {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("run.db");
    run(&path);
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute("UPDATE call_ SET weight = 10 WHERE start = 2000000000", []).unwrap();
    Reader::open(&path).unwrap().stacks(&question).unwrap()
}

fn of(op: &str) -> StackQuestion {
    StackQuestion { op: Some(op.into()), ..StackQuestion::default() }
}

/// `(calls, total, max, bytes, pids)` of a group.
fn figures(group: &StackGroup) -> (u64, u64, u64, u64, Vec<u32>) {
    let sums = &group.sums;
    let pids = group.processes.iter().map(|(pid, _)| *pid).collect();
    (sums.calls, sums.total_ns, sums.max_ns, sums.bytes, pids)
}

#[test]
fn by_stack_and_process_with_weights_and_bytes() {
    let answer = ask(of("cudaMalloc"));
    assert_eq!((answer.op.as_deref(), answer.unit), (Some("cudaMalloc"), StackUnit::Call));
    assert_eq!((answer.all.calls, answer.all.total_ns), (14, 100 + 10 * 300 + 150 + 50 + 7));
    assert!(answer.without_stack.is_none() && answer.file_has_stacks);
    let found: Vec<_> = answer.groups.iter().map(|group| (group.key.clone(), figures(group))).collect();
    let key = |stack_id, pid| GroupKey::Stack { stack_id, pid };
    assert_eq!(
        found,
        [
            (key(1, 100), (11, 3_100, 300, 11 * 4_096, vec![100])),
            (key(1, 200), (1, 150, 150, 4_096, vec![200])),
            (key(2, 100), (1, 50, 50, 4_096, vec![100])),
            (key(99, 100), (1, 7, 7, 4_096, vec![100])),
        ]
    );
    let group = &answer.groups[2];
    assert_eq!(group.processes, [(100, "python3 train.py".to_owned())]);
    assert_eq!(group.top_line.as_deref(), Some("/home/me/train.py:12 step"));
    assert_eq!(group.frames.iter().map(|frame| frame.yours).collect::<Vec<_>>(), [false, true, true]);
    assert!(answer.groups[3].frames.is_empty(), "a stack whose text is missing is still counted");
}

#[test]
fn all_of_cuda_by_line_function_and_library() {
    let by = |by| ask(StackQuestion { by, ..StackQuestion::default() });
    let lines = by(StackKey::Line);
    let line = |file: &str, line, function: &str| GroupKey::Line(file.into(), Some(line), function.into());
    let keys: Vec<_> = lines.groups.iter().map(|group| group.key.clone()).collect();
    assert_eq!(
        keys,
        [
            line("/home/me/train.py", 10, "step"),
            line("/usr/lib/python3.12/threading.py", 3, "wait"),
            line("/home/me/train.py", 12, "step"),
            GroupKey::Unknown,
        ]
    );
    assert_eq!(figures(&lines.groups[0]), (12, 3_250, 300, 12 * 4_096, vec![100, 200]));
    assert_eq!(lines.groups[0].frames.len(), 1);
    assert_eq!(lines.all.ops["cudaMalloc"], PartSums { times: 14, total_ns: 3_307 });
    assert_eq!(lines.groups[0].sums.ops.len(), 1);
    // Samples are no CUDA calls; a call without a stack has a group of its own.
    assert_eq!(lines.all.calls, 16);
    assert_eq!(figures(lines.without_stack.as_ref().unwrap()), (1, 2_000, 2_000, 0, vec![100]));

    let functions = by(StackKey::Function);
    assert_eq!(functions.groups[0].key, GroupKey::Function("/home/me/train.py".into(), "step".into()));
    assert_eq!((functions.groups[0].sums.calls, functions.groups[0].stacks), (13, 2));
    assert_eq!(functions.groups[0].frames[0].line, None);

    let libraries = by(StackKey::Library);
    let found: Vec<_> = libraries.groups.iter().map(|group| (group.key.clone(), group.sums.calls)).collect();
    let library = |name: &str| GroupKey::Library(name.into());
    assert_eq!(found, [(library("your code"), 12), (library("torch"), 2), (GroupKey::Unknown, 1)]);
}

#[test]
fn sorted_by_each_figure() {
    let first = |sort| ask(StackQuestion { sort, ..StackQuestion::default() }).groups[0].key.clone();
    let key = |stack_id, pid| GroupKey::Stack { stack_id, pid };
    assert_eq!(first(StackSort::Total), key(1, 100));
    assert_eq!(first(StackSort::Calls), key(1, 100));
    assert_eq!(first(StackSort::Max), key(3, 100));
    assert_eq!(first(StackSort::Bytes), key(1, 100));
}

#[test]
fn parts_of_the_run_and_single_processes() {
    let calls = |span| ask(StackQuestion { span, ..of("cudaMalloc") }).all.calls;
    assert_eq!(calls(Span::Between(2 * SECOND, Some(4 * SECOND))), 11);
    assert_eq!(calls(Span::Between(3 * SECOND, None)), 3);
    assert_eq!(calls(Span::Between(0, Some(2 * SECOND))), 1);
    // The run took ten seconds.
    let last = ask(StackQuestion { span: Span::Last(SECOND), ..of("cudaMalloc") });
    assert_eq!((last.all.calls, last.span), (1, (Some(9 * SECOND), None)));
    assert_eq!(calls(Span::Last(100 * SECOND)), 14);
    let only = ask(StackQuestion { pids: vec![200, 300], ..StackQuestion::default() });
    assert_eq!((only.all.calls, only.groups.len()), (1, 1));
}

#[test]
fn times_off_the_cpu_say_why_and_samples_what_was_running() {
    let off = ask(of("sched_switch"));
    assert_eq!((off.unit, off.all.calls), (StackUnit::OffCpu, 4));
    let group = &off.groups[0];
    assert_eq!(figures(group), (3, 1_000, 800, 0, vec![100]));
    let why = |reason: &str, wait: Option<&str>| (reason.to_owned(), wait.map(str::to_owned));
    assert_eq!(group.sums.waits[&why("asleep", Some("pipe"))], PartSums { times: 2, total_ns: 900 });
    assert_eq!(group.sums.waits[&why("preempted", None)], PartSums { times: 1, total_ns: 100 });
    assert_eq!(off.without_stack.unwrap().sums.total_ns, 5);

    let samples = ask(of("cpu_sample"));
    assert_eq!((samples.unit, samples.all.total_ns), (StackUnit::Sample, 20_000_000));
}

#[test]
fn ops_are_found_by_either_name_and_others_are_offered() {
    assert_eq!(ask(of("cudastreamsync")).all.calls, 2);
    let exact = ask(of("cudaStreamSynchronize_ptsz"));
    assert_eq!((exact.op.as_deref(), exact.all.calls), (Some("cudaStreamSynchronize_ptsz"), 1));
    assert_eq!(ask(of("cudaFree")).all.calls, 0);

    let folder = TempDir::new().unwrap();
    let path = folder.path().join("run.db");
    run(&path);
    let reader = Reader::open(&path).unwrap();
    match reader.stacks(&of("cudaMaloc")) {
        Err(StackError::UnknownOp { near, .. }) => assert_eq!(near[0], "cudaMalloc"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(reader.stacks(&of("sched_wakeup")), Err(StackError::Wakeup)));
}

#[test]
fn a_run_without_stacks_still_adds_up() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("run.db");
    crate::support::write(&path, &mut [call("cudaMalloc", 1, 5), call("cudaFree", 9, 6)]);
    let answer = Reader::open(&path).unwrap().stacks(&StackQuestion::default()).unwrap();
    assert!(!answer.file_has_stacks && answer.groups.is_empty());
    assert_eq!(answer.without_stack.unwrap().sums.total_ns, 11);
}
