// SPDX-License-Identifier: Apache-2.0
//! Every copy of the libraries in every process: loaded late, twice, linked in, in a container, again, and again.
#![allow(clippy::unwrap_used)]

mod common;

use common::compare::{ByThread, assert_same_calls, is_call, recorded_sums, true_calls, true_sums};
use common::jobs::{
    Waiting, assert_exact, assert_missing_are_unwatched, assert_nothing_lost, copy_of_libraries, losses, report,
    reports, rows, unwatched,
};
use common::{HeldSimjob, Place, Tracing, can_trace, number, one_at_a_time, sim, succeed, text, until};
use gpuwhy_model::{Class, ops};
use simgpu::log::{Call, Truth};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::tempdir;

/// `gpuwhy trace` that is not told by the environment where libraries lie.
fn trace_blindly(place: &Place) -> Command {
    let mut command = place.trace();
    command.env_remove("LD_LIBRARY_PATH");
    command
}

/// A simjob play, logging into a place.
fn play(place: &Place, mode: &str, copies: &[&Path], arguments: &[&str]) -> Command {
    let mut command = Command::new(&sim().simjob);
    command.arg(mode).env("SIMGPU_LOG", place.log()).env("SIMGPU_LOG_LEVEL", "full");
    for copy in copies {
        command.arg("--cudart").arg(copy);
    }
    command.args(arguments);
    command
}

/// Lets gpuwhy start a simjob play; what both said.
fn trace_play(command: &mut Command, mode: &str, copies: &[&Path], arguments: &[&str]) -> String {
    command.arg("--quiet").arg("--").arg(&sim().simjob).arg(mode);
    for copy in copies {
        command.arg("--cudart").arg(copy);
    }
    text(&succeed(command.args(arguments)))
}

/// Insists that every call is there, with all there is to know of it, and that no time was unwatched.
fn assert_all_watched(place: &Place) {
    assert_exact(place);
    assert_same_calls(&place.truth(), &place.run_file());
    assert_eq!(number(&place.run_file(), "SELECT COUNT(*) FROM unwatched"), 0, "unwatched times");
}

/// How many files named like the runtime got probes at these paths.
fn runtimes_at(place: &Place, paths: &[&Path]) -> i64 {
    let quoted: Vec<String> = paths.iter().map(|path| format!("'{}'", path.display())).collect();
    number(&place.run_file(), &format!("SELECT COUNT(*) FROM libraries WHERE path IN ({})", quoted.join(",")))
}

#[test]
fn a_library_that_an_argument_names_is_watched_from_its_first_call_however_late_it_is_loaded() {
    if !can_trace() {
        return;
    }
    let (_lock, place, folder) = (one_at_a_time(), Place::new(), tempdir().unwrap());
    let cudart = copy_of_libraries(folder.path());
    let arguments = ["--wait-ms", "3000", "--calls", "400", "--for-ms", "200", "--rate", "1000"];
    let said = trace_play(&mut trace_blindly(&place), "late", &[&cudart], &arguments);
    assert_all_watched(&place);
    assert_eq!(report(&said)["calls"].as_u64(), Some(place.truth().outer_calls()));
    assert_eq!(runtimes_at(&place, &[&cudart]), 1);
}

#[test]
fn of_a_library_that_nothing_names_every_call_is_recorded_or_said_to_be_unwatched() {
    if !can_trace() {
        return;
    }
    let (_lock, place, folder) = (one_at_a_time(), Place::new(), tempdir().unwrap());
    let cudart = copy_of_libraries(folder.path());
    let mut command = trace_blindly(&place);
    command.env("SIMJOB_CUDART", &cudart);
    let arguments = ["--wait-ms", "3000", "--calls", "2000", "--for-ms", "1500", "--rate", "2000"];
    let report = report(&trace_play(&mut command, "late", &[], &arguments));
    let (truth, db) = (place.truth(), place.run_file());
    assert_eq!(report["calls"].as_u64(), Some(truth.outer_calls()));
    assert_nothing_lost(&db);
    let (seen, missing) = assert_missing_are_unwatched(&true_calls(&truth), &db);
    eprintln!("{seen} calls recorded, {missing} made before the library was watched");
    assert!(seen > 0);
    let told = unwatched(&db);
    assert!(told.iter().any(|u| Path::new(&u.path) == cudart), "{told:?}");
    for u in &told {
        assert_eq!(Some(u64::from(u.pid)), report["pid"].as_u64());
        let mapped = report["opened_ns"].as_u64().unwrap()..=report["first_ns"].as_u64().unwrap();
        assert!(mapped.contains(&u.from_ns), "from when it was mapped, {mapped:?}: {u:?}");
    }
}

