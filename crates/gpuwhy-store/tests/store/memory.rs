// SPDX-License-Identifier: Apache-2.0
//! What is about GPU memory is played again as it was recorded, in the order of time.

use crate::support::{ORIGIN, end, new_run};
use gpuwhy_model::ops::{TorchOp, by_function, torch_op};
use gpuwhy_model::{Call, CallFlags, MemoryEvent, TensorEvent};
use gpuwhy_store::{GovernorRow, LetGo, MemoryFollow, Reader, Writer, is_written};
use std::ops::ControlFlow;
use std::path::Path;

fn tensor(at: u64, op: TorchOp) -> TensorEvent {
    TensorEvent {
        at_ns: ORIGIN + at,
        pid: 7,
        tid: 8,
        op: torch_op(op),
        device: 1,
        bytes: 512,
        address: u64::MAX - at,
        allocated: 4096 + at,
        reserved: 1 << 21,
        stack: Some(u64::MAX),
    }
}

fn malloc(at: u64) -> Call {
    Call {
        start_ns: ORIGIN + at,
        duration_ns: 9,
        pid: 7,
        tid: 8,
        op: by_function("cudaMalloc").unwrap().id,
        device: Some(1),
        stream: None,
        arg0: Some(1 << 21),
        arg1: Some(0x7000),
        ret: 0,
        flags: CallFlags::default(),
        weight: 1,
        stack: None,
    }
}

fn played(path: &Path, from: u64, to: Option<u64>) -> Vec<MemoryEvent> {
    let mut events = Vec::new();
    let count = Reader::open(path).unwrap().replay_memory(from, to, |event| {
        events.push(*event);
        ControlFlow::Continue(())
    });
    assert_eq!(count.unwrap(), events.len() as u64);
    events
}

#[test]
fn calls_and_reports_are_played_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = Writer::create(&path, &new_run()).unwrap().writer;
    let calls = [10, 30, 50].map(malloc);
    let tensors =
        [(20, TorchOp::Alloc), (30, TorchOp::Free), (60, TorchOp::OutOfMemory)].map(|(at, op)| tensor(at, op));
    writer.write_calls(&mut calls.clone()).unwrap();
    writer.write_tensors(&mut tensors.clone()).unwrap();
    for (action, function) in [
        ("detach", "cudaMalloc"),
        ("detach", "cudaLaunchKernel"),
        ("sample", "cudaLaunchKernel"),
        ("attach", "cudaMalloc"),
    ] {
        let op = by_function(function).map(|op| op.id);
        writer.add_governor(GovernorRow {
            at_ns: ORIGIN + 5,
            pid: Some(7),
            op,
            action: action.into(),
            reason: "hot".into(),
        });
    }
    assert!(writer.finish(&end()).problem.is_none());

    let call = |call: Call| MemoryEvent::Call(Call { start_ns: call.start_ns - ORIGIN, ..call });
    let told = |event: TensorEvent| MemoryEvent::Tensor(TensorEvent { at_ns: event.at_ns - ORIGIN, ..event });
    // A report at the time of a call follows it.
    let expected =
        [call(calls[0]), told(tensors[0]), call(calls[1]), told(tensors[1]), call(calls[2]), told(tensors[2])];
    assert_eq!(played(&path, 0, None), expected);
    assert_eq!(played(&path, 20, Some(50)), expected[1..4]);
    let reader = Reader::open(&path).unwrap();
    let mut first = 0;
    let once = reader.replay_memory(0, None, |_| {
        first += 1;
        ControlFlow::Break(())
    });
    assert_eq!((once.unwrap(), first), (1, 1));
    let let_go = |op: &str, action: &str| LetGo { at_ns: 5, pid: Some(7), op: Some(op.into()), action: action.into() };
    let expected =
        [let_go("cudaMalloc", "detach"), let_go("cudaLaunchKernel", "sample"), let_go("cudaMalloc", "attach")];
    assert_eq!(reader.memory_let_go().unwrap(), expected);
}

#[test]
fn what_is_new_is_played_once_by_any_reader_while_the_run_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = Writer::create(&path, &new_run()).unwrap().writer;
    let mut follow = MemoryFollow::default();
    let mut new = |to: u64| {
        let mut at = Vec::new();
        let count = Reader::open(&path).unwrap().replay_new_memory(&mut follow, to, |event| {
            at.push((event.at_ns(), event.pid()));
            ControlFlow::Continue(())
        });
        assert_eq!(count.unwrap(), at.len() as u64);
        at
    };
    assert_eq!(new(5), []);
    writer.write_calls(&mut [10, 30].map(malloc)).unwrap();
    writer.write_tensors(&mut [tensor(20, TorchOp::Alloc)]).unwrap();
    writer.commit().unwrap();
    assert_eq!(new(25), [(10, 7), (20, 7)], "what began later is left for the next time");
    // Another process and function: what they are is read when they are met.
    let other = Call { pid: 9, op: by_function("cudaFree").unwrap().id, ..malloc(40) };
    writer.write_calls(&mut [other]).unwrap();
    writer.write_tensors(&mut [TensorEvent { pid: 11, ..tensor(50, TorchOp::Free) }]).unwrap();
    writer.commit().unwrap();
    assert!(is_written(&path).unwrap());
    assert_eq!(new(25), [], "nothing is played twice");
    assert_eq!(new(u64::MAX), [(30, 7), (40, 9), (50, 11)]);
    assert!(writer.finish(&end()).problem.is_none(), "a reader that is closed is not in the way");
    assert!(!is_written(&path).unwrap());
    assert_eq!(new(u64::MAX), []);
}
