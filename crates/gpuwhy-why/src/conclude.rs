// SPDX-License-Identifier: Apache-2.0
//! From sums to the report: the steady state, its stories as findings, the checks that passed.

use crate::blame::{SLICES, Slice, Slices};
use crate::explain::Explainer;
use crate::facts::StackFact;
use crate::gpu_rules;
use crate::kind::Kind;
use crate::ledger::ThreadLedger;
use crate::report::{GpuReport, HeldBy, LossReport, ProcessReport, Report, ThreadReport};
use crate::scene::Scene;
use crate::state::State;
use crate::story::{Story, most, stories};
use crate::timeline::ThreadIndex;
use crate::{fixes, startup, verdict, words};
use gpuwhy_model::host::task_name;
use gpuwhy_model::{Confidence, Finding, Severity, units};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A job that launches nothing for this long at its end, ns, may have stalled.
const LONG_TAIL_NS: u64 = 2_000_000_000;
/// A process that ends this soon after the time range, ns, ended with it.
const ENDING_NS: u64 = 500_000_000;
/// A smaller cost, ns, is at most LOW, whatever its share of a short run.
const WORTH_ACTING_NS: u64 = 100_000_000;
/// "Hardly ever" is at most one part in so many of the time.
const HARDLY: u64 = 20;
/// Stacks looked up for one cause.
const STACKS_OF_A_CAUSE: usize = 4;

/// Ledgers, by process and thread.
pub(crate) type Ledgers = BTreeMap<(u32, u32), ThreadLedger>;

/// The run in three parts.
pub(crate) struct Phases {
    pub(crate) start: Slice,
    pub(crate) steady: Slice,
    pub(crate) end: Slice,
    /// When the steady state began and ended.
    pub(crate) span: Option<(u64, u64)>,
}

impl Phases {
    fn new(slices: Slices, from: u64, to: u64, edges: Edges) -> Self {
        let (width, mut slices) = slices.into_parts();
        let at = |i: usize| from.saturating_add(width.saturating_mul(i as u64)).min(to);
        let all = usize::try_from(to.saturating_sub(from).div_ceil(width)).unwrap_or(0);
        if slices.len() < all && all <= 2 * SLICES {
            slices.resize_with(all, Slice::default);
        }
        let found = startup::steady(&slices).map(|(first, last)| {
            let steady = at(last + 1).saturating_sub(at(first));
            // Time after the job's end does not count.
            let until = edges.ended.map_or(to, |ended| ended.min(to));
            let tail = until.saturating_sub(at(last + 1));
            // A job that stops launching but does not end has stalled: that time belongs to the steady state.
            let hangs = tail > LONG_TAIL_NS && tail > steady / 10;
            let stopped = usize::try_from(until.saturating_sub(from).saturating_sub(1) / width).unwrap_or(usize::MAX);
            let last = match (edges.open_end, hangs) {
                (true, _) => slices.len() - 1,
                (false, true) => stopped.clamp(last, slices.len() - 1),
                (false, false) => last,
            };
            (if edges.open_start { 0 } else { first }, last)
        });
        let mut phases = Self {
            start: Slice::default(),
            steady: Slice::default(),
            end: Slice::default(),
            span: found.map(|(first, last)| (at(first), at(last + 1))),
        };
        for (i, slice) in slices.into_iter().enumerate() {
            match found {
                Some((first, last)) if i >= first && i <= last => phases.steady.merge(slice),
                Some((_, last)) if i > last => phases.end.merge(slice),
                _ => phases.start.merge(slice),
            }
        }
        phases
    }
}

/// Whether the job ran beyond the ends of the time range.
#[derive(Clone, Copy)]
struct Edges {
    open_start: bool,
    open_end: bool,
    ended: Option<u64>,
}

