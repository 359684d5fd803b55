// SPDX-License-Identifier: Apache-2.0
//! Finding every copy of the traced libraries: those processes have mapped, and those a command that is
//! about to start will likely load.

use crate::elf;
use crate::error::{CaptureError, Result};
use crate::procmaps::{self, Mapped};
use gpuwhy_model::Library;
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file, whatever path leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

impl FileId {
    /// The file a path leads to now.
    pub fn of(path: &Path) -> std::io::Result<Self> {
        Ok(Self::from(&std::fs::metadata(path)?))
    }
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
    /// Whether it is no library of its own but part of a program, or of another library.
    pub linked_in: bool,
    /// Whether it only stands for a program that has the driver and no runtime whose functions could be found: built in
    /// without symbols, or none at all. Its calls are seen at the driver.
    pub hidden: bool,
    /// How many functions are probed.
    pub functions: usize,
    /// Functions whose probe is dear, because the kernel must single-step their first instruction.
    pub slow_functions: usize,
    /// Functions the kernel refused to probe.
    pub refused: usize,
    /// When, `CLOCK_MONOTONIC` ns.
    pub attached_ns: u64,
}

/// A library found, and a path by which gpuwhy itself can open it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FoundLibrary {
    /// Which.
    pub library: Library,
    /// As its process sees it.
    pub path: String,
    /// Where gpuwhy opens it: through the process's root, so that containers work.
    pub open: PathBuf,
    /// Whether it is part of that file instead of the whole of it.
    pub linked_in: bool,
}

/// Files with a CUDA runtime built in, and those without. Each is looked at once.
#[derive(Debug, Default)]
pub struct LinkedIn {
    known: HashMap<FileId, bool>,
}

/// Files of one process that are looked at, at most; PyTorch has some two hundred.
const MOST_LOOKED_AT: usize = 1024;
/// Files that are remembered; a process has some hundreds.
const MOST_KNOWN: usize = 1 << 16;

impl LinkedIn {
    /// The file as a library, if it has a runtime built in whose functions can be found.
    fn look(&mut self, path: &str, open: PathBuf) -> Option<FoundLibrary> {
        let id = FileId::of(&open).ok()?;
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        let has = *self
            .known
            .entry(id)
            .or_insert_with(|| elf::open_regular(&open).is_ok_and(|file| elf::has_runtime_built_in(&file)));
        has.then(|| FoundLibrary { library: Library::Runtime, path: path.to_owned(), open, linked_in: true })
    }
}

/// The traced libraries a process has mapped now. A runtime that is built into something else is looked for once the
/// process has the driver, without which it does nothing.
pub fn of_process(pid: u32, linked_in: &mut LinkedIn) -> Result<Vec<FoundLibrary>> {
    let maps = match std::fs::read(format!("/proc/{pid}/maps")) {
        // One that has ended has no memory, though it may be there until somebody asks for its exit code.
        Ok(bytes) if bytes.is_empty() => return Err(CaptureError::ProcessDied { pid }),
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => return Err(CaptureError::NotPermitted),
        Err(_) => return Err(CaptureError::ProcessDied { pid }),
    };
    let mut found: Vec<FoundLibrary> = procmaps::traced_libraries(&maps)
        .map(|(library, file)| {
            let open = openable(pid, &file);
            FoundLibrary { library, path: file.path.to_owned(), open, linked_in: false }
        })
        .collect();
    if found.iter().any(|library| library.library == Library::Driver) {
        let others = procmaps::other_files(&maps).take(MOST_LOOKED_AT);
        found.extend(others.filter_map(|file| linked_in.look(file.path, openable(pid, &file))));
    }
    found.sort();
    found.dedup();
    // The driver last: what a runtime calls there must not be taken for the program's own while the runtime is not
    // watched yet.
    found.sort_by_key(|library| library.library == Library::Driver);
    Ok(found)
}

/// A path that leads to the mapped file: through the process's root, or, when the file was deleted or
/// replaced since, through the mapping itself.
///
/// Once rights are given up the mapping cannot be looked at any more. Then the number of the file must do, which some file
/// systems tell differently here and there, but not for two files the same.
fn openable(pid: u32, file: &Mapped<'_>) -> PathBuf {
    let mapping = PathBuf::from(format!("/proc/{pid}/map_files/{}", file.range));
    let by_root = PathBuf::from(format!("/proc/{pid}/root{}", file.path));
    match (FileId::of(&by_root), FileId::of(&mapping)) {
        (Ok(a), Ok(b)) if a == b => by_root,
        (Ok(a), Err(_)) if a.inode == file.inode && !file.deleted => by_root,
        _ => mapping,
    }
}

/// Every process there is.
pub fn all_processes() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// The libraries a command will likely load, so that they are probed before its first call: what is built into the
/// program, what its arguments name, and what lies in LD_LIBRARY_PATH, PYTHONPATH, the program's own search path, the
/// linker's cache, the program's neighbourhood and, for Python, its site-packages. What this misses is seen when it is
/// mapped.
pub fn likely_for(program: &Path, arguments: &[OsString], env: &[(OsString, OsString)]) -> Vec<FoundLibrary> {
    let var = |name: &str| env.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_os_str());
    let mut folders: BTreeSet<PathBuf> = BTreeSet::new();
    for list in [var("LD_LIBRARY_PATH"), var("PYTHONPATH")].into_iter().flatten() {
        folders.extend(std::env::split_paths(list).filter(|p| p.is_absolute()));
    }
    folders.extend(elf::open_regular(program).map(|file| elf::search_path(&file, program)).unwrap_or_default());
    let preloaded = var("LD_PRELOAD").and_then(OsStr::to_str).unwrap_or_default();
    let named = preloaded.split([' ', ':']).map(Path::new).chain(arguments.iter().map(Path::new));
    folders.extend(named.flat_map(folders_named));
    folders.extend(linker_cache_folders());
    folders.extend(neighbourhood(program));
    for base in [var("VIRTUAL_ENV"), var("CONDA_PREFIX")].into_iter().flatten() {
        folders.extend(python_folders(Path::new(base)));
    }
    if let Some(home) = var("HOME") {
        folders.extend(python_folders(&Path::new(home).join(".local")));
    }
    let mut found: Vec<FoundLibrary> = folders.iter().flat_map(|folder| in_folder(folder)).collect();
    let path = program.to_string_lossy();
    found.extend(LinkedIn::default().look(&path, program.to_path_buf()));
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
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(library) = name.to_str().and_then(Library::of_file) else { continue };
        // Links to the same file are found by their target's own name, or once by identity.
        let Ok(open) = entry.path().canonicalize() else { continue };
        found.push(FoundLibrary { library, path: open.to_string_lossy().into_owned(), open, linked_in: false });
    }
    found.sort();
    found.dedup();
    found
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
        let found = likely_for(&root.join("bin/python3"), &[], &[]);
        let ours: Vec<_> = found.iter().filter(|f| f.open.starts_with(root.canonicalize().unwrap())).collect();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(ours.len(), 1, "{found:?}");
        assert_eq!(ours[0].library, Library::Runtime);
    }
}
