// SPDX-License-Identifier: Apache-2.0
//! The policy against simulated jobs.

use super::*;
use gpuwhy_model::ops;

fn id(function: &str) -> OpId {
    ops::by_function(function).unwrap().id
}

const PRICES: Prices = Prices { stack_ns: 800.0, switch_ns: 500.0, record_ns: 2_000.0 };
/// Of a probe on an instruction that the kernel emulates, and on one that it single-steps.
const CHEAP: ProbePrice = ProbePrice { entry_ns: 500.0, call_ns: 1_200.0 };
const EXPENSIVE: ProbePrice = ProbePrice { entry_ns: 20_000.0, call_ns: 21_000.0 };

/// Calls of one function.
struct Calls {
    function: &'static str,
    /// A second, at a time in seconds.
    rate: fn(f64) -> f64,
    /// The part of them whose return sampling skips.
    boring: f64,
    /// The part of them that Python made.
    python: f64,
    price: ProbePrice,
}

fn calls(function: &'static str, rate: fn(f64) -> f64) -> Calls {
    Calls { function, rate, boring: 0.95, python: 0.0, price: CHEAP }
}

/// A job and its tracer.
struct Job {
    governor: Governor,
    calls: Vec<Calls>,
    switches: f64,
    /// gpuwhy's CPU time a second when there is nothing to do.
    idle_own: f64,
    noise: f64,
    random: u64,
    stacks_off: bool,
    /// Whether other processes keep the probes.
    shared: bool,
    now: f64,
    next: Duration,
    /// Time, cost and actions of every period.
    history: Vec<(f64, f64, Vec<Decision>)>,
}

impl Job {
    /// One that is met when nothing is borne any more.
    fn new(budget: &str, calls: Vec<Calls>) -> Self {
        let mut job = Self::young(budget, calls);
        (job.governor.now, job.governor.alert_until) = (LEARNING, LEARNING + ALERT_FOR);
        job
    }

    /// One that has just begun.
    fn young(budget: &str, calls: Vec<Calls>) -> Self {
        Self {
            governor: Governor::new(budget.parse().unwrap(), PRICES),
            calls,
            switches: 0.0,
            idle_own: 0.002,
            noise: 0.0,
            random: 1,
            stacks_off: false,
            shared: false,
            now: 0.0,
            next: ALERT_PERIOD,
            history: Vec::new(),
        }
    }

    /// 1, more or less.
    fn noisy(&mut self) -> f64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        1.0 + self.noise * ((self.random >> 33) as f64 / f64::from(1u32 << 30) - 1.0)
    }

    fn step(&mut self) {
        let wall = self.next.as_secs_f64();
        let mut hits = Vec::new();
        let mut records = 0.0;
        for at in 0..self.calls.len() {
            let noise = self.noisy();
            let calls = &self.calls[at];
            let count = (calls.rate)(self.now) * wall * noise;
            let full = match self.governor.following(id(calls.function)) {
                Following::Full => count,
                Following::Sampled => count * (1.0 - calls.boring),
                Following::Detached if self.shared => {
                    let (op, price) = (id(calls.function), calls.price);
                    hits.push(OpHits { op, hits: 0, full: 0, stacks: 0, muted: count as u64, price });
                    continue;
                }
                Following::Detached => continue,
            };
            records += full;
            let stacks = (full * calls.python) as u64;
            let (op, price) = (id(calls.function), calls.price);
            hits.push(OpHits { op, hits: count as u64, full: full as u64, stacks, muted: 0, price });
        }
        let switches = self.switches * wall;
        let verdict = self.governor.feed(&Load {
            wall: self.next,
            ops: hits,
            switches: switches as u64,
            switch_stacks: if self.stacks_off { 0 } else { switches as u64 },
            counted: Counted::BusiestThread,
            own_cpu: Duration::from_secs_f64(self.idle_own * wall + records * 1_000e-9),
            cpus: 8,
        });
        for decision in &verdict.decisions {
            match decision.action {
                Action::StacksOff => self.stacks_off = true,
                Action::StacksOn => self.stacks_off = false,
                _ => {}
            }
        }
        self.now += wall;
        self.next = verdict.next_in;
        self.history.push((self.now, verdict.cost.total(), verdict.decisions));
    }

    fn run(&mut self, seconds: f64) -> &mut Self {
        let end = self.now + seconds;
        while self.now < end {
            self.step();
        }
        self
    }

    fn actions(&self) -> Vec<Action> {
        self.history.iter().flat_map(|(_, _, decisions)| decisions.iter().map(|decision| decision.action)).collect()
    }

    fn words(&self) -> Vec<&str> {
        self.history.iter().flat_map(|(_, _, decisions)| decisions.iter().map(|d| d.words.as_str())).collect()
    }

    fn last_cost(&self) -> f64 {
        self.history.last().unwrap().1
    }

    fn following(&self, function: &str) -> Following {
        self.governor.following(id(function))
    }

    /// Periods over the budget from some time on.
    fn over(&self, budget: f64, from: f64) -> usize {
        self.history.iter().filter(|(now, cost, _)| *now > from && *cost > budget).count()
    }
}

