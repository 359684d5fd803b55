// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy memory`: really traces jobs with known memory behaviour on a simulated GPU. The truth is what the jobs report
//! and the simulated allocator's own log.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::jobs::{Waiting, assert_nothing_lost, report as said_report};
use common::{GPUWHY, Place, Tracing, can_trace, number, one_at_a_time, refusal, sim, succeed, text};
use serde_json::Value;
use simgpu::log::detail::{Detail, Report};
use std::collections::BTreeMap;
use std::process::{Command, Output};

/// A traced memjob: its own report, and gpuwhy's memory report.
struct Traced {
    place: Place,
    truth: Value,
    memory: Value,
}

fn trace(place: &Place, args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = place.trace();
    command.envs(env.iter().copied()).args(["--quiet", "--", "python3"]).arg(&sim().memjob_py).args(args);
    command.output().unwrap()
}

impl Traced {
    fn new(args: &[&str]) -> Self {
        let place = Place::new();
        let output = trace(&place, args, &[]);
        assert!(output.status.success(), "{}", text(&output));
        Self::of(place, &output)
    }

    fn of(place: Place, output: &Output) -> Self {
        assert_nothing_lost(&place.run_file());
        let (truth, memory) = (said_report(&text(output)), json(&place, &[]));
        Self { place, truth, memory }
    }

    /// The marked line of memjob.py.
    fn line(&self, mark: &str) -> String {
        format!("memjob.py:{}", self.truth["lines"][mark].as_u64().unwrap())
    }

    fn leaks(&self) -> &Vec<Value> {
        self.memory["leaks"].as_array().unwrap()
    }

    fn finding(&self, kind: &str) -> &Value {
        let found = self.memory["findings"].as_array().unwrap().iter().find(|finding| finding["kind"] == kind);
        found.unwrap_or_else(|| panic!("no {kind}: {:#}", self.memory))
    }

    fn space(&self) -> &Value {
        let spaces = self.memory["spaces"].as_array().unwrap();
        spaces.iter().find(|space| space["source"] == "torch").unwrap_or_else(|| panic!("{:#}", self.memory))
    }

    /// There is exactly one leak, with the job's line, its slope within 2 %, and its onset.
    fn assert_leak(&self, mark: &str) -> &Value {
        let [leak] = self.leaks().as_slice() else { panic!("one leak: {:#}", self.memory["leaks"]) };
        assert_eq!(leak["line"], self.line(mark), "{leak:#}");
        let (found, truth) = (leak["bytes_per_step"].as_f64().unwrap(), self.truth["bytes_per_step"].as_f64().unwrap());
        assert!((found / truth - 1.0).abs() < 0.02, "{found} instead of {truth} a step: {leak:#}");
        assert_eq!(leak["onset_step"], self.truth["onset"], "{leak:#}");
        assert_eq!(self.finding("memory_leak")["root_cause"]["line"], self.line(mark));
        self.assert_steps();
        leak
    }

    fn assert_no_leak(&self) {
        assert!(self.leaks().is_empty(), "{:#}", self.memory["leaks"]);
        self.assert_steps();
    }

    /// All of the job's steps were found, with high certainty.
    fn assert_steps(&self) {
        let steps = &self.memory["steps"][0];
        assert_eq!((&steps["steps"], &steps["certainty"]), (&self.truth["steps"], &"high".into()), "{steps:#}");
        assert_eq!(steps["launches"], 12, "{steps:#}");
    }

    /// The peak is the highest total the allocator ever reported, and live memory by line adds up to it.
    fn assert_exact_peak(&self) {
        let reports = allocator_reports(&self.place);
        let most = |pick: fn(&Report) -> u64| reports.iter().map(pick).max().unwrap();
        let space = self.space();
        assert_eq!(space["peak_allocated"], most(|report| report.total_allocated), "{space:#}");
        assert_eq!(space["peak_reserved"], most(|report| report.total_reserved), "{space:#}");
        let by_line: u64 = space["at_peak"].as_array().unwrap().iter().map(|row| row["bytes"].as_u64().unwrap()).sum();
        assert_eq!(by_line, most(|report| report.total_allocated), "{space:#}");
        assert_eq!((&space["preexisting"], &space["peak_preexisting"]), (&0.into(), &0.into()));
        let balance = &space["balance"];
        let number = |key: &str| balance[key].as_u64().unwrap();
        let allocs = reports.iter().filter(|report| report.size > 0).count() as u64;
        assert_eq!((number("allocs"), number("lost_frees")), (allocs, 0));
        assert_eq!(number("alloc_bytes") - number("free_bytes"), number("live_bytes"));
    }

