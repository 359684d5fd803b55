// SPDX-License-Identifier: Apache-2.0
//! Several jobs in one run: each has its own verdict, findings and figures, and none is taken for part of another.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::made::{LONG, MS, Made, call, reading, sleepy, tensor};
use common::mcp::Served;
use common::{GPUWHY, HeldSimjob, Place, Tracing, can_trace, one_at_a_time, sim, succeed, text};
use gpuwhy_model::ops::{KernelOp, TorchOp, kernel_op, torch_op};
use gpuwhy_model::{Call, TensorEvent};
use serde_json::{Value, json};
use std::process::Command;

/// Two jobs that have nothing in common but a shell; the second is on this device.
fn two_jobs(device: u8) -> (Place, [u64; 2]) {
    let place = Place::new();
    let launches = common::made::two_jobs(&place.db(), device);
    (place, launches)
}

fn explain(place: &Place, args: &[&str]) -> Value {
    let mut asked = Command::new(GPUWHY);
    asked.args(["explain", "--json", "--db"]).arg(place.db()).args(args);
    serde_json::from_slice(&succeed(&mut asked).stdout).unwrap()
}

fn screen(place: &Place, args: &[&str]) -> String {
    let mut asked = Command::new(GPUWHY);
    String::from_utf8(succeed(asked.args(["explain", "--db"]).arg(place.db()).args(args)).stdout).unwrap()
}

/// Without what is the file's and not the job's.
fn plain(mut report: Value) -> Value {
    report["run"] = Value::Null;
    report
}

fn sum(list: &Value, key: &str) -> u64 {
    list.as_array().unwrap().iter().map(|one| one[key].as_u64().unwrap()).sum()
}

#[test]
fn a_job_among_others_is_explained_as_if_it_were_alone() {
    let (both, launches) = two_jobs(1);
    let alone = [Place::new(), Place::new()];
    for (i, place) in alone.iter().enumerate() {
        let mut made = Made::new(&place.db());
        if i == 0 {
            sleepy(&mut made)
        } else {
            reading(&mut made, 1)
        };
        made.finish(LONG);
    }
    for (pid, alone, launches) in
        [("1000", &alone[0], launches[0]), ("1001", &alone[0], launches[0]), ("2000", &alone[1], launches[1])]
    {
        let report = explain(&both, &["--pid", pid, "--per-process"]);
        assert_eq!(sum(&report["gpus"], "launches"), launches, "{pid}: {report:#}");
        assert_eq!(plain(report), plain(explain(alone, &["--per-process"])), "process {pid}");
    }
    let refused = Command::new(GPUWHY).args(["explain", "--pid", "900", "--db"]).arg(both.db()).output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "the shell was not recorded");
}

#[test]
fn jobs_are_listed_worst_first() {
    let (place, launches) = two_jobs(1);
    let report = explain(&place, &[]);
    let jobs = report["jobs"].as_array().unwrap();
    let told: Vec<_> =
        jobs.iter().map(|job| (job["pid"].as_u64().unwrap(), job["launches"].as_u64().unwrap())).collect();
    assert_eq!(told, [(1000, launches[0]), (2000, launches[1])], "{report:#}");
    assert_eq!(jobs[0]["pids"], json!([1000, 1001]));
    assert_eq!(jobs[0]["severity"], "high", "{report:#}");
    for (job, pid) in jobs.iter().zip(["1000", "2000"]) {
        let own = explain(&place, &["--pid", pid]);
        assert_eq!(job["verdict"], own["verdict"]);
        let (summary, worst) = (job["summary"].as_str().unwrap(), own["findings"][0]["title"].as_str().unwrap());
        // The title and what it costs.
        assert!(summary.starts_with(&format!("{worst} (")) && summary.ends_with(')'), "{summary}");
        assert_eq!(own["jobs"], json!([]));
    }
    let lines: Vec<&str> = jobs.iter().map(|job| job["summary"].as_str().unwrap()).collect();
    let text = screen(&place, &[]);
    assert!(text.starts_with("2 jobs recorded, worst first\n"), "{text}");
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what} in {text}"));
    assert!(at("[HIGH]") < at("python3 a.py 1000") && at("python3 a.py 1000") < at("python3 b.py 2000"), "{text}");
    assert!(lines.iter().all(|line| text.contains(line.split(" (").next().unwrap())), "{text}");
    assert!(text.contains(&format!("gpuwhy explain --db {} --pid 1000", place.db().display())), "{text}");
}

