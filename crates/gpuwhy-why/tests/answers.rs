// SPDX-License-Identifier: Apache-2.0
//! Jobs with one known trouble each: the answer must name it, its cost and who is at fault.

mod doubts;
mod neighbours;
#[allow(dead_code, reason = "shared with other tests, each of which needs a part of it")]
mod story;
mod thinned;

use gpuwhy_model::sample::CgroupSample;
use gpuwhy_model::{Severity, Wait, WokenBy};
use gpuwhy_why::Report;
use story::{LAUNCH, MS, SECOND, Story, Thread, assert_about, found, serious};

const STEPS: u64 = 50;

/// A PyTorch data loader: the main thread waits for the pin thread, which waits for a worker's feeder thread, which
/// waits for the worker.
struct Loader {
    main: Thread,
    pin: Thread,
    feeder: Thread,
    worker: Thread,
    next_batch: u64,
    decode: u64,
}

impl Loader {
    fn new(story: &mut Story) -> Self {
        Self {
            main: story.process(100, "python3"),
            pin: story.thread(100, 101, "pin_memory"),
            worker: story.process(200, "pt_data_worker"),
            feeder: story.thread(200, 201, "QueueFeeder"),
            next_batch: story.line_in_queue("train.py:138"),
            decode: story.line("data.py:51"),
        }
    }

    /// The next batch takes so long. The last of it is spent on passing it on.
    fn batch(&self, story: &mut Story, ns: u64) {
        let (at, pass_on) = (story.now, 20_000);
        story.off(self.main, at, ns, Wait::Futex).by(self.pin).stack(self.next_batch);
        story.off(self.pin, at, ns - pass_on, Wait::Pipe).by(self.feeder);
        story.off(self.feeder, at, ns - 2 * pass_on, Wait::Futex).by(self.worker);
        story.sample(self.worker, at + ns - MS, self.decode);
        story.now += ns;
    }
}

/// A job that waits 30 of every 50 ms for its worker, which meanwhile does something from 2 ms on.
fn starved(meanwhile: impl Fn(&mut Story, &Loader, u64)) -> Report {
    let mut story = Story::new();
    let loader = Loader::new(&mut story);
    for _ in 0..STEPS {
        story.kernel(loader.main, 20 * MS);
        let at = story.now + 2 * MS;
        meanwhile(&mut story, &loader, at);
        loader.batch(&mut story, 30 * MS);
    }
    story.tell()
}

#[test]
fn a_chain_is_followed_to_the_worker_that_computes() {
    let report = starved(|_, _, _| {});
    let starved = found(&report, "input_starved");
    assert_eq!(starved.lost_ns, STEPS * 30 * MS);
    assert_eq!(report.gpu_idle_min_ns, Some(STEPS * 30 * MS));
    assert_eq!((starved.severity, starved.pid, starved.tid), (Severity::High, Some(100), Some(100)));
    let root = &starved.root_cause;
    assert_eq!(
        (root.kind.as_str(), root.pid, root.line.as_deref()),
        ("cpu_bound_worker", Some(200), Some("data.py:51"))
    );
    assert_eq!(root.name.as_deref(), Some("pt_data_worker"));
    let chain: Vec<&str> = starved.chain.iter().map(|link| link.who.as_str()).collect();
    let feeder = "pt_data_worker 200 thread QueueFeeder";
    assert_eq!(chain, ["python3 100", "python3 100 thread pin_memory", feeder, "pt_data_worker 200"]);
    assert_eq!(starved.chain[0].line.as_deref(), Some("train.py:138"));
    assert_eq!(starved.chain[0].state, "blocked, futex");
    assert_eq!(serious(&report), ["input_starved"]);
    assert!(report.verdict.contains("at least 60 % of the time"), "{}", report.verdict);
    assert!(report.verdict.contains("the data worker cannot keep up"), "{}", report.verdict);
    assert_eq!(starved.title, "Data loading is too slow");
    assert_eq!(root.detail, "pt_data_worker 200: 60 % of the time running (data.py:51)");
    assert!(starved.fixes[0].text.contains("make the work at data.py:51 cheaper"), "{:?}", starved.fixes);
}

