// SPDX-License-Identifier: Apache-2.0
//! Examines jobs made of synthetic events, and checks the reports against a simple account.
#![allow(missing_docs, clippy::unwrap_used)]

mod described;
mod synth;

use gpuwhy_memory::Report;
use gpuwhy_memory::alerts::{Alert, AlertKind, Level};
use gpuwhy_memory::report::{Source, Trend};
use gpuwhy_memory::steps::Certainty;
use gpuwhy_model::sample::{GpuProcess, GpuSample};
use gpuwhy_model::{Confidence, MemoryEvent};
use std::collections::BTreeSet;
use synth::{Dice, Job, MB, step};

#[test]
fn steps_are_not_layers_and_not_logging() {
    for layers in [1, 2, 12, 24] {
        let mut job = Job::default();
        (0..100).for_each(|number| step(&mut job, number, layers));
        let report = job.examine();
        let found = &report.steps[0];
        assert_eq!((found.steps, found.certainty), (100, Certainty::High), "{layers} layers: {found:?}");
        assert_eq!(found.launches, 8 * layers + 3);
        assert_eq!(found.marker_line.as_deref(), Some("job.py:50"));
        assert!(report.leaks.is_empty() && report.findings.is_empty(), "{:#?}", report.findings);
    }
}

#[test]
fn uneven_steps_are_still_steps() {
    let (mut job, mut dice) = (Job::default(), Dice(3));
    // Batches of different length: up to a tenth more launches.
    for number in 0..80 {
        step(&mut job, number, 10 + dice.below(2));
    }
    assert_eq!(job.examine().steps[0].steps, 80);
}

#[test]
fn without_a_pattern_growth_is_judged_by_time() {
    let (mut job, mut dice) = (Job::default(), Dice(9));
    for number in 0..4000 {
        job.now += dice.below(50_000_000);
        for _ in 0..dice.below(30) {
            job.launch(100 + dice.below(3));
        }
        let address = job.alloc(MB, 7);
        if number % 4 > 0 {
            job.free(address);
        }
    }
    let report = job.examine();
    let [leak] = report.leaks.as_slice() else { panic!("{:#?}", report.leaks) };
    assert_eq!(leak.line.as_deref(), Some("job.py:7"));
    let seconds = (job.now - job.events[0].at_ns()) as f64 / 1e9;
    let rate = 1000.0 * MB as f64 / seconds;
    assert!((leak.bytes_per_second / rate - 1.0).abs() < 0.05, "{leak:?} instead of {rate}");
    assert_eq!(report.steps[0].certainty, Certainty::None);
    assert_eq!((leak.bytes_per_step, leak.onset_step, leak.certainty), (None, None, Certainty::None));
    let found = report.findings.iter().find(|finding| finding.kind == "memory_leak").unwrap();
    assert!(found.title.contains("a second") && found.confidence == Confidence::Low, "{found:#?}");
}

#[test]
fn a_long_run_is_checked_in_groups_of_steps_without_loss_of_precision() {
    let mut job = Job::default();
    for number in 1..=3000 {
        if number >= 700 {
            job.alloc(512 * 3, 77);
        }
        step(&mut job, number, 1);
    }
    let report = job.examine();
    let [leak] = report.leaks.as_slice() else { panic!("{:#?}", report.leaks) };
    assert_eq!((leak.line.as_deref(), leak.onset_step), (Some("job.py:77"), Some(700)));
    assert_eq!((leak.bytes_per_step, leak.pieces_per_step), (Some(1536.0), Some(1.0)));
    assert_eq!(leak.grown_bytes, 1536 * 2301);
}

#[test]
fn running_out_of_memory_without_pytorch_is_reported() {
    let mut job = Job::default();
    job.malloc(30 * MB, 1);
    job.launch(2);
    job.malloc(90 * MB, 3);
    let Some(MemoryEvent::Call(call)) = job.events.last_mut() else { panic!() };
    (call.ret, call.arg1) = (2, None);
    let report = job.examine();
    let oom = &report.ooms[0];
    assert_eq!((oom.asked, oom.allocated, oom.line.as_deref()), (90 * MB, 30 * MB, Some("job.py:3")));
    assert_eq!((oom.live[0].line.as_deref(), oom.live[0].bytes), (Some("job.py:1"), 30 * MB));
}

