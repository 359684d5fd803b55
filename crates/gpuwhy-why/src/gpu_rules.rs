// SPDX-License-Identifier: Apache-2.0
//! Findings about the GPU itself: errors, lowered clocks, other processes on it, and the good news that it is the limit.

use crate::kind::Kind;
use crate::report::GpuReport;
use crate::scene::Scene;
use gpuwhy_model::host::task_name;
use gpuwhy_model::{Confidence, Finding, Fix, Link, RootCause, Severity, units};
use std::collections::{BTreeMap, BTreeSet};

/// NVML's throttle reasons that mean trouble: hardware slowdown, thermal limits, the power brake. The plain power cap (0x4)
/// is normal for a busy GPU.
const TROUBLE: u64 = 0x8 | 0x20 | 0x40 | 0x80;
/// The driver's per-process figures may be this old, ns.
const BEHIND_NS: u64 = 1_500_000_000;
/// A GPU that is the limit is idle at most this share of the time.
const BUSY_ENOUGH: f64 = 0.15;

fn finding(kind: Kind, severity: Severity, title: String, root_cause: RootCause) -> Finding {
    let confidence_reason = "reported by the driver".to_owned();
    Finding { root_cause, confidence_reason, ..Finding::new(kind.name(), severity, title) }
}

fn gpu_link(gpu: u32, what: String, state: &str, ns: u64, evidence: &str) -> Link {
    let (layer, who) = ("gpu".to_owned(), format!("GPU {gpu}"));
    Link { layer, who, what, line: None, state: state.to_owned(), ns, evidence: Some(evidence.to_owned()) }
}

/// Xid errors.
pub(crate) fn faults(scene: &Scene<'_>) -> Vec<Finding> {
    let mut by_gpu: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
    for error in &scene.facts.gpu_errors {
        by_gpu.entry(error.gpu).or_default().insert(error.xid);
    }
    let one = |(gpu, xids): (u32, BTreeSet<u64>)| {
        let list: Vec<String> = xids.iter().map(u64::to_string).collect();
        let detail = format!("the driver reported Xid {} for GPU {gpu}", list.join(", "));
        let root = RootCause {
            kind: Kind::GpuFault.name().into(),
            name: Some(format!("GPU {gpu}")),
            detail,
            ..RootCause::default()
        };
        let mut found = finding(
            Kind::GpuFault,
            Severity::Critical,
            format!("GPU {gpu} reported an error: Xid {}", list.join(", ")),
            root,
        );
        let evidence = "SELECT * FROM gpu_errors";
        found.chain.push(gpu_link(gpu, format!("reported Xid {}", list.join(", ")), "error", 0, evidence));
        found.fixes.push(Fix { text: xid_advice(&xids).to_owned(), ..Fix::default() });
        found
    };
    by_gpu.into_iter().map(one).collect()
}

fn xid_advice(xids: &BTreeSet<u64>) -> &'static str {
    let any = |list: &[u64]| list.iter().any(|xid| xids.contains(xid));
    if any(&[13, 31, 43, 45]) {
        "caused by the program: run it under compute-sanitizer to find the faulty access"
    } else if any(&[48, 63, 64, 74, 79, 92, 94, 95]) {
        "caused by the hardware: drain the machine, reset the GPU, and replace it if the error comes back"
    } else {
        "look up the number in NVIDIA's list of Xid errors; dmesg has the driver's message"
    }
}

/// Clocks lowered by heat or power trouble.
pub(crate) fn throttled(scene: &Scene<'_>) -> Vec<Finding> {
    let mut by_gpu: BTreeMap<u32, Vec<&gpuwhy_model::sample::GpuSample>> = BTreeMap::new();
    // Samples of memory alone have no clocks.
    for sample in scene.facts.gpu_seconds.iter().filter(|sample| sample.sm_mhz.is_some()) {
        by_gpu.entry(sample.gpu).or_default().push(sample);
    }
    by_gpu.into_iter().filter_map(|(gpu, samples)| throttled_one(gpu, &samples, scene)).collect()
}

