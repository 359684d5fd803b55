// SPDX-License-Identifier: Apache-2.0
//! Several run files' memory side by side.

use super::{Examined, examine_unless};
use crate::{Error, Part, Result, Stop};
use gpuwhy_memory::compare::{self, Comparison};
use gpuwhy_memory::report::Report;
use gpuwhy_store::Reader;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Runs compared, and their files in the same order.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// What differs.
    pub comparison: Comparison,
    /// The run files.
    pub paths: Vec<PathBuf>,
}

/// Compares the memory of runs, or of the same part of each. The first is the reference. Processes have other numbers in
/// other runs: of those that are asked for, each run has those that are its own, and must have one.
pub fn compare(stop: &Stop<'_>, paths: &[PathBuf], part: &Part) -> Result<Compared> {
    let examined: Vec<Examined> = paths.iter().map(|path| examined(stop, path, part)).collect::<Result<_>>()?;
    let reports = examined.iter().map(|one| &one.report);
    let named: Vec<(String, &Report)> = names(paths).into_iter().zip(reports).collect();
    Ok(Compared { comparison: compare::compare(&named), paths: paths.to_vec() })
}

fn examined(stop: &Stop<'_>, path: &Path, part: &Part) -> Result<Examined> {
    let reader = Reader::open(path)?;
    let mut part = part.clone();
    if let Some(asked) = part.pids.first().copied() {
        let known: BTreeSet<u32> = reader.processes()?.into_iter().map(|process| process.pid).collect();
        part.pids.retain(|pid| known.contains(pid));
        if part.pids.is_empty() {
            return Err(Error::UnknownProcessOf { pid: asked, path: path.into() });
        }
    }
    examine_unless(stop, &reader, &part)
}

/// What the runs are called: their files' names, or their paths where two have the same name.
fn names(paths: &[PathBuf]) -> Vec<String> {
    let short = |path: &PathBuf| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let all: Vec<String> = paths.iter().map(short).collect();
    let name = |(path, name): (&PathBuf, &String)| {
        let alone = all.iter().filter(|other| *other == name).count() == 1;
        if alone { name.clone() } else { path.to_string_lossy().into_owned() }
    };
    paths.iter().zip(&all).map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_called_by_their_files_unless_two_are_called_the_same() {
        let of = |paths: &[&str]| names(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(of(&["/a/x.db", "/b/y.db"]), ["x.db", "y.db"]);
        assert_eq!(of(&["a/x.db", "b/x.db", "y.db"]), ["a/x.db", "b/x.db", "y.db"]);
    }
}
