// SPDX-License-Identifier: Apache-2.0
//! Which run files there are.

use crate::stats::{RunState, state};
use gpuwhy_store::{Reader, Session};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Files looked at in one folder, at most.
const MOST: usize = 1000;

/// A run file.
#[derive(Debug, Clone)]
pub struct RunInfo {
    /// Where it is.
    pub path: PathBuf,
    /// How large, bytes.
    pub bytes: u64,
    /// When it was last written.
    pub modified: Option<SystemTime>,
    /// The run.
    pub session: Session,
    /// Whether it is still recorded.
    pub state: RunState,
}

/// Run files (`*.db`) directly in a folder, of those that may be opened, the newest first. What is none is passed over.
pub fn list(folder: &Path, may_open: &dyn Fn(&Path) -> bool) -> Vec<RunInfo> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let files =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "db"));
    let mut runs: Vec<RunInfo> =
        files.take(MOST).filter(|path| may_open(path)).filter_map(|path| info(&path)).collect();
    runs.sort_by_key(|run| std::cmp::Reverse((run.session.start_unix_ns, run.modified)));
    runs
}

/// A run file's description; `None` for what is none.
pub fn info(path: &Path) -> Option<RunInfo> {
    let metadata = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let session = Reader::open(path).ok()?.session().ok()?;
    let state = state(&session);
    Some(RunInfo { path: path.into(), bytes: metadata.len(), modified: metadata.modified().ok(), session, state })
}
