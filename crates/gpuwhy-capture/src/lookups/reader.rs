// SPDX-License-Identifier: Apache-2.0
//! Answers questions by reading. Runs in a process of its own; has no state but what saves it from reading twice.

use super::question::{
    Answer, Command, LeftBehind, LibraryPart, Mapped, ProcessNames, PythonAnswer, Question, Refusal, Reply,
};
use super::wire::Wire;
use crate::elf::{self, Site};
use crate::error::CaptureError;
use crate::libraries::{self, FileId, FoundLibrary, LinkedIn};
use crate::{process, procmaps, system};
use gpuwhy_model::{Library, ops};
use gpuwhy_stacks::python::{self, Memory, PyError};
use gpuwhy_strangers::{ProcFile, look_at, look_at_program, read_proc};
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Maximum files with cached functions; a job has a handful of traced libraries.
const MOST_KNOWN: usize = 64;
/// Maximum code mappings reported per process; PyTorch has about two hundred.
const MOST_PARTS: usize = 1024;

/// Which file, and that it did not change.
type FileKey = (u64, u64, u64, i64, i64);
/// A library's functions, or why they cannot be read.
type Sites = Result<Vec<(String, Site)>, String>;

/// Cached answers.
#[derive(Default)]
pub(super) struct Reader {
    linked_in: LinkedIn,
    sites: HashMap<(FileKey, Library), Sites>,
}

impl Reader {
    /// Answers questions until the other end closes.
    pub(super) fn serve(&mut self, mut wire: Wire) {
        let mut spent = cpu_ns();
        while let Ok(Some(message)) = wire.receive(true) {
            let Ok(question) = postcard::from_bytes::<Question>(&message.bytes) else { return };
            let tell = |reply: &Reply, file: Option<&File>| {
                postcard::to_stdvec(reply).is_ok_and(|bytes| wire.send(&bytes, file.map(AsFd::as_fd), false).is_ok())
            };
            let answer = self.answer(&question, &mut |part, file| {
                tell(&Reply::Library(part), file);
            });
            let before = std::mem::replace(&mut spent, cpu_ns());
            if !tell(&Reply::Done(answer, spent.saturating_sub(before)), None) {
                return;
            }
        }
    }

    /// Answers one question; libraries are sent one by one, each with its file.
    pub(super) fn answer(&mut self, question: &Question, tell: &mut dyn FnMut(LibraryPart, Option<&File>)) -> Answer {
        match question {
            Question::Libraries { pid } => Answer::Libraries(self.libraries(*pid, tell)),
            Question::LeftBehind { libraries, .. } => {
                self.left_behind(libraries, tell);
                Answer::Libraries(Err(Refusal::Gone))
            }
            Question::Likely(command) => {
                self.likely(command, tell);
                Answer::Libraries(Err(Refusal::Gone))
            }
            Question::Python { pid } => Answer::Python(python_of(*pid)),
            Question::Names { pid, and_python } => Answer::Names(names_of(*pid, *and_python)),
            Question::Caller { pid, address } => Answer::Caller(caller(*pid, *address)),
            Question::Code { pid, process, code, check } => {
                let code = Memory::of(*pid).and_then(|memory| memory.code(process, *code, *check));
                Answer::Code(code.ok().flatten())
            }
            Question::LineTable { pid, process, code } => {
                let table = Memory::of(*pid).and_then(|memory| memory.line_table(process, *code));
                Answer::LineTable(table.ok())
            }
        }
    }

    fn libraries(&mut self, pid: u32, tell: &mut dyn FnMut(LibraryPart, Option<&File>)) -> Result<Mapped, Refusal> {
        let maps = libraries::maps_of(pid).map_err(refusal)?;
        for found in libraries::in_maps(pid, &maps, &mut self.linked_in) {
            self.tell(found, tell);
        }
        let path = std::fs::read_link(format!("/proc/{pid}/exe"));
        let program = path.and_then(|path| {
            let seen = look_at_program(pid)?;
            Ok((path.to_string_lossy().into_owned(), FileId::from(seen.metadata())))
        });
        let code = procmaps::code(&maps).take(MOST_PARTS).collect();
        Ok(Mapped { code, program: program.ok() })
    }

