// SPDX-License-Identifier: Apache-2.0
//! One event of the list, from text to a row.

use super::intern::{Interner, NameId};
use super::json::{self, Cursor, Stop};
use super::rows::{CallRow, CommRow, GpuKind, GpuRow, NO_NAME, NONE, OpRow, Rows, SpanRow, Tally, ThreadId};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most memory for rows, bytes. A real trace stays below; a larger file is an attack on memory.
pub(super) const MAX_ROW_BYTES: u64 = 8 << 30;

/// How much of the shared budget a reading thread takes at a time, bytes.
const LEASE: u64 = 1 << 16;

/// Room for rows that all reading threads share.
#[derive(Debug, Clone, Default)]
pub(super) struct Budget {
    common: Arc<AtomicU64>,
    /// Taken from the shared budget and not used yet.
    leased: u64,
}

impl Budget {
    pub(super) fn new(bytes: u64) -> Self {
        Self { common: Arc::new(AtomicU64::new(bytes)), leased: 0 }
    }

    /// Room for another reading thread.
    pub(super) fn share(&self) -> Self {
        Self { common: Arc::clone(&self.common), leased: 0 }
    }

    /// Whether there was room for `bytes`.
    #[inline]
    fn take(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        if self.leased < bytes && !self.lease() {
            return false;
        }
        self.leased -= bytes;
        true
    }

    fn lease(&mut self) -> bool {
        let less = |left: u64| left.checked_sub(LEASE);
        let got = self.common.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        self.leased += if got { LEASE } else { 0 };
        got
    }
}

/// The latest plausible time, nanoseconds.
const MAX_TIME: i64 = 4_000_000_000_000_000_000;

/// How the analysis treats a category of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Category {
    Gpu(GpuKind),
    Call,
    Op,
    Python,
    Annotation,
    Overhead,
    /// Known, but not needed.
    Ignored,
    /// Unknown.
    Other,
}

impl Category {
    /// By category; without one (before Kineto), by the event's process.
    fn of_event(event: &Event<'_>) -> Self {
        match (event.category, event.pid) {
            (Some(category), _) => category,
            (None, b"CPU functions") => Self::Op,
            (None, b"CUDA functions") => Self::Gpu(GpuKind::Kernel),
            (None, _) => Self::Ignored,
        }
    }

    /// Kineto's names, and those of the 2021 schema.
    fn of(cat: &[u8]) -> Self {
        match cat {
            b"kernel" | b"Kernel" => Self::Gpu(GpuKind::Kernel),
            b"gpu_memcpy" | b"Memcpy" => Self::Gpu(GpuKind::Copy),
            b"gpu_memset" | b"Memset" => Self::Gpu(GpuKind::Fill),
            b"cuda_runtime" | b"cuda_driver" | b"Runtime" | b"hip_runtime" | b"xpu_runtime" => Self::Call,
            b"cpu_op" | b"Operator" => Self::Op,
            b"python_function" => Self::Python,
            b"user_annotation" => Self::Annotation,
            b"overhead" => Self::Overhead,
            b"gpu_user_annotation"
            | b"cpu_instant_event"
            | b"cuda_sync"
            | b"ac2g"
            | b"fwdbwd"
            | b"async"
            | b"async_cpu_to_gpu"
            | b"async_gpu"
            | b"forward_backward"
            | b"Trace"
            | b"" => Self::Ignored,
            _ => Self::Other,
        }
    }
}

/// The members of one event read so far.
#[derive(Debug, Clone, Copy, Default)]
struct Event<'a> {
    phase: u8,
    category: Option<Category>,
    cat: &'a [u8],
    name: &'a [u8],
    pid: &'a [u8],
    tid: &'a [u8],
    ts: &'a [u8],
    dur: &'a [u8],
    args: Args<'a>,
}

/// The members of an event's `args` that matter.
#[derive(Debug, Clone, Copy, Default)]
struct Args<'a> {
    device: &'a [u8],
    stream: &'a [u8],
    correlation: &'a [u8],
    external: &'a [u8],
    bytes: &'a [u8],
    graph: &'a [u8],
    sequence: &'a [u8],
    forward_thread: &'a [u8],
    dims: &'a [u8],
    collective: &'a [u8],
    elements_in: &'a [u8],
    elements_out: &'a [u8],
    dtype: &'a [u8],
    group_size: &'a [u8],
}

