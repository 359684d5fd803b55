// SPDX-License-Identifier: Apache-2.0
//! The side files (-wal, -shm, -journal) that SQLite keeps next to a run file, and their owners.
//!
//! SQLite finds them by name and trusts their content. In a folder where every user may create files, such as /tmp,
//! another user can create them first: a -wal overrides the run file, a -journal is played back into it, and truncating
//! a -shm kills every process that has mapped it (SIGBUS). In such a folder, users cannot replace or remove each
//! other's files. Hence:
//! - The writer of a run creates all of them before SQLite opens the file, and refuses existing ones.
//! - A reader checks existing ones, by descriptor, and refuses those not owned by the owner of the run file, by itself
//!   or by root.
//!
//! SQLite could do without a -shm (`locking_mode=EXCLUSIVE`), but then a run could not be read while it is recorded,
//! which `memory --live`, alerts and MCP do.

use crate::place::{Owner, with_end};
use crate::{Error, Result};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

/// How their names end.
pub(crate) const ENDS: [&str; 3] = ["-wal", "-shm", JOURNAL];
const JOURNAL: &str = "-journal";

/// Files created so that no other user can create them; removed on drop unless [kept](Held::keep).
pub(crate) struct Held(Vec<PathBuf>);

impl Held {
    /// Leaves them to SQLite.
    pub(crate) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // An error in removing them would only hide the first.
        self.0.iter().for_each(|path| _ = fs::remove_file(path));
    }
}

/// Creates an empty -wal and -shm for a new run file, and a -journal, which is removed once SQLite uses the -wal.
pub(crate) fn take(path: &Path, owner: Option<Owner>) -> Result<(Held, Held)> {
    let (mut kept, mut journal) = (Held(Vec::new()), Held(Vec::new()));
    for end in ENDS {
        let side = with_end(path, end);
        create(&side, owner).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => planted(path, &side, "was just created by another program".into()),
            _ => Error::CannotCreate { path: path.into(), source },
        })?;
        if end == JOURNAL { &mut journal } else { &mut kept }.0.push(side);
    }
    Ok((kept, journal))
}

/// Creates the -journal of a file that SQLite is about to change. An existing, acceptable one is SQLite's.
pub(crate) fn take_journal(path: &Path) -> Result<Held> {
    let side = with_end(path, JOURNAL);
    match create(&side, None) {
        Ok(()) => Ok(Held(vec![side])),
        // If we may not create it, neither may SQLite, which will report it.
        Err(_) => check(path).map(|()| Held(Vec::new())),
    }
}

fn create(side: &Path, owner: Option<Owner>) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    let made = options.open(side)?;
    owner.map_or(Ok(()), |Owner { uid, gid }| fchown(&made, Some(uid), Some(gid)))
}

/// Refuses to open a run file if another user has planted a side file.
pub(crate) fn check(path: &Path) -> Result<()> {
    // SQLite also follows links and uses the side files of the target. If we cannot inspect the file, SQLite cannot
    // open it.
    let Ok(path) = fs::canonicalize(path) else { return Ok(()) };
    match fs::symlink_metadata(&path) {
        Ok(found) => check_against(&path, &[found.uid()], found.mode()),
        Err(_) => Ok(()),
    }
}

/// The same for the path and owner of a new run file.
pub(crate) fn check_new(path: &Path, owner: Option<Owner>) -> Result<()> {
    let earlier = fs::symlink_metadata(path).ok();
    let owners: Vec<u32> = owner.map(|owner| owner.uid).into_iter().chain(earlier.iter().map(Metadata::uid)).collect();
    check_against(path, &owners, earlier.map_or(0, |found| found.mode()))
}

/// `mode` is the run file's mode: users who may write to the run file itself are not a threat.
fn check_against(path: &Path, owners: &[u32], mode: u32) -> Result<()> {
    for end in ENDS {
        let side = with_end(path, end);
        // An O_PATH descriptor: closing it does not drop SQLite's locks.
        let opened =
            OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC).open(&side);
        let Ok(found) = opened.and_then(|file: File| file.metadata()) else { continue };
        if let Some(what) = wrong(&found, owners, mode) {
            return Err(planted(path, &side, what));
        }
    }
    Ok(())
}

/// The problem with a side file, if any.
fn wrong(found: &Metadata, owners: &[u32], mode: u32) -> Option<String> {
    // SAFETY: asks for a number.
    let ours = unsafe { libc::geteuid() };
    let uid = found.uid();
    if !found.is_file() {
        Some("is not a regular file".into())
    } else if uid != 0 && uid != ours && !owners.contains(&uid) {
        Some(format!("belongs to another user ({uid})"))
    } else if found.nlink() > 1 {
        Some("has a second name (a hard link)".into())
    } else if found.mode() & 0o022 & !mode != 0 {
        Some("is writable by other users".into())
    } else {
        None
    }
}

/// The error for a -wal that appeared while SQLite opened the file.
pub(crate) fn appeared(path: &Path) -> Error {
    planted(path, &with_end(path, "-wal"), "was just created by another program".into())
}

fn planted(path: &Path, side: &Path, what: String) -> Error {
    Error::Planted { path: path.into(), side: side.into(), what }
}
