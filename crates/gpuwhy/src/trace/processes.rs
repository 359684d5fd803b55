// SPDX-License-Identifier: Apache-2.0
//! The traced processes: names, parents, containers and lifetimes, for the run file.

use crate::trace::writer::{ProcessFacts, WriterThread};
use gpuwhy_capture::batch::Batch;
use gpuwhy_capture::{Capture, Life, LifeEvent, process};
use gpuwhy_store::Machine;
use std::collections::{HashMap, VecDeque};

/// A thread's name in the kernel's format.
type Comm = [u8; 16];

/// A process's name in the run file, and its main thread's name at that time if known.
struct Named {
    name: String,
    comm: Option<Comm>,
}

/// How many ended processes are remembered: their events may arrive after their end.
const MAX_ENDED: usize = 65_536;

/// The processes written to the run file so far.
pub(crate) struct Processes {
    /// Processes that have a name in the run file.
    named: HashMap<u32, Named>,
    /// Ended processes, oldest first.
    ended: VecDeque<u32>,
    machine: Machine,
}

impl Processes {
    pub(crate) fn new(machine: Machine) -> Self {
        Self { named: HashMap::new(), ended: VecDeque::new(), machine }
    }

    /// Notes processes that started or ended, and names every process that appears for the first time, even if the
    /// record with its name was lost.
    pub(crate) fn note(&mut self, batch: &Batch, capture: &mut Capture, writer: &WriterThread) {
        for life in &batch.life {
            self.note_life(life, capture, writer);
        }
        // A process that renames itself, as data workers do, gets its new name.
        for sums in batch.sums.iter().filter(|sums| sums.tid == sums.pid && !sums.ended) {
            self.rename(sums.pid, sums.name, capture, writer);
        }
        // Started before the trace: its start time is known to 10 ms.
        let mut last = 0;
        for pid in batch.calls.iter().map(|call| call.pid).chain(batch.off.iter().map(|off| off.pid)) {
            if pid != last {
                last = pid;
                if !self.named.contains_key(&pid) && pid != 0 {
                    self.name(pid, None, capture, writer);
                    writer.process(ProcessFacts { pid, began_ns: process::started_ns(pid), ..Default::default() });
                }
            }
        }
    }

    fn note_life(&mut self, life: &Life, capture: &mut Capture, writer: &WriterThread) {
        let mut comm = [0; 16];
        let length = life.comm.len().min(15);
        comm[..length].copy_from_slice(&life.comm.as_bytes()[..length]);
        match life.event {
            LifeEvent::FirstCall if self.named.contains_key(&life.pid) => {}
            LifeEvent::Fork | LifeEvent::FirstCall | LifeEvent::Exec => {
                let is_there = self.name(life.pid, Some(comm), capture, writer);
                if life.event == LifeEvent::Fork && !is_there {
                    self.inherit_name(life, comm, writer);
                }
                // A main thread starts with its process; another thread's start says nothing about the process.
                let began_ns = (life.tid == life.pid && life.event != LifeEvent::Exec).then_some(life.since_ns);
                let parent = Some(life.parent).filter(|parent| *parent != 0);
                writer.process(ProcessFacts { pid: life.pid, began_ns, parent, ..Default::default() });
            }
            LifeEvent::Exit => {
                // Its last name, if it changed.
                self.rename(life.pid, comm, capture, writer);
                writer.process(ProcessFacts { pid: life.pid, ended_ns: Some(life.at_ns), ..Default::default() });
                self.ended.push_back(life.pid);
                if self.ended.len() > MAX_ENDED
                    && let Some(oldest) = self.ended.pop_front()
                {
                    self.named.remove(&oldest);
                }
            }
        }
    }

    /// Renames a process if its main thread was renamed.
    fn rename(&mut self, pid: u32, comm: Comm, capture: &mut Capture, writer: &WriterThread) {
        match self.named.get_mut(&pid) {
            Some(known) if known.comm == Some(comm) => {}
            // The first record of its thread's name.
            Some(known) if known.comm.is_none() => known.comm = Some(comm),
            _ => {
                self.name(pid, Some(comm), capture, writer);
            }
        }
    }

    /// A child that ended before it could be inspected gets its parent's name.
    fn inherit_name(&mut self, life: &Life, comm: Comm, writer: &WriterThread) {
        let parents = self.named.get(&life.parent).filter(|parent| parent.comm == Some(comm));
        if let Some(name) = parents.map(|parent| parent.name.clone()) {
            self.named.insert(life.pid, Named { name: name.clone(), comm: Some(comm) });
            writer.process(ProcessFacts { pid: life.pid, name: Some(name), ..Default::default() });
        }
    }

    /// Names a process; returns whether it still existed.
    fn name(&mut self, pid: u32, comm: Option<Comm>, capture: &mut Capture, writer: &WriterThread) -> bool {
        let text = |comm: &Comm| {
            let bytes = comm.split(|b| *b == 0).next().unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        let names = capture.names_of(pid, self.machine.python.is_none()).unwrap_or_default();
        let is_there = names.name.is_some();
        let name = names.name.or_else(|| comm.as_ref().map(text)).unwrap_or_else(|| format!("pid {pid}"));
        self.named.insert(pid, Named { name: name.clone(), comm });
        writer.process(ProcessFacts {
            pid,
            name: Some(name),
            parent: names.parent,
            container: names.container,
            command: names.command,
            ..Default::default()
        });
        // A launcher of ranks does not use the GPU, but only it shows that the ranks are one job.
        for above in names.above {
            if !self.named.contains_key(&above) {
                self.name(above, None, capture, writer);
            }
        }
        if self.machine.python.is_none() {
            self.machine.python = names.python;
            if self.machine.python.is_some() {
                writer.machine(self.machine.clone());
            }
        }
        is_there
    }
}