impl<'a> Args<'a> {
    #[inline]
    fn read(cursor: &mut Cursor<'a>) -> Result<Self, Stop> {
        let mut args = Self::default();
        if !cursor.take(b'{')? {
            cursor.skip()?;
            return Ok(args);
        }
        while let Some(key) = cursor.key()? {
            let slot = match key {
                b"External id" | b"external id" => &mut args.external,
                b"correlation" => &mut args.correlation,
                b"device" => &mut args.device,
                b"stream" => &mut args.stream,
                b"bytes" => &mut args.bytes,
                b"graph id" => &mut args.graph,
                b"Sequence number" => &mut args.sequence,
                b"Fwd thread id" => &mut args.forward_thread,
                b"Collective name" => &mut args.collective,
                b"In msg nelems" => &mut args.elements_in,
                b"Out msg nelems" => &mut args.elements_out,
                b"dtype" => &mut args.dtype,
                b"Group size" => &mut args.group_size,
                b"Input Dims" | b"Input dims" => {
                    cursor.peek()?;
                    let from = cursor.at();
                    cursor.skip()?;
                    args.dims = cursor.since(from);
                    continue;
                }
                _ => {
                    cursor.skip()?;
                    continue;
                }
            };
            *slot = cursor.scalar()?;
        }
        Ok(args)
    }
}

/// Whether the members read so far show that the event is not needed.
#[inline]
fn useless(event: &Event<'_>, quick: bool) -> bool {
    match (event.phase, event.category) {
        (0, _) => false,
        (b'X', Some(Category::Ignored)) => true,
        (b'X', Some(Category::Op)) => quick && !event.name.is_empty() && !names_a_step(event.name),
        (b'X', Some(Category::Python)) => quick,
        (b'X', _) => false,
        _ => true,
    }
}

/// Whether a name marks steps: such ops are kept even in a quick read (the 2021 schema has no annotations).
fn names_a_step(name: &[u8]) -> bool {
    name.starts_with(b"ProfilerStep") || name.starts_with(b"Optimizer.step")
}

/// How much of an event was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    /// All members that matter are in the event.
    Full,
    /// Skipped.
    Skipped,
}

#[inline]
fn read_event<'a>(cursor: &mut Cursor<'a>, event: &mut Event<'a>, quick: bool) -> Result<Read, Stop> {
    cursor.expect(b'{')?;
    while let Some(key) = cursor.key()? {
        match key {
            b"ph" => event.phase = cursor.scalar()?.first().copied().unwrap_or(b'?'),
            b"cat" => {
                event.cat = cursor.scalar()?;
                event.category = Some(Category::of(event.cat));
            }
            b"name" => event.name = cursor.scalar()?,
            b"pid" => {
                event.pid = cursor.scalar()?;
                continue;
            }
            b"tid" => {
                event.tid = cursor.scalar()?;
                continue;
            }
            b"ts" => {
                event.ts = cursor.scalar()?;
                continue;
            }
            b"dur" => {
                event.dur = cursor.scalar()?;
                continue;
            }
            b"args" => {
                match event.category {
                    // The args of Python functions are not needed, and there are millions.
                    Some(Category::Python) => cursor.skip()?,
                    _ => event.args = Args::read(cursor)?,
                }
                continue;
            }
            _ => {
                cursor.skip()?;
                continue;
            }
        }
        // Skip the rest of an event that is not needed.
        if useless(event, quick) {
            cursor.leave()?;
            return Ok(Read::Skipped);
        }
    }
    Ok(Read::Full)
}

/// Whether `data` starts with a complete event that has a phase. If so, the file can be cut here.
pub(super) fn is_event(data: &[u8]) -> bool {
    let mut event = Event::default();
    let mut cursor = Cursor::new(data, 0, false);
    read_event(&mut cursor, &mut event, false).is_ok() && event.phase != 0
}