/// Two processes of one job: one leaks, the other does not.
#[test]
fn processes_are_distinguished() {
    let mut job = Job::default();
    let mut all = Vec::new();
    for (pid, leaks) in [(1, true), (2, false)] {
        job = Job { now: 0, ..Job::default() };
        for number in 0..60 {
            if leaks {
                job.alloc(MB, 9);
            }
            step(&mut job, number, 1);
        }
        for event in &mut job.events {
            match event {
                MemoryEvent::Tensor(tensor) => tensor.pid = pid,
                MemoryEvent::Call(call) => call.pid = pid,
            }
        }
        all.append(&mut job.events);
    }
    all.sort_by_key(MemoryEvent::at_ns);
    job.now = all.last().unwrap().at_ns();
    job.events = all;
    let report = job.examine();
    let found: Vec<(u32, Option<&str>)> = report.leaks.iter().map(|leak| (leak.pid, leak.line.as_deref())).collect();
    assert_eq!(found, [(1, Some("job.py:9"))]);
    assert_eq!(report.steps.iter().map(|steps| steps.steps).collect::<Vec<_>>(), [60, 60]);
    let only = job.examine_with(gpuwhy_memory::Facts { only: vec![2], ..job.facts() });
    assert!(only.leaks.is_empty() && only.spaces.iter().all(|space| space.pid == 2));
}

#[test]
fn peaks_by_line_are_exact_whatever_happens() {
    for seed in 0..30 {
        let (mut job, mut dice) = (Job::default(), Dice(seed));
        for _ in 0..2000 {
            match dice.below(10) {
                0..5 => _ = job.alloc(512 * (1 + dice.below(4000)), 1 + dice.below(20)),
                5..9 if !job.live.is_empty() => {
                    let place = dice.below(job.live.len() as u64) as usize;
                    let address = *job.live.keys().nth(place).unwrap();
                    job.free(address);
                }
                _ => job.launch(99),
            }
        }
        let report = job.examine();
        let space = &report.spaces[0];
        assert_eq!((space.peak_allocated, space.allocated), (job.peak.0, job.allocated), "seed {seed}");
        assert_eq!((space.peak_reserved, space.preexisting, space.peak_preexisting), (job.reserved, 0, 0));
        for (stack, bytes) in &job.peak.1 {
            let line = format!("job.py:{stack}");
            let held = space.at_peak.iter().find(|holder| holder.line.as_deref() == Some(&line));
            assert_eq!(held.map(|holder| holder.bytes), Some(*bytes), "seed {seed}, {line}");
        }
        assert_eq!(space.at_peak.iter().map(|holder| holder.bytes).sum::<u64>(), job.peak.0);
        let balance = space.balance;
        assert_eq!(balance.live_bytes, job.live.values().map(|piece| piece.0).sum::<u64>());
        assert_eq!(balance.alloc_bytes - balance.free_bytes, balance.live_bytes);
        assert_eq!(report.spaces.len(), 1, "all segments are PyTorch's");
    }
}

#[test]
fn a_time_range_has_its_own_peak_and_balance() {
    let mut job = Job::default();
    let first = job.alloc(50 * MB, 1);
    let large = job.alloc(100 * MB, 2);
    job.free(large);
    let from = job.now + 1;
    let small = job.alloc(10 * MB, 3);
    job.free(first);
    job.free(small);
    let report = job.examine_with(gpuwhy_memory::Facts { from_ns: from, ..job.facts() });
    let space = &report.spaces[0];
    assert_eq!(space.peak_allocated, 60 * MB);
    let balance = space.balance;
    assert_eq!((balance.live_before, balance.alloc_bytes, balance.free_bytes), (50 * MB, 10 * MB, 60 * MB));
    assert_eq!(balance.live_bytes, 0);
}

