// SPDX-License-Identifier: Apache-2.0
//! The files that SQLite keeps beside a run file, and whose they are.
//!
//! SQLite finds them by their names and believes what is in them. In a folder where everybody may create files, like /tmp,
//! somebody else can be first: a -wal replaces what the run file says, a -journal is played back into it, and a -shm, which
//! SQLite maps, kills whoever maps it (SIGBUS) when its owner makes it shorter. In such a folder nobody can replace or remove
//! what another user made. Hence:
//! - Who writes a run makes all of them himself, before SQLite opens the file, and refuses what is there already.
//! - Who opens a run file looks at those that are there, by descriptor, and refuses what is not the run file's owner's,
//!   his own or root's.
//!
//! SQLite could do without a -shm (`locking_mode=EXCLUSIVE`), but then nobody could read a run while it is recorded, which
//! `memory --live`, alerts and MCP do.

use crate::place::{Owner, with_end};
use crate::{Error, Result};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

/// How their names end.
pub(crate) const ENDS: [&str; 3] = ["-wal", "-shm", JOURNAL];
const JOURNAL: &str = "-journal";

/// Files made so that nobody else can make them; removed when dropped, unless they were [kept](Held::keep).
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

/// Makes the -wal and -shm of a new run file, empty, and its -journal, which is to be removed once SQLite uses the -wal.
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

/// Makes the -journal of a file that SQLite is about to change. One that is there already, and may be, is SQLite's.
pub(crate) fn take_journal(path: &Path) -> Result<Held> {
    let side = with_end(path, JOURNAL);
    match create(&side, None) {
        Ok(()) => Ok(Held(vec![side])),
        // Without leave to create it, SQLite has none either and will say so.
        Err(_) => check(path).map(|()| Held(Vec::new())),
    }
}

fn create(side: &Path, owner: Option<Owner>) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    let made = options.open(side)?;
    owner.map_or(Ok(()), |Owner { uid, gid }| fchown(&made, Some(uid), Some(gid)))
}

/// Refuses to open a run file beside which somebody else has put something.
pub(crate) fn check(path: &Path) -> Result<()> {
    // SQLite, too, follows links and looks beside what they lead to. What cannot be looked at it cannot open either.
    let Ok(path) = fs::canonicalize(path) else { return Ok(()) };
    match fs::symlink_metadata(&path) {
        Ok(found) => check_against(&path, &[found.uid()], found.mode()),
        Err(_) => Ok(()),
    }
}

/// The same where a new run file is to be, and whose it will be.
pub(crate) fn check_new(path: &Path, owner: Option<Owner>) -> Result<()> {
    let earlier = fs::symlink_metadata(path).ok();
    let owners: Vec<u32> = owner.map(|owner| owner.uid).into_iter().chain(earlier.iter().map(Metadata::uid)).collect();
    check_against(path, &owners, earlier.map_or(0, |found| found.mode()))
}

/// `mode` is the run file's own: whoever may write to that needs no other way.
fn check_against(path: &Path, owners: &[u32], mode: u32) -> Result<()> {
    for end in ENDS {
        let side = with_end(path, end);
        // A descriptor that reads nothing: closing it does not drop SQLite's locks.
        let opened =
            OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC).open(&side);
        let Ok(found) = opened.and_then(|file: File| file.metadata()) else { continue };
        if let Some(what) = wrong(&found, owners, mode) {
            return Err(planted(path, &side, what));
        }
    }
    Ok(())
}

/// What is wrong with a file beside a run file.
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

/// What is there after SQLite has opened the file, and was not before.
pub(crate) fn appeared(path: &Path) -> Error {
    planted(path, &with_end(path, "-wal"), "was just created by another program".into())
}

fn planted(path: &Path, side: &Path, what: String) -> Error {
    Error::Planted { path: path.into(), side: side.into(), what }
}
