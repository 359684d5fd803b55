// SPDX-License-Identifier: Apache-2.0
//! Reads a bundle's `events.json` back: gives the same report as the run file.

use crate::{Error, Result};
pub use gpuwhy_bundle::is_events_file;
use gpuwhy_bundle::{EventsFile, Run};
use gpuwhy_memory::{Analyser, Report, backward_stacks};
use std::path::Path;

/// The report from a file of events, and their run.
#[derive(Debug, Clone)]
pub struct ReadBack {
    /// The report.
    pub report: Report,
    /// The run.
    pub run: Run,
}

/// Examines the events of a bundle, all of them or those of some processes. Calls `progress` with the bytes read so far.
pub fn read_back(path: &Path, pids: &[u32], mut progress: impl FnMut(u64)) -> Result<ReadBack> {
    let file = EventsFile::open(path)?;
    let header = file.header();
    let has = |pid: &u32| {
        let listed = header.part.pids.is_empty() || header.part.pids.contains(pid);
        listed && header.processes.iter().any(|process| process.pid == *pid)
    };
    if let Some(pid) = pids.iter().find(|pid| !has(pid)) {
        return Err(Error::NotInBundle { pid: *pid, path: path.into() });
    }
    let words = header.site_facts();
    let mut analyser = Analyser::new(header.facts(pids), header.found_steps()).with_backward(backward_stacks(&words));
    file.events(|event, read| {
        analyser.feed(event);
        progress(read);
    })?;
    let known = |ids: &[u64]| ids.iter().filter_map(|id| Some((*id, words.get(id)?.clone()))).collect();
    Ok(ReadBack { report: analyser.finish(&mut |ids| known(ids)), run: header.run.clone() })
}
