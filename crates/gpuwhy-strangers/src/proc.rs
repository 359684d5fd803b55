// SPDX-License-Identifier: Apache-2.0
//! The kernel's text files, each with a largest size.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// A file of `/proc/PID`. The process itself controls the content of some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcFile {
    /// The command line, which lies in the process's own memory and may be as large as that.
    CommandLine,
    /// The main thread's name.
    Comm,
    /// One line of figures.
    Stat,
    /// Figures by name. Groups, of which there may be 65,536, stand after what gpuwhy reads.
    Status,
    /// The mappings; up to 65,530 lines by the kernel's default limit.
    Maps,
    /// Which cgroups it is in.
    Cgroup,
    /// Bytes read and written.
    Io,
    /// The environment it was started with.
    Environ,
}

impl ProcFile {
    const fn name(self) -> &'static str {
        match self {
            Self::CommandLine => "cmdline",
            Self::Comm => "comm",
            Self::Stat => "stat",
            Self::Status => "status",
            Self::Maps => "maps",
            Self::Cgroup => "cgroup",
            Self::Io => "io",
            Self::Environ => "environ",
        }
    }

    /// Maximum bytes to read.
    pub const fn limit(self) -> usize {
        match self {
            Self::Comm | Self::Io => 1 << 10,
            Self::Stat => 4 << 10,
            Self::CommandLine | Self::Status | Self::Cgroup => 64 << 10,
            // The kernel takes arguments and environment of 6 MB together.
            Self::Environ => 8 << 20,
            Self::Maps => 16 << 20,
        }
    }
}

/// Reads a file of a process, at most [`ProcFile::limit`] bytes. Mappings end with a whole line.
pub fn read_proc(pid: u32, file: ProcFile) -> io::Result<Vec<u8>> {
    let mut bytes = read_file(Path::new(&format!("/proc/{pid}/{}", file.name())), file.limit())?;
    if file == ProcFile::Maps && bytes.len() == file.limit() {
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        bytes.truncate(end);
    }
    Ok(bytes)
}

/// Reads a file of the kernel (`/proc`, `/sys`), at most `most` bytes.
pub fn read_file(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    read_at_most(&open_file(path)?, limit)
}

/// Opens a file of the kernel's, to be read again and again.
pub fn open_file(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// The same as text; invalid UTF-8 becomes U+FFFD.
pub fn read_text(path: &Path, limit: usize) -> io::Result<String> {
    let bytes = read_file(path, limit)?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Reads the rest of an open file, at most `most` bytes. It does not query the size, because the kernel's files have
/// none.
pub fn read_at_most(mut file: &File, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; limit.min(4 << 10)];
    let mut filled = 0;
    while filled < limit {
        if filled == bytes.len() {
            bytes.resize((filled * 2).min(limit), 0);
        }
        match file.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_file_is_cut() {
        for limit in [0, 1, 4096, 4097, 100_000] {
            assert_eq!(read_file(Path::new("/dev/zero"), limit).unwrap().len(), limit);
        }
        assert_eq!(read_file(Path::new("/dev/null"), 10).unwrap(), b"");
    }

    #[test]
    fn files_of_this_process_are_whole() {
        let own = std::process::id();
        for (file, path) in [(ProcFile::CommandLine, "/proc/self/cmdline"), (ProcFile::Cgroup, "/proc/self/cgroup")] {
            assert_eq!(read_proc(own, file).unwrap(), std::fs::read(path).unwrap());
        }
        assert!(read_proc(own, ProcFile::Maps).unwrap().ends_with(b"\n"));
        assert!(read_proc(u32::MAX, ProcFile::Stat).is_err());
    }
}
