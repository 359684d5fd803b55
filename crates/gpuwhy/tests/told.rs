// SPDX-License-Identifier: Apache-2.0
//! What libraries tell beside their calls: PyTorch's allocator, NCCL's communicators, graphs, and names of functions.
#![allow(clippy::unwrap_used)]

mod common;

use common::compare::{assert_same_calls, recorded_sums, true_sums};
use common::jobs::{assert_exact, assert_nothing_lost, report, rows};
use common::{Place, can_trace, number, one_at_a_time, sim, succeed, text, ways_of_attaching};
use rusqlite::Connection;
use simgpu::log::detail::{Collective, Communicator, Detail, Report};
use simgpu::log::{Call, Truth};
use std::collections::{BTreeMap, BTreeSet};

/// The ways of attaching, with the libraries as they are, and the best one with those that begin with endbr64.
fn ways() -> Vec<(&'static str, bool)> {
    let ways = ways_of_attaching();
    let best = ways[0];
    ways.into_iter().map(|probes| (probes, false)).chain([(best, true)]).collect()
}

/// Lets gpuwhy start a simjob play; what it said.
fn trace_play(place: &Place, probes: &str, cet: bool, play: &[&str]) -> String {
    let cudart = if cet { &sim().cet_cudart } else { &sim().cudart };
    let mut command = place.trace();
    command.env("LD_LIBRARY_PATH", cudart.parent().unwrap()).env("SIMGPU_DEVICES", "2");
    command.args(["--quiet", "--probes", probes, "--"]).arg(&sim().simjob).arg(play[0]);
    text(&succeed(command.arg("--cudart").arg(cudart).args(&play[1..])))
}

/// Calls in the order of their beginning, with what `pick` sees in them.
fn picked<T>(truth: &Truth, pick: fn(&Detail) -> Option<T>) -> Vec<(Call, T)> {
    let mut calls: Vec<(Call, T)> = truth
        .calls()
        .filter_map(|call| call.detail.as_ref().and_then(pick).map(|found| (call.clone(), found)))
        .collect();
    calls.sort_by_key(|(call, _)| (call.enter_ns, call.depth));
    calls
}

fn int<T: std::str::FromStr<Err = std::num::ParseIntError>>(word: &str) -> T {
    word.parse().unwrap()
}

