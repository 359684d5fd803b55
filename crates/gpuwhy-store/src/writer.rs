// SPDX-License-Identifier: Apache-2.0
//! Writing a run file.
//!
//! One transaction is open between two commits. Its rows are also kept in memory until a commit succeeds: on any
//! failure (disk full, I/O error), the transaction is rolled back and the run continues in memory. Each commit retries,
//! in parts, so that what fits is stored. Rows of earlier commits are never changed.
//!
//! Counts are of *events*: outermost calls and times off the CPU, by weight. Counts of rows say so.

mod keeping;
mod told;

use crate::aggregate::{Aggregator, MAX_CELLS, OpTotals};
use crate::cap::SizeCap;
use crate::host;
use crate::ledger::LedgerRow;
use crate::pending::{LibraryRow, Machine, Pending, StackText, stored, write_machine, write_sums};
use crate::place::{self, Claim, Owner};
use crate::rows::RowWriter;
use crate::unsaved::{Tally, Unsaved};
use crate::{Error, Result, reserve, schema, side_files};
use gpuwhy_model::{Call, CpuRun, LossCause, MovedWait, OffCpu, OpId, Samples, SourceLine, ThreadSums};
use rusqlite::{Connection, ErrorCode, OpenFlags, params};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The -wal is folded into the main file at this many pages (32 MB).
const CHECKPOINT_PAGES: u64 = 8_192;
/// How large the -wal stays when it is empty, bytes.
const WAL_BYTES: u64 = 64 << 20;
/// Statements kept ready: more than there are in this crate.
const STATEMENTS: usize = 64;
/// Calls handled at a time: each may need a sum of its own, and those are bounded.
const CHUNK: u64 = MAX_CELLS as u64 / 2;
/// How long to wait for another program that has the file locked. Meanwhile the ring buffer fills.
const BUSY: Duration = Duration::from_secs(1);
/// SQLite's unit, bytes.
const PAGE_BYTES: u64 = 4096;

/// Facts known when a run starts.
#[derive(Debug, Clone, Default)]
pub struct NewRun {
    /// gpuwhy's version.
    pub version: String,
    /// Start by the wall clock, Unix nanoseconds.
    pub start_unix_ns: u64,
    /// The same time on `CLOCK_MONOTONIC`, nanoseconds: the origin of the file's times.
    pub start_monotonic_ns: u64,
    /// The traced command, if gpuwhy started one.
    pub command: Option<String>,
    /// gpuwhy's own flags.
    pub flags: Option<String>,
    /// The machine.
    pub machine: Machine,
    /// How large the file may become with its -wal, bytes; `None` for any size.
    pub max_size: Option<u64>,
    /// Owner of the file; `None`: the current user.
    pub owner: Option<Owner>,
}

/// Facts known when a run ends.
#[derive(Debug, Clone, Default)]
pub struct RunEnd {
    /// The end by the wall clock, Unix nanoseconds.
    pub stop_unix_ns: u64,
    /// The same time on `CLOCK_MONOTONIC`, nanoseconds.
    pub stop_monotonic_ns: u64,
    /// Why it ended: `exit`, `interrupted`, `duration`, …
    pub stop_reason: String,
    /// The cost of tracing, JSON.
    pub own_cost: Option<String>,
}

/// A new run file.
pub struct Created {
    /// To write it.
    pub writer: Writer,
    /// New path of the existing file, if it was renamed.
    pub moved_to: Option<PathBuf>,
}

/// A run file closed.
#[derive(Debug)]
pub struct Finished {
    /// Where it is.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Events stored.
    pub stored: u64,
    /// Of these, events represented by the weight of a similar row.
    pub thinned: u64,
    /// Events lost in writing, by cause; also in the file.
    pub lost: Vec<(LossCause, u64)>,
    /// The same by op.
    pub lost_by_op: BTreeMap<OpId, u64>,
    /// A problem at the end; the file is still readable.
    pub problem: Option<Error>,
    /// What could not be done either.
    pub also: Option<Error>,
}

/// Events that have no row in the file, by op.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Missing {
    /// Given up by the writer: there was no room for them.
    pub lost: BTreeMap<OpId, u64>,
    /// In memory, because the disk fails now; lost if it fails to the end.
    pub waiting: BTreeMap<OpId, u64>,
}

