// SPDX-License-Identifier: Apache-2.0
//! What becomes of answers about processes: probes, interpreters told to the kernel, notes of what was not watched.

use super::{Capture, now_ns};
use crate::error::{CaptureError, Result};
use crate::lookups::{Answer, Answered, Command, Mapped, PythonAnswer, Question, ReadLibrary, Refusal};
use crate::map_watch::Mapping;
use gpuwhy_model::Library;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

/// What something was asked for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// To attach to what a process has mapped since a time, of which these are known.
    Attach { since_ns: u64, mappings: Vec<Mapping> },
    /// The same, for a process that was asked for by its number: it must be there.
    AttachAsked,
    /// To attach to libraries of a process that is gone: the next may use them, too.
    AttachLeftBehind { mappings: Vec<Mapping> },
    /// To attach to what a job will likely load.
    AttachAhead,
    /// To tell whether there is a runtime.
    TellRuntime,
    /// To tell the kernel where an interpreter keeps its frames.
    Python,
}

impl Capture {
    /// Follows what answers have come. Does not wait.
    pub(super) fn take_answers(&mut self) {
        for answered in self.lookups.answers() {
            // Those who ask by number have waited for it, and do so in `attach_asked`.
            let _ = self.follow_answer(answered);
        }
    }

    /// Waits for all answers, for so long at most; those that are not there then are followed later.
    pub(super) fn wait_for_answers(&mut self, most: Duration) {
        let until = Instant::now() + most;
        self.take_answers();
        while self.lookups.is_waiting() && Instant::now() < until {
            self.lookups.wait(until);
            self.take_answers();
        }
    }

    /// Attaches to what a process has that was asked for by its number, before anything else goes on.
    pub(super) fn attach_asked(&mut self, pid: u32) -> Result<()> {
        self.lookups.ask_later(Question::Libraries { pid }, Purpose::AttachAsked);
        loop {
            for answered in self.lookups.answers() {
                let is_it = matches!(answered.purpose, Purpose::AttachAsked);
                let outcome = self.follow_answer(answered);
                if is_it {
                    return outcome;
                }
            }
            self.lookups.wait(Instant::now() + super::LONGEST_START);
        }
    }

    /// Attaches to files that no process needs to have mapped yet: those that a command will likely load.
    pub fn attach_ahead(&mut self, program: &Path, arguments: &[OsString], env: &[(OsString, OsString)]) {
        let command = Command::new(program, arguments, env);
        self.lookups.ask_later(Question::Likely(command), Purpose::AttachAhead);
        // The reader is given up when it takes too long, so that this ends.
        while self.lookups.is_waiting() {
            self.lookups.wait(Instant::now() + super::LONGEST_START);
            self.take_answers();
        }
    }

    fn follow_answer(&mut self, answered: Answered<Purpose>) -> Result<()> {
        let Answered { question, purpose, answer, libraries } = answered;
        let pid = question.pid().unwrap_or(0);
        let mapped = match answer {
            Some(Answer::Libraries(mapped)) => Some(mapped),
            Some(Answer::Python(python)) => {
                self.follow_python(pid, Some(python));
                return Ok(());
            }
            _ => None,
        };
        match purpose {
            Purpose::Attach { since_ns, mappings } => match mapped {
                Some(Err(_)) if !mappings.is_empty() => self.look_left_behind(pid, mappings),
                mapped => {
                    self.attach_all(pid, since_ns, mapped.and_then(std::result::Result::ok), libraries);
                    self.probes.note_mapped(&mappings);
                }
            },
            Purpose::AttachAsked => match mapped {
                Some(Err(Refusal::NotPermitted)) => return Err(CaptureError::NotPermitted),
                Some(Err(Refusal::Gone)) => return Err(CaptureError::ProcessDied { pid }),
                mapped => self.attach_all(pid, self.began_ns, mapped.and_then(std::result::Result::ok), libraries),
            },
            Purpose::AttachLeftBehind { mappings } => {
                self.probes.attach(&self.programs, self.all_layers, libraries, None);
                self.probes.note_mapped(&mappings);
            }
            Purpose::AttachAhead => {
                self.probes.attach(&self.programs, self.all_layers, libraries, None);
            }
            Purpose::TellRuntime => {
                if let Some(Ok(mapped)) = mapped {
                    self.tell_runtime(mapped, &libraries);
                }
            }
            Purpose::Python => self.follow_python(pid, None),
        }
        Ok(())
    }

    fn look_left_behind(&mut self, pid: u32, mappings: Vec<Mapping>) {
        let libraries = mappings.iter().map(Mapping::left_behind).collect();
        self.lookups.ask_later(Question::LeftBehind { pid, libraries }, Purpose::AttachLeftBehind { mappings });
    }

    fn tell_runtime(&mut self, mapped: Mapped, libraries: &[ReadLibrary]) {
        let has = |library| libraries.iter().any(|one| one.part.library == library);
        if let Some(program) = mapped.program.filter(|_| has(Library::Driver) && !has(Library::Runtime)) {
            self.probes.note_no_runtime(program);
        }
    }

    /// Attaches to libraries that are in use already: what their threads did before now is unknown.
    fn attach_all(&mut self, pid: u32, since_ns: u64, mapped: Option<Mapped>, libraries: Vec<ReadLibrary>) {
        // Until all probes are there, no thread counts as watched from its birth.
        let before = self.programs.ready();
        if !libraries.is_empty() {
            self.remember_names(pid);
        }
        if let Some(mapped) = mapped.filter(|_| !libraries.is_empty()) {
            self.callers.remember(pid, mapped.code);
        }
        self.programs.set_ready(u64::MAX);
        let any = self.probes.attach(&self.programs, self.all_layers, libraries, Some((pid, since_ns)));
        self.programs.set_ready(if any { now_ns() } else { before });
    }

    /// Has processes looked at that may run Python.
    pub(super) fn look_for_python(&mut self) {
        for pid in self.pythons.as_mut().map(|pythons| pythons.due()).unwrap_or_default() {
            self.lookups.ask_later(Question::Python { pid }, Purpose::Python);
        }
    }

    /// Tells the kernel where a newly found interpreter keeps its frames.
    fn follow_python(&mut self, pid: u32, answer: Option<PythonAnswer>) {
        let Some(pythons) = &mut self.pythons else { return };
        let found = pythons.looked_at(pid, answer);
        self.warnings.append(&mut pythons.warnings);
        if let Some(process) = found {
            self.set_python(pid, &process);
        }
    }
}