/// Rows of a query, each made by `read`.
fn select<T>(db: &Connection, sql: &str, read: impl Fn(&rusqlite::Row<'_>) -> rusqlite::Result<T>) -> Vec<T> {
    db.prepare(sql).unwrap().query_map([], |row| read(row)).unwrap().map(Result::unwrap).collect()
}

/// One report of the allocator: op, bytes, address, allocated, reserved, device, process, thread.
type Told = (String, i64, i64, i64, i64, Option<i64>, u32, u32);

fn told_truly(call: &Call, report: &Report) -> Told {
    let op = match (call.function.contains("OutOfMemory"), report.size < 0) {
        (true, _) => "torchOutOfMemory",
        (false, true) => "torchFree",
        (false, false) => "torchAlloc",
    };
    let (allocated, reserved) = (report.total_allocated as i64, report.total_reserved as i64);
    let (size, device) = (report.size.abs(), Some(i64::from(report.device_index)));
    (op.to_owned(), size, call.pointer as i64, allocated, reserved, device, call.pid, call.tid)
}

/// The allocator's reports as the run file has them, with their times on the log's clock.
fn told(db: &Connection) -> Vec<(u64, Told)> {
    let origin = number(db, "SELECT start_monotonic_ns FROM sessions");
    let sql = "SELECT timestamp, op, bytes, address, allocated, reserved, device, pid, tid FROM allocations \
               ORDER BY timestamp";
    select(db, sql, |row| {
        let told =
            (row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?, row.get(7)?, row.get(8)?);
        Ok(((origin + row.get::<_, i64>(0)?) as u64, told))
    })
}

/// Insists that the run file has exactly the log's reports, in their order.
fn assert_same_reports(truth: &Truth, db: &Connection) {
    let expected = picked(truth, |detail| if let Detail::Report(found) = detail { Some(*found) } else { None });
    let recorded = told(db);
    for ((call, report), (at_ns, row)) in expected.iter().zip(&recorded) {
        assert_eq!(*row, told_truly(call, report), "{call:?}");
        assert!(*at_ns <= call.enter_ns + 100, "{call:?} began before {at_ns}");
    }
    assert_eq!(recorded.len(), expected.len(), "reports");
}

#[test]
fn every_report_of_pytorchs_allocator_is_recorded() {
    if !can_trace() {
        return;
    }
    for (probes, cet) in ways() {
        let (_lock, place) = (one_at_a_time(), Place::new());
        let said = trace_play(&place, probes, cet, &["torch", "--rounds", "4"]);
        let (truth, db, report) = (place.truth(), place.run_file(), report(&said));
        assert_same_reports(&truth, &db);
        assert_nothing_lost(&db);
        // The job calls the runtime alone. The log has no entry for cudaGetDeviceCount, and so counts what it does as
        // the job's own.
        let mut sums = true_sums(&truth);
        sums.retain(|function, _| function.starts_with("cuda"));
        assert_eq!(recorded_sums(&db, &truth), sums);
        for (op, key) in [("torchAlloc", "allocs"), ("torchFree", "frees"), ("torchOutOfMemory", "out_of_memory")] {
            let made = report[key].as_i64().unwrap();
            let summed = format!("SELECT SUM(calls) FROM seconds WHERE op = '{op}'");
            assert_eq!(number(&db, &summed), made, "{op} in seconds, {probes} cet {cet}");
            assert_eq!(number(&db, &format!("SELECT COUNT(*) FROM allocations WHERE op = '{op}'")), made, "{op}");
        }
        assert_eq!(number(&db, "SELECT COUNT(DISTINCT device) FROM allocations"), 2, "both devices");
        assert_checkpoints(&db, &said);
    }
}

/// What the job itself says it holds is what the last report before said.
fn assert_checkpoints(db: &Connection, said: &str) {
    let (recorded, checkpoints) = (told(db), rows(said, "checkpoint"));
    assert_eq!(checkpoints.len(), (4 * 2 + 2) * 2);
    for row in checkpoints {
        let (time, device, held) = (int::<u64>(row[0]), int::<i64>(row[1]), int::<i64>(row[2]));
        let last = recorded.iter().rfind(|(at_ns, told)| *at_ns < time && told.5 == Some(device));
        assert_eq!(last.unwrap().1.3, held, "allocated at {row:?}");
    }
}

/// A communicator: function, handle, ranks, rank, parent, color, key.
type Made = (String, i64, Option<i32>, Option<i32>, Option<i64>, Option<i32>, Option<i32>);

/// Communicators that calls gave back; one that a split leaves out gets none, and `ncclCommInitAll` makes several.
fn communicators(truth: &Truth) -> Vec<(Call, Communicator)> {
    let all = picked(truth, |detail| if let Detail::Communicator(found) = detail { Some(*found) } else { None });
    let makes = |name: &str| name.contains("InitRank") || name == "ncclCommSplit";
    all.into_iter().filter(|(call, found)| makes(&call.function) && found.handle != 0).collect()
}

fn made_truly((call, found): &(Call, Communicator)) -> Made {
    let (function, handle) = (call.function.to_string(), found.handle as i64);
    if found.parent == 0 {
        return (function, handle, Some(found.ranks), Some(found.rank), None, None, None);
    }
    (function, handle, None, None, Some(found.parent as i64), Some(found.color), Some(found.key))
}

/// Insists that communicators are the log's, and that ids are equal exactly where NCCL's unique ids are.
fn assert_same_communicators(truth: &Truth, db: &Connection) {
    let mut expected = communicators(truth);
    expected.sort_by_key(|(call, _)| (call.pid, call.enter_ns));
    // Of those made all at once the log knows the first alone; they have a test of their own.
    let sql = "SELECT function, communicator, ranks, rank, parent, color, key, id FROM communicators \
               WHERE function <> 'ncclCommInitAll' ORDER BY pid, timestamp";
    let recorded: Vec<(Made, Option<i64>)> = select(db, sql, |row| {
        let made = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?);
        Ok((made, row.get(7)?))
    });
    let made: Vec<Made> = recorded.iter().map(|(made, _)| made.clone()).collect();
    assert_eq!(made, expected.iter().map(made_truly).collect::<Vec<_>>());
    let (mut ids, mut unique) = (BTreeMap::new(), BTreeMap::new());
    for ((_, found), (made, id)) in expected.iter().zip(&recorded) {
        assert_eq!(id.is_none(), found.parent != 0, "only one that was split off has no id: {made:?}");
        let Some(id) = id else { continue };
        assert_eq!(ids.entry(found.id).or_insert(*id), id, "one unique id, one id");
        assert_eq!(unique.entry(*id).or_insert(found.id), &found.id, "one id, one unique id");
    }
}

/// A transfer: op, bytes, communicator, sequence, peer, stream, what it returned.
type Transfer = (String, i64, i64, Option<i64>, Option<i32>, Option<i64>, Option<i64>);

