// SPDX-License-Identifier: Apache-2.0
//! The thread that reads lines of source: a disk may take its time, and neither the ring nor the run file must wait for it.

use crate::trace::capabilities::{self, CapSets};
use crate::trace::writer::WriterThread;
use gpuwhy_capture::batch::Batch;
use gpuwhy_capture::source_lines::{Place, SourceReader, places};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Stacks that may wait. What comes while as many do has no source: it is a help, not the answer.
const QUEUE: usize = 1_024;
/// How long the end of a trace waits for what is still to be read.
const PATIENCE: Duration = Duration::from_secs(1);

/// The thread, from outside.
pub(crate) struct Sources {
    wanted: Option<SyncSender<(u32, Vec<Place>)>>,
    /// Nothing is ever sent here: it closes when the thread ends.
    ended: Receiver<()>,
}

impl Sources {
    /// Starts it. Without it a run has no lines of source. `only`: whose processes' files are read, if not everybody's.
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

    /// Has the lines read that new stacks name.
    pub(crate) fn note(&self, batch: &Batch) {
        let Some(wanted) = &self.wanted else { return };
        for named in &batch.stacks {
            let places = places(&named.stack);
            if !places.is_empty() {
                let _ = wanted.try_send((named.pid, places));
            }
        }
    }

    /// Waits for what is being read, but not for a file system that does not answer.
    pub(crate) fn finish(&mut self) {
        if self.wanted.take().is_some() {
            let ended = self.ended.recv_timeout(PATIENCE);
            debug_assert!(matches!(ended, Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout)));
        }
    }
}

/// gpuwhy may look into all files because programs lie anywhere. What ends in the run file must be what its owner could read:
/// this thread keeps only the right to see where a process has its files. False if that is refused.
fn give_up_reading_all() -> bool {
    let Ok(sets) = CapSets::current() else { return false };
    CapSets { effective: sets.effective & capabilities::SEE_PROCESSES, ..sets }.apply().is_ok()
}
