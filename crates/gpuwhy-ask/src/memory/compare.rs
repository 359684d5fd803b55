// SPDX-License-Identifier: Apache-2.0
//! Compares the memory of several run files.

use super::{Examined, examine_unless};
use crate::{Error, Part, Result, Stop};
use gpuwhy_memory::compare::{self, Comparison};
use gpuwhy_memory::report::Report;
use gpuwhy_store::Reader;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A comparison, and the run files in the same order.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// The comparison.
    pub comparison: Comparison,
    /// The run files.
    pub paths: Vec<PathBuf>,
}

/// Compares the memory of runs, or the same time range of each. The first is the reference. Process ids differ between
/// runs, so each run uses those of the given ids that it has; it must have at least one.
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

/// Names the runs by file name, or by path where two file names are the same.
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
    fn runs_are_named_by_file_unless_two_names_are_the_same() {
        let of = |paths: &[&str]| names(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(of(&["/a/x.db", "/b/y.db"]), ["x.db", "y.db"]);
        assert_eq!(of(&["a/x.db", "b/x.db", "y.db"]), ["a/x.db", "b/x.db", "y.db"]);
    }
}
