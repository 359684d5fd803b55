// SPDX-License-Identifier: Apache-2.0
//! Reads a trace file into rows in one pass: this thread reads and cuts, others turn text into rows.
//!
//! The file is read in parts of a few megabytes (never mapped: mapped pages count as the process's memory). Each part
//! starts with an event, so parts can be parsed in parallel and in any order. Broken text loses its event, rarely more, and
//! is counted.

use super::Error;
use super::event::{Budget, EventReader, MAX_ROW_BYTES};
use super::header::{self, Head};
use super::intern::{Interner, NameId};
use super::json::{self, Stop};
use super::rows::{CallRow, CommRow, GpuRow, Header, OpRow, Rows, SpanRow, ThreadId, Trace};
use super::split;
use flate2::read::MultiGzDecoder;
use std::cell::Cell;
use std::collections::HashMap;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};

/// The size of a part, if an event starts in it, bytes.
const PART: usize = 1 << 20;
/// Most text kept in memory while no event starts, bytes.
const MAX_PART: usize = 64 << 20;
/// A gzip file may unpack to this many times its size, plus an allowance. Traces unpack to 10 to 30 times, a file of zeroes to
/// 1,000 times.
const MAX_RATIO: u64 = 100;
const FREE_BYTES: u64 = 64 << 20;
/// Most threads that turn text into rows.
const MAX_WORKERS: usize = 16;

/// A piece of the event list.
struct Part {
    order: usize,
    /// Offset of the part in the (decompressed) file.
    offset: u64,
    buffer: Buffer,
    /// Offset of the first event in the text (in the first part, after the head).
    from: usize,
    last: bool,
}

/// Text in a vector that keeps its length: its memory is cleared once, not for every part.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    used: usize,
}

impl Buffer {
    fn text(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// Room for `more` bytes after the text.
    fn room(&mut self, more: usize) -> &mut [u8] {
        if self.bytes.len() < self.used + more {
            self.bytes.resize(self.used + more, 0);
        }
        &mut self.bytes[self.used..self.used + more]
    }

    /// Replaces the text.
    fn set(&mut self, text: &[u8]) {
        self.used = 0;
        self.room(text.len()).copy_from_slice(text);
        self.used = text.len();
    }
}

/// The rows that one worker made.
#[derive(Default)]
struct Harvest {
    events: EventReader,
    parts: Vec<(usize, Rows)>,
    foot: Header,
}

/// ReadOptions a file was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadOptions {
    /// Leave out CPU ops and Python functions.
    pub(super) quick: bool,
    /// Threads that turn text into rows; 0: one per core.
    pub(super) workers: usize,
}

/// Counts bytes read from the source, before decompression.
struct Counted<'a, R> {
    source: R,
    drawn: &'a Cell<u64>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.source.read(buffer)?;
        self.drawn.set(self.drawn.get() + n as u64);
        Ok(n)
    }
}

/// Reads a trace, plain or gzipped; `progress` is called with the bytes of the source done so far.
pub(super) fn read(source: impl Read, how: ReadOptions, progress: impl FnMut(u64)) -> Result<Trace, Error> {
    let drawn = Cell::new(0);
    let mut source = Counted { source, drawn: &drawn };
    let mut magic = [0; 2];
    let n = fill(&mut source, &mut magic)?;
    let whole = io::Cursor::new(magic).take(n as u64).chain(source);
    if magic == [0x1f, 0x8b] {
        // The decoder reads in small pieces; buffering saves system calls.
        let whole = io::BufReader::with_capacity(256 << 10, whole);
        read_plain(MultiGzDecoder::new(whole), how, &drawn, progress)
    } else {
        read_plain(whole, how, &drawn, progress)
    }
}

/// Reads until `buffer` is full or the source is at its end.
fn fill(source: &mut impl Read, buffer: &mut [u8]) -> Result<usize, Error> {
    let mut n = 0;
    while n < buffer.len() {
        match source.read(&mut buffer[n..]) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::Read(e)),
        }
    }
    Ok(n)
}