#[test]
fn jobs_that_only_copy_or_run_out_of_memory_are_listed() {
    let place = Place::new();
    let mut made = Made::new(&place.db());
    sleepy(&mut made);
    made.process(2000, "python3 copies.py", Some(900));
    let copy = |at: u64| Call { arg0: Some(1 << 20), ..call("cudaMemcpyAsync", 2000, at * MS, 20_000) };
    made.calls.extend((1..1000).map(copy));
    made.process(3000, "python3 dies.py", Some(900));
    let refused = Call { arg0: Some(8 << 30), ret: 2, ..call("cudaMalloc", 3000, 50 * MS, 20_000) };
    made.calls.push(refused);
    let exit = kernel_op(KernelOp::ProcessExit);
    made.calls.push(Call { op: exit, arg0: Some(1), arg1: Some(0), ..call("cudaMalloc", 3000, 60 * MS, 0) });
    made.tensors.push(TensorEvent { op: torch_op(TorchOp::OutOfMemory), ..tensor(3000, 51 * MS, 8 << 30, None) });
    made.process(4000, "python3 idle.py", Some(900));
    made.calls.push(call("cudaSetDevice", 4000, 60 * MS, 1_000));
    made.finish(LONG);
    let report = explain(&place, &[]);
    let pids: Vec<u64> = report["jobs"].as_array().unwrap().iter().map(|job| job["pid"].as_u64().unwrap()).collect();
    assert_eq!(pids, [3000, 1000, 2000], "{report:#}");
    assert_eq!(report["jobs"][0]["severity"], "critical");
    let text = screen(&place, &[]);
    assert!(text.starts_with("3 jobs recorded, worst first\n\n[CRITICAL] python3 dies.py 3000"), "{text}");
}

#[test]
fn jobs_beyond_those_shown_are_counted() {
    let place = Place::new();
    let mut made = Made::new(&place.db());
    for pid in (1000..1020).map(|n| n * 10) {
        made.process(pid, "python3 a.py", Some(900));
        made.steps(pid, 0, 1000 * MS, 20 * MS, None);
    }
    made.finish(LONG);
    let report = explain(&place, &[]);
    assert_eq!((report["jobs"].as_array().unwrap().len(), &report["more_jobs"]), (16, &json!(4)));
    assert!(report["verdict"].as_str().unwrap().starts_with("20 jobs were recorded; "), "{}", report["verdict"]);
    let text = screen(&place, &[]);
    assert!(text.starts_with("20 jobs recorded, 16 shown, worst first\n"), "{text}");
}

#[test]
fn who_shares_the_gpu_is_named_and_is_no_part_of_the_job() {
    let (place, _) = two_jobs(0);
    for (pid, other) in [("1000", "python3 b.py 2000"), ("2000", "python3 a.py 1000")] {
        let report = explain(&place, &["--pid", pid]);
        let text = report.to_string();
        assert!(!text.contains("Another process of the job"), "{report:#}");
        let shared = report["findings"].as_array().unwrap().iter().find(|finding| finding["kind"] == "gpu_shared");
        // The first has work 20 ms of 100, the second 40 of 50: in a fifth of the time both have, save for edges.
        if pid == "2000" || shared.is_some() {
            let shared = shared.unwrap_or_else(|| panic!("{pid} does not share: {report:#}"));
            assert_eq!(shared["title"], "Another job used the GPU at the same time");
            let detail = shared["root_cause"]["detail"].as_str().unwrap();
            assert!(detail.starts_with(&format!("{other} had work on the same GPU")), "{detail}");
        }
        assert!(report["verdict"].as_str().unwrap().contains("no work from this job"), "{report:#}");
    }
    // On another device there is nothing to share.
    let (apart, _) = two_jobs(1);
    assert!(!explain(&apart, &[]).to_string().contains("gpu_shared"));
}

