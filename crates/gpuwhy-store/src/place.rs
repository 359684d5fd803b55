// SPDX-License-Identifier: Apache-2.0
//! Claiming a path for a new run file: an existing file is renamed, never overwritten or followed.
//!
//! gpuwhy runs as root in folders of users, so nothing here follows a symbolic link at the path itself.
//!
//! A file being written has an "open file description" lock on its first byte. `flock` is not used, because on NFS it
//! locks the whole file and would conflict with SQLite's own POSIX locks on bytes at 1 GiB. The kernel drops those for
//! the whole process when *any* descriptor of the file is closed in it. Hence two rules: the locked descriptor stays
//! open until SQLite has closed the file ([`Claim`] is dropped last), and a file that this process writes is recognised
//! by its inode, without opening it ([`WRITTEN_HERE`]).

use crate::{Error, Result, side_files, utc};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Device and inode of every run file this process writes.
static WRITTEN_HERE: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// Owner of a run file: with sudo, the user who called it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// An empty file of our own at the wanted path, locked against other gpuwhys.
pub(crate) struct Claim {
    /// The path with its folder resolved, so that SQLite may refuse every symbolic link in it.
    pub(crate) path: PathBuf,
    /// Where the file that stood there was moved.
    pub(crate) moved: Option<PathBuf>,
    identity: (u64, u64),
    /// Held for its lock.
    file: File,
}

impl Claim {
    /// Marks the file as WAL mode in its header; the file must not be open anywhere.
    pub(crate) fn mark_wal(&self) -> io::Result<()> {
        self.file.write_all_at(&[2, 2], 18)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        WRITTEN_HERE.lock().unwrap_or_else(PoisonError::into_inner).retain(|id| *id != self.identity);
    }
}

/// Takes `path`. SQLite gives -wal and -shm the owner of the main file, so only that one is given away here.
pub(crate) fn claim(path: &Path, owner: Option<Owner>) -> Result<Claim> {
    let path = resolve(path)?;
    refuse_if_written(&path)?;
    side_files::check_new(&path, owner)?;
    let moved = move_aside(&path)?;
    let cannot_create = |source| Error::CannotCreate { path: path.clone(), source };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        // Command lines and paths are private to the user who recorded them; they can chmod the file.
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(&path)
        .map_err(cannot_create)?;
    let ours = file.metadata().map_err(cannot_create)?;
    // Between creating and locking, another gpuwhy may have taken the file for an old one and moved it.
    let still_ours = lock(&file) && fs::symlink_metadata(&path).is_ok_and(|now| identity(&now) == identity(&ours));
    if !still_ours {
        return Err(Error::BeingWritten { path });
    }
    if let Some(Owner { uid, gid }) = owner {
        fchown(&file, Some(uid), Some(gid)).map_err(cannot_create)?;
    }
    WRITTEN_HERE.lock().unwrap_or_else(PoisonError::into_inner).push(identity(&ours));
    Ok(Claim { path, moved, identity: identity(&ours), file })
}

/// The path with its folder made absolute and free of symbolic links; the last part stays as it is.
fn resolve(path: &Path) -> Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| Error::NotAFile { path: path.into() })?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match fs::canonicalize(folder) {
        Ok(resolved) if resolved.is_dir() => Ok(resolved.join(name)),
        Ok(_) => Err(Error::FolderMissing { folder: folder.into() }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Error::FolderMissing { folder: folder.into() }),
        Err(source) => Err(Error::CannotCreate { path: path.into(), source }),
    }
}

/// Refuses to move a file in use, or anything that is not a regular file, such as /dev/null.
fn refuse_if_written(path: &Path) -> Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if found.is_symlink() {
        return Ok(());
    }
    if !found.is_file() {
        return Err(Error::NotAFile { path: path.into() });
    }
    if WRITTEN_HERE.lock().unwrap_or_else(PoisonError::into_inner).contains(&identity(&found)) {
        return Err(Error::BeingWritten { path: path.into() });
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
        .map_err(|source| Error::CannotMoveAside { path: path.into(), source })?;
    if is_locked(&file) { Err(Error::BeingWritten { path: path.into() }) } else { Ok(()) }
}

