// SPDX-License-Identifier: Apache-2.0
//! Opening a run file to read it: finished, being written, or left behind by a killed gpuwhy.

use crate::guarded::{CACHE, Guard};
use crate::place::{self, with_end};
use crate::{Error, Result, functions, schema, scratch, side_files};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::ffi::CString;
use std::fmt::Write;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long to wait for a writer that is changing the file's mode (it does so at the end of a run).
const BUSY: Duration = Duration::from_secs(5);

/// A run file open for reading. It cannot be changed through this.
pub struct Reader {
    pub(crate) db: Connection,
    pub(crate) path: PathBuf,
    pub(crate) guard: Arc<Guard>,
    lacks_wal: bool,
}

impl Reader {
    /// Opens a run file and checks that it is one this gpuwhy can read.
    pub fn open(path: &Path) -> Result<Self> {
        let lacks_wal = is_without_wal(path);
        let mut db = open_read_only(path)?;
        let guard = Guard::install(&mut db, CACHE).map_err(|source| read_error(path, source))?;
        functions::install(&db).map_err(|source| read_error(path, source))?;
        Ok(Self { db, path: path.into(), guard, lacks_wal })
    }

    /// Sets a total time limit for all later queries: the file and its views are untrusted.
    pub fn give_up_after(&self, time: Duration) {
        self.guard.give_up_after(time);
    }

    /// Whether this is the file of a killed gpuwhy without the -wal that belongs to it: the run's last seconds may be
    /// missing.
    pub fn lacks_wal(&self) -> bool {
        self.lacks_wal
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Maps an SQLite error to an error of this file.
    pub(crate) fn error(&self, source: rusqlite::Error) -> Error {
        read_error(&self.path, source)
    }
}

/// Opens a run file read-only and checks its marks; nothing else is locked yet.
pub(crate) fn open_read_only(path: &Path) -> Result<Connection> {
    match std::fs::metadata(path) {
        // Opening a pipe would block until its other end is opened.
        Ok(found) if !found.is_file() => return Err(Error::NotSqlite { path: path.into() }),
        // SQLite would take its -wal for that of another file, and remove it.
        Ok(found) if found.len() == 0 => return Err(Error::Empty { path: path.into() }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Error::NotFound { path: path.into() }),
        Ok(found) if !may_read(path) => return Err(Error::NotPermitted { path: path.into(), owner: found.uid() }),
        _ => {}
    }
    if is_without_wal(path) {
        // No gpuwhy is writing it. SQLite would create an empty -wal and hide that events are missing.
        let db = open_checked(path, true)?;
        let empty = "SELECT NOT EXISTS (SELECT 1 FROM call_) AND NOT EXISTS (SELECT 1 FROM off_)
            AND (SELECT stop_unix_ns IS NULL FROM session_)";
        let empty = db.query_row(empty, [], |row| row.get(0)).map_err(|source| read_error(path, source))?;
        return if empty { Err(Error::WithoutWal { path: path.into() }) } else { Ok(db) };
    }
    side_files::check(path)?;
    let had_wal = with_end(path, "-wal").symlink_metadata().is_ok();
    match open_checked(path, false) {
        Ok(db) if !had_wal && in_wal_mode(&db, path)? => Err(side_files::appeared(path)),
        // In a read-only folder, SQLite cannot create the -shm of a file in WAL mode. Without a -wal, no gpuwhy is
        // writing it and the main file is complete, so it can be read as immutable.
        Err(Error::CannotRead { .. }) if !has_wal(path) => open_checked(path, true),
        other => other,
    }
}

/// Asked without opening it: closing any descriptor of a file drops SQLite's locks in this process.
fn may_read(path: &Path) -> bool {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: reads a string that ends in a zero byte.
    unsafe { libc::faccessat(libc::AT_FDCWD, name.as_ptr(), libc::R_OK, libc::AT_EACCESS) == 0 }
}

/// Whether SQLite has found a -wal.
fn in_wal_mode(db: &Connection, path: &Path) -> Result<bool> {
    let mode: String =
        db.pragma_query_value(None, "journal_mode", |row| row.get(0)).map_err(|source| read_error(path, source))?;
    Ok(mode == "wal")
}

fn open_checked(path: &Path, immutable: bool) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let (name, flags) = if immutable {
        (PathBuf::from(immutable_uri(path)), flags | OpenFlags::SQLITE_OPEN_URI)
    } else {
        (path.to_owned(), flags)
    };
    let opened = match scratch::file_system() {
        Some(system) => Connection::open_with_flags_and_vfs(name, flags, system),
        None => Connection::open_with_flags(name, flags),
    };
    let db = opened.map_err(|source| read_error(path, source))?;
    db.busy_timeout(BUSY).map_err(|source| read_error(path, source))?;
    check_marks(&db, path)?;
    Ok(db)
}