    /// All or nothing: a replaced library is a different file.
    fn left_behind(&mut self, libraries: &[LeftBehind], tell: &mut dyn FnMut(LibraryPart, Option<&File>)) {
        let there = |left: &LeftBehind| {
            let seen = look_at(Path::new(&left.path)).ok().filter(|seen| seen.metadata().ino() == left.inode)?;
            let (library, path) = (left.library, left.path.clone());
            Some(FoundLibrary { library, path, linked_in: false, file: seen.open() })
        };
        if let Some(found) = libraries.iter().map(there).collect::<Option<Vec<_>>>() {
            found.into_iter().for_each(|found| self.tell(found, tell));
        }
    }

    fn likely(&mut self, command: &Command, tell: &mut dyn FnMut(LibraryPart, Option<&File>)) {
        for found in libraries::likely_for(command) {
            self.tell(found, tell);
        }
    }

    fn tell(&mut self, found: FoundLibrary, tell: &mut dyn FnMut(LibraryPart, Option<&File>)) {
        let (sites, is_out_of_reach) = match &found.file {
            Ok(file) => (self.sites_of(found.library, file, &found.path), false),
            Err(error) => (Ok(Vec::new()), error.kind() == std::io::ErrorKind::PermissionDenied),
        };
        let FoundLibrary { library, path, linked_in, file } = found;
        tell(LibraryPart { library, path, linked_in, sites, is_out_of_reach }, file.as_ref().ok());
    }

    fn sites_of(&mut self, library: Library, file: &File, path: &str) -> Sites {
        let meta = file.metadata().map_err(|error| format!("cannot read {path}: {error}"))?;
        let key = (key_of(&meta), library);
        if let Some(known) = self.sites.get(&key) {
            return known.clone();
        }
        if self.sites.len() >= MOST_KNOWN {
            self.sites.clear();
        }
        let is_wanted = |name: &str| ops::by_function(name).is_some_and(|op| op.library == library);
        let sites = elf::find_functions(file, Path::new(path), &is_wanted);
        let sites = sites.map(|sites| sites.into_iter().collect()).map_err(|error| error.to_string());
        self.sites.entry(key).or_insert(sites).clone()
    }
}

/// The time of the last change of anything about it cannot be set, unlike that of its contents.
fn key_of(meta: &Metadata) -> FileKey {
    (meta.dev(), meta.ino(), meta.size(), meta.ctime(), meta.ctime_nsec())
}

/// CPU time of this process.
fn cpu_ns() -> u64 {
    crate::capture::clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn refusal(error: CaptureError) -> Refusal {
    if matches!(error, CaptureError::NotPermitted) { Refusal::NotPermitted } else { Refusal::Gone }
}

fn python_of(pid: u32) -> PythonAnswer {
    match python::find(pid) {
        Ok(found) => PythonAnswer::Found(found.process),
        Err(PyError::Process { .. }) => PythonAnswer::Gone,
        Err(error @ PyError::UnknownVersion { .. }) => PythonAnswer::Unknown(error.to_string()),
        Err(PyError::NoPython { .. } | PyError::File { .. }) => PythonAnswer::NotYet,
    }
}

fn names_of(pid: u32, and_python: bool) -> ProcessNames {
    ProcessNames {
        name: process::name(pid),
        command: process::command_of(pid),
        container: process::container(pid),
        parent: process::parent(pid),
        python: and_python.then(|| system::python_of(pid)).flatten(),
        above: process::above_in_job(pid),
    }
}

fn caller(pid: u32, address: u64) -> Result<Option<Option<Library>>, Refusal> {
    match read_proc(pid, ProcFile::Maps) {
        Ok(maps) if !maps.is_empty() => Ok(procmaps::library_at(&String::from_utf8_lossy(&maps), address)),
        _ => Err(Refusal::Gone),
    }
}