fn transferred_truly((call, found): &(Call, Collective)) -> Transfer {
    let peer = (found.peer >= 0).then_some(found.peer);
    let (sequence, stream) = (Some(found.sequence as i64), Some(call.stream as i64));
    let op = call.function.to_string();
    (op, call.bytes as i64, found.communicator as i64, sequence, peer, stream, Some(i64::from(call.ret)))
}

/// Insists that collectives, sends and receives are the log's, in their order.
fn assert_same_transfers(truth: &Truth, db: &Connection) {
    let expected = picked(truth, |detail| if let Detail::Collective(found) = detail { Some(*found) } else { None });
    let sql = "SELECT op, bytes, communicator, sequence, peer, stream, ret FROM collectives ORDER BY timestamp";
    let recorded: Vec<Transfer> = select(db, sql, |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?))
    });
    for (call, got) in expected.iter().zip(&recorded).take(expected.len() - MADE_AT_ONCE) {
        assert_eq!(*got, transferred_truly(call), "{call:?}");
    }
    assert_eq!(recorded.len(), expected.len(), "transfers");
}

/// The job's last transfers, one each, go over communicators that one call of `ncclCommInitAll` made: another test's.
const MADE_AT_ONCE: usize = 2;

#[test]
fn communicators_made_all_at_once_are_not_taken_for_older_ones_at_the_same_address() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let said = trace_play(&place, "session", false, &["nccl", "--rounds", "3"]);
    let all = rows(&said, "communicator").into_iter().filter(|row| row[0].starts_with("all"));
    let expected: Vec<_> =
        all.map(|row| (int::<i64>(row[1]), Some(int::<i64>(row[2])), Some(int(row[3])), Some(0))).collect();
    let sql = "SELECT communicator, ranks, rank, sequence FROM collectives WHERE timestamp > \
               (SELECT timestamp FROM events WHERE op = 'ncclCommInitAll') ORDER BY timestamp";
    type Row = (i64, Option<i64>, Option<i64>, Option<i64>);
    let recorded: Vec<Row> =
        select(&place.run_file(), sql, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)));
    assert_eq!(recorded, expected, "handle, ranks, rank, transfers before it");
}

#[test]
fn communicators_and_what_goes_over_them_are_recorded() {
    if !can_trace() {
        return;
    }
    for (probes, cet) in ways() {
        let (_lock, place) = (one_at_a_time(), Place::new());
        let said = trace_play(&place, probes, cet, &["nccl", "--rounds", "30"]);
        let (truth, db) = (place.truth(), place.run_file());
        assert_exact(&place);
        assert_same_calls(&truth, &db);
        assert!(truth.counters()["cuLaunchKernelEx"].inner_calls > 0, "NCCL launches");
        assert_eq!(number(&db, "SELECT COUNT(*) FROM events WHERE class = 'launch'"), 0, "not the program's own");
        assert_same_communicators(&truth, &db);
        assert_ranks_as_said(&db, &said);
        assert_same_transfers(&truth, &db);
    }
}

/// The job says which communicators it has: handle, ranks, rank, transfers.
fn assert_ranks_as_said(db: &Connection, said: &str) {
    for row in rows(said, "communicator").iter().filter(|row| ["world", "pair", "late"].contains(&row[0])) {
        let (handle, ranks, rank) = (int::<i64>(row[1]), int::<i64>(row[2]), int::<i64>(row[3]));
        let sql = format!(
            "SELECT COUNT(*) FROM collectives WHERE communicator = {handle} AND ranks = {ranks} AND rank = {rank} \
             AND timestamp < (SELECT timestamp FROM events WHERE op = 'ncclCommInitAll')"
        );
        assert_eq!(number(db, &sql), int::<i64>(row[4]), "{row:?}");
    }
}

#[test]
fn the_same_unique_id_is_the_same_id_in_every_rank() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let mut command = place.trace();
    succeed(command.args(["--quiet", "--", "python3", "-c", RANKS]).arg(&sim().nccl));
    let (truth, db) = (place.truth(), place.run_file());
    assert_same_communicators(&truth, &db);
    assert_eq!(communicators(&truth).iter().map(|(_, c)| c.id).collect::<BTreeSet<_>>().len(), 3);
    let ranks = "SELECT COUNT(*) FROM (SELECT id FROM communicators GROUP BY id HAVING COUNT(DISTINCT pid) = 4 \
                 AND COUNT(DISTINCT rank) = 4)";
    assert_eq!(number(&db, ranks), 3, "each communicator has its four ranks in four processes");
}

