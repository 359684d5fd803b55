// SPDX-License-Identifier: Apache-2.0
//! Exactness: what gpuwhy records equals what the simulated stack's own log says was done.
#![allow(clippy::unwrap_used)]

mod common;

use common::compare::{assert_same_calls, recorded_sums, true_sums};
use common::jobs::{assert_exact, copy_of_libraries};
use common::{HeldSimjob, Place, Tracing, can_trace, number, one_at_a_time, sim, succeed, text, ways_of_attaching};
use gpuwhy_model::ops;
use std::process::Command;

/// Traces a simjob started by gpuwhy itself.
fn trace_simjob(place: &Place, gpuwhy: &[&str], simjob: &[&str]) -> String {
    let mut command = place.trace();
    command.args(gpuwhy).arg("--").arg(&sim().simjob).arg("--cudart").arg(&sim().cudart).args(simjob);
    text(&succeed(&mut command))
}

#[test]
fn two_million_calls_at_100k_a_second_are_counted_exactly() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let job = ["--procs", "2", "--threads", "2", "--mix", "mixed", "--calls", "2000000", "--rate", "100000"];
    let mut command = place.trace();
    command.env("SIMGPU_LOG_LEVEL", "counts").arg("--quiet").arg("--");
    succeed(command.arg(&sim().simjob).arg("--cudart").arg(&sim().cudart).args(job));
    let truth = place.truth();
    assert!(true_sums(&truth).len() >= 12, "twelve ops and more: {:?}", true_sums(&truth).keys());
    assert_eq!((truth.pids().len(), truth.threads.iter().filter(|t| !t.counters.is_empty()).count() >= 4), (2, true));
    assert_exact(&place);
}

/// A lost launch may be counted under the driver's name, where who made it could not be told at once.
fn kind(op: &str) -> String {
    if op.contains("LaunchKernel") { "launch".into() } else { op.to_owned() }
}

/// However little gpuwhy keeps up with, every call is either stored or counted as lost.
fn assert_nothing_vanishes(place: &Place) -> i64 {
    let (truth, db) = (place.truth(), place.run_file());
    let mut made = std::collections::BTreeMap::new();
    for (function, sums) in true_sums(&truth) {
        *made.entry(kind(&ops::short_name(&function))).or_insert(0) += sums.calls as i64;
    }
    let mut accounted = std::collections::BTreeMap::new();
    let sql = "SELECT op, SUM(n) FROM (SELECT op, COUNT(*) AS n FROM events WHERE op <> 'sched_wakeup' GROUP BY op \
               UNION ALL SELECT op, SUM(count) FROM loss WHERE loses_event GROUP BY op) GROUP BY op";
    let mut statement = db.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))).unwrap();
    let mut host = 0;
    for (op, count) in rows.map(Result::unwrap) {
        match ops::by_function(&op).filter(|op| !op.id.is_cuda()) {
            Some(_) => host += count,
            None => *accounted.entry(kind(&op)).or_insert(0) += count,
        }
    }
    assert_eq!(accounted, made, "stored and lost together are what was made, op by op");
    let seen = number(&db, "SELECT events_seen FROM sessions");
    assert_eq!(seen, made.values().sum::<i64>() + host);
    assert_eq!(number(&db, "SELECT events_stored + events_lost FROM sessions"), seen);
    number(&db, "SELECT events_lost FROM sessions")
}

#[test]
fn at_full_speed_seen_and_lost_together_are_what_was_made() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let job = ["--procs", "2", "--threads", "2", "--mix", "mixed", "--calls", "4000000", "--rate", "1000000"];
    let mut command = place.trace();
    command.env("SIMGPU_LOG_LEVEL", "counts").arg("--quiet").arg("--");
    succeed(command.arg(&sim().simjob).arg("--cudart").arg(&sim().cudart).args(job));
    assert_nothing_vanishes(&place);
}

#[test]
fn a_ring_too_small_loses_events_and_counts_every_one() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let job = ["--threads", "2", "--mix", "mixed", "--calls", "1000000"];
    let mut command = place.trace();
    command.env("SIMGPU_LOG_LEVEL", "counts").args(["--quiet", "--ring-kib", "64"]).arg("--");
    let said = text(&succeed(command.arg(&sim().simjob).arg("--cudart").arg(&sim().cudart).args(job)));
    let lost = assert_nothing_vanishes(&place);
    assert!(lost > 0, "64 KiB cannot hold 10 ms of calls at full speed");
    assert!(said.contains("ring_full"), "the loss is told with its cause: {said}");
}

