// SPDX-License-Identifier: Apache-2.0
//! Writing a run file.
//!
//! One transaction is open between two commits. If anything in it fails (disk full, I/O error), it is
//! rolled back as a whole: its calls and times off the CPU are lost and counted as `write_failed`, everything
//! else waits in memory for the next commit. What an earlier commit stored is never touched.

use crate::aggregate::{Aggregator, MAX_CELLS, OpTotals};
use crate::context::Contexts;
use crate::host::{self, HostRows};
use crate::ledger::LedgerRow;
use crate::pending::{LibraryRow, Machine, Pending, StackText, stored, write_machine, write_sums};
use crate::place::{self, Claim, Owner};
use crate::told::{self, GovernorRow};
use crate::{Error, Result, reserve, schema};
use gpuwhy_model::{
    Call, Communicator, CpuRun, FunctionName, LossCause, MovedWait, OffCpu, OpId, Samples, TensorEvent, ThreadSums,
    Transfer, Unwatched,
};
use rusqlite::{CachedStatement, Connection, ErrorCode, OpenFlags, params};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The -wal is folded into the main file at this many pages (32 MB).
const CHECKPOINT_PAGES: u32 = 8_192;
/// A transaction is committed at this many rows (about 12 MB) even if nobody asks, so the -wal stays small.
const MAX_ROWS_IN_TRANSACTION: u64 = 400_000;
/// Statements kept ready: more than there are in this crate.
const STATEMENTS: usize = 64;
/// Calls handled at a time: each may need a sum of its own, and those are bounded.
const CHUNK: usize = MAX_CELLS / 2;
/// How long to wait for another program that has the file locked. Meanwhile the ring buffer fills.
const BUSY: Duration = Duration::from_secs(1);
/// Ties are moved this many times by 1 ns; after that in growing steps, lest thousands of equal times
/// become millions of attempts.
const SMALL_STEPS: i64 = 64;

const INSERT_CALL: &str =
    "INSERT OR IGNORE INTO call_ (start, duration, context, arg0, arg1) VALUES (?1, ?2, ?3, ?4, ?5)";

/// What is known when a run begins.
#[derive(Debug, Clone, Default)]
pub struct NewRun {
    /// gpuwhy's version.
    pub version: String,
    /// The beginning by the wall clock, Unix nanoseconds.
    pub start_unix_ns: u64,
    /// The same moment on `CLOCK_MONOTONIC`, nanoseconds: the zero of the file's times.
    pub start_monotonic_ns: u64,
    /// The traced command, if gpuwhy started one.
    pub command: Option<String>,
    /// gpuwhy's own flags.
    pub flags: Option<String>,
    /// The machine.
    pub machine: Machine,
    /// Whom the file shall belong to; `None` for whoever runs gpuwhy.
    pub owner: Option<Owner>,
}

/// What is known when a run ends.
#[derive(Debug, Clone, Default)]
pub struct RunEnd {
    /// The end by the wall clock, Unix nanoseconds.
    pub stop_unix_ns: u64,
    /// The same moment on `CLOCK_MONOTONIC`, nanoseconds.
    pub stop_monotonic_ns: u64,
    /// Why it ended: `exit`, `interrupted`, `duration`, …
    pub stop_reason: String,
    /// What tracing cost, JSON.
    pub own_cost: Option<String>,
}

/// A new run file.
pub struct Created {
    /// To write it.
    pub writer: Writer,
    /// Where the file that had its name was moved.
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
    pub rows: u64,
    /// What could not be done; the file is readable all the same.
    pub problem: Option<Error>,
}

