// SPDX-License-Identifier: Apache-2.0
//! Errors of run files, worded so that the user knows what to do.

use gpuwhy_model::units::{bytes, count};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Shorthand for this crate's results.
pub type Result<T> = std::result::Result<T, Error>;

/// A problem with a run file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder the run file should lie in does not exist.
    #[error("the folder {} does not exist: create it, or choose another path with --db", .folder.display())]
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
    #[error("{} is not a regular file, so gpuwhy does not replace it: give --db another name", .path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Another gpuwhy is writing this file now.
    #[error("{} is being written by another gpuwhy: wait for it, or give --db another name", .path.display())]
    BeingWritten {
        /// The run file.
        path: PathBuf,
    },
    /// The file of an earlier run could not be moved out of the way.
    #[error("cannot rename the existing {}: {source}; move it yourself, or give --db another name", .path.display())]
    CannotMoveAside {
        /// The earlier file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No space left while writing.
    #[error("the disk with {} is full: keeping events in memory ({} so far); free some space", .path.display(), bytes(*.kept_bytes))]
    DiskFull {
        /// The run file.
        path: PathBuf,
        /// Rows in memory, bytes.
        kept_bytes: u64,
    },
    /// Writing failed for another reason.
    #[error("cannot write to {}: {source}; keeping events in memory ({} so far)", .path.display(), bytes(*.kept_bytes))]
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
        "the disk with {} was full until the end: {} events were dropped, and only `seconds` counts them",
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
        "cannot combine {} and its -wal into one file ({source}): keep {}-wal next to it, it has the end of the run",
        .path.display(), .path.display()
    )]
    NotMerged {
        /// The run file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// Another user has put a file where SQLite keeps its -wal, -shm or -journal.
    #[error(
        "{} {what}, and SQLite would read it as part of {}: remove it, or use a folder where only you can create files",
        .side.display(), .path.display()
    )]
    Planted {
        /// The run file.
        path: PathBuf,
        /// The file next to it.
        side: PathBuf,
        /// The problem with that file.
        what: String,
    },
    /// A run file owned by another user.
    #[error("{} belongs to another user: gpuwhy does not add findings to it", .path.display())]
    NotYours {
        /// The path.
        path: PathBuf,
    },
    /// A run file and its -wal cannot be combined.
    #[error("cannot repair {}: {what}", .path.display())]
    CannotRepair {
        /// The run file.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// Nothing could be added to a run file.
    #[error("cannot add findings to {}: {source}; the file is unchanged, check that you may write to it", .path.display())]
    CannotAdd {
        /// The run file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// No file at that path.
    #[error("no run file {}: record one with `gpuwhy trace`, or name another with --db", .path.display())]
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
        "{} is empty: gpuwhy was killed before it stored anything, or the copy is incomplete; copy it again together \
         with {}-wal", .path.display(), .path.display()
    )]
    Empty {
        /// The path.
        path: PathBuf,
    },
    /// The file of a killed gpuwhy whose events are all in its -wal.
    #[error(
        "{} has no events: gpuwhy was killed, and its events are in {}-wal, which is missing; copy that file \
         next to it, then run `gpuwhy repair {}`", .path.display(), .path.display(), .path.display()
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
        "{} is damaged ({source}): `sqlite3 {} .recover` saves what is readable",
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
        "{} has run-file version {version}, but this gpuwhy reads versions up to {}: update gpuwhy",
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
    #[error("cannot read {}: {source}; check its permissions, and that its -wal file, if any, is in the same folder", .path.display())]
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
    /// A run cannot be copied by `share`.
    #[error("cannot copy {}: {what}", .path.display())]
    CannotShare {
        /// The run file.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// The output file already exists.
    #[error("{} already exists: give -o another name, or move that file away", .path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// The output file cannot be created.
    #[error("cannot create {}: {source}; choose another path with -o", .path.display())]
    CannotPlaceMerged {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The output file cannot be written completely.
    #[error("cannot write {}: {source}; the partial file was removed, free some space or choose another path with -o", .path.display())]
    CannotWriteMerged {
        /// The path.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// A merge or copy was interrupted.
    #[error("stopped: the partial {} was removed", .path.display())]
    MergeStopped {
        /// The path.
        path: PathBuf,
    },
    /// The query is not valid SQL for this file.
    #[error("{message}{}", .hint.as_ref().map(|h| format!("\nhint: {h}")).unwrap_or_default())]
    Sql {
        /// What SQLite said.
        message: String,
        /// A hint, if there is one.
        hint: Option<String>,
    },
    /// The query would do more than read.
    #[error("{what} is not allowed: queries can only read the run file")]
    Refused {
        /// The forbidden action.
        what: String,
    },
    /// More than one statement, or none.
    #[error("expected one SQL statement, got {}", if *.many { "more than one" } else { "none" })]
    NotOneStatement {
        /// Whether there were several.
        many: bool,
    },
    /// The query ran into the limit of memory.
    #[error("the query needs too much memory: select fewer or shorter values, or sort and group less")]
    TooMuchMemory,
    /// Reading was ended from outside.
    #[error("stopped reading {}: it took too long, or the request was cancelled", .path.display())]
    Stopped {
        /// The file.
        path: PathBuf,
    },
    /// The query ran into its time limit.
    #[error("stopped after {} s: narrow the query with a time range, or raise --timeout", .limit.as_secs_f64())]
    TimedOut {
        /// The limit.
        limit: Duration,
    },
}
