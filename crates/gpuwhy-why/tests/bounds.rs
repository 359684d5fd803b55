// SPDX-License-Identifier: Apache-2.0
//! Random jobs on a GPU whose work is exactly known: the true idle time must lie within the bounds, every thread's
//! ledger must add up, and nobody may be blamed for more than there was.

#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in test functions; their helpers are the same")]

mod random_job;
mod thinned;

use gpuwhy_model::ops::by_function;
use gpuwhy_model::replay::Event;
use gpuwhy_model::sample::{GpuBusy, GpuProcess};
use gpuwhy_model::thin::Thinning;
use gpuwhy_model::{Call, CallFlags, Finding};
use gpuwhy_why::{Explainer, Facts, Report};
use random_job::Job;
use std::collections::HashMap;
use thinned::thinned;

fn explain(job: &Job, facts: Facts) -> Report {
    let mut explainer = Explainer::new(facts);
    for event in &job.events {
        explainer.feed(event);
    }
    explainer.finish(&mut |_| HashMap::new())
}

fn facts(job: &Job) -> Facts {
    Facts { to_ns: job.end, started: true, complete: true, threads: job.sums.clone(), cores: 4, ..Facts::default() }
}

#[test]
fn true_idle_time_lies_within_the_bounds() {
    let (mut told, mut open) = (0.0, 0.0);
    for seed in 0..256 {
        let job = Job::new(seed);
        let report = explain(&job, facts(&job));
        let (least, most) = (report.gpu_idle_min_ns.unwrap(), report.gpu_idle_max_ns.unwrap());
        let truth = job.idle(0, job.end);
        assert!(least <= truth && truth <= most, "seed {seed}: {least} ≤ {truth} ≤ {most}");
        told += least as f64 / truth as f64;
        open += (most - truth) as f64 / (job.end - truth) as f64;
    }
    // Bounds that say nothing would be true, too. Many of these jobs hardly ever wait, and show little.
    assert!(told > 256.0 * 0.15 && open < 256.0 * 0.97, "{told} {open}");
}

#[test]
fn a_part_of_a_job_has_bounds_of_its_own() {
    for seed in 0..128 {
        let job = Job::new(seed);
        let (from, to) = (job.end / 3, job.end * 2 / 3);
        let report = explain(&job, Facts { from_ns: from, to_ns: to, ..facts(&job) });
        let Some((least, most)) = report.gpu_idle_min_ns.zip(report.gpu_idle_max_ns) else { continue };
        let truth = job.idle(from, to);
        assert!(least <= truth && truth <= most, "seed {seed}: {least} ≤ {truth} ≤ {most}");
        assert_eq!(report.wall_ns, to - from);
    }
}

#[test]
fn a_job_met_in_the_middle_is_not_called_idle_too_early() {
    for seed in 0..128 {
        let job = Job::new(seed);
        let missing = job.end / 4;
        let report = explain(&job.without_the_first(missing), Facts { started: false, ..facts(&job) });
        let Some(least) = report.gpu_idle_min_ns else { continue };
        assert!(least <= job.idle(0, job.end), "seed {seed}");
    }
}

#[test]
fn ledgers_add_up() {
    for seed in 0..256 {
        let job = Job::new(seed);
        let report = explain(&job, facts(&job));
        assert_eq!(report.threads.len(), job.sums.len(), "seed {seed}");
        for thread in &report.threads {
            let total: u64 = thread.ledger.values().sum();
            assert_eq!(total, thread.wall_ns, "seed {seed}, thread {}: {:?}", thread.tid, thread.ledger);
            let sums = job.sums.iter().find(|sums| sums.tid == thread.tid).unwrap();
            let of = |state: &str| thread.ledger.get(state).copied().unwrap_or(0);
            assert_eq!(of("running_cuda") + of("running_host"), sums.on_cpu_ns, "seed {seed}");
            assert_eq!(of("ready"), sums.ready_ns, "seed {seed}");
        }
    }
}

