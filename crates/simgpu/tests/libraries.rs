// SPDX-License-Identifier: Apache-2.0
//! Programs that get at the CUDA libraries in unusual ways: late, more than once, linked in, or after `exec`.

#![allow(missing_docs, clippy::expect_used)]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Bench, number, outer, output_of, rows};

#[test]
fn a_late_library_is_used_at_once() {
    let bench = Bench::new("late");
    let path = bench.copy_of_cudart("where nobody looks");
    let options = ["--cudart", &path, "--wait-ms", "150", "--calls", "400", "--for-ms", "100", "--rate", "2000"];
    let report = output_of(bench.play("late", &options));
    let truth = bench.truth();
    assert_eq!(truth.outer_calls(), number(&report, "calls"));
    assert_eq!(number(&report, "at_once"), 400);
    assert_eq!(number(&report, "calls"), 400 + 200, "it went on");
    assert!(number(&report, "first_ns") > number(&report, "opened_ns"));
    let begins: Vec<u64> = truth.calls().filter(|call| call.depth == 0).map(|call| call.enter_ns).collect();
    assert!(begins[0] >= number(&report, "first_ns") && begins[399] <= number(&report, "last_ns"));
    assert!(truth.live().is_empty());
}

#[test]
fn nothing_is_mapped_while_a_late_job_waits() {
    let bench = Bench::new("late-maps");
    let mut job = bench.play("late", &["--wait-ms", "60000"]).stdout(Stdio::null()).spawn().expect("start simjob");
    // It sleeps for a minute, so a while of its life is enough to see that it is up.
    let maps = format!("/proc/{}/maps", job.id());
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut seen = String::new();
    while !seen.contains("/simjob") && Instant::now() < deadline {
        seen = std::fs::read_to_string(&maps).expect("its memory map");
        std::thread::sleep(Duration::from_millis(5));
    }
    job.kill().expect("kill");
    job.wait().expect("wait");
    assert!(seen.contains("/simjob") && !seen.contains("libcuda"), "{seen}");
    assert!(bench.truth().threads.is_empty());
}

#[test]
fn libraries_are_unloaded_and_loaded_again() {
    let bench = Bench::new("reload");
    let (one, other) = (bench.copy_of_cudart("one"), bench.copy_of_cudart("other"));
    let options = ["--cudart", &one, "--cudart", &other, "--rounds", "25", "--calls", "41"];
    let report = output_of(bench.play("reload", &options));
    assert_eq!(number(&report, "left_mapped"), 0);
    // 41 calls, and the free of what they left.
    assert_eq!(number(&report, "calls"), 25 * 42);
    assert_eq!(rows(&report, "round").iter().filter(|words| words[1] == other).count(), 12);
    let truth = bench.truth();
    assert_eq!(truth.threads.len(), 25, "each loading begins a log");
    for thread in &truth.threads {
        assert_eq!(thread.counters.values().map(|counter| counter.outer_calls).sum::<u64>(), 42);
    }
    assert!(truth.live().is_empty());
}

#[test]
fn two_copies_of_the_runtime_share_a_driver() {
    let bench = Bench::new("twocopies");
    let (one, other) = (bench.copy_of_cudart("one"), bench.copy_of_cudart("other"));
    let report = output_of(bench.play("twocopies", &["--cudart", &one, "--cudart", &other, "--calls", "60"]));
    assert_eq!((number(&report, "first"), number(&report, "second")), (60, 122));
    let truth = bench.truth();
    assert_eq!(truth.threads.len(), 1, "one driver has one log");
    assert_eq!(truth.outer_calls(), 182);
    // They share the context, but each loads the program's code for itself.
    assert_eq!(truth.counters()["cuInit"].inner_calls, 1, "the second finds the context of the first");
    assert_eq!(truth.counters()["cuLibraryLoadData"].inner_calls, 2);
}

#[test]
fn a_program_executes_another() {
    let bench = Bench::new("execs");
    let report = output_of(bench.play("execs", &["--calls", "40"]));
    let truth = bench.truth();
    assert_eq!(report.lines().map(|line| number(line, "calls")).collect::<Vec<_>>(), [40, 40]);
    assert_eq!(truth.pids().len(), 1, "it is the same process");
    assert_eq!(truth.threads.len(), 2);
    assert_eq!(truth.outer_calls(), 80);
}

#[test]
fn a_program_executes_another_with_the_runtime_linked_in() {
    let bench = Bench::new("execs-static");
    let program = bench.installed.staticjob.to_str().expect("text");
    output_of(bench.play("execs", &["--calls", "4", "--", program, "3"]));
    assert_eq!(bench.truth().outer_calls(), 4 + 3 * 5 + 2);
}

