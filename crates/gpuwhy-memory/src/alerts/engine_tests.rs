// SPDX-License-Identifier: Apache-2.0
//! Tests: alerts are raised once and end once.

use super::*;
use crate::alerts::Choice;

const SECOND: u64 = 1_000_000_000;
const MB: u64 = 1_000_000;
const TOTAL: u64 = 1_000 * MB;

fn engine(rules: &[&str]) -> Engine {
    let choices: Vec<Choice> = rules.iter().map(|text| text.parse().unwrap()).collect();
    Engine::new(Rule::chosen(&choices))
}

fn sample(second: u64, gpu: u32, used: u64) -> GpuSample {
    let (memory_used, memory_total) = (Some(used), Some(TOTAL));
    GpuSample { at_ns: second * SECOND, gpu, memory_used, memory_total, ..GpuSample::default() }
}

fn nvml(engine: &mut Engine, second: u64, used: u64) -> Vec<Alert> {
    engine.sample(&[sample(second, 0, used)], &[], |_| true);
    engine.take_changes()
}

fn event(at_ns: u64, pid: u32, op: TorchOp, allocated: u64) -> TensorEvent {
    TensorEvent {
        at_ns,
        pid,
        tid: pid,
        op: torch_op(op),
        device: 0,
        bytes: MB,
        address: 1,
        allocated,
        reserved: 2 * allocated,
        stack: Some(7),
    }
}

/// Plays a process's live bytes tick by tick; returns the alerts.
fn grow(engine: &mut Engine, ticks: u64, live: impl Fn(u64) -> u64) -> Vec<Alert> {
    for tick in 0..ticks {
        engine.tensor(&event(tick * TICK_NS, 9, TorchOp::Alloc, live(tick)));
        engine.tick(tick * TICK_NS);
    }
    engine.take_changes()
}

#[test]
fn noise_around_the_limit_raises_one_alert() {
    let mut engine = engine(&["memory>85%"]);
    let noise = |second: u64| second.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58;
    let raised: Vec<Alert> =
        (0..600).flat_map(|second| nvml(&mut engine, second, (815 + noise(second)) * MB)).collect();
    let [alert] = raised.as_slice() else { panic!("{raised:#?}") };
    assert_eq!((alert.kind, alert.level, alert.gpu, alert.id), (AlertKind::Memory, Level::Warning, Some(0), 1));
    assert_eq!((alert.threshold, alert.cleared_ns), (Some(85.0), None));
    assert!(alert.value > 85.0 && alert.text.contains("GPU 0") && alert.text.contains("1.00 GB"), "{alert:#?}");
}

#[test]
fn an_alert_is_over_when_its_figure_stays_clearly_below_and_can_then_be_raised_again() {
    let mut engine = engine(&["memory>80%"]);
    assert_eq!(nvml(&mut engine, 0, 800 * MB), [], "not above");
    assert_eq!(nvml(&mut engine, 1, 801 * MB).len(), 1);
    // Below, but not clearly; clearly, but not for long.
    (2..20).for_each(|second| assert_eq!(nvml(&mut engine, second, 760 * MB), []));
    (20..24).for_each(|second| assert_eq!(nvml(&mut engine, second, 100 * MB), []));
    assert_eq!(nvml(&mut engine, 24, 900 * MB), [], "still the same alert");
    let over: Vec<Alert> = (30..40).flat_map(|second| nvml(&mut engine, second, 700 * MB)).collect();
    let [over] = over.as_slice() else { panic!("{over:#?}") };
    assert_eq!((over.id, over.at_ns, over.cleared_ns), (1, SECOND, Some(30 * SECOND)));
    let again = nvml(&mut engine, 41, 900 * MB);
    assert_eq!((again.len(), again[0].id, again[0].at_ns), (1, 2, 41 * SECOND));
}

#[test]
fn of_two_limits_passed_only_the_higher_raises_an_alert() {
    let mut engine = engine(&[]);
    let raised = nvml(&mut engine, 0, 990 * MB);
    assert_eq!(raised.iter().map(|alert| alert.rule.as_str()).collect::<Vec<_>>(), ["memory>95%"]);
    assert_eq!(raised[0].level, Level::Critical);
    let later: Vec<Alert> = (1..30).flat_map(|second| nvml(&mut engine, second, 880 * MB)).collect();
    assert_eq!((later.len(), later[0].id, later[0].cleared_ns), (1, 1, Some(SECOND)), "only the higher is over");
    // Passed one after the other, both do.
    let mut engine = self::engine(&[]);
    let rules: Vec<String> =
        [860, 960].iter().flat_map(|used| nvml(&mut engine, *used, used * MB)).map(|alert| alert.rule).collect();
    assert_eq!(rules, ["memory>85%", "memory>95%"]);
}

