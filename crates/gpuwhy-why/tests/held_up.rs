// SPDX-License-Identifier: Apache-2.0
//! What is said of threads that were held up: ready is not busy, neighbours are named, advice fits, and a launching thread
//! that never waits for the GPU sets the pace even where nobody knows how busy that is.

#[allow(dead_code, reason = "shared with other tests, each of which needs a part of it")]
mod story;
mod thinned;

use gpuwhy_model::sample::SystemSample;
use gpuwhy_model::{Confidence, Finding, Severity, Wait, WokenBy};
use gpuwhy_why::Report;
use story::{LAUNCH, MS, SECOND, Story, Thread, assert_about, found, serious};

const STEPS: u64 = 50;

/// A machine whose cores had nothing to do for so long together, of every second.
fn machine(story: &mut Story, idle_cores: f64) {
    let span_ns = story.now;
    let idle_ns = (idle_cores * span_ns as f64) as u64;
    story.facts.system.push(SystemSample { at_ns: span_ns, span_ns, idle_ns, ..SystemSample::default() });
    story.facts.cores = 2;
}

fn texts(finding: &Finding) -> String {
    let fixes: Vec<&str> = finding.fixes.iter().map(|fix| fix.text.as_str()).collect();
    fixes.join("\n")
}

/// The main thread waits 40 of every 50 ms for its worker, which is ready for some of it behind these.
fn squeezed(behind: &[(u32, &str, u64)]) -> Report {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    let worker = story.process(200, "pt_data_worker:0");
    story.process(201, "pt_data_worker:1");
    let decode = story.line("data.py:51");
    for _ in 0..STEPS {
        story.kernel(main, 10 * MS);
        let mut at = story.now + 2 * MS;
        for (pid, name, ns) in behind {
            story.without_cpu(worker, at, *ns, 1);
            story.has_cpu(*pid, name, 1, at, *ns);
            at += ns;
        }
        story.sample(worker, story.now + 39 * MS, decode);
        story.off(main, story.now, 40 * MS, Wait::Pipe).by(worker);
        story.now += 40 * MS;
    }
    machine(&mut story, 0.0);
    story.tell()
}

#[test]
fn who_is_ready_is_not_busy_and_a_neighbour_is_named() {
    // Of 50 ms, the worker runs 23 and is ready 17: 10 behind somebody else's shell, 7 behind its sibling.
    let report = squeezed(&[(999, "sh", 10 * MS), (201, "pt_data_worker", 7 * MS)]);
    let starved = found(&report, "input_starved");
    assert_eq!(starved.root_cause.kind, "cpu_bound_worker");
    let text = &starved.root_cause.detail;
    assert!(text.contains("46 % of the time running (data.py:51)"), "{text}");
    assert!(text.contains("34 % ready without a CPU (sh 999 had it 20 %"), "{text}");
    assert!(text.contains("the job's own pt_data_worker:1 201 had it 14 %"), "{text}");
    for text in [text, &report.verdict] {
        assert!(!text.contains("busy"), "{text}");
    }
    let links: Vec<(&str, u64)> = starved.chain.iter().map(|link| (link.who.as_str(), link.ns)).collect();
    let worker = "pt_data_worker:0 200";
    assert_eq!(links[1..4], [(worker, STEPS * 23 * MS), (worker, STEPS * 17 * MS), ("sh 999", STEPS * 10 * MS)]);
    let advice = texts(starved);
    assert!(advice.contains("stop sh 999, "), "{advice}");
    assert!(advice.contains("it takes the CPU of pt_data_worker:0 200"), "{advice}");
    assert!(advice.contains("more workers will not help: all 2 cores are busy"), "{advice}");
    assert!(!advice.contains("num_workers"), "{advice}");
    assert!(starved.fixes.iter().any(|fix| fix.saves_ns == STEPS * 10 * MS), "{:?}", starved.fixes);
}

#[test]
fn no_advice_is_given_about_the_kernel_gpuwhy_or_workers_that_starve_each_other() {
    let report = squeezed(&[(99, "[kworker/1:0]", 9 * MS), (998, "gpuwhy", 8 * MS)]);
    let starved = found(&report, "input_starved");
    assert!(starved.root_cause.detail.contains("[kworker/1:0] 99 had it 18 %"), "{}", starved.root_cause.detail);
    assert!(!texts(starved).contains("the CPU of"), "{:?}", starved.fixes);
    let report = squeezed(&[(998, "gpuwhy", 9 * MS), (999, "sh", 5 * MS)]);
    let advice = texts(found(&report, "input_starved"));
    assert!(
        advice.contains("stop sh 999, ") && advice.contains("takes the CPU of") && !advice.contains("gpuwhy"),
        "{advice}"
    );
    let report = squeezed(&[(201, "pt_data_worker", 17 * MS)]);
    let advice = texts(found(&report, "input_starved"));
    assert!(!advice.contains("the job's own") && !advice.contains("fewer workers"), "{advice}");
}

