// SPDX-License-Identifier: Apache-2.0
//! A process that the kernel killed because main memory, not the GPU's, ran out.

use super::memory_link;
use crate::fixes;
use crate::report::End;
use gpuwhy_model::{Finding, RootCause, Severity, units};

pub(super) fn finding(end: &End) -> Option<Finding> {
    if !end.oom_killed {
        return None;
    }
    let who = format!("{} {}", end.name, end.pid);
    let title = format!("The kernel killed {who} at {}: main memory ran out", units::time(end.at_ns));
    let state = format!("signal {}", end.signal);
    let evidence = "SELECT * FROM events WHERE op = 'oom_kill'";
    Some(Finding {
        pid: Some(end.pid),
        chain: vec![memory_link(who.clone(), "was killed".into(), None, state, Some(evidence.into()))],
        root_cause: RootCause {
            kind: "main_memory".into(),
            pid: Some(end.pid),
            name: Some(end.name.clone()),
            detail: "the machine, or the job's cgroup, ran out of main memory, and the kernel killed this process"
                .into(),
            line: end.last_line.clone(),
        },
        fixes: fixes::killed(),
        confidence_reason: "reported by the kernel".into(),
        ..Finding::new("killed_for_memory", Severity::Critical, title)
    })
}
