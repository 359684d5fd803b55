// SPDX-License-Identifier: Apache-2.0
//! One closed file out of what a killed gpuwhy left: the run file and its -wal.
//!
//! In place, SQLite itself moves what the -wal holds into the file, so that being stopped in between costs nothing.
//! With an output both files are copied first and the originals stay as they are.

use crate::reader::{check_marks, read_error};
use crate::{Error, Owner, Reader, Result, place, side_files};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long to wait for readers of the file.
const BUSY: Duration = Duration::from_secs(5);
/// Maximum number of reported problems.
const MOST_DAMAGE: u32 = 5;

/// What to repair, and where to write the result.
pub struct RepairRequest<'a> {
    /// The run file; its -wal, if any, is in the same folder.
    pub path: &'a Path,
    /// The file to be made; `None` to repair in place.
    pub output: Option<&'a Path>,
    /// Owner of the new file; `None`: the current user.
    pub owner: Option<Owner>,
}

/// A run file that is one closed file now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// Where it is.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// How large its -wal was, bytes; `None` if there was none.
    pub wal_bytes: Option<u64>,
    /// Whether a -wal was missing: then the run's last seconds may be.
    pub lacks_wal: bool,
    /// Events in it.
    pub stored: u64,
    /// Events known to be lost.
    pub lost: u64,
    /// Processes.
    pub processes: u64,
    /// Length of the run, up to the last stored event.
    pub duration_ns: u64,
    /// Whether the run has an end; if not, its gpuwhy was killed.
    pub has_end: bool,
    /// Damage found by SQLite.
    pub damage: Vec<String>,
}

/// For the path of a -wal, -shm or -journal, the run file it belongs to.
pub fn main_file(path: &Path) -> Option<PathBuf> {
    let text = path.as_os_str().as_bytes();
    let name = ["-wal", "-shm", "-journal"].iter().find_map(|end| text.strip_suffix(end.as_bytes()))?;
    (!name.is_empty()).then(|| OsStr::from_bytes(name).into())
}

/// Combines a run file and its -wal into one file.
pub fn repair(request: &RepairRequest<'_>) -> Result<Repaired> {
    let path = request.path;
    let refuse = |what: String| Error::CannotRepair { path: path.into(), what };
    match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Error::NotFound { path: path.into() }),
        Err(e) => return Err(refuse(e.to_string())),
        Ok(found) if !found.is_file() => return Err(Error::NotSqlite { path: path.into() }),
        Ok(found) if found.len() == 0 => return Err(Error::Empty { path: path.into() }),
        Ok(_) => {}
    }
    if place::is_written(path).map_err(|e| refuse(e.to_string()))? {
        return Err(refuse("it is still being recorded; wait for that gpuwhy to end".into()));
    }
    side_files::check(path)?;
    let lacks_wal = crate::reader::is_without_wal(path);
    let wal_bytes = fs::metadata(place::with_end(path, "-wal")).ok().map(|wal| wal.len());
    if lacks_wal {
        // An error if the file has no events without its -wal.
        Reader::open(path)?;
    }
    let copied = request.output.map(|output| Copied::of(path, output, request.owner)).transpose()?;
    let damage = close_into_one(copied.as_ref().map_or(path, |copied| &copied.hidden))?;
    let path = match copied {
        Some(copied) => copied.put_in_place()?,
        None => path.to_owned(),
    };
    let reader = Reader::open(&path)?;
    let session = reader.session()?;
    Ok(Repaired {
        size_bytes: fs::metadata(&path).map_or(0, |file| file.len()),
        wal_bytes,
        lacks_wal,
        stored: session.events_stored,
        lost: session.events_lost,
        processes: reader.processes()?.len() as u64,
        duration_ns: session.duration_ns,
        has_end: session.stop_unix_ns.is_some(),
        damage,
        path,
    })
}

