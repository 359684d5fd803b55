// SPDX-License-Identifier: Apache-2.0
//! Whether a process runs CPython, which version, and where `_PyRuntime` is.

use super::elf::{self, Image};
use super::offsets::{PyOffsets, PyProcess, Version, offsets};
use super::published::{PUBLISHED_BYTES, from_debug_offsets, published_version};
use super::remote::Memory;
use gpuwhy_strangers::{ProcFile, look_at_mapping, look_at_program, look_in_root_of, read_proc};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;

/// Why a process's Python cannot be walked.
#[derive(Debug, thiserror::Error)]
pub enum PyError {
    /// Not a Python process, or not yet: it may load the library later.
    #[error("process {pid} does not run Python")]
    NoPython {
        /// The process.
        pid: u32,
    },
    /// A Python that gpuwhy does not know.
    #[error("process {pid} runs Python {version}, which gpuwhy cannot read (it reads CPython 3.8 to 3.15)")]
    UnknownVersion {
        /// The process.
        pid: u32,
        /// The version, as far as it is known.
        version: String,
    },
    /// Not permitted, or gone.
    #[error("cannot inspect process {pid}: {source}")]
    Process {
        /// The process.
        pid: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file of its interpreter cannot be read.
    #[error("cannot read {path} of process {pid}: {why}")]
    File {
        /// The process.
        pid: u32,
        /// As the process has it.
        path: String,
        /// The problem.
        why: String,
    },
}

/// A process that runs Python.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What the kernel needs to know.
    pub process: PyProcess,
    /// Which Python.
    pub version: Version,
    /// Whether it is a build without the global lock.
    pub free_threaded: bool,
    /// The file the interpreter is in, as the process has it.
    pub path: String,
}

/// Inspects a process. Takes a few ms, mostly for reading the interpreter's symbols: call it once per program a process
/// runs, and again when it maps a `libpython`.
pub fn find(pid: u32) -> Result<Found, PyError> {
    let failed = |source| PyError::Process { pid, source };
    let maps = read_proc(pid, ProcFile::Maps).map_err(failed)?;
    let maps = String::from_utf8_lossy(&maps);
    let mappings: Vec<Mapping<'_>> = maps.lines().filter_map(Mapping::parse).collect();
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let exe = exe.as_deref().and_then(std::path::Path::to_str).unwrap_or_default();
    let mut trouble = None;
    for mapping in candidates(&mappings, exe) {
        let image = match open(pid, mapping, exe).and_then(|file| look(&file)) {
            Ok(Some(image)) => image,
            Ok(None) => continue,
            Err(why) => {
                trouble = trouble.or(Some(PyError::File { pid, path: mapping.path.to_owned(), why }));
                continue;
            }
        };
        let Some(bias) = image.bias(mapping.offset, mapping.start) else { continue };
        let memory = Memory::of(pid).map_err(failed)?;
        return describe(pid, &memory, &image, bias, mapping.path, &mappings);
    }
    Err(trouble.unwrap_or(PyError::NoPython { pid }))
}

/// Which file, and that it did not change.
type FileKey = (u64, u64, u64, i64, i64);

/// Files looked at before: reading the symbols of an interpreter takes up to 20 ms, and jobs start many of the same.
static LOOKED_AT: Mutex<Vec<(FileKey, Option<Image>)>> = Mutex::new(Vec::new());
const MOST_LOOKED_AT: usize = 64;

fn look(file: &File) -> Result<Option<Image>, String> {
    let meta = file.metadata().map_err(|e| e.to_string())?;
    let key = (meta.dev(), meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec());
    let known = LOOKED_AT.lock().ok().and_then(|known| Some(known.iter().find(|(of, _)| *of == key)?.1.clone()));
    if let Some(image) = known {
        return Ok(image);
    }
    let image = elf::look(file).map_err(|e| e.to_string())?;
    if let Ok(mut known) = LOOKED_AT.lock() {
        if known.len() >= MOST_LOOKED_AT {
            known.remove(0);
        }
        known.push((key, image.clone()));
    }
    Ok(image)
}

