// SPDX-License-Identifier: Apache-2.0
//! Which files a user means by the paths given: a file is itself, a folder what PyTorch leaves in it.

use anyhow::{Context, bail};
use std::io::Read;
use std::path::{Path, PathBuf};

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A profiler trace.
    Trace,
    /// A memory snapshot.
    Snapshot,
}

/// A file to analyse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    /// Where.
    pub(crate) path: PathBuf,
    /// What.
    pub(crate) kind: Kind,
}

impl Source {
    /// By its name; readers look at the bytes themselves.
    pub(crate) fn is_gzipped(&self) -> bool {
        self.path.extension().is_some_and(|end| end == "gz")
    }
}

/// The files meant, in the order given; those of a folder sorted by name.
pub(crate) fn find(paths: &[PathBuf], snapshots: bool, traces: bool) -> anyhow::Result<Vec<Source>> {
    let mut sources = Vec::new();
    for path in paths {
        if path.is_dir() {
            let found = in_folder(path)?;
            if found.is_empty() {
                bail!(
                    "{} has no profiler trace (*.json, *.json.gz) and no memory snapshot (*.pickle): give the file itself",
                    path.display()
                );
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
        Kind::Trace => traces,
        Kind::Snapshot => snapshots,
    });
    if sources.is_empty() {
        bail!("nothing is left to analyse: --memory-only wants a snapshot.pickle, --trace-only a profiler trace");
    }
    Ok(sources)
}

/// PyTorch's files in a folder: every snapshot, and the traces. Other JSON (a config, a truth file) is none.
fn in_folder(folder: &Path) -> anyhow::Result<Vec<Source>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot look into {}", folder.display()))?;
    let mut found: Vec<Source> = entries
        .flatten()
        .filter_map(|entry| {
            let path = entry.path();
            let kind = kind_by_name(&path)?;
            let name = path.file_name()?.to_string_lossy().into_owned();
            (path.is_file() && (kind == Kind::Snapshot || name.contains("trace"))).then_some(Source { path, kind })
        })
        .collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn kind_by_name(path: &Path) -> Option<Kind> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    match name.rsplit_once('.')?.1 {
        "json" | "raw" => Some(Kind::Trace),
        "pickle" | "pkl" => Some(Kind::Snapshot),
        _ => None,
    }
}

/// A pickle of protocol 2 or later begins with 0x80; JSON with a bracket.
fn kind_by_content(path: &Path) -> anyhow::Result<Kind> {
    let mut first = Vec::new();
    let file = std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    file.take(64).read_to_end(&mut first).with_context(|| format!("cannot read {}", path.display()))?;
    match first.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(0x80) => Ok(Kind::Snapshot),
        Some(b'{' | b'[') => Ok(Kind::Trace),
        _ => bail!("{} is neither a profiler trace (JSON) nor a memory snapshot (pickle)", path.display()),
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
        let found = find(&[folder.path().to_path_buf()], true, true).unwrap();
        let names: Vec<_> = found.iter().map(|s| s.path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["profiler_trace.json.gz", "rank1.pt.trace.json", "snapshot.pickle"]);
        assert_eq!(find(&[folder.path().to_path_buf()], true, false).unwrap().len(), 1);
        assert_eq!(find(&[at("unnamed")], true, true).unwrap()[0].kind, Kind::Snapshot);
        assert!(find(&[at("notes.txt")], true, true).unwrap_err().to_string().contains("neither"));
        assert!(find(&[at("missing")], true, true).unwrap_err().to_string().contains("missing"));
        assert!(find(&[at("truth.json")], true, false).is_err());
    }
}
