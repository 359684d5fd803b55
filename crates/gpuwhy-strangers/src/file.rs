// SPDX-License-Identifier: Apache-2.0
//! Files that a process has, or that lie where it could put them: looked at first, opened only if they are regular.

use rustix::fs::{self, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// The kernel returns EAGAIN if a path was renamed while it was resolved, which a program may do continuously: retry
/// this often.
const TRIES: usize = 16;

/// The target of a path at one time. It was not opened, so devices and pipes are not affected.
#[derive(Debug)]
pub struct Seen {
    place: OwnedFd,
    metadata: Metadata,
}

impl Seen {
    fn new(place: OwnedFd) -> io::Result<Self> {
        let place = File::from(place);
        let metadata = place.metadata()?;
        Ok(Self { place: place.into(), metadata })
    }

    /// Its file type.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Opens it for reading, even if the path has changed since. Only regular files, so it never opens a device and
    /// never waits for a writer of a pipe.
    pub fn open(&self) -> io::Result<File> {
        if !self.metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let path = format!("/proc/self/fd/{}", self.place.as_raw_fd());
        Ok(fs::openat(CWD, path, flags, Mode::empty())?.into())
    }
}

/// Resolves a path in gpuwhy's file system. Links through `/proc` (`/proc/PID/root`, `/proc/PID/fd/3`) are not
/// followed.
pub fn look_at(path: &Path) -> io::Result<Seen> {
    Seen::new(follow(CWD, path, ResolveFlags::NO_MAGICLINKS, path)?)
}

/// Resolves a path in the file system of a process: from its root, which no link can leave.
pub fn look_in_root_of(pid: u32, path: &str) -> io::Result<Seen> {
    let root = format!("/proc/{pid}/root");
    let in_root = fs::openat(CWD, &root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Seen::new(follow(in_root.as_fd(), Path::new(path), flags, Path::new(&format!("{root}{path}")))?)
}

/// The file of a mapping, by its `start-end`, wherever it lies, deleted or not. Needs CAP_CHECKPOINT_RESTORE.
pub fn look_at_mapping(pid: u32, range: &str) -> io::Result<Seen> {
    // The range is text from a file: it must name an entry of that folder and nothing else.
    if !range.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    magic(&format!("/proc/{pid}/map_files/{range}"))
}

/// The file that a process runs.
pub fn look_at_program(pid: u32) -> io::Result<Seen> {
    magic(&format!("/proc/{pid}/exe"))
}

/// A link of the kernel's own, which leads to the very file.
fn magic(path: &str) -> io::Result<Seen> {
    Seen::new(fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// `plain` is the same place by a path alone, for kernels and containers that have no openat2.
fn follow(from: BorrowedFd<'_>, path: &Path, how: ResolveFlags, plain: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    for _ in 0..TRIES {
        match fs::openat2(from, path, flags, Mode::empty(), how) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::NOSYS | Errno::PERM) => return Ok(fs::openat(CWD, plain, flags, Mode::empty())?),
            outcome => return Ok(outcome?),
        }
    }
    Err(Errno::AGAIN.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};

    #[test]
    fn regular_files_are_opened_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "text").unwrap();
        symlink("file", at("link")).unwrap();
        rustix::fs::mkfifoat(CWD, at("pipe"), Mode::RUSR).unwrap();
        for name in ["file", "link"] {
            let mut text = String::new();
            look_at(&at(name)).unwrap().open().unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "text", "{name}");
        }
        assert!(look_at(&at("pipe")).unwrap().open().is_err());
        assert!(look_at(dir.path()).unwrap().open().is_err());
        let zero = look_at(Path::new("/dev/zero")).unwrap();
        assert!(zero.metadata().file_type().is_char_device() && zero.open().is_err());
        assert!(look_at(&at("none")).is_err());
    }

    #[test]
    fn links_of_proc_lead_nowhere() {
        let file = File::open("/etc/passwd").unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert!(look_at(Path::new(&path)).is_err());
        assert!(look_at(Path::new("/proc/self/root/etc/passwd")).is_err());
        assert!(look_in_root_of(std::process::id(), "/proc/self/exe").is_err());
    }

    #[test]
    fn a_process_leads_to_its_own_files() {
        let own = std::process::id();
        let exe = std::env::current_exe().unwrap();
        let expected = std::fs::metadata(&exe).unwrap().ino();
        assert_eq!(look_at_program(own).unwrap().metadata().ino(), expected);
        assert_eq!(look_in_root_of(own, exe.to_str().unwrap()).unwrap().metadata().ino(), expected);
        for range in ["../exe", "0-0/../../exe", "", "0-0"] {
            assert!(look_at_mapping(own, range).and_then(|seen| seen.open()).is_err(), "{range}");
        }
    }
}