#[test]
fn nobody_is_blamed_for_more_than_there_was() {
    for seed in 0..256 {
        let job = Job::new(seed);
        let report = explain(&job, facts(&job));
        let lost = |idle: bool| -> u64 {
            // Startup, and hold-ups during which the GPU may have been busy, are not idle time of the steady state.
            let is_idle = |finding: &&gpuwhy_model::Finding| {
                finding.kind != "cold_start" && !finding.effect.iter().any(|effect| effect.contains("was held up"))
            };
            let found = report.findings.iter().filter(|finding| is_idle(finding) == idle);
            found.map(|finding| finding.lost_ns).sum()
        };
        let least = report.gpu_idle_min_ns.unwrap();
        assert!(lost(true) <= least, "seed {seed}: {} > {least}", lost(true));
        assert!(lost(true) + lost(false) <= report.wall_ns, "seed {seed}: {report:?}");
    }
}

/// The same with NVML's samples, which begin late: what they show is taken to hold before, too.
fn facts_with_nvml(job: &Job) -> Facts {
    let mut facts = facts(job);
    let step = job.end / 60;
    for window in 20..60 {
        let (from, at_ns) = (window * step, (window + 1) * step);
        let percent = 100 - (100 * job.idle(from, at_ns)).div_ceil(step) as u32;
        facts.busy.push(GpuBusy { at_ns, gpu: 0, percent });
    }
    let process = GpuProcess { at_ns: job.end, gpu: 0, pid: 100, bytes: Some(1), sm_percent: None, name: [0; 16] };
    facts.gpu_processes.push(process);
    facts
}

#[test]
fn in_the_steady_part_nobody_is_blamed_for_more_than_there_was() {
    let (mut certain_ns, mut at_most) = (0, 0);
    for (seed, nvml) in (0..256).flat_map(|seed| [(seed, false), (seed, true)]) {
        let job = Job::new(seed);
        let report = explain(&job, if nvml { facts_with_nvml(&job) } else { facts(&job) });
        let Some((from, to)) = report.steady else { continue };
        let found = report.findings.iter().filter(|finding| finding.kind != "cold_start");
        let (bounds, told): (Vec<_>, Vec<_>) = found.partition(|finding| finding.is_upper_bound);
        let lost = |list: &[&Finding]| list.iter().map(|finding| finding.lost_ns).sum::<u64>();
        let about_pace = |finding: &&&Finding| finding.effect.iter().any(|effect| effect.contains("held up"));
        let idle: Vec<&Finding> = told.iter().filter(|finding| !about_pace(finding)).copied().collect();
        // What is said without "up to" is certain.
        let (truth, said) = (job.idle(from, to), lost(&idle));
        assert!(said <= truth + (to - from) / 25, "seed {seed}, {nvml}: {said} > {truth}: {:#?}", report.findings);
        let (all, most) = (lost(&told) + lost(&bounds), report.gpu_idle_max_ns.unwrap().min(to - from));
        assert!(all <= most, "seed {seed}, {nvml}: {all} > {most}");
        certain_ns += said;
        at_most += bounds.len();
    }
    assert!(certain_ns > 0 && at_most > 0, "{certain_ns} {at_most}");
}

/// Several jobs beside each other, as ranks or nodes in one merged run: each has processes and a GPU of its own.
fn merged(seeds: std::ops::Range<u64>) -> (Job, Facts) {
    let mut jobs: Vec<Job> = seeds.clone().map(Job::new).collect();
    let mut facts = Facts { started: true, complete: true, cores: 4, ..Facts::default() };
    let mut events = Vec::new();
    for (rank, job) in jobs.iter_mut().enumerate() {
        let (by, device) = (1000 * rank as u32, rank as u8);
        for event in &mut job.events {
            match event {
                Event::Call(call) => (call.pid, call.tid, call.device) = (call.pid + by, call.tid + by, Some(device)),
                Event::Off(off) => {
                    (off.pid, off.tid) = (off.pid + by, off.tid + by);
                    if off.waker_tid != 0 {
                        (off.waker_pid, off.waker_tid) = (off.waker_pid + by, off.waker_tid + by);
                    }
                }
                Event::Run(run) => (run.pid, run.tid) = (run.pid + by, run.tid + by),
                Event::Moved(moved) => (moved.pid, moved.tid) = (moved.pid + by, moved.tid + by),
            }
        }
        for sums in &mut job.sums {
            (sums.pid, sums.tid) = (sums.pid + by, sums.tid + by);
        }
        facts.threads.extend(job.sums.iter().copied());
        facts.to_ns = facts.to_ns.max(job.end);
        events.append(&mut job.events);
    }
    events.sort_by_key(Event::start_ns);
    let mut job = jobs.swap_remove(0);
    job.events = events;
    (job, facts)
}