fn describe(
    pid: u32,
    memory: &Memory,
    image: &Image,
    bias: u64,
    path: &str,
    mappings: &[Mapping<'_>],
) -> Result<Found, PyError> {
    let runtime = image.runtime.wrapping_add(bias);
    let mut head = vec![0; PUBLISHED_BYTES];
    memory.read(runtime, &mut head).map_err(|source| PyError::Process { pid, source })?;
    let version = published_version(&head)
        .or_else(|| {
            let at = image.version?.wrapping_add(bias);
            Version::from_hex(memory.word(at).ok()? & 0xffff_ffff)
        })
        .or_else(|| version_in_name(path))
        .or_else(|| mappings.iter().find_map(|mapping| version_in_path(mapping.path)));
    let unknown = |version: Option<Version>| {
        let version = version.map_or_else(|| "of unknown version".into(), |version| version.to_string());
        PyError::UnknownVersion { pid, version }
    };
    let version = version.ok_or_else(|| unknown(None))?;
    let at: PyOffsets = from_debug_offsets(&head).or_else(|| offsets(version)).ok_or_else(|| unknown(Some(version)))?;
    let free_threaded = at.free_threaded != 0;
    Ok(Found { process: PyProcess { runtime, at }, version, free_threaded, path: path.to_owned() })
}

/// Files that may have CPython in them, each by its first mapping: a library first, because a program that has one
/// is but a door to it; then the program; then what is called like an interpreter, in case the dynamic linker was run
/// with it as its argument.
fn candidates<'a, 'm>(mappings: &'a [Mapping<'m>], exe: &'a str) -> Vec<&'a Mapping<'m>> {
    let called = |mapping: &Mapping<'_>, prefix: &str| mapping.name().starts_with(prefix);
    let libraries = mappings.iter().filter(|m| called(m, "libpython"));
    let program = mappings.iter().filter(|m| m.path == exe);
    let others = mappings.iter().filter(|m| called(m, "python"));
    let mut found: Vec<&Mapping<'_>> = Vec::new();
    for mapping in libraries.chain(program).chain(others) {
        if !found.iter().any(|known| known.path == mapping.path) {
            found.push(mapping);
        }
    }
    found
}

/// Opens a mapped file: by the mapping itself, which also finds deleted and replaced files and those of other mount
/// namespaces; where that is not permitted, through the process's root (a replaced file has "(deleted)" in its path and
/// is not found there).
fn open(pid: u32, mapping: &Mapping<'_>, exe: &str) -> Result<File, String> {
    let by_mapping = look_at_mapping(pid, mapping.range).and_then(|seen| seen.open());
    let by_program = |error| if mapping.path == exe { look_at_program(pid)?.open() } else { Err(error) };
    let by_root = |_| look_in_root_of(pid, mapping.path)?.open();
    by_mapping.or_else(by_program).or_else(by_root).map_err(|error: io::Error| error.to_string())
}

/// A line of `/proc/PID/maps` that maps a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mapping<'a> {
    range: &'a str,
    start: u64,
    offset: u64,
    path: &'a str,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut rest = line;
        let mut word = || {
            let (word, after) = rest.split_once(' ')?;
            rest = after.trim_start_matches(' ');
            Some(word)
        };
        let (range, _permissions, offset, _device, _inode) = (word()?, word()?, word()?, word()?, word()?);
        let start = u64::from_str_radix(range.split_once('-')?.0, 16).ok()?;
        let offset = u64::from_str_radix(offset, 16).ok()?;
        rest.starts_with('/').then_some(Self { range, start, offset, path: rest })
    }

    fn name(&self) -> &'a str {
        self.path.rsplit('/').next().unwrap_or(self.path)
    }
}

/// `python3.9`, `libpython3.9.so.1.0`.
fn version_in_name(path: &str) -> Option<Version> {
    let name = path.rsplit('/').next()?;
    let after = name.strip_prefix("libpython").or_else(|| name.strip_prefix("python"))?;
    let (major, rest) = after.split_once('.')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some(Version { major: major.parse().ok()?, minor: rest[..digits].parse().ok()? })
}

/// An extension module is built for one version and has it in its name: `_json.cpython-39-x86_64-linux-gnu.so`.
fn version_in_path(path: &str) -> Option<Version> {
    let (_, after) = path.rsplit('/').next()?.split_once(".cpython-3")?;
    let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
    Some(Version::three(after[..digits].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_read_with_all_their_spaces() {
        let line = "7f00-7f10 r-xp 00002000 fe:00 247003                     /opt/my py/libpython3.9.so (deleted)";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!((mapping.start, mapping.offset), (0x7f00, 0x2000));
        assert_eq!(mapping.path, "/opt/my py/libpython3.9.so (deleted)");
        assert_eq!(Mapping::parse("7f00-7f10 rw-p 00000000 00:00 0                  [heap]"), None);
        assert_eq!(Mapping::parse("7f00-7f10 rw-p 00000000 00:00 0"), None);
        assert_eq!(Mapping::parse("nonsense"), None);
    }

    #[test]
    fn versions_in_names() {
        for (path, version) in [
            ("/usr/bin/python3.9", Some(Version::three(9))),
            ("/usr/lib/libpython3.10.so.1.0", Some(Version::three(10))),
            ("/opt/libpython3.13t.so.1.0", Some(Version::three(13))),
            ("/opt/python3.8 (deleted)", Some(Version::three(8))),
            ("/usr/bin/python3", None),
            ("/usr/bin/blender", None),
        ] {
            assert_eq!(version_in_name(path), version, "{path}");
        }
        let module = "/x/lib-dynload/_json.cpython-310-x86_64-linux-gnu.so";
        assert_eq!(version_in_path(module), Some(Version::three(10)));
        assert_eq!(version_in_path("/x/cpython-310/y.so"), None);
    }

    #[test]
    fn this_process_runs_no_python() {
        let error = find(std::process::id()).unwrap_err();
        assert!(matches!(error, PyError::NoPython { .. }), "{error}");
        assert!(matches!(find(u32::MAX).unwrap_err(), PyError::Process { .. }));
    }
}
