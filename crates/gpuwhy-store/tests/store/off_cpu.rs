// SPDX-License-Identifier: Apache-2.0
//! Times off the CPU go in and come out whole, as rows of their own and as events.

use crate::support::*;
use gpuwhy_model::{OffCpu, Reason, Wait, WokenBy};
use gpuwhy_store::Reader;
use gpuwhy_store::schema::VIEWS;

const ALL: &str = "SELECT duration_ns, pid, tid, reason, wait, file, syscall, object, timeout_ns, io_wait, blocked_ns,
    ready_ns, woken_by, waker_pid, waker_tid, left_cpu, cpu, unfinished, weight, stack_id FROM off_cpu";

/// Rows of every kind: all reasons, waits and wakers, ties, and values at the ends of their ranges.
fn any_rows(count: u64, seed: u64) -> Vec<OffCpu> {
    let mut dice = Dice(seed);
    let syscalls = [None, Some(libc::SYS_futex as u16), Some(libc::SYS_read as u16), Some(9_000), Some(u16::MAX)];
    (0..count)
        .map(|i| {
            let wait = Wait::ALL[dice.below(Wait::ALL.len() as u64) as usize];
            let woken_by = WokenBy::ALL[dice.below(6) as usize];
            let has_file = matches!(wait, Wait::File | Wait::Socket | Wait::Gpu | Wait::BlockDevice | Wait::CharDevice);
            let files = [0, 0xEF53, 2, u32::MAX, 195 << 20 | 3];
            let duration_ns = dice.next() >> (4 + dice.below(50));
            let spread = dice.below(64);
            OffCpu {
                start_ns: ORIGIN + i / 3 * 1_000,
                duration_ns,
                ready_ns: dice.below(duration_ns + 1),
                pid: if dice.below(9) == 0 { u32::MAX } else { 100 + dice.below(4) as u32 },
                tid: if dice.below(9) == 0 { u32::MAX } else { 100 + dice.below(9) as u32 },
                reason: Reason::ALL[dice.below(7) as usize],
                wait,
                syscall: syscalls[dice.below(5) as usize],
                file: if has_file { files[dice.below(5) as usize] } else { 0 },
                object: if dice.below(3) == 0 { 0 } else { dice.next() >> spread },
                timeout_ns: (dice.below(3) == 0).then(|| dice.below(1 << 62)),
                io_wait: dice.below(2) == 0,
                woken_by,
                waker_pid: if woken_by == WokenBy::Nobody { 0 } else { dice.below(5) as u32 },
                waker_tid: if woken_by == WokenBy::Nobody { 0 } else { u32::MAX - dice.below(5) as u32 },
                left_cpu: if dice.below(9) == 0 { u16::MAX } else { dice.below(4) as u16 },
                cpu: if dice.below(9) == 0 { u16::MAX } else { dice.below(4) as u16 },
                unfinished: dice.below(9) == 0,
                weight: 1,
                stack: dice.below(3).checked_sub(1),
            }
        })
        .collect()
}

fn file_name(row: &OffCpu) -> &'static str {
    match (row.file, row.wait) {
        (0, _) => "NULL",
        (0xEF53, Wait::File) => "ext4",
        (0xEF53, Wait::Socket) => "family 61267",
        (0xEF53, _) => "0:61267",
        (2, Wait::File) => "0x2",
        (2, Wait::Socket) => "inet",
        (2, _) => "0:2",
        (u32::MAX, Wait::File) => "0xffffffff",
        (u32::MAX, Wait::Socket) => "family 4294967295",
        (u32::MAX, _) => "4095:1048575",
        (_, Wait::File) => "0xc300003",
        (_, Wait::Socket) => "family 204472323",
        _ => "195:3",
    }
}