#[test]
fn a_chain_is_followed_to_the_disk() {
    let report = starved(|story, loader, at| {
        story.off(loader.worker, at, 24 * MS, Wait::File).ended_by(WokenBy::Disk).stack(loader.decode);
    });
    let starved = found(&report, "input_starved");
    assert_eq!((starved.root_cause.kind.as_str(), starved.lost_ns), ("disk_io", STEPS * 30 * MS));
    assert_eq!(starved.root_cause.line.as_deref(), Some("data.py:51"));
    assert_eq!(starved.chain.last().map(|link| link.ns), Some(STEPS * 24 * MS));
    let detail = &starved.root_cause.detail;
    assert!(detail.contains("48 % of the time waiting for the disk (data.py:51)"), "{detail}");
    assert!(report.verdict.contains("the data worker waits for the disk"), "{}", report.verdict);
}

#[test]
fn a_chain_is_followed_to_a_sleep() {
    let report = starved(|story, loader, at| {
        story.off(loader.worker, at, 24 * MS, Wait::Sleep).ended_by(WokenBy::Timer).stack(loader.decode);
    });
    let starved = found(&report, "input_starved");
    assert_eq!((starved.root_cause.kind.as_str(), starved.lost_ns), ("host_sleep", STEPS * 30 * MS));
    assert_eq!(starved.chain.last().map(|link| (link.what.as_str(), link.ns)), Some(("sleeps", STEPS * 24 * MS)));
    assert_eq!(serious(&report), ["input_starved"]);
}

#[test]
fn a_chain_is_followed_to_who_took_the_workers_cpu() {
    let report = starved(|story, loader, at| {
        story.without_cpu(loader.worker, at, 24 * MS, 1);
        story.has_cpu(999, "stress", 1, at, 24 * MS);
        story.has_cpu(888, "innocent", 0, at, 24 * MS);
    });
    let starved = found(&report, "input_starved");
    let root = &starved.root_cause;
    assert_eq!((root.kind.as_str(), root.pid, root.name.as_deref()), ("cpu_contention", Some(999), Some("stress")));
    assert_eq!(starved.lost_ns, STEPS * 30 * MS);
    assert_eq!(starved.chain.last().map(|link| (link.who.as_str(), link.ns)), Some(("stress 999", STEPS * 24 * MS)));
    assert!(!report.verdict.contains("innocent"), "{}", report.verdict);
}

#[test]
fn workers_behind_each_other_are_workers_that_compute() {
    let report = starved(|story, loader, at| {
        story.facts.processes.entry(999).or_default().name = "pt_data_worker".to_owned();
        story.without_cpu(loader.worker, at, 24 * MS, 1);
        story.has_cpu(999, "pt_data_worker", 1, at, 24 * MS);
    });
    assert_eq!(found(&report, "input_starved").root_cause.kind, "cpu_bound_worker");
}

#[test]
fn a_chain_is_followed_to_the_quota() {
    let report = starved(|story, loader, at| {
        let quota = CgroupSample {
            path: "/job".to_owned(),
            quota_ns: Some(150 * MS),
            period_ns: Some(100 * MS),
            throttled_periods: Some(5),
            throttled_ns: Some(24 * MS),
            ..CgroupSample::default()
        };
        story.facts.cgroups.push(quota);
        story.without_quota(loader.worker, at, 24 * MS);
    });
    let starved = found(&report, "input_starved");
    assert_eq!((starved.root_cause.kind.as_str(), starved.lost_ns), ("cpu_throttled", STEPS * 30 * MS));
    assert!(starved.fixes[0].text.contains("/job (now 1.5 cores)"), "{:?}", starved.fixes);
    assert_eq!(starved.fixes[0].saves_ns, STEPS * 24 * MS);
}