/// Counts of events, that is outermost calls and times off the CPU, for the session's row.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    /// Given to the writer.
    given: u64,
    /// Rows in committed transactions.
    committed: u64,
    /// Rows in the open transaction.
    open: u64,
    /// The same, with inner calls and rows that are no events.
    rows_open: u64,
    /// Of them, rows of evidence: who had a CPU, and waits for another.
    evidence_open: u64,
    /// Lost before they could be given to the writer.
    lost_before: u64,
    /// Lost by rolling back.
    lost_here: u64,
    /// Left out of `seconds`.
    unsummed: u64,
    /// Seconds of samples that were dropped.
    samples_missing: u64,
    /// Calls whose sums the open transaction already holds, out of memory.
    summed_in_open: u64,
}

/// Writes a run file. Dropped without [`Writer::finish`], it leaves the file as of the last commit.
pub struct Writer {
    // Dropped in this order: SQLite must close the file before the claim's descriptor does (see place.rs).
    db: Connection,
    claim: Claim,
    contexts: Contexts,
    host: HostRows,
    sums: Aggregator,
    pending: Pending,
    counts: Counts,
    origin_ns: u64,
    /// Space to end the run with when the disk is full.
    reserve: Option<File>,
}

impl Writer {
    /// Creates the run file. A file that has the name already is moved aside, with its -wal and -shm.
    pub fn create(path: &Path, run: &NewRun) -> Result<Created> {
        let claim = place::claim(path, run.owner)?;
        let db = open_new(&claim.path, run).map_err(|source| {
            // The empty file is ours and of no use; an error in removing it would only hide the first.
            let _ = std::fs::remove_file(&claim.path);
            write_error(&claim.path, 0, source)
        })?;
        let moved_to = claim.moved.clone();
        let reserve = claim.path.parent().and_then(reserve::take);
        let writer = Self {
            db,
            claim,
            contexts: Contexts::default(),
            host: HostRows::default(),
            sums: Aggregator::new(run.start_monotonic_ns),
            pending: Pending::default(),
            counts: Counts::default(),
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
    /// On an error all calls since the last commit are lost, and counted as such: do not give them again.
    pub fn write_calls(&mut self, calls: &mut [Call]) -> Result<()> {
        calls.sort_by_key(|call| call.start_ns);
        // Inner calls are stored beside the program's own but are none of them.
        let outermost = calls.iter().filter(|call| !call.flags.inner).count() as u64;
        self.counts.given += outermost;
        let mut outcome = Ok(());
        for chunk in calls.chunks(CHUNK) {
            outcome = outcome.and_then(|()| self.make_room_for_sums());
            // Even when the disk fails: the sums are kept, and stored when it works again.
            for call in chunk {
                self.counts.unsummed += u64::from(!self.sums.add(call));
            }
            outcome = outcome.and_then(|()| self.insert(chunk));
        }
        self.end_batch(outcome, outermost, calls.len())
    }

    /// Stores times off the CPU, in any order; sorts them in place by start. What began before the run is cut at
    /// its beginning, in place, too. They are events like calls: counted, summed, and lost in the same way.
    pub fn write_off_cpu(&mut self, rows: &mut [OffCpu]) -> Result<()> {
        rows.iter_mut().for_each(|row| host::cut_off_cpu(row, self.origin_ns));
        rows.sort_by_key(|row| row.start_ns);
        self.counts.given += rows.len() as u64;
        let mut outcome = Ok(());
        for chunk in rows.chunks(CHUNK) {
            outcome = outcome.and_then(|()| self.make_room_for_sums());
            for row in chunk {
                self.counts.unsummed += u64::from(!self.sums.add(&host::as_call(row)));
            }
            outcome = outcome.and_then(|()| {
                self.begin()?;
                self.host.insert_off_cpu(&self.db, self.origin_ns, chunk)
            });
        }
        self.end_batch(outcome, rows.len() as u64, rows.len())
    }

    /// Stores reports of PyTorch's allocator, in any order; sorts them in place by time. They are events like calls.
    pub fn write_tensors(&mut self, events: &mut [TensorEvent]) -> Result<()> {
        events.sort_by_key(|event| event.at_ns);
        self.counts.given += events.len() as u64;
        let mut outcome = Ok(());
        for chunk in events.chunks(CHUNK) {
            outcome = outcome.and_then(|()| self.make_room_for_sums());
            for event in chunk {
                self.counts.unsummed += u64::from(!self.sums.add(&told::as_call(event)));
            }
            outcome = outcome.and_then(|()| {
                self.begin()?;
                told::insert_tensors(&self.db, &mut self.contexts, self.origin_ns, chunk)
            });
        }
        self.end_batch(outcome, events.len() as u64, events.len())
    }

    /// Stores how transfers stand among those of their communicator; the calls themselves are given as such.
    pub fn add_transfers(&mut self, rows: &[Transfer]) {
        for row in rows {
            let kept = self.pending.told.transfer(*row);
            self.kept(kept);
        }
    }

    /// Stores communicators that were made.
    pub fn add_communicators(&mut self, rows: &[Communicator]) {
        for row in rows {
            let kept = self.pending.told.communicator(*row);
            self.kept(kept);
        }
    }

    /// Stores names of functions.
    pub fn add_function_names(&mut self, rows: impl IntoIterator<Item = FunctionName>) {
        for row in rows {
            let kept = self.pending.told.name(row);
            self.kept(kept);
        }
    }

    /// Says that a library was in use before it was watched.
    pub fn add_unwatched(&mut self, row: Unwatched) {
        let kept = self.pending.told.unwatched(row);
        self.kept(kept);
    }

    /// Says what the governor did.
    pub fn add_governor(&mut self, row: GovernorRow) {
        let kept = self.pending.told.governor(row);
        self.kept(kept);
    }

    /// Counts evidence for which there was no room.
    fn kept(&mut self, kept: bool) {
        if !kept {
            self.pending.add_loss(self.sums.newest_second(), LossCause::EvidenceLost, None, 1);
        }
    }

    /// Stores who had a CPU for which a traced thread waited. Evidence, not events: what the disk refuses is counted
    /// as `evidence_lost`, and `cpu_held` covers less of `cpu_waits`.
    pub fn write_cpu_runs(&mut self, rows: &[CpuRun]) -> Result<()> {
        self.counts.evidence_open += rows.len() as u64;
        let outcome = self.begin().and_then(|()| self.host.insert_runs(&self.db, self.origin_ns, rows));
        self.end_batch(outcome, 0, rows.len())
    }

    /// Stores waits for CPUs that threads were moved away from. Evidence, as [`Writer::write_cpu_runs`].
    pub fn write_moved_waits(&mut self, rows: &[MovedWait]) -> Result<()> {
        self.counts.evidence_open += rows.len() as u64;
        let outcome = self.begin().and_then(|()| self.host.insert_moved(&self.db, self.origin_ns, rows));
        self.end_batch(outcome, 0, rows.len())
    }

    /// Replaces a thread's sums by newer ones. With another `since_ns` it is another life of that thread id.
    pub fn set_thread_sums(&mut self, sums: ThreadSums) {
        if !self.pending.host.set_thread(sums) {
            self.pending.add_loss(self.sums.newest_second(), LossCause::EvidenceLost, None, 1);
        }
    }

    /// Says where threads' time went so far. The rows of a thread take the place of all its earlier ones.
    pub fn ledger(&mut self, rows: &[LedgerRow]) {
        let refused = self.pending.ledger.set(rows);
        if refused > 0 {
            self.pending.add_loss(self.sums.newest_second(), LossCause::EvidenceLost, None, refused);
        }
    }

    /// Adds what was looked up in a second. While the disk fails, ten minutes of it are kept.
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

    /// Counts loss in a second of the run. `write_failed` is counted by the writer itself.
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

    /// Puts a stack's frames into words. Its id is what [`Call::stack`] says.
    pub fn add_stack(&mut self, id: u64, text: StackText) {
        self.pending.add_stack(id.cast_signed(), text);
    }

    /// Replaces what is known of the machine (some of it is learned from the traced program).
    pub fn set_machine(&mut self, machine: Machine) {
        self.pending.set_machine(machine);
    }

    /// Sums of all events so far, by function, lost ones included if they came this far.
    pub fn totals(&self) -> impl Iterator<Item = (OpId, &OpTotals)> {
        self.sums.totals()
    }

    /// Events stored, those of the open transaction included.
    pub fn rows(&self) -> u64 {
        self.counts.committed + self.counts.open
    }

    /// Events known to be lost, wherever.
    pub fn lost(&self) -> u64 {
        self.counts.lost_before + self.counts.lost_here
    }

    /// Makes everything so far durable: after `kill -9` the file opens and has it.
    pub fn commit(&mut self) -> Result<()> {
        let committed = self.write_rest().and_then(|()| self.db.execute_batch("COMMIT"));
        self.settle(committed)?;
        self.counts.committed += std::mem::take(&mut self.counts.open);
        self.counts.rows_open = 0;
        self.counts.evidence_open = 0;
        self.counts.summed_in_open = 0;
        self.sums.stored();
        self.pending.stored();
        Ok(())
    }

    /// Ends the run and closes the file into one plain SQLite file. Does as much as the disk allows.
    pub fn finish(mut self, end: &RunEnd) -> Finished {
        let mut problem = self.commit().err();
        drop(self.reserve.take());
        if problem.is_some() {
            // The calls are gone; the rest is small and has the space that was set aside.
            problem = problem.or(self.commit().err());
        }
        if let Err(source) = self.write_end(end) {
            problem = problem.or(Some(write_error(&self.claim.path, 0, source)));
        }
        if let Err(source) = merge_wal(&self.db) {
            problem = problem.or(Some(Error::NotMerged { path: self.claim.path.clone(), source }));
        }
        let Self { db, claim, counts, .. } = self;
        drop(db);
        let size = |end| std::fs::metadata(place::with_end(&claim.path, end)).map_or(0, |m| m.len());
        Finished { size_bytes: size("") + size("-wal"), rows: counts.committed, problem, path: claim.path.clone() }
    }

    /// After a batch of rows, of which `events` are events: settles, and commits what has become large.
    fn end_batch(&mut self, outcome: rusqlite::Result<()>, events: u64, rows: usize) -> Result<()> {
        // Before the outcome is looked at: rolling back loses this batch, too.
        self.counts.open += events;
        self.counts.rows_open += rows as u64;
        self.settle(outcome)?;
        if self.counts.rows_open >= MAX_ROWS_IN_TRANSACTION {
            self.commit()?;
        }
        Ok(())
    }

    /// Moves the waiting sums into the transaction when the next chunk could overflow them.
    fn make_room_for_sums(&mut self) -> rusqlite::Result<()> {
        if self.sums.waiting() + CHUNK <= MAX_CELLS {
            return Ok(());
        }
        self.begin()?;
        write_sums(&self.db, &self.sums)?;
        self.counts.summed_in_open += self.sums.cells().map(|(_, sums)| sums.calls).sum::<u64>();
        self.sums.stored();
        Ok(())
    }

    fn insert(&mut self, calls: &[Call]) -> rusqlite::Result<()> {
        self.begin()?;
        let mut insert = self.db.prepare_cached(INSERT_CALL)?;
        let mut previous = -1;
        for call in calls {
            let context = self.contexts.id_of(&self.db, call)?;
            // A call older than the run would have a negative time; half the range leaves room for ties.
            let start = stored(call.start_ns.saturating_sub(self.origin_ns)).min(i64::MAX / 2).max(previous + 1);
            insert.raw_bind_parameter(2, stored(call.duration_ns))?;
            insert.raw_bind_parameter(3, context)?;
            insert.raw_bind_parameter(4, call.arg0.map(u64::cast_signed))?;
            insert.raw_bind_parameter(5, call.arg1.map(u64::cast_signed))?;
            previous = insert_at_free_time(&mut insert, start)?;
        }
        Ok(())
    }

    /// Everything but the rows, which are in the transaction already.
    fn write_rest(&mut self) -> rusqlite::Result<()> {
        self.begin()?;
        self.pending.write(&self.db, &mut self.contexts, self.origin_ns)?;
        write_sums(&self.db, &self.sums)?;
        let Counts { given, committed, open, lost_before, lost_here, unsummed, samples_missing, .. } = self.counts;
        self.db
            .prepare_cached(
                "UPDATE session_ SET events_seen = ?1, events_stored = ?2, events_lost = ?3, seconds_missing = ?4,
                     samples_missing = ?5",
            )?
            .execute(params![
                stored(given + lost_before),
                stored(committed + open),
                stored(lost_before + lost_here),
                stored(unsummed),
                stored(samples_missing)
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

    /// After an error: rolls the transaction back and counts what went with it.
    fn settle(&mut self, outcome: rusqlite::Result<()>) -> Result<()> {
        let Err(source) = outcome else { return Ok(()) };
        if !self.db.is_autocommit() {
            // SQLite rolls back by itself on most of these errors, and if this fails, on closing.
            let _ = self.db.execute_batch("ROLLBACK");
        }
        self.contexts.forget();
        self.host.forget();
        let lost = std::mem::take(&mut self.counts.open);
        self.counts.rows_open = 0;
        self.counts.lost_here += lost;
        self.counts.unsummed += std::mem::take(&mut self.counts.summed_in_open);
        let evidence = std::mem::take(&mut self.counts.evidence_open);
        for (cause, count) in [(LossCause::WriteFailed, lost), (LossCause::EvidenceLost, evidence)] {
            if count > 0 {
                self.pending.add_loss(self.sums.newest_second(), cause, None, count);
            }
        }
        Err(write_error(&self.claim.path, lost, source))
    }
}

/// Inserts the bound row at `start`, or at the next free time after it; returns the time it got.
#[inline]
pub(crate) fn insert_at_free_time(insert: &mut CachedStatement<'_>, start: i64) -> rusqlite::Result<i64> {
    let (mut time, mut attempts) = (start, 0);
    loop {
        insert.raw_bind_parameter(1, time)?;
        if insert.raw_execute()? > 0 {
            return Ok(time);
        }
        attempts += 1;
        time += (attempts - SMALL_STEPS).max(1);
    }
}

/// Opens the claimed, empty file and makes it a run file.
fn open_new(path: &Path, run: &NewRun) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(BUSY)?;
    db.set_prepared_statement_cache_capacity(STATEMENTS);
    db.pragma_update(None, "page_size", 4096)?;
    db.pragma_update(None, "cache_size", -4000)?;
    db.pragma_update(None, "synchronous", "NORMAL")?;
    schema::create(&db)?;
    db.execute(
        "INSERT INTO session_ (id, version, start_unix_ns, start_monotonic_ns, command, flags)
         VALUES (1, ?1, ?2, ?3, ?4, ?5)",
        params![run.version, stored(run.start_unix_ns), stored(run.start_monotonic_ns), run.command, run.flags],
    )?;
    write_machine(&db, &run.machine)?;
    db.execute_batch("COMMIT")?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    db.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    db.pragma_update(None, "journal_size_limit", 64 << 20)?;
    Ok(db)
}

/// Brings the -wal into the main file and leaves WAL mode. Fails while another program reads the file.
fn merge_wal(db: &Connection) -> rusqlite::Result<()> {
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    db.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))
}

fn write_error(path: &Path, lost_calls: u64, source: rusqlite::Error) -> Error {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Error::DiskFull { path, lost_calls },
        _ => Error::CannotWrite { path, lost_calls, source },
    }
}
