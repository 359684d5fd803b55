// SPDX-License-Identifier: Apache-2.0
//! Why there is no answer.

use gpuwhy_model::units;
use gpuwhy_torch::{snapshot, trace};
use std::path::PathBuf;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The run file.
    #[error(transparent)]
    File(#[from] gpuwhy_store::Error),
    /// It was told to.
    #[error("stopped before the analysis was complete")]
    Stopped,
    /// The asked-for process is none of the run's.
    #[error(
        "invalid --pid {pid}: not in this run; `gpuwhy query \"SELECT pid, name FROM processes\"` lists its processes"
    )]
    UnknownProcess {
        /// The process.
        pid: u32,
    },
    /// None of the asked-for processes is one of this run's, of several runs.
    #[error("invalid --pid {pid}: {} has none of the given processes; name at least one of each run", .path.display())]
    UnknownProcessOf {
        /// The first process asked for.
        pid: u32,
        /// The run.
        path: PathBuf,
    },
    /// No time is left between the two ends asked for.
    #[error("invalid range: from must be before to and before the end of the run ({})", units::time(*.run_ns))]
    EmptyPart {
        /// How long the run is.
        run_ns: u64,
    },
    /// A folder without anything of PyTorch's.
    #[error("{} has no profiler trace (*.json, *.json.gz) or memory snapshot (*.pickle): give the file itself", .path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// There are files, but not of the kind asked for.
    #[error("nothing to analyse: --memory-only needs a memory snapshot (.pickle), --trace-only a profiler trace")]
    NothingLeft,
    /// Neither JSON nor a pickle.
    #[error("{} is neither a profiler trace (JSON) nor a memory snapshot (pickle)", .path.display())]
    UnknownKind {
        /// The file.
        path: PathBuf,
    },
    /// A file or folder cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A profiler trace, or rules for one.
    #[error("{}: {source}", .path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: trace::Error,
    },
    /// A memory bundle.
    #[error(transparent)]
    Bundle(#[from] gpuwhy_bundle::Error),
    /// A bundle's events are of another part of the run.
    #[error("invalid --pid {pid}: {} has only the processes it was made for; read the run file instead", .path.display())]
    NotInBundle {
        /// The process.
        pid: u32,
        /// The file.
        path: PathBuf,
    },
    /// A memory snapshot.
    #[error("{}: {source}", .path.display())]
    Snapshot {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: snapshot::Error,
    },
}
