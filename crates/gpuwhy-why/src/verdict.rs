// SPDX-License-Identifier: Apache-2.0
//! The first thing people read: the verdict, what is well, and what the machine was like.

use crate::conclude::Ledgers;
use crate::explain::{Counts, Explainer};
use crate::facts::Facts;
use crate::kind::Kind;
use crate::report::Report;
use crate::scene::Scene;
use crate::state::State;
use crate::story::Story;
use gpuwhy_model::sample::SystemSample;
use gpuwhy_model::{Finding, LossCause, Severity, units};
use std::collections::BTreeMap;

/// Causes named in the verdict.
const NAMED: usize = 3;

/// Loss worth a word in the verdict, of all events.
const LOSS_TOLD: f64 = 0.01;
/// With as much loss as this nobody can say that all is well.
const LOSS_TOO_MUCH: f64 = 0.1;

/// How much of what happened has no row in the run file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lost {
    events: u64,
    all: u64,
    /// The cause that lost most.
    why: &'static str,
    /// Time in which launches were not watched, and all of it.
    unwatched_ns: u64,
    wall_ns: u64,
}

impl Lost {
    pub(crate) fn of(facts: &Facts, kept: u64) -> Self {
        let lost = || facts.loss.iter().filter(|loss| loss.loses_event);
        let events = lost().map(|loss| loss.count).sum();
        let mut causes: BTreeMap<&str, u64> = BTreeMap::new();
        lost().for_each(|loss| *causes.entry(&loss.cause).or_default() += loss.count);
        let most = causes.into_iter().max_by_key(|(_, count)| *count).map_or("", |(cause, _)| cause);
        let is = |cause: LossCause| cause.name() == most;
        let why = if is(LossCause::WriteFailed) {
            "the disk was full or could not be written to"
        } else if is(LossCause::SizeCap) {
            "the run file had reached --max-size"
        } else if is(LossCause::RingFull) {
            "gpuwhy could not keep up with the job"
        } else {
            "gpuwhy could not follow them"
        };
        let (unwatched_ns, wall_ns) = (facts.unwatched_ns(), facts.wall_ns());
        Self { events, all: events.saturating_add(kept), why, unwatched_ns, wall_ns }
    }

    fn share(self) -> f64 {
        self.events as f64 / (self.all as f64).max(1.0)
    }

    /// Whether so much is missing that silence means nothing.
    pub(crate) fn is_too_much(self) -> bool {
        self.share() >= LOSS_TOO_MUCH
    }

    /// What comes before a verdict that rests on what is left; nothing where hardly anything was lost.
    fn sentence(self) -> String {
        if self.share() < LOSS_TOLD {
            return self.not_watched();
        }
        let (events, all, why) = (units::count(self.events), units::count(self.all), self.why);
        format!("{events} of {all} events were lost because {why}; this is about the others only. ")
            + &self.not_watched()
    }

    /// The same of time in which nobody looked: what was not seen may have happened.
    fn not_watched(self) -> String {
        if self.unwatched_ns < self.wall_ns / 2 || self.unwatched_ns == 0 {
            return String::new();
        }
        let (unwatched, wall) = (units::time(self.unwatched_ns), units::time(self.wall_ns));
        format!("Launches were not watched for {unwatched} of {wall} (view unwatched): what happened then is unknown. ")
    }
}