/// Counts of events for the session's row.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    /// Given to the writer.
    given: u64,
    /// In committed transactions.
    committed: Tally,
    /// Not in one yet: in the open transaction or, while the disk fails, in memory.
    open: Tally,
    /// Lost before they could be given to the writer.
    lost_before: u64,
    /// Lost because the disk failed.
    write_failed: u64,
    /// Lost because the file was full.
    size_cap: u64,
    /// Left out of `seconds`.
    unsummed: u64,
    /// Seconds of samples that were dropped.
    samples_missing: u64,
    /// Calls whose sums are already in the open transaction and no longer in memory.
    summed_in_open: u64,
}

/// Writes a run file. Dropped without [`Writer::finish`], it leaves the file as of the last commit.
pub struct Writer {
    // Dropped in this order: SQLite must close the file before the claim's descriptor does (see place.rs).
    db: Connection,
    claim: Claim,
    rows: RowWriter,
    unsaved: Unsaved,
    /// Whether the disk failed when last tried: then everything waits in `unsaved` for the next commit.
    failing: bool,
    cap: SizeCap,
    sums: Aggregator,
    pending: Pending,
    counts: Counts,
    /// Events dropped by the writer, by op.
    given_up: BTreeMap<OpId, u64>,
    origin_ns: u64,
    /// Space to end the run with when the disk is full.
    reserve: Option<File>,
}

impl Writer {
    /// Creates the run file. A file that has the name already is moved aside, with its -wal and -shm.
    pub fn create(path: &Path, run: &NewRun) -> Result<Created> {
        let claim = place::claim(path, run.owner)?;
        let db = open_new(&claim, run).inspect_err(|_| {
            // The empty file is ours and of no use; an error in removing it would only hide the first.
            let _ = std::fs::remove_file(&claim.path);
        })?;
        let moved_to = claim.moved.clone();
        let reserve = claim.path.parent().and_then(reserve::take);
        let writer = Self {
            db,
            claim,
            rows: RowWriter::default(),
            unsaved: Unsaved::default(),
            failing: false,
            cap: SizeCap(run.max_size),
            sums: Aggregator::new(run.start_monotonic_ns),
            pending: Pending::default(),
            counts: Counts::default(),
            given_up: BTreeMap::new(),
            origin_ns: run.start_monotonic_ns,
            reserve,
        };
        Ok(Created { writer, moved_to })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.claim.path
    }

    /// Stores calls, in any order; sorts them in place by start. Larger batches make a denser file.
    ///
    /// An error means that the disk started to fail, not that calls are lost: do not pass them again.
    pub fn write_calls(&mut self, calls: &mut [Call]) -> Result<()> {
        calls.sort_by_key(|call| call.start_ns);
        let mut outcome = Ok(());
        for chunk in calls.chunks(self.chunk()) {
            outcome = outcome.and(self.make_room_for_sums());
            // Even when the disk fails: the sums are kept, and stored when it works again.
            let mut given = Tally::default();
            for call in chunk {
                given.call(call);
                self.counts.unsummed += if self.sums.add(call) { 0 } else { call.calls() };
            }
            self.counts.given += given.events;
            let from = self.unsaved.calls.len();
            let all = self.keep_calls(chunk);
            self.counts.open.add(if all { given } else { Tally::of(&self.unsaved.calls[from..], &[]) });
            let rows =
                self.insert(|writer| writer.rows.calls(&writer.db, writer.origin_ns, &writer.unsaved.calls[from..]));
            outcome = outcome.and(rows);
        }
        outcome.and(self.end_batch())
    }

    /// Stores times off the CPU, in any order; sorts them in place by start, and cuts times that started before the run
    /// at its start. They are events like calls: counted, summed, and lost in the same way.
    pub fn write_off_cpu(&mut self, offs: &mut [OffCpu]) -> Result<()> {
        offs.iter_mut().for_each(|off| host::cut_off_cpu(off, self.origin_ns));
        offs.sort_by_key(|off| off.start_ns);
        let mut outcome = Ok(());
        for chunk in offs.chunks(self.chunk()) {
            outcome = outcome.and(self.make_room_for_sums());
            for off in chunk {
                self.counts.given += off.times();
                self.counts.unsummed += if self.sums.add(&host::as_call(off)) { 0 } else { off.times() };
            }
            let from = self.unsaved.offs.len();
            self.keep_offs(chunk);
            self.counts.open.add(Tally::of(&[], &self.unsaved.offs[from..]));
            let rows =
                self.insert(|writer| writer.rows.offs(&writer.db, writer.origin_ns, &writer.unsaved.offs[from..]));
            outcome = outcome.and(rows);
        }
        outcome.and(self.end_batch())
    }

