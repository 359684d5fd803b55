// SPDX-License-Identifier: Apache-2.0
//! What libraries tell beside their calls: kept whole, counted as events where it is one, and outlived by no failure.

use crate::support::{ORIGIN, SmallDisk, ask, end, new_run, number};
use gpuwhy_model::ops::{TorchOp, by_function, torch_op};
use gpuwhy_model::{Call, CallFlags, Communicator, FunctionName, Library, Split, TensorEvent, Transfer, Unwatched};
use gpuwhy_store::{AlertRow, GovernorRow, Reader, UnwatchedSpan, Writer};
use std::path::Path;

fn tensor(i: u64, op: TorchOp) -> TensorEvent {
    TensorEvent {
        at_ns: ORIGIN + i * 1000,
        pid: 7,
        tid: 8,
        op: torch_op(op),
        device: 1,
        bytes: 512 * (i + 1),
        address: 0x7000_0000_0000 + i,
        allocated: 4096 + i,
        reserved: 1 << 21,
        stack: Some(5),
    }
}

fn transfer(i: u64, communicator: u64) -> Transfer {
    let call = Call {
        start_ns: ORIGIN + i,
        duration_ns: 9,
        pid: 7,
        tid: 8,
        op: by_function("ncclAllReduce").unwrap().id,
        device: Some(0),
        stream: Some(3),
        arg0: Some(4000),
        arg1: Some(communicator),
        ret: 0,
        flags: CallFlags::default(),
        weight: 1,
        stack: None,
    };
    Transfer { call, sequence: Some(i as u32), peer: (i == 2).then_some(1) }
}

fn communicator(at: u64, handle: u64, rank: u32, split: Option<Split>) -> Communicator {
    Communicator {
        at_ns: ORIGIN + at,
        pid: 7,
        tid: 8,
        op: by_function("ncclCommInitRank").unwrap().id,
        device: None,
        handle,
        id: Some(u64::MAX),
        ranks: Some(4),
        rank: Some(rank),
        split,
    }
}

/// Tells a run some of everything.
pub(crate) fn tell(writer: &mut Writer) {
    let mut tensors: Vec<TensorEvent> =
        (0..100).map(|i| tensor(99 - i, if i % 2 == 0 { TorchOp::Free } else { TorchOp::Alloc })).collect();
    tensors.push(tensor(200, TorchOp::OutOfMemory));
    writer.write_tensors(&mut tensors).unwrap();
    writer.add_communicators(&[communicator(1, 0xc0, 3, None), communicator(50, 0xc0, 2, None)]);
    let split = Split { parent: 0xc0, color: -1, key: 7 };
    writer.add_communicators(&[Communicator {
        id: None,
        ranks: None,
        rank: None,
        ..communicator(60, 0xd0, 0, Some(split))
    }]);
    writer.add_transfers(&[transfer(2, 0xc0), transfer(70, 0xc0), transfer(71, 0xd0), transfer(72, 0xe0)]);
    let name = |handle, name: &str| FunctionName { at_ns: ORIGIN, pid: 7, handle, name: name.to_owned() };
    writer.add_function_names([name(1, "gemm"), name(u64::MAX, "a\u{1b}b")]);
    for to_ns in [ORIGIN + 30, u64::MAX] {
        let path = "/x/libcuda.so.1".to_owned();
        writer.add_unwatched(Unwatched { pid: 9, library: Library::Driver, path, from_ns: ORIGIN + 10, to_ns });
    }
    let op = by_function("cuLaunchKernel").map(|op| op.id);
    for (at, action) in [(100, "sample"), (200, "detach"), (300, "attach"), (400, "detach")] {
        let (action, reason) = (action.to_owned(), "too much".to_owned());
        writer.add_governor(GovernorRow { at_ns: ORIGIN + at, pid: Some(7), op, action, reason });
    }
    let (action, reason) = ("stacks_off".to_owned(), "too much".to_owned());
    writer.add_governor(GovernorRow { at_ns: ORIGIN + 450, pid: None, op: None, action, reason });
    for row in [alert(1, Some(7), None), alert(2, None, Some(1)), alert(3, Some(7), None)] {
        writer.add_alert(row);
    }
    writer.add_alert(AlertRow { cleared_ns: Some(ORIGIN + 700), ..alert(1, Some(7), None) });
}

fn alert(id: u64, pid: Option<u32>, gpu: Option<u32>) -> AlertRow {
    AlertRow {
        id,
        at_ns: ORIGIN + 500 + id,
        cleared_ns: None,
        level: "warning".into(),
        kind: "memory".into(),
        rule: "memory>85%".into(),
        pid,
        device: pid.map(|_| 0),
        gpu,
        value: 85.5,
        threshold: gpu.map(|_| 85.0),
        text: "much".into(),
    }
}

fn write(path: &Path) {
    let mut writer = Writer::create(path, &new_run()).unwrap().writer;
    tell(&mut writer);
    assert!(writer.finish(&end()).problem.is_none());
}

