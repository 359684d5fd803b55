// SPDX-License-Identifier: Apache-2.0
//! Reader of the truth log that the simulated libraries write.
//!
//! The log is a folder with one file per thread, `PID.TID.simlog`. A file is
//! a 512-byte fixed header, one 96-byte counter per API function (with its
//! name), and, page-aligned, 64-byte records. `c/simlog.h` defines them. What a
//! call was about beyond the fields that all calls have, and a name that belongs
//! to it, are records of their own right before the call's. All integers are
//! little-endian and all times are `CLOCK_MONOTONIC` nanoseconds.

pub mod detail;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use detail::Detail;

/// What the libraries counted for one API function.
///
/// A call is outer when the program made it, and inner when another API
/// function did. Errors and bytes are those of outer calls; bytes count only
/// where the call succeeded, and are 0 for functions that take no size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counter {
    /// Calls made by the program.
    pub outer_calls: u64,
    /// Calls made by other API functions.
    pub inner_calls: u64,
    /// Outer calls that returned an error.
    pub errors: u64,
    /// Bytes of outer calls that succeeded.
    pub bytes: u64,
    /// Time in outer calls, in ns; 0 at log level `counts`.
    pub outer_ns: u64,
}

impl Counter {
    /// Adds another counter to this one.
    pub fn add(&mut self, other: &Counter) {
        self.outer_calls += other.outer_calls;
        self.inner_calls += other.inner_calls;
        self.errors += other.errors;
        self.bytes += other.bytes;
        self.outer_ns += other.outer_ns;
    }
}

/// Which part of the device was busy, or which way bytes went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Engine {
    /// Kernels; as the direction of a call, "none".
    Compute,
    /// Host to device.
    HostToDevice,
    /// Device to host.
    DeviceToHost,
    /// Within the device, or between devices.
    DeviceToDevice,
    /// Within the host: no engine.
    HostToHost,
}

impl Engine {
    fn from_code(code: u8) -> Engine {
        match code {
            1 => Engine::HostToDevice,
            2 => Engine::DeviceToHost,
            3 => Engine::DeviceToDevice,
            4 => Engine::HostToHost,
            _ => Engine::Compute,
        }
    }
}

/// Kind of memory of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Memory {
    /// `cuMemAlloc` and `cuMemAllocPitch`.
    Device,
    /// Stream-ordered allocation.
    Async,
    /// `cuMemAllocManaged`.
    Managed,
    /// Page-locked host memory.
    Host,
    /// `cuMemCreate`; the pointer is the handle.
    Physical,
}

impl Memory {
    fn from_code(code: u8) -> Memory {
        match code {
            1 => Memory::Async,
            2 => Memory::Managed,
            3 => Memory::Host,
            4 => Memory::Physical,
            _ => Memory::Device,
        }
    }
}

/// One call of an API function, written when it returned.
#[derive(Debug, Clone)]
pub struct Call {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The symbol's name.
    pub function: Arc<str>,
    /// Time of entry.
    pub enter_ns: u64,
    /// Time of return.
    pub exit_ns: u64,
    /// What it returned: 0 is success. -1 for a function of libc10's that an exception left.
    pub ret: i32,
    /// 0 for a call made by the program.
    pub depth: u8,
    /// Bytes it was asked to allocate, copy or set; also when it failed.
    pub bytes: u64,
    /// Allocation, destination of a copy, kernel, or event; else 0.
    pub pointer: u64,
    /// Stream handle as the caller passed it.
    pub stream: u64,
    /// The thread's current device, -1 before it has one.
    pub device: i8,
    /// Direction of a copy.
    pub direction: Engine,
    /// More about the call; `None` for most functions.
    pub detail: Option<Detail>,
    /// A name that belongs to it: of the function looked up, or of the file loaded.
    pub text: Option<Arc<str>>,
}

