// SPDX-License-Identifier: Apache-2.0
//! One question being worked on: how long it may take, and how it is stopped.

use crate::error::ToolError;
use gpuwhy_store::Interrupter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// How long a question may take in all.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Between two tries to stop a reader that is told to.
const AGAIN: Duration = Duration::from_millis(20);

/// A question being worked on, shared by who works and who watches.
#[derive(Default)]
pub(crate) struct Work {
    began: Option<Instant>,
    stopped: AtomicBool,
    reading: Mutex<Option<Interrupter>>,
}

impl Work {
    /// Fails when nobody waits for the answer any more.
    pub(crate) fn check(&self) -> Result<(), ToolError> {
        if self.stopped.load(Ordering::Relaxed) { Err(ToolError::Cancelled) } else { Ok(()) }
    }

    /// Which reader is at work.
    pub(crate) fn holds(&self, reader: Option<Interrupter>) {
        *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = reader;
    }

    /// How much time is left.
    pub(crate) fn left(&self) -> Duration {
        LIMIT.saturating_sub(self.began.map_or(Duration::ZERO, |began| began.elapsed())).max(Duration::from_millis(1))
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(reader) = &*self.reading.lock().unwrap_or_else(PoisonError::into_inner) {
            reader.interrupt();
        }
    }
}

/// Does something on a thread that may block, one of a few at a time; stops it when it is cancelled or takes too long.
pub(crate) async fn run<T: Send + 'static>(
    turns: &Arc<Semaphore>,
    cancelled: CancellationToken,
    question: impl FnOnce(&Work) -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    let turn = Arc::clone(turns).acquire_owned();
    let turn = tokio::select! {
        turn = turn => turn.map_err(|_| ToolError::Cancelled)?,
        () = cancelled.cancelled() => return Err(ToolError::Cancelled),
        () = tokio::time::sleep(LIMIT) => return Err(ToolError::Busy),
    };
    let work = Arc::new(Work { began: Some(Instant::now()), ..Work::default() });
    let mut answer = tokio::task::spawn_blocking({
        let work = Arc::clone(&work);
        move || {
            let answer = question(&work);
            drop(turn);
            answer
        }
    });
    let why = tokio::select! {
        answer = &mut answer => return answer.unwrap_or_else(|fault| Err(ToolError::Fault(fault.to_string()))),
        () = cancelled.cancelled() => ToolError::Cancelled,
        () = tokio::time::sleep(LIMIT) => ToolError::TooSlow(LIMIT),
    };
    // A reader that is between two statements does not hear it the first time.
    tokio::spawn(async move {
        while !answer.is_finished() {
            work.stop();
            tokio::time::sleep(AGAIN).await;
        }
    });
    Err(why)
}