fn line(row: &OffCpu) -> String {
    let null = |text: &str| if text.is_empty() { "NULL".to_owned() } else { text.to_owned() };
    let syscall = match row.syscall {
        None => "NULL".to_owned(),
        Some(number) if i64::from(number) == libc::SYS_futex => "futex".to_owned(),
        Some(number) if i64::from(number) == libc::SYS_read => "read".to_owned(),
        Some(number) => format!("syscall {number}"),
    };
    let waker = |n: u32| if row.woken_by == WokenBy::Nobody { "NULL".into() } else { n.to_string() };
    [
        row.duration_ns.to_string(),
        row.pid.to_string(),
        row.tid.to_string(),
        row.reason.name().to_owned(),
        null(row.wait.name()),
        file_name(row).to_owned(),
        syscall,
        if row.object == 0 { "NULL".into() } else { (row.object as i64).to_string() },
        row.timeout_ns.map_or("NULL".into(), |ns| ns.to_string()),
        u8::from(row.io_wait).to_string(),
        (row.duration_ns - row.ready_ns).to_string(),
        row.ready_ns.to_string(),
        null(row.woken_by.name()),
        waker(row.waker_pid),
        waker(row.waker_tid),
        row.left_cpu.to_string(),
        row.cpu.to_string(),
        u8::from(row.unfinished).to_string(),
        "1".to_owned(),
        row.stack.map_or("NULL".into(), |id| id.to_string()),
    ]
    .join("|")
}

#[test]
fn every_field_of_every_row_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut rows = any_rows(6_000, 21);
    let mut writer = create(&path);
    for batch in rows.chunks_mut(700) {
        batch.reverse();
        writer.write_off_cpu(batch).unwrap();
    }
    assert!(writer.finish(&end()).problem.is_none());
    let reader = Reader::open(&path).unwrap();
    let mut expected: Vec<String> = rows.iter().map(line).collect();
    let mut stored = ask(&reader, ALL).unwrap();
    expected.sort();
    stored.sort();
    assert_eq!(stored, expected);
    assert_eq!(number(&reader, "SELECT COUNT(DISTINCT timestamp) FROM off_cpu"), 6_000);
    // Three rows in each microsecond: ties are moved by a nanosecond or two.
    assert_eq!(number(&reader, "SELECT MAX(timestamp % 1000) FROM off_cpu"), 2);
    let waits = "SELECT COUNT(DISTINCT wait), COUNT(DISTINCT reason), COUNT(DISTINCT woken_by) FROM off_cpu";
    assert_eq!(ask(&reader, waits).unwrap(), ["21|7|5"]);
}

#[test]
fn they_are_events_counted_and_summed_like_calls() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut rows: Vec<OffCpu> = (0..900).map(|i| off_cpu(i * 10_000, 4_000 + i, 1_000)).collect();
    let mut writer = create(&path);
    writer.write_off_cpu(&mut rows).unwrap();
    writer.write_calls(&mut [call("cudaMalloc", 5, 7), call("block_io", 5, 8)]).unwrap();
    let live: u64 = writer.totals().map(|(_, totals)| totals.calls).sum();
    assert_eq!((live, writer.stored(), writer.lost()), (902, 902, 0));
    assert_eq!(writer.finish(&end()).stored, 902);
    let reader = Reader::open(&path).unwrap();
    let total: u64 = rows.iter().map(|row| row.duration_ns).sum();
    let by_op = "SELECT op, function, layer, class, COUNT(*), SUM(duration_ns) FROM events GROUP BY op ORDER BY op";
    assert_eq!(
        ask(&reader, by_op).unwrap(),
        [
            "block_io|block_io|kernel|io|1|8".to_owned(),
            "cudaMalloc|cudaMalloc|runtime|alloc|1|7".to_owned(),
            format!("sched_switch|sched_switch|kernel|sched|900|{total}"),
            "sched_wakeup|sched_wakeup|kernel|sched|900|0".to_owned(),
        ]
    );
    let seconds = "SELECT SUM(calls), SUM(errors), SUM(total_ns), SUM(bytes), MAX(device) FROM seconds
        WHERE op = 'sched_switch'";
    assert_eq!(ask(&reader, seconds).unwrap(), [format!("900|0|{total}|0|NULL")]);
    let session = reader.session().unwrap();
    assert_eq!((session.events_seen, session.events_stored, session.events_lost), (902, 902, 0));
    // A join with the names drops none of them, and calls have nothing in the new columns.
    assert_eq!(number(&reader, "SELECT COUNT(*) FROM events JOIN process_names USING (pid)"), 902 + 900);
    let new = "COALESCE(reason, wait, syscall, ready_ns, woken_by, waker_pid, waker_tid, cpu)";
    assert_eq!(number(&reader, &format!("SELECT COUNT({new}) FROM events WHERE class <> 'sched'")), 0);
    assert_eq!(ask(&reader, "SELECT DISTINCT pid, tid FROM threads ORDER BY tid").unwrap(), ["100|101", "200|201"]);
}