#[test]
fn a_worker_that_only_computes_is_not_called_ready() {
    let report = squeezed(&[]);
    let starved = found(&report, "input_starved");
    let detail = &starved.root_cause.detail;
    assert_eq!(detail, "pt_data_worker:0 200: 80 % of the time running (data.py:51)");
    assert!(!texts(starved).contains("the CPU of"), "{:?}", starved.fixes);
}

/// The main thread launches, then is ready for 30 of every 50 ms behind somebody whose record is missing.
#[test]
fn who_is_ready_behind_nobody_known_is_not_busy_either() {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    for _ in 0..STEPS {
        story.kernel(main, 20 * MS);
        story.without_cpu(main, story.now, 30 * MS, 1);
        story.now += 30 * MS;
    }
    machine(&mut story, 0.0);
    let report = story.tell();
    let held_up = found(&report, "cpu_contention");
    assert_about(held_up.lost_ns, STEPS * 30 * MS);
    let detail = &held_up.root_cause.detail;
    assert_eq!(detail, "an unknown program had the CPU while the launching thread was ready to run");
    assert!(!report.verdict.contains("busy"), "{}", report.verdict);
    assert!(report.findings.iter().all(|finding| finding.kind != "launch_bound"), "{report:#?}");
}

#[test]
fn programs_of_others_come_before_the_jobs_own() {
    let hogs: Vec<(u32, &str, u64)> = (0..4).map(|i| (990 + i, "cpu_hog", 4 * MS)).collect();
    let report = squeezed(&[&hogs[..], &[(201, "pt_data_worker", 6 * MS)]].concat());
    let starved = found(&report, "input_starved");
    let root = &starved.root_cause;
    assert_eq!((root.kind.as_str(), root.name.as_deref()), ("cpu_contention", Some("cpu_hog")));
    assert!(root.detail.contains("cpu_hog (4 processes) had it 32 %"), "{}", root.detail);
    let advice = texts(starved);
    assert!(advice.contains("renice 19 -p 990 991 992 993"), "{advice}");
    assert!(!advice.contains("the job's own"), "{advice}");
}

#[test]
fn a_fix_saves_what_those_it_names_had() {
    let report = squeezed(&[(999, "sh", 9 * MS), (998, "cc1", 6 * MS), (997, "ld", 3 * MS)]);
    let starved = found(&report, "input_starved");
    let told = starved.fixes.iter().find(|fix| fix.text.contains("the CPU of")).unwrap();
    assert!(told.text.starts_with("stop sh 999 and cc1 998, "), "{}", told.text);
    assert!(told.text.contains("they take the CPU of pt_data_worker:0 200"), "{}", told.text);
    assert!(told.text.contains("renice 19 -p 999 998"), "{}", told.text);
    assert_eq!(told.saves_ns / MS, 15 * STEPS, "{told:#?}");
}

/// The main thread waits for a worker; other children of the job stood at the end of some chains for a moment.
fn with_children(idle_cores: f64) -> Report {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    let worker = story.process(200, "pt_data_worker");
    let children: Vec<Thread> = (0..8).map(|i| story.process(300 + i, "cpu_hog")).collect();
    for step in 0..STEPS {
        story.kernel(main, 30 * MS);
        story.off(main, story.now, 20 * MS, Wait::Pipe).by(worker);
        story.now += 20 * MS;
        let child = children[step as usize % children.len()];
        story.off(main, story.now, 4 * MS, Wait::Pipe).by(child);
        story.now += 4 * MS;
    }
    machine(&mut story, idle_cores);
    story.tell()
}

#[test]
fn other_children_of_the_job_are_no_data_workers() {
    let report = with_children(1.5);
    let starved = found(&report, "input_starved");
    assert!(texts(starved).contains("num_workers 1 → 2"), "{:?}", starved.fixes);
    let busy = with_children(0.2);
    assert!(!texts(found(&busy, "input_starved")).contains("num_workers"));
}

/// The worker computes in code with these frames, innermost first.
fn computing_in(frames: &[(&str, &str)]) -> Report {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    let worker = story.process(200, "pt_data_worker");
    let stack = story.stack(frames);
    for _ in 0..STEPS {
        story.kernel(main, 20 * MS);
        story.sample(worker, story.now + 29 * MS, stack);
        story.off(main, story.now, 30 * MS, Wait::Pipe).by(worker);
        story.now += 30 * MS;
    }
    story.tell()
}

