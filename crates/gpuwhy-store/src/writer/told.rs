// SPDX-License-Identifier: Apache-2.0
//! Storing library reports.

use super::Writer;
use crate::Result;
use crate::alerts::AlertRow;
use crate::cap::Room;
use crate::told::{self, GovernorRow};
use crate::unsaved::{GivenUp, Tally};
use gpuwhy_model::{Communicator, FunctionName, LossCause, TensorEvent, Transfer, Unwatched};

impl Writer {
    /// Stores reports of PyTorch's allocator, in any order; sorts them in place by time. They are events like calls,
    /// but a row never represents several, because a balance needs every report.
    pub fn write_tensors(&mut self, events: &mut [TensorEvent]) -> Result<()> {
        events.sort_by_key(|event| event.at_ns);
        let mut outcome = Ok(());
        for chunk in events.chunks(self.chunk()) {
            outcome = outcome.and(self.make_room_for_sums());
            self.counts.given += chunk.len() as u64;
            for event in chunk {
                self.counts.unsummed += u64::from(!self.sums.add(&told::as_call(event)));
            }
            let from = self.unsaved.tensors.len();
            self.keep_tensors(chunk);
            self.counts.open.add(Tally { events: (self.unsaved.tensors.len() - from) as u64, thinned: 0 });
            let rows = self
                .insert(|writer| writer.rows.tensors(&writer.db, writer.origin_ns, &writer.unsaved.tensors[from..]));
            outcome = outcome.and(rows);
        }
        outcome.and(self.end_batch())
    }

    fn keep_tensors(&mut self, events: &[TensorEvent]) {
        if matches!(self.room(), Room::Enough | Room::Little(_)) {
            return self.unsaved.tensors.extend_from_slice(events);
        }
        let mut gone = GivenUp::default();
        events.iter().for_each(|event| gone.tensor(event, self.origin_ns));
        self.give_up(&gone, LossCause::SizeCap);
    }

    /// Whether there is room for rows that are not events.
    fn has_room(&self) -> bool {
        matches!(self.room(), Room::Enough | Room::Little(_))
    }

    /// Stores how transfers stand among those of their communicator; the calls themselves are given as such.
    pub fn add_transfers(&mut self, rows: &[Transfer]) {
        let room = rows.is_empty() || self.has_room();
        for row in rows {
            let kept = room && self.pending.told.transfer(*row);
            self.lose_evidence(u64::from(!kept));
        }
    }

    /// Stores communicators that were made.
    pub fn add_communicators(&mut self, rows: &[Communicator]) {
        let room = rows.is_empty() || self.has_room();
        for row in rows {
            let kept = room && self.pending.told.communicator(*row);
            self.lose_evidence(u64::from(!kept));
        }
    }

    /// Stores names of functions.
    pub fn add_function_names(&mut self, rows: impl IntoIterator<Item = FunctionName>) {
        for row in rows {
            let kept = self.has_room() && self.pending.told.name(row);
            self.lose_evidence(u64::from(!kept));
        }
    }

    /// Says that a library was in use before it was watched.
    pub fn add_unwatched(&mut self, row: Unwatched) {
        let kept = self.has_room() && self.pending.told.unwatched(row);
        self.lose_evidence(u64::from(!kept));
    }

    /// Says what the governor did.
    pub fn add_governor(&mut self, row: GovernorRow) {
        let kept = self.pending.told.governor(row);
        self.lose_evidence(u64::from(!kept));
    }

    /// Says that an alert was raised; once more, with the same id, that it is over.
    pub fn add_alert(&mut self, row: AlertRow) {
        let kept = self.pending.told.alert(row);
        self.lose_evidence(u64::from(!kept));
    }
}