#[test]
fn steps_in_a_time_range_keep_the_runs_numbers() {
    let (mut job, mut from) = (Job::default(), 0);
    for step in 1..=120 {
        job.now += 10_000_000;
        if step > 80 {
            job.alloc(MB, 1);
        }
        if step == 40 {
            from = job.now;
        }
        (0..5).for_each(|_| job.launch(2));
        job.wait(3);
    }
    let whole = job.examine();
    let part = job.examine_with(gpuwhy_memory::Facts { from_ns: from, ..job.facts() });
    assert_eq!(part.steps[0].steps, 81, "from the 40th on");
    assert_eq!(whole.leaks[0].onset_step, part.leaks[0].onset_step);
    assert!(part.leaks[0].onset_step.is_some_and(|step| (80..=82).contains(&step)), "{:?}", part.leaks[0]);
}

#[test]
fn memory_older_than_the_recording_is_pre_existing() {
    let mut job = Job { allocated: 300 * MB, reserved: 400 * MB, ..Job::default() };
    for number in 0..50 {
        let address = job.alloc(MB, 5);
        job.launch(6);
        job.wait(7);
        if number > 0 {
            job.free(address);
        }
    }
    let report = job.examine();
    let space = &report.spaces[0];
    assert_eq!((space.preexisting, space.peak_allocated, space.peak_preexisting), (300 * MB, 302 * MB, 300 * MB));
    assert!(report.notes.iter().any(|note| note.contains("before the recording")), "{:?}", report.notes);
}

#[test]
fn bounded_lifetimes_are_never_a_leak() {
    for seed in 0..60 {
        let (mut job, mut dice) = (Job::default(), Dice(seed));
        let longest = 1 + dice.below(60);
        let mut due: Vec<(u64, u64)> = Vec::new();
        for number in 0..200 {
            for line in 1..6 {
                let address = job.alloc(512 * (1 + dice.below(9000)), line);
                due.push((number + 1 + dice.below(longest), address));
                job.launch(line + 10);
            }
            due.retain(|(at, address)| {
                if *at <= number {
                    job.free(*address);
                }
                *at > number
            });
            job.wait(30);
        }
        let report = job.examine();
        assert_eq!(report.steps[0].steps, 200);
        assert!(report.leaks.is_empty(), "seed {seed}, lifetimes up to {longest}: {:#?}", report.leaks);
    }
}

#[test]
fn a_program_without_pytorch_leaks_from_the_driver() {
    let mut job = Job::default();
    for _ in 0..60 {
        let scratch = job.malloc(5 * MB, 3);
        job.malloc(MB, 4);
        job.launch(5);
        job.wait(6);
        job.free_device(scratch, 7);
    }
    let report = job.examine();
    let [leak] = report.leaks.as_slice() else { panic!("{:#?}", report.leaks) };
    assert_eq!((leak.line.as_deref(), leak.bytes_per_step), (Some("job.py:4"), Some(MB as f64)));
    assert_eq!(report.spaces[0].source, Source::Driver);
    assert_eq!(report.spaces[0].peak_allocated, 65 * MB);
}

#[test]
fn memory_outside_pytorchs_allocator_is_reported_by_line() {
    let mut job = Job::default();
    for _ in 0..40 {
        let tensor = job.alloc(30 * MB, 1);
        let own = job.malloc(8 * MB, 2);
        job.launch(3);
        job.wait(4);
        job.free(tensor);
        job.free_device(own, 5);
    }
    let report = job.examine();
    let one = &report.fragmentation[0];
    assert_eq!((one.segments, one.segment_bytes), (1, 30 * MB));
    assert_eq!((one.past_allocator[0].line.as_deref(), one.past_allocator[0].bytes), (Some("job.py:2"), 8 * MB));
    assert!(report.leaks.is_empty());
}

