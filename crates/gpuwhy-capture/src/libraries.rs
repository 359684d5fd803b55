// SPDX-License-Identifier: Apache-2.0
//! Finding every copy of the traced libraries: those processes have mapped, and those a command that is
//! about to start will likely load.

use crate::elf;
use crate::error::{CaptureError, Result};
use crate::lookups::Command;
use crate::procmaps::{self, Mapped};
use gpuwhy_model::Library;
use gpuwhy_strangers::{ProcFile, Seen, look_at, look_at_mapping, look_in_root_of, read_proc};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file, whatever path leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

impl From<&std::fs::Metadata> for FileId {
    fn from(meta: &std::fs::Metadata) -> Self {
        Self { device: meta.dev(), inode: meta.ino() }
    }
}

/// A library that got probes.
#[derive(Debug, Clone)]
pub struct AttachedLibrary {
    /// Which.
    pub library: Library,
    /// Its path, as the process that has it sees it.
    pub path: String,
    /// Its identity.
    pub file: FileId,
    /// Whether it is linked into a program or another library.
    pub linked_in: bool,
    /// Whether it represents a program that has the driver but no runtime with known functions: linked in without
    /// symbols, or not used. Its calls are recorded at the driver.
    pub hidden: bool,
    /// How many functions are probed.
    pub functions: usize,
    /// Functions that are expensive to probe, because the kernel must single-step their first instruction.
    pub slow_functions: usize,
    /// Functions the kernel refused to probe.
    pub refused: usize,
    /// When, `CLOCK_MONOTONIC` ns.
    pub attached_ns: u64,
}

/// A library found, open.
#[derive(Debug)]
pub(crate) struct FoundLibrary {
    /// Which.
    pub library: Library,
    /// As its process sees it.
    pub path: String,
    /// Whether it is linked into that file.
    pub linked_in: bool,
    /// The file, or why it cannot be read.
    pub file: io::Result<File>,
}

/// Files with a CUDA runtime built in, and those without. Each is looked at once.
#[derive(Debug, Default)]
pub(crate) struct LinkedIn {
    known: HashMap<FileId, bool>,
}

/// Files of one process that are looked at, at most; PyTorch has some two hundred.
const MOST_LOOKED_AT: usize = 1024;
/// Files that are remembered; a process has some hundreds.
const MOST_KNOWN: usize = 1 << 16;

impl LinkedIn {
    /// The file as a library, if a runtime with known functions is linked into it.
    fn look(&mut self, path: &str, seen: &Seen) -> Option<FoundLibrary> {
        let id = FileId::from(seen.metadata());
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        let has =
            *self.known.entry(id).or_insert_with(|| seen.open().is_ok_and(|file| elf::has_runtime_built_in(&file)));
        let path = path.to_owned();
        has.then(|| FoundLibrary { library: Library::Runtime, path, linked_in: true, file: seen.open() })
    }
}

/// The mappings of a process, from `/proc/PID/maps`.
pub(crate) fn maps_of(pid: u32) -> Result<String> {
    match read_proc(pid, ProcFile::Maps) {
        // A zombie has no mappings.
        Ok(bytes) if bytes.is_empty() => Err(CaptureError::ProcessDied { pid }),
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(CaptureError::NotPermitted),
        Err(_) => Err(CaptureError::ProcessDied { pid }),
    }
}

/// Whether a process has a traced library mapped now.
pub(crate) fn has_any(pid: u32) -> bool {
    maps_of(pid).is_ok_and(|maps| procmaps::traced_libraries(&maps).next().is_some())
}

