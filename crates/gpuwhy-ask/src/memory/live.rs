// SPDX-License-Identifier: Apache-2.0
//! Follows the memory of a run that another process is still recording.
//!
//! Each update opens the file, reads the new rows and closes it again: the writer can end the run without waiting for a
//! reader, and the lock that shows whether there is a writer can be checked in between.

use super::site;
use super::source::Sources;
use crate::{Error, Result, Stop};
use gpuwhy_memory::live::{Picture, Tracker};
use gpuwhy_memory::report::Report;
use gpuwhy_memory::{SiteFact, backward_stacks};
use gpuwhy_store::{MemoryFollow, Reader, Session, is_written};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Rows appear up to half a second after their event: newer rows are left for the next update, ns.
const LAG_NS: u64 = 1_500_000_000;
/// A row has the time at which its call began and is written when the call ends. So all rows older than the newest by this
/// are there, even if the writer is late. An allocating call that takes longer is only counted at the end, when everything
/// is read again.
const LONGEST_CALL_NS: u64 = 1_000_000_000;
/// After this many updates without a newer row, the writer is not late: the job is quiet.
const UPDATES_IDLE: u32 = 8;
/// After this many updates without anything new and without a writer, gpuwhy was killed.
const UPDATES_LEFT: u32 = 3;
/// A file that is not a run yet has this many updates to become one.
const UPDATES_BEGINNING: u32 = 10;

/// The state of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// There is no run yet.
    Waiting,
    /// It is being recorded.
    Running,
    /// It has ended, for this reason.
    Ended(String),
    /// Recording stopped without ending the run: gpuwhy was killed.
    Left,
}

/// The result of one update.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveUpdate {
    /// The state of the run.
    pub state: State,
    /// Its memory now; empty while there is no run.
    pub picture: Picture,
    /// Whether this is the first update of this run.
    pub is_first: bool,
}

/// A run file that is followed.
pub struct LiveRun {
    path: PathBuf,
    pids: Vec<u32>,
    tracker: Tracker,
    follow: MemoryFollow,
    sites: HashMap<u64, SiteFact>,
    names: HashMap<u32, String>,
    /// NVML's samples were read up to here, ns.
    samples_from: u64,
    /// The run's start time identifies it: a new run may replace the file.
    start: Option<(u64, u64)>,
    /// The run's length at the last update, and the updates since it grew.
    last: (u64, u32),
    /// Updates that found no run.
    failed: u32,
}

impl LiveRun {
    /// Follows the run at a path, which need not exist yet. With `pids`, only these processes.
    pub fn new(path: &Path, pids: &[u32]) -> Self {
        Self {
            path: path.into(),
            pids: pids.to_vec(),
            tracker: Tracker::new(pids),
            follow: MemoryFollow::default(),
            sites: HashMap::new(),
            names: HashMap::new(),
            samples_from: 0,
            start: None,
            last: (0, 0),
            failed: 0,
        }
    }

    /// Reads the new rows. `now_ns` is `CLOCK_MONOTONIC`; `alone` means nothing else in this process has the file open.
    pub fn update(&mut self, stop: &Stop<'_>, now_ns: u64, alone: bool) -> Result<LiveUpdate> {
        // Before the file is opened: a run that ends in between then counts as ended, not as left.
        let is_left = alone && is_written(&self.path).is_ok_and(|written| !written);
        let reader = match Reader::open(&self.path) {
            Ok(reader) => reader,
            Err(error) => return self.not_there(error, is_left),
        };
        self.failed = 0;
        let session = reader.session()?;
        let start = (session.start_unix_ns, session.start_monotonic_ns);
        let is_first = self.start != Some(start);
        if is_first {
            *self = Self { start: Some(start), ..Self::new(&self.path, &self.pids) };
        }
        let state = self.state(&session, is_left);
        let at_ns = if state == State::Running { self.horizon(&session, now_ns) } else { session.duration_ns };
        let pauses = super::about(reader.memory_let_go()?, &self.pids);
        self.tracker.set_unreported(super::unreported(&pauses, u64::MAX - 1));
        if state != State::Running && !is_first {
            // From the beginning again, so that late rows are counted, too.
            self.read_again(stop, &reader, at_ns, true)?;
        } else {
            self.read(stop, &reader, at_ns, state != State::Running)?;
        }
        if is_first && self.tracker.knows_backward() {
            // Allocations of autograd's threads were read before its stacks were known.
            self.read_again(stop, &reader, at_ns, state != State::Running)?;
        }
        let notes = super::notes(&pauses, at_ns);
        let picture = Picture { notes, ..self.tracker.picture(at_ns, &self.sites, &self.names) };
        Ok(LiveUpdate { state, picture, is_first })
    }