fn read_plain(
    source: impl Read,
    how: ReadOptions,
    drawn: &Cell<u64>,
    progress: impl FnMut(u64),
) -> Result<Trace, Error> {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let workers = if how.workers == 0 { cores } else { how.workers }.clamp(1, MAX_WORKERS);
    let (to_workers, parts) = sync_channel::<Part>(workers);
    let (give_back, spare) = channel::<Buffer>();
    let parts = Arc::new(Mutex::new(parts));
    let budget = Budget::new(MAX_ROW_BYTES);
    let (cut, harvests) = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..workers)
            .map(|_| {
                let (parts, give_back) = (Arc::clone(&parts), give_back.clone());
                let events = EventReader::new(how.quick, budget.share());
                scope.spawn(move || work(&parts, &give_back, events))
            })
            .collect();
        let mut cutter =
            Cutter { source, spare, drawn, progress, read: 0, offset: 0, header: Header::default(), gz_error: None };
        let result = cutter.run(&to_workers);
        drop(to_workers);
        let harvests: Vec<_> = handles.into_iter().map(|h| h.join().unwrap_or_default()).collect();
        (result.map(|()| (cutter.header, cutter.offset, cutter.gz_error)), harvests)
    });
    let (header, json_bytes, gz_error) = cut?;
    let mut trace = merge(harvests, header);
    trace.json_bytes = json_bytes;
    trace.tally.closed &= gz_error.is_none();
    Ok(trace)
}

/// Cuts the source into parts.
struct Cutter<'a, R, P> {
    source: R,
    spare: Receiver<Buffer>,
    drawn: &'a Cell<u64>,
    progress: P,
    /// Bytes of text so far.
    read: u64,
    /// The file offset of the part being made.
    offset: u64,
    header: Header,
    /// The source failed after some data: that data is kept.
    gz_error: Option<Error>,
}

impl<R: Read, P: FnMut(u64)> Cutter<'_, R, P> {
    fn run(&mut self, parts: &SyncSender<Part>) -> Result<(), Error> {
        let mut buffer = Buffer::default();
        let mut last = self.more(&mut buffer)?;
        let mut from = self.head(&mut buffer, &mut last)?;
        for order in 0.. {
            let cut = loop {
                if last {
                    break buffer.used;
                }
                match split::last_start(&buffer.text()[from..]) {
                    Some(at) => break from + at,
                    None if buffer.used >= MAX_PART => break buffer.used,
                    None => last = self.more(&mut buffer)?,
                }
            };
            let mut rest = self.spare.try_recv().unwrap_or_default();
            rest.set(&buffer.text()[cut..]);
            buffer.used = cut;
            let part = Part { order, offset: self.offset, buffer, from, last };
            self.offset += cut as u64;
            from = 0;
            if parts.send(part).is_err() || last {
                break;
            }
            buffer = rest;
            last = self.more(&mut buffer)?;
            (self.progress)(self.drawn.get());
        }
        (self.progress)(self.drawn.get());
        Ok(())
    }

    /// Appends text for one part; returns whether the source is at its end.
    fn more(&mut self, buffer: &mut Buffer) -> Result<bool, Error> {
        let had = buffer.used > 0;
        let room = buffer.room(PART);
        let mut n = 0;
        while n < PART {
            match self.source.read(&mut room[n..]) {
                Ok(0) => break,
                Ok(more) => n += more,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // A gzip file cut short is treated like a plain file cut short.
                Err(e) if (had || n > 0) && broken_gzip(&e) => {
                    self.gz_error = Some(Error::Read(e));
                    break;
                }
                Err(e) => return Err(Error::Read(e)),
            }
        }
        buffer.used += n;
        self.read += n as u64;
        let packed = self.drawn.get();
        if self.read > MAX_RATIO * packed + FREE_BYTES {
            return Err(Error::UnpacksTooFar { packed, unpacked: self.read });
        }
        Ok(n < PART)
    }

    /// Reads the file's head and returns the offset of the first event.
    fn head(&mut self, buffer: &mut Buffer, last: &mut bool) -> Result<usize, Error> {
        loop {
            match header::read_head(buffer.text()) {
                Ok(Head::Events(at, header)) => {
                    self.header = header;
                    return Ok(at);
                }
                Ok(Head::NoEvents(header)) => return Err(Error::NoEvents { keys: header.keys.join(", ") }),
                Err(Stop::End) if !*last && buffer.used < MAX_PART => *last = self.more(buffer)?,
                Err(stop) => return search_list(buffer.text(), stop),
            }
        }
    }
}