#[test]
fn two_copies_in_one_process_are_both_watched() {
    if !can_trace() {
        return;
    }
    let (_lock, place, folder) = (one_at_a_time(), Place::new(), tempdir().unwrap());
    let second = copy_of_libraries(folder.path());
    let copies: [&Path; 2] = [&sim().cudart, &second];
    let said = trace_play(&mut trace_blindly(&place), "twocopies", &copies, &["--calls", "501"]);
    assert_all_watched(&place);
    assert_eq!(report(&said)["calls"].as_u64(), Some(place.truth().outer_calls()));
    assert_eq!(runtimes_at(&place, &copies), 2);
}

#[test]
fn two_copies_in_two_processes_are_both_watched() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let (one, other) = (tempdir().unwrap(), tempdir().unwrap());
    let (one, other) = (copy_of_libraries(one.path()), copy_of_libraries(other.path()));
    let mut command = trace_blindly(&place);
    command.arg("--quiet").arg("--").arg(&sim().simjob).arg("--cudart").arg(&one).arg("--cudart").arg(&other);
    succeed(command.args(["--procs", "2", "--mix", "mixed", "--calls", "20000"]));
    assert_all_watched(&place);
    assert_eq!((place.truth().pids().len(), runtimes_at(&place, &[&one, &other])), (2, 2));
}

#[test]
fn a_runtime_linked_into_a_program_is_watched_like_a_library() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let said = text(&succeed(place.trace().args(["--quiet", "--"]).arg(&sim().staticjob).arg("400")));
    let (truth, db) = (place.truth(), place.run_file());
    assert_nothing_lost(&db);
    assert_eq!(report(&said)["calls"].as_u64(), Some(truth.outer_calls()));
    let mut recorded = recorded_sums(&db, &truth);
    // Which context is current is another test's.
    recorded.retain(|function, _| ops::by_function(function).unwrap().class != Class::Device);
    assert_eq!(recorded, true_sums(&truth));
    assert_eq!(recorded.values().map(|sums| sums.calls).collect::<Vec<_>>(), [400; 5], "{recorded:?}");
    assert!(recorded.contains_key("cudaMalloc") && recorded.contains_key("cudaLaunchKernel"));
    assert_eq!(number(&db, "SELECT COUNT(*) FROM unwatched"), 0, "watched from its first call");
    assert_linked_in(&place);
}

#[test]
fn what_a_linked_in_runtime_does_in_functions_that_are_not_traced_is_not_the_programs_own() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    succeed(place.trace().args(["--quiet", "--"]).arg(&sim().staticjob).arg("20"));
    // Its first call, cudaStreamCreate, makes a context current.
    assert!(place.truth().counters()["cuCtxSetCurrent"].inner_calls > 0);
    assert_exact(&place);
    assert_same_calls(&place.truth(), &place.run_file());
}

/// Insists that the run file says that the program has the runtime in itself.
fn assert_linked_in(place: &Place) {
    let path = sim().staticjob.display();
    let noted = format!(
        "SELECT COUNT(*) FROM libraries WHERE path = '{path}' AND library = 'runtime' \
         AND note LIKE '%the CUDA runtime is linked into this file%'"
    );
    assert_eq!(number(&place.run_file(), &noted), 1);
}

