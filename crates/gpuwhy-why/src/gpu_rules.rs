// SPDX-License-Identifier: Apache-2.0
//! Findings about the GPU itself: errors, clocks held down, other processes on it, and the good news.

use crate::kind::Kind;
use crate::report::GpuReport;
use crate::scene::Scene;
use gpuwhy_model::{Confidence, Finding, Fix, Link, RootCause, Severity, units};
use std::collections::{BTreeMap, BTreeSet};

/// NVML's reasons that mean trouble: hardware slowdown, thermal limits, the power brake. The plain power cap (0x4) is
/// how a GPU at work looks.
const TROUBLE: u64 = 0x8 | 0x20 | 0x40 | 0x80;
/// What is idle of a GPU that is the limit, at most.
const BUSY_ENOUGH: f64 = 0.15;

fn finding(kind: Kind, severity: Severity, title: String, root: RootCause) -> Finding {
    Finding {
        kind: kind.name().to_owned(),
        severity,
        title,
        lost_ns: 0,
        lost_bytes: 0,
        share: 0.0,
        pid: None,
        tid: None,
        chain: Vec::new(),
        root_cause: root,
        effect: Vec::new(),
        fixes: Vec::new(),
        confidence: Confidence::High,
        confidence_reason: "the driver says so".to_owned(),
    }
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
        let detail = format!("the driver reported Xid {} of GPU {gpu}", list.join(", "));
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
        "these come from the program: run it under compute-sanitizer to find the faulty access"
    } else if any(&[48, 63, 64, 74, 79, 92, 94, 95]) {
        "these come from the hardware: drain the machine, reset the GPU, and replace it if they come back"
    } else {
        "look up the number in NVIDIA's list of Xid errors; dmesg has the driver's own words"
    }
}

/// Clocks held down by heat or power trouble.
pub(crate) fn throttled(scene: &Scene<'_>) -> Vec<Finding> {
    let mut by_gpu: BTreeMap<u32, Vec<&gpuwhy_model::sample::GpuSample>> = BTreeMap::new();
    for sample in &scene.facts.gpu_seconds {
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
    let severity = severity(scene.share(lost));
    if held.is_empty() || severity < Severity::Low {
        return None;
    }
    let hottest = held.iter().filter_map(|sample| sample.temperature_c).max();
    let heat = hottest.map(|celsius| format!(", up to {celsius} °C")).unwrap_or_default();
    let title = format!("GPU {gpu}'s clocks were held down in {} of {} samples{heat}", held.len(), samples.len());
    let detail = format!("thermal or power trouble slowed GPU {gpu} below {best} MHz");
    let root = RootCause {
        kind: Kind::GpuThrottled.name().into(),
        name: Some(format!("GPU {gpu}")),
        detail,
        ..RootCause::default()
    };
    let mut found = finding(Kind::GpuThrottled, severity, title, root);
    found.lost_ns = lost;
    found.share = lost as f64 / scene.facts.wall_ns().max(1) as f64;
    let evidence =
        "SELECT timestamp, sm_mhz, temperature_c, throttle_reasons FROM gpu_seconds WHERE throttle_reasons & 232";
    found.chain.push(gpu_link(gpu, "ran with lower clocks".into(), "throttled", lost, evidence));
    found.fixes.push(Fix {
        text: "check cooling, power supply and power limit (nvidia-smi -q -d PERFORMANCE)".into(),
        saves_ns: lost,
        saves_bytes: 0,
    });
    found.confidence = Confidence::Medium;
    found.confidence_reason = "the time is estimated from the clocks, which are looked at once a second".into();
    Some(found)
}

/// How bad a share of the steady state is.
pub(crate) fn severity(share: f64) -> Severity {
    match share {
        share if share >= 0.10 => Severity::High,
        share if share >= 0.03 => Severity::Medium,
        share if share >= 0.01 => Severity::Low,
        _ => Severity::Info,
    }
}

/// The GPU is the limit, if that can be said: nothing else was found, and it is known to be busy.
pub(crate) fn bound(scene: &Scene<'_>, gpus: &[GpuReport], worst: Severity) -> Option<Finding> {
    let gpu = gpus.iter().filter(|gpu| gpu.launches > 0).max_by_key(|gpu| gpu.launches)?;
    if worst >= Severity::Medium || scene.steady_ns == 0 {
        return None;
    }
    let steady_idle = scene.share(scene.steady.idle_ns / scene.gpus);
    let by_nvml = scene.busy_in_steady(gpu.device);
    let waited = scene.share(scene.steady.waited_ns / scene.gpus);
    let (busy, basis) = match by_nvml {
        Some(busy) => (busy, "NVML's samples"),
        None => (waited, "the time the host waited for it"),
    };
    if busy < 1.0 - BUSY_ENOUGH || steady_idle > BUSY_ENOUGH {
        return None;
    }
    let detail = format!("the GPU worked {} of the time, by {basis}", units::percent(busy, 1.0));
    let title = format!("the GPU is the limit: busy {} of the time", units::percent(busy, 1.0));
    let root = RootCause {
        kind: Kind::GpuBound.name().into(),
        name: Some(format!("GPU {}", gpu.device)),
        detail,
        ..RootCause::default()
    };
    let mut found = finding(Kind::GpuBound, Severity::Info, title, root);
    let evidence = "SELECT timestamp, percent FROM gpu_busy";
    found.chain.push(gpu_link(gpu.device, "had work".into(), "busy", (busy * scene.steady_ns as f64) as u64, evidence));
    let text = "faster kernels are what is left: torch.compile, lower precision, larger batches; `gpuwhy profile` on a trace shows which";
    found.fixes.push(Fix { text: text.into(), ..Fix::default() });
    found.confidence_reason = format!("measured by {basis}");
    Some(found)
}

/// Other processes on the GPU, while the job waited for it.
pub(crate) fn shared(scene: &Scene<'_>, gpus: &[GpuReport]) -> Vec<Finding> {
    let _ = (scene, gpus);
    Vec::new()
}
