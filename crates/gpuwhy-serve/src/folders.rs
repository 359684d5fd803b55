// SPDX-License-Identifier: Apache-2.0
//! Which files may be read: only those in the folders allowed at startup, with all links resolved.

use crate::Error;
use crate::error::ToolError;
use crate::text::{LONG, clean};
use gpuwhy_ask::runs::RunInfo;
use std::path::{Component, Path, PathBuf};

/// The allowed folders, with all links in their paths resolved.
#[derive(Debug, Clone)]
pub(crate) struct Folders {
    allowed: Vec<PathBuf>,
}

impl Folders {
    pub(crate) fn new(folders: &[PathBuf]) -> Result<Self, Error> {
        let real = |path: &PathBuf| path.canonicalize().map_err(|source| Error::Folder { path: path.clone(), source });
        let mut allowed: Vec<PathBuf> = folders.iter().map(real).collect::<Result<_, _>>()?;
        allowed.sort();
        allowed.dedup();
        Ok(Self { allowed })
    }

    /// The folders.
    pub(crate) fn list(&self) -> &[PathBuf] {
        &self.allowed
    }

    /// Resolves a path that is absolute or relative to one of the folders. The result exists and is inside an allowed
    /// folder, with all links followed.
    pub(crate) fn resolve(&self, asked: &str) -> Result<PathBuf, ToolError> {
        let path = Path::new(asked);
        let forbidden = || ToolError::Forbidden { path: clean(asked, LONG), allowed: self.names() };
        if path.components().any(|part| part == Component::ParentDir) || asked.contains('\0') {
            return Err(forbidden());
        }
        let places: Vec<PathBuf> = if path.is_absolute() {
            vec![path.to_owned()]
        } else {
            self.allowed.iter().map(|folder| folder.join(path)).collect()
        };
        // Do not reveal whether a file outside exists.
        let inside = |place: &Path| self.allowed.iter().any(|folder| place.starts_with(folder));
        let found = places.iter().find_map(|place| place.canonicalize().ok());
        match found {
            // Opening a pipe would block until its other end is opened.
            Some(real) if inside(&real) && !(real.is_file() || real.is_dir()) => {
                Err(ToolError::Arguments(format!("{} is neither a file nor a folder", clean(asked, LONG))))
            }
            Some(real) if inside(&real) => Ok(real),
            None if places.iter().any(|place| inside(place)) => Err(ToolError::NoRun { path: clean(asked, LONG) }),
            _ => Err(forbidden()),
        }
    }

    /// Whether a file found in an allowed folder is really inside one: a link may lead anywhere.
    pub(crate) fn holds(&self, path: &Path) -> bool {
        path.canonicalize().is_ok_and(|real| self.allowed.iter().any(|folder| real.starts_with(folder)))
    }

    /// The run files directly in the folders, newest first.
    pub(crate) fn runs(&self) -> Vec<RunInfo> {
        let found = self.allowed.iter().flat_map(|folder| gpuwhy_ask::runs::list(folder, &|path| self.holds(path)));
        let mut runs: Vec<RunInfo> = found.collect();
        runs.sort_by_key(|run| std::cmp::Reverse((run.session.start_unix_ns, run.modified)));
        runs
    }

    fn names(&self) -> String {
        let names: Vec<String> = self.allowed.iter().map(|folder| clean(&folder.to_string_lossy(), LONG)).collect();
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_is_reached() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(inside.path().join("a.db"), "x").unwrap();
        std::fs::write(outside.path().join("secret"), "x").unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret"), inside.path().join("link.db")).unwrap();
        std::os::unix::fs::symlink(inside.path().join("a.db"), inside.path().join("good.db")).unwrap();
        let folders = Folders::new(&[inside.path().to_owned()]).unwrap();
        let whole = |path: &Path| path.to_str().unwrap().to_owned();
        assert!(folders.resolve("a.db").is_ok());
        assert!(folders.resolve("good.db").is_ok(), "a link within");
        assert!(folders.resolve(&whole(&inside.path().join("a.db"))).is_ok());
        let climbing = format!("../{}/secret", outside.path().file_name().unwrap().to_str().unwrap());
        for bad in ["link.db", "../a.db", climbing.as_str(), "/etc/passwd", "/etc/no-such-file", "a\0b"] {
            assert!(matches!(folders.resolve(bad), Err(ToolError::Forbidden { .. })), "{bad}");
        }
        assert!(matches!(folders.resolve("missing.db"), Err(ToolError::NoRun { .. })));
    }
}