/// The main thread waits three times 10 ms with a limit, for what lies at these addresses; a thread ends the last.
fn waits_with_a_limit(objects: [u64; 3], last_by_thread: bool) -> Report {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    let helper = story.thread(100, 101, "prefetch");
    let get = story.line_in_queue("train.py:20");
    for _ in 0..STEPS {
        story.kernel(main, 20 * MS);
        for (i, object) in objects.into_iter().enumerate() {
            // 0.1 ms passes before it waits again.
            let off = story.off(main, story.now, 99 * MS / 10, Wait::Futex);
            let off = off.object(object).limit(99 * MS / 10).ended_by(WokenBy::Timer).stack(get);
            if i == 2 && last_by_thread {
                off.by(helper);
            }
            story.now += 10 * MS;
        }
    }
    story.tell()
}

#[test]
fn a_wait_begun_again_after_its_limit_is_no_sleep() {
    let report = waits_with_a_limit([0x7000, 0x7020, 0x7000], true);
    let starved = found(&report, "input_starved");
    assert_eq!(starved.root_cause.kind, "cpu_bound_worker");
    assert_about(starved.lost_ns, STEPS * 297 * MS / 10);
    assert_eq!(serious(&report), ["input_starved"]);
    let end = starved.chain.last().unwrap();
    assert_eq!(end.who, "python3 100 thread prefetch");
    // All of it, the waits that a timer ended included.
    assert_about(end.ns, STEPS * 297 * MS / 10);
}

#[test]
fn another_wait_does_not_go_on_with_the_one_before() {
    let report = waits_with_a_limit([0x7000, 0x7000, 0x9000], true);
    let starved = found(&report, "input_starved");
    assert_eq!((starved.root_cause.kind.as_str(), starved.chain.len()), ("unresolved", 1));
    assert!(starved.root_cause.detail.contains("20 % running"), "{}", starved.root_cause.detail);
}

#[test]
fn a_limit_that_passes_outside_of_a_queue_is_sleep() {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    let line = story.line("train.py:9");
    for _ in 0..STEPS {
        story.kernel(main, 20 * MS);
        story.off(main, story.now, 30 * MS, Wait::Poll).limit(30 * MS).ended_by(WokenBy::Timer).stack(line);
        story.now += 30 * MS;
    }
    let report = story.tell();
    let sleep = found(&report, "host_sleep");
    assert_eq!((sleep.lost_ns, sleep.root_cause.line.as_deref()), (STEPS * 30 * MS, Some("train.py:9")));
}

/// The main thread wants the GIL for 30 ms of every 50; a sibling computes, another one waits for the end.
fn gil_hog(handed_over: bool) -> Report {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    let hog = story.thread(100, 101, "Thread-1");
    let idler = story.thread(100, 102, "Thread-2");
    let (line, hog_line) = (story.line("train.py:30"), story.line("metrics.py:7"));
    story.off(idler, 0, STEPS * 50 * MS, Wait::Futex);
    for _ in 0..STEPS {
        story.kernel(main, 20 * MS);
        for i in 0..6 {
            let off = story.off(main, story.now, 5 * MS, Wait::Futex).limit(5 * MS).object(0x4000).stack(line);
            let _ = if handed_over && i == 5 { off.by(hog) } else { off.ended_by(WokenBy::Timer) };
            story.sample(hog, story.now + MS, hog_line);
            story.now += 5 * MS;
        }
    }
    story.tell()
}

