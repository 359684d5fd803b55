// SPDX-License-Identifier: Apache-2.0
//! Follows jobs made of synthetic events, and checks the result against a simple account.
#![allow(missing_docs, clippy::unwrap_used)]

mod described;
mod synth;

use gpuwhy_memory::SiteFact;
use gpuwhy_memory::live::{Picture, Tracker};
use gpuwhy_memory::report::Source;
use gpuwhy_model::sample::GpuSample;
use std::collections::{BTreeSet, HashMap};
use synth::{Job, PID};

const MB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

fn sites() -> HashMap<u64, SiteFact> {
    let site = |line: u64| {
        let line = format!("job.py:{line}");
        SiteFact { place: Some(format!("/home/me/{line}")), line: Some(line), ..SiteFact::default() }
    };
    (0..100).map(|stack| (stack, site(stack))).collect()
}

/// Feeds a job in chunks, as updates do.
fn follow(tracker: &mut Tracker, job: &Job) -> Picture {
    for part in job.events.chunks(37) {
        part.iter().for_each(|event| tracker.feed(event));
    }
    tracker.advance(job.now);
    tracker.picture(job.now, &sites(), &HashMap::from([(PID, "python3".to_owned())]))
}

/// Ten steps a second; each keeps an allocation, if `keeps`.
fn steps(job: &mut Job, count: u64, keeps: bool) {
    for _ in 0..count {
        job.now += SECOND / 10;
        let activation = job.alloc(20 * MB, 2);
        if keeps {
            job.alloc(MB, 3);
        }
        (0..5).for_each(|_| job.launch(4));
        job.free(activation);
        job.wait(5);
    }
}

#[test]
fn totals_are_the_allocators_and_growing_lines_have_their_rate() {
    let (mut job, mut tracker) = (Job::default(), Tracker::new(&[]));
    job.alloc(100 * MB, 1);
    steps(&mut job, 300, true);
    let picture = follow(&mut tracker, &job);
    let [space] = picture.spaces.as_slice() else { panic!("{picture:#?}") };
    assert_eq!((space.allocated, space.reserved, space.peak_allocated), (job.allocated, job.reserved, job.peak.0));
    assert_eq!((space.source, space.name.as_str(), space.device), (Source::Torch, "python3", Some(0)));
    assert_eq!(space.recent.len(), 30, "a point a second");
    let [line, model] = picture.growing.as_slice() else { panic!("{:#?}", picture.growing) };
    assert_eq!((model.line.as_deref(), model.steadily), (Some("job.py:1"), false), "it came once");
    assert!(line.steadily, "{line:?}");
    assert_eq!((line.line.as_deref(), line.bytes, line.count), (Some("job.py:3"), 300 * MB, 300));
    let rate = line.grown_bytes as f64 / line.over_ns as f64 * 1e9;
    assert!((rate / (10 * MB) as f64 - 1.0).abs() < 0.1, "{rate}");
    assert!((space.bytes_per_second / (10 * MB) as f64 - 1.0).abs() < 0.1, "{space:?}");
    assert_eq!(space.out_of_memory_in_ns, None, "the device's size is unknown");
    // With it, the time left is known, too.
    let sample = GpuSample {
        memory_used: Some(job.reserved),
        memory_total: Some(job.reserved + 1_000 * MB),
        ..GpuSample::default()
    };
    tracker.devices(&[sample], &[]);
    let picture = tracker.picture(job.now, &sites(), &HashMap::new());
    let seconds = picture.spaces[0].out_of_memory_in_ns.unwrap() / SECOND;
    assert!((90..120).contains(&seconds), "about 1000 MB at 10 MB a second: {seconds}");
}