#[test]
fn a_light_job_is_never_touched() {
    let mut job = Job::new("2%", vec![calls("cuLaunchKernel", |_| 8_000.0), calls("cuMemAlloc_v2", |_| 500.0)]);
    (job.noise, job.switches) = (0.5, 1_000.0);
    job.run(3_600.0);
    assert_eq!(job.actions(), []);
    assert_eq!(job.next, PERIOD, "and seldom asked about");
}

#[test]
fn a_hot_function_is_sampled_in_the_first_period_and_that_is_enough() {
    let mut job =
        Job::new("2%", vec![calls("cuLaunchKernel", |_| 30_000.0), calls("cuStreamSynchronize", |_| 1_000.0)]);
    job.step();
    assert_eq!(job.actions(), [Action::Sample(id("cuLaunchKernel"))]);
    assert_eq!(
        job.words(),
        ["sampling cuLaunchKernel (30,000 calls/s would cost 4.0 %; budget 2 %); its counts stay exact"]
    );
    job.run(600.0);
    assert_eq!(job.actions().len(), 1, "{:?}", job.words());
    assert_eq!(job.over(0.02, 0.15), 0);
}

#[test]
fn at_first_a_little_more_is_borne_but_not_much_more() {
    let mut mild = Job::young("2%", vec![calls("cuLaunchKernel", |_| 30_000.0)]);
    mild.run(9.0);
    assert_eq!(mild.actions(), []);
    mild.run(3.0);
    assert_eq!(mild.actions(), [Action::Sample(id("cuLaunchKernel"))]);
    let mut heavy = Job::young("2%", vec![calls("cuLaunchKernel", |_| 60_000.0)]);
    heavy.step();
    assert_eq!(heavy.actions(), [Action::Sample(id("cuLaunchKernel"))]);
}

#[test]
fn what_sampling_does_not_help_is_let_go() {
    let report = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
    let mut job = Job::new("2%", vec![calls(report, |_| 100_000.0)]);
    job.run(2.0);
    assert_eq!(job.following(report), Following::Detached, "{:?}", job.words());
}

#[test]
fn when_sampling_is_not_enough_the_hottest_goes_but_not_what_waits() {
    let hot = vec![
        calls("cuLaunchKernel", |_| 400_000.0),
        calls("cuMemcpyAsync", |_| 20_000.0),
        calls("cuStreamSynchronize", |_| 6_000.0),
        calls("cuMemAlloc_v2", |_| 500.0),
    ];
    let mut job = Job::new("2%", hot);
    job.run(0.35);
    assert_eq!(job.following("cuLaunchKernel"), Following::Detached, "{:?}", job.words());
    for stays in ["cuStreamSynchronize", "cuMemAlloc_v2"] {
        assert_ne!(job.following(stays), Following::Detached, "{:?}", job.words());
    }
    assert!(job.last_cost() <= 0.02, "{}", job.last_cost());
    assert!(job.words().iter().any(|words| words.contains("its counts stop here")), "{:?}", job.words());
}

#[test]
fn only_waits_are_left_and_they_go_last() {
    // A thread that asks in a loop whether the GPU is done.
    let mut job =
        Job::new("2%", vec![calls("cuStreamSynchronize", |_| 200_000.0), calls("cuLaunchKernel", |_| 10_000.0)]);
    job.run(1.0);
    let actions = job.actions();
    let at = |action| actions.iter().position(|a| *a == action);
    assert!(at(Action::Sample(id("cuStreamSynchronize"))) < at(Action::Detach(id("cuLaunchKernel"))), "{actions:?}");
    assert!(at(Action::Detach(id("cuLaunchKernel"))) < at(Action::Detach(id("cuStreamSynchronize"))), "{actions:?}");
    assert!(job.last_cost() <= 0.02);
    // Allocations are never sampled: the rest would be wrong.
    let mut job = Job::new("2%", vec![calls("cuMemAlloc_v2", |_| 100_000.0)]);
    job.run(1.0);
    assert_eq!(job.actions(), [Action::Detach(id("cuMemAlloc_v2"))]);
}

const REPORT: &str = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";

