// SPDX-License-Identifier: Apache-2.0
//! What can go wrong with a run file, said so that its reader knows what to do.

use gpuwhy_model::units::{bytes, count};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Shorthand for this crate's results.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong with a run file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder the run file should lie in does not exist.
    #[error("the folder {} does not exist: create it, or choose another place with --db", .folder.display())]
    FolderMissing {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder exists but nothing can be created in it.
    #[error("cannot create {}: {source}; choose a folder you may write to with --db", .path.display())]
    CannotCreate {
        /// The run file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A folder, device or pipe stands where the run file should be.
    #[error("{} is not a regular file, and gpuwhy will not replace it: choose another name with --db", .path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Another gpuwhy is writing this file now.
    #[error("{} is being written by another gpuwhy: stop that one, or choose another name with --db", .path.display())]
    BeingWritten {
        /// The run file.
        path: PathBuf,
    },
    /// The file of an earlier run could not be moved out of the way.
    #[error("cannot move the earlier {} aside: {source}; move it yourself, or choose another name with --db", .path.display())]
    CannotMoveAside {
        /// The earlier file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No space left while writing.
    #[error("the disk with {} is full: going on in memory, {} are kept; free some space", .path.display(), bytes(*.kept_bytes))]
    DiskFull {
        /// The run file.
        path: PathBuf,
        /// Rows in memory, bytes.
        kept_bytes: u64,
    },
    /// Writing failed for another reason.
    #[error("cannot write to {}: {source}; going on in memory, {} are kept", .path.display(), bytes(*.kept_bytes))]
    CannotWrite {
        /// The run file.
        path: PathBuf,
        /// Rows in memory, bytes.
        kept_bytes: u64,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// The run ended before everything could be written.
    #[error(
        "the disk with {} was full to the end: {} events have no row, they are counted in `seconds` only",
        .path.display(), count(*.lost_events)
    )]
    NotAllWritten {
        /// The run file.
        path: PathBuf,
        /// Calls and times off the CPU without a row, counted as `write_failed`.
        lost_events: u64,
    },
    /// The run is complete but could not be brought back into one file.
    #[error(
        "{} could not be closed into one file ({source}): keep {}-wal beside it, the run's last part is in there",
        .path.display(), .path.display()
    )]
    NotMerged {
        /// The run file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// Somebody else has put a file where SQLite keeps what belongs to a run file.
    #[error(
        "{} {what}, and gpuwhy would read it together with {}: remove it, or use a folder where only you can create files",
        .side.display(), .path.display()
    )]
    Planted {
        /// The run file.
        path: PathBuf,
        /// The file beside it.
        side: PathBuf,
        /// What is wrong with that.
        what: String,
    },
    /// A run file that somebody else owns.
    #[error("{} belongs to another user: nothing is added to it", .path.display())]
    NotYours {
        /// The path.
        path: PathBuf,
    },
    /// A run file could not be made one closed file.
    #[error("cannot repair {}: {what}", .path.display())]
    CannotRepair {
        /// The run file.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// Nothing could be added to a run file.
    #[error("cannot add findings to {}: {source}; the file is as it was, check that you may write to it", .path.display())]
    CannotAdd {
        /// The run file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// No file at that path.
    #[error("there is no run file {}: record one with `gpuwhy trace`, or name another with --db", .path.display())]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// The file is not an SQLite database.
    #[error("{} is not a gpuwhy run file (not an SQLite database): name another with --db", .path.display())]
    NotSqlite {
        /// The path.
        path: PathBuf,
    },
    /// There is nothing in the file.
    #[error(
        "{} is empty: its gpuwhy was killed before it stored anything, or the file was not copied whole; copy it again, \
         together with {}-wal", .path.display(), .path.display()
    )]
    Empty {
        /// The path.
        path: PathBuf,
    },
    /// The file of a killed gpuwhy whose events all are in another.
    #[error(
        "{} has no events: its gpuwhy was killed, and what it recorded is in {}-wal, which is not here; copy that file \
         beside it, then run `gpuwhy repair {}`", .path.display(), .path.display(), .path.display()
    )]
    WithoutWal {
        /// The path.
        path: PathBuf,
    },
    /// An SQLite database, but not one of gpuwhy's.
    #[error("{} is an SQLite database but not a gpuwhy run file: name another with --db", .path.display())]
    NotARun {
        /// The path.
        path: PathBuf,
    },
    /// The file is damaged.
    #[error(
        "{} is damaged ({source}): `sqlite3 {} .recover` saves what can be read",
        .path.display(), .path.display()
    )]
    Corrupt {
        /// The path.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// The file of a killed gpuwhy that makes no sense without another.
    #[error(
        "{} cannot be read ({source}): its gpuwhy was killed, and {}-wal, which belongs to it, is not here; copy that file \
         beside it, then run `gpuwhy repair {}`", .path.display(), .path.display(), .path.display()
    )]
    CorruptWithoutWal {
        /// The path.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// The file's format is newer than this gpuwhy.
    #[error(
        "{} was written by gpuwhy with run-file version {version}; this one reads up to {}: update gpuwhy",
        .path.display(), crate::schema::VERSION
    )]
    Newer {
        /// The path.
        path: PathBuf,
        /// Its version.
        version: i32,
    },
    /// Whoever asks may not read the file.
    #[error(
        "{} belongs to user {owner}, and you may not read it: read it as that user, or ask for a copy (gpuwhy share)",
        .path.display()
    )]
    NotPermitted {
        /// The path.
        path: PathBuf,
        /// Its owner's uid.
        owner: u32,
    },
    /// The file exists but could not be read.
    #[error("cannot read {}: {source}; check its permissions, and that its -wal file, if any, lies beside it", .path.display())]
    CannotRead {
        /// The path.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// A run cannot be merged with others.
    #[error("cannot merge {}: {what}", .path.display())]
    CannotMerge {
        /// The run file.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// No copy of a run can be made for others.
    #[error("cannot copy {}: {what}", .path.display())]
    CannotShare {
        /// The run file.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// There is something where the merged run should be.
    #[error("{} exists already, and is not overwritten: choose another name with -o, or move it away", .path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// A merged run cannot be where it should.
    #[error("cannot create {}: {source}; choose another place with -o", .path.display())]
    CannotPlaceMerged {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A merged run cannot be written to its end.
    #[error("cannot write {}: {source}; nothing is left of it, free some space or choose another place with -o", .path.display())]
    CannotWriteMerged {
        /// The path.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// Somebody stopped a merge.
    #[error("stopped: nothing is left of {}", .path.display())]
    MergeStopped {
        /// The path.
        path: PathBuf,
    },
    /// The query is not valid SQL for this file.
    #[error("{message}{}", .hint.as_ref().map(|h| format!("\nhint: {h}")).unwrap_or_default())]
    Sql {
        /// What SQLite said.
        message: String,
        /// What would help, where that can be told.
        hint: Option<String>,
    },
    /// The query would do more than read.
    #[error("{what} is refused: queries can only read the run file")]
    Refused {
        /// What it would do.
        what: String,
    },
    /// More than one statement, or none.
    #[error("give exactly one SQL statement, got {}", if *.many { "more than one" } else { "none" })]
    NotOneStatement {
        /// Whether it were too many.
        many: bool,
    },
    /// The query ran into the limit of memory.
    #[error("this takes too much memory: ask for fewer or shorter values, or sort and group less")]
    TooMuchMemory,
    /// Reading was ended from outside.
    #[error("reading {} was stopped: it took too long, or its answer was not wanted any more", .path.display())]
    Stopped {
        /// The file.
        path: PathBuf,
    },
    /// The query ran into its time limit.
    #[error("stopped after {} s; narrow it with a time range or raise --timeout", .limit.as_secs_f64())]
    TimedOut {
        /// The limit.
        limit: Duration,
    },
}
