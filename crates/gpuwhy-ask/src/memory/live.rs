// SPDX-License-Identifier: Apache-2.0
//! The memory of a run that another process is still writing, look by look.
//!
//! Each look opens the file, reads what is new, and closes it: whoever writes it can end the run without waiting for a
//! reader, and the lock that tells whether somebody writes can be looked at in between.

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

/// Rows appear up to half a second after they happened: what is newer than this is left for the next look, ns.
const LAG_NS: u64 = 1_500_000_000;
/// A row has the time at which its call began and comes when that has ended, and rows come in that order: those that are as
/// much older than the newest are all there, also when the writer is late. A call that allocates and takes longer is met in
/// the end, when all is read again.
const LONGEST_CALL_NS: u64 = 1_000_000_000;
/// After so many looks without a newer row it is not the writer that is late: nothing happens.
const LOOKS_IDLE: u32 = 8;
/// So many looks without anything new, and without a writer, mean that it was killed.
const LOOKS_LEFT: u32 = 3;
/// A file that is no run yet may become one for so many looks.
const LOOKS_BEGINNING: u32 = 10;

/// How the run stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// There is no run yet.
    Waiting,
    /// It is being recorded.
    Running,
    /// It has ended; why.
    Ended(String),
    /// Nobody records it any more, and nobody ended it: gpuwhy was killed.
    Left,
}

/// What one look found.
#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    /// How the run stands.
    pub state: State,
    /// What is known now; nothing while there is no run.
    pub picture: Picture,
    /// Whether this is the first look at the run.
    pub is_first: bool,
}

/// Follows a run file.
pub struct Following {
    path: PathBuf,
    pids: Vec<u32>,
    tracker: Tracker,
    follow: MemoryFollow,
    sites: HashMap<u64, SiteFact>,
    names: HashMap<u32, String>,
    /// NVML was read up to here, ns.
    samples_from: u64,
    /// The run's beginning: another one is another run.
    start: Option<(u64, u64)>,
    /// The end of the run so far at the last look, and the looks since it moved.
    last: (u64, u32),
    /// Looks at something that is no run.
    failed: u32,
}

impl Following {
    /// The run at a path, which need not be there yet. Only these processes; of none given, all.
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

    /// Reads what is new. `now_ns` is `CLOCK_MONOTONIC`; `alone` says that nothing else in this process has the file open.
    pub fn look(&mut self, stop: &Stop<'_>, now_ns: u64, alone: bool) -> Result<Look> {
        // Before the file is opened: one that ends in between is seen as ended, not as left.
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
        let let_go = super::about(reader.memory_let_go()?, &self.pids);
        self.tracker.set_unreported(super::unreported(&let_go, u64::MAX - 1));
        if state != State::Running && !is_first {
            // Once more from the beginning: nothing that came late is missing in the end.
            self.read_again(stop, &reader, at_ns, true)?;
        } else {
            self.read(stop, &reader, at_ns, state != State::Running)?;
        }
        if is_first && self.tracker.knows_backward() {
            // What autograd's threads allocated was read before that was known.
            self.read_again(stop, &reader, at_ns, state != State::Running)?;
        }
        let notes = super::notes(&let_go, at_ns);
        let picture = Picture { notes, ..self.tracker.picture(at_ns, &self.sites, &self.names) };
        Ok(Look { state, picture, is_first })
    }

    /// What a whole examination of the run said, and up to when it looked.
    pub fn judged(&mut self, report: &Report) {
        self.tracker.judged(report, report.to_ns);
    }

    /// No run: not yet, or not at all. A new one is empty at first, and soon somebody writes it.
    fn not_there(&mut self, error: gpuwhy_store::Error, is_left: bool) -> Result<Look> {
        self.failed += 1;
        let is_empty = std::fs::metadata(&self.path).is_ok_and(|found| found.len() == 0);
        let is_none = is_left && !is_empty && self.start.is_none();
        let is_missing = matches!(error, gpuwhy_store::Error::NotFound { .. });
        if !is_missing && (is_none || self.failed >= LOOKS_BEGINNING) {
            return Err(error.into());
        }
        Ok(Look { state: State::Waiting, picture: Picture::default(), is_first: false })
    }

    fn state(&mut self, session: &Session, is_left: bool) -> State {
        if session.stop_unix_ns.is_some() {
            let reason = session.stop_reason.clone().unwrap_or_default();
            return State::Ended(reason);
        }
        let moved = self.last.0 != session.duration_ns;
        self.last = (session.duration_ns, if moved { 0 } else { self.last.1 + 1 });
        if is_left && self.last.1 >= LOOKS_LEFT { State::Left } else { State::Running }
    }

    /// Up to when all rows are there.
    fn horizon(&self, session: &Session, now_ns: u64) -> u64 {
        let by_clock = now_ns.saturating_sub(session.start_monotonic_ns).saturating_sub(LAG_NS);
        let by_rows = session.duration_ns.saturating_sub(LONGEST_CALL_NS);
        if self.last.1 >= LOOKS_IDLE { by_clock } else { by_clock.min(by_rows) }
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
    fn what_is_not_there_is_waited_for_and_what_is_no_run_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.db");
        let mut following = Following::new(&path, &[]);
        for _ in 0..LOOKS_BEGINNING * 2 {
            assert_eq!(following.look(&|| false, 1, true).unwrap().state, State::Waiting);
        }
        // One that begins is empty at first, but not for ever; what is something else is told at once.
        std::fs::write(&path, "").unwrap();
        let mut following = Following::new(&path, &[]);
        for _ in 1..LOOKS_BEGINNING {
            assert_eq!(following.look(&|| false, 1, true).unwrap().state, State::Waiting);
        }
        assert!(following.look(&|| false, 1, true).is_err());
        std::fs::write(&path, "something else").unwrap();
        assert!(Following::new(&path, &[]).look(&|| false, 1, true).is_err());
    }
}
