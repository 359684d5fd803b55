// SPDX-License-Identifier: Apache-2.0
//! Opening a run file to read it: finished, being written, or left behind by a killed gpuwhy.

use crate::guarded::{CACHE, Guard};
use crate::place::with_end;
use crate::{Error, Result, functions, schema, scratch};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::fmt::Write;
use std::io;
use std::os::unix::ffi::OsStrExt;
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
}

impl Reader {
    /// Opens a run file and checks that it is one this gpuwhy can read.
    pub fn open(path: &Path) -> Result<Self> {
        let mut db = open_read_only(path)?;
        let guard = Guard::install(&mut db, CACHE).map_err(|source| read_error(path, source))?;
        functions::install(&db).map_err(|source| read_error(path, source))?;
        Ok(Self { db, path: path.into(), guard })
    }

    /// From now on every question fails after this long in all: the file, and its views, may be anybody's.
    pub fn give_up_after(&self, time: Duration) {
        self.guard.give_up_after(time);
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Turns what SQLite said into what it means for this file.
    pub(crate) fn error(&self, source: rusqlite::Error) -> Error {
        read_error(&self.path, source)
    }
}

/// Opens a run file read-only and checks its marks; nothing else is locked yet.
pub(crate) fn open_read_only(path: &Path) -> Result<Connection> {
    match std::fs::metadata(path) {
        // A pipe would keep whoever opens it waiting for its other end.
        Ok(found) if !found.is_file() => return Err(Error::NotSqlite { path: path.into() }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Error::NotFound { path: path.into() }),
        _ => {}
    }
    match open_checked(path, false) {
        // In a folder we may not write to, a file left in WAL mode cannot get its -shm. Without a -wal
        // nobody writes it and the main file is complete, so it can be read as it stands.
        Err(Error::CannotRead { .. }) if !has_wal(path) => open_checked(path, true),
        other => other,
    }
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

/// The version of a run file; an error for what is none, or is too new.
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
            // A run file has its one session from the moment it has anything; a view of that name could do anything.
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
            | ErrorCode::OutOfMemory,
        ) => Error::CannotRead { path, source },
        Some(ErrorCode::OperationInterrupted) => Error::Stopped { path },
        // Only our own SQL gets here; if it does not fit the file, the file is not what it was.
        _ => Error::Corrupt { path, source },
    }
}