/// PyTorch copies the model, loads libraries for a long time, and then starts: the pause does not hide the leak.
#[test]
fn a_pause_before_the_first_step_hides_no_growth() {
    let (mut job, mut tracker) = (Job::default(), Tracker::new(&[]));
    job.alloc(100 * MB, 1);
    job.now += 40 * SECOND;
    steps(&mut job, 80, true);
    let picture = follow(&mut tracker, &job);
    let line = picture.growing.iter().find(|line| line.line.as_deref() == Some("job.py:3")).unwrap();
    assert!(line.steadily, "{line:#?}");
    // A minute after the last work, nothing grows.
    job.now += 62 * SECOND;
    assert_eq!(follow(&mut Tracker::new(&[]), &job).growing, []);
}

#[test]
fn memory_that_a_step_uses_and_frees_does_not_grow() {
    let (mut job, mut tracker) = (Job::default(), Tracker::new(&[]));
    steps(&mut job, 300, false);
    let picture = follow(&mut tracker, &job);
    assert!(picture.growing.is_empty(), "{:#?}", picture.growing);
    assert!(picture.spaces[0].bytes_per_second.abs() < f64::EPSILON && picture.oom_count == 0);
    // The same after idle hours, which are not counted second by second.
    job.now += 100_000 * SECOND;
    steps(&mut job, 10, false);
    let mut late = Tracker::new(&[]);
    assert!(follow(&mut late, &job).spaces[0].recent.len() <= 120);
}

#[test]
fn direct_driver_memory_refusals_and_ends_are_shown() {
    let (mut job, mut tracker) = (Job::default(), Tracker::new(&[PID]));
    job.alloc(MB, 1);
    let own = job.malloc(7 * MB, 6);
    job.launch(4);
    job.now += 2 * SECOND;
    job.refuse(50 * MB, 2);
    let picture = follow(&mut tracker, &job);
    let driver = picture.spaces.iter().find(|space| space.source == Source::Driver).unwrap();
    assert_eq!(driver.allocated, 7 * MB, "without PyTorch's own segment");
    let oom = &picture.ooms[0];
    assert_eq!((picture.oom_count, oom.asked, oom.line.as_deref()), (1, 50 * MB, Some("job.py:2")));
    job.events.clear();
    job.free_device(own, 6);
    job.exit(0, 9);
    let picture = follow(&mut tracker, &job);
    assert!(picture.spaces.iter().all(|space| space.ended), "{picture:#?}");
    assert_eq!((picture.ends[0].pid, picture.ends[0].signal), (PID, 9));
    // Other processes are ignored.
    let mut others = Tracker::new(&[1]);
    assert!(follow(&mut others, &job).spaces.is_empty());
}

#[test]
fn the_result_of_an_examination_is_shown_with_its_lines() {
    let (mut job, mut tracker) = (Job::default(), Tracker::new(&[]));
    job.alloc(100 * MB, 1);
    steps(&mut job, 300, true);
    follow(&mut tracker, &job);
    let report = job.examine();
    tracker.judged(&report, job.now);
    job.refuse(MB, 2);
    job.exit(0, 0);
    let picture = tracker.picture(job.now, &sites(), &HashMap::new());
    assert_eq!((picture.verdict.as_ref(), picture.verdict_at_ns), (Some(&report.verdict), Some(job.now - 200)));
    assert!(picture.growing[0].leaks, "{:#?}", picture.growing);
    assert!((picture.spaces[0].bytes_per_second - report.leaks[0].bytes_per_second).abs() < 1.0);
    // After a restart the events give the same, and the result stays.
    tracker.restart();
    let mut again = follow(&mut tracker, &job);
    assert_eq!((again.verdict.as_ref(), again.spaces[0].peak_allocated), (Some(&report.verdict), job.peak.0));
    assert_eq!((again.oom_count, again.ends.len()), (1, 1));
    // Every key is documented.
    let mut real = BTreeSet::new();
    described::keys_in(&serde_json::to_value(&again).unwrap(), &mut real);
    again.growing.push(gpuwhy_memory::live::GrowingLine::default());
    described::keys_in(&serde_json::to_value(&again).unwrap(), &mut real);
    described::assert_described("gpuwhy.memory-live/1", &real, &["schema", "type", "run", "state", "reason"]);
}