/// Parameters are created one by one, each with a kernel or two and a copy, and stay.
#[test]
fn loading_a_model_is_not_a_leak() {
    for trained in [0, 3, 30, 300] {
        let mut job = Job::default();
        for parameter in 0..200 {
            job.now += 1_000_000;
            job.alloc((1 + parameter % 5) * MB, 1);
            job.launch(2);
            job.call("cudaMemcpyAsync", 3);
            job.wait(4);
        }
        for number in 0..trained {
            job.now += 1_000_000;
            step(&mut job, number, 4);
        }
        let report = job.examine();
        assert!(report.leaks.is_empty(), "{trained} steps: {:#?}", report.leaks);
        if trained == 300 {
            assert_eq!(report.steps[0].steps, 300);
        }
    }
}

/// NVML's samples, one a second.
fn samples(job: &Job, used: impl Fn(u64) -> u64) -> Vec<GpuSample> {
    let seconds = job.now / 1_000_000_000;
    let look = |second: u64| GpuSample {
        at_ns: second * 1_000_000_000,
        gpu: 0,
        memory_used: Some(used(second)),
        memory_total: Some(80_000 * MB),
        ..GpuSample::default()
    };
    (1..=seconds).map(look).collect()
}

/// Another process, in every sample.
fn notebook(samples: &[GpuSample], bytes: u64) -> Vec<GpuProcess> {
    let name = *b"notebook\0\0\0\0\0\0\0\0";
    let one = |sample: &GpuSample| GpuProcess {
        at_ns: sample.at_ns,
        gpu: 0,
        pid: 9,
        bytes: Some(bytes),
        sm_percent: None,
        name,
    };
    samples.iter().map(one).collect()
}

#[test]
fn the_gap_is_the_devices_memory_without_any_process() {
    let mut job = Job::default();
    job.alloc(100 * MB, 1);
    for _ in 0..30 {
        job.now += 1_000_000_000;
        job.launch(2);
    }
    let mut facts = job.facts();
    facts.gpu_seconds = samples(&job, |_| 1_000 * MB);
    facts.gpu_processes = notebook(&facts.gpu_seconds, 300 * MB);
    let report = job.examine_with(facts.clone());
    let gap = &report.gaps[0];
    assert_eq!((gap.reserved, gap.hidden, gap.trend), (100 * MB, 600 * MB, Trend::Steady));
    assert_eq!((gap.others[0].name.as_str(), gap.others[0].pid, gap.others[0].bytes), ("notebook", 9, 300 * MB));
    assert!(report.findings.is_empty(), "little of a large device: {:#?}", report.findings);
    facts.gpu_seconds = samples(&job, |second| (1_000 + 100 * second) * MB);
    let report = job.examine_with(facts);
    let gap = &report.gaps[0];
    assert_eq!(gap.trend, Trend::Drifting);
    assert!((gap.drift_per_second / (100 * MB) as f64 - 1.0).abs() < 0.01, "{gap:?}");
    assert_eq!(report.findings[0].kind, "hidden_memory");
}

#[test]
fn a_leak_says_when_memory_runs_out() {
    let mut job = Job::default();
    for _ in 0..100 {
        job.now += 100_000_000;
        job.alloc(2 * MB, 1);
        (0..5).for_each(|_| job.launch(2));
        job.wait(3);
    }
    let mut facts = job.facts();
    facts.gpu_seconds = samples(&job, |_| 60_000 * MB);
    let report = job.examine_with(facts);
    // 20,000 MB are left, and 20 MB leak a second.
    let seconds = report.leaks[0].out_of_memory_in_ns.unwrap() as f64 / 1e9;
    assert!((seconds / 1000.0 - 1.0).abs() < 0.02, "{seconds}");
    let steps = report.leaks[0].out_of_memory_in_steps.unwrap() as f64;
    assert!((steps / 10_000.0 - 1.0).abs() < 0.02, "{steps}");
}