    /// Stores who had a CPU for which a traced thread waited. These rows are evidence, not events: if they do not fit,
    /// they are counted as `evidence_lost`, and `cpu_held` covers less of `cpu_waits`.
    pub fn write_cpu_runs(&mut self, runs: &[CpuRun]) -> Result<()> {
        let (from, shortest) = (self.unsaved.runs.len(), self.shortest_evidence());
        self.unsaved.runs.extend(runs.iter().filter(|run| run.duration_ns >= shortest));
        self.lose_evidence((runs.len() - (self.unsaved.runs.len() - from)) as u64);
        let rows = self.insert(|writer| writer.rows.runs(&writer.db, writer.origin_ns, &writer.unsaved.runs[from..]));
        rows.and(self.end_batch())
    }

    /// Stores waits for CPUs that threads were moved away from. Evidence, as [`Writer::write_cpu_runs`].
    pub fn write_moved_waits(&mut self, moved: &[MovedWait]) -> Result<()> {
        let (from, shortest) = (self.unsaved.moved.len(), self.shortest_evidence());
        self.unsaved.moved.extend(moved.iter().filter(|wait| wait.duration_ns >= shortest));
        self.lose_evidence((moved.len() - (self.unsaved.moved.len() - from)) as u64);
        let rows = self.insert(|writer| writer.rows.moved(&writer.db, writer.origin_ns, &writer.unsaved.moved[from..]));
        rows.and(self.end_batch())
    }

    /// Replaces a thread's sums by newer ones. With another `since_ns` it is another life of that thread id.
    pub fn set_thread_sums(&mut self, sums: ThreadSums) {
        if !self.pending.host.set_thread(sums) {
            self.pending.add_loss(self.sums.newest_second(), LossCause::EvidenceLost, None, 1);
        }
    }

    /// Sets the ledger so far. The rows of a thread replace all its earlier ones.
    pub fn ledger(&mut self, rows: &[LedgerRow]) {
        let refused = self.pending.ledger.set(rows);
        if refused > 0 {
            self.pending.add_loss(self.sums.newest_second(), LossCause::EvidenceLost, None, refused);
        }
    }

    /// Adds the samples of a second. While the disk fails, ten minutes of samples are kept.
    pub fn add_samples(&mut self, samples: Samples) {
        self.counts.samples_missing += self.pending.host.add(samples);
    }

    /// Names a process; the last name stays. Children of one parent with the same name are numbered in the views.
    pub fn set_process(&mut self, pid: u32, name: &str) {
        self.pending.process(pid).name = Some(name.to_owned());
    }

    /// Says which process made a process.
    pub fn set_process_parent(&mut self, pid: u32, parent: u32) {
        self.pending.process(pid).parent = Some(parent);
    }

    /// Says which container a process is in.
    pub fn set_process_container(&mut self, pid: u32, container: &str) {
        self.pending.process(pid).container = Some(container.to_owned());
    }

    /// Says a process's command line.
    pub fn set_process_command(&mut self, pid: u32, command: &str) {
        self.pending.process(pid).command = Some(command.to_owned());
    }

    /// Says when a process started or ended, `CLOCK_MONOTONIC` nanoseconds. May be negative in the file:
    /// most processes are older than the run.
    pub fn set_process_times(&mut self, pid: u32, started_ns: Option<u64>, ended_ns: Option<u64>) {
        let relative = |ns: u64| ns.wrapping_sub(self.origin_ns).cast_signed();
        let (started, ended) = (started_ns.map(relative), ended_ns.map(relative));
        let facts = self.pending.process(pid);
        facts.started = started.or(facts.started);
        facts.ended = ended.or(facts.ended);
    }

    /// Counts loss in a second of the run. `write_failed` and `size_cap` are counted by the writer itself.
    pub fn add_loss(&mut self, second: u64, cause: LossCause, op: Option<OpId>, count: u64) {
        if count == 0 {
            return;
        }
        if cause.loses_event() {
            self.counts.lost_before += count;
        }
        self.pending.add_loss(second, cause, op, count);
    }

    /// Notes a library whose functions are traced.
    pub fn add_library(&mut self, library: LibraryRow) {
        let attached = stored(library.attached_ns.saturating_sub(self.origin_ns));
        self.pending.add_library(library, attached);
    }