impl Edges {
    fn new(explainer: &Explainer) -> Self {
        let facts = &explainer.facts;
        let main = launchers(explainer).first().map(|(pid, _)| *pid);
        let ended = main.and_then(|pid| facts.processes.get(&pid)?.ended).map(|at| at.max(0).cast_unsigned());
        let alive = ended.is_none_or(|at| at > facts.to_ns.saturating_add(ENDING_NS));
        Self {
            open_start: facts.from_ns > 0 || !facts.started,
            open_end: alive && main.is_some() && facts.complete,
            ended,
        }
    }
}

/// Everything put together.
pub(crate) fn conclude(
    mut explainer: Explainer,
    ledgers: &Ledgers,
    stacks: &mut dyn FnMut(&[u64]) -> HashMap<u64, StackFact>,
) -> Report {
    let (from, to) = (explainer.facts.from_ns, explainer.facts.to_ns);
    let edges = Edges::new(&explainer);
    let phases = Phases::new(std::mem::replace(&mut explainer.slices, Slices::new(0)), from, to, edges);
    let gpus = gpu_reports(&explainer);
    // A few stray launches do not make a GPU part of the job.
    let launches: u64 = gpus.iter().map(|gpu| gpu.launches).sum();
    let used = |gpu: &&GpuReport| gpu.launches >= (launches / 100).max(launches.min(1));
    let worked: BTreeSet<u32> = gpus.iter().filter(used).map(|gpu| gpu.device).collect();
    let span = phases.span.unwrap_or((from, from));
    let sync_times = std::mem::take(&mut explainer.counts.sync_times);
    let mut scene =
        Scene::new(&explainer.facts, &explainer.timeline, &phases.steady, span, worked.len() as u64, &sync_times);
    scene.paced = paced(&explainer, &scene);
    // Of all the time in which a GPU may have been idle, some lies before and after the steady state for certain.
    let outside = phases.start.certain_ns + phases.end.certain_ns;
    scene.idle_most_ns = gpus.iter().map(|gpu| gpu.idle_max_ns).sum::<u64>().saturating_sub(outside);
    scene.words = stacks(&wanted_stacks(&phases));
    scene.launchers = worth_telling(&explainer.counts.launchers);
    scene.has_neighbours = worked.iter().any(|gpu| explainer.neighbours.are_on(*gpu));
    scene.nvml_factor = nvml_factor(&explainer.counts.nvml_windows, span);
    let stories = stories(&phases.steady.costs, &scene);
    let mut findings: Vec<Finding> = stories.iter().filter_map(|story| finding(story, &scene)).collect();
    let shared_ns = explainer.devices.gpus.values().map(|gpu| gpu.shared_ns).sum();
    findings.extend(gpu_rules::faults(&scene));
    findings.extend(gpu_rules::throttled(&scene));
    findings.extend(gpu_rules::collectives(&scene, launchers(&explainer).first().map(|(pid, _)| *pid)));
    let neighbour = explainer.neighbours.most_shared();
    findings.extend(gpu_rules::shared(&scene, &launchers(&explainer), shared_ns, neighbour));
    let worst = findings.iter().map(|found| found.severity).max().unwrap_or(Severity::Info);
    let lost = verdict::Lost::of(&explainer.facts, explainer.counts.events);
    if !lost.is_too_much() {
        findings.extend(gpu_rules::bound(&scene, &gpus, worst));
    }
    findings.extend(cold_start(&phases, &scene));
    Finding::sort(&mut findings);
    let idlest = gpus.iter().filter(used).max_by_key(|gpu| gpu.idle_min_ns);
    let mut report = Report {
        from_ns: from,
        to_ns: to,
        wall_ns: to.saturating_sub(from),
        steady: phases.span,
        gpu_idle_min_ns: idlest.map(|gpu| gpu.idle_min_ns),
        gpu_idle_max_ns: idlest.map(|gpu| gpu.idle_max_ns),
        loss: loss(&explainer),
        processes: processes(&explainer),
        threads: threads(&explainer, ledgers),
        healthy: verdict::healthy(&scene, &stories, ledgers, &explainer.counts),
        context: verdict::context(&scene, &explainer),
        gpus,
        findings,
        ..Report::default()
    };
    if lost.is_too_much() {
        report.loss.too_much = true;
        report.healthy.clear();
    }
    report.verdict = verdict::verdict(&report, &scene, &stories, lost);
    report
}