/// The verdict: what was lost, what nvidia-smi would say, what is true, and why. It is about the steady state; the start is
/// told apart.
pub(crate) fn verdict(report: &Report, scene: &Scene<'_>, stories: &[Story], lost: Lost) -> String {
    let (Some(_), Some((steady_from, _))) = (report.gpu_idle_min_ns, report.steady) else {
        return urgent(&report.findings) + &lost.sentence() + &no_work(report, scene.facts);
    };
    let serious: Vec<&Finding> = report.findings.iter().filter(|found| found.severity >= Severity::Medium).collect();
    let mut text = urgent(&report.findings) + &lost.sentence();
    let start = steady_from.saturating_sub(report.from_ns);
    let idle = scene.share(scene.steady.certain_ns / scene.gpus).min(1.0);
    let of_job = if scene.has_neighbours { " of this job" } else { "" };
    let idles = format!("the GPU had no work{of_job} at least {} of the time", units::percent(idle, 1.0));
    let gpu = report.gpus.iter().filter(|gpu| gpu.launches > 0).find_map(|gpu| gpu.nvml_index);
    let shows = gpu.and_then(|gpu| scene.rate_in_steady(gpu)).map(|rate| format!("nvidia-smi shows {rate:.0} %"));
    let told = match shows {
        Some(shows) if idle > 0.1 => format!("{shows}, but {idles}"),
        Some(shows) => format!("{shows}; {idles}"),
        None => idles,
    };
    let told = if start > report.wall_ns / 20 {
        format!("The job started for {}. Since then {told}", units::time(start))
    } else {
        capital(&told)
    };
    text.push_str(&told);
    text.push('.');
    for found in serious.iter().filter(|found| found.lost_ns > 0).take(NAMED) {
        let lost = units::percent(found.share, 1.0);
        let about_pace = |story: &&Story| {
            (story.kind.name(), story.root.name()) == (found.kind.as_str(), found.root_cause.kind.as_str())
        };
        let story = stories.iter().find(about_pace);
        let held_up = story.is_some_and(Story::is_about_pace);
        let of_it = if held_up { "of the time the launching thread was held up, " } else { "" };
        let at_most = if story.is_some_and(|story| story.is_at_most) { "Up to " } else { "" };
        text.push_str(&format!(" {at_most}{lost} {of_it}because {}", sentence(&found.root_cause.detail)));
    }
    let lost_track = stories.iter().filter(|story| matches!(story.kind, Kind::Unresolved | Kind::ColdStart));
    let lost_track = scene.share(lost_track.map(|story| story.ns / scene.gpus).sum());
    if lost_track >= 0.03 {
        let share = units::percent(lost_track, 1.0);
        text.push_str(&format!(" {share} could not be followed to a cause."));
    }
    match (serious.is_empty() && lost_track < 0.03, lost.is_too_much()) {
        (true, true) => text.push_str(" Too much was lost to say whether anything held it up."),
        (true, false) => text.push_str(&nothing_serious(report, idle)),
        (false, _) => {}
    }
    text
}

/// What ended the job or will, worst first: it is said before where the time went. Each sentence ends with a space.
pub(crate) fn urgent(findings: &[Finding]) -> String {
    let critical = findings.iter().filter(|found| found.severity == Severity::Critical);
    critical.map(|found| format!("{} ", sentence(&capital(&found.title)))).collect()
}

/// What costs no time and is serious all the same. Each sentence begins with a space.
pub(crate) fn besides(findings: &[Finding]) -> String {
    let serious = findings.iter().filter(|found| found.severity == Severity::High && found.lost_ns == 0);
    serious.map(|found| format!(" {}", sentence(&capital(&found.title)))).collect()
}

fn nothing_serious(report: &Report, idle: f64) -> String {
    let bound = report.findings.iter().find(|found| found.kind == Kind::GpuBound.name());
    let most = report.gpu_idle_max_ns.unwrap_or(report.wall_ns) as f64 / report.wall_ns.max(1) as f64;
    match bound {
        Some(bound) => format!(" Nothing holds it up: {}", sentence(&bound.root_cause.detail)),
        None if most > idle + 0.25 => {
            " No cause costs 3 % or more. Whether it worked in the rest cannot be told from the \
             host's side: the job rarely waits for the GPU."
                .to_owned()
        }
        None => " No cause costs 3 % or more.".to_owned(),
    }
}

fn capital(text: &str) -> String {
    let mut rest = text.chars();
    // A sentence may begin with a file's name, which has no capital.
    match text.split(' ').next().filter(|word| word.chars().all(char::is_lowercase)).and(rest.next()) {
        Some(first) => first.to_uppercase().chain(rest).collect(),
        None => text.to_owned(),
    }
}

fn sentence(text: &str) -> String {
    let text = text.trim_end_matches('.');
    format!("{text}.")
}

fn no_work(report: &Report, facts: &Facts) -> String {
    if report.processes.is_empty() {
        let unread = unread(facts).map(|unread| format!(" {}", sentence(&unread))).unwrap_or_default();
        format!("Nothing was traced in this span.{unread}")
    } else {
        "No GPU work was seen in this span: no kernel was launched by a traced process.".to_owned()
    }
}

/// Processes that are not in the run because they could not be looked into.
pub(crate) fn unread(facts: &Facts) -> Option<String> {
    let unread = facts.loss.iter().filter(|loss| loss.cause == LossCause::ProcessUnread.name());
    let processes: u64 = unread.map(|loss| loss.count).sum();
    (processes > 0).then(|| {
        format!("Not watched: {} processes whose libraries could not be read in time", units::count(processes))
    })
}