#[test]
fn every_function_is_decoded_as_the_library_saw_it() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    trace_simjob(&place, &["--quiet"], &["--tour"]);
    let (truth, db) = (place.truth(), place.run_file());
    assert_same_calls(&truth, &db);
    let functions = number(&db, "SELECT COUNT(DISTINCT function) FROM events WHERE layer <> 'kernel'");
    assert!(functions >= 80, "the tour calls every function the simulated stack has: {functions}");
    let guessed = "SELECT COUNT(*) FROM events WHERE layer = 'runtime' AND device IS NULL";
    assert_eq!(number(&db, guessed), 0, "watched from its birth, a thread's device is known");
}

#[test]
fn each_way_of_attaching_records_the_same() {
    if !can_trace() {
        return;
    }
    for probes in ways_of_attaching() {
        let (_lock, place) = (one_at_a_time(), Place::new());
        let job = ["--threads", "2", "--mix", "mixed", "--calls", "20000"];
        trace_simjob(&place, &["--quiet", "--probes", probes], &job);
        assert_exact(&place);
        assert_same_calls(&place.truth(), &place.run_file());
    }
}

#[test]
fn callers_are_told_apart_without_the_kernels_help_too() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let job = ["--threads", "2", "--mix", "mixed", "--calls", "20000", "--linger", "2"];
    trace_simjob(&place, &["--quiet", "--callers-from-proc"], &job);
    assert_exact(&place);
    assert_same_calls(&place.truth(), &place.run_file());
}

#[test]
fn libraries_that_begin_with_endbr64_are_the_same() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let mut command = place.trace();
    command.env("LD_LIBRARY_PATH", sim().cet_cudart.parent().unwrap()).arg("--quiet").arg("--");
    command.arg(&sim().simjob).arg("--cudart").arg(&sim().cet_cudart).args(["--mix", "mixed", "--calls", "50000"]);
    succeed(&mut command);
    assert_exact(&place);
    assert_same_calls(&place.truth(), &place.run_file());
    let dear = "SELECT COUNT(*) FROM libraries WHERE note LIKE '%dear%'";
    assert_eq!(number(&place.run_file(), dear), 0, "no probe sits on an endbr64");
}

#[test]
fn libraries_loaded_before_tracing_and_two_copies_of_them_are_the_same() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let copy = tempfile::tempdir().unwrap();
    let second = copy_of_libraries(copy.path());
    let mut job = place.simjob(&["--procs", "2", "--threads", "2", "--mix", "mixed", "--calls", "100000"]);
    let mut job = HeldSimjob::start(job.arg("--cudart").arg(&second));
    let mut command = place.trace();
    for pid in &job.pids {
        command.arg("--pid").arg(pid.to_string());
    }
    let tracing = Tracing::start(&mut command, &place, 4);
    job.go();
    assert!(job.end().0.success());
    assert!(tracing.end().status.success(), "gpuwhy ends when the processes it was given have");
    assert_exact(&place);
    assert_same_calls(&place.truth(), &place.run_file());
    assert_eq!(number(&place.run_file(), "SELECT COUNT(DISTINCT path) FROM libraries"), 4);
}

#[test]
fn a_late_attach_never_guesses_the_device() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let mut job = place.simjob(&["--threads", "1", "--mix", "mixed", "--calls", "120000", "--rate", "20000"]);
    job.env("SIMGPU_DEVICES", "2");
    let mut job = HeldSimjob::start(&mut job);
    // Some calls are made before gpuwhy looks: what they chose is not known to it.
    job.go();
    common::until("the job works", || place.log().exists() && place.truth().outer_calls() > 1000);
    let tracing = Tracing::start(place.trace().arg("--pid").arg(job.pids[0].to_string()), &place, 2);
    assert!(job.end().0.success());
    assert!(tracing.end().status.success());
    let db = place.run_file();
    assert!(number(&db, "SELECT COUNT(*) FROM events") > 0);
    assert_eq!(number(&db, "SELECT COUNT(*) FROM events WHERE device IS NOT NULL AND op <> 'cudaSetDevice'"), 0);
}

#[test]
fn nested_and_recursive_calls_pair_with_their_own_returns() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    trace_simjob(&place, &["--quiet"], &["--reenter", "--calls", "500"]);
    assert_same_calls(&place.truth(), &place.run_file());
}

