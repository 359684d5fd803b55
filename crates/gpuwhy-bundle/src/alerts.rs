// SPDX-License-Identifier: Apache-2.0
//! `alerts.json`: what an alert should have said, and when.

use gpuwhy_memory::Report;
use gpuwhy_memory::report::Leak;
use gpuwhy_model::{Finding, Severity};
use serde::Serialize;

/// The file's name and version.
const SCHEMA: &str = "gpuwhy.memory-alerts/1";

/// The file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Alerts {
    /// `gpuwhy.memory-alerts/1`.
    pub schema: &'static str,
    /// The run file.
    pub run: String,
    /// The start of the run on `CLOCK_MONOTONIC`.
    pub start_monotonic_ns: u64,
    /// Alerts found in the finished run, by time.
    pub alerts: Vec<Alert>,
    /// Alerts raised while it was recorded.
    pub raised: Vec<gpuwhy_memory::alerts::Alert>,
}

/// An alert.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Alert {
    /// When its condition became true.
    pub at_ns: u64,
    /// `memory_leak`, `oom` or `oom_risk`.
    pub kind: String,
    /// The severity of its finding.
    pub level: Severity,
    /// The finding in one line.
    pub text: String,
    /// The process it is about.
    pub pid: Option<u32>,
    /// CUDA's device number.
    pub device: Option<u32>,
    /// The line it is about.
    pub line: Option<String>,
}

impl Alerts {
    /// The report's findings about leaks and about memory that ran out, or nearly did.
    pub fn new(run: &str, start_monotonic_ns: u64, report: &Report) -> Self {
        // A line that leaks on two devices has two findings, in the same order as the leaks.
        let mut leaks: Vec<&Leak> = report.leaks.iter().collect();
        let findings = report.findings.iter();
        let mut alerts: Vec<Alert> = findings.filter_map(|finding| alert(finding, report, &mut leaks)).collect();
        alerts.sort_by_key(|alert| alert.at_ns);
        Self { schema: SCHEMA, run: run.to_owned(), start_monotonic_ns, alerts, raised: report.alerts.clone() }
    }
}

fn alert(finding: &Finding, report: &Report, leaks: &mut Vec<&Leak>) -> Option<Alert> {
    let line = finding.root_cause.line.clone();
    let (at_ns, device) = match finding.kind.as_str() {
        "memory_leak" => {
            let at = leaks.iter().position(|leak| Some(leak.pid) == finding.pid && leak.line == line);
            at.map(|at| leaks.remove(at)).map_or((report.from_ns, None), |leak| (leak.onset_ns, leak.device))
        }
        "oom" => report.ooms.last().map_or((report.to_ns, None), |oom| (oom.at_ns, oom.device)),
        // NVML is sampled once a second, so the exact time is unknown: the end.
        "oom_risk" => (report.to_ns, None),
        _ => return None,
    };
    Some(Alert {
        at_ns,
        kind: finding.kind.clone(),
        level: finding.severity,
        text: finding.headline(),
        pid: finding.pid,
        device,
        line,
    })
}