/// As seen on a GPU: a little over the budget, the allocator's reports went, though launches that cost less would have done.
#[test]
fn reports_are_kept_where_it_does_to_let_go_of_less() {
    let some = vec![
        calls(REPORT, |_| 26_000.0),
        Calls { boring: 0.0, ..calls("cuLaunchKernel", |_| 2_500.0) },
        Calls { boring: 0.0, ..calls("cuLaunchKernelEx", |_| 1_500.0) },
    ];
    let mut job = Job::new("2%", some);
    job.noise = 0.05;
    job.run(60.0);
    assert_ne!(job.following(REPORT), Following::Detached, "{:?}", job.words());
    assert_eq!(job.following("cuLaunchKernel"), Following::Detached, "{:?}", job.words());
    assert!(job.last_cost() <= 0.02, "{}", job.last_cost());
}

/// More of them than can be paid for goes on; less than that is a burst.
#[test]
fn reports_go_when_they_cost_too_much_for_a_second() {
    let burst = |t: f64| if (20.0..20.3).contains(&t) { 60_000.0 } else { 20_000.0 };
    let mut job = Job::new("2%", vec![calls(REPORT, burst)]);
    job.run(60.0);
    assert_ne!(job.following(REPORT), Following::Detached, "{:?}", job.words());
    let mut job = Job::new("2%", vec![calls(REPORT, |t| if t < 20.0 { 20_000.0 } else { 50_000.0 })]);
    job.run(30.0);
    assert_eq!(job.following(REPORT), Following::Detached, "{:?}", job.words());
}

#[test]
fn a_burst_costs_no_counts() {
    let burst = |t: f64| if (60.0..60.1).contains(&t) { 300_000.0 } else { 2_000.0 };
    let mut job = Job::new("2%", vec![calls("cuLaunchKernel", burst)]);
    job.run(300.0);
    assert!(!job.actions().contains(&Action::Detach(id("cuLaunchKernel"))), "{:?}", job.words());
}

#[test]
fn a_jump_is_answered_within_a_period_and_taken_back_when_it_is_over() {
    let phase = |t: f64| if (100.0..200.0).contains(&t) { 35_000.0 } else { 2_000.0 };
    let mut job = Job::new("2%", vec![calls("cuLaunchKernel", phase)]);
    job.run(99.0);
    assert_eq!(job.actions(), []);
    job.run(100.0);
    assert_eq!(job.actions(), [Action::Sample(id("cuLaunchKernel"))]);
    assert!(job.over(0.02, 0.0) <= 2, "{} periods", job.over(0.02, 0.0));
    job.run(400.0);
    assert_eq!(job.following("cuLaunchKernel"), Following::Full, "{:?}", job.words());
    assert_eq!(job.actions().len(), 2);
}

#[test]
fn noise_and_phases_do_not_make_it_flap() {
    // Right at the budget, with noise.
    let mut job = Job::new("2%", vec![calls("cuLaunchKernel", |_| 14_000.0)]);
    job.noise = 0.4;
    job.run(3_600.0);
    assert!(job.actions().len() <= 4, "{:?}", job.words());
    // Ten seconds of work, ten of none, for an hour.
    let phases = |t: f64| if t % 20.0 < 10.0 { 30_000.0 } else { 100.0 };
    let mut job = Job::new("2%", vec![calls("cuLaunchKernel", phases)]);
    job.noise = 0.2;
    job.run(3_600.0);
    assert!(job.actions().len() <= 12, "{:?}", job.words());
    // Let go, and each return is one too many: the waits grow.
    let mut job = Job::new("2%", vec![calls("cuLaunchKernel", |_| 500_000.0)]);
    job.run(7_200.0);
    let attached = job.actions().iter().filter(|a| matches!(a, Action::Attach { .. })).count();
    assert!((3..=9).contains(&attached), "{attached}: {:?}", job.words());
    let over: f64 = job.over(0.02, 1.0) as f64 * ALERT_PERIOD.as_secs_f64();
    assert!(over < 3.0, "{over} s of two hours");
}

#[test]
fn what_was_let_go_comes_back_in_steps() {
    let ends = |t: f64| if t < 120.0 { 500_000.0 } else { 1_000.0 };
    let mut job = Job::new("2%", vec![calls("cuLaunchKernel", ends), calls("cuMemcpyAsync", |_| 1_000.0)]);
    job.run(60.0);
    assert_eq!(job.following("cuLaunchKernel"), Following::Detached);
    assert_eq!(job.following("cuMemcpyAsync"), Following::Full, "{:?}", job.words());
    job.run(1_500.0);
    assert_eq!(job.following("cuLaunchKernel"), Following::Full, "{:?}", job.words());
    assert!(job.words().last().unwrap().contains("recording every call of"), "{:?}", job.words());
}

#[test]
fn stacks_at_switches_are_weighed_like_functions() {
    let mut job = Job::new("2%", vec![calls("cuLaunchKernel", |_| 1_000.0)]);
    job.switches = 20_000.0;
    job.run(60.0);
    assert_eq!(job.actions(), [Action::StacksOff]);
    job.switches = 500.0;
    job.run(120.0);
    assert_eq!(job.actions(), [Action::StacksOff, Action::StacksOn]);
}

