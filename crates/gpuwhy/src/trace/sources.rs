// SPDX-License-Identifier: Apache-2.0
//! The thread that reads source lines. A disk may be slow, and neither the ring nor the run file must wait for it.

use crate::trace::capabilities::{self, CapSets};
use crate::trace::writer::WriterThread;
use gpuwhy_capture::batch::Batch;
use gpuwhy_capture::source_lines::{Place, SourceReader, places};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Maximum queued stacks. Stacks beyond it get no source lines, which are helpful but not essential.
const QUEUE: usize = 1_024;
/// How long the end of a trace waits for outstanding source lines.
const PATIENCE: Duration = Duration::from_secs(1);

/// Handle to the thread.
pub(crate) struct Sources {
    wanted: Option<SyncSender<(u32, Vec<Place>)>>,
    /// Nothing is sent here: it closes when the thread ends.
    ended: Receiver<()>,
}

impl Sources {
    /// Starts the thread; if that fails, the run has no source lines. `only`: read only files of this user's processes.
    pub(crate) fn start(writer: &WriterThread, only: Option<u32>) -> Self {
        let (wanted, stacks) = sync_channel::<(u32, Vec<Place>)>(QUEUE);
        let (end, ended) = sync_channel(0);
        let keep = writer.source_lines();
        let thread = std::thread::Builder::new().name("sources".into()).spawn(move || {
            let _end: SyncSender<()> = end;
            if !give_up_reading_all() {
                return;
            }
            let mut reader = SourceReader::of_user(only);
            for (pid, places) in stacks {
                if !reader.read(pid, places).into_iter().all(&keep) {
                    return;
                }
            }
        });
        Self { wanted: thread.is_ok().then_some(wanted), ended }
    }

    /// Queues the source lines of new stacks.
    pub(crate) fn note(&self, batch: &Batch) {
        let Some(wanted) = &self.wanted else { return };
        for named in &batch.stacks {
            let places = places(&named.stack);
            if !places.is_empty() {
                let _ = wanted.try_send((named.pid, places));
            }
        }
    }

    /// Waits for outstanding lines, but not for a hanging file system.
    pub(crate) fn finish(&mut self) {
        if self.wanted.take().is_some() {
            let ended = self.ended.recv_timeout(PATIENCE);
            debug_assert!(matches!(ended, Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout)));
        }
    }
}

/// gpuwhy may read all files, because programs can be anywhere. But the run file must only contain what its owner could
/// read, so this thread keeps only the right to follow a process's root folder. False if that fails.
fn give_up_reading_all() -> bool {
    let Ok(sets) = CapSets::current() else { return false };
    CapSets { effective: sets.effective & capabilities::SEE_PROCESSES, ..sets }.apply().is_ok()
}