    /// Adds the frames of a stack as text. Its id is that of [`Call::stack`].
    pub fn add_stack(&mut self, id: u64, text: StackText) {
        self.pending.add_stack(id.cast_signed(), text);
    }

    /// Keeps a line of source that a stack names.
    pub fn add_source_line(&mut self, line: SourceLine) {
        self.pending.add_source_line(line);
    }

    /// Replaces the facts about the machine (some come from the traced program).
    pub fn set_machine(&mut self, machine: Machine) {
        self.pending.set_machine(machine);
    }

    /// Sums of all events so far, by function, lost ones included if they came this far.
    pub fn totals(&self) -> impl Iterator<Item = (OpId, &OpTotals)> {
        self.sums.totals()
    }

    /// Events stored, those included that wait for the next commit.
    pub fn stored(&self) -> u64 {
        self.counts.committed.events + self.counts.open.events
    }

    /// Events known to be lost, wherever.
    pub fn lost(&self) -> u64 {
        let Counts { lost_before, write_failed, size_cap, .. } = self.counts;
        lost_before + write_failed + size_cap
    }

    /// Events without a row in the file, at present. Those in the open transaction count only while the disk fails.
    pub fn missing(&self) -> Missing {
        let waiting = if self.failing { self.unsaved.by_op() } else { BTreeMap::new() };
        Missing { lost: self.given_up.clone(), waiting }
    }

    /// Makes everything so far durable, even against `kill -9`. If that fails, the run continues in memory; the error
    /// says how much is kept there.
    pub fn commit(&mut self) -> Result<()> {
        if self.failing {
            return self.retry();
        }
        let outcome = self.write_rest(self.counts.open).and_then(|()| self.db.execute_batch("COMMIT"));
        self.settle(outcome)?;
        self.committed(self.counts.open);
        self.unsaved.clear();
        Ok(())
    }

    /// Moves committed data from the -wal to the main file, unless readers prevent it, so that a copy of that file
    /// alone has everything up to here. What cannot be moved now stays in the -wal and is not lost.
    pub fn checkpoint(&mut self) {
        if !self.failing {
            let _ = self.db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        }
    }

    /// Ends the run and closes the file into one plain SQLite file. Does as much as the disk allows.
    pub fn finish(mut self, end: &RunEnd) -> Finished {
        let mut problem = self.commit().err();
        if problem.is_some() {
            problem = self.end_on_a_failing_disk();
        }
        drop(self.reserve.take());
        if let Err(source) = self.write_end(end) {
            problem = problem.or(Some(self.write_error(source)));
        }
        let merged = side_files::take_journal(&self.claim.path).and_then(|_journal| {
            merge_wal(&self.db).map_err(|source| Error::NotMerged { path: self.claim.path.clone(), source })
        });
        // Both are said: that the -wal is needed matters even more if something is missing.
        let (problem, also) = match (problem, merged.err()) {
            (Some(problem), also) => (Some(problem), also),
            (None, problem) => (problem, None),
        };
        let Self { db, claim, counts, given_up, .. } = self;
        drop(db);
        let size = |end| std::fs::metadata(place::with_end(&claim.path, end)).map_or(0, |m| m.len());
        let lost = [(LossCause::WriteFailed, counts.write_failed), (LossCause::SizeCap, counts.size_cap)];
        Finished {
            size_bytes: size("") + size("-wal"),
            stored: counts.committed.events,
            thinned: counts.committed.thinned,
            lost: lost.into_iter().filter(|(_, events)| *events > 0).collect(),
            lost_by_op: given_up,
            problem,
            also,
            path: claim.path.clone(),
        }
    }

    /// After a commit of rows.
    fn committed(&mut self, rows: Tally) {
        self.counts.committed.add(rows);
        self.counts.open.events -= rows.events;
        self.counts.open.thinned -= rows.thinned;
        self.counts.summed_in_open = 0;
        self.sums.stored();
        self.pending.stored();
    }

    /// Moves the waiting sums into the transaction when the next chunk could overflow them.
    fn make_room_for_sums(&mut self) -> Result<()> {
        if self.sums.waiting() + CHUNK as usize <= MAX_CELLS || self.failing {
            return Ok(());
        }
        let outcome = self.begin().and_then(|()| write_sums(&self.db, &self.sums));
        self.settle(outcome)?;
        self.counts.summed_in_open += self.sums.cells().map(|(_, sums)| sums.calls).sum::<u64>();
        self.sums.stored();
        Ok(())
    }