/// Turns events into rows. Each reading thread has one, with its own ids.
#[derive(Debug, Default)]
pub(super) struct EventReader {
    pub(super) names: Interner,
    /// Process and thread as written.
    pub(super) threads: Vec<(Vec<u8>, Vec<u8>)>,
    by_thread: HashMap<(Vec<u8>, Vec<u8>), ThreadId>,
    last_thread: ThreadId,
    pub(super) tally: Tally,
    budget: Budget,
    quick: bool,
}

impl EventReader {
    pub(super) fn new(quick: bool, budget: Budget) -> Self {
        Self { quick, budget, ..Self::default() }
    }

    /// Reads the event at `at` of `data` into `rows` and returns the offset after it.
    #[inline]
    pub(super) fn read(&mut self, data: &[u8], at: usize, lenient: bool, rows: &mut Rows) -> Result<usize, Stop> {
        let mut cursor = Cursor::new(data, at, lenient);
        let mut event = Event::default();
        let read = read_event(&mut cursor, &mut event, self.quick)?;
        self.tally.events += 1;
        self.tally.with_phase += u64::from(event.phase != 0);
        if read == Read::Full {
            self.keep(&event, rows);
        }
        Ok(cursor.at())
    }

    #[inline]
    fn keep(&mut self, event: &Event<'_>, rows: &mut Rows) {
        if event.phase == b'X' {
            self.keep_complete(event, rows);
        }
    }

    #[inline]
    fn keep_complete(&mut self, event: &Event<'_>, rows: &mut Rows) {
        let category = Category::of_event(event);
        if matches!(category, Category::Ignored | Category::Other) {
            if category == Category::Other {
                self.tally.other += 1;
                self.tally.other_category(event.cat, 1);
            }
            return;
        }
        let (Some(start), Some(dur)) = (json::nanos(event.ts), json::nanos(event.dur)) else {
            self.tally.timeless += 1;
            return;
        };
        self.tally.negative += u64::from(dur < 0);
        let dur = dur.max(0);
        // Beyond ±126 years, time differences would overflow.
        let Some(end) = start.checked_add(dur).filter(|end| start >= -MAX_TIME && *end <= MAX_TIME) else {
            self.tally.timeless += 1;
            return;
        };
        if !self.budget.take(row_bytes(category, &event.args)) {
            self.tally.dropped += 1;
            return;
        }
        self.tally.cover(start, end);
        let name = match category {
            Category::Python => self.names.id(without_address(event.name)),
            _ => self.names.id(event.name),
        };
        match category {
            Category::Gpu(kind) => self.keep_gpu(event, kind, (start, dur, name), rows),
            Category::Op => self.keep_op(event, (start, dur, name), rows),
            Category::Call => {
                let thread = self.thread(event.pid, event.tid);
                let correlation = json::unsigned(event.args.correlation).unwrap_or(NONE);
                rows.calls.push(CallRow { start, dur, correlation, name, thread });
            }
            _ => {
                let row = SpanRow { start, dur, name, thread: self.thread(event.pid, event.tid) };
                match category {
                    Category::Python => rows.python.push(row),
                    Category::Overhead => rows.overhead.push(row),
                    _ => rows.annotations.push(row),
                }
            }
        }
    }

    fn keep_gpu(&mut self, event: &Event<'_>, kind: GpuKind, at: (i64, i64, NameId), rows: &mut Rows) {
        let args = &event.args;
        let (start, dur, name) = at;
        // Files without these args name the device and stream as process and thread: `"tid": "stream 7"`.
        let device = small(args.device).or_else(|| small(event.pid)).or_else(|| small(event.tid)).unwrap_or(-1);
        let tid = event.tid.strip_prefix(b"stream ").unwrap_or(event.tid);
        let stream = small(args.stream).or_else(|| small(tid)).unwrap_or(-1);
        let row = GpuRow {
            start,
            dur,
            correlation: json::unsigned(args.correlation).unwrap_or(NONE),
            external: json::unsigned(args.external).unwrap_or(NONE),
            bytes: json::unsigned(args.bytes).unwrap_or(0),
            name,
            device,
            stream,
            graph: json::unsigned(args.graph).and_then(|g| u32::try_from(g).ok()).unwrap_or(0),
            kind,
        };
        if !args.collective.is_empty() {
            rows.comms.push(self.comm(args, row.external, row.correlation));
        }
        rows.gpu.push(row);
    }

