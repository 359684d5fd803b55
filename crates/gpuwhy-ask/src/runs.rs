// SPDX-License-Identifier: Apache-2.0
//! Lists run files.

use crate::stats::{RunState, state};
use gpuwhy_store::{Reader, Session};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Most files opened in one folder.
const MOST: usize = 1000;

/// Time limit for reading one file's description.
const LOOK: Duration = Duration::from_secs(2);

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
    /// Whether it was copied without the -wal that a killed gpuwhy left.
    pub lacks_wal: bool,
}

/// Run files (`*.db`) directly in a folder that may be opened, newest first. Other files are skipped.
pub fn list(folder: &Path, may_open: &dyn Fn(&Path) -> bool) -> Vec<RunInfo> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let files =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "db"));
    // With very many files, only the newest.
    let mut files: Vec<PathBuf> = files.filter(|path| may_open(path)).collect();
    if files.len() > MOST {
        files.sort_by_cached_key(|path| {
            std::cmp::Reverse(std::fs::metadata(path).and_then(|found| found.modified()).ok())
        });
        files.truncate(MOST);
    }
    let mut runs: Vec<RunInfo> = files.iter().filter_map(|path| info(path)).collect();
    runs.sort_by_key(|run| std::cmp::Reverse((run.session.start_unix_ns, run.modified)));
    runs
}

/// A run file's description; `None` for any other file.
pub fn info(path: &Path) -> Option<RunInfo> {
    let metadata = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let reader = Reader::open(path).ok()?;
    // The file may be hostile.
    reader.give_up_after(LOOK);
    let session = reader.session().ok()?;
    let lacks_wal = reader.lacks_wal();
    let state = state(&session, path, lacks_wal);
    let modified = metadata.modified().ok();
    Some(RunInfo { path: path.into(), bytes: metadata.len(), modified, session, state, lacks_wal })
}
