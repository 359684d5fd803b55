// SPDX-License-Identifier: Apache-2.0
//! What must not be claimed, what the GPU itself tells, and what must not break.

use crate::story::{LAUNCH, MS, SECOND, Story, Thread, assert_about, found, serious};
use gpuwhy_model::sample::{GpuBusy, GpuError};
use gpuwhy_model::{Confidence, Severity, Wait, WokenBy};
use gpuwhy_why::{LossFact, Report};

/// A job that waits 30 of every 50 ms for its worker, for so many seconds.
fn starved(seconds: u64) -> Story {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    let worker = story.process(200, "pt_data_worker");
    for _ in 0..seconds * 20 {
        story.kernel(main, 20 * MS);
        story.off(main, story.now, 30 * MS, Wait::Pipe).by(worker);
        story.now += 30 * MS;
    }
    story
}

/// A job that launches every millisecond and never waits for the GPU: the host cannot tell when that idles.
fn never_waits(seconds: u64) -> Story {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    let other = story.thread(100, 101, "idle");
    story.off(other, 0, seconds * SECOND, Wait::Futex);
    for at in (0..seconds * SECOND).step_by(MS as usize) {
        story.launch(main, at);
    }
    story.now = seconds * SECOND;
    story
}

/// A job that keeps its GPU busy.
fn busy(seconds: u64) -> Story {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    let other = story.thread(100, 101, "idle");
    story.off(other, 0, seconds * SECOND, Wait::Futex);
    for _ in 0..seconds * 20 {
        story.kernel(main, 50 * MS);
    }
    story
}

#[test]
fn no_idle_time_is_claimed_where_calls_were_lost() {
    let mut story = starved(10);
    story.facts.lossy_seconds = vec![4];
    story.facts.loss = vec![LossFact { cause: "ring full".into(), count: 7, loses_event: true, ..LossFact::default() }];
    let report = story.tell();
    // Three of ten seconds are in doubt.
    assert_eq!(report.gpu_idle_min_ns, Some(7 * 600 * MS));
    assert!(report.gpu_idle_max_ns >= Some(7 * 600 * MS + 3 * SECOND), "{:?}", report.gpu_idle_max_ns);
    assert_eq!(found(&report, "input_starved").lost_ns, 7 * 600 * MS);
    assert_eq!(report.loss.events, 7);
    assert!(report.loss.notes[0].contains("events were lost"), "{:?}", report.loss);
}

#[test]
fn a_verdict_says_what_was_lost_and_never_that_all_is_well_without_most_of_the_run() {
    let lose = |count: u64, cause: &str, of: &mut Story| {
        let loss = LossFact { cause: cause.into(), count, loses_event: true, ..LossFact::default() };
        of.facts.loss = vec![loss, LossFact { cause: "evidence_lost".into(), count: 1 << 40, ..LossFact::default() }];
    };
    let all_well = |report: &Report| {
        report.verdict.contains("No cause costs")
            || report.verdict.contains("othing is holding the GPU back")
            || !report.healthy.is_empty()
    };
    let told = |count: u64, cause: &str| {
        let mut story = busy(10);
        lose(count, cause, &mut story);
        story.tell()
    };
    let none = told(0, "write_failed");
    assert!(all_well(&none) && !none.verdict.contains("lost"), "{}", none.verdict);
    // One in thousands is told elsewhere.
    assert_eq!(told(1, "write_failed").verdict, none.verdict);
    let most = told(10_000, "write_failed");
    assert!(most.verdict.starts_with("10,000 of 10,"), "{}", most.verdict);
    assert!(most.verdict.contains("events were lost because the disk was full"), "{}", most.verdict);
    // Who had a CPU is evidence, not an event: it changes no count.
    let mut story = busy(10);
    (0..500).for_each(|at| story.has_cpu(900, "hog", 0, at * MS, MS / 2));
    lose(10_000, "write_failed", &mut story);
    let counted = |report: &Report| report.verdict.split(" events").next().map(str::to_owned);
    assert_eq!(counted(&story.tell()), counted(&most));
    assert!(!all_well(&most) && most.verdict.contains("Too much was lost"), "{}", most.verdict);
    assert!(most.findings.iter().all(|finding| finding.kind != "gpu_bound"), "{:?}", most.findings);
    assert!(told(10_000, "ring_full").verdict.contains("gpuwhy could not keep up"));
    assert!(told(10_000, "size_cap").verdict.contains("--max-size"));
    // What was found all the same stays.
    let mut story = starved(10);
    lose(10_000, "write_failed", &mut story);
    let report = story.tell();
    assert!(report.verdict.contains("lost because") && report.verdict.contains("cannot keep up"), "{}", report.verdict);
    found(&report, "input_starved");
}

