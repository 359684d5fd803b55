// SPDX-License-Identifier: Apache-2.0
//! Runs simjob without any tracing, and checks the truth log against what
//! simjob says it did and against what must always hold.

#![allow(missing_docs, clippy::expect_used)]

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use common::{Bench, number, output_of, pids};
use simgpu::log::{Counter, Engine, Truth};

/// Work of one engine of one device of one process never overlaps.
fn assert_engines_serial(truth: &Truth) {
    let mut by_engine: BTreeMap<_, Vec<(u64, u64)>> = BTreeMap::new();
    for busy in truth.busy() {
        assert!(busy.start_ns < busy.end_ns);
        let key = (busy.pid, busy.device, busy.engine);
        by_engine.entry(key).or_default().push((busy.start_ns, busy.end_ns));
    }
    for (key, mut intervals) in by_engine {
        intervals.sort_unstable();
        for pair in intervals.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "{key:?}: {pair:?} overlap");
        }
    }
}

/// The records say the same as the counters.
fn assert_records_match_counters(truth: &Truth) {
    for thread in &truth.threads {
        let mut counted: BTreeMap<_, Counter> = BTreeMap::new();
        for record in thread.records() {
            let simgpu::log::Record::Call(call) = record else {
                continue;
            };
            assert!(call.enter_ns <= call.exit_ns);
            let counter = counted.entry(call.function.clone()).or_default();
            if call.depth > 0 {
                counter.inner_calls += 1;
                continue;
            }
            counter.outer_calls += 1;
            counter.outer_ns += call.exit_ns - call.enter_ns;
            if call.ret == 0 {
                counter.bytes += call.bytes;
            } else {
                counter.errors += 1;
            }
        }
        assert_eq!(counted, thread.counters, "{}", thread.path.display());
    }
}

fn counter(truth: &Truth, function: &str) -> Counter {
    truth.counters().get(function).copied().unwrap_or_default()
}

const LOAD: &[&str] = &["--procs", "2", "--threads", "2", "--calls", "20011", "--mix", "mixed", "--kernel-ns", "300"];

#[test]
fn mixed_load_is_exact() {
    let bench = Bench::new("mixed");
    let report = output_of(bench.simjob(LOAD));
    let truth = bench.truth();
    assert_eq!(number(&report, "calls"), 20011);
    assert_eq!(number(&report, "errors"), 0);
    let made = number(&report, "calls") + number(&report, "setup_calls");
    assert_eq!(truth.outer_calls(), made);
    assert_eq!(truth.pids(), pids(&report));
    for pid in truth.pids() {
        assert_eq!(truth.process(pid).count(), 2, "one file per thread");
    }
    assert_engines_serial(&truth);
    assert_records_match_counters(&truth);
    assert!(truth.live().is_empty());
    assert!(truth.threads.iter().all(|thread| thread.open.is_empty()));

    // Every layer was passed: each runtime launch made one driver launch.
    let launches = counter(&truth, "cudaLaunchKernel");
    assert!(launches.outer_calls > 1000);
    assert_eq!(counter(&truth, "cuLaunchKernel").inner_calls, launches.outer_calls);
    assert!(counter(&truth, "cuLaunchKernel").outer_calls > 100);

    // Every byte that calls were asked to move was moved by the right engine.
    for direction in [Engine::HostToDevice, Engine::DeviceToHost] {
        let asked: u64 =
            truth.calls().filter(|call| call.depth == 0 && call.direction == direction).map(|call| call.bytes).sum();
        let moved: u64 = truth.busy().filter(|busy| busy.engine == direction).map(|busy| busy.bytes).sum();
        assert!(asked > 0);
        assert_eq!(asked, moved, "{direction:?}");
    }
}

#[test]
fn counts_level_counts_the_same() {
    let full = Bench::new("full");
    output_of(full.simjob(LOAD));
    let counts = Bench::new("counts");
    let mut job = counts.simjob(LOAD);
    job.env("SIMGPU_LOG_LEVEL", "counts");
    output_of(job);
    assert_eq!(counts.truth().records().count(), 0);
    let without_time = |truth: &Truth| {
        let mut counters = truth.counters();
        counters.values_mut().for_each(|counter| counter.outer_ns = 0);
        counters
    };
    assert_eq!(without_time(&counts.truth()), without_time(&full.truth()));
}

