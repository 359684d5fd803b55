// SPDX-License-Identifier: Apache-2.0
//! The thread that owns the run file. Capturing must not wait for a disk, so batches arrive through a bounded queue. If
//! the queue is full, the ring buffer fills up, and the kernel counts what it drops.

use crate::trace::ledger::LiveLedger;
use gpuwhy_capture::batch::{Batch, NamedStack};
use gpuwhy_model::{Call, CpuRun, LossCause, MovedWait, OffCpu, OpId, Samples, SourceLine, TensorEvent, Unwatched};
use gpuwhy_store::{
    AlertRow, Finished, GovernorRow, LibraryRow, Machine, Missing, OpTotals, RunEnd, StackText, Writer,
};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum queued batches: with at most 8k records each, about 12 MB.
const QUEUE: usize = 16;
/// Checkpoint interval: a run file copied without its -wal lacks at most this much.
const CHECKPOINT: Duration = Duration::from_secs(2);
/// Checkpoints take at most one part in this many of the time: on a slow disk, nothing is written meanwhile.
const CHECKPOINT_PART: u32 = 20;
/// Checkpoints are no further apart than this: a copy of the main file alone lacks what came after the last.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Rows gathered before writing: sorted together, they make a denser file.
const GATHER: usize = 32 * 1024;

/// A message to the thread.
enum Message {
    Batch(Batch),
    Process(ProcessFacts),
    Samples(Box<Samples>),
    Loss(u64, LossCause, Option<OpId>, u64),
    Library(LibraryRow),
    Unwatched(Unwatched),
    Governor(GovernorRow),
    Alert(Box<AlertRow>),
    Source(SourceLine),
    Machine(Machine),
    Tick(Duration),
    Finish(RunEnd),
}

/// New facts about a process; `None` leaves a field unchanged.
#[derive(Debug, Default, Clone)]
pub(crate) struct ProcessFacts {
    pub(crate) pid: u32,
    pub(crate) name: Option<String>,
    pub(crate) parent: Option<u32>,
    pub(crate) container: Option<String>,
    pub(crate) command: Option<String>,
    /// Start and end, `CLOCK_MONOTONIC` ns.
    pub(crate) began_ns: Option<u64>,
    pub(crate) ended_ns: Option<u64>,
}

/// The figures at one time.
#[derive(Debug, Default, Clone)]
pub(crate) struct Snapshot {
    /// Time since the start of the run.
    pub(crate) elapsed: Duration,
    pub(crate) totals: Vec<(OpId, OpTotals)>,
    /// Events in the file, not counting those kept in memory because the disk is full.
    pub(crate) stored: u64,
    pub(crate) lost: u64,
    /// Events that reached the writer but have no row in the file.
    pub(crate) missing: Missing,
    /// The latest error with the file since the previous snapshot.
    pub(crate) trouble: Option<String>,
}

/// Handle to the thread.
pub(crate) struct WriterThread {
    queue: SyncSender<Message>,
    snapshots: Receiver<Snapshot>,
    empty: Receiver<Batch>,
    thread: JoinHandle<Option<(Finished, Snapshot)>>,
}

impl Snapshot {
    /// Events kept in memory because they cannot be written now.
    pub(crate) fn unsaved(&self) -> u64 {
        self.missing.waiting.values().sum()
    }
}

impl WriterThread {
    /// Starts the thread; `ledger` is `None` unless the scheduler is traced.
    pub(crate) fn start(writer: Writer, ledger: Option<LiveLedger>) -> std::io::Result<Self> {
        let (queue, messages) = sync_channel(QUEUE);
        let (give_back, empty) = sync_channel(QUEUE);
        let (publish, snapshots) = sync_channel(1);
        let thread = std::thread::Builder::new().name("run-file".into()).spawn(move || {
            let gathered = Gathered::default();
            let next_checkpoint = Instant::now() + CHECKPOINT;
            let owner =
                Owner { writer, gathered, ledger, publish, give_back, ticks: 0, next_checkpoint, trouble: None };
            owner.run(&messages)
        })?;
        Ok(Self { queue, snapshots, empty, thread })
    }

    /// An empty batch, reused if possible.
    pub(crate) fn spare(&self) -> Batch {
        self.empty.try_recv().unwrap_or_default()
    }

    pub(crate) fn batch(&self, batch: Batch) {
        self.send(Message::Batch(batch));
    }

    pub(crate) fn process(&self, facts: ProcessFacts) {
        self.send(Message::Process(facts));
    }