/// Four processes make three communicators of four ranks.
const RANKS: &str = "
import ctypes, os, sys
class Id(ctypes.Structure):
    _fields_ = [('internal', ctypes.c_char * 128)]
nccl = ctypes.CDLL(sys.argv[1])
nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, Id, ctypes.c_int]
ids = [Id() for _ in range(3)]
for unique in ids:
    assert nccl.ncclGetUniqueId(ctypes.byref(unique)) == 0
children = []
for rank in range(4):
    pid = os.fork()
    if pid == 0:
        for unique in ids:
            communicator = ctypes.c_void_p()
            assert nccl.ncclCommInitRank(ctypes.byref(communicator), 4, unique, rank) == 0
        os._exit(0)
    children.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
";

#[test]
fn graphs_are_counted_and_what_is_captured_into_them_is_recorded() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let said = trace_play(&place, "session", false, &["graphs"]);
    assert_exact(&place);
    assert_same_calls(&place.truth(), &place.run_file());
    let db = place.run_file();
    let graphs: BTreeSet<(i64, i64, i64)> =
        select(&db, "SELECT graph, exec, launches FROM graphs", |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .into_iter()
            .collect();
    let rows = rows(&said, "graph");
    let expected: BTreeSet<_> = rows.iter().map(|row| (int(row[0]), int(row[1]), int(row[3]))).collect();
    assert_eq!(graphs, expected);
    assert_eq!(graphs.iter().map(|graph| graph.2).collect::<BTreeSet<_>>(), BTreeSet::from([7, 20]));
    let captured: i64 = rows.iter().map(|row| int::<i64>(row[2])).sum();
    assert_eq!(number(&db, "SELECT COUNT(*) FROM events WHERE op = 'cudaLaunchKernel'"), captured);
    assert_eq!(number(&db, "SELECT COUNT(*) FROM events WHERE op = 'cudaGraphLaunch'"), 27);
}

/// Launches of a function, by the newest name that its handle had then.
fn launches_of(db: &Connection, name: &str) -> i64 {
    let sql = format!(
        "SELECT COUNT(*) FROM events AS e WHERE class = 'launch' AND (SELECT name FROM functions AS f \
         WHERE f.pid = e.pid AND f.handle = e.arg0 AND f.timestamp <= e.timestamp + e.duration_ns \
         ORDER BY f.timestamp DESC LIMIT 1) = '{name}'"
    );
    number(db, &sql)
}

#[test]
fn launches_lead_to_the_names_of_their_functions() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let said = trace_play(&place, "session", false, &["modules", "--rounds", "11"]);
    assert_exact(&place);
    assert_same_calls(&place.truth(), &place.run_file());
    let db = place.run_file();
    let functions = rows(&said, "function");
    assert_eq!(functions.len(), 5);
    assert!(functions.iter().any(|row| row[0].len() > 900), "a long name is among them");
    for row in &functions {
        assert_eq!(launches_of(&db, row[0]), int::<i64>(row[2]), "launches of {}", row[0]);
        // What the runtime launches has another handle at the driver.
        if !row[0].contains("lazy") {
            let sql = format!("SELECT COUNT(*) FROM functions WHERE name = '{}' AND handle = {}", row[0], row[1]);
            assert_eq!(number(&db, &sql), 1, "{row:?}");
        }
    }
}

#[test]
fn names_are_whole_up_to_1023_bytes() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let mut command = place.trace();
    succeed(command.args(["--quiet", "--", "python3", "-c", LONG_NAMES]).arg(&sim().cuda));
    let db = place.run_file();
    assert_nothing_lost(&db);
    let names: Vec<String> = select(&db, "SELECT name FROM functions ORDER BY timestamp", |row| row.get(0));
    let lengths: Vec<usize> = names.iter().map(String::len).collect();
    assert_eq!(lengths, [1, 1022, 1023, 1023, 1023], "of names with 1, 1022, 1023, 1024 and 5000 bytes");
    let begins_with_its_length = |(name, length): (&String, usize)| name.starts_with(&format!("_{length}_"));
    assert!(names[1..].iter().zip([1022, 1023, 1024, 5000]).all(begins_with_its_length), "{names:?}");
}

/// Looks up functions with names of known lengths.
const LONG_NAMES: &str = "
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1])
module, context = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), b'.version 8.0') == 0
for length in (1, 1022, 1023, 1024, 5000):
    name = ('_%d_' % length + 'k' * length)[:length]
    assert cuda.cuModuleGetFunction(ctypes.byref(ctypes.c_void_p()), module, name.encode()) == 0
";