/// An interval in which an engine was, or was going to be, busy.
#[derive(Debug, Clone)]
pub struct Busy {
    /// Process.
    pub pid: u32,
    /// Thread that queued the work.
    pub tid: u32,
    /// Device.
    pub device: i8,
    /// Engine.
    pub engine: Engine,
    /// Start.
    pub start_ns: u64,
    /// End; later than the process's own end if it was killed before.
    pub end_ns: u64,
    /// The simulator's own address of the stream.
    pub stream: u64,
    /// Bytes, for copies and memsets.
    pub bytes: u64,
    /// The innermost API function that queued the work.
    pub function: Arc<str>,
}

/// An allocation or a free that succeeded.
#[derive(Debug, Clone)]
pub struct MemoryEvent {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// True for an allocation, false for a free.
    pub is_alloc: bool,
    /// Time at which it took effect.
    pub time_ns: u64,
    /// Address, or handle for [`Memory::Physical`].
    pub pointer: u64,
    /// Bytes as requested, also for a free.
    pub bytes: u64,
    /// Device.
    pub device: i8,
    /// Kind of memory.
    pub memory: Memory,
    /// The innermost API function open.
    pub function: Arc<str>,
}

/// A call that was entered and had not returned when the file was read.
#[derive(Debug, Clone)]
pub struct OpenCall {
    /// The symbol's name.
    pub function: Arc<str>,
    /// Time of entry; 0 at log level `counts`.
    pub enter_ns: u64,
    /// 0 for a call made by the program.
    pub depth: usize,
}

/// One record of a thread's log.
#[derive(Debug, Clone)]
pub enum Record {
    /// A call returned.
    Call(Call),
    /// Work was queued.
    Busy(Busy),
    /// Memory was allocated or freed.
    Memory(MemoryEvent),
}

/// The log of one thread.
#[derive(Debug)]
pub struct ThreadLog {
    /// The file it was read from.
    pub path: PathBuf,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Calls still open, outermost first.
    pub open: Vec<OpenCall>,
    /// Counters of the functions called at least once.
    pub counters: BTreeMap<Arc<str>, Counter>,
    functions: Vec<Arc<str>>,
    unknown: Arc<str>,
    bytes: Vec<u8>,
    records_offset: usize,
    records: usize,
}

/// Everything in a log folder.
#[derive(Debug)]
pub struct Truth {
    /// One entry per file, in the order of process and thread id.
    pub threads: Vec<ThreadLog>,
}

/// What the records so far say of the call whose record comes next.
#[derive(Default)]
struct About {
    detail: Option<Detail>,
    text: Vec<u8>,
}

impl About {
    fn take_text(&mut self) -> Option<Arc<str>> {
        let text = (!self.text.is_empty()).then(|| String::from_utf8_lossy(&self.text).into());
        self.text.clear();
        text
    }
}

const RECORD_BYTES: usize = 64;
const TEXT_BYTES: usize = 40;
const COUNTER_BYTES: usize = 96;
const NAME_BYTES: usize = 56;
const OPEN_OFFSET: usize = 56;
const MAX_OPEN: usize = 16;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