/// The version of a run file; an error if it is not one, or is too new.
pub(crate) fn check_marks(db: &Connection, path: &Path) -> Result<i32> {
    let marks = || -> rusqlite::Result<(i32, i32)> {
        let application = db.pragma_query_value(None, "application_id", |row| row.get(0))?;
        let version = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
        Ok((application, version))
    };
    match marks().map_err(|source| read_error(path, source))? {
        (schema::APPLICATION_ID, version) if version > schema::VERSION => {
            Err(Error::Newer { path: path.into(), version })
        }
        (schema::APPLICATION_ID, version @ 1..) => {
            // Every run file has exactly one session. A view of that name could execute anything.
            let sql = "SELECT COUNT(*) FROM sqlite_schema WHERE name = 'session_' AND type = 'table'";
            let table: i64 = db.query_row(sql, [], |row| row.get(0)).map_err(|source| read_error(path, source))?;
            if table != 1 {
                return Err(Error::NotARun { path: path.into() });
            }
            db.query_row("SELECT 1 FROM session_", [], |_| Ok(())).map_err(|source| read_error(path, source))?;
            Ok(version)
        }
        _ => Err(Error::NotARun { path: path.into() }),
    }
}

/// `file:///…?immutable=1`, with every byte that means something in a URI escaped.
fn immutable_uri(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let mut uri = String::from("file://");
    for byte in absolute.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => uri.push(char::from(*byte)),
            // Writing to a String cannot fail.
            _ => _ = write!(uri, "%{byte:02x}"),
        }
    }
    uri + "?immutable=1"
}

/// Whether a file needs a -wal but has none: the file of a killed gpuwhy, copied without it.
pub(crate) fn is_without_wal(path: &Path) -> bool {
    // A file being written must not be opened here: closing the descriptor would drop SQLite's locks in this process.
    if with_end(path, "-wal").symlink_metadata().is_ok() || place::is_written_here(path) {
        return false;
    }
    // The read and write versions in the header; 2 means WAL.
    let mut versions = [0; 2];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut versions, 18));
    read.is_ok() && versions == [2, 2]
}

fn has_wal(path: &Path) -> bool {
    std::fs::metadata(with_end(path, "-wal")).is_ok_and(|wal| wal.len() > 0)
}

pub(crate) fn read_error(path: &Path, source: rusqlite::Error) -> Error {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => Error::NotSqlite { path },
        Some(
            ErrorCode::CannotOpen
            | ErrorCode::PermissionDenied
            | ErrorCode::ReadOnly
            | ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::SystemIoFailure
            | ErrorCode::DiskFull
            | ErrorCode::OutOfMemory,
        ) => Error::CannotRead { path, source },
        Some(ErrorCode::OperationInterrupted) => Error::Stopped { path },
        _ if is_without_wal(&path) => Error::CorruptWithoutWal { path, source },
        // Only our own SQL gets here; if it does not fit the file, the file is not what it was.
        _ => Error::Corrupt { path, source },
    }
}