#[test]
fn a_program_with_the_runtime_linked_in_can_be_attached_to_while_it_waits() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let (job, tracing) = attach_to_static(&place, &sim().staticjob);
    let said = finish(job, tracing);
    let (truth, db) = (place.truth(), place.run_file());
    // Its one thread may have been inside a call when that got its probe: then the driver's part of it is all that is seen.
    let on_its_way = ("caller_unknown".to_owned(), 1);
    assert!(losses(&db).iter().all(|loss| *loss == on_its_way), "{:?}", losses(&db));
    assert_eq!(report(&said)["calls"].as_u64(), Some(truth.outer_calls()));
    let (seen, missing) = assert_missing_are_unwatched(&true_calls(&truth), &db);
    eprintln!("{seen} calls recorded, {missing} made before the runtime was watched; {:?}", losses(&db));
    assert!(seen > missing, "{seen} {missing}");
    assert_linked_in(&place);
}

/// Starts a program with a runtime of its own, which has no CUDA library yet, and traces it.
fn attach_to_static(place: &Place, program: &Path) -> (Waiting, Tracing) {
    let mut command = Command::new(program);
    command.args(["20000", "-"]).env("SIMGPU_LOG", place.log()).env("SIMGPU_LOG_LEVEL", "full");
    let job = Waiting::start(&mut command);
    let tracing = attach_without_libraries(place, job.pid);
    (job, tracing)
}

fn finish(mut job: Waiting, tracing: Tracing) -> String {
    job.go();
    let said = job.end_well();
    let ended = tracing.end();
    assert!(ended.status.success(), "{}", text(&ended));
    said
}

/// The driver's calls, whoever made them.
fn driver_calls(truth: &Truth) -> ByThread<Call> {
    let mut calls = ByThread::new();
    for call in truth.calls().filter(|call| !call.function.starts_with("cuda")) {
        if is_call(&call.function) {
            calls.entry((call.pid, call.tid)).or_insert_with(Vec::new).push(call);
        }
    }
    for calls in calls.values_mut() {
        calls.sort_by_key(|call| call.enter_ns);
    }
    calls
}

#[test]
fn of_a_runtime_linked_in_and_stripped_the_drivers_calls_are_recorded() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    succeed(place.trace().args(["--quiet", "--"]).arg(&sim().staticjob_stripped).arg("400"));
    let (truth, db) = (place.truth(), place.run_file());
    assert_nothing_lost(&db);
    let calls = driver_calls(&truth);
    assert_eq!(assert_missing_are_unwatched(&calls, &db), (calls.values().map(Vec::len).sum(), 0));
    for op in ["cuMemAlloc", "cuLaunchKernel", "cuStreamSync", "cuMemFree"] {
        assert_eq!(number(&db, &format!("SELECT COUNT(*) FROM events WHERE op = '{op}'")), 400, "{op}");
    }
    assert_eq!(number(&db, "SELECT COUNT(*) FROM events WHERE layer = 'runtime'"), 0);
}

#[test]
fn a_stripped_program_with_the_runtime_linked_in_can_be_attached_to_while_it_waits() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let (job, tracing) = attach_to_static(&place, &sim().staticjob_stripped);
    finish(job, tracing);
    let (truth, db) = (place.truth(), place.run_file());
    assert_nothing_lost(&db);
    let (seen, missing) = assert_missing_are_unwatched(&driver_calls(&truth), &db);
    eprintln!("{seen} calls recorded, {missing} made before the driver was watched");
    assert!(seen > missing, "{seen} {missing}");
    let said = "SELECT COUNT(*) FROM libraries WHERE functions = 0 AND path LIKE '%staticjob-stripped' \
                AND note LIKE '%recorded at the driver%'";
    assert_eq!(number(&db, said), 1, "it is said that there is a runtime that cannot be seen");
}

/// simjob in a mount namespace of its own, with libraries in a folder that nobody outside sees. It waits.
fn start_in_container(place: &Place, folder: &Path) -> HeldSimjob {
    let script = "mount -t tmpfs none $1 && cp $2/*.so* $1 && shift 2 && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(folder).arg(&sim().dir).arg(&sim().simjob);
    command.arg("--cudart").arg(folder.join("libcudart.so.13")).args(["--mix", "mixed", "--calls", "20000"]);
    HeldSimjob::start(command.env("SIMGPU_LOG", place.log()).env("SIMGPU_LOG_LEVEL", "full"))
}