#[test]
fn a_refusal_although_enough_was_reserved_is_fragmentation() {
    let mut job = Job::default();
    let pieces: Vec<u64> = (0..40).map(|_| job.alloc(10 * MB, 1)).collect();
    pieces.iter().step_by(2).for_each(|address| job.free(*address));
    job.refuse(50 * MB, 2);
    job.exit(1, 0);
    let report = job.examine();
    let oom = &report.ooms[0];
    assert_eq!((oom.asked, oom.allocated, oom.reserved, oom.fatal), (50 * MB, 200 * MB, 400 * MB, true));
    assert_eq!((oom.line.as_deref(), oom.live[0].bytes), (Some("job.py:2"), 200 * MB));
    let found = report.findings.iter().find(|finding| finding.kind == "oom").unwrap();
    assert_eq!(found.root_cause.kind, "fragmentation");
    assert!(found.fixes.iter().any(|fix| fix.text.contains("expandable_segments")), "{found:#?}");
}

#[test]
fn a_refusal_because_of_other_processes_names_them() {
    let mut job = Job::default();
    job.alloc(10 * MB, 1);
    job.now += 2_000_000_000;
    job.refuse(500 * MB, 2);
    job.exit(1, 0);
    let cause = |others: u64, used: u64| {
        let mut facts = job.facts();
        facts.gpu_seconds = samples(&job, |_| used);
        for look in &mut facts.gpu_seconds {
            look.memory_total = Some(1000 * MB);
        }
        facts.gpu_processes = notebook(&facts.gpu_seconds, others);
        let report = job.examine_with(facts);
        let found = report.findings.iter().find(|finding| finding.kind == "oom").unwrap();
        (found.root_cause.kind.clone(), found.fixes[0].text.clone())
    };
    let (kind, fix) = cause(900 * MB, 950 * MB);
    assert_eq!(kind, "other_process");
    assert!(fix.contains("stop notebook (pid 9)"), "{fix}");
    assert_eq!(cause(0, 950 * MB).0, "outside_allocator");
    assert_eq!(cause(100 * MB, 200 * MB).0, "large_request", "other processes hold little");
}

#[test]
fn nothing_breaks_on_nonsense() {
    for seed in 0..40 {
        let (mut job, mut dice) = (Job::default(), Dice(seed));
        for _ in 0..300 {
            let stack = dice.below(5);
            match dice.below(6) {
                0 => _ = job.alloc(dice.below(1 << 30), stack),
                1 => _ = job.malloc(dice.below(1 << 40), stack),
                2 => job.free_device(dice.below(1 << 60), stack),
                3 => job.refuse(u64::MAX, stack),
                4 => job.exit(dice.below(300), dice.below(70)),
                _ => job.wait(stack),
            }
        }
        for event in &mut job.events {
            match event {
                MemoryEvent::Tensor(tensor) if dice.below(3) == 0 => {
                    tensor.allocated = dice.below(u64::MAX);
                    tensor.reserved = dice.below(u64::MAX);
                    tensor.bytes = [0, u64::MAX, 7][dice.below(3) as usize];
                    tensor.address = dice.below(3);
                }
                MemoryEvent::Call(call) if dice.below(3) == 0 => {
                    call.arg0 = [None, Some(u64::MAX)][dice.below(2) as usize];
                    call.arg1 = [None, Some(u64::MAX)][dice.below(2) as usize];
                    call.start_ns = dice.below(1 << 40);
                    call.ret = dice.below(3) as i32;
                    call.duration_ns = dice.below(1 << 62);
                }
                _ => {}
            }
        }
        let report = job.examine();
        assert!(!report.verdict.is_empty());
        serde_json::to_string(&report).unwrap();
    }
    let report = Job::default().examine();
    assert!(report.spaces.is_empty() && report.findings.is_empty() && report.verdict.contains("No GPU memory"));
}