#[test]
fn the_gil_is_named() {
    for handed_over in [true, false] {
        let report = gil_hog(handed_over);
        let lock = found(&report, "lock_contention");
        assert_eq!((lock.root_cause.kind.as_str(), lock.lost_ns), ("lock_contention", STEPS * 30 * MS));
        assert_eq!(lock.root_cause.line.as_deref(), Some("metrics.py:7"));
        assert!(lock.title.contains("GIL") && lock.root_cause.detail.contains("Thread-1"), "{lock:?}");
        assert!(report.verdict.contains("GIL"), "{}", report.verdict);
        assert_eq!(serious(&report), ["lock_contention"]);
        let main = report.threads.iter().find(|thread| thread.tid == 100).unwrap();
        assert_eq!(main.ledger["blocked_gil"], STEPS * 30 * MS);
    }
}

#[test]
fn who_has_the_launching_threads_cpu_is_named() {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    for _ in 0..STEPS {
        story.kernel(main, 20 * MS);
        story.without_cpu(main, story.now, 30 * MS, 2);
        story.has_cpu(999, "stress", 2, story.now, 30 * MS);
        story.has_cpu(888, "innocent", 3, story.now, 30 * MS);
        story.now += 30 * MS;
    }
    let report = story.tell();
    let contention = found(&report, "cpu_contention");
    assert_eq!((contention.lost_ns, contention.severity), (STEPS * 30 * MS, Severity::High));
    assert_eq!(contention.root_cause.name.as_deref(), Some("stress"));
    assert!(report.verdict.contains("stress 999 takes the launching thread's CPU"), "{}", report.verdict);
    assert!(contention.fixes[0].text.contains("stress 999"), "{:?}", contention.fixes);
    let held: Vec<(&str, u64)> = report.threads[0].held_by.iter().map(|held| (held.name.as_str(), held.ns)).collect();
    assert_eq!(held, [("stress", STEPS * 30 * MS)]);
}

#[test]
fn a_thread_moved_while_it_was_ready_waited_for_both_cpus() {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    for _ in 0..STEPS {
        story.kernel(main, 20 * MS);
        story.without_cpu(main, story.now, 30 * MS, 0);
        story.moved(main, 1, story.now, 10 * MS);
        story.has_cpu(888, "cc1", 1, story.now, 30 * MS);
        story.has_cpu(999, "stress", 0, story.now, 30 * MS);
        story.now += 30 * MS;
    }
    let report = story.tell();
    let held: Vec<(&str, u64)> = report.threads[0].held_by.iter().map(|held| (held.name.as_str(), held.ns)).collect();
    assert_eq!(held, [("stress", STEPS * 20 * MS), ("cc1", STEPS * 10 * MS)]);
    let contention = found(&report, "cpu_contention");
    assert_eq!(contention.lost_ns, STEPS * 30 * MS);
    assert!(contention.root_cause.detail.contains("stress 999 and cc1 888"), "{}", contention.root_cause.detail);
}

#[test]
fn a_wait_after_each_kernel_is_at_fault_for_short_gaps() {
    for blocking in [false, true] {
        let mut story = Story::new();
        let main = story.process(100, "python3");
        let other = story.thread(100, 101, "idle");
        let (item, prepare) = (story.line("train.py:60"), story.line("train.py:61"));
        for _ in 0..1500 {
            story.launch(main, story.now);
            story.sync(main, story.now + LAUNCH, MS / 2).stack = Some(item);
            let waiter = if blocking { main } else { other };
            story.off(waiter, story.now + 2 * LAUNCH, MS / 2 - 2 * LAUNCH, Wait::Poll).ended_by(WokenBy::Interrupt);
            story.now += LAUNCH + MS / 2;
            story.sample(main, story.now + MS / 5, prepare);
            story.now += MS * 2 / 5;
        }
        let report = story.tell();
        let sync = found(&report, "sync_bound");
        assert_about(sync.lost_ns, 1500 * MS * 2 / 5);
        assert_eq!((sync.severity, sync.root_cause.line.as_deref()), (Severity::High, Some("train.py:60")));
        assert_eq!(serious(&report), ["sync_bound"], "blocking: {blocking}");
    }
}