/// What was checked and is well, with figures.
pub(crate) fn healthy(scene: &Scene<'_>, stories: &[Story], ledgers: &Ledgers, counts: &Counts) -> Vec<String> {
    if scene.steady_ns == 0 {
        return Vec::new();
    }
    let lost = |kinds: &[Kind]| -> u64 {
        stories.iter().filter(|story| kinds.contains(&story.kind)).map(|story| story.ns / scene.gpus).sum()
    };
    let mut list = Vec::new();
    let mut well = |what: &str, kinds: &[Kind], more: String| {
        let share = scene.share(lost(kinds));
        if share < 0.01 {
            list.push(format!("{what}: cost {} of the steady time{more}", units::percent(share, 1.0)));
        }
    };
    let launcher =
        counts.launchers.iter().max_by_key(|(_, launches)| **launches).map(|(index, _)| scene.thread(*index));
    let ledger = launcher.and_then(|thread| ledgers.get(&(thread.pid, thread.tid)));
    let ready = ledger.map_or(String::new(), |ledger| {
        format!(" (the launching thread was ready without a CPU for {})", units::time(ledger.of(State::Ready)))
    });
    well("CPU", &[Kind::CpuContention, Kind::CpuThrottled], ready);
    well("input", &[Kind::InputStarved, Kind::ProcessChurn], String::new());
    well("disk and network", &[Kind::DiskIo, Kind::NetworkIo], String::new());
    well("locks", &[Kind::LockContention], String::new());
    let syncs = format!(" ({} waits for the GPU a second)", scene.per_second(scene.steady.syncs));
    well("synchronisation", &[Kind::SyncBound], syncs);
    well("copies", &[Kind::CopyBound], format!(" ({})", units::bytes(scene.steady.copy_bytes)));
    let allocs = format!(" ({} calls, {})", units::count(scene.steady.allocs), units::time(scene.steady.alloc_ns));
    well("device memory calls", &[Kind::AllocChurn], allocs);
    list
}

/// The machine's load, which is of all its programs together.
fn load(facts: &Facts) -> Option<String> {
    let loads: Vec<f64> = facts.system.iter().filter_map(|sample| sample.load1).collect();
    let most = loads.iter().copied().reduce(f64::max)?;
    let mean = loads.iter().sum::<f64>() / loads.len() as f64;
    Some(format!("load of the last minute: {mean:.1} on average, {most:.1} at most"))
}

/// What was in swap, and what went to and fro.
fn swap(facts: &Facts) -> String {
    let Some(used) = facts.system.iter().filter_map(|sample| sample.swap_used).max() else { return String::new() };
    let sum = |of: fn(&SystemSample) -> Option<u64>| facts.system.iter().filter_map(of).fold(0, u64::saturating_add);
    let (brought_in, put_out) = (sum(|sample| sample.swap_in), sum(|sample| sample.swap_out));
    let moved = match (brought_in, put_out) {
        (0, 0) => String::new(),
        (i, o) => format!(", {} brought in and {} put out", units::bytes(i), units::bytes(o)),
    };
    match (used, moved.is_empty()) {
        (0, true) => "; no swap in use".to_owned(),
        _ => format!("; swap: {} in use at most{moved}", units::bytes(used)),
    }
}

/// The machine, and where the bounds come from.
pub(crate) fn context(scene: &Scene<'_>, explainer: &Explainer) -> Vec<String> {
    let facts = scene.facts;
    let mut list = Vec::new();
    if scene.steady_ns > 0 {
        let (from, to) = scene.steady_span;
        let (length, from, to) = (units::time(to - from), units::time(from), units::time(to));
        list.push(format!("shares are of the job's steady time: {length}, from {from} to {to}"));
    }
    let idle = scene.idle_cores.map(|idle| format!(", {idle:.1} idle on average")).unwrap_or_default();
    if facts.cores > 0 {
        list.push(format!("{} cores{idle}", facts.cores));
    }
    list.extend(load(facts));
    let available = facts.system.iter().filter_map(|sample| sample.memory_available).min();
    let total = facts.system.iter().find_map(|sample| sample.memory_total);
    if let (Some(available), Some(total)) = (available, total) {
        let swap = swap(facts);
        list.push(format!("memory: {} of {} were free at least{swap}", units::bytes(available), units::bytes(total)));
    }
    for sample in facts.cgroups.iter().filter(|sample| sample.quota_ns.is_some()).take(1) {
        if let (Some(quota), Some(period)) = (sample.quota_ns, sample.period_ns.filter(|period| *period > 0)) {
            list.push(format!("CPU quota of {}: {:.1} cores", sample.path, quota as f64 / period as f64));
        }
    }
    if explainer.counts.reclaims > 0 || explainer.counts.major_faults > 0 {
        let (faults, reclaims) = (units::count(explainer.counts.major_faults), units::count(explainer.counts.reclaims));
        list.push(format!("{faults} major page faults, {reclaims} direct reclaims"));
    }
    let sampled = facts.gpu_seconds.len();
    if sampled == 0 {
        list.push("no NVML: how busy the GPU was is told from the host's side alone".to_owned());
    }
    list
}
