// SPDX-License-Identifier: Apache-2.0
//! The first thing people read: the verdict, what is well, and what the machine was like.

use crate::conclude::Ledgers;
use crate::explain::{Counts, Explainer};
use crate::kind::Kind;
use crate::report::Report;
use crate::scene::Scene;
use crate::state::State;
use crate::story::Story;
use gpuwhy_model::{Finding, Severity, units};

/// Causes named in the verdict.
const NAMED: usize = 3;

/// The verdict: what nvidia-smi would say, what is true, and why.
pub(crate) fn verdict(report: &Report, scene: &Scene<'_>) -> String {
    let Some(idle) = report.gpu_idle_min_ns else {
        return no_work(report);
    };
    let wall = report.wall_ns as f64;
    let rate = report.gpus.iter().filter(|gpu| gpu.launches > 0).find_map(|gpu| gpu.rate_percent);
    let share = units::percent(idle as f64, wall);
    let most = report.gpu_idle_max_ns.unwrap_or(report.wall_ns);
    let mut text = match rate {
        Some(rate) if idle as f64 > 0.1 * wall => {
            format!("nvidia-smi shows {rate:.0} %, but the GPU had no work at least {share} of the time.")
        }
        Some(rate) => format!("nvidia-smi shows {rate:.0} %; the GPU had no work at least {share} of the time."),
        None => format!("The GPU had no work at least {share} of the time"),
    };
    if rate.is_none() {
        text.push_str(&format!(", at most {}.", units::percent(most as f64, wall)));
    }
    let serious: Vec<&Finding> = report.findings.iter().filter(|found| found.severity >= Severity::Medium).collect();
    if let Some(fault) = serious.iter().find(|found| found.severity == Severity::Critical) {
        return format!("{} {text}", sentence(&fault.title));
    }
    for found in serious.iter().filter(|found| found.lost_ns > 0).take(NAMED) {
        let lost = units::percent(found.lost_ns as f64, wall);
        text.push_str(&format!(" {lost} because {}", sentence(&found.root_cause.detail)));
    }
    if serious.is_empty() {
        let bound = report.findings.iter().find(|found| found.kind == Kind::GpuBound.name());
        match bound {
            Some(bound) => text.push_str(&format!(" Nothing holds it up: {}", sentence(&bound.root_cause.detail))),
            None if most > idle + report.wall_ns / 4 => text.push_str(
                " What it did in the rest cannot be told from the host's side: the job rarely waits for the GPU, and there are no NVML samples.",
            ),
            None => text.push_str(&start_or_nothing(report, scene)),
        }
    }
    text
}

fn start_or_nothing(report: &Report, scene: &Scene<'_>) -> String {
    match report.findings.iter().find(|found| found.kind == Kind::ColdStart.name()) {
        Some(start) => format!(
            " {} of it before the steady work began. No cause costs 3 % or more after that.",
            units::time(start.lost_ns)
        ),
        None if scene.steady_ns > 0 => " No cause costs 3 % or more.".to_owned(),
        None => String::new(),
    }
}

fn sentence(text: &str) -> String {
    let text = text.trim_end_matches('.');
    format!("{text}.")
}

fn no_work(report: &Report) -> String {
    if report.processes.is_empty() {
        "Nothing was traced in this span.".to_owned()
    } else {
        "No GPU work was seen in this span: no kernel was launched by a traced process.".to_owned()
    }
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
        let share = units::percent(ledger.of(State::Ready) as f64, ledger.wall_ns as f64);
        format!(" (the launching thread was ready without a CPU {share} of its time)")
    });
    well("CPU", &[Kind::CpuContention, Kind::CpuThrottled], ready);
    well("input", &[Kind::InputStarved, Kind::ProcessChurn], String::new());
    well("disk and network", &[Kind::DiskIo, Kind::NetworkIo], String::new());
    well("locks", &[Kind::LockContention], String::new());
    let syncs = format!(" ({} waits for the GPU a second)", rate(scene.steady.syncs, scene.steady_ns));
    well("synchronisation", &[Kind::SyncBound], syncs);
    well("copies", &[Kind::CopyBound], format!(" ({})", units::bytes(scene.steady.copy_bytes)));
    let allocs = format!(" ({} calls, {})", units::count(scene.steady.allocs), units::time(scene.steady.alloc_ns));
    well("device memory calls", &[Kind::AllocChurn], allocs);
    list
}

fn rate(count: u64, ns: u64) -> String {
    units::count((count as f64 * 1e9 / ns.max(1) as f64).round() as u64)
}

/// The machine, and where the bounds come from.
pub(crate) fn context(scene: &Scene<'_>, explainer: &Explainer) -> Vec<String> {
    let facts = scene.facts;
    let mut list = Vec::new();
    let idle = scene.idle_cores.map(|idle| format!(", {idle:.1} idle on average")).unwrap_or_default();
    if facts.cores > 0 {
        list.push(format!("{} cores{idle}", facts.cores));
    }
    let available = facts.system.iter().filter_map(|sample| sample.memory_available).min();
    let total = facts.system.iter().find_map(|sample| sample.memory_total);
    if let (Some(available), Some(total)) = (available, total) {
        list.push(format!("memory: {} of {} were free at least", units::bytes(available), units::bytes(total)));
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
