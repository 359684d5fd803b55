// SPDX-License-Identifier: Apache-2.0
//! C++ exceptions that pass through libc10, in a process and in those that it forks.

#![allow(missing_docs, clippy::expect_used)]

mod common;

use std::process::{Command, Stdio};

use common::{Bench, number, output_of};
use simgpu::log::detail::Detail;

const REPORT: &str = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";

#[test]
fn what_is_thrown_through_libc10_arrives() {
    let bench = Bench::new("throws");
    let mut job = Command::new(&bench.installed.throwjob);
    job.args(["3000", "2", "2", "48"]).env("SIMGPU_LOG", bench.root.join("log")).stdin(Stdio::null());
    let told = output_of(job);
    assert_eq!(told.lines().count(), 7, "two children with two each, and the parent");
    let truth = bench.truth();
    assert_eq!(truth.pids().len(), 7);
    for line in told.lines() {
        let pid = u32::try_from(number(line, "pid")).expect("a pid");
        let (thrown, passed) = (number(line, "thrown"), number(line, "passed"));
        assert_eq!((number(line, "caught"), number(line, "bad")), (thrown, 0), "{line}");
        let reports: Vec<_> = truth.calls().filter(|call| call.pid == pid && &*call.function == REPORT).collect();
        // A call that an exception left is in the log, too, and nothing stays open.
        assert_eq!(reports.iter().filter(|call| call.ret == -1).count() as u64, thrown, "{line}");
        assert_eq!(reports.iter().filter(|call| call.ret == 0).count() as u64, passed, "{line}");
        assert!(reports.iter().all(|call| call.depth == 0));
        let counters = truth.process_counters(pid);
        let by_program = ["cudaMalloc", "cudaLaunchKernel", "cudaStreamSynchronize", "cudaFree"];
        let calls: u64 = by_program.iter().map(|function| counters[*function].outer_calls).sum();
        // The allocator's own mallocs come on top of the program's.
        assert!(calls + 2 >= number(line, "cuda_calls"), "{line}");
        assert!(truth.process(pid).all(|thread| thread.open.is_empty()));
    }
    let parent = told.lines().last().expect("the parent");
    assert!(number(parent, "thrown") > 2000, "{parent}");
}

#[test]
fn without_a_reporter_nothing_is_thrown() {
    let bench = Bench::new("throws-not");
    let report = output_of(bench.play("torch", &["--rounds", "1"]));
    let truth = bench.truth();
    let reports: Vec<_> = truth.calls().filter(|call| &*call.function == REPORT).collect();
    assert_eq!(reports.len() as u64, number(&report, "allocs") + number(&report, "frees"));
    assert!(reports.iter().all(|call| call.ret == 0 && matches!(call.detail, Some(Detail::Report(_)))));
}