    /// Everything but the rows, of which `open` are in the transaction already.
    fn write_rest(&mut self, open: Tally) -> rusqlite::Result<()> {
        self.begin()?;
        self.pending.write(&self.db, &mut self.rows, self.origin_ns)?;
        write_sums(&self.db, &self.sums)?;
        let Counts { given, committed, lost_before, unsummed, samples_missing, .. } = self.counts;
        self.db
            .prepare_cached(
                "UPDATE session_ SET events_seen = ?1, events_stored = ?2, events_lost = ?3, seconds_missing = ?4,
                     samples_missing = ?5, thinned = ?6",
            )?
            .execute(params![
                stored(given + lost_before),
                stored(committed.events + open.events),
                stored(self.lost()),
                stored(unsummed),
                stored(samples_missing),
                stored(committed.thinned + open.thinned)
            ])?;
        Ok(())
    }

    fn write_end(&mut self, end: &RunEnd) -> rusqlite::Result<()> {
        self.db.execute(
            "UPDATE session_ SET stop_unix_ns = ?1, duration_ns = ?2, stop_reason = ?3, own_cost = ?4",
            params![
                stored(end.stop_unix_ns),
                stored(end.stop_monotonic_ns.saturating_sub(self.origin_ns)),
                end.stop_reason,
                end.own_cost
            ],
        )?;
        Ok(())
    }

    fn begin(&self) -> rusqlite::Result<()> {
        if self.db.is_autocommit() { self.db.execute_batch("BEGIN IMMEDIATE") } else { Ok(()) }
    }

    fn write_error(&self, source: rusqlite::Error) -> Error {
        write_error(&self.claim.path, self.unsaved.bytes() as u64, source)
    }
}

/// Makes the claimed, empty file a run file and opens it.
fn open_new(claim: &Claim, run: &NewRun) -> Result<Connection> {
    let failed = |source| write_error(&claim.path, 0, source);
    make_empty_run(&claim.path, run).map_err(failed)?;
    // From here on, SQLite would use side files that it finds.
    let (sides, journal) = side_files::take(&claim.path, run.owner)?;
    claim.mark_wal().map_err(|source| Error::CannotCreate { path: claim.path.clone(), source })?;
    let db = open_for_writing(&claim.path, SizeCap(run.max_size)).map_err(failed)?;
    sides.keep();
    drop(journal);
    Ok(db)
}

/// Beside an empty file SQLite uses nothing that it finds, and in this mode it makes nothing.
fn make_empty_run(path: &Path, run: &NewRun) -> rusqlite::Result<()> {
    let db = open(path)?;
    db.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    db.pragma_update(None, "page_size", stored(PAGE_BYTES))?;
    db.query_row("PRAGMA journal_mode = OFF", [], |_| Ok(()))?;
    schema::create(&db)?;
    db.execute(
        "INSERT INTO session_ (id, version, start_unix_ns, start_monotonic_ns, command, flags, max_size)
         VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6)",
        params![
            run.version,
            stored(run.start_unix_ns),
            stored(run.start_monotonic_ns),
            run.command,
            run.flags,
            run.max_size.map(stored)
        ],
    )?;
    write_machine(&db, &run.machine)?;
    db.execute_batch("COMMIT")?;
    db.close().map_err(|(_, source)| source)
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(BUSY)?;
    db.set_prepared_statement_cache_capacity(STATEMENTS);
    db.pragma_update(None, "cache_size", -4000)?;
    Ok(db)
}

fn open_for_writing(path: &Path, cap: SizeCap) -> rusqlite::Result<Connection> {
    let db = open(path)?;
    db.pragma_update(None, "synchronous", "NORMAL")?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    db.pragma_update(None, "wal_autocheckpoint", stored(cap.part(64 * PAGE_BYTES, 16, CHECKPOINT_PAGES)))?;
    db.pragma_update(None, "journal_size_limit", stored(cap.part(16, 64 << 10, WAL_BYTES)))?;
    Ok(db)
}

/// Brings the -wal into the main file and leaves WAL mode. Fails while another program reads the file.
fn merge_wal(db: &Connection) -> rusqlite::Result<()> {
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    db.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))
}

fn write_error(path: &Path, kept_bytes: u64, source: rusqlite::Error) -> Error {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Error::DiskFull { path, kept_bytes },
        _ => Error::CannotWrite { path, kept_bytes, source },
    }
}
