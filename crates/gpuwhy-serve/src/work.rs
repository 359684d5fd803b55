// SPDX-License-Identifier: Apache-2.0
//! One request in progress: its time limit and cancellation.

use crate::error::ToolError;
use gpuwhy_store::Interrupter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Time limit of a request.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Pause between two attempts to interrupt a reader.
const AGAIN: Duration = Duration::from_millis(20);

/// A request in progress, shared by the worker and the watcher.
#[derive(Default)]
pub(crate) struct Work {
    began: Option<Instant>,
    stopped: AtomicBool,
    reading: Mutex<Option<Interrupter>>,
}

impl Work {
    /// Fails if the request was cancelled or timed out.
    pub(crate) fn check(&self) -> Result<(), ToolError> {
        if self.stopped.load(Ordering::Relaxed) { Err(ToolError::Cancelled) } else { Ok(()) }
    }

    /// Sets the reader in use.
    pub(crate) fn holds(&self, reader: Option<Interrupter>) {
        *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = reader;
    }

    /// Time left.
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

/// Runs blocking work, with a limit on concurrent requests; interrupts it if it is cancelled or takes too long.
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
    // A reader between two statements misses the first interrupt.
    tokio::spawn(async move {
        while !answer.is_finished() {
            work.stop();
            tokio::time::sleep(AGAIN).await;
        }
    });
    Err(why)
}
