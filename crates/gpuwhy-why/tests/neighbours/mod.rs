// SPDX-License-Identifier: Apache-2.0
//! Another job of the run on the job's GPU: it is named, what it does is not this job's, and nothing of it is in the figures.

use crate::story::{LAUNCH, MS, Story, Thread};
use gpuwhy_model::Wait;
use gpuwhy_why::{ProcessFact, Report};

const STEP: u64 = 100 * MS;
const STEPS: u64 = 50;

/// A job with 50 ms of work in each of 50 steps of 100 ms, beside another whose work begins and ends here in each step.
fn beside(device: u8, work: std::ops::Range<u64>) -> Report {
    let mut story = Story::new();
    let own = story.process(100, "python3 a.py");
    let line = story.line("a.py:12");
    story.facts.others.insert(200, ProcessFact { pid: 200, name: "python3 b.py".into(), ..ProcessFact::default() });
    let other = Thread { pid: 200, tid: 200 };
    for _ in 0..STEPS {
        let at = story.now;
        story.kernel(own, 50 * MS);
        story.off(own, story.now, 50 * MS, Wait::Sleep).stack(line);
        if !work.is_empty() {
            let call = story.call(other, "cuLaunchKernel", at + work.start, LAUNCH);
            (call.stream, call.device) = (Some(0x1000), Some(device));
            let ns = work.end - work.start - LAUNCH;
            story.sync(other, at + work.start + LAUNCH, ns).device = Some(device);
            story.off(other, at + work.end, STEP - work.end, Wait::Pipe);
        }
        story.now = at + STEP;
    }
    story.tell()
}

fn shared(report: &Report) -> Option<&gpuwhy_model::Finding> {
    report.findings.iter().find(|finding| finding.kind == "gpu_shared")
}

#[test]
fn work_at_the_same_time_is_counted_to_the_nanosecond_and_the_neighbour_named() {
    // From 25 to 75 ms: half of that both have work, a quarter of the time.
    let report = beside(0, 25 * MS..75 * MS);
    let found = shared(&report).unwrap_or_else(|| panic!("{:#?}", report.findings));
    assert_eq!(found.title, "Another job used the GPU at the same time");
    let said = "python3 b.py 200 had work on the same GPU 25 % of the time";
    assert!(found.root_cause.detail.starts_with(said), "{found:#?}");
    let shown: u64 = found.chain.iter().map(|link| link.ns).sum();
    assert!(shown.abs_diff(STEPS * 25 * MS) <= STEPS * 2 * LAUNCH, "{found:#?}");
    assert!(report.verdict.starts_with("The GPU had no work from this job at least"), "{}", report.verdict);
}

#[test]
fn what_a_neighbour_does_is_in_none_of_the_jobs_figures() {
    let (alone, both) = (beside(0, 0..0), beside(0, 25 * MS..75 * MS));
    assert_eq!(alone.gpus[0].launches, both.gpus[0].launches);
    assert_eq!(alone.gpu_idle_min_ns, both.gpu_idle_min_ns);
    assert_eq!(alone.threads, both.threads);
    assert_eq!(alone.processes, both.processes);
    assert_eq!(alone.findings[0].lost_ns, both.findings[0].lost_ns);
    assert!(alone.verdict.starts_with("The GPU was idle at least"), "{}", alone.verdict);
    // The GPU may have been busy with the neighbour's work: no finding says that it was idle.
    assert!(both.findings[0].effect.iter().any(|effect| effect.contains("no work from this job")), "{both:#?}");
    assert!(!both.findings[0].title.contains("idle"), "{}", both.findings[0].title);
}

#[test]
fn on_another_gpu_or_at_another_time_nothing_is_shared() {
    assert_eq!(shared(&beside(1, 25 * MS..75 * MS)), None);
    assert_eq!(shared(&beside(0, 55 * MS..95 * MS)), None);
}