/// Whether this process writes the file at `path` now.
pub(crate) fn is_written_here(path: &Path) -> bool {
    let written = || WRITTEN_HERE.lock().unwrap_or_else(PoisonError::into_inner);
    fs::metadata(path).is_ok_and(|found| written().contains(&identity(&found)))
}

/// Whether a gpuwhy is writing the file at `path`, if the file system supports locks. Call it only while SQLite does
/// not have the file open in this process: closing the descriptor opened here drops SQLite's locks.
pub fn is_written(path: &Path) -> io::Result<bool> {
    let found = fs::metadata(path)?;
    if WRITTEN_HERE.lock().unwrap_or_else(PoisonError::into_inner).contains(&identity(&found)) {
        return Ok(true);
    }
    if !found.is_file() {
        return Ok(false);
    }
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)?;
    Ok(is_locked(&file))
}

/// A lock for writing on the first byte.
fn first_byte() -> libc::flock {
    libc::flock { l_type: libc::F_WRLCK as i16, l_whence: libc::SEEK_SET as i16, l_start: 0, l_len: 1, l_pid: 0 }
}

/// Takes the lock; it goes with the descriptor, however the process ends. `false` if another has it. A file
/// system that knows no locks has no answer; there SQLite's own refusal has to do.
fn lock(file: &File) -> bool {
    let wanted = first_byte();
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and `wanted` is a valid flock.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const wanted) };
    done == 0 || !matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

/// Whether another descriptor holds the lock, without taking it.
fn is_locked(file: &File) -> bool {
    let mut asked = first_byte();
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the kernel may write to `asked`.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut asked) };
    done == 0 && asked.l_type != libc::F_UNLCK as i16
}

/// The files of a run that is being written, or whose writer was killed: the newest events are in the -wal.
const PARTS: [&str; 4] = ["", side_files::ENDS[0], side_files::ENDS[1], side_files::ENDS[2]];

/// Renames the file at `path` and its side files to a free name with the time it was last written.
fn move_aside(path: &Path) -> Result<Option<PathBuf>> {
    let modified = PARTS.iter().filter_map(|end| Some(found(path, end)?.mtime())).max();
    let Some(modified) = modified else {
        return Ok(None);
    };
    let target = free_name(path, &utc::stamp(modified));
    for end in PARTS.iter().filter(|end| found(path, end).is_some()) {
        rename_no_replace(&with_end(path, end), &with_end(&target, end))
            .map_err(|source| Error::CannotMoveAside { path: path.into(), source })?;
    }
    Ok(Some(target))
}

/// `stem-STAMP.db` in the folder of `path`, or `stem-STAMP-2.db` and so on if that exists.
fn free_name(path: &Path, stamp: &str) -> PathBuf {
    let named = |number: String| {
        let mut name = path.file_stem().unwrap_or_default().to_owned();
        name.push(format!("-{stamp}{number}.db"));
        path.with_file_name(name)
    };
    let mut target = named(String::new());
    let mut number = 2u64;
    while PARTS.iter().any(|end| found(&target, end).is_some()) {
        target = named(format!("-{number}"));
        number += 1;
    }
    target
}

fn found(path: &Path, end: &str) -> Option<fs::Metadata> {
    fs::symlink_metadata(with_end(path, end)).ok()
}

/// `rename` that leaves an existing target alone, where the file system can promise it.
pub(crate) fn rename_no_replace(from: &Path, to: &Path) -> io::Result<()> {
    let c_from = CString::new(from.as_os_str().as_bytes())?;
    let c_to = CString::new(to.as_os_str().as_bytes())?;
    // SAFETY: both are NUL-terminated strings that outlive the call.
    let done = unsafe {
        libc::renameat2(libc::AT_FDCWD, c_from.as_ptr(), libc::AT_FDCWD, c_to.as_ptr(), libc::RENAME_NOREPLACE)
    };
    if done == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // Not every file system supports the flag; the target was just checked to be free.
        e if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) => fs::rename(from, to),
        e => Err(e),
    }
}

/// The path with something added to its end: `gpuwhy.db` → `gpuwhy.db-wal`.
pub(crate) fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut text = path.as_os_str().to_owned();
    text.push(end);
    text.into()
}

fn identity(found: &fs::Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}