#[test]
fn no_idle_time_is_claimed_while_launches_are_not_watched() {
    let mut story = starved(10);
    story.facts.unwatched = vec![(4 * SECOND, 5 * SECOND), (4 * SECOND + MS, 4 * SECOND + 2 * MS)];
    // One second, and the next, in which work launched in it may go on.
    let report = story.tell();
    assert_eq!(report.gpu_idle_min_ns, Some(8 * 600 * MS));
    assert!(report.loss.notes[0].contains("launches were not watched for 1.00 s"), "{:?}", report.loss);
}

#[test]
fn what_is_captured_is_not_done_until_the_graph_is_launched() {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    story.kernel(main, 20 * MS);
    let on = |story: &mut Story, function: &str, stream: u64| {
        let now = story.now;
        story.call(main, function, now, LAUNCH).stream = Some(stream);
        story.now += MS;
    };
    on(&mut story, "cudaStreamBeginCapture", 0x2000);
    for _ in 0..100 {
        on(&mut story, "cuLaunchKernel", 0x2000);
    }
    let now = story.now;
    story.call(main, "cudaEventRecord", now, LAUNCH).stream = Some(0x2000);
    story.call(main, "cudaStreamWaitEvent", now + MS, LAUNCH).stream = Some(0x3000);
    story.now += 2 * MS;
    for _ in 0..100 {
        on(&mut story, "cuLaunchKernel", 0x3000);
    }
    on(&mut story, "cudaStreamEndCapture", 0x2000);
    let idle_until = story.now;
    on(&mut story, "cudaGraphLaunch", 0x2000);
    story.sync(main, story.now, 50 * MS);
    story.now += 50 * MS;
    let report = story.tell();
    assert_eq!(report.gpu_idle_min_ns, Some(idle_until - 20 * MS));
}

#[test]
fn nvml_sees_what_the_host_cannot() {
    let mut story = never_waits(5);
    story.nvml_busy(0, 40);
    let report = story.tell();
    let least = report.gpu_idle_min_ns.unwrap();
    assert!((2_900 * MS..=3_000 * MS).contains(&least), "{least}");
    let own = found(&report, "launch_bound");
    assert_about(own.lost_ns, 3 * SECOND);
    assert_eq!(own.confidence, Confidence::Medium);
    assert_eq!(report.gpus[0].host_idle_min_ns, 0);
}

#[test]
fn samples_of_a_gpu_that_may_be_another_are_not_used() {
    let mut story = never_waits(5);
    story.nvml_busy(0, 40);
    story.nvml_busy(1, 100);
    let report = story.tell();
    assert_eq!((report.gpus[0].nvml_index, report.gpus[0].nvml_idle_min_ns), (None, None));
    assert_eq!(report.gpu_idle_min_ns, Some(0));
    assert_eq!(serious(&report), [""; 0]);
    assert!(report.verdict.contains("cannot be seen from the host"), "{}", report.verdict);
}

#[test]
fn samples_of_the_gpu_the_process_has_memory_on_are_used() {
    let mut story = never_waits(5);
    story.nvml_busy(0, 100);
    story.nvml_busy(1, 20);
    story.on_gpu(100, "python3", 1, None);
    let report = story.tell();
    assert_eq!((report.gpus[0].device, report.gpus[0].nvml_index), (1, Some(1)));
    let least = report.gpu_idle_min_ns.unwrap();
    assert!((3_900 * MS..=4_000 * MS).contains(&least), "{least}");
}

#[test]
fn nobody_knows_what_an_untraced_process_gives_the_gpu_to_do() {
    for (sm_percent, least) in [(Some(30), 0), (None, 0), (Some(0), 5 * 600 * MS)] {
        let mut story = starved(5);
        story.nvml_seconds(0, |_, _| {});
        story.on_gpu(999, "blender", 0, sm_percent);
        let report = story.tell();
        assert_eq!(report.gpu_idle_min_ns, Some(least), "{sm_percent:?}");
        assert_eq!(serious(&report).contains(&"input_starved"), least > 0, "{sm_percent:?}");
    }
}

#[test]
fn an_xid_is_critical() {
    let mut story = busy(3);
    story.facts.gpu_errors = vec![GpuError { at_ns: SECOND, gpu: 0, xid: 79 }];
    let report = story.tell();
    assert_eq!(report.findings[0].kind, "gpu_fault");
    assert_eq!(report.findings[0].severity, Severity::Critical);
    assert!(report.verdict.starts_with("GPU 0 reported an error: Xid 79."), "{}", report.verdict);
    assert!(report.findings[0].fixes[0].text.contains("hardware"), "{:?}", report.findings[0].fixes);
}