#[test]
fn with_all_layers_inner_calls_are_kept_apart_and_nothing_is_counted_twice() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    trace_simjob(&place, &["--quiet", "--no-host", "--layers", "all"], &["--mix", "mixed", "--calls", "20000"]);
    let (truth, db) = (place.truth(), place.run_file());
    assert_eq!(recorded_sums(&db, &truth), true_sums(&truth), "the program's own calls are as ever");
    assert_same_calls(&truth, &db);
    let counters = truth.counters();
    for (function, inner) in counters.iter().filter(|(f, c)| ops::by_function(f).is_some() && c.inner_calls > 0) {
        let sql = format!("SELECT COUNT(*) FROM inner_events WHERE function = '{function}'");
        assert_eq!(number(&db, &sql) as u64, inner.inner_calls, "inner calls of {function}");
    }
    assert!(number(&db, "SELECT COUNT(*) FROM inner_events WHERE op = 'cuLaunchKernel'") > 0);
    let calls: u64 = true_sums(&truth).values().map(|sums| sums.calls).sum();
    assert_eq!(number(&db, "SELECT events_seen FROM sessions"), calls as i64, "the session counts the program's calls");
}

#[test]
fn ending_a_trace_of_a_busy_job_invents_nothing() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let mut job = HeldSimjob::start(&mut place.simjob(&["--threads", "2", "--mix", "mixed", "--calls", "3000000"]));
    let pid = job.pids[0];
    let tracing = Tracing::start(place.trace().arg("--pid").arg(pid.to_string()), &place, 2);
    job.go();
    common::until("calls are recorded", || {
        number(&place.run_file(), "SELECT COUNT(*) FROM events WHERE layer <> 'kernel'") > 10_000
    });
    assert!(tracing.interrupt().status.success());
    let db = place.run_file();
    // Every call of this job takes microseconds: none is open long enough to be cut off.
    assert_eq!(
        number(&db, "SELECT COUNT(*) FROM events WHERE unfinished AND layer <> 'kernel'"),
        0,
        "calls taken for unfinished"
    );
    assert_eq!(number(&db, "SELECT COALESCE(SUM(count), 0) FROM loss"), 0, "loss where there was none");
    succeed(Command::new("kill").arg("-9").arg(pid.to_string()));
    job.end();
}

#[test]
fn a_threads_number_traces_its_process() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let mut script = Command::new("python3");
    script.args(["-c", THREAD_THEN_LAUNCH]).arg(&sim().cudart).stdin(std::process::Stdio::piped());
    let mut job = script.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(job.stdout.as_mut().unwrap()), &mut line).unwrap();
    let tracing = Tracing::start(place.trace().arg("--pid").arg(line.trim()), &place, 2);
    drop(job.stdin.take()); // lets it go on
    assert!(job.wait().unwrap().success());
    let output = tracing.end();
    assert!(text(&output).contains("is a thread of process"), "{}", text(&output));
    assert_eq!(number(&place.run_file(), "SELECT COUNT(*) FROM events WHERE op = 'cudaDeviceSync'"), 5);
}

/// Starts a thread, prints its number, waits for the end of its input, then makes five calls.
const THREAD_THEN_LAUNCH: &str = "
import ctypes, sys, threading
cuda = ctypes.CDLL(sys.argv[1])
def work():
    print(threading.get_native_id(), flush=True)
    sys.stdin.read()
    for _ in range(5):
        cuda.cudaDeviceSynchronize()
thread = threading.Thread(target=work)
thread.start()
thread.join()
";

#[test]
fn the_device_is_followed_through_contexts_and_unknown_where_it_cannot_be() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let mut command = place.trace();
    command.env("SIMGPU_DEVICES", "4").args(["--quiet", "--", "python3", "-c", CONTEXTS]).arg(&sim().cudart);
    succeed(&mut command);
    let db = place.run_file();
    let mut statement =
        db.prepare("SELECT bytes, device FROM events WHERE op = 'cuMemAlloc' ORDER BY timestamp").unwrap();
    let rows = statement.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?))).unwrap();
    let recorded: Vec<_> = rows.map(Result::unwrap).collect();
    // The size of each allocation says on which device it is made; 9 where no context is current.
    let wrong: Vec<_> =
        recorded.iter().filter(|(truth, device)| device.is_some_and(|device| truth - 1000 != device)).collect();
    assert!(wrong.is_empty(), "{wrong:?} of {recorded:?}");
    assert!(recorded.iter().filter(|(_, device)| device.is_some()).count() >= 6, "most are known: {recorded:?}");
}

/// Nested contexts on several devices, deeper than gpuwhy keeps, popped again.
const CONTEXTS: &str = "
import ctypes, sys, os
cudart = ctypes.CDLL(sys.argv[1])
cu = ctypes.CDLL(os.path.join(os.path.dirname(sys.argv[1]), 'libcuda.so.1'))
def alloc(device):
    pointer = ctypes.c_uint64()
    cu.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1000 + device))
