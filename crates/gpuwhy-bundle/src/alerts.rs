// SPDX-License-Identifier: Apache-2.0
//! `alerts.json`: what somebody should have been told, and when.

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
    /// The run's beginning on `CLOCK_MONOTONIC`.
    pub start_monotonic_ns: u64,
    /// What the run shows afterwards, in the order of time.
    pub alerts: Vec<Alert>,
    /// What people were told while it was recorded.
    pub raised: Vec<gpuwhy_memory::alerts::Alert>,
}

/// An alert.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Alert {
    /// When it became true.
    pub at_ns: u64,
    /// What: `memory_leak`, `oom`, `oom_risk`.
    pub kind: String,
    /// How bad, as a finding's severity.
    pub level: Severity,
    /// In words.
    pub text: String,
    /// The process it is about.
    pub pid: Option<u32>,
    /// CUDA's number of the device.
    pub device: Option<u32>,
    /// The line it is about.
    pub line: Option<String>,
}

impl Alerts {
    /// What a report says of leaks and of memory that ran out, or nearly did.
    pub fn new(run: &str, start_monotonic_ns: u64, report: &Report) -> Self {
        // A line that leaks on two devices has two findings, in the order of the leaks.
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
        // NVML's looks are a second apart: known by the end.
        "oom_risk" => (report.to_ns, None),
        _ => return None,
    };
    Some(Alert {
        at_ns,
        kind: finding.kind.clone(),
        level: finding.severity,
        text: finding.title.clone(),
        pid: finding.pid,
        device,
        line,
    })
}