/// Insists that all was seen, and that the probes are not in the file that the path means outside.
fn assert_container_was_watched(place: &Place, folder: &Path) {
    assert_exact(place);
    let (_, missing) = assert_missing_are_unwatched(&true_calls(&place.truth()), &place.run_file());
    assert_eq!(missing, 0);
    let cudart = folder.join("libcudart.so.13");
    assert_eq!(runtimes_at(place, &[&cudart]), 1, "under the name it has inside");
    if let Ok(outside) = std::fs::metadata(&cudart) {
        let inode = format!("{}:{}", outside.dev(), outside.ino());
        let probed = format!("SELECT COUNT(*) FROM libraries WHERE inode = '{inode}'");
        assert_eq!(number(&place.run_file(), &probed), 0, "the file outside is another");
    }
}

#[test]
fn libraries_that_exist_only_inside_a_container_are_watched_from_outside() {
    if !can_trace() {
        return;
    }
    for other_file_outside in [false, true] {
        let (_lock, place, folder) = (one_at_a_time(), Place::new(), tempdir().unwrap());
        if other_file_outside {
            succeed(Command::new("cp").arg(&sim().cet_cudart).arg(&sim().cet_cuda).arg(folder.path()));
        }
        let mut job = start_in_container(&place, folder.path());
        let mut command = trace_blindly(&place);
        let tracing = Tracing::start(command.arg("--pid").arg(job.pids[0].to_string()), &place, 2);
        job.go();
        assert!(job.end().0.success());
        assert!(tracing.end().status.success());
        assert_container_was_watched(&place, folder.path());
    }
}

#[test]
fn containers_are_watched_without_a_pid_those_started_later_too() {
    if !can_trace() {
        return;
    }
    for later in [false, true] {
        let (_lock, place, folder) = (one_at_a_time(), Place::new(), tempdir().unwrap());
        let early = (!later).then(|| start_in_container(&place, folder.path()));
        let mut anchor = HeldSimjob::start(&mut place.simjob(&["--calls", "10"]));
        let tracing = Tracing::start(&mut trace_blindly(&place), &place, 2);
        tracing.wait_for_process(anchor.pids[0]);
        let mut job = early.unwrap_or_else(|| start_in_container(&place, folder.path()));
        tracing.wait_for_process(job.pids[0]);
        for job in [&mut anchor, &mut job] {
            job.go();
        }
        assert!(anchor.end().0.success());
        assert!(job.end().0.success());
        assert!(tracing.interrupt().status.success());
        assert_container_was_watched(&place, folder.path());
    }
}

#[test]
fn a_process_that_becomes_another_program_is_followed() {
    if !can_trace() {
        return;
    }
    let (_lock, place, folder) = (one_at_a_time(), Place::new(), tempdir().unwrap());
    let second = copy_of_libraries(folder.path());
    let copies: [&Path; 2] = [&sim().cudart, &second];
    let said = trace_play(&mut trace_blindly(&place), "execs", &copies, &["--calls", "1000"]);
    assert_all_watched(&place);
    assert_two_programs(&place, &said);
    assert_eq!(runtimes_at(&place, &copies), 2);
}

/// Insists that one process ran two programs, whose calls together are all of the log's.
fn assert_two_programs(place: &Place, said: &str) {
    let reports = reports(said);
    assert_eq!(reports.len(), 2, "{said}");
    let pid = reports[0]["pid"].as_u64().unwrap();
    assert_eq!(Some(pid), reports[1]["pid"].as_u64(), "it is one process");
    let calls: u64 = reports.iter().map(|report| report["calls"].as_u64().unwrap()).sum();
    assert_eq!((calls, place.truth().pids()), (place.truth().outer_calls(), vec![pid as u32]));
    let exec = format!("SELECT COUNT(*) FROM events WHERE op = 'process_exec' AND pid = {pid}");
    assert!(number(&place.run_file(), &exec) > 0, "it is said that it became another program");
}

