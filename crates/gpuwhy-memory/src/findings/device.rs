// SPDX-License-Identifier: Apache-2.0
//! Findings about a whole GPU: hidden memory, and too little left.

use super::memory_link;
use crate::fixes;
use crate::report::{Gap, OtherProcess, Report, Trend};
use gpuwhy_model::{Confidence, Finding, Link, RootCause, Severity, units};

/// Hidden memory is reported from this share of the device on.
const HIDDEN_PART: f64 = 0.1;
/// A device this full is at risk.
const FULL: f64 = 0.92;

pub(super) fn hidden(gap: &Gap) -> Option<Finding> {
    let others: u64 = gap.others.iter().map(|other| other.bytes).sum();
    let total = gap.memory_total.filter(|total| *total > 0)?;
    let most = gap.hidden.max(others);
    if (most as f64) < HIDDEN_PART * total as f64 && gap.trend != Trend::Drifting {
        return None;
    }
    let trend = trend(gap);
    let by_others = others > gap.hidden;
    let gpu = gap.gpu;
    let title = if by_others {
        format!("Other processes hold memory of GPU {gpu}")
    } else {
        format!("Hidden memory on GPU {gpu}: used, but not by PyTorch ({trend})")
    };
    let severity = if gap.trend == Trend::Drifting { Severity::Medium } else { Severity::Low };
    Some(Finding {
        lost_bytes: most,
        chain: chain(gap, total),
        root_cause: cause(gap, by_others),
        effect: vec![format!("this memory is not available to tensors ({trend})")],
        fixes: fixes::hidden(gap),
        confidence: Confidence::Medium,
        confidence_reason: "memory used on the device (NVML, once a second) minus every allocation that was seen"
            .into(),
        ..Finding::new("hidden_memory", severity, title)
    })
}

fn trend(gap: &Gap) -> String {
    match gap.trend {
        Trend::Steady => "steady".to_owned(),
        Trend::Transient => format!("up to {} at times", units::bytes(gap.hidden_most)),
        Trend::Drifting => format!("drifting by {} a second", units::bytes(gap.drift_per_second.abs() as u64)),
    }
}

fn name(other: &OtherProcess) -> String {
    format!("{} {}", other.name, other.pid)
}

fn chain(gap: &Gap, total: u64) -> Vec<Link> {
    let whole = memory_link(
        format!("GPU {}", gap.gpu),
        format!("has {} of {} in use", units::bytes(gap.used), units::bytes(total)),
        None,
        format!("{} reserved by PyTorch, {} outside it", units::bytes(gap.reserved), units::bytes(gap.direct)),
        Some(format!("SELECT timestamp, memory_used FROM gpu_seconds WHERE gpu = {}", gap.gpu)),
    );
    let others = gap.others.iter().take(3).map(|other| {
        memory_link(
            name(other),
            format!("holds {}", units::bytes(other.bytes)),
            None,
            "not part of this job".into(),
            None,
        )
    });
    std::iter::once(whole).chain(others).collect()
}

fn cause(gap: &Gap, by_others: bool) -> RootCause {
    if let Some(other) = gap.others.first().filter(|_| by_others) {
        return RootCause {
            kind: "other_process".into(),
            pid: Some(other.pid),
            name: Some(name(other)),
            detail: format!("{} uses the same GPU and is not part of this job", name(other)),
            line: None,
        };
    }
    let detail = "CUDA contexts, NCCL buffers and library workspaces do not come from PyTorch's allocator".to_owned();
    RootCause { kind: "outside_allocator".into(), detail, ..RootCause::default() }
}

pub(super) fn risk(gap: &Gap, report: &Report) -> Option<Finding> {
    let total = gap.memory_total.filter(|total| *total > 0)?;
    if report.oom_count > 0 || (gap.peak_used as f64) < FULL * total as f64 {
        return None;
    }
    let left = units::bytes(total.saturating_sub(gap.peak_used));
    let full = format!("was {} full", units::percent(gap.peak_used as f64, total as f64));
    let state = format!("peak {}", units::bytes(gap.peak_used));
    let title = format!("GPU {} came within {left} of running out of memory ({})", gap.gpu, units::bytes(total));
    Some(Finding {
        chain: vec![memory_link(format!("GPU {}", gap.gpu), full, None, state, None)],
        root_cause: RootCause {
            kind: "little_room".into(),
            detail: format!("only {left} is left for a larger batch, other tensor sizes or a leak"),
            ..RootCause::default()
        },
        fixes: fixes::risk(total),
        confidence_reason: "the device's own figure (NVML)".into(),
        ..Finding::new("oom_risk", Severity::Medium, title)
    })
}
