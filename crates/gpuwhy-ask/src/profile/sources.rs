// SPDX-License-Identifier: Apache-2.0
//! From the paths given to the files to analyse: a folder stands for PyTorch's files in it.

use crate::{Error, Result};
use std::io::Read;
use std::path::{Path, PathBuf};

/// How much of a file is read to recognise it, bytes.
const HEAD: u64 = 4096;

/// The kinds of files that PyTorch writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A profiler trace.
    Trace,
    /// A memory snapshot.
    Snapshot,
}

/// A file to analyse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its path.
    pub path: PathBuf,
    /// What it is.
    pub kind: FileKind,
}

/// The files in the order given; those of a folder are sorted by path.
pub(super) fn find(paths: &[PathBuf], snapshots: bool, traces: bool) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for path in paths {
        if path.is_dir() {
            let found = in_folder(path)?;
            if found.is_empty() {
                return Err(Error::EmptyFolder { path: path.clone() });
            }
            sources.extend(found);
        } else {
            let kind = match kind_by_name(path) {
                Some(kind) => kind,
                None => kind_by_content(path)?,
            };
            sources.push(Source { path: path.clone(), kind });
        }
    }
    sources.retain(|source| match source.kind {
        FileKind::Trace => traces,
        FileKind::Snapshot => snapshots,
    });
    if sources.is_empty() {
        return Err(Error::NothingLeft);
    }
    Ok(sources)
}

/// PyTorch's files in a folder: every snapshot, and traces recognised by name or content. Other JSON, such as a config, is
/// skipped.
pub fn in_folder(folder: &Path) -> Result<Vec<Source>> {
    let entries = std::fs::read_dir(folder).map_err(|source| Error::Io { path: folder.into(), source })?;
    let mut found: Vec<Source> = entries
        .flatten()
        .filter_map(|entry| {
            let path = entry.path();
            // Checked before reading: reading a pipe could block forever.
            let kind = kind_by_name(&path).filter(|_| path.is_file())?;
            let name = path.file_name()?.to_string_lossy().to_lowercase();
            let meant = kind == FileKind::Snapshot || name.contains("trace") || begins_like_a_trace(&path);
            meant.then_some(Source { path, kind })
        })
        .collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Whether a JSON file, plain or gzipped, starts with the keys that Kineto writes first.
fn begins_like_a_trace(path: &Path) -> bool {
    let head = head(path).unwrap_or_default();
    let head = String::from_utf8_lossy(&head);
    ["\"traceEvents\"", "\"schemaVersion\"", "\"deviceProperties\""].iter().any(|key| head.contains(key))
}

/// The first few kilobytes of a file, unpacked.
fn head(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = std::fs::File::open(path)?;
    let mut first = Vec::new();
    (&mut file).take(HEAD).read_to_end(&mut first)?;
    if !first.starts_with(&[0x1f, 0x8b]) {
        return Ok(first);
    }
    let mut unpacked = Vec::new();
    // The head ends in the middle of a block: use the bytes that can be unpacked.
    let _ = flate2::read::GzDecoder::new(first.as_slice()).take(HEAD).read_to_end(&mut unpacked);
    Ok(unpacked)
}

fn kind_by_name(path: &Path) -> Option<FileKind> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    match name.rsplit_once('.')?.1 {
        "json" | "raw" => Some(FileKind::Trace),
        "pickle" | "pkl" => Some(FileKind::Snapshot),
        _ => None,
    }
}

/// A pickle of protocol 2 or later starts with 0x80, JSON with a bracket.
fn kind_by_content(path: &Path) -> Result<FileKind> {
    let first = head(path).map_err(|source| Error::Io { path: path.into(), source })?;
    match first.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(0x80) => Ok(FileKind::Snapshot),
        Some(b'{' | b'[') => Ok(FileKind::Trace),
        _ => Err(Error::UnknownKind { path: path.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_name_folder_or_content() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["profiler_trace.json.gz", "rank1.pt.trace.json", "snapshot.pickle", "truth.json", "notes.txt"] {
            std::fs::write(at(name), "x").unwrap();
        }
        std::fs::write(at("unnamed"), [0x80, 4]).unwrap();
        std::fs::write(at("sampled_rank-0.json"), r#"{"schemaVersion": 1, "traceEvents": []}"#).unwrap();
        let found = find(&[folder.path().to_path_buf()], true, true).unwrap();
        let names: Vec<_> = found.iter().map(|s| s.path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["profiler_trace.json.gz", "rank1.pt.trace.json", "sampled_rank-0.json", "snapshot.pickle"]);
        assert_eq!(find(&[folder.path().to_path_buf()], true, false).unwrap().len(), 1);
        assert_eq!(find(&[at("unnamed")], true, true).unwrap()[0].kind, FileKind::Snapshot);
        assert!(find(&[at("notes.txt")], true, true).unwrap_err().to_string().contains("neither"));
        assert!(find(&[at("missing")], true, true).unwrap_err().to_string().contains("missing"));
        assert!(find(&[at("truth.json")], true, false).is_err());
    }
}