    fn growth(&self, mark: &str) -> String {
        let found = self.memory["growths"].as_array().unwrap().iter().find(|growth| growth["line"] == self.line(mark));
        found.map_or_else(|| "none".to_owned(), |growth| growth["kind"].as_str().unwrap().to_owned())
    }
}

/// The simulated allocator's reports, from its own log.
fn allocator_reports(place: &Place) -> Vec<Report> {
    let truth = place.truth();
    let report = |call: simgpu::log::Call| match &call.detail {
        Some(Detail::Report(report)) if !call.function.contains("OutOfMemory") => Some(*report),
        _ => None,
    };
    truth.calls().filter_map(report).collect()
}

fn memory(place: &Place, args: &[&str]) -> Command {
    let mut command = Command::new(GPUWHY);
    command.args(["memory", "--db"]).arg(place.db()).args(args);
    command
}

fn json(place: &Place, args: &[&str]) -> Value {
    serde_json::from_slice(&succeed(memory(place, args).arg("--json")).stdout).unwrap()
}

fn shown(place: &Place, args: &[&str]) -> String {
    String::from_utf8(succeed(&mut memory(place, args)).stdout).unwrap()
}

#[test]
fn one_tensor_a_step_is_a_leak_from_the_step_it_began_in() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let traced = Traced::new(&["leak", "--onset", "40"]);
    let leak = traced.assert_leak("leak").clone();
    traced.assert_exact_peak();
    assert_eq!(leak["grown_bytes"], traced.truth["kept_bytes"], "to the byte: {leak:#}");
    assert_eq!(leak["certainty"], "high", "{leak:#}");
    let fix = traced.finding("memory_leak")["fixes"][0]["text"].as_str().unwrap();
    assert!(fix.contains(".item()") && fix.contains("detached clone"), "{fix}");
    // An explanation of the run has it, too, and leaves it in the file.
    let mut explain = Command::new(GPUWHY);
    let explained = succeed(explain.args(["explain", "--json", "--db"]).arg(traced.place.db()));
    let explained: Value = serde_json::from_slice(&explained.stdout).unwrap();
    assert!(explained["findings"].as_array().unwrap().contains(traced.finding("memory_leak")), "{explained:#}");
    let stored = "SELECT COUNT(*) FROM causal_chains WHERE kind = 'memory_leak'";
    assert_eq!(number(&traced.place.run_file(), stored), 1);
    // The same for people: the first screen, everything, and one section.
    let first = shown(&traced.place, &[]);
    for part in [&traced.line("leak"), "since step 40", "HIGH", "Fix: ", "█ in use", "Top lines at the peak", "More: "]
    {
        assert!(first.contains(part), "{part} is missing in\n{first}");
    }
    assert!(first.lines().count() <= 40 && !first.contains("(certain)"), "{first}");
    let all = shown(&traced.place, &["--full"]);
    for part in ["memory_leak", &traced.line("leak"), "since step 40", "█ in use", "In use at the peak", "(certain)"]
    {
        assert!(all.contains(part), "{part} is missing in\n{all}");
    }
    assert!(!first.contains('\x1b') && !all.contains('\x1b'), "no terminal, no colours");
    let peak = shown(&traced.place, &["--at-peak"]);
    assert!(peak.contains(&traced.line("model")) && !peak.contains("Growth"), "{peak}");
}

