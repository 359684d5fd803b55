// SPDX-License-Identifier: Apache-2.0
//! Reports on a leak after its job has ended, and the severity of findings.
#![allow(missing_docs, clippy::unwrap_used)]

mod synth;

use gpuwhy_memory::{Facts, ProcessFact, Report};
use gpuwhy_model::ops::{KernelOp, kernel_op};
use gpuwhy_model::sample::GpuSample;
use gpuwhy_model::{Finding, Severity};
use synth::{Job, MB, PID};

const STEPS: u64 = 100;

/// A job with steps of 100 ms, each of which keeps 2 MB.
fn leaking() -> Job {
    let mut job = Job::default();
    for _ in 0..STEPS {
        job.now += 100_000_000;
        job.alloc(2 * MB, 1);
        (0..5).for_each(|_| job.launch(2));
        job.wait(3);
    }
    job
}

/// Facts with a device of `total` megabytes, of which `used` are in use.
fn on_device(job: &Job, total: u64, used: u64) -> Facts {
    let sample = |i: u64| GpuSample {
        at_ns: i * 1_000_000_000,
        memory_used: Some(used * MB),
        memory_total: Some(total * MB),
        ..GpuSample::default()
    };
    Facts { gpu_seconds: (0..job.now / 1_000_000_000 + 1).map(sample).collect(), ..job.facts() }
}

fn leak(report: &Report) -> &Finding {
    report.findings.iter().find(|found| found.kind == "memory_leak").unwrap()
}

#[test]
fn a_job_that_goes_on_has_a_forecast() {
    let job = leaking();
    let report = job.examine_with(on_device(&job, 1_000, 900));
    assert!(report.leaks[0].out_of_memory_in_ns.is_some());
    assert_eq!(leak(&report).severity, Severity::Critical, "memory is gone in five seconds");
    assert!(leak(&report).effect.iter().any(|effect| effect.contains("memory runs out")), "{:#?}", leak(&report));
    assert_eq!(report.spaces[0].ended_ns, None);
}

#[test]
fn a_job_that_has_ended_has_no_forecast() {
    let mut job = leaking();
    let kept = job.allocated;
    let held: Vec<u64> = job.live.keys().copied().collect();
    held.into_iter().for_each(|address| job.free(address));
    job.exit(0, 0);
    let report = job.examine_with(on_device(&job, 1_000, 900));
    let (space, found) = (&report.spaces[0], leak(&report));
    assert_eq!((report.leaks[0].out_of_memory_in_ns, report.leaks[0].out_of_memory_in_steps), (None, None));
    assert_eq!(found.severity, Severity::High, "it ended nothing");
    assert!(!found.effect.iter().any(|effect| effect.contains("runs out")), "{found:#?}");
    // All figures are of the same check: memory in use then, and left at the end.
    let look = space.last_look.unwrap();
    assert_eq!(look.at_ns, report.leaks[0].last_look_ns);
    assert_eq!((look.allocated, space.allocated, space.ended_ns), (kept, 0, Some(job.now)));
    assert_eq!(space.at_end.iter().map(|holder| holder.bytes).sum::<u64>(), look.allocated);
    assert!(found.chain.iter().all(|link| !link.state.contains("never freed")), "{found:#?}");
}

#[test]
fn a_job_that_ran_out_of_memory_has_no_forecast() {
    let mut job = leaking();
    job.refuse(2 * MB, 1);
    job.now += 100_000_000;
    let mut facts = on_device(&job, 1_000, 900);
    facts.to_ns = job.now + 1_000_000_000;
    let report = job.examine_with(facts);
    assert_eq!(report.leaks[0].out_of_memory_in_ns, None);
    assert_eq!(leak(&report).severity, Severity::Critical);
    assert!(leak(&report).effect.iter().any(|effect| effect.contains("ran out at")), "{:#?}", leak(&report));
}

#[test]
fn an_end_outside_the_time_range_ends_the_forecast() {
    let job = leaking();
    let mut facts = on_device(&job, 1_000, 900);
    let ended = ProcessFact { ended_ns: Some(job.now + 5), ..facts.processes[&PID].clone() };
    facts.processes.insert(PID, ended);
    let report = job.examine_with(facts);
    assert_eq!(report.leaks[0].out_of_memory_in_ns, None);
}

#[test]
fn running_out_comes_before_the_leak_that_led_to_it() {
    let mut job = leaking();
    job.refuse(MB, 1);
    job.exit(1, 0);
    let report = job.examine_with(on_device(&job, 1_000, 900));
    let kinds: Vec<&str> = report.findings.iter().map(|found| found.kind.as_str()).collect();
    assert_eq!(kinds[..2], ["oom", "memory_leak"]);
    assert!(report.findings[0].title.contains("the process ended"), "{}", report.findings[0].title);
}

/// A job that returns its memory and takes it again in every step; each call takes `call_ns`.
fn churning(call_ns: u64) -> Report {
    let mut job = Job::default();
    for _ in 0..STEPS {
        job.now += 100_000_000;
        let address = job.malloc(50 * MB, 1);
        let Some(gpuwhy_model::MemoryEvent::Call(call)) = job.events.last_mut() else { unreachable!() };
        call.duration_ns = call_ns;
        job.now += call_ns;
        job.reserved = 50 * MB;
        let tensor = job.alloc(40 * MB, 2);
        (0..5).for_each(|_| job.launch(3));
        job.wait(4);
        job.free(tensor);
        job.free_device(address, 5);
        let Some(gpuwhy_model::MemoryEvent::Call(call)) = job.events.last_mut() else { unreachable!() };
        call.duration_ns = call_ns;
        job.now += call_ns;
        job.reserved = 0;
    }
    job.examine()
}

#[test]
fn time_lost_by_returning_and_taking_again_sets_the_severity() {
    for (call_ns, severity) in [(20_000_000, Severity::High), (3_000_000, Severity::Medium), (800_000, Severity::Low)] {
        let report = churning(call_ns);
        let found = report.findings.iter().find(|found| found.kind == "fragmentation").unwrap();
        assert_eq!((found.severity, found.root_cause.kind.as_str()), (severity, "empty_cache"), "{found:#?}");
    }
}

/// Ends the job's process by a signal, after the kernel chose it to free memory, if `is_chosen`.
fn killed(mut job: Job, is_chosen: bool) -> Report {
    if is_chosen {
        job.call("cudaFree", 0).op = kernel_op(KernelOp::OomKill);
    }
    job.exit(0, 9);
    job.examine()
}

#[test]
fn a_process_that_the_kernel_killed_for_memory_is_named() {
    let about = |report: &Report| report.findings.iter().find(|found| found.kind == "killed_for_memory").cloned();
    for job in [leaking(), Job::default()] {
        let report = killed(job, true);
        let found = about(&report).unwrap();
        assert_eq!((found.severity, found.pid), (Severity::Critical, Some(PID)));
        assert_eq!(report.findings[0].kind, "killed_for_memory");
        assert!(report.verdict.starts_with("The kernel killed python3 4821: main memory"), "{}", report.verdict);
    }
    // A user who kills a job knows it.
    assert_eq!(about(&killed(leaking(), false)), None);
}