#[test]
fn a_line_of_the_standard_library_is_no_line_to_change() {
    let connection = "/usr/lib/python3.11/multiprocessing/connection.py";
    let alone = computing_in(&[(connection, "_send"), ("/usr/lib/python3.11/threading.py", "run")]);
    let starved = found(&alone, "input_starved");
    assert_eq!(starved.root_cause.line, None);
    assert!(!format!("{starved:?}{}", alone.verdict).contains("connection.py"), "{starved:?}");
    assert!(texts(starved).contains("make the work of pt_data_worker 200 cheaper"), "{:?}", starved.fixes);
    let called = computing_in(&[(connection, "_send"), ("/home/me/data.py", "send")]);
    assert_eq!(found(&called, "input_starved").root_cause.line.as_deref(), Some("data.py:2"));
    let packaged = computing_in(&[(connection, "_send"), ("/venv/lib/python3.11/site-packages/pkg/a.py", "f")]);
    assert_eq!(found(&packaged, "input_starved").root_cause.line.as_deref(), Some("a.py:2"));
}

#[test]
fn figures_stand_under_the_finding_they_are_about() {
    let report = squeezed(&[]);
    assert_eq!(found(&report, "input_starved").effect, [""; 0]);
}

#[test]
fn different_troubles_of_two_ranks_share_one_whole() {
    let mut story = Story::new();
    for (pid, gpu, trouble) in [(100, 0, "input"), (300, 1, "own")] {
        story.now = 0;
        let main = story.process(pid, "python3");
        let worker = story.process(pid + 1, "pt_data_worker");
        for _ in 0..STEPS {
            story.kernel(main, 10 * MS);
            if trouble == "input" {
                story.off(main, story.now, 40 * MS, Wait::Pipe).by(worker);
            }
            story.now += 40 * MS;
        }
        story.on_gpu(pid, "python3", gpu, None);
    }
    let report = story.tell();
    let of = |kind: &str| found(&report, kind).share;
    let (input, own) = (of("input_starved"), of("launch_bound"));
    assert!((input - 0.4).abs() < 0.01 && (own - 0.4).abs() < 0.01, "{input} {own}");
    let effect = found(&report, "input_starved").effect.join(", ");
    assert!(effect.contains("mean of 2 GPUs"), "{effect}");
    assert!(report.verdict.contains("at least 80 % of the time: 40 % because"), "{}", report.verdict);
}

/// How the launching thread of a job without NVML goes on after it was held up.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    /// It launches and never waits.
    NeverWaits,
    /// It waits for the GPU, which takes as long as it was held up and more.
    Waits,
}

/// A thread waits 43 of every 50 ms for a lock that another holds.
fn locked(seconds: u64, then: Then, working: bool) -> Report {
    let mut story = Story::new();
    let main = story.process(100, "job");
    let holder = story.thread(100, 101, "job");
    for _ in 0..seconds * 20 {
        story.launch(main, story.now);
        story.now += LAUNCH;
        if then == Then::Waits {
            let stream = Some(0x1000);
            story.call(main, "cudaStreamSynchronize", story.now, 100 * MS).stream = stream;
            story.now += 100 * MS;
            story.launch(main, story.now);
            story.now += LAUNCH;
        }
        if !working {
            story.off(holder, story.now, 43 * MS, Wait::Sleep).ended_by(WokenBy::Timer);
        }
        // Both wait at the same word in turns.
        story.off(main, story.now, 43 * MS, Wait::Futex).by(holder).object(0x4000);
        story.now += 43 * MS;
        story.off(holder, story.now, MS, Wait::Futex).by(main).object(0x4000);
        story.now += 7 * MS - LAUNCH;
    }
    story.tell()
}

#[test]
fn a_lock_sets_the_pace_where_nobody_knows_how_busy_the_gpu_is() {
    for (seconds, working) in [(10, false), (60, false), (60, true)] {
        let report = locked(seconds, Then::NeverWaits, working);
        let lock = found(&report, "lock_contention");
        assert_about(lock.lost_ns, seconds * 20 * 43 * MS);
        assert_eq!((lock.severity, lock.confidence), (Severity::High, Confidence::Medium));
        assert!(lock.effect[0].contains("the launching thread was held up"), "{:?}", lock.effect);
        assert!(lock.confidence_reason.contains("unknown without NVML"), "{}", lock.confidence_reason);
        let said = "The launching thread was held up 86 % of the time: it waits for a lock.";
        assert!(report.verdict.contains(said), "{}", report.verdict);
        assert!(report.gpu_idle_min_ns < Some(SECOND), "the GPU may have worked all the time");
        let holder = if working { "86 % of the time running" } else { "86 % of the time asleep" };
        assert!(lock.root_cause.detail.contains(holder), "{}", lock.root_cause.detail);
    }
}