fn throttled_one(gpu: u32, samples: &[&gpuwhy_model::sample::GpuSample], scene: &Scene<'_>) -> Option<Finding> {
    let best = samples.iter().filter_map(|sample| sample.sm_mhz).max()?;
    let held: Vec<_> = samples.iter().filter(|sample| sample.throttle_reasons.unwrap_or(0) & TROUBLE != 0).collect();
    let per_sample = scene.facts.wall_ns() / samples.len().max(1) as u64;
    let slower = |mhz: u32| per_sample as f64 * (1.0 - f64::from(mhz) / f64::from(best.max(1)));
    let lost = held.iter().filter_map(|sample| sample.sm_mhz).map(slower).sum::<f64>() as u64;
    let severity = Severity::of_share(scene.share(lost));
    if held.is_empty() || severity < Severity::Low {
        return None;
    }
    let hottest = held.iter().filter_map(|sample| sample.temperature_c).max();
    let heat = hottest.map(|celsius| format!(", up to {celsius} °C")).unwrap_or_default();
    let title = format!("GPU {gpu}'s clocks were lowered");
    let detail = format!(
        "thermal or power trouble held GPU {gpu} below {best} MHz in {} of {} samples{heat}",
        held.len(),
        samples.len()
    );
    let root = RootCause {
        kind: Kind::GpuThrottled.name().into(),
        name: Some(format!("GPU {gpu}")),
        detail,
        ..RootCause::default()
    };
    let mut found = finding(Kind::GpuThrottled, severity, title, root);
    found.lost_ns = lost;
    found.share = scene.share(lost);
    let evidence =
        "SELECT timestamp, sm_mhz, temperature_c, throttle_reasons FROM gpu_seconds WHERE throttle_reasons & 232";
    found.chain.push(gpu_link(gpu, "ran with lowered clocks".into(), "throttled", lost, evidence));
    found.fixes.push(Fix {
        text: "check cooling, power supply and power limit (nvidia-smi -q -d PERFORMANCE)".into(),
        saves_ns: lost,
        saves_bytes: 0,
    });
    found.confidence = Confidence::Medium;
    found.confidence_reason = "the cost is estimated from the clocks, sampled once a second".into();
    Some(found)
}

/// The GPU is the limit: nothing else was found, and it is known to be busy.
pub(crate) fn bound(scene: &Scene<'_>, gpus: &[GpuReport], worst: Severity) -> Option<Finding> {
    let gpu = gpus.iter().filter(|gpu| gpu.launches > 0).max_by_key(|gpu| gpu.launches)?;
    if worst >= Severity::Medium || scene.steady_ns == 0 {
        return None;
    }
    let steady_idle = scene.share(scene.steady.idle_ns / scene.gpus);
    let by_nvml = scene.busy_in_steady(gpu.device);
    let waited = scene.share(scene.steady.waited_ns / scene.gpus).min(1.0);
    let (busy, basis) = match by_nvml {
        Some(busy) => (busy, "NVML samples"),
        None => (waited, "the time the host waited for it"),
    };
    if busy < 1.0 - BUSY_ENOUGH || steady_idle > BUSY_ENOUGH {
        return None;
    }
    let detail = format!("it was busy {} of the time (by {basis})", units::percent(busy, 1.0));
    let title = "The GPU is the limit".to_owned();
    let root = RootCause {
        kind: Kind::GpuBound.name().into(),
        name: Some(format!("GPU {}", gpu.device)),
        detail,
        ..RootCause::default()
    };
    let mut found = finding(Kind::GpuBound, Severity::Info, title, root);
    let evidence = "SELECT timestamp, percent FROM gpu_busy";
    found.chain.push(gpu_link(gpu.device, "was busy".into(), "busy", (busy * scene.steady_ns as f64) as u64, evidence));
    let text = "make the kernels faster: torch.compile, lower precision, larger batches; `gpuwhy profile` on a profiler trace shows which";
    found.fixes.push(Fix { text: text.into(), ..Fix::default() });
    found.confidence_reason = format!("measured by {basis}");
    Some(found)
}

/// Waits for the GPU behind a collective. Whether the GPU worked or waited for other ranks, one rank cannot know.
pub(crate) fn collectives(scene: &Scene<'_>, launcher: Option<u32>) -> Option<Finding> {
    let waited = scene.steady.exchanged_ns / scene.gpus;
    if scene.share(waited) < 0.03 {
        return None;
    }
    let line = scene.line(&scene.steady.exchange_stacks);
    let detail =
        format!("{}: the GPU was busy or waited for other ranks; one rank cannot know which", scene.of_steady(waited));
    let root =
        RootCause { kind: Kind::CollectiveWait.name().into(), pid: launcher, detail, line, ..RootCause::default() };
    let title = "Waiting behind collectives (NCCL)".to_owned();
    let mut found = finding(Kind::CollectiveWait, Severity::Low, title, root);
    found.pid = launcher;
    let evidence = "SELECT op, SUM(weight), SUM(duration_ns * weight) FROM events WHERE class IN ('collective', 'sync') GROUP BY op";
    found.chain.push(gpu_link(0, "busy, or waiting for other ranks".into(), "collective", waited, evidence));
    let text = "trace the other ranks too and compare: the others wait for the rank that waits least";
    found.fixes.push(Fix { text: text.into(), ..Fix::default() });
    found.confidence = Confidence::Low;
    found.confidence_reason =
        "measured: a collective was queued and waited for; not measured: what the GPU did meanwhile".into();
    Some(found)
}

/// Other processes on the GPU while the job waited for it. `neighbour`: the GPU shared longest with another job of the run,
/// for how long (ns), and with which process.
pub(crate) fn shared(
    scene: &Scene<'_>,
    launchers: &[(u32, u64)],
    shared_ns: u64,
    neighbour: Option<(u32, u64, u32)>,
) -> Option<Finding> {
    let launcher = launchers.first().map(|(pid, _)| *pid);
    let known = scene.facts.gpu_processes.iter().any(|process| process.sm_percent.is_some());
    let by_host = || {
        let other = launchers.get(1).map(|(pid, _)| *pid);
        let by_job = neighbour.and_then(|(gpu, ns, pid)| shared_by_host(scene, launcher?, (gpu, ns, pid)));
        by_job.or_else(|| shared_by_host(scene, launcher?, (0, shared_ns / scene.gpus, other?)))
    };
    shared_by_nvml(scene, launcher).or_else(|| by_host().filter(|_| !known))
}