    /// Takes the report of an examination of the whole run.
    pub fn judged(&mut self, report: &Report) {
        self.tracker.judged(report, report.to_ns);
    }

    /// There is no run, yet or at all. A new run file is empty at first and soon has a writer.
    fn not_there(&mut self, error: gpuwhy_store::Error, is_left: bool) -> Result<LiveUpdate> {
        self.failed += 1;
        let is_empty = std::fs::metadata(&self.path).is_ok_and(|found| found.len() == 0);
        let is_none = is_left && !is_empty && self.start.is_none();
        let is_missing = matches!(error, gpuwhy_store::Error::NotFound { .. });
        if !is_missing && (is_none || self.failed >= UPDATES_BEGINNING) {
            return Err(error.into());
        }
        Ok(LiveUpdate { state: State::Waiting, picture: Picture::default(), is_first: false })
    }

    fn state(&mut self, session: &Session, is_left: bool) -> State {
        if session.stop_unix_ns.is_some() {
            let reason = session.stop_reason.clone().unwrap_or_default();
            return State::Ended(reason);
        }
        let moved = self.last.0 != session.duration_ns;
        self.last = (session.duration_ns, if moved { 0 } else { self.last.1 + 1 });
        if is_left && self.last.1 >= UPDATES_LEFT { State::Left } else { State::Running }
    }

    /// The time up to which all rows are in the file, ns.
    fn horizon(&self, session: &Session, now_ns: u64) -> u64 {
        let by_clock = now_ns.saturating_sub(session.start_monotonic_ns).saturating_sub(LAG_NS);
        let by_rows = session.duration_ns.saturating_sub(LONGEST_CALL_NS);
        if self.last.1 >= UPDATES_IDLE { by_clock } else { by_clock.min(by_rows) }
    }

    fn read_again(&mut self, stop: &Stop<'_>, reader: &Reader, at_ns: u64, to_the_end: bool) -> Result<()> {
        self.tracker.restart();
        self.follow = MemoryFollow::default();
        self.samples_from = 0;
        self.read(stop, reader, at_ns, to_the_end)
    }

    fn read(&mut self, stop: &Stop<'_>, reader: &Reader, at_ns: u64, to_the_end: bool) -> Result<()> {
        let to_ns = if to_the_end { u64::MAX } else { at_ns };
        let tracker = &mut self.tracker;
        reader.replay_new_memory(&mut self.follow, to_ns, |event| {
            tracker.feed(event);
            if stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if stop() {
            return Err(Error::Stopped);
        }
        tracker.advance(at_ns);
        let (samples, processes) = reader.gpu_memory_since(self.samples_from)?;
        if let Some(last) = samples.last() {
            self.samples_from = last.at_ns + 1;
        }
        tracker.devices(&samples, &processes);
        let unnamed: Vec<u64> = tracker.stacks().into_iter().filter(|id| !self.sites.contains_key(id)).collect();
        let named = reader.stack_text(&unnamed)?.into_iter().map(|(id, trace)| (id, site(trace, &Sources::default())));
        self.sites.extend(named);
        if !unnamed.is_empty() {
            tracker.set_backward(backward_stacks(&self.sites));
        }
        if tracker.pids().iter().any(|pid| !self.names.contains_key(pid)) {
            self.names.extend(reader.processes()?.into_iter().map(|process| (process.pid, process.name)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_run_is_waited_for_and_another_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.db");
        let mut run = LiveRun::new(&path, &[]);
        for _ in 0..UPDATES_BEGINNING * 2 {
            assert_eq!(run.update(&|| false, 1, true).unwrap().state, State::Waiting);
        }
        // A new run is empty at first, but not forever; another file is an error at once.
        std::fs::write(&path, "").unwrap();
        let mut run = LiveRun::new(&path, &[]);
        for _ in 1..UPDATES_BEGINNING {
            assert_eq!(run.update(&|| false, 1, true).unwrap().state, State::Waiting);
        }
        assert!(run.update(&|| false, 1, true).is_err());
        std::fs::write(&path, "something else").unwrap();
        assert!(LiveRun::new(&path, &[]).update(&|| false, 1, true).is_err());
    }
}