#[test]
fn a_process_that_is_attached_to_is_followed_into_another_program() {
    if !can_trace() {
        return;
    }
    for with_a_copy in [false, true] {
        let (_lock, place, elsewhere) = (one_at_a_time(), Place::new(), Place::new());
        let second = copy_of_libraries(elsewhere.dir.path());
        let copies: &[&Path] = if with_a_copy { &[&sim().cudart, &second] } else { &[&sim().cudart] };
        // Another process has the libraries, so they are watched before the play loads them.
        let mut anchor = HeldSimjob::start(&mut elsewhere.simjob(&["--calls", "1"]));
        let job = Waiting::start(&mut play(&place, "execs", copies, &["--calls", "1000", "--hold"]));
        let mut command = trace_blindly(&place);
        for pid in [anchor.pids[0], job.pid] {
            command.arg("--pid").arg(pid.to_string());
        }
        let tracing = Tracing::start(&mut command, &place, 2);
        anchor.go();
        assert!(anchor.end().0.success());
        let said = finish(job, tracing);
        assert_two_programs(&place, &said);
        let (truth, db) = (place.truth(), place.run_file());
        assert_nothing_lost(&db);
        let (seen, missing) = assert_missing_are_unwatched(&true_calls(&truth), &db);
        eprintln!("{seen} calls recorded, {missing} made before the second program's libraries were watched");
        assert!(seen >= 1000 && (with_a_copy || missing == 0), "{seen} {missing}");
    }
}

#[test]
fn libraries_that_are_unloaded_and_loaded_again_are_watched_each_time() {
    if !can_trace() {
        return;
    }
    let (_lock, place, folder) = (one_at_a_time(), Place::new(), tempdir().unwrap());
    let second = copy_of_libraries(folder.path());
    let arguments = ["--rounds", "6", "--calls", "300"];
    let said = trace_play(&mut trace_blindly(&place), "reload", &[&sim().cudart, &second], &arguments);
    assert_all_watched(&place);
    assert_eq!(rows(&said, "round").len(), 6);
    assert_eq!(report(&said)["calls"].as_u64(), Some(place.truth().outer_calls()));
}

#[test]
fn libraries_gone_before_anybody_could_look_are_said_to_be_unwatched() {
    if !can_trace() {
        return;
    }
    let (_lock, place, folder) = (one_at_a_time(), Place::new(), tempdir().unwrap());
    let second = copy_of_libraries(folder.path());
    let arguments = ["--rounds", "40", "--calls", "40", "--hold"];
    let job = Waiting::start(&mut play(&place, "reload", &[&sim().cudart, &second], &arguments));
    let tracing = attach_without_libraries(&place, job.pid);
    finish(job, tracing);
    let (truth, db) = (place.truth(), place.run_file());
    let (seen, missing) = assert_missing_are_unwatched(&true_calls(&truth), &db);
    eprintln!("{seen} calls recorded, {missing} made before the library was watched");
}

/// Traces a process that has no library to wait for: gpuwhy watches once the process's threads are followed.
fn attach_without_libraries(place: &Place, pid: u32) -> Tracing {
    let tracing = Tracing::start(trace_blindly(place).arg("--pid").arg(pid.to_string()), place, 0);
    let followed = format!("SELECT COUNT(*) FROM thread_time WHERE pid = {pid}");
    until("the job is followed", || number(&place.run_file(), &followed) > 0);
    tracing
}