/// The answer is the same on a machine without the job's files.
#[test]
fn a_leak_is_fixed_the_same_way_once_the_source_is_gone() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let own = simgpu::install(&place.dir.path().join("sim")).unwrap();
    let mut command = place.trace();
    command.env("LD_LIBRARY_PATH", &own.dir);
    command.args(["--quiet", "--", "python3"]).arg(&own.memjob_py).args(["leak", "--steps", "80", "--onset", "20"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let source = std::fs::read_to_string(&own.memjob_py).unwrap();
    std::fs::remove_dir_all(&own.dir).unwrap();
    let traced = Traced::of(place, &output);
    let fix = traced.finding("memory_leak")["fixes"][0]["text"].as_str().unwrap();
    assert!(fix.contains("detached clone"), "{fix}");
    // The run file has the lines as they were.
    let file = traced.place.run_file();
    let mut rows = file.prepare("SELECT line, text FROM source_lines WHERE file LIKE '%/memjob.py'").unwrap();
    let kept = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let kept: Vec<(u32, String)> = kept.collect::<Result<_, _>>().unwrap();
    assert!(kept.len() > 3, "{kept:?}");
    for (line, text) in kept {
        assert_eq!(text, source.lines().nth(line as usize - 1).unwrap().trim(), "line {line}");
    }
}

#[test]
fn the_same_leak_at_half_the_step_rate_leaks_as_much_a_step() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    for ms in ["4", "8"] {
        let traced = Traced::new(&["leak", "--steps", "100", "--step-ms", ms]);
        let leak = traced.assert_leak("leak");
        assert!(leak["bytes_per_second"].as_f64().unwrap() > 0.0, "{leak:#}");
    }
}

#[test]
fn a_slow_leak_in_noise_of_the_same_line_is_found() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let traced = Traced::new(&["slow_leak", "--steps", "300"]);
    traced.assert_leak("slow_leak");
    traced.assert_exact_peak();
}

#[test]
fn bounded_growth_is_not_a_leak() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    for (mode, kind) in [
        ("healthy", "none"),
        ("cache", "settled"),
        ("renewed", "renewed"),
        ("warmup", "none"),
        ("sawtooth", "sawtooth"),
    ] {
        let traced = Traced::new(&[mode]);
        traced.assert_no_leak();
        traced.assert_exact_peak();
        let said = if mode == "healthy" { "none".to_owned() } else { traced.growth(mode) };
        // A warm-up that ends before growth is first checked leaves no trace.
        assert!(said == kind || mode == "warmup" && said == "settled", "{mode}: {said}");
        assert!(traced.memory["verdict"].as_str().unwrap().contains("No leak found"), "{mode}");
    }
}

#[test]
fn memory_that_empty_cache_returns_and_pytorch_takes_again_is_reported_by_line() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let output = trace(&place, &["churn", "--steps", "60"], &[("SIMGPU_ALLOC_US", "300")]);
    let traced = Traced::of(place, &output);
    traced.assert_no_leak();
    let one = &traced.memory["fragmentation"][0];
    assert_eq!(one["returned_by"][0]["line"], traced.line("churn"), "{one:#}");
    // Every segment's allocation and free, by the simulated driver's own log.
    let truth = traced.place.truth();
    let made = truth.calls().filter(|call| &*call.function == "cudaMalloc" && call.ret == 0);
    let freed = truth.calls().filter(|call| &*call.function == "cudaFree");
    assert_eq!((&one["segments"], &one["returned"]), (&made.count().into(), &freed.count().into()), "{one:#}");
    assert_eq!(one["past_allocator"], serde_json::json!([]));
    let found = traced.finding("fragmentation");
    assert_eq!(found["root_cause"]["kind"], "empty_cache", "{found:#}");
    assert_eq!(found["root_cause"]["line"], traced.line("churn"));
}

#[test]
fn running_out_of_memory_is_explained() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let settings = place.dir.path().join("nvml.conf");
    std::fs::write(&settings, "count 1\nmemory_total 268435456\nmemory_used 200000000\n").unwrap();
    let env = [("SIMGPU_MEM", "256M"), ("SIMGPU_NVML", settings.to_str().unwrap())];
    let output = trace(&place, &["oom", "--steps", "2000"], &env);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let traced = Traced::of(place, &output);
    let log = traced.place.truth();
    let refused: Vec<Report> = log
        .calls()
        .filter(|call| call.function.contains("OutOfMemory"))
        .filter_map(|call| if let Some(Detail::Report(report)) = &call.detail { Some(*report) } else { None })
        .collect();
    let oom = &traced.memory["ooms"][0];
    assert_eq!(traced.memory["oom_count"], refused.len());
    let numbers = ["asked", "allocated", "reserved"].map(|key| oom[key].as_u64().unwrap());
    assert_eq!(numbers, [refused[0].size.unsigned_abs(), refused[0].total_allocated, refused[0].total_reserved]);
    assert_eq!(oom["fatal"], true, "{oom:#}");
    let live: u64 = oom["live"].as_array().unwrap().iter().map(|row| row["bytes"].as_u64().unwrap()).sum();
    assert_eq!(live, refused[0].total_allocated, "what was live adds up: {oom:#}");
    assert_eq!(oom["live"][0]["line"], traced.line("leak"), "{oom:#}");
    assert_eq!(oom["live"][0]["bytes"], traced.truth["kept_bytes"], "{oom:#}");
    let found = traced.finding("oom");
    assert_eq!((&found["severity"], &found["root_cause"]["kind"]), (&"critical".into(), &"leak".into()), "{found:#}");
    assert_eq!(found["root_cause"]["line"], traced.line("leak"), "{found:#}");
    let story = shown(&traced.place, &["--oom"]);
    for part in ["Out of memory", "asked for", "the process ended", "stop the leak at", &traced.line("leak")] {
        assert!(story.contains(part), "{part} is missing in\n{story}");
    }
}