/// While the GPU is busy the job waits 10 ms for its worker, which sleeps: that does no harm. Then it waits for the GPU,
/// works, and waits 1 ms more for its worker.
fn harmless_wait(loader: &Loader, story: &mut Story, work: u64) {
    story.launch(loader.main, story.now);
    story.now += LAUNCH;
    story.off(loader.worker, story.now, 10 * MS, Wait::Sleep).ended_by(WokenBy::Timer);
    loader.batch(story, 10 * MS);
    story.sync(loader.main, story.now, 10 * MS);
    story.now += 10 * MS + work;
    story.sample(loader.main, story.now - MS, loader.decode);
    story.off(loader.worker, story.now, MS, Wait::Sleep).ended_by(WokenBy::Timer);
    loader.batch(story, MS);
}

#[test]
fn own_work_after_a_wait_for_the_gpu_is_no_earlier_waits_fault() {
    let mut story = Story::new();
    let loader = Loader::new(&mut story);
    for _ in 0..STEPS {
        harmless_wait(&loader, &mut story, 10 * MS);
    }
    story.kernel(loader.main, MS);
    let report = story.tell();
    let own = found(&report, "launch_bound");
    assert_eq!((own.lost_ns, own.root_cause.line.as_deref()), (STEPS * 10 * MS, Some("data.py:51")));
    assert_eq!(found(&report, "input_starved").lost_ns, STEPS * MS);
    assert_eq!(report.findings[0].kind, "launch_bound");
}

#[test]
fn seconds_of_own_work_after_a_wait_for_the_gpu_are_no_earlier_waits_fault() {
    let mut story = Story::new();
    let loader = Loader::new(&mut story);
    for _ in 0..100 {
        harmless_wait(&loader, &mut story, 0);
    }
    harmless_wait(&loader, &mut story, 3 * SECOND);
    story.kernel(loader.main, MS);
    let report = story.tell();
    assert_about(found(&report, "launch_bound").lost_ns, 3 * SECOND);
}

#[test]
fn own_work_that_a_hold_up_put_off_is_its_fault() {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    for _ in 0..STEPS {
        story.launch(main, story.now);
        story.without_cpu(main, story.now + LAUNCH, 10 * MS, 0);
        story.has_cpu(999, "stress", 0, story.now + LAUNCH, 10 * MS);
        // The GPU was done long before: nobody knows since when.
        story.sync(main, story.now + LAUNCH + 10 * MS, LAUNCH);
        story.now += 2 * LAUNCH + 20 * MS;
        story.without_cpu(main, story.now, MS, 0);
        story.has_cpu(999, "stress", 0, story.now, MS);
        story.now += MS;
    }
    story.kernel(main, MS);
    let report = story.tell();
    assert_about(found(&report, "cpu_contention").lost_ns, STEPS * 11 * MS);
    assert_eq!(serious(&report), ["cpu_contention"]);
}

#[test]
fn own_work_that_a_computing_worker_put_off_is_its_fault() {
    let mut story = Story::new();
    let loader = Loader::new(&mut story);
    for _ in 0..STEPS {
        story.launch(loader.main, story.now);
        story.now += LAUNCH;
        loader.batch(&mut story, 10 * MS);
        story.sync(loader.main, story.now, LAUNCH);
        story.now += LAUNCH + 10 * MS;
        loader.batch(&mut story, MS);
    }
    story.kernel(loader.main, MS);
    let report = story.tell();
    assert_about(found(&report, "input_starved").lost_ns, STEPS * 11 * MS);
}

/// Two seconds of work, then none.
fn works_for_two_seconds() -> (Story, Thread) {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    for _ in 0..100 {
        story.kernel(main, 20 * MS);
    }
    (story, main)
}