#[test]
fn what_no_action_lowers_costs_no_function() {
    let mut job = Job::new("2%", vec![calls("cuLaunchKernel", |_| 2_000.0)]);
    // gpuwhy itself takes half a core of eight.
    job.idle_own = 0.5;
    job.run(600.0);
    assert_eq!(job.actions(), [], "{:?}", job.words());
    assert!(job.last_cost() > 0.06, "but it is said");
}

#[test]
fn without_a_budget_nothing_is_given_up() {
    let mut job = Job::new("none", vec![calls("cuLaunchKernel", |_| 900_000.0)]);
    job.run(60.0);
    assert_eq!(job.actions(), []);
    assert!(job.last_cost() > 1.0);
}

#[test]
fn totals_are_spread_over_busy_threads() {
    let load = |counted| Load {
        wall: Duration::from_secs(1),
        ops: vec![OpHits { op: id("cuLaunchKernel"), hits: 80_000, full: 80_000, stacks: 0, muted: 0, price: CHEAP }],
        switches: 0,
        switch_stacks: 0,
        counted,
        own_cpu: Duration::ZERO,
        cpus: 8,
    };
    let cost = |counted| Governor::new(Budget::None, PRICES).feed(&load(counted)).cost;
    assert!((cost(Counted::AllThreads { busy: 8 }).probes - 0.012).abs() < 1e-9);
    assert!((cost(Counted::AllThreads { busy: 0 }).probes - 0.096).abs() < 1e-9);
    assert_eq!(cost(Counted::BusiestThread).probes, cost(Counted::AllThreads { busy: 1 }).probes);
}

#[test]
fn what_could_not_be_done_is_not_taken_as_done_nor_tried_for_ever() {
    let launch = id("cuLaunchKernel");
    let mut job = Job::new("2%", vec![calls("cuLaunchKernel", |_| 30_000.0)]);
    job.step();
    job.governor.failed(Action::Sample(launch));
    assert_eq!(job.following("cuLaunchKernel"), Following::Full);
    job.step();
    assert_eq!(job.actions(), [Action::Sample(launch), Action::Detach(launch)]);
    job.governor.failed(Action::Detach(launch));
    job.run(60.0);
    assert_eq!(job.following("cuLaunchKernel"), Following::Full);
    assert_eq!(job.actions().len(), 2, "there is nothing left to do");
}

#[test]
fn a_function_whose_probe_is_expensive_costs_its_own_price_and_goes_first() {
    let both = || vec![calls("cuMemcpyAsync", |_| 10_000.0), calls("cuMemsetD8Async", |_| 1_000.0)];
    let mut cheap = Job::new("2%", both());
    cheap.run(20.0);
    assert_eq!(cheap.actions(), [], "1.3 % of the job's time are within the budget");
    let mut job = Job::new("2%", both());
    job.calls[1].price = EXPENSIVE;
    job.step();
    let cost = job.history[0].1;
    // 10,000 times 1.2 microseconds a second and 1,000 times 21; gpuwhy's own part is small.
    assert!((0.033..0.037).contains(&cost), "{cost}");
    job.run(20.0);
    assert_eq!(job.actions(), [Action::Detach(id("cuMemsetD8Async"))]);
    assert!(job.last_cost() < 0.02);
}

#[test]
fn a_muted_call_costs_its_trap_and_is_not_tried_again_while_there_are_many() {
    let ends = |t: f64| if t < 600.0 { 500_000.0 } else { 1_000.0 };
    let mut job = Job::new("2%", vec![calls("cuLaunchKernel", ends), calls("cuStreamSynchronize", |_| 500.0)]);
    job.shared = true;
    job.run(590.0);
    assert_eq!(job.following("cuLaunchKernel"), Following::Detached, "{:?}", job.words());
    assert_eq!(job.following("cuStreamSynchronize"), Following::Full, "{:?}", job.words());
    // 500,000 times half a microsecond.
    assert!((0.24..0.27).contains(&job.last_cost()), "{}", job.last_cost());
    assert_eq!(job.actions().len(), 2, "sampled, then given up: {:?}", job.words());
    job.run(300.0);
    assert_eq!(job.following("cuLaunchKernel"), Following::Full, "{:?}", job.words());
}

#[test]
fn a_process_that_is_met_late_has_no_first_seconds() {
    let mut job = Job::young("2%", vec![calls("cuLaunchKernel", |_| 30_000.0)]);
    job.governor = Governor::new("2%".parse().unwrap(), PRICES).at_age(Duration::from_secs(60));
    assert!(job.governor.is_idle());
    job.step();
    assert_eq!(job.actions(), [Action::Sample(id("cuLaunchKernel"))]);
    assert!(!job.governor.is_idle());
}