#[test]
fn shares_of_merged_runs_add_up_to_at_most_the_whole() {
    let mut most: f64 = 0.0;
    for seed in 0..96 {
        for nodes in 1..5 {
            let (job, facts) = merged(seed..seed + nodes);
            let report = explain(&job, facts);
            let Some((from, to)) = report.steady else { continue };
            let whole = |finding: &&gpuwhy_model::Finding| finding.kind != "cold_start";
            let share: f64 = report.findings.iter().filter(whole).map(|finding| finding.share).sum();
            assert!(share <= 1.0 + 1e-9, "seed {seed}, {nodes} nodes: {share} in {:#?}", report.findings);
            for finding in report.findings.iter().filter(whole) {
                let of_steady = finding.lost_ns as f64 / (to - from) as f64;
                assert!((finding.share - of_steady).abs() < 1e-9, "{finding:#?}");
                assert!(finding.fixes.iter().all(|fix| fix.saves_ns <= finding.lost_ns), "{finding:#?}");
            }
            most = most.max(share);
        }
    }
    // It would be of no use if next to nothing were found.
    assert!(most > 0.3, "{most}");
}

#[test]
fn waits_behind_collectives_are_told_as_what_one_rank_can_know() {
    let mut job = Job::new(7);
    let before = explain(&job, facts(&job));
    assert!(before.findings.iter().all(|finding| finding.kind != "collective_wait"));
    job.exchange_before_waits();
    let report = explain(&job, facts(&job));
    let found = report.findings.iter().find(|finding| finding.kind == "collective_wait").unwrap();
    assert!(found.root_cause.detail.contains("other ranks"), "{}", found.root_cause.detail);
    assert_eq!((found.severity, found.lost_ns), (gpuwhy_model::Severity::Low, 0));
    // What the GPU did meanwhile stays within the bounds: a collective is work.
    let (least, most) = (report.gpu_idle_min_ns.unwrap(), report.gpu_idle_max_ns.unwrap());
    assert!(least <= job.idle(0, job.end) && job.idle(0, job.end) <= most);
}

/// Checks a job's bounds, thinned in several ways; returns how much idle time was told with all rows and with the fewest.
fn check_thinned(seed: u64, job: &mut Job) -> (u64, u64) {
    let all = std::mem::take(&mut job.events);
    let truth = job.idle(0, job.end);
    let mut told = Vec::new();
    let mut launches = Vec::new();
    for (longest, batch) in [(1, usize::MAX), (4, 100), (64, 1_000), (65_536, usize::MAX)] {
        job.events = thinned(&all, Thinning { longest, mix_stacks: true }, batch);
        let report = explain(job, facts(job));
        let (least, most) = (report.gpu_idle_min_ns.unwrap(), report.gpu_idle_max_ns.unwrap());
        assert!(least <= truth && truth <= most, "seed {seed}, {longest}: {least} ≤ {truth} ≤ {most}");
        let total: u64 = report.threads.iter().map(|thread| thread.ledger.values().sum::<u64>()).sum();
        assert_eq!(total, report.threads.iter().map(|thread| thread.wall_ns).sum::<u64>(), "seed {seed}, {longest}");
        told.push(least);
        launches.push(report.gpus[0].launches);
    }
    assert!(launches.iter().all(|count| *count == launches[0]), "seed {seed}: {launches:?}");
    (told[0], told[told.len() - 1])
}