fn malformed(path: &Path, what: &str) -> io::Error {
    let message = format!("{}: {what}", path.display());
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn name_at(bytes: &[u8], at: usize) -> Arc<str> {
    let field = &bytes[at..at + NAME_BYTES];
    let end = field.iter().position(|&b| b == 0).unwrap_or(NAME_BYTES);
    String::from_utf8_lossy(&field[..end]).into()
}

impl ThreadLog {
    /// Reads one file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or is not a truth log.
    pub fn read(path: &Path) -> io::Result<ThreadLog> {
        let bytes = fs::read(path)?;
        if bytes.len() < 512 || &bytes[..8] != b"SIMLOG1\0" {
            return Err(malformed(path, "not a truth log"));
        }
        let records_offset = u32_at(&bytes, 16) as usize;
        let counters_offset = u32_at(&bytes, 24) as usize;
        let functions = u32_at(&bytes, 32) as usize;
        if u32_at(&bytes, 20) as usize != RECORD_BYTES
            || u32_at(&bytes, 28) as usize != COUNTER_BYTES
            || counters_offset + functions * COUNTER_BYTES > bytes.len()
        {
            return Err(malformed(path, "unknown layout"));
        }
        let records = u64_at(&bytes, 40) as usize;
        if records > 0 && records_offset + records * RECORD_BYTES > bytes.len() {
            return Err(malformed(path, "shorter than its number of records"));
        }
        let mut log = ThreadLog {
            path: path.to_owned(),
            pid: u32_at(&bytes, 8),
            tid: u32_at(&bytes, 12),
            open: Vec::new(),
            counters: BTreeMap::new(),
            functions: Vec::new(),
            unknown: "".into(),
            bytes,
            records_offset,
            records,
        };
        log.read_counters(counters_offset, functions);
        log.read_open();
        Ok(log)
    }

    fn read_counters(&mut self, offset: usize, functions: usize) {
        for index in 0..functions {
            let at = offset + index * COUNTER_BYTES;
            let value = |n: usize| u64_at(&self.bytes, at + NAME_BYTES + 8 * n);
            let counter = Counter {
                outer_calls: value(0),
                inner_calls: value(1),
                errors: value(2),
                bytes: value(3),
                outer_ns: value(4),
            };
            let name = name_at(&self.bytes, at);
            if counter != Counter::default() {
                self.counters.insert(name.clone(), counter);
            }
            self.functions.push(name);
        }
    }

    fn read_open(&mut self) {
        let depth = (u64_at(&self.bytes, 48) as usize).min(MAX_OPEN);
        for level in 0..depth {
            let at = OPEN_OFFSET + level * 16;
            let function = u64_at(&self.bytes, at + 8) as usize;
            self.open.push(OpenCall {
                function: self.function(function),
                enter_ns: u64_at(&self.bytes, at),
                depth: level,
            });
        }
    }

    fn function(&self, index: usize) -> Arc<str> {
        self.functions.get(index).unwrap_or(&self.unknown).clone()
    }

    /// All functions that the log knows, called or not.
    pub fn functions(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().map(|name| &**name)
    }

    /// The records, in the order in which the thread wrote them. Empty at log
    /// level `counts`.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        let mut about = About::default();
        (0..self.records).filter_map(move |index| {
            let at = self.records_offset + index * RECORD_BYTES;
            self.decode(&self.bytes[at..at + RECORD_BYTES], &mut about)
        })
    }

    /// A record, or none where it is part of what the next call is about.
    fn decode(&self, raw: &[u8], about: &mut About) -> Option<Record> {
        let (pid, tid) = (self.pid, self.tid);
        let function = self.function(usize::from(u16_at(raw, 44)));
        let (enter_ns, exit_ns) = (u64_at(raw, 0), u64_at(raw, 8));
        let (bytes, pointer, stream) = (u64_at(raw, 16), u64_at(raw, 24), u64_at(raw, 32));
        let device = i8::from_le_bytes([raw[48]]);
        let engine = Engine::from_code(raw[49]);
        match raw[46] {
            1 => Some(Record::Call(Call {
                pid,
                tid,
                function,
                enter_ns,
                exit_ns,
                ret: u32_at(raw, 40).cast_signed(),
                depth: raw[47],
                bytes,
                pointer,
                stream,
                device,
                direction: engine,
                detail: about.detail.take(),
                text: about.take_text(),
            })),
            2 => Some(Record::Busy(Busy {
                pid,
                tid,
                device,
                engine,
                start_ns: enter_ns,
                end_ns: exit_ns,
                stream,
                bytes,
                function,
            })),
            kind @ (3 | 4) => Some(Record::Memory(MemoryEvent {
                pid,
                tid,
                is_alloc: kind == 3,
                time_ns: enter_ns,
                pointer,
                bytes,
                device,
                memory: Memory::from_code(raw[50]),
                function,
            })),
            5 => {
                about.detail = Detail::decode(raw);
                None
            }
            6 => {
                let bytes = (u32_at(raw, 40) as usize).min(TEXT_BYTES);
                about.text.extend_from_slice(&raw[..bytes]);
                None
            }
            _ => None,
        }
    }
}