#[test]
fn clocks_held_down_by_heat_cost_time() {
    let held = |reasons: u64| {
        let mut story = busy(10);
        story.nvml_seconds(0, |second, sample| {
            if second > 5 {
                (sample.sm_mhz, sample.throttle_reasons) = (Some(1000), Some(reasons));
            }
        });
        story.tell()
    };
    let hot = held(0x40);
    assert_about(found(&hot, "gpu_throttled").lost_ns, 2_500 * MS);
    assert_eq!(serious(&hot), ["gpu_throttled"]);
    assert!(found(&hot, "gpu_throttled").root_cause.detail.contains("5 of 10 samples"), "{:?}", hot.findings);
    // The power cap is how a GPU at work looks.
    let capped = held(0x4);
    assert_eq!(serious(&capped), [""; 0]);
    assert_eq!(found(&capped, "gpu_bound").severity, Severity::Info);
}

#[test]
fn who_else_uses_the_gpu_is_named_if_the_job_waits_for_it() {
    let mut story = busy(10);
    story.nvml_seconds(0, |_, _| {});
    story.on_gpu(100, "python3", 0, Some(50));
    story.on_gpu(999, "blender", 0, Some(40));
    story.on_gpu(998, "Xorg", 0, Some(1));
    let report = story.tell();
    let shared = found(&report, "gpu_shared");
    assert_about(shared.lost_ns, 10 * SECOND * 41 / 100);
    assert_eq!((shared.root_cause.pid, shared.root_cause.name.as_deref()), (Some(999), Some("blender")));
    assert_eq!(shared.severity, Severity::High);
    assert!(report.verdict.contains("blender"), "{}", report.verdict);

    let mut story = never_waits(10);
    story.nvml_seconds(0, |_, _| {});
    story.on_gpu(999, "blender", 0, Some(40));
    assert_eq!(serious(&story.tell()), [""; 0]);
}

#[test]
fn a_job_that_launches_nothing_has_no_findings() {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    story.off(main, 0, SECOND, Wait::Sleep).ended_by(WokenBy::Timer);
    story.call(main, "cudaMalloc", SECOND, MS).arg0 = Some(1 << 20);
    story.now = 3 * SECOND;
    let report = story.tell();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert!(report.verdict.starts_with("No GPU work was seen"), "{}", report.verdict);
    assert_eq!((report.gpu_idle_min_ns, report.steady), (None, None));
    assert_eq!(Story::new().tell().verdict, "Nothing was traced in this time range.");
    let mut unread = Story::new();
    unread.facts.loss = vec![LossFact { cause: "process_unread".into(), count: 33, ..LossFact::default() }];
    let said =
        "Nothing was traced in this time range. Not watched: 33 processes whose libraries could not be read in time.";
    assert_eq!(unread.tell().verdict, said);
}

#[test]
fn without_the_scheduler_it_is_said_what_cannot_be_known() {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    for sums in &mut story.facts.threads {
        sums.has_times = false;
    }
    for _ in 0..40 {
        story.kernel(main, 20 * MS);
        story.now += 30 * MS;
    }
    let report = story.tell();
    assert!(
        report.loss.notes.iter().any(|note| note.contains("cannot tell waiting from working")),
        "{:?}",
        report.loss
    );
    assert!(report.findings.iter().all(|found| found.confidence == Confidence::Low), "{:?}", report.findings);
    // A thread that had no CPU looks as if it waited: nothing is busy for certain.
    assert_eq!((report.gpu_idle_min_ns, report.gpu_idle_max_ns), (Some(40 * 30 * MS), Some(report.wall_ns)));
}

#[track_caller]
fn assert_sane(report: &Report) {
    assert!(report.gpu_idle_min_ns <= report.gpu_idle_max_ns, "{:?}", report.gpus);
    assert!(report.gpu_idle_max_ns <= Some(report.wall_ns), "{:?}", report.gpus);
    assert!(!report.verdict.is_empty());
    assert!(report.findings.iter().all(|found| found.lost_ns <= report.wall_ns), "{:?}", report.findings);
}

#[test]
fn events_out_of_order_do_no_harm() {
    for stride in [1, 7, 13] {
        let mut story = Story::new();
        let main = story.process(100, "python3");
        let worker = story.process(200, "pt_data_worker");
        // 101 has no divisor in common with the strides.
        for i in 0..101 {
            let at = (101 - i) * stride % 101 * 50 * MS;
            story.off(main, at + 20 * MS, 30 * MS, Wait::Pipe).by(worker);
            story.off(worker, at + 21 * MS, 5 * MS, Wait::Futex).by(main);
            story.sync(main, at + LAUNCH, 20 * MS);
            story.launch(main, at);
        }
        story.facts.to_ns = 101 * 50 * MS;
        assert_sane(&story.explain());
    }
}