#[test]
fn a_refusal_that_was_caught_is_not_fatal() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let traced = Traced::new(&["caught", "--steps", "60", "--onset", "30"]);
    traced.assert_no_leak();
    let oom = &traced.memory["ooms"][0];
    assert_eq!((&oom["fatal"], &oom["asked"], &oom["step"]), (&false.into(), &(1_u64 << 40).into(), &30.into()));
    assert_eq!(oom["line"], traced.line("caught"), "{oom:#}");
    assert_eq!(traced.finding("oom")["root_cause"]["kind"], "large_request");
    assert!(oom["stack"][0].as_str().unwrap().contains("simcuda.py"), "{oom:#}");
}

#[test]
fn the_memory_of_a_killed_job_is_known() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::new();
    let output = trace(&place, &["killed", "--steps", "60"], &[]);
    assert_eq!(output.status.code(), Some(128 + 9), "{}", text(&output));
    let traced = Traced::of(place, &output);
    traced.assert_leak("leak");
    let end = &traced.memory["ends"][0];
    assert_eq!(end["signal"], 9, "{end:#}");
    let rows = end["live"].as_array().unwrap();
    let of = |mark: &str| rows.iter().find(|row| row["line"] == traced.line(mark)).unwrap()["bytes"].clone();
    assert_eq!(of("leak"), traced.truth["kept_bytes"]);
    assert_eq!(of("model"), 64 * 768 * 1024);
    let (last, had) = (end["before"].as_array().unwrap().last().unwrap(), end["allocated"].as_u64());
    assert!(last["allocated_least"].as_u64() <= had && had <= last["allocated"].as_u64() && had > Some(0), "{end:#}");
    assert!(end["last_line"].as_str().unwrap().starts_with("memjob.py:"), "{end:#}");
}

/// PyTorch's `backward()`: the caller makes the first gradient, autograd's threads, which run no Python, all others.
const AUTOGRAD: &str = "\
import simtorch

def backward(sizes):
    first = simtorch.empty(512)
    return [first] + [simtorch.empty(size, elsewhere=True) for size in sizes]
";

const BACKWARD_JOB: &str = "\
import simtorch
from torch import autograd

def step(sizes):
    hidden = simtorch.empty(1 << 20)
    gradients = autograd.backward(sizes)
    optimizer = simtorch.empty(2 << 20)
    return simtorch.empty(3 << 20, elsewhere=True)

simtorch.empty(4096, elsewhere=True)
for _ in range(40):
    step([3 << 20, 5 << 20])
";

#[test]
fn gradients_count_for_the_line_that_called_backward() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let packages = place.dir.path().join("site-packages");
    std::fs::create_dir_all(packages.join("torch/autograd")).unwrap();
    std::fs::write(packages.join("torch/__init__.py"), "").unwrap();
    std::fs::write(packages.join("torch/autograd/__init__.py"), AUTOGRAD).unwrap();
    let job = place.dir.path().join("job.py");
    std::fs::write(&job, BACKWARD_JOB).unwrap();
    let simulated = sim().dir.join("site-packages");
    let mut command = place.trace();
    command.env("SIMGPU_LIB", &sim().dir).env("PYTHONPATH", std::env::join_paths([packages, simulated]).unwrap());
    succeed(command.args(["--quiet", "--", "python3"]).arg(&job));
    let report = json(&place, &[]);
    let held: BTreeMap<&str, u64> = report["spaces"][0]["at_peak"].as_array().unwrap().iter().map(held).collect();
    // Allocations of such threads after backward() has returned have no line.
    let expected = [("job.py:5", 1 << 20), ("job.py:6", 512 + (8 << 20)), ("job.py:7", 2 << 20), ("no line", 3 << 20)];
    assert_eq!(held, BTreeMap::from(expected), "{report:#}");
    let bundle = place.dir.path().join("bundle");
    succeed(memory(&place, &[]).arg("--bundle").arg(&bundle));
    let again = succeed(Command::new(GPUWHY).args(["memory", "--json"]).arg(bundle.join("events.json")));
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(again["spaces"][0]["at_peak"], report["spaces"][0]["at_peak"], "a bundle gives the same");
}