impl Truth {
    /// Reads every `*.simlog` file in `dir`.
    ///
    /// # Errors
    ///
    /// If the folder or a file cannot be read, or a file is malformed. A file
    /// whose thread was killed, even inside a call, reads fine; one whose
    /// thread was killed before its header was complete is left out.
    pub fn read(dir: &Path) -> io::Result<Truth> {
        let mut threads = Vec::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ext| ext == "simlog") && !unfinished(&path)? {
                threads.push(ThreadLog::read(&path)?);
            }
        }
        threads.sort_by(|a, b| (a.pid, a.tid, &a.path).cmp(&(b.pid, b.tid, &b.path)));
        Ok(Truth { threads })
    }

    /// The processes in the log, ascending.
    pub fn pids(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.threads.iter().map(|thread| thread.pid).collect();
        pids.dedup();
        pids
    }

    /// The threads of one process.
    pub fn process(&self, pid: u32) -> impl Iterator<Item = &ThreadLog> {
        self.threads.iter().filter(move |thread| thread.pid == pid)
    }

    /// Counters by function, over all threads.
    pub fn counters(&self) -> BTreeMap<Arc<str>, Counter> {
        sum_counters(self.threads.iter())
    }

    /// Counters by function, over the threads of one process.
    pub fn process_counters(&self, pid: u32) -> BTreeMap<Arc<str>, Counter> {
        sum_counters(self.process(pid))
    }

    /// Calls made by the program, of all functions.
    pub fn outer_calls(&self) -> u64 {
        self.counters().values().map(|c| c.outer_calls).sum()
    }

    /// Every record, thread by thread.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        self.threads.iter().flat_map(ThreadLog::records)
    }

    /// Every call.
    pub fn calls(&self) -> impl Iterator<Item = Call> {
        self.records().filter_map(|record| match record {
            Record::Call(call) => Some(call),
            _ => None,
        })
    }

    /// Every busy interval of an engine.
    pub fn busy(&self) -> impl Iterator<Item = Busy> {
        self.records().filter_map(|record| match record {
            Record::Busy(busy) => Some(busy),
            _ => None,
        })
    }

    /// Every allocation and free.
    pub fn memory(&self) -> impl Iterator<Item = MemoryEvent> {
        self.records().filter_map(|record| match record {
            Record::Memory(event) => Some(event),
            _ => None,
        })
    }

    /// Allocations that were not freed, by process and pointer.
    pub fn live(&self) -> BTreeMap<(u32, u64), MemoryEvent> {
        let mut events: Vec<MemoryEvent> = self.memory().collect();
        // A thread may free what another one allocated. The sort is stable,
        // and a free comes before an allocation of the same address at the
        // same ns, because only then can both have succeeded.
        events.sort_by_key(|event| (event.time_ns, event.is_alloc));
        let mut live = BTreeMap::new();
        for event in events {
            let key = (event.pid, event.pointer);
            if event.is_alloc {
                live.insert(key, event);
            } else {
                live.remove(&key);
            }
        }
        live
    }
}

fn sum_counters<'a>(threads: impl Iterator<Item = &'a ThreadLog>) -> BTreeMap<Arc<str>, Counter> {
    let mut sum: BTreeMap<Arc<str>, Counter> = BTreeMap::new();
    for thread in threads {
        for (name, counter) in &thread.counters {
            sum.entry(name.clone()).or_default().add(counter);
        }
    }
    sum
}

fn unfinished(path: &Path) -> io::Result<bool> {
    use std::io::Read;
    let mut magic = Vec::new();
    fs::File::open(path)?.take(8).read_to_end(&mut magic)?;
    Ok(magic.iter().all(|&b| b == 0))
}