/// Every kind of event at a moment, with any length and size.
fn everything(story: &mut Story, threads: [Thread; 2], at: u64, ns: u64) {
    let [main, other] = threads;
    story.launch(main, at);
    story.sync(main, at, ns);
    for function in ["cudaMemcpy", "cudaMemcpyAsync", "cudaMalloc", "cudaFree"] {
        let call = story.call(other, function, at, ns);
        (call.arg0, call.arg1) = (Some(ns), Some(2));
    }
    story.off(main, at, ns, Wait::Futex).ready(ns / 2).by(other).limit(ns);
    story.off(other, at, ns, Wait::Pipe).ready(ns).by(main);
    // More ready than away.
    story.off(other, at, 0, Wait::Futex).ready(ns).limit(0).ended_by(WokenBy::Timer);
    story.has_cpu(999, "stress", 0, at, ns);
    story.moved(main, 1, at, ns);
    story.sample(other, at, 1);
}

const LAST: u64 = i64::MAX as u64;

#[test]
fn any_time_and_any_length_is_borne() {
    for to in [0, 1, SECOND, 1 << 62, LAST] {
        let mut story = Story::new();
        let main = story.process(100, "python3");
        let other = story.thread(100, 101, "other");
        for at in [0, 1, 3 * MS, SECOND, 1 << 40, 1 << 62, LAST - 1, LAST] {
            for ns in [0, 1, MS, 1 << 62, LAST, u64::MAX - 1, u64::MAX] {
                everything(&mut story, [main, other], at, ns);
            }
        }
        story.facts.to_ns = to;
        assert_sane(&story.explain());
    }
}

#[test]
fn a_thread_that_wakes_itself_or_its_waker_comes_to_an_end() {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    let other = story.thread(100, 101, "other");
    let third = story.thread(100, 102, "third");
    for _ in 0..100 {
        story.kernel(main, 10 * MS);
        let at = story.now;
        story.off(main, at, 10 * MS, Wait::Futex).by(main);
        for i in 0..100 {
            let piece = at + 10 * MS + i * MS / 10;
            story.off(main, piece, MS / 10, Wait::Futex).by(other).object(0x10);
            story.off(other, piece, MS / 10, Wait::Futex).by(third).object(0x10);
            story.off(third, piece, MS / 10, Wait::Futex).by(main).object(0x10);
        }
        story.now += 20 * MS;
    }
    let report = story.tell();
    assert_sane(&report);
    // Nobody worked: no one is said to have.
    assert!(report.findings.iter().all(|found| found.root_cause.kind != "cpu_bound_worker"), "{:?}", report.findings);
    assert_eq!(report.gpu_idle_min_ns, Some(100 * 20 * MS));
}

#[test]
fn a_century_of_sleep_is_explained() {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    for _ in 0..50 {
        story.kernel(main, 20 * MS);
    }
    story.off(main, story.now, 1 << 62, Wait::Sleep).ended_by(WokenBy::Timer);
    story.now += 1 << 62;
    for _ in 0..50 {
        story.kernel(main, 20 * MS);
    }
    let report = story.tell();
    assert_sane(&report);
    assert_eq!(report.gpu_idle_min_ns, Some(1 << 62));
    assert_about(found(&report, "host_sleep").lost_ns, 1 << 62);
}

#[test]
fn any_facts_are_borne() {
    for odd in [0, 1, 1 << 62, LAST, u64::MAX] {
        let mut story = starved(3);
        for sums in &mut story.facts.threads {
            (sums.born_ns, sums.ready_ns, sums.blocked_ns, sums.throttled_ns) = (odd / 2, odd, odd, odd);
            (sums.at_ns, sums.ended) = (odd, odd > 1);
        }
        story.nvml_busy(0, 1000);
        story.facts.busy.push(GpuBusy { at_ns: odd, gpu: 0, percent: u32::MAX });
        story.nvml_seconds(0, |second, sample| {
            if second == 2 {
                (sample.at_ns, sample.sm_mhz, sample.throttle_reasons) = (odd, Some(0), Some(odd));
            }
        });
        story.on_gpu(999, "blender", 0, Some(u32::MAX));
        story.facts.gpu_processes[0].at_ns = odd;
        story.facts.gpu_errors = vec![GpuError { at_ns: odd, gpu: u32::MAX, xid: odd }];
        story.facts.lossy_seconds = vec![odd, odd];
        for process in story.facts.processes.values_mut() {
            (process.started, process.ended) = (Some(i64::MAX), Some(i64::MIN));
        }
        (story.facts.from_ns, story.facts.to_ns) = (odd.min(SECOND), 3 * SECOND);
        assert_sane(&story.explain());
    }
}

#[test]
fn the_last_moment_there_can_be_is_borne() {
    let mut story = starved(1);
    story.off(Thread { pid: 100, tid: 100 }, u64::MAX, 0, Wait::Sleep);
    story.facts.to_ns = u64::MAX;
    assert_sane(&story.explain());
}