/// Processes that launch, with how much, most first.
fn launchers(explainer: &Explainer) -> Vec<(u32, u64)> {
    let mut by_pid: BTreeMap<u32, u64> = BTreeMap::new();
    for (index, launches) in &explainer.counts.launchers {
        *by_pid.entry(explainer.timeline.threads[*index as usize].pid).or_default() += launches;
    }
    let mut list: Vec<(u32, u64)> = by_pid.into_iter().collect();
    list.sort_by_key(|(pid, launches)| (std::cmp::Reverse(*launches), *pid));
    list
}

/// NVML's samples do not cover the beginning and end of the steady state. Losses are extrapolated to them; the bounds do
/// not count that.
fn nvml_factor(windows: &[(u32, u64, u64)], (from, to): (u64, u64)) -> f64 {
    let gpus: BTreeSet<u32> = windows.iter().map(|window| window.0).collect();
    let covered: u64 = windows.iter().map(|(_, a, b)| b.min(&to).saturating_sub(*a.max(&from))).sum();
    let steady = to.saturating_sub(from).saturating_mul(gpus.len() as u64);
    if covered < steady / 2 || covered == 0 { 1.0 } else { (steady as f64 / covered as f64).max(1.0) }
}

/// Threads with at least a hundredth of the launches.
fn worth_telling(launchers: &BTreeMap<ThreadIndex, u64>) -> BTreeSet<ThreadIndex> {
    let total: u64 = launchers.values().sum();
    launchers.iter().filter(|(_, launches)| **launches * 100 >= total).map(|(index, _)| *index).collect()
}

fn wanted_stacks(phases: &Phases) -> Vec<u64> {
    let mut wanted = BTreeSet::new();
    for cost in phases.steady.costs.values().chain(phases.start.costs.values()) {
        for votes in [&cost.head_stacks, &cost.leaf_stacks] {
            wanted.extend(votes.ranked().into_iter().take(STACKS_OF_A_CAUSE).map(|(stack, _)| stack));
        }
    }
    for votes in [&phases.steady.sync_stacks, &phases.steady.alloc_stacks, &phases.steady.exchange_stacks] {
        wanted.extend(votes.ranked().into_iter().take(STACKS_OF_A_CAUSE).map(|(stack, _)| stack));
    }
    wanted.into_iter().collect()
}

/// A story as a finding, if it cost enough.
fn finding(story: &Story, scene: &Scene<'_>) -> Option<Finding> {
    let lost_ns = (story.ns / scene.gpus).min(scene.steady_ns);
    let mut severity = Severity::of_share(scene.share(lost_ns));
    if lost_ns < WORTH_ACTING_NS.max(scene.facts.wall_ns() / 100) {
        severity = severity.min(Severity::Low);
    }
    let hidden = matches!(story.kind, Kind::ColdStart | Kind::Unresolved);
    if severity < Severity::Low || hidden {
        return None;
    }
    let thread = scene.thread(story.launcher);
    let (confidence, confidence_reason) = confidence(story, scene);
    let mut fixes = fixes::fixes(story, scene);
    for fix in &mut fixes {
        fix.saves_ns = (fix.saves_ns / scene.gpus).min(lost_ns);
    }
    // Drop fixes that save next to nothing.
    fixes.retain(|fix| fix.saves_ns >= lost_ns / 20);
    Some(Finding {
        kind: story.kind.name().to_owned(),
        severity,
        title: words::title(story, scene),
        lost_ns,
        is_upper_bound: story.is_at_most,
        lost_bytes: 0,
        share: scene.share(lost_ns),
        pid: Some(thread.pid),
        tid: Some(thread.tid),
        chain: words::chain(story, scene),
        root_cause: words::root_cause(story, scene),
        effect: effect(story, scene),
        fixes,
        confidence,
        confidence_reason,
    })
}

