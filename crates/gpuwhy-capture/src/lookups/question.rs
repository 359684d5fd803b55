// SPDX-License-Identifier: Apache-2.0
//! Questions about untrusted processes, and their answers.

use crate::elf::Site;
use crate::libraries::FileId;
use gpuwhy_model::Library;
use gpuwhy_stacks::python::{Code, PyProcess};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::PathBuf;

/// A question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Question {
    /// The traced libraries that a process has mapped: parts of the answer are libraries.
    Libraries { pid: u32 },
    /// Libraries that an ended process had, if they still exist at their paths.
    LeftBehind { pid: u32, libraries: Vec<LeftBehind> },
    /// The libraries that a command will likely load.
    Likely(Command),
    /// Where a process's interpreter keeps its frames.
    Python { pid: u32 },
    /// The name of a process and, if wanted, the Python it runs.
    Names { pid: u32, and_python: bool },
    /// Which CUDA library an address lies in.
    Caller { pid: u32, address: u64 },
    /// A Python code object that the kernel had no time to report.
    Code { pid: u32, process: PyProcess, code: u64, check: u32 },
    /// The whole line table of a code object, if it was too long for the kernel's record.
    LineTable { pid: u32, process: PyProcess, code: u64 },
}

impl Question {
    /// The process it is about, if it is about one.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::Likely(_) => None,
            Self::Libraries { pid }
            | Self::LeftBehind { pid, .. }
            | Self::Python { pid }
            | Self::Names { pid, .. }
            | Self::Caller { pid, .. }
            | Self::Code { pid, .. }
            | Self::LineTable { pid, .. } => Some(*pid),
        }
    }

    /// What is read for the answer, as text.
    pub(super) fn what(&self) -> &'static str {
        match self {
            Self::Libraries { .. } | Self::LeftBehind { .. } => "its libraries",
            Self::Likely(_) => "the libraries it will likely load",
            Self::Python { .. } => "its libpython",
            Self::Names { .. } => "its command line",
            Self::Caller { .. } => "its mappings",
            Self::Code { .. } | Self::LineTable { .. } => "its Python code",
        }
    }
}

/// A library of an ended process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeftBehind {
    pub(crate) library: Library,
    pub(crate) path: String,
    pub(crate) inode: u64,
}

/// What a command that is about to start shows about the libraries it will load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Command {
    pub(crate) program: PathBuf,
    /// Those of its arguments that may be paths.
    pub(crate) arguments: Vec<PathBuf>,
    /// The variables of its environment that say where libraries are.
    pub(crate) variables: Vec<(String, String)>,
    /// Where the linker's cache has some.
    pub(crate) cached: Vec<PathBuf>,
}

/// A library that was found; its open file comes with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LibraryPart {
    pub(crate) library: Library,
    /// As its process sees it.
    pub(crate) path: String,
    /// Whether it is linked into that file.
    pub(crate) linked_in: bool,
    /// Its traced functions, or why they could not be read.
    pub(crate) sites: Result<Vec<(String, Site)>, String>,
    /// Whether it could not be opened for want of rights; then no file comes with it.
    pub(crate) is_out_of_reach: bool,
}

/// The libraries of a process, sent after the libraries themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mapped {
    /// Its code mappings, and the CUDA library of each.
    pub(crate) code: Vec<(Range<u64>, Option<Library>)>,
    /// The program it runs.
    pub(crate) program: Option<(String, FileId)>,
}

/// Why a process's mappings are unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// It has ended.
    Gone,
    /// gpuwhy lacks the rights.
    NotPermitted,
}

/// Whether a process runs Python.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum PythonAnswer {
    /// It does.
    Found(PyProcess),
    /// It has ended.
    Gone,
    /// A Python that gpuwhy does not know, in words.
    Unknown(String),
    /// Not yet; it may load Python later.
    NotYet,
}

/// A process by its names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessNames {
    /// `python3 train.py`; `None` once it is gone.
    pub name: Option<String>,
    /// Its command line, secrets hidden.
    pub command: Option<String>,
    /// The container it runs in.
    pub container: Option<String>,
    /// The process it belongs to.
    pub parent: Option<u32>,
    /// The Python it runs, by its files' names, if that was asked.
    pub python: Option<String>,
    /// The processes above it that belong to its job.
    pub above: Vec<u32>,
}

/// The final answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Libraries(Result<Mapped, Refusal>),
    Python(PythonAnswer),
    Names(ProcessNames),
    /// `None` if nothing is mapped there, and the process's end if it has none.
    Caller(Result<Option<Option<Library>>, Refusal>),
    Code(Option<Code>),
    LineTable(Option<Vec<u8>>),
}

/// A message from the reader.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Reply {
    /// A library, with its file. More follows.
    Library(LibraryPart),
    /// The end of an answer, and the CPU time it took, ns.
    Done(Answer, u64),
}