/// Starts 200 short jobs, one after another: of every ten, one with libraries of its own and one with those of the one
/// before.
const MANY: &str = "
import subprocess, sys, time
simjob, common, copies = sys.argv[1], sys.argv[2], sys.argv[3:]
for i in range(200):
    began = time.monotonic()
    cudart = copies[i // 10] if i % 10 in (3, 4) else common
    subprocess.run([simjob, '--cudart', cudart, '--calls', '5'], check=True, stdout=subprocess.DEVNULL)
    time.sleep(max(0, 0.05 - (time.monotonic() - began)))
";

#[test]
fn two_hundred_short_processes_are_recorded_or_said_to_be_unwatched() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let folders: Vec<_> = (0..20).map(|_| tempdir().unwrap()).collect();
    let copies: Vec<PathBuf> = folders.iter().map(|folder| copy_of_libraries(folder.path())).collect();
    let mut anchor = HeldSimjob::start(&mut place.simjob(&["--calls", "1"]));
    let tracing = Tracing::start(&mut trace_blindly(&place), &place, 2);
    tracing.wait_for_process(anchor.pids[0]);
    let mut many = Command::new("python3");
    many.args(["-c", MANY]).arg(&sim().simjob).arg(&sim().cudart).args(&copies);
    succeed(many.env("SIMGPU_LOG", place.log()).env("SIMGPU_LOG_LEVEL", "full"));
    anchor.go();
    assert!(anchor.end().0.success());
    assert!(tracing.interrupt().status.success());
    let (truth, db) = (place.truth(), place.run_file());
    assert_eq!(truth.pids().len(), 201);
    let (seen, missing) = assert_missing_are_unwatched(&true_calls(&truth), &db);
    let told = unwatched(&db);
    let processes = truth.pids().into_iter().filter(|pid| told.iter().any(|u| u.pid == *pid)).count();
    eprintln!("{seen} calls recorded; {missing} not, of {processes} processes with unwatched time");
    assert!(processes <= 41, "only libraries nobody had before take time to be watched: {processes}");
}

#[test]
fn a_library_replaced_on_disk_is_watched_in_the_process_that_has_the_old_one() {
    if !can_trace() {
        return;
    }
    for before_tracing in [true, false] {
        let (_lock, place, folder) = (one_at_a_time(), Place::new(), tempdir().unwrap());
        let cudart = copy_of_libraries(folder.path());
        let mut job = Command::new(&sim().simjob);
        job.arg("--cudart").arg(&cudart).args(["--mix", "mixed", "--calls", "20000"]);
        let mut job = HeldSimjob::start(job.env("SIMGPU_LOG", place.log()).env("SIMGPU_LOG_LEVEL", "full"));
        if before_tracing {
            replace_libraries(folder.path());
        }
        let mut command = trace_blindly(&place);
        let tracing = Tracing::start(command.arg("--pid").arg(job.pids[0].to_string()), &place, 2);
        if !before_tracing {
            replace_libraries(folder.path());
        }
        job.go();
        assert!(job.end().0.success());
        assert!(tracing.end().status.success());
        assert_exact(&place);
        assert_same_calls(&place.truth(), &place.run_file());
        assert_eq!(runtimes_at(&place, &[&cudart]), 1, "under the name it was loaded by");
    }
}

/// Puts other files in the place of the libraries, as a package manager does: the old ones are deleted.
fn replace_libraries(folder: &Path) {
    for file in [&sim().cet_cuda, &sim().cet_cudart] {
        let (fresh, name) = (folder.join("fresh"), folder.join(file.file_name().unwrap()));
        succeed(Command::new("cp").arg(file).arg(&fresh));
        std::fs::rename(fresh, name).unwrap();
    }
}

#[test]
fn every_process_that_had_a_library_before_the_trace_has_its_unwatched_time() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let mut job = HeldSimjob::start(&mut place.simjob(&["--procs", "3", "--mix", "mixed", "--calls", "3000"]));
    let mut command = trace_blindly(&place);
    for pid in &job.pids {
        command.arg("--pid").arg(pid.to_string());
    }
    let tracing = Tracing::start(&mut command, &place, 2);
    let pids = job.pids.clone();
    job.go();
    assert!(job.end().0.success());
    assert!(tracing.end().status.success());
    assert_exact(&place);
    let told = unwatched(&place.run_file());
    for pid in pids {
        let of_it = told.iter().filter(|u| u.pid == pid).map(|u| &u.path[..]).collect::<BTreeSet<_>>();
        assert_eq!(of_it.len(), 2, "runtime and driver were there before they were watched: {told:?}");
    }
}
