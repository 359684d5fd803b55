// SPDX-License-Identifier: Apache-2.0
//! How many rows the file has room for, and where they wait while the disk fails.

use super::{CHUNK, PAGE_BYTES, Writer};
use crate::cap::Room;
use crate::unsaved::{GivenUp, Tally};
use crate::{Error, Result, place, reserve};
use gpuwhy_model::thin::{self, FAST_NS, SLOW_NS};
use gpuwhy_model::{Call, Class, LossCause, OffCpu};

/// Rows of each kind that are tried at a time when the disk has failed.
const PART: usize = 20_000;
/// Space left free on a full disk at the end of a run, for everything that is not a row, bytes.
const ENDING_BYTES: u64 = 192 << 10;
/// Size of a row until the file is closed, bytes: it is first in the -wal, then in the file.
const ROW_BYTES: u64 = 100;
/// A transaction is committed at this many rows (about 6 MB) at the latest, so that the -wal and the rows in memory
/// stay small.
const MAX_ROWS_IN_TRANSACTION: u64 = 200_000;

impl Writer {
    /// Uses the reserved space for everything that is not a row, then for the rows that fit, slowest first.
    pub(super) fn end_on_a_failing_disk(&mut self) -> Option<Error> {
        drop(self.reserve.take());
        self.empty_wal();
        let fits = usize::try_from(self.free_bytes().saturating_sub(ENDING_BYTES) / ROW_BYTES).unwrap_or(usize::MAX);
        let mut last = self.retry_with(fits).err();
        if last.is_some() {
            last = self.retry_with(0).err();
        }
        if last.is_some() {
            last = self.retry_with_loss_alone().err();
        }
        let lost_events = self.counts.write_failed;
        let path = || self.claim.path.clone();
        last.or_else(|| (lost_events > 0).then(|| Error::NotAllWritten { path: path(), lost_events }))
    }

    /// Stores so many rows of what waits, the slowest, and gives the others up.
    fn retry_with(&mut self, rows: usize) -> Result<()> {
        let gone = self.unsaved.keep_slowest(rows, self.origin_ns);
        self.give_up(&gone, LossCause::WriteFailed);
        self.counts.open = self.unsaved.tally();
        self.retry()
    }

    /// Where even words and sums do not fit, how much was lost does: a file that does not say so would be believed.
    fn retry_with_loss_alone(&mut self) -> Result<()> {
        self.counts.unsummed += self.sums.cells().map(|(_, sums)| sums.calls).sum::<u64>();
        self.sums.stored();
        self.pending.keep_loss_alone();
        self.retry()
    }

    /// Rows handled at a time: few in a small file, so that it is not full before that is seen.
    pub(super) fn chunk(&self) -> usize {
        self.cap.part(PAGE_BYTES, 256, CHUNK) as usize
    }

    /// How much room there is.
    pub(super) fn room(&self) -> Room {
        if self.cap.0.is_none() {
            return Room::Enough;
        }
        let pages =
            self.db.prepare_cached("PRAGMA page_count").and_then(|mut pages| pages.query_row([], |row| row.get(0)));
        // This fails only if the file cannot be read at all.
        let pages: u64 = pages.map_or(0, |pages: i64| pages.max(0).cast_unsigned());
        self.cap.room((pages * PAGE_BYTES).saturating_add(self.wal_bytes()))
    }

    fn wal_bytes(&self) -> u64 {
        std::fs::metadata(place::with_end(&self.claim.path, "-wal")).map_or(0, |wal| wal.len())
    }

    fn free_bytes(&self) -> u64 {
        self.claim.path.parent().map_or(0, reserve::free_bytes)
    }

    /// Moves the -wal into the file, which makes room for more, but temporarily needs twice the space.
    fn empty_wal(&self) {
        if self.free_bytes() > self.wal_bytes() {
            // A reader may prevent it; nothing is lost.
            let _ = self.db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        }
    }

    /// Adds calls that fit into the file to those to be stored. Returns whether all of them were added unchanged.
    pub(super) fn keep_calls(&mut self, calls: &[Call]) -> bool {
        let room = self.room();
        match room {
            Room::Enough => {
                self.unsaved.calls.extend_from_slice(calls);
                return true;
            }
            Room::Little(how) => {
                thin::calls(calls, how, &mut self.unsaved.calls);
                return false;
            }
            Room::SlowOnly | Room::Nothing => {}
        }
        let mut gone = GivenUp::default();
        for call in calls {
            let slow = call.duration_ns >= SLOW_NS || call.duration_ns >= self.sums.longest(call.op);
            // Process events are few, and much depends on them.
            let process = || call.op.get().is_some_and(|op| op.class == Class::Process);
            if room == Room::SlowOnly && (slow || process()) {
                self.unsaved.calls.push(*call);
            } else {
                gone.call(call, self.origin_ns);
            }
        }
        self.give_up(&gone, LossCause::SizeCap);
        false
    }

