// SPDX-License-Identifier: Apache-2.0
//! The served run files: opened on demand, with a cache of expensive answers.
//!
//! A file may be replaced or written while it is served, so every request checks it first. A replaced file is a
//! different run, and no cached answer of the old one is used for it. Answers about a run that is still being written
//! are at most a few seconds old.

use crate::error::ToolError;
use crate::folders::Folders;
use crate::text::{LONG, clean};
use crate::work::Work;
use gpuwhy_ask::stats::Stats;
use gpuwhy_ask::{Examined, Explained, Part};
use gpuwhy_store::{Limits, Reader, Session, TimeIndex};
use std::collections::VecDeque;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Maximum number of cached runs, and of those with a time index.
const RUNS: usize = 4;
const INDEXED: usize = 2;
/// Cached answers per run.
const ANSWERS: usize = 64;
/// Open readers per run.
const READERS: usize = 2;
/// Timeout for opening a file.
const LOOK: Duration = Duration::from_secs(10);
/// Timeout for building the time index; without it, requests read the rows themselves.
const INDEXING: Duration = Duration::from_secs(30);
/// Maximum age of an answer about a run that is still being written.
const FRESH: Duration = Duration::from_secs(3);

/// The run files.
pub(crate) struct Runs {
    /// The default run.
    named: Option<PathBuf>,
    folders: Folders,
    open: Mutex<VecDeque<Arc<Run>>>,
}

impl Runs {
    pub(crate) fn new(named: Option<PathBuf>, folders: Folders) -> Self {
        Self { named, folders, open: Mutex::new(VecDeque::new()) }
    }

    /// The folders that may be read.
    pub(crate) fn folders(&self) -> &Folders {
        &self.folders
    }

    /// The requested run; without one, the run the server was started for, or the newest.
    pub(crate) fn get(&self, asked: Option<&str>) -> Result<Arc<Run>, ToolError> {
        let path = match (asked, &self.named) {
            (Some(asked), _) => self.folders.resolve(asked)?,
            (None, Some(named)) => named.clone(),
            (None, None) => self.newest()?,
        };
        let stamp = Stamp::of(&path).ok_or_else(|| ToolError::NoRun { path: clean(&path.to_string_lossy(), LONG) })?;
        // Checked and opened without the lock, so that a slow disk does not block other requests.
        let known = lock(&self.open).iter().find(|run| run.path == path).cloned();
        let run = match known.filter(|run| run.is_still(&stamp)) {
            Some(run) => run,
            None => Arc::new(Run::open(path, stamp)?),
        };
        let mut open = lock(&self.open);
        open.retain(|other| other.path != run.path);
        open.push_front(Arc::clone(&run));
        open.truncate(RUNS);
        // Time indexes are large: keep those of two runs being compared and rebuild others when needed.
        open.iter().skip(INDEXED).for_each(|run| *lock(&run.index) = None);
        Ok(run)
    }

    /// Closes all open readers: a file may have changed under them.
    pub(crate) fn close_readers(&self) {
        lock(&self.open).iter().for_each(|run| lock(&run.readers).clear());
    }

    fn newest(&self) -> Result<PathBuf, ToolError> {
        let newest = self.folders.runs().into_iter().next().map(|run| run.path);
        let looked: Vec<_> = self.folders.list().iter().map(|folder| folder.join("*.db")).collect();
        let looked = || looked.iter().map(|path| clean(&path.to_string_lossy(), LONG)).collect::<Vec<_>>().join(", ");
        newest.ok_or_else(|| ToolError::NoRun { path: looked() })
    }
}

/// Identifies one version of a file at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    /// Both change with every commit and when the file is overwritten; `changed` even if the copy keeps its times.
    written: (i64, i64),
    changed: (i64, i64),
    bytes: u64,
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        Some(Self {
            device: found.dev(),
            inode: found.ino(),
            written: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
            bytes: found.size(),
        })
    }
}

/// One run.
pub(crate) struct Run {
    pub(crate) path: PathBuf,
    /// Whether it was copied without the -wal that a killed gpuwhy left.
    pub(crate) lacks_wal: bool,
    stamp: Mutex<Stamp>,
    /// Start time, which is unique to each run.
    began: u64,
    readers: Mutex<Vec<Reader>>,
    explained: Mutex<Remembered<Explained>>,
    stats: Mutex<Remembered<Stats>>,
    examined: Mutex<Remembered<Examined>>,
    /// `None`: not built yet; `Some(None)`: too large to keep.
    index: Mutex<Option<Option<Arc<TimeIndex>>>>,
}

impl Run {
    fn open(path: PathBuf, stamp: Stamp) -> Result<Self, ToolError> {
        let reader = Reader::open(&path)?;
        reader.give_up_after(LOOK);
        let began = reader.session()?.start_unix_ns;
        Ok(Self {
            path,
            lacks_wal: reader.lacks_wal(),
            stamp: Mutex::new(stamp),
            began,
            readers: Mutex::new(vec![reader]),
            explained: Mutex::default(),
            stats: Mutex::default(),
            examined: Mutex::default(),
            index: Mutex::new(None),
        })
    }

