// SPDX-License-Identifier: Apache-2.0
//! The verdict, the checks that passed, and the machine.

use crate::conclude::Ledgers;
use crate::explain::{Counts, Explainer};
use crate::facts::Facts;
use crate::kind::Kind;
use crate::report::Report;
use crate::scene::Scene;
use crate::state::State;
use crate::story::Story;
use crate::words;
use gpuwhy_model::sample::SystemSample;
use gpuwhy_model::{Finding, LossCause, Severity, units};
use std::collections::BTreeMap;

/// Causes named in the verdict.
const NAMED: usize = 3;

/// From this share of all events on, the verdict mentions lost events.
const LOSS_TOLD: f64 = 0.01;
/// From this share on, the verdict does not say that all is well.
const LOSS_TOO_MUCH: f64 = 0.1;
/// A cause with less than this share of the time is not serious.
const SERIOUS: f64 = 0.03;
/// A lower bound of idle time below this share says nothing.
const LEAST_IDLE: f64 = 0.01;
/// A cause of at least this share of the idle time explains it.
const MOSTLY: f64 = 0.9;

/// How much is missing from the run file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lost {
    events: u64,
    all: u64,
    /// The cause that lost most.
    why: &'static str,
    /// Time in which launches were not watched.
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

    /// Whether so much is missing that finding nothing means nothing.
    pub(crate) fn is_too_much(self) -> bool {
        self.share() >= LOSS_TOO_MUCH
    }

    /// The warning before a verdict that rests on incomplete data; empty where hardly anything was lost.
    fn sentence(self) -> String {
        if self.share() < LOSS_TOLD {
            return self.not_watched();
        }
        let (events, all, why) = (units::count(self.events), units::count(self.all), self.why);
        format!("{events} of {all} events were lost because {why}: the verdict rests on the remaining ones. ")
            + &self.not_watched()
    }

    /// The same for time in which launches were not watched.
    fn not_watched(self) -> String {
        if self.unwatched_ns < self.wall_ns / 2 || self.unwatched_ns == 0 {
            return String::new();
        }
        let (unwatched, wall) = (units::time(self.unwatched_ns), units::time(self.wall_ns));
        format!(
            "Launches were paused or not watched for {unwatched} of {wall} (views `governor` and `unwatched`): what \
             happened then is unknown. "
        )
    }
}

/// The verdict: what was lost, how long the GPU was idle and why, what nvidia-smi shows, how long startup took. All shares
/// are of the steady state.
pub(crate) fn verdict(report: &Report, scene: &Scene<'_>, stories: &[Story], lost: Lost) -> String {
    let (Some(_), Some((steady_from, _))) = (report.gpu_idle_min_ns, report.steady) else {
        return urgent(&report.findings) + &lost.sentence() + &no_work(report, scene.facts);
    };
    let serious: Vec<&Finding> = report.findings.iter().filter(|found| found.severity >= Severity::Medium).collect();
    let costly: Vec<&Finding> = serious.iter().copied().filter(|found| found.lost_ns > 0).take(NAMED).collect();
    let idle = scene.share(scene.steady.certain_ns / scene.gpus).min(1.0);
    let mut causes: Vec<(f64, bool, String)> = Vec::new();
    let mut others: Vec<String> = Vec::new();
    let mut idle_unknown = false;
    for found in costly {
        let matches = |story: &&Story| {
            (story.kind.name(), story.root.name()) == (found.kind.as_str(), found.root_cause.kind.as_str())
        };
        let share = units::percent(found.share, 1.0);
        match stories.iter().find(matches) {
            Some(story) if story.is_about_pace() => {
                let clause = words::clause(story, scene);
                let clause = match clause.strip_prefix("the launching thread ") {
                    Some(does) => format!("it {does}"),
                    None => clause,
                };
                others.push(format!("The launching thread was held up {share} of the time: {clause}."));
                idle_unknown = idle < LEAST_IDLE;
            }
            Some(story) => causes.push((found.share, story.is_at_most, words::clause(story, scene))),
            None => others.push(of_the_gpu(found)),
        }
    }
    let lost_track = stories.iter().filter(|story| matches!(story.kind, Kind::Unresolved | Kind::ColdStart));
    let lost_track = scene.share(lost_track.map(|story| story.ns / scene.gpus).sum());
    let all_well = serious.is_empty() && lost_track < SERIOUS;
    let mut sentences = Vec::new();
    if all_well && !lost.is_too_much() {
        sentences.extend(busy(report));
    }
    // A bound of nothing is not worth a sentence where another one says what is known.
    if idle >= LEAST_IDLE || (others.is_empty() && sentences.is_empty()) {
        sentences.push(idle_sentence(idle, &causes, scene));
    }
    sentences.append(&mut others);
    sentences.extend(idle_unknown.then(|| "How long the GPU was idle is unknown without NVML.".to_owned()));
    if lost_track >= SERIOUS {
        sentences.push(format!("For {} of the time no cause was found.", units::percent(lost_track, 1.0)));
    }
    match (all_well, lost.is_too_much()) {
        (true, true) => sentences.push("Too much was lost to say whether anything holds the GPU back.".to_owned()),
        (true, false) => sentences.extend(nothing_serious(report, idle)),
        (false, _) => {}
    }
    let gpu = report.gpus.iter().filter(|gpu| gpu.launches > 0).find_map(|gpu| gpu.nvml_index);
    let rate = gpu.and_then(|gpu| scene.rate_in_steady(gpu));
    sentences.extend(rate.map(|rate| format!("nvidia-smi shows {rate:.0} %.")));
    let start = steady_from.saturating_sub(report.from_ns);
    sentences.extend((start > report.wall_ns / 20).then(|| format!("Startup took {}.", units::time(start))));
    urgent(&report.findings) + &lost.sentence() + &sentences.join(" ")
}