/// The traced libraries among what a process has mapped. A runtime that is built into something else is looked for once
/// the process has the driver, without which it does nothing.
pub(crate) fn in_maps(pid: u32, maps: &str, linked_in: &mut LinkedIn) -> Vec<FoundLibrary> {
    let mut mapped: Vec<(Library, Mapped<'_>)> = procmaps::traced_libraries(maps).collect();
    // A file is mapped in several parts; one that was replaced has the same path as its successor.
    mapped.sort_by_key(|(library, file)| (*library, file.path, file.inode));
    mapped.dedup_by_key(|(library, file)| (*library, file.path, file.inode));
    mapped.truncate(MOST_LOOKED_AT);
    let mut found: Vec<FoundLibrary> = mapped
        .into_iter()
        .map(|(library, file)| {
            let open = look_at_mapped(pid, &file).and_then(|seen| seen.open());
            FoundLibrary { library, path: file.path.to_owned(), linked_in: false, file: open }
        })
        .collect();
    if found.iter().any(|library| library.library == Library::Driver) {
        let others = procmaps::other_files(maps).take(MOST_LOOKED_AT);
        found.extend(others.filter_map(|file| linked_in.look(file.path, &look_at_mapped(pid, &file).ok()?)));
    }
    // The driver last: what a runtime calls there must not be taken for the program's own while the runtime is not
    // watched yet.
    found.sort_by_key(|library| library.library == Library::Driver);
    found
}

/// The mapped file, opened through the process's root, or through the mapping if the file was deleted or replaced.
///
/// If we may not read the mapping, the inode number must match. Some file systems report different numbers for one
/// file, but never the same number for two.
fn look_at_mapped(pid: u32, file: &Mapped<'_>) -> io::Result<Seen> {
    let mapping = look_at_mapping(pid, file.range);
    let by_root = look_in_root_of(pid, file.path);
    let id = |seen: &Seen| FileId::from(seen.metadata());
    match (by_root, mapping) {
        (Ok(a), Ok(b)) if id(&a) == id(&b) => Ok(a),
        (Ok(a), Err(_)) if id(&a).inode == file.inode && !file.deleted => Ok(a),
        (_, mapping) => mapping,
    }
}

/// Every process there is.
pub fn all_processes() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// Variables of an environment that say where libraries are.
const VARIABLES: [&str; 6] = ["LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "HOME"];
/// Arguments of a command that are taken for paths; those that follow are mostly data.
const MOST_ARGUMENTS: usize = 256;
const LONGEST_PATH: usize = 4096;

impl Command {
    /// Facts about a command before it runs.
    pub(crate) fn new(program: &Path, arguments: &[OsString], env: &[(OsString, OsString)]) -> Self {
        let may_be_path = |argument: &&OsString| argument.len() < LONGEST_PATH;
        let variable = |(name, value): &(OsString, OsString)| {
            let name = name.to_str().filter(|name| VARIABLES.contains(name))?;
            Some((name.to_owned(), value.to_str()?.to_owned()))
        };
        Self {
            program: program.to_path_buf(),
            arguments: arguments.iter().filter(may_be_path).take(MOST_ARGUMENTS).map(PathBuf::from).collect(),
            variables: env.iter().filter_map(variable).collect(),
            cached: linker_cache_folders(),
        }
    }
}

/// The libraries a command will likely load, so that they are probed before its first call: linked into the program,
/// named in its arguments, or in LD_LIBRARY_PATH, PYTHONPATH, the program's rpath, the linker cache, folders near the
/// program and, for Python, its site-packages. Any other library is found when it is mapped.
pub(crate) fn likely_for(command: &Command) -> Vec<FoundLibrary> {
    let Command { program, arguments, variables, cached } = command;
    let var = |name: &str| variables.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str());
    let mut folders: BTreeSet<PathBuf> = BTreeSet::new();
    for list in [var("LD_LIBRARY_PATH"), var("PYTHONPATH")].into_iter().flatten() {
        folders.extend(std::env::split_paths(list).filter(|p| p.is_absolute()));
    }
    let seen = look_at(program).ok();
    let file = seen.as_ref().and_then(|seen| seen.open().ok());
    folders.extend(file.map(|file| elf::search_path(&file, program)).unwrap_or_default());
    let preloaded = var("LD_PRELOAD").unwrap_or_default();
    let named = preloaded.split([' ', ':']).map(Path::new).chain(arguments.iter().map(PathBuf::as_path));
    folders.extend(named.flat_map(folders_named));
    folders.extend(cached.iter().cloned());
    folders.extend(neighbourhood(program));
    for base in [var("VIRTUAL_ENV"), var("CONDA_PREFIX")].into_iter().flatten() {
        folders.extend(python_folders(Path::new(base)));
    }
    if let Some(home) = var("HOME") {
        folders.extend(python_folders(&Path::new(home).join(".local")));
    }
    let mut found: Vec<FoundLibrary> = folders.iter().flat_map(|folder| in_folder(folder)).collect();
    let path = program.to_string_lossy();
    found.extend(seen.and_then(|seen| LinkedIn::default().look(&path, &seen)));
    found
}

/// A folder that an argument names, or that of the file it names.
fn folders_named(argument: &Path) -> Option<PathBuf> {
    let meta = std::fs::metadata(argument).ok()?;
    let folder = if meta.is_dir() { argument } else { argument.parent()? };
    folder.canonicalize().ok()
}

/// Traced libraries in a folder, each file once.
fn in_folder(folder: &Path) -> Vec<FoundLibrary> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found = BTreeSet::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(library) = name.to_str().and_then(Library::of_file) else { continue };
        // Links to the same file are found by their target's own name, or once by identity.
        let Ok(path) = entry.path().canonicalize() else { continue };
        found.insert((library, path));
    }
    let open = |(library, path): (Library, PathBuf)| {
        let file = look_at(&path).and_then(|seen| seen.open());
        FoundLibrary { library, path: path.to_string_lossy().into_owned(), linked_in: false, file }
    };
    found.into_iter().map(open).collect()
}