/// The GPU is idle 30 of every 50 ms for certain; 15 ms more, in which the same lock is waited for, it may have had work.
#[test]
fn what_is_not_certain_is_said_to_be_at_most() {
    let mut story = Story::new();
    let main = story.process(100, "job");
    let holder = story.thread(100, 101, "job");
    for _ in 0..200 {
        story.kernel(main, MS);
        story.off(main, story.now, 30 * MS, Wait::Futex).by(holder).object(0x4000);
        story.now += 30 * MS;
        story.launch(main, story.now);
        story.now += LAUNCH;
        story.off(main, story.now, 15 * MS, Wait::Futex).by(holder).object(0x4000);
        story.now += 15 * MS;
        story.off(holder, story.now, MS, Wait::Futex).by(main).object(0x4000);
        story.now += 4 * MS - LAUNCH;
    }
    let report = story.tell();
    let lock = found(&report, "lock_contention");
    assert!(report.verdict.contains("at least 60 % of the time"), "{}", report.verdict);
    assert!(lock.is_upper_bound && lock.cost() == "up to 9.00 s · 90 %", "{}", lock.cost());
    assert_eq!(lock.confidence, Confidence::Medium);
}

#[test]
fn a_lock_that_the_gpu_hides_is_no_finding() {
    let report = locked(10, Then::Waits, false);
    assert_eq!(serious(&report), [""; 0], "{}", report.verdict);
}

#[test]
fn with_nvml_a_lock_is_judged_by_what_the_gpu_did() {
    let mut story = Story::new();
    let main = story.process(100, "job");
    let holder = story.thread(100, 101, "job");
    for _ in 0..200 {
        story.launch(main, story.now);
        story.off(main, story.now + MS, 43 * MS, Wait::Futex).by(holder).object(0x4000);
        story.now += 50 * MS;
    }
    story.nvml_busy(0, 100);
    story.on_gpu(100, "job", 0, Some(100));
    assert_eq!(serious(&story.tell()), [""; 0]);
}

#[test]
fn a_sleeping_launcher_may_be_asking_the_gpu() {
    let mut story = Story::new();
    let main = story.process(100, "job");
    for _ in 0..200 {
        story.launch(main, story.now);
        // cudaEventQuery is not traced: this may be how it waits for the GPU.
        story.off(main, story.now + MS, 43 * MS, Wait::Sleep).ended_by(WokenBy::Timer);
        story.now += 50 * MS;
    }
    assert_eq!(serious(&story.tell()), [""; 0]);
}

/// Copies of so many bytes that take 48 of every 50 ms, between kernels or without any.
fn copies(bytes: u64, kernels: bool, function: &str) -> Report {
    let mut story = Story::new();
    let main = story.process(100, "job");
    let other = story.thread(100, 101, "idle");
    story.off(other, 0, 10 * SECOND, Wait::Futex);
    for _ in 0..200 {
        let copy = story.call(main, function, story.now, 48 * MS);
        (copy.arg0, copy.arg1) = (Some(bytes), Some(1));
        story.now += 49 * MS;
        if kernels {
            story.launch(main, story.now);
        }
        story.now += MS;
    }
    story.tell()
}

#[test]
fn large_copies_of_pageable_memory_set_the_pace() {
    for kernels in [true, false] {
        let report = copies(150 << 20, kernels, "cudaMemcpy");
        let copy = found(&report, "copy_bound");
        assert_about(copy.lost_ns, 200 * 48 * MS);
        assert_eq!(copy.severity, Severity::High, "{}", report.verdict);
        assert!(texts(copy).contains("pin_memory"), "{:?}", copy.fixes);
        assert!(report.verdict.contains("copies between host and device"), "{}", report.verdict);
        assert!(copy.root_cause.detail.contains("busy copying"), "{}", copy.root_cause.detail);
    }
}

#[test]
fn a_small_copy_that_takes_long_waits_for_the_gpu() {
    assert_eq!(serious(&copies(4096, true, "cudaMemcpy")), [""; 0]);
}

#[test]
fn asynchronous_copies_of_pinned_memory_hold_nobody_up() {
    let mut story = Story::new();
    let main = story.process(100, "job");
    let other = story.thread(100, 101, "idle");
    story.off(other, 0, 10 * SECOND, Wait::Futex);
    for _ in 0..200 {
        let copy = story.call(main, "cudaMemcpyAsync", story.now, LAUNCH);
        (copy.arg0, copy.arg1, copy.stream) = (Some(150 << 20), Some(1), Some(0x1000));
        story.launch(main, story.now + LAUNCH);
        story.call(main, "cudaStreamSynchronize", story.now + 2 * LAUNCH, 49 * MS).stream = Some(0x1000);
        story.now += 50 * MS;
    }
    assert_eq!(serious(&story.tell()), [""; 0]);
}