def create(device):
    context = ctypes.c_void_p()
    cu.cuCtxCreate_v2(ctypes.byref(context), 0, device)
    return context
def pop():
    cu.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
cu.cuInit(0)
cudart.cudaSetDevice(1)
alloc(1)
first = create(2)
alloc(2)
create(3)
alloc(3)
pop()
alloc(2)
pop()
alloc(1)
for device in (0, 1, 2, 3, 0, 1):
    create(device)
    alloc(device)
for device in (0, 3, 2, 1, 0):
    pop()
    alloc(device)
cu.cuCtxSetCurrent(first)
alloc(2)
";

#[test]
fn failed_allocations_are_recorded_as_failed() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    trace_simjob(&place, &["--quiet"], &["--oom"]);
    assert_exact(&place);
    assert_same_calls(&place.truth(), &place.run_file());
    assert!(number(&place.run_file(), "SELECT COUNT(*) FROM events WHERE op = 'cudaMalloc' AND ret = 2") > 0);
}

#[test]
fn a_call_cut_off_by_death_is_recorded_as_unfinished() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    trace_simjob(&place, &["--quiet"], &["--exit-in-call"]);
    let (truth, db) = (place.truth(), place.run_file());
    let open: Vec<_> = truth.threads.iter().flat_map(|thread| &thread.open).filter(|call| call.depth == 0).collect();
    assert_eq!(open.len(), 1, "simjob was killed inside one call");
    assert_eq!(number(&db, "SELECT COUNT(*) FROM events WHERE unfinished AND layer <> 'kernel'"), 1);
    let function: String = db
        .query_row("SELECT function FROM events WHERE unfinished AND layer <> 'kernel'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(function, *open[0].function);
}

#[test]
fn a_call_still_open_when_tracing_ends_is_recorded_as_unfinished() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    // A kernel of 20 s: the job's own synchronisation waits for it long after the trace has ended.
    let mut job = HeldSimjob::start(&mut place.simjob(&["--calls", "1", "--kernel-ns", "20000000000"]));
    let pid = job.pids[0];
    let tracing = Tracing::start(place.trace().arg("--pid").arg(pid.to_string()), &place, 2);
    job.go();
    common::until("the job waits in a call", || {
        place.log().exists() && place.truth().threads.iter().any(|t| t.open.iter().any(|c| c.function.contains("Sync")))
    });
    assert!(tracing.interrupt().status.success());
    succeed(Command::new("kill").arg("-9").arg(pid.to_string()));
    job.end();
    let db = place.run_file();
    assert_eq!(number(&db, "SELECT COUNT(*) FROM events WHERE unfinished AND class = 'sync'"), 1);
}

#[test]
fn children_of_a_traced_process_are_followed_and_strangers_are_not() {
    if !can_trace() {
        return;
    }
    let (_lock, place, stranger) = (one_at_a_time(), Place::new(), Place::new());
    let mut other = HeldSimjob::start(&mut stranger.simjob(&["--mix", "mixed", "--calls", "5000"]));
    // The parent loads nothing and calls nothing: what is recorded are its children's calls.
    let mut job = HeldSimjob::start(&mut place.simjob(&["--procs", "3", "--mix", "mixed", "--calls", "9000"]));
    let tracing = Tracing::start(place.trace().arg("--pid").arg(job.parent().to_string()), &place, 2);
    other.go();
    job.go();
    assert!(other.end().0.success());
    assert!(job.end().0.success());
    assert!(tracing.end().status.success());
    assert_exact(&place);
    assert_eq!(number(&place.run_file(), "SELECT COUNT(DISTINCT pid) FROM events WHERE layer <> 'kernel'"), 3);
}

#[test]
fn without_a_pid_every_process_that_uses_cuda_is_traced_also_one_started_later() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let copy = tempfile::tempdir().unwrap();
    let second = copy_of_libraries(copy.path());
    let args = ["--mix", "mixed", "--calls", "10000"];
    let mut early = HeldSimjob::start(&mut place.simjob(&args));
    let tracing = Tracing::start(&mut place.trace(), &place, 2);
    // Its libraries are files gpuwhy has never seen: it must notice that they are mapped.
    let mut late = Command::new(&sim().simjob);
    late.arg("--cudart").arg(&second).args(args).env("SIMGPU_LOG", place.log());
    let mut late = HeldSimjob::start(&mut late);
    tracing.wait_for_process(early.pids[0]);
    tracing.wait_for_process(late.pids[0]);
    early.go();
    late.go();
    assert!(early.end().0.success());
    assert!(late.end().0.success());
    assert!(tracing.interrupt().status.success());
    assert_exact(&place);
    assert_eq!(place.truth().pids().len(), 2);
}