#[test]
fn every_tool_narrows_to_the_job() {
    let (place, launches) = two_jobs(1);
    let mut served = Served::run(&place.db());
    let stats = served.call("get_trace_stats", json!({})).unwrap();
    let jobs: Vec<_> = stats["jobs"].as_array().unwrap().iter().map(|job| job["pid"].as_u64().unwrap()).collect();
    assert_eq!(jobs, [1000, 2000], "{stats:#}");
    for (pid, launches, other) in
        [(1000, launches[0], "b.py"), (1001, launches[0], "b.py"), (2000, launches[1], "a.py")]
    {
        let stats = served.call("get_trace_stats", json!({"pid": pid})).unwrap();
        let op = stats["ops"].as_array().unwrap().iter().find(|op| op["op"] == "cudaLaunchKernel").unwrap();
        assert_eq!(op["calls"], launches, "{pid}: {stats:#}");
        assert_eq!(sum(&stats["processes"], "launches"), launches);
        assert_eq!(stats.get("jobs"), None, "{stats:#}");
        let chains = served.call("get_causal_chains", json!({"pid": pid})).unwrap();
        assert!(!chains["findings"].as_array().unwrap().is_empty(), "{chains:#}");
        let said = [&stats, &chains].map(ToString::to_string).concat();
        assert!(!said.contains(other), "{pid} is told of {other}: {said}");
        let timeline = served.call("get_timeline", json!({"pid": pid})).unwrap();
        assert_eq!(sum(&timeline["buckets"], "launches"), launches, "{timeline:#}");
    }
}

#[test]
fn ranks_of_a_launcher_are_one_job_and_a_single_job_is_not_listed() {
    let place = Place::new();
    let mut made = Made::new(&place.db());
    made.process(3000, "python3 torchrun", Some(900));
    for rank in 0..2 {
        made.process(3001 + rank, "python3 train.py", Some(3000));
        made.steps(3001 + rank, rank as u8, 100 * MS, 90 * MS, None);
    }
    made.finish(LONG);
    let report = explain(&place, &[]);
    assert_eq!(report["jobs"], json!([]), "{report:#}");
    assert_eq!(sum(&report["processes"], "launches"), 400);
    assert_eq!(plain(explain(&place, &["--pid", "3002"])), plain(report));
    assert!(!screen(&place, &[]).contains("jobs recorded"));
}

/// Starts two processes that use CUDA, waits until they are told to go on, and for their end.
const LAUNCHER: &str = "
import subprocess, sys
jobs = [subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
pids = [job.stdout.readline().split()[1] for job in jobs]
print('ready', *pids, flush=True)
sys.stdin.readline()
for job in jobs:
    job.communicate('go\\n')
sys.exit(max(job.returncode for job in jobs))
";

#[test]
fn a_launcher_that_uses_no_gpu_is_recorded_with_its_ranks() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    // The name is what tells a launcher from any other program that starts two jobs.
    for (name, jobs) in [("torchrun", 2), ("sweep.py", 3)] {
        let (place, other) = (Place::new(), Place::new());
        let script = place.dir.path().join(name);
        std::fs::write(&script, LAUNCHER).unwrap();
        let simjob = [sim().simjob.to_str().unwrap(), "--cudart", sim().cudart.to_str().unwrap()];
        let args = ["--mix", "mixed", "--calls", "2000"];
        let mut ranks = Command::new("python3");
        ranks.arg(&script).args(simjob).args(args).env("SIMGPU_LOG", place.log());
        let mut ranks = HeldSimjob::start(&mut ranks);
        let mut alone = HeldSimjob::start(&mut other.simjob(&args));
        let tracing = Tracing::start(&mut place.trace(), &place, 2);
        let pids: Vec<u64> = alone.pids.iter().chain(&ranks.pids).map(|pid| u64::from(*pid)).collect();
        alone.pids.iter().chain(&ranks.pids).for_each(|pid| tracing.wait_for_process(*pid));
        ranks.go();
        alone.go();
        assert!(ranks.end().0.success() && alone.end().0.success());
        assert!(tracing.interrupt().status.success());
        let report = explain(&place, &[]);
        // Whatever else uses CUDA on this machine is none of theirs.
        let ours =
            |job: &&Value| job["pids"].as_array().unwrap().iter().any(|pid| pids.contains(&pid.as_u64().unwrap()));
        let found = report["jobs"].as_array().unwrap().iter().filter(ours).count();
        let mut ask = Command::new(GPUWHY);
        ask.args(["query", "--db"]).arg(place.db()).arg("SELECT pid, parent, name FROM processes");
        assert_eq!(found, jobs, "{name}, jobs of {pids:?}: {}", text(&succeed(&mut ask)));
    }
}