/// Moves everything into the main file and ends WAL mode; returns the damage found.
fn close_into_one(path: &Path) -> Result<Vec<String>> {
    let failed = |source| not_repaired(path, source);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags).map_err(failed)?;
    db.busy_timeout(BUSY).map_err(failed)?;
    // The file is untrusted: nothing in its schema may execute.
    for (setting, value) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
    ] {
        db.set_db_config(setting, value).map_err(failed)?;
    }
    check_marks(&db, path)?;
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).map_err(failed)?;
    let mode: String = db.query_row("PRAGMA journal_mode = DELETE", [], |row| row.get(0)).map_err(failed)?;
    if mode != "delete" {
        let what = "another program has it open; close that program, or write a repaired copy with -o".to_owned();
        return Err(Error::CannotRepair { path: path.into(), what });
    }
    damage(&db).map_err(failed)
}

fn not_repaired(path: &Path, source: rusqlite::Error) -> Error {
    if source.sqlite_error_code() == Some(ErrorCode::DiskFull) {
        let what = "no space left on its disk: free some, or give -o a file on another disk".to_owned();
        return Error::CannotRepair { path: path.into(), what };
    }
    read_error(path, source)
}

/// Damage found by SQLite. If SQLite cannot read the file at all, that error is the result.
fn damage(db: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut check = db.prepare(&format!("PRAGMA quick_check({MOST_DAMAGE})"))?;
    let mut lines = Vec::new();
    for line in check.query_map([], |row| row.get::<_, String>(0))? {
        match line {
            Ok(line) => lines.push(line),
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt) => {
                lines.push(error.to_string());
                break;
            }
            Err(error) => return Err(error),
        }
    }
    lines.retain(|line| line != "ok");
    Ok(lines)
}

/// A temporary copy of a run file and its -wal in the folder of the output. Dropping it removes the copy.
struct Copied {
    hidden: PathBuf,
    output: PathBuf,
}

impl Copied {
    fn of(path: &Path, output: &Path, owner: Option<Owner>) -> Result<Self> {
        let cannot = |source| Error::CannotPlaceMerged { path: output.into(), source };
        if output.symlink_metadata().is_ok() {
            return Err(Error::Exists { path: output.into() });
        }
        let name = output.file_name().ok_or_else(|| cannot(io::ErrorKind::IsADirectory.into()))?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".repair-{}", std::process::id()));
        let copied = Self { hidden: output.with_file_name(hidden), output: output.into() };
        for end in ["", "-wal"] {
            let from = place::with_end(path, end);
            if end.is_empty() || from.exists() {
                copy(&from, &place::with_end(&copied.hidden, end), owner).map_err(cannot)?;
            }
        }
        Ok(copied)
    }

    fn put_in_place(mut self) -> Result<PathBuf> {
        place::rename_no_replace(&self.hidden, &self.output).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => Error::Exists { path: self.output.clone() },
            _ => Error::CannotPlaceMerged { path: self.output.clone(), source },
        })?;
        Ok(std::mem::take(&mut self.output))
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        for end in ["", "-wal", "-shm", "-journal"] {
            // Errors are ignored: after success there is nothing to remove, and otherwise the first error matters.
            let _ = fs::remove_file(place::with_end(&self.hidden, end));
        }
    }
}

fn copy(from: &Path, to: &Path, owner: Option<Owner>) -> io::Result<()> {
    let mut from = File::open(from)?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    let mut to = options.open(to)?;
    io::copy(&mut from, &mut to)?;
    owner.map_or(Ok(()), |Owner { uid, gid }| fchown(&to, Some(uid), Some(gid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_not_damage() {
        let full = || rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL), None);
        let said = not_repaired(Path::new("run.db"), full()).to_string();
        assert!(said.contains("no space left") && said.contains("-o"), "{said}");
        let said = read_error(Path::new("run.db"), full()).to_string();
        assert!(!said.contains("damaged"), "{said}");
    }
}