/// `The GPU was idle at least 61 % of the time: the data workers cannot keep up.` A cause gets its share where there are
/// several, or where it explains only a part.
fn idle_sentence(idle: f64, causes: &[(f64, bool, String)], scene: &Scene<'_>) -> String {
    let least = at_least(idle);
    let idle_words = if scene.has_neighbours {
        // The GPU may have been busy with the other job meanwhile.
        format!("The GPU had no work from this job at least {least} of the time")
    } else {
        format!("The GPU was idle at least {least} of the time")
    };
    match causes {
        [] => format!("{idle_words}."),
        [(share, _, clause)] if *share >= idle * MOSTLY => format!("{idle_words}: {clause}."),
        _ => {
            let each = |(share, is_at_most, clause): &(f64, bool, String)| {
                let bound = if *is_at_most { "up to " } else { "" };
                format!("{bound}{} because {clause}", units::percent(*share, 1.0))
            };
            format!("{idle_words}: {}.", causes.iter().map(each).collect::<Vec<String>>().join(", "))
        }
    }
}

/// A lower bound in whole percent, rounded down: it must stay one.
fn at_least(share: f64) -> String {
    format!("{:.0} %", (share * 100.0 + 1e-6).floor())
}

/// A finding about the GPU itself: its clocks, or another process on it.
fn of_the_gpu(found: &Finding) -> String {
    let (share, name) = (units::percent(found.share, 1.0), found.root_cause.name.as_deref().unwrap_or_default());
    if found.kind == Kind::GpuShared.name() {
        format!("Another process, {name}, used the GPU up to {share} of the time while the job waited for it.")
    } else if found.kind == Kind::GpuThrottled.name() {
        format!("Lowered clocks of {name} cost {share} of the time.")
    } else {
        format!("{} ({share} of the time).", capital(&found.title))
    }
}

/// What ended the job or will, worst first: it opens the verdict. Each sentence ends with a space.
pub(crate) fn urgent(findings: &[Finding]) -> String {
    let critical = findings.iter().filter(|found| found.severity == Severity::Critical);
    critical.map(|found| format!("{} ", sentence(&capital(&found.title)))).collect()
}

/// Serious findings that cost no time: they end the verdict. Each sentence begins with a space.
pub(crate) fn serious_without_time(findings: &[Finding]) -> String {
    let serious = findings.iter().filter(|found| found.severity == Severity::High && found.lost_ns == 0);
    serious.map(|found| format!(" {}", sentence(&capital(&found.title)))).collect()
}

/// The good news, where the GPU is known to be the limit.
fn busy(report: &Report) -> Option<String> {
    let bound = report.findings.iter().find(|found| found.kind == Kind::GpuBound.name())?;
    Some(format!("Nothing is holding the GPU back: {}", sentence(&bound.root_cause.detail)))
}