/// A head that is not JSON may still be followed by a list that is.
fn search_list(text: &[u8], stop: Stop) -> Result<usize, Error> {
    if text.trim_ascii().is_empty() {
        return Err(Error::Empty);
    }
    let key = memchr::memmem::find(text, b"\"traceEvents\"");
    let list = key.and_then(|at| memchr::memchr(b'[', &text[at..]).map(|b| at + b + 1));
    list.ok_or(match stop {
        Stop::End if text.trim_ascii_start().first() == Some(&b'{') => Error::CutBeforeEvents,
        _ => Error::NotJson { start: String::from_utf8_lossy(&text[..text.len().min(16)]).into_owned() },
    })
}

fn broken_gzip(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | InvalidData | InvalidInput)
}

/// Turns parts into rows until there are no more.
fn work(parts: &Mutex<Receiver<Part>>, give_back: &std::sync::mpsc::Sender<Buffer>, events: EventReader) -> Harvest {
    let mut harvest = Harvest { events, ..Harvest::default() };
    loop {
        let part = match parts.lock() {
            Ok(parts) => parts.recv(),
            Err(_) => break,
        };
        let Ok(part) = part else { break };
        let mut rows = Rows::default();
        read_part(&part, &mut harvest, &mut rows);
        rows.shrink();
        harvest.parts.push((part.order, rows));
        // The cutter may have ended already.
        let _ = give_back.send(part.buffer);
    }
    harvest
}

fn read_part(part: &Part, harvest: &mut Harvest, rows: &mut Rows) {
    let text = part.buffer.text();
    let mut at = part.from;
    loop {
        while text.get(at).is_some_and(|b| b.is_ascii_whitespace() || *b == b',') {
            at += 1;
        }
        match text.get(at) {
            None => return,
            Some(b'{') => match harvest.events.read(text, at, false, rows) {
                Ok(next) => at = next,
                Err(stop) => match recover(part, at, stop, harvest, rows) {
                    Some(next) => at = next,
                    None => return,
                },
            },
            Some(b']') => {
                harvest.events.tally.closed = true;
                // After the real end of the list there are no more events.
                match split::next_start(text, at + 1).filter(|start| super::event::is_event(&text[*start..])) {
                    Some(start) => at = start,
                    None => {
                        harvest.foot.absorb(header::read_foot(&text[at + 1..]));
                        return;
                    }
                }
            }
            Some(_) => {
                harvest.events.tally.unreadable_at(part.offset + at as u64);
                match split::next_start(text, at) {
                    Some(start) => at = start,
                    None => return,
                }
            }
        }
    }
}

/// After an event that is not JSON: reads it leniently, else continues at the next; `None` at the part's end.
fn recover(part: &Part, at: usize, stop: Stop, harvest: &mut Harvest, rows: &mut Rows) -> Option<usize> {
    let text = part.buffer.text();
    let next = split::next_start(text, at + 1);
    let own = &text[..next.unwrap_or(text.len())];
    if let Ok(end) = harvest.events.read(own, at, true, rows) {
        harvest.events.tally.recovered += 1;
        return Some(end);
    }
    if stop == Stop::End && part.last && next.is_none() {
        harvest.events.tally.truncated_at = Some(part.offset + at as u64);
    } else {
        harvest.events.tally.unreadable_at(part.offset + at as u64);
    }
    next
}