/// Folders in which the dynamic linker's cache has a traced library.
fn linker_cache_folders() -> Vec<PathBuf> {
    let output = ["/sbin/ldconfig", "/usr/sbin/ldconfig"]
        .iter()
        .find_map(|tool| std::process::Command::new(tool).arg("-p").stdin(std::process::Stdio::null()).output().ok());
    let Some(output) = output else { return Vec::new() };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .filter_map(|line| line.split_once("=> ").map(|(_, path)| Path::new(path.trim())))
        .filter(|path| path.file_name().and_then(OsStr::to_str).and_then(Library::of_file).is_some())
        .filter_map(|path| path.parent().map(Path::to_path_buf))
        .collect()
}

/// The program's own folder, and what lies around it when it sits in some `bin/`.
fn neighbourhood(program: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let real = program.canonicalize().ok();
    for path in [Some(program), real.as_deref()].into_iter().flatten() {
        let Some(folder) = path.parent() else { continue };
        folders.push(folder.to_path_buf());
        if let Some(prefix) = folder.parent().filter(|_| folder.file_name() == Some(OsStr::new("bin"))) {
            folders.push(prefix.join("lib"));
            folders.push(prefix.join("lib64"));
            folders.extend(python_folders(prefix));
        }
    }
    folders
}

/// Where NVIDIA's wheels put libraries below a Python prefix: `lib/python3.*/site-packages/nvidia/*/lib`.
fn python_folders(prefix: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let lib = prefix.join("lib");
    let Ok(entries) = std::fs::read_dir(&lib) else { return folders };
    for python in entries.flatten().filter(|e| e.file_name().to_string_lossy().starts_with("python3")) {
        for packages in ["site-packages", "dist-packages"] {
            let packages = python.path().join(packages);
            folders.push(packages.join("torch/lib"));
            let Ok(vendors) = std::fs::read_dir(packages.join("nvidia")) else { continue };
            folders.extend(vendors.flatten().map(|v| v.path().join("lib")));
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheels_in_a_virtual_environment_are_found_before_they_are_loaded() {
        let root = std::env::temp_dir().join(format!("gpuwhy-libraries-{}", std::process::id()));
        let lib = root.join("lib/python3.12/site-packages/nvidia/cu13/lib");
        std::fs::create_dir_all(&lib).unwrap();
        std::fs::create_dir_all(root.join("bin")).unwrap();
        std::fs::write(lib.join("libcudart.so.13"), b"").unwrap();
        std::fs::write(lib.join("libcublas.so.13"), b"").unwrap();
        std::os::unix::fs::symlink("libcudart.so.13", lib.join("libcudart.so")).unwrap();
        std::fs::write(root.join("bin/python3"), b"").unwrap();
        let found = likely_for(&Command::new(&root.join("bin/python3"), &[], &[]));
        let root = root.canonicalize().unwrap();
        let ours: Vec<_> = found.iter().filter(|f| Path::new(&f.path).starts_with(&root)).collect();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(ours.len(), 1, "{found:?}");
        assert_eq!(ours[0].library, Library::Runtime);
    }
}