    pub(crate) fn samples(&self, samples: Samples) {
        self.send(Message::Samples(Box::new(samples)));
    }

    pub(crate) fn loss(&self, second: u64, cause: LossCause, op: Option<OpId>, count: u64) {
        self.send(Message::Loss(second, cause, op, count));
    }

    pub(crate) fn library(&self, library: LibraryRow) {
        self.send(Message::Library(library));
    }

    pub(crate) fn unwatched(&self, row: Unwatched) {
        self.send(Message::Unwatched(row));
    }

    pub(crate) fn governor(&self, row: GovernorRow) {
        self.send(Message::Governor(row));
    }

    pub(crate) fn alert(&self, row: AlertRow) {
        self.send(Message::Alert(Box::new(row)));
    }

    /// A function that writes source lines to the file, for another thread. It returns false once the file is closed.
    pub(crate) fn source_lines(&self) -> impl Fn(SourceLine) -> bool + Send + use<> {
        let queue = self.queue.clone();
        move |line| queue.send(Message::Source(line)).is_ok()
    }

    pub(crate) fn machine(&self, machine: Machine) {
        self.send(Message::Machine(machine));
    }

    /// Called four times a second: writes the gathered rows and commits every other time.
    pub(crate) fn tick(&self, elapsed: Duration) {
        self.send(Message::Tick(elapsed));
    }

    /// New figures, about once a second.
    pub(crate) fn new_snapshot(&self) -> Option<Snapshot> {
        self.snapshots.try_recv().ok()
    }

    /// Writes everything and closes the file. `None` when the thread has ended early.
    pub(crate) fn finish(self, end: RunEnd) -> Option<(Finished, Snapshot)> {
        self.send(Message::Finish(end));
        self.thread.join().ok().flatten()
    }

    /// Ignores errors: if the thread is gone, joining it gives the reason.
    fn send(&self, message: Message) {
        let _ = self.queue.send(message);
    }
}

/// Rows waiting to be written together.
#[derive(Default)]
struct Gathered {
    calls: Vec<Call>,
    off: Vec<OffCpu>,
    runs: Vec<CpuRun>,
    moved: Vec<MovedWait>,
    tensors: Vec<TensorEvent>,
}

impl Gathered {
    fn add(&mut self, batch: &mut Batch) {
        self.calls.append(&mut batch.calls);
        self.off.append(&mut batch.off);
        self.runs.append(&mut batch.runs);
        self.moved.append(&mut batch.moved);
        self.tensors.append(&mut batch.tensors);
    }

    fn len(&self) -> usize {
        self.calls.len() + self.off.len() + self.runs.len() + self.moved.len() + self.tensors.len()
    }

    /// Writes everything and keeps the buffers. After a failure the rest is still tried, and the ledger gets every row.
    fn write(&mut self, writer: &mut Writer, ledger: Option<&mut LiveLedger>) -> [gpuwhy_store::Result<()>; 5] {
        let outcomes = [
            if self.calls.is_empty() { Ok(()) } else { writer.write_calls(&mut self.calls) },
            if self.off.is_empty() { Ok(()) } else { writer.write_off_cpu(&mut self.off) },
            if self.runs.is_empty() { Ok(()) } else { writer.write_cpu_runs(&self.runs) },
            if self.moved.is_empty() { Ok(()) } else { writer.write_moved_waits(&self.moved) },
            if self.tensors.is_empty() { Ok(()) } else { writer.write_tensors(&mut self.tensors) },
        ];
        if let Some(ledger) = ledger {
            // The writer has sorted them by start.
            ledger.feed(&self.calls, &self.off);
        }
        self.calls.clear();
        self.off.clear();
        self.runs.clear();
        self.moved.clear();
        self.tensors.clear();
        outcomes
    }
}

/// State of the thread.
struct Owner {
    writer: Writer,
    gathered: Gathered,
    ledger: Option<LiveLedger>,
    publish: SyncSender<Snapshot>,
    give_back: SyncSender<Batch>,
    ticks: u64,
    next_checkpoint: Instant,
    trouble: Option<String>,
}