#[test]
fn alerts_are_kept_once_with_their_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = Writer::create(&path, &new_run()).unwrap().writer;
    tell(&mut writer);
    writer.commit().unwrap();
    // Over after it was committed.
    writer.add_alert(AlertRow { cleared_ns: Some(ORIGIN + 900), ..alert(3, Some(7), None) });
    assert!(writer.finish(&end()).problem.is_none());
    let reader = Reader::open(&path).unwrap();
    let since = |row: AlertRow, cleared_ns: Option<u64>| AlertRow { at_ns: row.at_ns - ORIGIN, cleared_ns, ..row };
    let expected = [
        since(alert(1, Some(7), None), Some(700)),
        since(alert(2, None, Some(1)), None),
        since(alert(3, Some(7), None), Some(900)),
    ];
    assert_eq!(reader.alerts(0, u64::MAX).unwrap(), expected);
    assert_eq!(reader.alerts(502, 502).unwrap(), expected[1..2]);
    let sql = "SELECT id, at_ns, level, kind, rule, pid, device, gpu, value, threshold, text, cleared_ns FROM alerts";
    let rows = ask(&reader, &format!("{sql} WHERE id < 3")).unwrap();
    assert_eq!(
        rows,
        [
            "1|501|warning|memory|memory>85%|7|0|NULL|85.5|NULL|much|700",
            "2|502|warning|memory|memory>85%|NULL|NULL|1|85.5|85|much|NULL",
        ]
    );
}

#[test]
fn everything_told_is_in_its_view() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    write(&path);
    let reader = Reader::open(&path).unwrap();
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM allocations WHERE op = 'torchAlloc' AND stack_id = 5"), 50);
    assert_eq!(number(&reader, "SELECT SUM(bytes) FROM allocations"), 512 * (100 * 101 / 2 + 201));
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM events WHERE layer = 'torch' AND bytes = arg0"), 101);
    assert_eq!(number(&reader, "SELECT SUM(calls) FROM seconds WHERE op LIKE 'torch%' AND device = 1"), 101);
    assert_eq!(number(&reader, "SELECT events_seen + events_stored FROM sessions"), 202);
    let order =
        "SELECT COUNT(*) FROM (SELECT allocated - LAG(allocated) OVER (ORDER BY timestamp) AS d FROM allocations)
        WHERE d < 0";
    assert_eq!(number(&reader, order), 0, "sorted by time");
    let ranks = "SELECT COALESCE(rank, 'none') || ' ' || sequence || ' ' || COALESCE(peer, '-') FROM collectives";
    assert_eq!(ask(&reader, ranks).unwrap(), ["3 2 1", "2 70 -", "none 71 -", "none 72 -"], "the newest before it");
    assert_eq!(number(&reader, "SELECT color FROM communicators WHERE parent = 192 AND ranks IS NULL"), -1);
    assert_eq!(number(&reader, "SELECT id FROM communicators WHERE rank = 3"), -1, "by its bits");
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM functions WHERE handle IN (1, -1)"), 2);
    assert_eq!(number(&reader, "SELECT duration_ns FROM unwatched WHERE to_ns = 30"), 20);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM unwatched WHERE to_ns IS NULL AND duration_ns IS NULL"), 1);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM governor WHERE op = 'cuLaunchKernel' AND pid = 7"), 4);
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM governor WHERE op IS NULL AND pid IS NULL"), 1);
}

#[test]
fn times_without_launches_are_facts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    write(&path);
    let never = i64::MAX as u64;
    let unwatched = Reader::open(&path).unwrap().facts(0, None).unwrap().unwatched;
    let span = |from_ns, to_ns, pid| UnwatchedSpan { from_ns, to_ns, pid };
    let (all, one) = (None, Some(7));
    assert_eq!(unwatched, [span(10, 30, all), span(10, never, all), span(200, 300, one), span(400, never, one)]);
}

#[test]
fn reports_of_the_allocator_outlive_a_full_disk() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let path = disk.path().join("run.db");
    let mut writer = Writer::create(&path, &new_run()).unwrap().writer;
    let filling = disk.path().join("filling");
    while std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(&filling)
        .and_then(|mut file| std::io::Write::write_all(&mut file, &[1; 4096]))
        .is_ok()
    {}
    let mut failed = false;
    for part in 0..20 {
        let mut events: Vec<TensorEvent> = (0..1000).map(|i| tensor(part * 1000 + i, TorchOp::Alloc)).collect();
        failed |= writer.write_tensors(&mut events).is_err() || writer.commit().is_err();
    }
    assert!(failed, "the disk was full");
    std::fs::remove_file(&filling).unwrap();
    writer.commit().unwrap();
    assert!(writer.finish(&end()).problem.is_none());
    let reader = Reader::open(&path).unwrap();
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM allocations"), 20_000);
    assert_eq!(number(&reader, "SELECT events_lost FROM sessions"), 0);
}