/// Figures of this finding alone, and what its cost means where that is not plain.
fn effect(story: &Story, scene: &Scene<'_>) -> Vec<String> {
    let mut effects = Vec::new();
    match story.kind {
        Kind::LaunchBound => effects.push(format!("{} launches/s", scene.per_second(scene.steady.launches))),
        Kind::SyncBound => {
            let quantile = |q| scene.sync_times.quantile(q).map(units::time);
            let often = scene.per_second(scene.steady.syncs);
            let times = quantile(0.5).zip(quantile(0.99));
            effects.extend(times.map(|(p50, p99)| format!("{often} waits for the GPU/s, p50 {p50}, p99 {p99}")));
        }
        _ => {}
    }
    if story.is_about_pace() {
        effects.push("the cost is the time the launching thread was held up; GPU idle time is unknown".to_owned());
    } else if scene.has_neighbours {
        effects.push("the GPU had no work from this job; it may have been busy with another".to_owned());
    }
    if scene.gpus > 1 {
        effects.push(format!("the cost is the mean of {} GPUs", scene.gpus));
    }
    effects
}

/// Processes whose launching threads hardly ever wait for the GPU, where NVML is missing: what holds such a thread up sets
/// the job's pace.
fn paced(explainer: &Explainer, scene: &Scene<'_>) -> BTreeSet<u32> {
    let facts = &explainer.facts;
    let seen = facts.unwatched_ns() <= facts.wall_ns() / HARDLY;
    if !facts.busy.is_empty() || !explainer.timeline.has_offs || !seen {
        return BTreeSet::new();
    }
    let mut waited: BTreeMap<u32, u64> = BTreeMap::new();
    for (thread, ns) in &scene.steady.for_gpu {
        *waited.entry(scene.thread(*thread).pid).or_default() += ns;
    }
    let pids = scene.steady.costs.keys().map(|cause| scene.thread(cause.launcher).pid);
    pids.filter(|pid| waited.get(pid).copied().unwrap_or(0) <= scene.steady_ns / HARDLY).collect()
}

fn confidence(story: &Story, scene: &Scene<'_>) -> (Confidence, String) {
    if !scene.timeline.has_offs {
        return (Confidence::Low, "the scheduler was not recorded: what the thread waited for is unknown".into());
    }
    if story.is_about_pace() {
        let why = "measured: the launching thread was held up and hardly ever waited for the GPU, so it sets the pace; how \
                   long the GPU was idle meanwhile is unknown without NVML";
        return (Confidence::Medium, why.into());
    }
    let by_nvml = scene.steady.costs.iter().filter(|(cause, _)| cause.gap == crate::blame::Gap::ByNvml);
    let estimated: u64 = by_nvml.map(|(_, cost)| cost.ns).sum();
    if estimated > story.ns / 2 && estimated > scene.steady.idle_ns / 2 {
        let why = "total idle time is from NVML; when exactly it idled is estimated";
        return (Confidence::Medium, why.into());
    }
    if story.is_at_most {
        let why = "an upper bound: in a part of this time it is not certain that the GPU was idle";
        return (Confidence::Medium, why.into());
    }
    if story.root == Kind::Unresolved || story.root == Kind::OutsideProcess {
        return (Confidence::Medium, "the chain ends in something that was not traced".into());
    }
    (Confidence::High, "measured: every idle interval of the GPU is followed to its cause".into())
}