    /// The same of times off the CPU.
    pub(super) fn keep_offs(&mut self, offs: &[OffCpu]) {
        let room = self.room();
        match room {
            Room::Enough => return self.unsaved.offs.extend_from_slice(offs),
            Room::Little(how) => {
                return thin::offs(offs, how, |tid| self.rows.calls_cuda(tid), &mut self.unsaved.offs);
            }
            Room::SlowOnly | Room::Nothing => {}
        }
        let mut gone = GivenUp::default();
        for off in offs {
            if room == Room::SlowOnly && off.duration_ns >= SLOW_NS {
                self.unsaved.offs.push(*off);
            } else {
                gone.off(off, self.origin_ns);
            }
        }
        self.give_up(&gone, LossCause::SizeCap);
    }

    /// Evidence shorter than this is not stored, nanoseconds.
    pub(super) fn shortest_evidence(&self) -> u64 {
        match self.room() {
            Room::Enough => 0,
            Room::Little(_) => FAST_NS,
            Room::SlowOnly => SLOW_NS,
            Room::Nothing => u64::MAX,
        }
    }

    /// Counts events that will not be stored.
    pub(super) fn give_up(&mut self, gone: &GivenUp, cause: LossCause) {
        for ((second, op), events) in &gone.events {
            self.pending.add_loss(*second, cause, Some(*op), *events);
            *self.given_up.entry(*op).or_default() += events;
        }
        match cause {
            LossCause::SizeCap => self.counts.size_cap += gone.total(),
            _ => self.counts.write_failed += gone.total(),
        }
        self.lose_evidence(gone.evidence);
    }

    pub(super) fn lose_evidence(&mut self, rows: u64) {
        if rows > 0 {
            self.pending.add_loss(self.sums.newest_second(), LossCause::EvidenceLost, None, rows);
        }
    }

    /// Inserts rows into the open transaction; while the disk fails they only wait.
    pub(super) fn insert(&mut self, rows: impl FnOnce(&mut Self) -> rusqlite::Result<()>) -> Result<()> {
        if self.failing {
            return Ok(());
        }
        let outcome = self.begin().and_then(|()| rows(self));
        self.settle(outcome)
    }

    /// After a batch of rows: commits what has become large, and keeps what waits within bounds.
    pub(super) fn end_batch(&mut self) -> Result<()> {
        if self.failing {
            let gone = self.unsaved.bound(|tid| self.rows.calls_cuda(tid), self.origin_ns);
            self.give_up(&gone, LossCause::WriteFailed);
            // Rows may have been thinned without any being given up.
            self.counts.open = self.unsaved.tally();
            return Ok(());
        }
        let most = self.cap.part(2 * PAGE_BYTES, 1_000, MAX_ROWS_IN_TRANSACTION);
        if self.unsaved.rows() as u64 >= most { self.commit() } else { Ok(()) }
    }

    /// Tries to store the rows that wait since the disk failed, in parts.
    pub(super) fn retry(&mut self) -> Result<()> {
        self.empty_wal();
        loop {
            let part = self.unsaved.take_part(PART);
            let tally = part.tally();
            let rows = self.begin().and_then(|()| self.rows.all(&self.db, self.origin_ns, &part));
            let written = rows.and_then(|()| self.write_rest(tally)).and_then(|()| self.db.execute_batch("COMMIT"));
            if let Err(source) = written {
                self.unsaved.put_back(part);
                return self.settle(Err(source));
            }
            self.committed(tally);
            if self.unsaved.is_empty() {
                self.counts.open = Tally::default();
                self.failing = false;
                return Ok(());
            }
        }
    }

    /// After an error: rolls the transaction back, and from now on everything waits in memory.
    pub(super) fn settle(&mut self, outcome: rusqlite::Result<()>) -> Result<()> {
        let Err(source) = outcome else { return Ok(()) };
        if !self.db.is_autocommit() {
            // SQLite rolls back on its own on most of these errors, or else on closing.
            let _ = self.db.execute_batch("ROLLBACK");
        }
        self.failing = true;
        self.rows.forget();
        self.counts.unsummed += std::mem::take(&mut self.counts.summed_in_open);
        Err(self.write_error(source))
    }
}
