// SPDX-License-Identifier: Apache-2.0
//! Stores findings in their run file.

use super::Explained;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Stores the findings of a run that has ended. Errors are ignored, as for a file that is read-only or busy: explaining again
/// gives the same findings.
pub fn keep(path: &Path, explained: &Explained) {
    let Explained { report, session } = explained;
    if session.stop_unix_ns.is_none() || report.findings.is_empty() {
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let at = now.saturating_sub(session.start_unix_ns);
    let _ = gpuwhy_store::add_findings(path, report.from_ns, report.to_ns, at, &report.findings);
}
