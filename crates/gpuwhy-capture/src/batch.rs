// SPDX-License-Identifier: Apache-2.0
//! One batch of records from the ring, sorted by kind.

use crate::host_record::{self, HostRecord};
use crate::python::{self, PythonRecord};
use crate::record::{self, Life, Record};
use crate::told_record::{self, RawName, ToldRecord};
use gpuwhy_model::{Call, Communicator, CpuRun, FunctionName, MovedWait, OffCpu, TensorEvent, ThreadSums, Transfer};
use gpuwhy_stacks::Stack;

/// A stack in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedStack {
    /// The id that calls and times off the CPU have.
    pub id: u64,
    /// The process in which it was seen.
    pub pid: u32,
    /// The words.
    pub stack: Stack,
}

/// One batch of records.
#[derive(Debug, Default)]
pub struct Batch {
    /// Calls, roughly in the order in which they returned.
    pub calls: Vec<Call>,
    /// Threads and processes that came and went.
    pub life: Vec<Life>,
    /// Times off the CPU.
    pub off: Vec<OffCpu>,
    /// Who had a CPU that a traced thread waited for.
    pub runs: Vec<CpuRun>,
    /// Waits for CPUs the thread was moved away from.
    pub moved: Vec<MovedWait>,
    /// Threads' sums so far.
    pub sums: Vec<ThreadSums>,
    /// Reports of PyTorch's allocator.
    pub tensors: Vec<TensorEvent>,
    /// Transfers between ranks; their calls are also in `calls`.
    pub transfers: Vec<Transfer>,
    /// Communicators that were made.
    pub communicators: Vec<Communicator>,
    /// Names of functions.
    pub names: Vec<FunctionName>,
    /// Stacks seen for the first time.
    pub stacks: Vec<NamedStack>,
    pub(crate) python: Vec<PythonRecord>,
    pub(crate) raw_names: Vec<RawName>,
    /// Driver calls whose calling library the kernel could not identify, with the caller's address.
    pub(crate) unsettled: Vec<(Call, u64)>,
    /// Ring records this version does not understand (there should be none).
    pub unknown: u64,
}

impl Batch {
    pub(crate) fn take_record(&mut self, bytes: &[u8]) {
        if python::is_python(bytes) {
            match python::parse(bytes) {
                Some(record) => self.python.push(record),
                None => self.unknown += 1,
            }
            return;
        }
        match record::parse(bytes) {
            Some(Record::Call(call)) => self.calls.push(call),
            Some(Record::CallFrom(call, address)) => self.unsettled.push((call, address)),
            Some(Record::Transfer(transfer)) => {
                self.calls.push(transfer.call);
                self.transfers.push(transfer);
            }
            Some(Record::Life(life)) => self.life.push(life),
            None => self.take_told_record(bytes),
        }
    }

    fn take_told_record(&mut self, bytes: &[u8]) {
        match told_record::parse(bytes) {
            Some(ToldRecord::Tensor(event)) => self.tensors.push(event),
            Some(ToldRecord::Communicator(made)) => self.communicators.push(made),
            Some(ToldRecord::Name(name)) => self.raw_names.push(name),
            None => self.take_host_record(bytes),
        }
    }

    fn take_host_record(&mut self, bytes: &[u8]) {
        match host_record::parse(bytes) {
            Some(HostRecord::Off(off, holder)) => {
                self.off.push(off);
                self.runs.extend(holder);
            }
            Some(HostRecord::Run(run)) => self.runs.push(run),
            Some(HostRecord::Moved(moved)) => self.moved.push(moved),
            Some(HostRecord::Sums(sums)) => self.sums.push(sums),
            None => self.unknown += 1,
        }
    }

    /// Forgets what a process did.
    pub(crate) fn forget_process(&mut self, pid: u32) {
        self.calls.retain(|call| call.pid != pid);
        self.unsettled.retain(|(call, _)| call.pid != pid);
        self.life.retain(|life| life.pid != pid);
    }

    /// How many records it has.
    pub fn len(&self) -> usize {
        let host = self.off.len() + self.runs.len() + self.moved.len() + self.sums.len();
        self.calls.len() + self.life.len() + self.tensors.len() + self.communicators.len() + self.names.len() + host
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Empties it, keeping its memory.
    pub fn clear(&mut self) {
        self.calls.clear();
        self.unsettled.clear();
        self.life.clear();
        self.off.clear();
        self.runs.clear();
        self.moved.clear();
        self.sums.clear();
        self.tensors.clear();
        self.transfers.clear();
        self.communicators.clear();
        self.names.clear();
        self.raw_names.clear();
        self.stacks.clear();
        self.python.clear();
        self.unknown = 0;
    }
}
