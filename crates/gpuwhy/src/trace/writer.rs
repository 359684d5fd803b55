// SPDX-License-Identifier: Apache-2.0
//! The thread that owns the run file. Capturing must not wait for a disk, so calls come to it through a
//! bounded queue; when that is full the ring buffer fills instead, and what it drops the kernel counts.

use gpuwhy_model::{Call, LossCause, OpId};
use gpuwhy_store::{Finished, LibraryRow, Machine, OpTotals, RunEnd, Writer};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Batches that may wait: with at most 8k calls each, about 12 MB.
const QUEUE: usize = 16;
/// Calls gathered before they are written: sorted together they make a denser file.
const GATHER: usize = 32 * 1024;

/// What the thread is told.
enum Message {
    Calls(Vec<Call>),
    Process(u32, String),
    Times(u32, Option<u64>, Option<u64>),
    Loss(u64, LossCause, Option<OpId>, u64),
    Library(LibraryRow),
    Machine(Machine),
    Tick(Duration),
    Finish(RunEnd),
}

/// The figures as of a moment.
#[derive(Debug, Default, Clone)]
pub(crate) struct Snapshot {
    /// The moment, since the run began.
    pub(crate) elapsed: Duration,
    pub(crate) totals: Vec<(OpId, OpTotals)>,
    pub(crate) stored: u64,
    pub(crate) lost: u64,
    /// The newest thing that went wrong with the file since the snapshot before.
    pub(crate) trouble: Option<String>,
}

/// The thread, from outside.
pub(crate) struct WriterThread {
    queue: SyncSender<Message>,
    snapshots: Receiver<Snapshot>,
    empty: Receiver<Vec<Call>>,
    thread: JoinHandle<Option<(Finished, Snapshot)>>,
}

impl WriterThread {
    /// Starts it.
    pub(crate) fn start(writer: Writer) -> std::io::Result<Self> {
        let (queue, messages) = sync_channel(QUEUE);
        let (give_back, empty) = sync_channel(QUEUE);
        let (publish, snapshots) = sync_channel(1);
        let thread = std::thread::Builder::new().name("run-file".into()).spawn(move || {
            let gathered = Vec::with_capacity(GATHER);
            Owner { writer, gathered, publish, give_back, ticks: 0, trouble: None }.run(&messages)
        })?;
        Ok(Self { queue, snapshots, empty, thread })
    }

    /// An empty batch, used before if there is one.
    pub(crate) fn spare(&self) -> Vec<Call> {
        self.empty.try_recv().unwrap_or_default()
    }

    pub(crate) fn calls(&self, calls: Vec<Call>) {
        self.send(Message::Calls(calls));
    }

    pub(crate) fn process(&self, pid: u32, name: String) {
        self.send(Message::Process(pid, name));
    }

    /// When a process began or ended, `CLOCK_MONOTONIC` ns.
    pub(crate) fn process_times(&self, pid: u32, began_ns: Option<u64>, ended_ns: Option<u64>) {
        self.send(Message::Times(pid, began_ns, ended_ns));
    }

    pub(crate) fn loss(&self, second: u64, cause: LossCause, op: Option<OpId>, count: u64) {
        self.send(Message::Loss(second, cause, op, count));
    }

    pub(crate) fn library(&self, library: LibraryRow) {
        self.send(Message::Library(library));
    }

    pub(crate) fn machine(&self, machine: Machine) {
        self.send(Message::Machine(machine));
    }

    /// Four times a second: writes what was gathered; commits every other time.
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
        let (finished, mut last) = self.thread.join().ok().flatten()?;
        // What nobody has looked at yet is still to be told.
        let unread = self.snapshots.try_recv().ok().and_then(|snapshot| snapshot.trouble);
        last.trouble = last.trouble.or(unread);
        Some((finished, last))
    }

    /// A thread that is gone has said why when it is joined.
    fn send(&self, message: Message) {
        let _ = self.queue.send(message);
    }
}

/// The thread, from inside.
struct Owner {
    writer: Writer,
    gathered: Vec<Call>,
    publish: SyncSender<Snapshot>,
    give_back: SyncSender<Vec<Call>>,
    ticks: u64,
    trouble: Option<String>,
}

impl Owner {
    fn run(mut self, messages: &Receiver<Message>) -> Option<(Finished, Snapshot)> {
        for message in messages {
            match message {
                Message::Calls(mut calls) => {
                    self.gathered.append(&mut calls);
                    let _ = self.give_back.try_send(calls);
                    if self.gathered.len() >= GATHER {
                        self.write();
                    }
                }
                Message::Process(pid, name) => self.writer.set_process(pid, &name),
                Message::Times(pid, began, ended) => self.writer.set_process_times(pid, began, ended),
                Message::Loss(second, cause, op, count) => self.writer.add_loss(second, cause, op, count),
                Message::Library(library) => self.writer.add_library(library),
                Message::Machine(machine) => self.writer.set_machine(machine),
                Message::Tick(elapsed) => self.tick(elapsed),
                Message::Finish(end) => {
                    self.write();
                    // Before the last figures are taken: if this fails, they say so.
                    let outcome = self.writer.commit();
                    self.note(outcome);
                    let snapshot = self.snapshot(Duration::ZERO);
                    return Some((self.writer.finish(&end), snapshot));
                }
            }
        }
        None
    }

    /// The writer counts what an error loses; here it is only remembered to be told.
    fn write(&mut self) {
        if !self.gathered.is_empty() {
            let outcome = self.writer.write_calls(&mut self.gathered);
            self.gathered.clear();
            self.note(outcome);
        }
    }

    fn tick(&mut self, elapsed: Duration) {
        self.write();
        self.ticks += 1;
        if self.ticks.is_multiple_of(2) {
            let outcome = self.writer.commit();
            self.note(outcome);
        }
        if self.ticks.is_multiple_of(4) {
            // One that has not been looked at yet is newer than a second; that will do.
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
        Snapshot {
            elapsed,
            totals: self.writer.totals().map(|(op, totals)| (op, totals.clone())).collect(),
            stored: self.writer.rows(),
            lost: self.writer.lost(),
            trouble: self.trouble.clone(),
        }
    }
}
