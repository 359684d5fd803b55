// SPDX-License-Identifier: Apache-2.0
//! Searches the run that is being recorded for leaks, with the examination of `gpuwhy memory`, on a thread of the lowest
//! priority that stops when it has used its share of CPU time.

use gpuwhy_ask::{Error, Part, memory};
use gpuwhy_memory::alerts::Examination;
use gpuwhy_memory::report::Leak;
use gpuwhy_store::Reader;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest examination. While the run file is read, its -wal cannot be merged into it.
const LONGEST: Duration = Duration::from_secs(30);
/// Events between two readings of the clock, which costs as much as a few events.
const EVENTS_BETWEEN_CLOCKS: u64 = 512;

/// The result of an examination.
pub(super) struct Answer {
    /// CPU time it took, ns.
    pub(super) cpu_ns: u64,
    /// Whether it was not cut short.
    pub(super) finished: bool,
    /// The leaks; `None` if the examination failed or was cut short.
    pub(super) leaks: Option<Vec<Leak>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    spent_ns: AtomicU64,
}

/// The thread, from outside.
pub(super) struct LeakWatch {
    shared: Arc<Shared>,
    ask: SyncSender<Examination>,
    answers: Receiver<Answer>,
    thread: JoinHandle<()>,
    is_busy: bool,
}

impl LeakWatch {
    /// Starts the thread for this run file.
    pub(super) fn start(path: &Path) -> std::io::Result<Self> {
        let (ask, asked) = sync_channel(1);
        let (tell, answers) = sync_channel(1);
        let shared = Arc::new(Shared::default());
        let (path, theirs) = (path.to_owned(), Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("leaks".into()).spawn(move || {
            // SAFETY: a plain system call with numbers, for this thread only. If it fails, the thread has normal priority.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
            for examination in asked {
                let answer = examine(&path, examination, &theirs);
                if tell.send(answer).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { shared, ask, answers, thread, is_busy: false })
    }

    /// Whether an examination is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Requests an examination.
    pub(super) fn ask(&mut self, examination: Examination) {
        self.is_busy = self.is_busy || self.ask.try_send(examination).is_ok();
    }

    /// The result, once there is one.
    pub(super) fn answer(&mut self) -> Option<Answer> {
        let answer = self.answers.try_recv().ok();
        self.is_busy = self.is_busy && answer.is_none();
        answer
    }

    /// CPU time so far, ns, as of the last reading of the clock.
    pub(super) fn spent_ns(&self) -> u64 {
        self.shared.spent_ns.load(Ordering::Relaxed)
    }

    /// Stops the thread and waits for it. Returns a result that was just ready.
    pub(super) fn end(self) -> Option<Answer> {
        let Self { shared, ask, answers, thread, .. } = self;
        shared.stop.store(true, Ordering::Relaxed);
        drop(ask);
        // A thread that panicked has reported it already and has no result.
        let _ = thread.join();
        answers.try_recv().ok().filter(|answer| answer.finished)
    }
}

fn examine(path: &Path, examination: Examination, shared: &Shared) -> Answer {
    let (began, began_cpu) = (Instant::now(), cpu_ns());
    let before = shared.spent_ns.load(Ordering::Relaxed);
    let spent = || {
        let spent = cpu_ns().saturating_sub(began_cpu);
        shared.spent_ns.store(before + spent, Ordering::Relaxed);
        spent
    };
    let (events, too_long) = (AtomicU64::new(0), AtomicBool::new(false));
    let stop = || {
        if events.fetch_add(1, Ordering::Relaxed).is_multiple_of(EVENTS_BETWEEN_CLOCKS) {
            let over = spent() > examination.cpu_ns || began.elapsed() > LONGEST;
            too_long.store(over, Ordering::Relaxed);
        }
        too_long.load(Ordering::Relaxed) || shared.stop.load(Ordering::Relaxed)
    };
    let part = Part { to: Some(Duration::from_nanos(examination.to_ns)), ..Part::default() };
    let examined = || memory::examine_unless(&stop, &Reader::open(path)?, &part);
    let outcome = examined();
    let finished = !matches!(outcome, Err(Error::Stopped));
    let leaks = outcome.ok().map(|examined| examined.report.leaks);
    Answer { cpu_ns: spent(), finished, leaks }
}

/// CPU time of this thread, ns.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the struct we own.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