/// The cost of startup, as a LOW finding: it happens once.
fn cold_start(phases: &Phases, scene: &Scene<'_>) -> Option<Finding> {
    let (steady_from, _) = phases.span?;
    let lasted = steady_from.saturating_sub(scene.facts.from_ns);
    let lost_ns = (phases.start.idle_ns / scene.gpus).min(lasted);
    let share = lost_ns as f64 / scene.facts.wall_ns().max(1) as f64;
    if share < 0.03 {
        return None;
    }
    let costly = most(phases.start.costs.iter().map(|(cause, cost)| (*cause, cost.ns)));
    let line = costly.and_then(|(cause, _)| scene.line(&phases.start.costs.get(&cause)?.leaf_stacks));
    let launcher = costly.map(|(cause, _)| scene.thread(cause.launcher));
    let took = units::time(lasted);
    let detail = format!("{took} before the first steady work: imports, module loading, first touches");
    Some(Finding {
        kind: Kind::ColdStart.name().to_owned(),
        severity: Severity::Low,
        title: "Startup".to_owned(),
        lost_ns,
        is_upper_bound: false,
        lost_bytes: 0,
        share,
        pid: launcher.map(|thread| thread.pid),
        tid: launcher.map(|thread| thread.tid),
        chain: Vec::new(),
        root_cause: gpuwhy_model::RootCause { kind: Kind::ColdStart.name().into(), detail, line, ..Default::default() },
        effect: Vec::new(),
        fixes: Vec::new(),
        confidence: Confidence::Medium,
        confidence_reason: "end of startup inferred from the launch rate".to_owned(),
    })
}

fn gpu_reports(explainer: &Explainer) -> Vec<GpuReport> {
    let wall = explainer.facts.wall_ns();
    let report = |(index, gpu): (&u32, &crate::device::Gpu)| {
        let numbered = explainer.counts.numbered.get(index).copied().unwrap_or(false);
        let extra = explainer.counts.nvml_extra.get(index).copied().unwrap_or(0);
        let idle_min = gpu.idle_ns.saturating_add(extra).min(wall);
        // Without the scheduler, a ready thread looks as if it waited; and two processes' device 0 may be two GPUs.
        let users = explainer.counts.users.iter().filter(|(_, gpu)| gpu == index).count();
        let sure = explainer.timeline.has_offs && (numbered || users < 2);
        let rates: Vec<f64> = explainer
            .facts
            .gpu_seconds
            .iter()
            .filter(|sample| sample.gpu == *index && numbered)
            .filter_map(|sample| sample.rate_percent.map(f64::from))
            .collect();
        let nvml = explainer.counts.nvml_idle.get(index).copied();
        let basis = match (nvml, extra > 0) {
            (None, _) if explainer.neighbours.are_on(*index) => "this job's queued work; no NVML samples",
            (Some(_), _) if explainer.neighbours.are_on(*index) => "this job's queued work and NVML samples",
            (Some(_), true) => "the host's queued work and NVML samples",
            (Some(_), false) => "the host's queued work; NVML samples add nothing",
            (None, _) => "the host's queued work; no NVML samples",
        };
        GpuReport {
            job: None,
            device: *index,
            nvml_index: numbered.then_some(*index),
            idle_min_ns: idle_min,
            idle_max_ns: wall.saturating_sub(if sure { gpu.busy_ns } else { 0 }).max(idle_min),
            host_idle_min_ns: gpu.idle_ns,
            nvml_idle_min_ns: nvml,
            rate_percent: (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64),
            launches: gpu.launches,
            basis: basis.to_owned(),
        }
    };
    explainer.devices.gpus.iter().map(report).collect()
}

fn loss(explainer: &Explainer) -> LossReport {
    let facts = &explainer.facts;
    let events = facts.loss.iter().filter(|loss| loss.loses_event).map(|loss| loss.count).sum();
    let mut notes: Vec<String> = Vec::new();
    if events > 0 {
        notes.push(format!(
            "{} events were lost: in those seconds no idle time is counted from the host's calls, and chains may end early",
            units::count(events)
        ));
    }
    notes.extend(verdict::unread(facts));
    let (thinned, all) = (explainer.counts.thinned, explainer.counts.events);
    if thinned > 0 {
        notes.push(format!(
            "{} of {} events are represented by similar rows (see `weight`; --max-size, --budget): counts are exact, times within bursts are estimates",
            units::count(thinned),
            units::count(all)
        ));
    }
    if !facts.complete {
        notes.push(
            "the run has no end (gpuwhy is still recording, or was killed): what was going on at its end is unknown"
                .to_owned(),
        );
    }
    if !explainer.timeline.has_offs {
        notes.push(
            "the scheduler was not recorded: gpuwhy cannot tell waiting from working (trace without --no-host)"
                .to_owned(),
        );
    }
    let blind = facts.unwatched_ns();
    if blind > facts.wall_ns() / 100 {
        notes.push(format!(
            "launches were not watched for {} (views `unwatched` and `governor`): nothing is certain in that time",
            units::time(blind)
        ));
    }
    LossReport { events, notes, too_much: false }
}