/// Without the driver's figures: another traced process had work at the same time. Its cost is unknown.
fn shared_by_host(scene: &Scene<'_>, launcher: u32, (gpu, shared_ns, other): (u32, u64, u32)) -> Option<Finding> {
    let share = scene.share(shared_ns);
    if share < 0.1 {
        return None;
    }
    let name = scene.name(other);
    let at_once = units::percent(share.min(1.0), 1.0);
    let detail = format!(
        "{name} {other} had work on the same GPU {at_once} of the time; how they shared it is unknown without NVML"
    );
    let root = RootCause {
        kind: Kind::GpuShared.name().into(),
        pid: Some(other),
        name: Some(name.clone()),
        detail,
        line: None,
    };
    let who = if scene.facts.is_traced(other) { "Another process of the job" } else { "Another job" };
    let title = format!("{who} used the GPU at the same time");
    let mut found = finding(Kind::GpuShared, Severity::Medium, title, root);
    found.pid = Some(launcher);
    let evidence = "SELECT pid, op, SUM(weight) FROM events WHERE class = 'launch' GROUP BY 1, 2";
    found.chain.push(gpu_link(gpu, "had work from several processes".into(), "shared", shared_ns, evidence));
    found.fixes.push(Fix {
        text: format!("run {name} on another GPU or at another time (CUDA_VISIBLE_DEVICES)"),
        ..Fix::default()
    });
    found.confidence = Confidence::Low;
    found.confidence_reason = "measured: both had work queued at the same time; not measured: what it cost".into();
    Some(found)
}

fn shared_by_nvml(scene: &Scene<'_>, launcher: Option<u32>) -> Option<Finding> {
    let (from, to) = scene.steady_span;
    // The driver's figures are about the past second: the first ones may be about the time before.
    let from = from.saturating_add(BEHIND_NS);
    let mut others: BTreeMap<u32, (f64, u32)> = BTreeMap::new();
    let mut samples = BTreeSet::new();
    let of_launcher = scene.facts.gpu_processes.iter().filter(|process| Some(process.pid) == launcher);
    let own: BTreeSet<u32> = of_launcher.map(|process| process.gpu).collect();
    let inside = scene.facts.gpu_processes.iter().filter(|process| process.at_ns > from && process.at_ns <= to);
    // Processes on another GPU take nothing away.
    for process in inside.filter(|process| own.is_empty() || own.contains(&process.gpu)) {
        samples.insert(process.at_ns / 100_000_000);
        if Some(process.pid) != launcher {
            let (sum, _) = others.entry(process.pid).or_insert((0.0, process.gpu));
            *sum += f64::from(process.sm_percent.unwrap_or(0)) / 100.0;
        }
    }
    let samples = samples.len().max(1) as f64;
    let busy: f64 = others.values().map(|(sum, _)| sum / samples).sum();
    let used = (busy.min(1.0) * scene.steady_ns as f64) as u64;
    // Their use costs the job only while it waited for the GPU.
    let lost = used.min(scene.steady.waited_ns / scene.gpus);
    let severity = Severity::of_share(scene.share(lost));
    let (pid, gpu) = others.iter().max_by(|a, b| a.1.0.total_cmp(&b.1.0)).map(|(pid, (_, gpu))| (*pid, *gpu))?;
    if severity < Severity::Low {
        return None;
    }
    let by_nvml =
        scene.facts.gpu_processes.iter().find(|process| process.pid == pid).map(|process| task_name(&process.name));
    let name = by_nvml.filter(|name| !name.is_empty()).unwrap_or_else(|| scene.name(pid));
    let detail = format!("{name} used GPU {gpu} {} of the time while the job waited for it", units::percent(busy, 1.0));
    let root =
        RootCause { kind: Kind::GpuShared.name().into(), pid: Some(pid), name: Some(name.clone()), detail, line: None };
    let who = if scene.facts.others.contains_key(&pid) { "Another job" } else { "Another process" };
    let title = format!("{who} used GPU {gpu}");
    let mut found = finding(Kind::GpuShared, severity, title, root);
    (found.lost_ns, found.pid) = (lost, launcher);
    found.share = scene.share(lost);
    let evidence = "SELECT pid, AVG(sm_percent) FROM gpu_processes GROUP BY pid ORDER BY 2 DESC";
    found.chain.push(gpu_link(gpu, "ran kernels of other processes".into(), "shared", used, evidence));
    found.fixes.push(Fix {
        text: format!("run {name} on another GPU or at another time (CUDA_VISIBLE_DEVICES)"),
        saves_ns: lost,
        saves_bytes: 0,
    });
    found.confidence = Confidence::Medium;
    found.confidence_reason =
        "an upper bound: NVML measures what the other processes used; it cost the job at most that".into();
    Some(found)
}
