// SPDX-License-Identifier: Apache-2.0
//! Attaching to what processes have mapped, now and later.

use super::{Capture, now_ns};
use crate::error::{CaptureError, Result};
use crate::libraries::{self, FileId, FoundLibrary};
use crate::map_watch::{MapWatch, Mapping};
use crate::process;
use gpuwhy_model::{Library, Unwatched};
use std::collections::BTreeMap;
use std::time::Duration;

/// Mappings of strangers that are remembered; a machine that maps more in a moment is attacked.
const MOST_STRANGERS: usize = 1 << 14;

impl Capture {
    /// Watching begins before looking, so that nothing mapped in between is missed.
    pub(super) fn watch_mappings(&mut self) {
        match MapWatch::new() {
            Ok(watch) => {
                let event = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                self.poll_fds = watch.fds().map(event).collect();
                self.map_watch = Some(watch);
            }
            Err(error) => self.warnings.push(error.to_string()),
        }
    }

    pub(super) fn attach_existing(&mut self, pids: &[u32]) -> Result<()> {
        for pid in pids {
            self.programs.add_target(*pid)?;
            self.processes.insert(*pid);
            // Children that exist already; those to come are added by the kernel. Looked for twice: one that
            // a child started before the child was marked is found the second time.
            for _ in 0..2 {
                for child in process::descendants(*pid) {
                    self.add_child(child)?;
                }
            }
            let found = libraries::of_process(*pid, &mut self.linked_in)?;
            self.attach_all(&found, *pid, self.began_ns);
            if !process::is_running(*pid) {
                return Err(CaptureError::ProcessDied { pid: *pid });
            }
        }
        if self.all_processes {
            for pid in libraries::all_processes() {
                self.attach_process(pid, self.began_ns);
            }
        }
        Ok(())
    }

    fn add_child(&mut self, child: u32) -> Result<()> {
        // gpuwhy itself may be below what it traces, a shell for example.
        if child == std::process::id() || self.programs.is_target(child) {
            return Ok(());
        }
        self.programs.add_target(child)?;
        if process::is_running(child) {
            self.processes.insert(child);
            self.attach_process(child, self.began_ns);
        } else {
            // Its end came before it was marked, so the kernel will not take the mark away.
            self.programs.remove_target(child);
        }
        Ok(())
    }

    /// Attaches to what a process has mapped since a time, `CLOCK_MONOTONIC` ns. Returns whether it still was there to be
    /// looked at.
    fn attach_process(&mut self, pid: u32, since_ns: u64) -> bool {
        if pid == std::process::id() {
            return true;
        }
        let Ok(found) = libraries::of_process(pid, &mut self.linked_in) else { return false };
        self.attach_all(&found, pid, since_ns);
        true
    }

    /// A process has made its first call: if it has the driver and no runtime, that is told, because its calls then stand
    /// under the driver's names.
    pub(super) fn look_for_runtime(&mut self, pid: u32) {
        let Ok(found) = libraries::of_process(pid, &mut self.linked_in) else { return };
        let has = |library| found.iter().any(|one| one.library == library);
        if has(Library::Driver) && !has(Library::Runtime) {
            self.probes.note_no_runtime(pid);
        }
    }

    /// Attaches to files that no process needs to have mapped yet.
    pub fn attach_ahead(&mut self, found: &[FoundLibrary]) {
        self.probes.attach(&self.programs, self.all_layers, found, None);
    }

    /// Attaches to libraries that are in use already: what their threads did before now is unknown.
    fn attach_all(&mut self, found: &[FoundLibrary], pid: u32, since_ns: u64) {
        // Until all probes are there, no thread counts as watched from its birth.
        let before = self.programs.ready();
        if !found.is_empty() {
            self.callers.remember(pid);
        }
        self.programs.set_ready(u64::MAX);
        let any = self.probes.attach(&self.programs, self.all_layers, found, Some((pid, since_ns)));
        self.programs.set_ready(if any { now_ns() } else { before });
    }

    /// Waits until a library was mapped or the time is up, whichever is first.
    pub fn wait(&mut self, timeout: Duration) {
        let ms = timeout.as_millis().min(1000) as i32;
        // SAFETY: the array is ours and its length is given.
        unsafe { libc::poll(self.poll_fds.as_mut_ptr(), self.poll_fds.len() as libc::nfds_t, ms) };
    }

    /// Attaches to libraries mapped since the last time.
    pub fn follow_mappings(&mut self) {
        self.look_for_python();
        let Some(news) = self.map_watch.as_mut().map(MapWatch::take) else { return };
        let mut mapped: BTreeMap<u32, Vec<Mapping>> = BTreeMap::new();
        for mapping in news.mappings {
            mapped.entry(mapping.pid).or_default().push(mapping);
        }
        if news.lost > 0 {
            // What was mapped, and when, is not known: at the latest a moment after the last look.
            for pid in libraries::all_processes() {
                mapped.entry(pid).or_default();
            }
        }
        for (pid, mappings) in mapped {
            self.follow_process(pid, mappings);
        }
        self.looked_ns = now_ns();
    }

    /// A process has mapped these, or, when they are none, something.
    fn follow_process(&mut self, pid: u32, mappings: Vec<Mapping>) {
        if self.all_processes || self.programs.is_target(pid) {
            let since_ns = mappings.iter().map(|mapping| mapping.at_ns).min().unwrap_or(self.looked_ns);
            if !self.attach_process(pid, since_ns) {
                self.attach_left_behind(&mappings);
            }
            self.probes.note_mapped(&mappings);
        } else if self.ended.contains_key(&pid) {
            self.probes.note_mapped(&mappings);
        } else {
            // A stranger, or one of ours that has ended since, which its records say once they are taken.
            let room = MOST_STRANGERS.saturating_sub(self.strangers.len());
            self.strangers.extend(mappings.into_iter().take(room));
        }
    }

    /// Attaches to libraries of a process that is gone, if they are still where it had them: the next may use them, too.
    fn attach_left_behind(&mut self, mappings: &[Mapping]) {
        let left: Vec<FoundLibrary> = mappings.iter().map(Mapping::found).collect();
        let is_it = |(mapping, found): (&Mapping, &FoundLibrary)| {
            FileId::of(&found.open).is_ok_and(|file| file.inode == mapping.file.inode)
        };
        if mappings.iter().zip(&left).all(is_it) {
            self.attach_ahead(&left);
        }
    }

    /// Notes what an ended process of ours had mapped before anybody could look.
    pub(super) fn note_ended(&mut self, pid: u32) {
        let of_it: Vec<Mapping> = self.strangers.extract_if(.., |mapping| mapping.pid == pid).collect();
        self.probes.note_mapped(&of_it);
        self.ended.insert(pid, now_ns());
    }

    /// At the end: notes what was mapped since the last look. Nothing more gets probes.
    pub fn note_last_mappings(&mut self) {
        let Some(news) = self.map_watch.as_mut().map(MapWatch::take) else { return };
        let ours = |pid| self.all_processes || self.ended.contains_key(&pid) || self.programs.is_target(pid);
        let mapped: Vec<Mapping> =
            news.mappings.into_iter().chain(self.strangers.drain(..)).filter(|mapping| ours(mapping.pid)).collect();
        self.probes.note_mapped(&mapped);
    }

    /// When libraries were in use before their functions were watched, as noted since the last time.
    pub fn take_unwatched(&mut self) -> Vec<Unwatched> {
        self.probes.take_unwatched()
    }
}