fn processes(explainer: &Explainer) -> Vec<ProcessReport> {
    let launches: HashMap<u32, u64> = launchers(explainer).into_iter().collect();
    let mut processes: Vec<ProcessReport> = explainer
        .facts
        .processes
        .values()
        .map(|process| ProcessReport {
            pid: process.pid,
            name: process.name.clone(),
            command: process.command.clone(),
            launches: launches.get(&process.pid).copied().unwrap_or(0),
        })
        .collect();
    processes.sort_by_key(|process| (std::cmp::Reverse(process.launches), process.pid));
    processes
}

fn threads(explainer: &Explainer, ledgers: &Ledgers) -> Vec<ThreadReport> {
    let of = |index: &ThreadIndex| &explainer.timeline.threads[*index as usize];
    let launches: HashMap<(u32, u32), u64> =
        explainer.counts.launchers.iter().map(|(index, n)| ((of(index).pid, of(index).tid), *n)).collect();
    let names: HashMap<(u32, u32), String> =
        explainer.facts.threads.iter().map(|life| ((life.pid, life.tid), task_name(&life.name))).collect();
    let mut held: HashMap<(u32, u32), BTreeMap<(u32, String), u64>> = HashMap::new();
    for thread in explainer.timeline.threads.iter().filter(|thread| !thread.held.is_empty()) {
        let of_thread = held.entry((thread.pid, thread.tid)).or_default();
        for (holder, ns) in &thread.held {
            if let Some(holder) = explainer.timeline.holders.get(*holder as usize) {
                *of_thread.entry((holder.pid, holder.name.clone())).or_default() += ns;
            }
        }
    }
    let mut reports: Vec<ThreadReport> = ledgers
        .iter()
        .map(|((pid, tid), ledger)| ThreadReport {
            pid: *pid,
            tid: *tid,
            name: names.get(&(*pid, *tid)).cloned().unwrap_or_else(|| explainer.facts.name(*pid)),
            launches: launches.get(&(*pid, *tid)).copied().unwrap_or(0),
            wall_ns: ledger.wall_ns,
            ledger: State::ALL
                .iter()
                .filter(|state| ledger.of(**state) > 0)
                .map(|s| (s.name(), ledger.of(*s)))
                .collect(),
            cuda: ledger.cuda.iter().filter_map(|(op, ns)| Some((op.get()?.name.clone(), *ns))).fold(
                BTreeMap::new(),
                |mut sums, (name, ns)| {
                    *sums.entry(name).or_default() += ns;
                    sums
                },
            ),
            held_by: ranked(held.remove(&(*pid, *tid)).unwrap_or_default()),
        })
        .collect();
    let on_cpu = |report: &ThreadReport| {
        let of = |state: State| report.ledger.get(state.name()).copied().unwrap_or(0);
        of(State::RunningCuda) + of(State::RunningHost)
    };
    reports.sort_by_key(|report| (std::cmp::Reverse((report.launches, on_cpu(report))), report.tid));
    reports
}

fn ranked(held: BTreeMap<(u32, String), u64>) -> Vec<HeldBy> {
    let mut list: Vec<HeldBy> = held.into_iter().map(|((pid, name), ns)| HeldBy { name, pid, ns }).collect();
    list.sort_by_key(|held| (std::cmp::Reverse(held.ns), held.pid));
    list.truncate(8);
    list
}