fn nothing_serious(report: &Report, idle: f64) -> Option<String> {
    if report.findings.iter().any(|found| found.kind == Kind::GpuBound.name()) {
        return None;
    }
    let most = report.gpu_idle_max_ns.unwrap_or(report.wall_ns) as f64 / report.wall_ns.max(1) as f64;
    let unknown = " How busy the GPU was otherwise cannot be seen from the host: the job rarely waits for it.";
    Some(format!("No cause costs 3 % or more.{}", if most > idle + 0.25 { unknown } else { "" }))
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
        format!("Nothing was traced in this time range.{unread}")
    } else {
        "No GPU work was seen: no traced process launched a kernel in this time range.".to_owned()
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

/// Checks that passed, with figures: `locks: no time lost`.
pub(crate) fn healthy(scene: &Scene<'_>, stories: &[Story], ledgers: &Ledgers, counts: &Counts) -> Vec<String> {
    if scene.steady_ns == 0 {
        return Vec::new();
    }
    let lost = |kinds: &[Kind]| -> u64 {
        stories.iter().filter(|story| kinds.contains(&story.kind)).map(|story| story.ns / scene.gpus).sum()
    };
    let mut list = Vec::new();
    let mut well = |what: &str, kinds: &[Kind], more: String| {
        let lost_ns = lost(kinds);
        if scene.share(lost_ns) < 0.01 {
            list.push(format!("{what}: {}{more}", if lost_ns == 0 { "no time lost" } else { "less than 1 % lost" }));
        }
    };
    let launcher =
        counts.launchers.iter().max_by_key(|(_, launches)| **launches).map(|(index, _)| scene.thread(*index));
    let ledger = launcher.and_then(|thread| ledgers.get(&(thread.pid, thread.tid)));
    let ready = ledger.map_or(0, |ledger| ledger.of(State::Ready));
    // A thread is always ready for some microseconds before it runs.
    let ready = (scene.share(ready) >= 0.001)
        .then(|| format!(" (the launching thread was ready without a CPU for {})", units::time(ready)));
    well("CPU", &[Kind::CpuContention, Kind::CpuThrottled], ready.unwrap_or_default());
    well("input", &[Kind::InputStarved, Kind::ProcessChurn], String::new());
    well("disk and network", &[Kind::DiskIo, Kind::NetworkIo], String::new());
    well("locks", &[Kind::LockContention], String::new());
    let some = |n: u64, text: String| if n > 0 { format!(" ({text})") } else { String::new() };
    let steady = scene.steady;
    let syncs = some(steady.syncs, format!("{} waits for the GPU a second", scene.per_second(steady.syncs)));
    well("synchronization", &[Kind::SyncBound], syncs);
    well("copies", &[Kind::CopyBound], some(steady.copy_bytes, units::bytes(steady.copy_bytes)));
    let allocs = format!("{} calls, {}", units::count(steady.allocs), units::time(steady.alloc_ns));
    well("GPU memory calls", &[Kind::AllocChurn], some(steady.allocs, allocs));
    list
}

/// The machine's load average, over all its programs.
fn load(facts: &Facts) -> Option<String> {
    let loads: Vec<f64> = facts.system.iter().filter_map(|sample| sample.load1).collect();
    let most = loads.iter().copied().reduce(f64::max)?;
    let mean = loads.iter().sum::<f64>() / loads.len() as f64;
    Some(format!("load average (1 min): mean {mean:.1}, peak {most:.1}"))
}

/// Swap in use, and bytes swapped in and out.
fn swap(facts: &Facts) -> String {
    let Some(used) = facts.system.iter().filter_map(|sample| sample.swap_used).max() else { return String::new() };
    let sum = |of: fn(&SystemSample) -> Option<u64>| facts.system.iter().filter_map(of).fold(0, u64::saturating_add);
    let (brought_in, put_out) = (sum(|sample| sample.swap_in), sum(|sample| sample.swap_out));
    let moved = match (brought_in, put_out) {
        (0, 0) => String::new(),
        (i, o) => format!(", {} swapped in, {} swapped out", units::bytes(i), units::bytes(o)),
    };
    match (used, moved.is_empty()) {
        (0, true) => "; no swap used".to_owned(),
        _ => format!("; swap: peak {}{moved}", units::bytes(used)),
    }
}

/// The machine, and the basis of shares and bounds.
pub(crate) fn context(scene: &Scene<'_>, explainer: &Explainer) -> Vec<String> {
    let facts = scene.facts;
    let mut list = Vec::new();
    if scene.steady_ns > 0 {
        let (from, to) = scene.steady_span;
        let (length, from, to) = (units::time(to - from), units::time(from), units::time(to));
        list.push(format!("steady state: {length}, from {from} to {to}; all shares are of this time"));
    }
    let idle = scene.idle_words().map(|idle| format!(", {idle} on average")).unwrap_or_default();
    if facts.cores > 0 {
        list.push(format!("{} cores{idle}", facts.cores));
    }
    list.extend(load(facts));
    let available = facts.system.iter().filter_map(|sample| sample.memory_available).min();
    let total = facts.system.iter().find_map(|sample| sample.memory_total);
    if let (Some(available), Some(total)) = (available, total) {
        let swap = swap(facts);
        list.push(format!("memory: at least {} of {} free{swap}", units::bytes(available), units::bytes(total)));
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
        list.push("no NVML: GPU idle time is known only from the host's calls".to_owned());
    }
    list
}