#[test]
fn gpus_of_other_jobs_raise_no_alert() {
    let both = [sample(1, 0, 990 * MB), sample(1, 1, 990 * MB)];
    let on = |gpu, pid| GpuProcess { gpu, pid, bytes: Some(5), ..GpuProcess::default() };
    let gpus = |processes: &[GpuProcess]| {
        let mut engine = engine(&[]);
        engine.sample(&both, processes, |pid| pid == 9);
        engine.take_changes().into_iter().map(|alert| (alert.gpu.unwrap(), alert.pid)).collect::<Vec<_>>()
    };
    assert_eq!(gpus(&[on(0, 4), on(1, 9), on(1, 5)]), [(1, Some(9))]);
    assert_eq!(gpus(&[]), [(0, None), (1, None)], "the processes are unknown");
    let mut engine = engine(&[]);
    engine.sample(&both[..1], &[on(0, 4)], |pid| pid == 9);
    assert_eq!(engine.take_changes().len(), 1, "there is only one GPU");
}

#[test]
fn bytes_come_from_nvml_or_else_from_pytorch() {
    let mut engine = engine(&["memory>500MB"]);
    assert_eq!(nvml(&mut engine, 100, 600 * MB)[0].value, 6e8);
    let mut engine = self::engine(&["memory>500MB"]);
    let raised = grow(&mut engine, 40, |tick| tick * 10 * MB);
    assert_eq!((raised.len(), raised[0].pid, raised[0].device), (1, Some(9), Some(0)), "{raised:#?}");
    assert_eq!(raised[0].value, 520e6, "reserved: {raised:#?}");
}

#[test]
fn nvml_replaces_the_figures_of_processes_once_it_answers() {
    // Its first answer takes three seconds; until then no alert is raised.
    let mut engine = engine(&["memory>500MB"]);
    assert!(grow(&mut engine, 12, |_| 600 * MB).is_empty());
    assert_eq!(nvml(&mut engine, 3, 700 * MB).len(), 1);
    assert!(grow(&mut engine, 24, |_| 600 * MB).is_empty());
    // It answers too late.
    let mut engine = self::engine(&["memory>500MB"]);
    let raised = grow(&mut engine, 40, |_| 600 * MB);
    assert_eq!((raised.len(), raised[0].pid), (1, Some(9)), "{raised:#?}");
    let gpu = nvml(&mut engine, 10, 700 * MB);
    assert_eq!((gpu.len(), gpu[0].gpu), (1, Some(0)), "{gpu:#?}");
    engine.tick(10 * SECOND + 1);
    let over = engine.take_changes();
    assert_eq!((over.len(), over[0].id, over[0].cleared_ns), (1, raised[0].id, Some(10 * SECOND + 1)), "{over:#?}");
}

#[test]
fn growth_raises_one_alert_that_ends_with_the_process() {
    let mut engine = engine(&["none", "growth>100MB/s"]);
    let raised = grow(&mut engine, 100, |tick| 1_000 * MB + tick * 50 * MB);
    let [alert] = raised.as_slice() else { panic!("{raised:#?}") };
    assert_eq!((alert.kind, alert.pid, alert.threshold), (AlertKind::Growth, Some(9), Some(1e8)));
    assert!((alert.value / 400e6 - 1.0).abs() < 0.01, "what is reserved grows twice as fast: {alert:#?}");
    engine.keep_processes(|pid| pid != 9, 77);
    let over = engine.take_changes();
    assert_eq!((over.len(), over[0].id, over[0].cleared_ns), (1, 1, Some(77)));
}

/// NVML's sample of the last second arrives when the process is gone.
#[test]
fn growth_of_a_process_is_not_reported_again_for_the_gpu() {
    let mut engine = engine(&["none", "growth>100MB/s"]);
    let mut raised = Vec::new();
    for second in 0..20 {
        for tick in second * 4..second * 4 + 4 {
            engine.tensor(&event(tick * TICK_NS, 9, TorchOp::Alloc, 1_000 * MB + tick * 50 * MB));
            engine.tick(tick * TICK_NS);
        }
        raised.extend(nvml(&mut engine, second, 3_000 * MB + second * 400 * MB));
    }
    assert_eq!(raised.len(), 1, "{raised:#?}");
    engine.keep_processes(|pid| pid != 9, 21 * SECOND);
    assert_eq!(engine.take_changes().len(), 1, "it has ended");
    assert_eq!(nvml(&mut engine, 20, 11_000 * MB), []);
    assert_eq!(nvml(&mut engine, 21, 11_400 * MB), []);
    // Later growth is another process's.
    let later: Vec<Alert> = (22..40).flat_map(|s| nvml(&mut engine, s, s * 500 * MB)).collect();
    assert_eq!((later.len(), later[0].gpu), (1, Some(0)), "{later:#?}");
}