/// Joins the rows of all workers in file order.
fn merge(harvests: Vec<Harvest>, header: Header) -> Trace {
    let mut trace = Trace { header, ..Trace::default() };
    let mut names = Interner::default();
    let mut threads = Threads::default();
    let mut parts = Vec::new();
    for (worker, harvest) in harvests.into_iter().enumerate() {
        trace.tally.add(&harvest.events.tally);
        trace.header.absorb(harvest.foot);
        let name_map = names.absorb(&harvest.events.names);
        let thread_map: Vec<_> = harvest.events.threads.into_iter().map(|key| threads.id(key)).collect();
        parts.extend(harvest.parts.into_iter().map(|(order, rows)| (order, worker, rows)));
        threads.maps.push((name_map, thread_map));
    }
    parts.sort_by_key(|(order, ..)| *order);
    trace.rows = join(parts, &threads.maps);
    trace.names = (0..names.len()).map(|id| json::unescape(names.name(id as NameId))).collect();
    trace.threads = threads.by_key.len();
    trace
}

/// Threads of all workers.
#[derive(Default)]
struct Threads {
    by_key: HashMap<(Vec<u8>, Vec<u8>), ThreadId>,
    /// For each worker, its name and thread ids here.
    maps: Vec<(Vec<NameId>, Vec<ThreadId>)>,
}

impl Threads {
    fn id(&mut self, key: (Vec<u8>, Vec<u8>)) -> ThreadId {
        let next = self.by_key.len() as ThreadId;
        *self.by_key.entry(key).or_insert(next)
    }
}

/// Ids of one worker to those of all.
struct Translate<'a> {
    names: &'a [NameId],
    threads: &'a [ThreadId],
}

impl Translate<'_> {
    fn name(&self, id: &mut NameId) {
        *id = self.names.get(*id as usize).copied().unwrap_or(*id);
    }

    fn thread(&self, id: &mut ThreadId) {
        *id = self.threads.get(*id as usize).copied().unwrap_or(*id);
    }
}

/// A worker's number and some of its rows, for every part of the file in order.
type Pieces<T> = Vec<(usize, Vec<T>)>;

/// One list of each kind, ids translated; each part is freed as soon as it is copied.
fn join(parts: Vec<(usize, usize, Rows)>, maps: &[(Vec<NameId>, Vec<ThreadId>)]) -> Rows {
    let mut parts = parts;
    macro_rules! take {
        ($field:ident) => {
            parts.iter_mut().map(|(_, worker, rows)| (*worker, std::mem::take(&mut rows.$field))).collect()
        };
    }
    let (python, ops): (Pieces<_>, Pieces<_>) = (take!(python), take!(ops));
    let span = |row: &mut SpanRow, to: &Translate<'_>| {
        to.name(&mut row.name);
        to.thread(&mut row.thread);
    };
    std::thread::scope(|scope| {
        // The two long lists are joined side by side.
        let python = scope.spawn(move || gather(python, maps, span));
        let ops = gather(ops, maps, |row: &mut OpRow, to| {
            to.name(&mut row.name);
            to.name(&mut row.dims);
            to.thread(&mut row.thread);
        });
        Rows {
            ops,
            gpu: gather(take!(gpu), maps, |row: &mut GpuRow, to| to.name(&mut row.name)),
            calls: gather(take!(calls), maps, |row: &mut CallRow, to| {
                to.name(&mut row.name);
                to.thread(&mut row.thread);
            }),
            annotations: gather(take!(annotations), maps, span),
            overhead: gather(take!(overhead), maps, span),
            comms: gather(take!(comms), maps, |row: &mut CommRow, to| {
                to.name(&mut row.name);
                to.name(&mut row.dtype);
            }),
            python: python.join().unwrap_or_default(),
        }
    })
}

fn gather<T>(
    pieces: Pieces<T>,
    maps: &[(Vec<NameId>, Vec<ThreadId>)],
    translate: impl Fn(&mut T, &Translate<'_>),
) -> Vec<T> {
    let mut all = Vec::with_capacity(pieces.iter().map(|(_, rows)| rows.len()).sum());
    for (worker, rows) in pieces {
        let (names, threads) = &maps[worker];
        let to = Translate { names, threads };
        all.extend(rows.into_iter().map(|mut row| {
            translate(&mut row, &to);
            row
        }));
    }
    all
}