#[test]
fn a_stall_at_the_end_is_part_of_the_answer() {
    let (mut story, main) = works_for_two_seconds();
    story.off(main, story.now, SECOND, Wait::Pipe);
    story.now += SECOND;
    let report = story.tell();
    assert_eq!(report.steady, Some((0, 3 * SECOND)));
    assert_eq!(found(&report, "input_starved").lost_ns, SECOND);
    assert!(report.verdict.contains("at least 33 % of the time"), "{}", report.verdict);
}

#[test]
fn what_comes_after_the_job_is_none_of_its_troubles() {
    let after = 8;
    let (mut story, main) = works_for_two_seconds();
    let shell = story.process(50, "bash");
    story.exits(main);
    story.off(shell, story.now, after * SECOND, Wait::Sleep);
    story.now += after * SECOND;
    let report = story.tell();
    assert_eq!(serious(&report), [""; 0], "{}", report.verdict);
    let (_, ended) = report.steady.unwrap();
    assert!(ended <= 2 * SECOND + 50 * MS, "{ended} with {after} s after the job");
}

/// Two ranks, each on its own GPU with its own worker; they wait 30 and 20 of every 50 ms.
fn two_ranks(sm_percent: Option<u32>) -> Report {
    let mut story = Story::new();
    for (pid, gpu, wait) in [(100, 0, 30 * MS), (300, 1, 20 * MS)] {
        story.now = 0;
        let main = story.process(pid, "python3");
        let worker = story.process(pid + 1, "pt_data_worker");
        for _ in 0..STEPS {
            story.kernel(main, 50 * MS - wait);
            story.off(main, story.now, wait, Wait::Pipe).by(worker);
            story.now += wait;
        }
        story.on_gpu(pid, "python3", gpu, sm_percent);
    }
    story.tell()
}

#[test]
fn the_same_trouble_of_two_ranks_is_one_finding() {
    let report = two_ranks(None);
    assert_eq!(serious(&report), ["input_starved"]);
    let starved = found(&report, "input_starved");
    assert_eq!((starved.lost_ns, starved.root_cause.kind.as_str()), (STEPS * 25 * MS, "cpu_bound_worker"));
    let idle: Vec<_> = report.gpus.iter().map(|gpu| (gpu.device, gpu.nvml_index, gpu.idle_min_ns)).collect();
    assert_eq!(idle, [(0, Some(0), STEPS * 30 * MS), (1, Some(1), STEPS * 20 * MS)]);
    assert_eq!(report.gpu_idle_min_ns, Some(STEPS * 30 * MS));
    assert!(report.verdict.contains("at least 50 % of the time"), "{}", report.verdict);
}

#[test]
fn a_rank_on_another_gpu_takes_nothing_away() {
    assert_eq!(serious(&two_ranks(Some(60))), ["input_starved"]);
}

/// The main thread waits in its own line for another thread, which works 10 of every 50 ms and may launch.
fn waits_for_a_thread(that_launches: bool) -> Report {
    let mut story = Story::new();
    let main = story.process(100, "python3");
    let other = story.thread(100, 101, "pt_autograd_0");
    let backward = story.line("train.py:44");
    for _ in 0..STEPS {
        if that_launches {
            story.launch(other, story.now + LAUNCH / 2);
        }
        story.kernel(main, 40 * MS);
        story.off(main, story.now, 10 * MS, Wait::Futex).by(other).object(0x4000).stack(backward);
        story.now += 10 * MS;
    }
    story.tell()
}

#[test]
fn a_thread_that_launches_holds_no_lock() {
    let report = waits_for_a_thread(true);
    assert!(report.findings.iter().all(|found| found.kind != "lock_contention"), "{:?}", report.findings);
    assert!(report.healthy.iter().any(|well| well.starts_with("locks: no time lost")), "{:?}", report.healthy);
    assert_eq!(serious(&report), ["launch_bound"]);
    let locked = waits_for_a_thread(false);
    assert_eq!(found(&locked, "lock_contention").lost_ns, STEPS * 10 * MS);
    assert!(!locked.verdict.contains("GIL"), "{}", locked.verdict);
}