/// A job with everything a report can contain.
fn eventful() -> Report {
    let mut job = Job::default();
    for number in 0..100 {
        job.now += 100_000_000;
        if number < 20 {
            job.alloc(MB, 2);
        }
        job.alloc(MB, 1);
        let own = job.malloc(MB, 3);
        (0..5).for_each(|_| job.launch(4));
        job.wait(5);
        job.free_device(own, 6);
    }
    job.refuse(50 * MB, 2);
    job.exit(0, 9);
    let mut facts = job.facts();
    facts.gpu_seconds = samples(&job, |_| 79_000 * MB);
    let at = |sample: &GpuSample| GpuProcess { at_ns: sample.at_ns, pid: 9, bytes: Some(MB), ..GpuProcess::default() };
    facts.gpu_processes = facts.gpu_seconds.iter().map(at).collect();
    job.examine_with(facts)
}

#[test]
fn every_key_of_the_json_is_documented_and_there() {
    let mut report = eventful();
    // Alerts come from the recorder and are added by the reader of the run file.
    report.alerts.push(Alert {
        id: 1,
        at_ns: 1,
        cleared_ns: None,
        level: Level::Warning,
        kind: AlertKind::Memory,
        rule: "memory>85%".into(),
        pid: None,
        device: None,
        gpu: Some(0),
        value: 86.0,
        threshold: Some(85.0),
        text: "much".into(),
    });
    let mut value = serde_json::to_value(&report).unwrap();
    // Findings are documented with explanations.
    let findings = value.as_object_mut().unwrap().insert("findings".into(), serde_json::json!([])).unwrap();
    let mut real = BTreeSet::new();
    described::keys_in(&value, &mut real);
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    described::assert_described("gpuwhy.memory/1", &real, &["schema", "run", "start_monotonic_ns"]);
    let explained = std::fs::read_to_string(docs.join("explain-json.md")).unwrap();
    for finding in findings.as_array().unwrap() {
        for key in [&finding["kind"], &finding["root_cause"]["kind"]] {
            let word = format!("`{}`", key.as_str().unwrap());
            assert!(explained.contains(&word), "{word} is not in explain-json.md");
        }
    }
    let kinds: BTreeSet<&str> = report.findings.iter().map(|finding| finding.kind.as_str()).collect();
    assert_eq!(kinds, BTreeSet::from(["hidden_memory", "memory_leak", "oom"]));
}

/// All time in the driver is reported by line.
#[test]
fn lines_with_driver_calls_have_their_time() {
    let mut job = Job::default();
    for number in 0..60 {
        step(&mut job, number, 2);
        let workspace = job.malloc(8 * MB, 71);
        job.launch(72);
        job.free_device(workspace, 73);
    }
    for event in &mut job.events {
        if let MemoryEvent::Call(call) = event {
            call.duration_ns = match call.stack {
                Some(71) => 300_000,
                Some(73) => 200_000,
                _ => 1_000,
            };
        }
    }
    let report = job.examine();
    let [one] = report.fragmentation.as_slice() else { panic!("{:#?}", report.fragmentation) };
    let lines: Vec<_> = one.driver_by.iter().map(|by| (by.line.as_deref().unwrap(), by.calls, by.total_ns)).collect();
    assert_eq!(lines[..2], [("job.py:71", 60, 60 * 300_000), ("job.py:73", 60, 60 * 200_000)]);
    assert_eq!((one.driver_by[0].bytes, one.driver_by[1].bytes), (60 * 8 * MB, 0));
    assert_eq!(one.driver_by.iter().map(|by| by.total_ns).sum::<u64>(), one.driver_ns, "{one:#?}");
    assert!(one.driver_by.iter().all(|by| by.late_ns <= by.total_ns) && one.driver_by[0].late_ns > 0);
}

#[test]
fn a_verdict_on_what_is_left_says_that_allocations_were_lost() {
    let mut job = Job::default();
    (0..60).for_each(|number| step(&mut job, number, 4));
    let whole = job.examine();
    assert!(!whole.verdict.contains("lost"), "{}", whole.verdict);
    let lossy = job.examine_with(gpuwhy_memory::Facts { lost: 12_345, ..job.facts() });
    assert!(lossy.verdict.starts_with("12,345 allocations or frees were lost"), "{}", lossy.verdict);
    assert!(lossy.notes.iter().any(|note| note.starts_with("12,345 allocations")), "{:?}", lossy.notes);
}