/// Pausing reports to stay within the budget neither ends an alert about growth nor raises it again.
#[test]
fn an_alert_about_growth_outlives_paused_reports() {
    let mut engine = engine(&["none", "growth>100MB/s"]);
    let mut raised = Vec::new();
    for second in 0..60 {
        for tick in second * 4..second * 4 + 4 {
            if second < 20 {
                engine.tensor(&event(tick * TICK_NS, 9, TorchOp::Alloc, 1_000 * MB + tick * 50 * MB));
            }
            engine.tick(tick * TICK_NS);
        }
        if second == 20 {
            engine.pause_reports(9, 20 * SECOND);
        }
        let used = 3_000 * MB + second.min(40) * 400 * MB;
        raised.extend(nvml(&mut engine, second, used));
    }
    let seen: Vec<_> = raised.iter().map(|alert| (alert.id, alert.pid, alert.cleared_ns.is_some())).collect();
    assert_eq!(seen, [(1, Some(9), false), (1, Some(9), true)], "{raised:#?}");
    assert!(raised[1].cleared_ns > Some(40 * SECOND), "{raised:#?}");
}

/// Without NVML, an alert ends when reports are paused; reports made before that raise none.
#[test]
fn without_nvml_paused_reports_end_an_alert() {
    let mut engine = engine(&["none", "growth>100MB/s"]);
    assert_eq!(grow(&mut engine, 100, |tick| 1_000 * MB + tick * 50 * MB).len(), 1);
    engine.pause_reports(9, 200 * TICK_NS);
    let over = engine.take_changes();
    assert_eq!((over.len(), over[0].id, over[0].cleared_ns), (1, 1, Some(200 * TICK_NS)));
    assert_eq!(grow(&mut engine, 100, |tick| 9_000 * MB + tick * 50 * MB), [], "older than that");
}

#[test]
fn growth_that_stops_ends_its_alert() {
    let mut engine = engine(&["none", "growth>100MB/s"]);
    let raised = grow(&mut engine, 200, |tick| tick.min(60) * 50 * MB);
    assert_eq!(
        raised.iter().map(|alert| (alert.id, alert.cleared_ns.is_some())).collect::<Vec<_>>(),
        [(1, false), (1, true)]
    );
}

#[test]
fn a_sawtooth_and_what_comes_and_goes_within_a_tick_are_no_growth() {
    let mut engine = engine(&["none", "growth>100MB/s", "leak"]);
    assert_eq!(grow(&mut engine, 200, |tick| tick % 8 * 100 * MB), []);
    let mut engine = self::engine(&["none", "growth>100MB/s", "leak"]);
    for tick in 0..200 {
        engine.tensor(&event(tick * TICK_NS, 9, TorchOp::Alloc, 500 * MB + tick * 100 * MB));
        engine.tensor(&TensorEvent { reserved: 9, ..event(tick * TICK_NS + 1, 9, TorchOp::Free, 500 * MB) });
        engine.tick(tick * TICK_NS + 2);
    }
    assert!(engine.take_changes().is_empty() && !engine.suspects());
}

#[test]
fn growth_of_a_gpu_raises_an_alert_without_reports_of_a_process() {
    let mut engine = engine(&["none", "growth>100MB/s"]);
    let raised: Vec<Alert> = (0..20).flat_map(|second| nvml(&mut engine, second, second * 300 * MB)).collect();
    assert_eq!((raised.len(), raised[0].gpu), (1, Some(0)), "{raised:#?}");
}