    /// Whether the file is still this run. A running run may have grown. An ended run is never written again, so any
    /// change invalidates the cache.
    fn is_still(&self, now: &Stamp) -> bool {
        let mut stamp = lock(&self.stamp);
        if *stamp == *now {
            return true;
        }
        if (stamp.device, stamp.inode) != (now.device, now.inode) {
            return false;
        }
        // Appended to or overwritten: open readers may have seen both versions.
        lock(&self.readers).clear();
        let session = Reader::open(&self.path).and_then(|reader| {
            reader.give_up_after(LOOK);
            reader.session()
        });
        let same = session.is_ok_and(|session| session.start_unix_ns == self.began && session.stop_unix_ns.is_none());
        *stamp = now.clone();
        same
    }

    /// A short value unique to this run, for cursors.
    pub(crate) fn mark(&self) -> u32 {
        (self.began ^ self.began >> 32) as u32
    }

    /// Lends a reader.
    pub(crate) fn reader<'a>(&'a self, work: &'a Work) -> Result<Lent<'a>, ToolError> {
        work.check()?;
        let kept = lock(&self.readers).pop();
        let reader = match kept {
            Some(reader) => reader,
            None => Reader::open(&self.path)?,
        };
        reader.give_up_after(work.left());
        work.holds(Some(reader.interrupter()));
        Ok(Lent { reader: Some(reader), run: self, work })
    }

    /// The explanation of a time range and processes.
    pub(crate) fn explained(&self, part: &Part, work: &Work) -> Result<Arc<Explained>, ToolError> {
        if let Some(known) = lock(&self.explained).get(part) {
            return Ok(known);
        }
        let reader = self.reader(work)?;
        let explained = Arc::new(gpuwhy_ask::explain::explain_unless(&|| work.check().is_err(), &reader, part)?);
        let ended = explained.session.stop_unix_ns.is_some();
        lock(&self.explained).put(part, &explained, ended);
        Ok(explained)
    }

    /// The statistics of a time range and processes.
    pub(crate) fn stats(&self, part: &Part, work: &Work) -> Result<Arc<Stats>, ToolError> {
        if let Some(known) = lock(&self.stats).get(part) {
            return Ok(known);
        }
        let stats = Arc::new(gpuwhy_ask::stats::stats(&*self.reader(work)?, part)?);
        lock(&self.stats).put(part, &stats, stats.session.stop_unix_ns.is_some());
        Ok(stats)
    }

    /// The memory report of a time range and processes.
    pub(crate) fn examined(&self, part: &Part, work: &Work) -> Result<Arc<Examined>, ToolError> {
        if let Some(known) = lock(&self.examined).get(part) {
            return Ok(known);
        }
        let examined =
            Arc::new(gpuwhy_ask::memory::examine_unless(&|| work.check().is_err(), &*self.reader(work)?, part)?);
        lock(&self.examined).put(part, &examined, examined.session.stop_unix_ns.is_some());
        Ok(examined)
    }

    /// The session of the run.
    pub(crate) fn session(&self, work: &Work) -> Result<Session, ToolError> {
        Ok(self.reader(work)?.session()?)
    }

    /// The time index of a run that has ended.
    pub(crate) fn index(&self, work: &Work) -> Result<Option<Arc<TimeIndex>>, ToolError> {
        // Requests that arrive while it is being built do without.
        let mut kept = match self.index.try_lock() {
            Ok(kept) => kept,
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Poisoned(kept)) => kept.into_inner(),
        };
        if let Some(index) = &*kept {
            return Ok(index.clone());
        }
        let reader = self.reader(work)?;
        if reader.session()?.stop_unix_ns.is_none() {
            return Ok(None);
        }
        let index = match reader.time_index(&Limits { time: INDEXING.min(work.left()), ..Limits::default() }) {
            Err(gpuwhy_store::Error::TimedOut { .. }) if work.check().is_ok() => None,
            made => made?.map(Arc::new),
        };
        *kept = Some(index.clone());
        Ok(index)
    }
}

/// A lent reader, returned on drop.
pub(crate) struct Lent<'a> {
    reader: Option<Reader>,
    run: &'a Run,
    work: &'a Work,
}

impl Deref for Lent<'_> {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        #[expect(clippy::expect_used, reason = "taken only when this is dropped")]
        self.reader.as_ref().expect("a reader until it is dropped")
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // First, so that the next user of the reader is not interrupted on behalf of this request.
        self.work.holds(None);
        let mut readers = lock(&self.run.readers);
        if let Some(reader) = self.reader.take().filter(|_| readers.len() < READERS) {
            readers.push(reader);
        }
    }
}

/// The most recent answers.
struct Remembered<T> {
    answers: VecDeque<(Part, Arc<T>, Option<Instant>)>,
}

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self { answers: VecDeque::new() }
    }
}

impl<T> Remembered<T> {
    fn get(&mut self, part: &Part) -> Option<Arc<T>> {
        self.answers.retain(|(_, _, until)| until.is_none_or(|until| Instant::now() < until));
        let place = self.answers.iter().position(|(known, _, _)| known == part)?;
        let found = self.answers.remove(place)?;
        let answer = Arc::clone(&found.1);
        self.answers.push_front(found);
        Some(answer)
    }

    fn put(&mut self, part: &Part, answer: &Arc<T>, ended: bool) {
        let until = (!ended).then(|| Instant::now() + FRESH);
        self.answers.push_front((part.clone(), Arc::clone(answer), until));
        self.answers.truncate(ANSWERS);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