fn held(holder: &Value) -> (&str, u64) {
    (holder["line"].as_str().unwrap_or("no line"), holder["bytes"].as_u64().unwrap())
}

#[test]
fn memory_older_than_the_attach_is_pre_existing() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let mut command = Command::new("python3");
    command.arg(&sim().memjob_py).args(["leak", "--steps", "80", "--onset", "20", "--hold"]);
    command.env("SIMGPU_LOG", place.log()).env("SIMGPU_LOG_LEVEL", "full");
    let mut job = Waiting::start(&mut command);
    let tracing = Tracing::start(place.trace().args(["--pid", &job.pid.to_string()]), &place, 3);
    tracing.wait_for_process(job.pid);
    job.go();
    let truth = said_report(&job.end_well());
    assert!(tracing.end().status.success(), "it ends with the job");
    let traced = Traced { memory: json(&place, &[]), truth, place };
    let space = traced.space();
    assert_eq!(space["preexisting"], 64 * 768 * 1024, "{space:#}");
    assert_eq!(space["peak_preexisting"], space["preexisting"], "the model stays: {space:#}");
    let most = allocator_reports(&traced.place).iter().map(|report| report.total_allocated).max().unwrap();
    assert_eq!(space["peak_allocated"], most);
    traced.assert_leak("leak");
    assert!(shown(&traced.place, &["--at-peak"]).contains("pre-existing"));
}

#[test]
fn missing_time_ranges_processes_and_files_are_refused_in_one_line() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let traced = Traced::new(&["leak", "--steps", "60"]);
    let pid = traced.truth["pid"].to_string();
    assert_eq!(json(&traced.place, &["--pid", &pid])["leaks"], traced.memory["leaks"]);
    assert!(refusal(&mut memory(&traced.place, &["--pid", "1"]), 1).contains("not in this run"));
    assert!(refusal(&mut memory(&traced.place, &["--from", "2h"]), 1).contains("invalid range"));
    let mut nowhere = Command::new(GPUWHY);
    refusal(nowhere.args(["memory", "--db", "/nowhere/run.db"]), 1);
    // From the middle on: earlier memory is still live, and the peak is that of the range.
    let (onset, peak) = (&traced.leaks()[0]["onset_ns"], &traced.space()["peak_allocated_at_ns"]);
    let middle = u64::midpoint(onset.as_u64().unwrap(), peak.as_u64().unwrap());
    let late = json(&traced.place, &["--from", &format!("{}ms", middle as f64 / 1e6)]);
    assert_eq!(late["spaces"][0]["peak_allocated"], traced.space()["peak_allocated"]);
    let balance = &late["spaces"][0]["balance"];
    let number = |key: &str| balance[key].as_u64().unwrap();
    assert!(number("live_before") > 64 * 768 * 1024, "the model, and what had leaked: {balance:#}");
    assert_eq!(number("live_before") + number("alloc_bytes") - number("free_bytes"), number("live_bytes"));
}

#[test]
fn the_demos_about_memory_show_the_line_and_the_fix() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    for (scenario, title, fix) in [
        ("leak", " leaks ", ".item()"),
        ("fragmentation", "PyTorch returned", "empty_cache()"),
        ("oom", "Out of memory at", "stop the leak"),
    ] {
        let place = Place::new();
        let mut demo = Command::new(GPUWHY);
        let output = succeed(demo.args(["demo", scenario, "--duration", "2s", "--db"]).arg(place.db()));
        let said = text(&output);
        assert!(said.contains(title) && said.contains("memjob.py:") && said.contains(fix), "{scenario}: {said}");
    }
}