#[test]
fn bounds_hold_for_thinned_jobs() {
    for seed in 0..128 {
        check_thinned(seed, &mut Job::new(seed));
    }
    let (mut with_all, mut with_few) = (0, 0);
    for seed in 0..256 {
        let mut job = Job::with_bursts(seed);
        let few = thinned(&job.events, Thinning { longest: 65_536, mix_stacks: true }, usize::MAX).len();
        assert!(few * 2 < job.events.len(), "seed {seed}: {few} of {}", job.events.len());
        let (all, thin) = check_thinned(seed, &mut job);
        with_all += all;
        with_few += thin;
    }
    assert!(with_few * 10 > with_all * 9, "{with_few} of {with_all} ns of idle time are still told");
}

#[test]
fn time_inside_calls_is_about_the_same_when_thinned() {
    for seed in 0..64 {
        let mut job = Job::with_bursts(seed);
        let of = |job: &Job| {
            let report = explain(job, facts(job));
            let thread = report.threads.iter().find(|thread| thread.tid == 100).unwrap();
            thread.ledger.get("running_cuda").copied().unwrap_or(0)
        };
        let whole = of(&job);
        job.events = thinned(&job.events, Thinning { longest: 65_536, mix_stacks: true }, usize::MAX);
        let thin = of(&job);
        assert!(thin.abs_diff(whole) < whole / 4, "seed {seed}: {thin} is not about {whole}");
    }
}

/// A call of the only process; threads by their numbers.
fn call(tid: u32, function: &str, start_ns: u64, duration_ns: u64, arg0: u64) -> Event {
    let op = by_function(function).unwrap().id;
    Event::Call(Call {
        start_ns,
        duration_ns,
        pid: 100,
        tid,
        op,
        device: Some(0),
        stream: Some(7),
        arg0: Some(arg0),
        arg1: Some(1),
        ret: 0,
        flags: CallFlags::default(),
        weight: 1,
        stack: None,
    })
}

/// The bounds of a job whose only facts are its calls, with all rows and with as few as possible.
fn bounds_of(mut events: Vec<Event>, end: u64) -> [(u64, u64); 2] {
    events.sort_by_key(Event::start_ns);
    let few = thinned(&events, Thinning { longest: 65_536, mix_stacks: true }, usize::MAX);
    assert!(few.len() * 20 < events.len(), "{}", few.len());
    [events, few].map(|events| {
        let mut explainer = Explainer::new(Facts { to_ns: end, started: true, complete: true, ..Facts::default() });
        // The scheduler was followed: else nobody is called busy.
        let helper = Job::new(1).events.into_iter().find(|event| matches!(event, Event::Off(off) if off.tid != 100));
        explainer.feed(&helper.unwrap());
        events.iter().for_each(|event| explainer.feed(event));
        let report = explainer.finish(&mut |_| HashMap::new());
        (report.gpu_idle_min_ns.unwrap(), report.gpu_idle_max_ns.unwrap())
    })
}

#[test]
fn launches_told_late_do_not_make_the_gpu_idle() {
    // A kernel every 10 µs that takes as long, and another thread that waits for what is queued now and then.
    let launches = (0..1_000).map(|i| call(100, "cuLaunchKernel", i * 10_000, 5_000, i));
    let waits = (1..5).map(|i| call(102, "cudaStreamSynchronize", i * 2_000_000 + 7_000, 30_000, 7));
    let events = launches.chain(waits).chain([call(100, "cudaDeviceSynchronize", 10_000_000, 30_000, 0)]);
    let end = 10_100_000;
    for (least, most) in bounds_of(events.collect(), end) {
        let truth = end - 10_000_000;
        assert!(least <= truth && truth <= most, "{least} ≤ {truth} ≤ {most}");
    }
}

#[test]
fn copies_told_late_do_not_make_the_gpu_busy() {
    // One short kernel; then copies, for which another thread waits.
    let copies = (0..2_000).map(|i| call(100, "cudaMemcpyAsync", 20_000 + i * 10_000, 5_000, 20_000));
    let waits = (1..4).map(|i| call(102, "cudaStreamSynchronize", i * 4_000_000, 3_000_000, 7));
    let events = [call(100, "cuLaunchKernel", 0, 5_000, 1)].into_iter().chain(copies).chain(waits);
    let end = 45_000_000;
    for (least, most) in bounds_of(events.collect(), end) {
        let truth = end - 10_000;
        assert!(least <= truth && truth <= most, "{least} ≤ {truth} ≤ {most}");
    }
}
