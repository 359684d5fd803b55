// SPDX-License-Identifier: Apache-2.0
//! Errors of this crate.

use gpuwhy_model::units;
use gpuwhy_torch::{snapshot, trace};
use std::path::PathBuf;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The run file.
    #[error(transparent)]
    File(#[from] gpuwhy_store::Error),
    /// The request was cancelled.
    #[error("stopped before the analysis was complete")]
    Stopped,
    /// A requested process is not in the run.
    #[error(
        "invalid --pid {pid}: not in this run; `gpuwhy query \"SELECT pid, name FROM processes\"` lists its processes"
    )]
    UnknownProcess {
        /// The process.
        pid: u32,
    },
    /// With several runs: one of them has none of the requested processes.
    #[error("invalid --pid {pid}: {} has none of the given processes; name at least one of each run", .path.display())]
    UnknownProcessOf {
        /// The first requested process.
        pid: u32,
        /// The run.
        path: PathBuf,
    },
    /// The requested time range is empty.
    #[error("invalid range: from must be before to and before the end of the run ({})", units::time(*.run_ns))]
    EmptyPart {
        /// How long the run is.
        run_ns: u64,
    },
    /// A folder without files of PyTorch.
    #[error("{} has no profiler trace (*.json, *.json.gz) or memory snapshot (*.pickle): give the file itself", .path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// No file of the requested kind.
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
        /// The problem.
        source: trace::Error,
    },
    /// A memory bundle.
    #[error(transparent)]
    Bundle(#[from] gpuwhy_bundle::Error),
    /// A bundle does not contain the requested process.
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
        /// The problem.
        source: snapshot::Error,
    },
}