#[test]
fn hold_waits_for_a_line() {
    let bench = Bench::new("hold");
    let mut job = bench
        .simjob(&["--procs", "2", "--calls", "1000", "--rate", "100000", "--hold"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start simjob");
    let mut lines = BufReader::new(job.stdout.take().expect("stdout")).lines();
    let ready = lines.next().expect("a line").expect("text");
    let mut waiting: Vec<u32> = ready
        .strip_prefix("ready ")
        .expect("the ready line")
        .split(' ')
        .map(|pid| pid.parse().expect("a pid"))
        .collect();
    waiting.sort_unstable();
    assert!(bench.truth().threads.is_empty(), "no call before the line");
    job.stdin.take().expect("stdin").write_all(b"\n").expect("send the line");
    let report = lines.next().expect("a report").expect("text");
    assert!(job.wait().expect("wait").success());
    assert_eq!(pids(&report), waiting);
    assert_eq!(number(&report, "calls"), 1000);
    assert_eq!(counter(&bench.truth(), "cudaLaunchKernel").outer_calls, 1000);
}

#[test]
fn nested_and_recursive_calls_are_inner() {
    let bench = Bench::new("reenter");
    let report = output_of(bench.simjob(&["--reenter", "--calls", "50"]));
    let truth = bench.truth();
    assert_eq!(truth.outer_calls(), 50 + number(&report, "setup_calls"));
    let syncs = counter(&truth, "cudaStreamSynchronize");
    assert_eq!((syncs.outer_calls, syncs.inner_calls), (50, 150));
    assert_eq!(counter(&truth, "cuStreamSynchronize").inner_calls, 200);
    assert_eq!(counter(&truth, "cudaLaunchKernel").inner_calls, 150);
    assert_eq!(number(&report, "inner_calls"), 50 * 3 * 4);
    // Four pairs of runtime and driver synchronisation inside each other.
    assert_eq!(truth.calls().map(|call| call.depth).max(), Some(7));
    assert_records_match_counters(&truth);
}

#[test]
fn memory_runs_out_and_fragments() {
    let bench = Bench::new("oom");
    let mut job = bench.simjob(&["--oom", "--chunk", "1048576"]);
    job.env("SIMGPU_MEM", "64M");
    let report = output_of(job);
    let truth = bench.truth();
    // 64 chunks fit; the 65th fails, and so do two chunks in one piece
    // although 32 are free by then.
    assert_eq!(number(&report, "wanted_bytes"), 2 << 20);
    assert_eq!(number(&report, "free_bytes"), 32 << 20);
    let mallocs = counter(&truth, "cudaMalloc");
    assert_eq!((mallocs.outer_calls, mallocs.errors), (66, 2));
    assert_eq!(mallocs.bytes, 64 << 20);
    let made = number(&report, "calls") + number(&report, "setup_calls");
    assert_eq!(truth.outer_calls(), made);
    assert_eq!(counter(&truth, "cudaFree").outer_calls, 64);
    let failed: Vec<i32> = truth.calls().map(|c| c.ret).filter(|ret| *ret != 0).collect();
    assert_eq!(failed, [2, 2, 2, 2], "inner and outer, twice out of memory");
    assert!(truth.live().is_empty());
}

#[test]
fn a_process_killed_inside_a_call_leaves_its_log() {
    let bench = Bench::new("killed");
    let report = output_of(bench.simjob(&["--exit-in-call", "--procs", "2"]));
    let truth = bench.truth();
    assert_eq!(truth.pids(), pids(&report));
    for thread in &truth.threads {
        let open: Vec<&str> = thread.open.iter().map(|call| &*call.function).collect();
        assert_eq!(open, ["cudaStreamSynchronize", "cuStreamSynchronize"]);
    }
    assert_eq!(counter(&truth, "cudaStreamSynchronize"), Counter::default());
    assert_eq!(counter(&truth, "cudaLaunchKernel").outer_calls, 2);
    assert_eq!(truth.busy().count(), 2);
    assert_records_match_counters(&truth);
}

fn tour(bench: &Bench, cet: bool) {
    let mut job = bench.simjob(&[]);
    if cet {
        job = std::process::Command::new(&bench.installed.simjob);
        job.arg("--cudart").arg(&bench.installed.cet_cudart);
        job.env("SIMGPU_LOG", bench.root.join("log"));
    }
    job.arg("--tour").env("SIMGPU_MEM", "2G");
    output_of(job);
    let truth = bench.truth();
    let counters = truth.counters();
    for function in truth.threads[0].functions() {
        let calls = counters.get(function).map_or(0, |counter| counter.outer_calls);
        assert!(calls > 0, "{function} was not called");
    }
    // Captured launches run when the graph is launched, not before.
    let queued_by = |name: &str| truth.busy().filter(|busy| &*busy.function == name).count();
    assert_eq!(queued_by("cuGraphLaunch"), 2);
    assert_eq!(queued_by("cuLaunchKernel"), 2);
    assert_engines_serial(&truth);
    assert_records_match_counters(&truth);
    assert!(truth.live().is_empty());
}

#[test]
fn every_function_can_be_called() {
    tour(&Bench::new("tour"), false);
}

#[test]
fn every_function_can_be_called_with_control_flow_protection() {
    tour(&Bench::new("tour-cet"), true);
}

#[test]
fn the_training_program_trains() {
    let bench = Bench::new("train");
    let mut train = std::process::Command::new("python3");
    train
        .arg(&bench.installed.train_py)
        .args(["--steps", "3", "--workers", "1", "--batch-ms", "1"])
        .env("SIMGPU_LOG", bench.root.join("log"));
    let printed = output_of(train);
    assert!(printed.starts_with("done: 3 steps"), "{printed}");
    let truth = bench.truth();
    assert_eq!(truth.pids().len(), 1, "the workers make no calls");
    assert_eq!(counter(&truth, "cudaStreamSynchronize").outer_calls, 6);
    assert_eq!(counter(&truth, "cudaLaunchKernel").outer_calls, 3 * (24 * 13 + 1));
    assert!(truth.live().is_empty());
}