#[test]
fn a_refusal_raises_one_alert_for_each_place() {
    let mut engine = engine(&[]);
    for i in 0..1_000 {
        engine.tensor(&event(i * MB, 9, TorchOp::OutOfMemory, 5 * MB));
    }
    engine.tensor(&TensorEvent { stack: Some(8), ..event(2 * SECOND, 9, TorchOp::OutOfMemory, 5 * MB) });
    let raised = engine.take_changes();
    assert_eq!(
        raised.iter().map(|alert| (alert.kind, alert.at_ns)).collect::<Vec<_>>(),
        [(AlertKind::Oom, 0), (AlertKind::Oom, 2 * SECOND)]
    );
    assert_eq!((raised[0].level, raised[0].value, raised[0].threshold), (Level::Critical, 1e6, None));
    // The process goes on, so the alerts end. Much later there is another refusal.
    engine.tick(60 * SECOND);
    let over = engine.take_changes();
    assert_eq!(over.iter().map(|alert| alert.cleared_ns).collect::<Vec<_>>(), [Some(999 * MB), Some(2 * SECOND)]);
    engine.tensor(&event(61 * SECOND, 9, TorchOp::OutOfMemory, 5 * MB));
    assert_eq!(engine.take_changes().len(), 1);
    // A process that ends has not recovered.
    engine.keep_processes(|_| false, 62 * SECOND);
    engine.tick(99 * SECOND);
    assert_eq!(engine.take_changes(), []);
}

#[test]
fn a_leak_is_suspected_and_a_full_cache_is_not() {
    let mut engine = engine(&[]);
    grow(&mut engine, 60, |tick| tick * MB);
    assert!(engine.suspects());
    let mut engine = self::engine(&[]);
    grow(&mut engine, 400, |tick| tick.min(40) * MB);
    assert!(!engine.suspects());
    let mut engine = self::engine(&["none", "oom"]);
    grow(&mut engine, 60, |tick| tick * MB);
    assert!(!engine.suspects(), "there is no such rule");
}

fn leak(line: &str) -> Leak {
    Leak {
        pid: 9,
        device: Some(0),
        line: Some(line.into()),
        bytes_per_step: Some(1e6),
        bytes_per_second: 5e6,
        onset_step: Some(4),
        out_of_memory_in_ns: Some(3_600 * SECOND),
        ..Leak::default()
    }
}

#[test]
fn a_leak_found_twice_raises_one_alert() {
    let mut engine = engine(&[]);
    engine.leaks(&[leak("a.py:3")], 1);
    assert_eq!(engine.take_changes(), [], "it may be a cache that is still filling");
    engine.leaks(&[leak("b.py:9")], 2);
    assert_eq!(engine.take_changes(), [], "it was");
    engine.leaks(&[leak("b.py:9"), Leak { out_of_memory_in_ns: Some(SECOND), ..leak("a.py:3") }], 3);
    let raised = engine.take_changes();
    assert_eq!((raised.len(), raised[0].level, raised[0].value), (1, Level::Warning, 5e6));
    for part in ["b.py:9 leaks", "process 9", "1.00 MB a step", "5.00 MB/s", "since step 4", "out of memory in 1 h"] {
        assert!(raised[0].text.contains(part), "{part}: {}", raised[0].text);
    }
    engine.leaks(&[leak("b.py:9"), Leak { out_of_memory_in_ns: Some(SECOND), ..leak("a.py:3") }], 4);
    let raised = engine.take_changes();
    assert_eq!((raised.len(), raised[0].level), (1, Level::Critical), "it runs out soon");
    engine.leaks(&[leak("b.py:9")], 5);
    assert_eq!(engine.take_changes(), []);
}

#[test]
fn minutes_of_growth_raise_an_alert_without_a_line_where_a_run_cannot_be_examined() {
    let mut engine = engine(&[]);
    grow(&mut engine, 60, |tick| tick * MB);
    engine.cannot_examine(1);
    assert_eq!(engine.take_changes(), [], "too short");
    grow(&mut engine, 2_000, |tick| 60 * MB + tick * MB);
    engine.cannot_examine(2);
    engine.cannot_examine(3);
    let raised = engine.take_changes();
    assert_eq!((raised.len(), raised[0].kind, raised[0].pid), (1, AlertKind::Leak, Some(9)), "{raised:#?}");
}

#[test]
fn the_number_of_alerts_is_bounded() {
    let mut engine = engine(&[]);
    for i in 0..5_000 {
        engine.tensor(&TensorEvent { stack: Some(i), ..event(i, 9, TorchOp::OutOfMemory, 0) });
        engine.tensor(&event(i, i as u32, TorchOp::Alloc, 0));
    }
    assert_eq!(engine.take_changes().len() as u64, MOST_ALERTS);
    assert!(engine.refusals.len() <= MOST && engine.spaces.len() <= MOST);
}