fn runs_static(name: &str, pick: fn(&simgpu::Installed) -> &Path) {
    let bench = Bench::new(name);
    let mut job = Command::new(pick(&bench.installed));
    job.arg("50").env("SIMGPU_LOG", bench.root.join("log")).stdin(Stdio::null());
    let report = output_of(job);
    assert_eq!(number(&report, "calls"), 50 * 5 + 2);
    let truth = bench.truth();
    assert_eq!(truth.outer_calls(), 252);
    for function in ["cudaMalloc", "cudaMemcpy", "cudaLaunchKernel", "cudaStreamSynchronize", "cudaFree"] {
        assert_eq!(outer(&truth, function), 50, "{function}");
    }
    assert_eq!(truth.counters()["cuMemAlloc_v2"].inner_calls, 50);
    assert_eq!(truth.counters()["cudaMalloc"].bytes, 50 * 65536);
    assert!(truth.live().is_empty());
}

#[test]
fn a_program_with_the_runtime_linked_in_is_logged() {
    runs_static("static", |installed| &installed.staticjob);
}

#[test]
fn so_is_a_stripped_one() {
    runs_static("static-stripped", |installed| &installed.staticjob_stripped);
}

/// The functions that a program defines, by `nm`.
fn symbols(program: &Path) -> Vec<String> {
    let mut nm = Command::new("nm");
    nm.arg(program);
    let lines = output_of(nm);
    lines.lines().filter_map(|line| line.rsplit_once(" T ").or(line.rsplit_once(" t "))).map(|l| l.1.into()).collect()
}

#[test]
fn only_the_program_that_is_not_stripped_has_the_runtimes_symbols() {
    let bench = Bench::new("static-symbols");
    let full = symbols(&bench.installed.staticjob);
    for function in ["cudaMalloc", "cudaLaunchKernel", "cudaMemcpy", "cudaFree", "cudaGraphLaunch"] {
        assert!(full.iter().any(|name| name == function), "{function}");
    }
    let driver = |name: &&String| name.starts_with("cu") && !name.starts_with("cuda");
    assert_eq!(full.iter().find(driver), None, "the driver is not in it");
    assert!(symbols(&bench.installed.staticjob_stripped).is_empty());
    for program in [&bench.installed.staticjob, &bench.installed.staticjob_stripped] {
        let mut readelf = Command::new("readelf");
        readelf.args(["-d", "--dyn-syms", "-W"]).arg(program);
        let told = output_of(readelf);
        assert!(told.contains("libc.so") && !told.contains("libcuda") && !told.contains("cudaMalloc"), "{told}");
    }
}

#[test]
fn a_held_static_program_has_no_driver_yet() {
    let bench = Bench::new("static-held");
    let mut command = Command::new(&bench.installed.staticjob);
    command.args(["5", "-"]).env("SIMGPU_LOG", bench.root.join("log")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut job = command.spawn().expect("start staticjob");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(job.stdout.take().expect("stdout")));
    let ready = lines.next().expect("a line").expect("text");
    assert_eq!(ready, format!("ready {}", job.id()));
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", job.id())).expect("its memory map");
    assert!(!maps.contains("libcuda"), "{maps}");
    drop(job.stdin.take());
    assert!(job.wait().expect("wait").success());
    assert_eq!(bench.truth().outer_calls(), 27);
}

#[test]
fn windows_say_what_the_loop_did() {
    let bench = Bench::new("windows");
    let report = output_of(bench.play("windows", &["--for-ms", "120", "--window-ms", "20", "--rate", "5000"]));
    let windows: Vec<Vec<u64>> =
        rows(&report, "window").iter().map(|row| row.iter().map(|word| word.parse().expect("u64")).collect()).collect();
    assert!(!windows.is_empty() && windows.len() <= 7, "{report}");
    assert!(windows.windows(2).all(|pair| pair[0][0] < pair[1][0]), "times ascend");
    assert!(windows.iter().all(|window| window[2] > 0), "CPU time was spent");
    let rounds: u64 = windows.iter().map(|window| window[1]).sum();
    assert_eq!(rounds, number(&report, "rounds"));
    assert!(rounds <= 5000, "computing lies between the calls");
    let last = report.lines().last().expect("a line");
    assert!(number(last, "work") > 1);
    let truth = bench.truth();
    assert_eq!(truth.outer_calls(), number(last, "calls"));
    assert!(outer(&truth, "cudaLaunchKernel") >= rounds);
}

#[test]
fn windows_end_with_stdin() {
    let bench = Bench::new("windows-stdin");
    let mut command =
        bench.play("windows", &["--for-ms", "0", "--window-ms", "5", "--call", "event", "--work", "1000"]);
    let mut job = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start simjob");
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(job.try_wait().expect("wait"), None, "it goes on while stdin is open");
    drop(job.stdin.take());
    let output = job.wait_with_output().expect("wait");
    assert!(output.status.success());
    assert!(outer(&bench.truth(), "cudaEventRecord") > 0);
}
