// SPDX-License-Identifier: Apache-2.0
//! Attaching to what processes have mapped, now and later.

use super::looking::Purpose;
use super::{Capture, LONGEST_START, now_ns};
use crate::error::{CaptureError, Result};
use crate::libraries;
use crate::lookups::Question;
use crate::map_watch::{MapWatch, Mapping};
use crate::process;
use gpuwhy_model::Unwatched;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::time::Duration;

/// Maximum remembered mappings of untraced processes; more at a time means an attack.
const MOST_STRANGERS: usize = 1 << 14;

fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

impl Capture {
    /// Watching starts before the first scan, so that no mapping in between is missed.
    pub(super) fn watch_mappings(&mut self) {
        match MapWatch::new() {
            Ok(watch) => {
                self.poll_fds = watch.fds().map(readable).collect();
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
            self.attach_asked(*pid)?;
            if !process::is_running(*pid) {
                return Err(CaptureError::ProcessDied { pid: *pid });
            }
        }
        if self.all_processes {
            for pid in libraries::all_processes() {
                self.attach_process(pid, self.began_ns, Vec::new());
            }
        }
        self.wait_for_answers(LONGEST_START);
        Ok(())
    }

    fn add_child(&mut self, child: u32) -> Result<()> {
        // gpuwhy itself may be below what it traces, a shell for example.
        if child == std::process::id() || self.lookups.is_own(child) || self.programs.is_target(child) {
            return Ok(());
        }
        self.programs.add_target(child)?;
        if process::is_running(child) {
            self.processes.insert(child);
            self.attach_process(child, self.began_ns, Vec::new());
        } else {
            // Its end came before it was marked, so the kernel will not take the mark away.
            self.programs.remove_target(child);
        }
        Ok(())
    }

    /// Queues a lookup of a process that mapped these since a time, `CLOCK_MONOTONIC` ns. The answer leads to probes.
    fn attach_process(&mut self, pid: u32, since_ns: u64, mappings: Vec<Mapping>) {
        if pid != std::process::id() {
            self.lookups.ask_later(Question::Libraries { pid }, Purpose::Attach { since_ns, mappings });
        }
    }

    /// Handles the first call of a process: if it has the driver but no runtime, notes that, because its calls then
    /// have the driver's names.
    pub(super) fn look_for_runtime(&mut self, pid: u32) {
        self.lookups.ask_later(Question::Libraries { pid }, Purpose::TellRuntime);
    }

    /// Waits until a library was mapped, an answer has come or the time is up, whichever is first.
    pub fn wait(&mut self, timeout: Duration) {
        let ms = timeout.as_millis().min(1000) as i32;
        let mappings = self.poll_fds.len();
        self.poll_fds.extend(self.lookups.fds().map(readable));
        // SAFETY: the array is ours and its length is given.
        unsafe { libc::poll(self.poll_fds.as_mut_ptr(), self.poll_fds.len() as libc::nfds_t, ms) };
        self.poll_fds.truncate(mappings);
    }

    /// Attaches to libraries mapped since the last time.
    pub fn follow_mappings(&mut self) {
        self.take_answers();
        self.look_for_python();
        let Some(news) = self.map_watch.as_mut().map(MapWatch::take) else { return };
        let mut mapped: BTreeMap<u32, Vec<Mapping>> = BTreeMap::new();
        for mapping in news.mappings {
            mapped.entry(mapping.pid).or_default().push(mapping);
        }
        if news.lost > 0 {
            // What was mapped and when is unknown; it was after the last scan.
            for pid in libraries::all_processes() {
                mapped.entry(pid).or_default();
            }
        }
        for (pid, mappings) in mapped {
            self.follow_process(pid, mappings);
        }
        self.looked_ns = now_ns();
    }

    /// Handles new mappings of a process; an empty list means unknown ones.
    fn follow_process(&mut self, pid: u32, mappings: Vec<Mapping>) {
        if self.all_processes || self.programs.is_target(pid) {
            let since_ns = mappings.iter().map(|mapping| mapping.at_ns).min().unwrap_or(self.looked_ns);
            self.attach_process(pid, since_ns, mappings);
        } else if self.ended.contains_key(&pid) {
            self.probes.note_mapped(&mappings);
        } else {
            // An untraced process, or a traced one that has ended; its records will tell.
            let room = MOST_STRANGERS.saturating_sub(self.strangers.len());
            self.strangers.extend(mappings.into_iter().take(room));
        }
    }

    /// Notes what a traced process had mapped before it ended and could be inspected.
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