impl Owner {
    fn run(mut self, messages: &Receiver<Message>) -> Option<(Finished, Snapshot)> {
        for message in messages {
            match message {
                Message::Batch(batch) => self.take(batch),
                Message::Process(facts) => self.note_process(&facts),
                Message::Samples(samples) => self.writer.add_samples(*samples),
                Message::Loss(second, cause, op, count) => self.writer.add_loss(second, cause, op, count),
                Message::Library(library) => self.writer.add_library(library),
                Message::Unwatched(row) => self.writer.add_unwatched(row),
                Message::Governor(row) => self.writer.add_governor(row),
                Message::Alert(row) => self.writer.add_alert(*row),
                Message::Source(line) => self.writer.add_source_line(line),
                Message::Machine(machine) => self.writer.set_machine(machine),
                Message::Tick(elapsed) => self.tick(elapsed),
                Message::Finish(end) => {
                    self.write();
                    let rows = self.ledger.as_mut().map(LiveLedger::finish).unwrap_or_default();
                    self.writer.ledger(&rows);
                    let snapshot = self.snapshot(Duration::ZERO);
                    return Some((self.writer.finish(&end), snapshot));
                }
            }
        }
        None
    }

    fn take(&mut self, mut batch: Batch) {
        self.gathered.add(&mut batch);
        for sums in batch.sums.drain(..).filter(|sums| sums.has_times) {
            self.writer.set_thread_sums(sums);
            if let Some(ledger) = &mut self.ledger {
                ledger.sums(sums);
            }
        }
        self.writer.add_transfers(&batch.transfers);
        self.writer.add_communicators(&batch.communicators);
        self.writer.add_function_names(batch.names.drain(..));
        for NamedStack { id, stack, .. } in batch.stacks.drain(..) {
            self.writer.add_stack(id, StackText { frames: stack.frames, top_line: stack.top_line });
        }
        batch.clear();
        let _ = self.give_back.try_send(batch);
        if self.gathered.len() >= GATHER {
            self.write();
        }
    }

    fn note_process(&mut self, facts: &ProcessFacts) {
        let pid = facts.pid;
        if let Some(name) = &facts.name {
            self.writer.set_process(pid, name);
        }
        if let Some(parent) = facts.parent {
            self.writer.set_process_parent(pid, parent);
        }
        if let Some(container) = &facts.container {
            self.writer.set_process_container(pid, container);
        }
        if let Some(command) = &facts.command {
            self.writer.set_process_command(pid, command);
        }
        if facts.began_ns.is_some() || facts.ended_ns.is_some() {
            self.writer.set_process_times(pid, facts.began_ns, facts.ended_ns);
        }
    }

    /// The writer keeps in memory what it cannot write and counts what it loses; here the error is only noted for
    /// display.
    fn write(&mut self) {
        for outcome in self.gathered.write(&mut self.writer, self.ledger.as_mut()) {
            self.note(outcome);
        }
    }

    fn tick(&mut self, elapsed: Duration) {
        self.write();
        let rows = self.ledger.as_mut().map(LiveLedger::tick).unwrap_or_default();
        if !rows.is_empty() {
            self.writer.ledger(&rows);
        }
        self.ticks += 1;
        if self.ticks.is_multiple_of(2) {
            let outcome = self.writer.commit();
            self.note(outcome);
        }
        if Instant::now() >= self.next_checkpoint {
            let began = Instant::now();
            self.writer.checkpoint();
            self.next_checkpoint = Instant::now() + pause_after(began.elapsed());
        }
        if self.ticks.is_multiple_of(4) {
            // A snapshot that was not read yet is less than a second old and good enough.
            if self.publish.try_send(self.snapshot(elapsed)).is_ok() {
                self.trouble = None;
            }
        }
    }

    fn note(&mut self, outcome: gpuwhy_store::Result<()>) {
        if let Err(error) = outcome {
            self.trouble = Some(error.to_string());
        }
    }

    fn snapshot(&self, elapsed: Duration) -> Snapshot {
        let missing = self.writer.missing();
        Snapshot {
            elapsed,
            totals: self.writer.totals().map(|(op, totals)| (op, totals.clone())).collect(),
            stored: self.writer.stored().saturating_sub(missing.waiting.values().sum()),
            lost: self.writer.lost(),
            missing,
            trouble: self.trouble.clone(),
        }
    }
}

/// How long after a checkpoint that took so long the next one is due.
fn pause_after(took: Duration) -> Duration {
    (took * CHECKPOINT_PART).clamp(CHECKPOINT, LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_disk_puts_checkpoints_off_but_not_for_long() {
        let seconds = Duration::from_secs_f64;
        for (took, pause) in [(0.001, 2.0), (0.1, 2.0), (0.25, 5.0), (0.5, 10.0), (30.0, 10.0)] {
            assert_eq!(pause_after(seconds(took)), seconds(pause), "{took}");
        }
    }
}