    #[inline]
    fn keep_op(&mut self, event: &Event<'_>, at: (i64, i64, NameId), rows: &mut Rows) {
        let args = &event.args;
        let (start, dur, name) = at;
        let number = |text: &[u8]| json::unsigned(text).and_then(|n| u32::try_from(n).ok()).unwrap_or(u32::MAX);
        let row = OpRow {
            start,
            dur,
            external: json::unsigned(args.external).unwrap_or(NONE),
            name,
            thread: self.thread(event.pid, event.tid),
            sequence: number(args.sequence),
            dims: if fills(event.name) && !args.dims.is_empty() { self.names.id(args.dims) } else { NO_NAME },
            forward_thread: number(args.forward_thread),
        };
        if !args.collective.is_empty() {
            rows.comms.push(self.comm(args, row.external, NONE));
        }
        rows.ops.push(row);
    }

    fn comm(&mut self, args: &Args<'_>, external: u64, correlation: u64) -> CommRow {
        let elements = |text| json::unsigned(text).unwrap_or(0);
        CommRow {
            external,
            correlation,
            name: self.names.id(args.collective),
            dtype: self.names.id(args.dtype),
            elements: elements(args.elements_in).max(elements(args.elements_out)),
            group_size: json::unsigned(args.group_size).and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
        }
    }

    /// The thread's id. Neighbouring events mostly share a thread.
    #[inline]
    fn thread(&mut self, pid: &[u8], tid: &[u8]) -> ThreadId {
        if let Some((last_pid, last_tid)) = self.threads.get(self.last_thread as usize)
            && last_tid == tid
            && last_pid == pid
        {
            return self.last_thread;
        }
        let key = (pid.to_vec(), tid.to_vec());
        let next = self.threads.len() as ThreadId;
        let id = *self.by_thread.entry(key.clone()).or_insert(next);
        if id == next {
            self.threads.push(key);
        }
        self.last_thread = id;
        id
    }
}

/// The memory of an event's row, bytes.
#[inline]
fn row_bytes(category: Category, args: &Args<'_>) -> usize {
    let row = match category {
        Category::Gpu(_) => size_of::<GpuRow>(),
        Category::Op => size_of::<OpRow>(),
        Category::Call => size_of::<CallRow>(),
        _ => size_of::<SpanRow>(),
    };
    row + if args.collective.is_empty() { 0 } else { size_of::<CommRow>() }
}

/// `<built-in method run of Engine object at 0x7f05>`: the address differs from call to call, so it is removed.
fn without_address(name: &[u8]) -> &[u8] {
    match name.first() {
        Some(b'<') => memchr::memmem::find(name, b" object at 0x").map_or(name, |at| &name[..at]),
        _ => name,
    }
}

/// Whether an op of this name writes one value over memory.
fn fills(name: &[u8]) -> bool {
    matches!(
        name,
        b"aten::fill_" | b"aten::zero_" | b"aten::zeros" | b"aten::ones" | b"aten::full" | b"aten::zeros_like"
    )
}

fn small(text: &[u8]) -> Option<i32> {
    json::signed(text).and_then(|n| i32::try_from(n).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_readers_share_one_budget() {
        let event = br#"{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":1}"#;
        let budget = Budget::new(2 * LEASE);
        let mut readers = [(); 3].map(|()| EventReader::new(false, budget.share()));
        let (mut kept, mut dropped) = (0, 0);
        for reader in &mut readers {
            let mut rows = Rows::default();
            for _ in 0..2000 {
                reader.read(event, 0, false, &mut rows).unwrap();
            }
            kept += rows.gpu.len() as u64;
            dropped += reader.tally.dropped;
        }
        assert_eq!(kept + dropped, 6000);
        let most = 2 * LEASE / size_of::<GpuRow>() as u64;
        assert!(kept > most / 2 && kept <= most, "{kept} of {most}");
    }
}