#[test]
fn a_wake_up_stands_at_the_moment_the_thread_could_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let woken = off_cpu(1_000, 500, 120);
    let mut rows = [
        woken,
        OffCpu { woken_by: WokenBy::Nobody, reason: Reason::Preempted, ..off_cpu(3_000, 50, 50) },
        OffCpu { unfinished: true, ..off_cpu(5_000, 900, 10) },
        OffCpu { woken_by: WokenBy::Timer, waker_pid: 0, waker_tid: 0, ..off_cpu(7_000, 10, 0) },
    ];
    let mut writer = create(&path);
    writer.write_off_cpu(&mut rows).unwrap();
    writer.finish(&end());
    let reader = Reader::open(&path).unwrap();
    let wakeups = "SELECT timestamp, duration_ns, pid, tid, op, unfinished, stack_id, reason, wait, syscall, ready_ns,
        woken_by, waker_pid, waker_tid, cpu FROM events WHERE op = 'sched_wakeup' ORDER BY timestamp";
    assert_eq!(
        ask(&reader, wakeups).unwrap(),
        [
            "1380|0|200|201|sched_wakeup|0|NULL|asleep|futex|futex|120|thread|300|301|1",
            "7010|0|200|201|sched_wakeup|0|NULL|asleep|futex|futex|0|timer|0|0|1",
        ]
    );
    assert_eq!(
        ask(&reader, "SELECT timestamp FROM events WHERE timestamp BETWEEN 1380 AND 3000 ORDER BY timestamp").unwrap(),
        ["1380", "3000"]
    );
}

#[test]
fn what_began_before_the_run_is_cut_and_its_end_stays_true() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let early = |before: u64| OffCpu { start_ns: ORIGIN - before, ..off_cpu(0, before + 600, 100) };
    let mut rows = [
        OffCpu { timeout_ns: Some(1_500), ..early(1_000) },
        OffCpu { ready_ns: 5_000, ..early(70_000) },
        OffCpu { start_ns: 3, ..off_cpu(0, 40, 0) },
    ];
    let mut writer = create(&path);
    writer.write_off_cpu(&mut rows).unwrap();
    writer.finish(&end());
    let reader = Reader::open(&path).unwrap();
    assert_eq!(
        ask(&reader, "SELECT timestamp, duration_ns, ready_ns, timeout_ns FROM off_cpu ORDER BY duration_ns, ready_ns")
            .unwrap()
            .iter()
            .map(|line| line.split_once('|').unwrap().1)
            .collect::<Vec<_>>(),
        ["0|0|NULL", "600|100|500", "600|600|NULL"]
    );
    assert_eq!(number(&reader, "SELECT MAX(timestamp) FROM off_cpu"), 2);
    assert_eq!(number(&reader, "SELECT SUM(total_ns) FROM seconds"), 1_200);
}

#[test]
fn a_run_without_calls_has_a_length_and_every_view() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    writer.write_off_cpu(&mut [off_cpu(1_000, 10, 5), off_cpu(9_000, 10, 5)]).unwrap();
    writer.commit().unwrap();
    let reader = Reader::open(&path).unwrap();
    assert_eq!(number(&reader, "SELECT duration_ns FROM sessions"), 9_000);
    assert_eq!(reader.session().unwrap().duration_ns, 9_000);
    for view in VIEWS {
        ask(&reader, &format!("SELECT * FROM {view}")).unwrap();
    }
}
