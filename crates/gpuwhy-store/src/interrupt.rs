// SPDX-License-Identifier: Apache-2.0
//! Ending a question from another thread.

use crate::Reader;

/// Ends whatever a reader is working on.
pub struct Interrupter(rusqlite::InterruptHandle);

impl Interrupter {
    /// The statement that runs now fails; one that begins later does not, so who wants a reader to stop says it again until it
    /// has.
    pub fn interrupt(&self) {
        self.0.interrupt();
    }
}

impl Reader {
    /// For another thread.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter(self.db.get_interrupt_handle())
    }
}
