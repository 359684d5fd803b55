// SPDX-License-Identifier: Apache-2.0
//! Ending a question from another thread.

use crate::Reader;

/// Ends whatever a reader is working on.
pub struct Interrupter(rusqlite::InterruptHandle);

impl Interrupter {
    /// Makes the running statement fail, but not later ones: repeat it until the reader has stopped.
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
