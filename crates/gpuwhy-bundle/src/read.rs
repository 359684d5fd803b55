// SPDX-License-Identifier: Apache-2.0
//! Reads `events.json`. The file may be from an untrusted source: its content is checked, and only its header is kept.
//!
//! It is read twice: for the header, which ends where the events begin (in a reordered file, at its end), and for the
//! events.

use crate::guard::Guard;
use crate::header::{Header, SCHEMA};
use crate::row::{LARGEST, LATEST_NS, Row};
use crate::{Error, Result};
use gpuwhy_model::MemoryEvent;
use serde::de::{self, DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Pairs of process and device, for each of which the analysis keeps something.
const MOST_SPACES: usize = 8_192;
/// Entries in a list of the header.
const MOST_ENTRIES: usize = 1 << 24;
/// Bytes read at once.
const BUFFER: usize = 1 << 18;

/// Whether a file looks like JSON, judged by its first byte that is not white space.
pub fn is_events_file(path: &Path) -> std::io::Result<bool> {
    // Opening a pipe would block.
    if !std::fs::metadata(path)?.is_file() {
        return Ok(false);
    }
    let mut start = [0; 512];
    let count = File::open(path)?.read(&mut start)?;
    Ok(start[..count].iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{'))
}

/// An `events.json` whose header has been read.
#[derive(Debug)]
pub struct EventsFile {
    path: PathBuf,
    header: Header,
}

impl EventsFile {
    /// Reads the header.
    pub fn open(path: &Path) -> Result<Self> {
        let seen = RefCell::new(Seen::default());
        let outcome = parse(path, &mut Top { seen: &seen, each: None });
        let seen = seen.into_inner();
        if seen.schema.as_deref().is_some_and(|schema| schema != SCHEMA) {
            return Err(Error::OtherSchema { path: path.into(), schema: seen.schema.unwrap_or_default() });
        }
        if !seen.complete() {
            outcome?;
        }
        let missing = |what: String| Error::Malformed { path: path.into(), line: 1, column: 1, what };
        let header = seen.header().map_err(missing)?;
        check(&header).map_err(missing)?;
        Ok(Self { path: path.into(), header })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Calls `each` for every event, in order, with the number of bytes read so far.
    pub fn events(&self, mut each: impl FnMut(&MemoryEvent, u64)) -> Result<()> {
        let seen = RefCell::new(Seen::default());
        let stacks: Vec<u64> = self.header.sites.iter().map(|site| site.stack_id.cast_unsigned()).collect();
        let mut checked = Checked { stacks, spaces: BTreeSet::new(), last_ns: 0, count: 0, each: &mut each };
        parse(&self.path, &mut Top { seen: &seen, each: Some(&mut checked) })?;
        if checked.count != self.header.event_count {
            let what = format!("event_count is {} but the file has {} events", self.header.event_count, checked.count);
            return Err(Error::Malformed { path: self.path.clone(), line: 1, column: 1, what });
        }
        Ok(())
    }
}

/// Rejects values with which sums could overflow, and numbers that make no sense.
fn check(header: &Header) -> Result<(), String> {
    let part = &header.part;
    if part.from_ns > part.to_ns || part.to_ns > LATEST_NS {
        return Err(format!("invalid time range: from {} to {} ns", part.from_ns, part.to_ns));
    }
    let steps = header.steps.iter().flat_map(|one| one.marks_ns.iter().chain([&one.active_from_ns, &one.active_to_ns]));
    let samples = header.device_samples.iter().map(|one| &one.at_ns);
    let users = header.device_processes.iter().map(|one| &one.at_ns);
    let alerts = header.alerts.iter().flat_map(|one| [&one.at_ns].into_iter().chain(&one.cleared_ns));
    if let Some(late) = steps.chain(samples).chain(users).chain(alerts).find(|at| **at > LATEST_NS) {
        return Err(format!("invalid time {late} ns: no run is that long"));
    }
    let sizes = header.device_samples.iter().flat_map(|one| one.memory_used.iter().chain(&one.memory_total));
    let sizes = sizes.chain(header.device_processes.iter().filter_map(|one| one.bytes.as_ref()));
    if let Some(large) = sizes.into_iter().find(|bytes| **bytes > LARGEST) {
        return Err(format!("invalid size {large} bytes: no GPU is that large"));
    }
    match header.sites.iter().zip(0..).find(|(site, number)| site.site != *number) {
        Some((site, number)) => Err(format!("found site {} where site {number} should be", site.site)),
        None => Ok(()),
    }
}

/// Checks events and passes them on.
struct Checked<'a> {
    stacks: Vec<u64>,
    spaces: BTreeSet<(u32, Option<u8>)>,
    last_ns: u64,
    count: u64,
    each: &'a mut dyn FnMut(&MemoryEvent, u64),
}

impl Checked<'_> {
    fn take(&mut self, row: &Row, read: u64) -> Result<(), String> {
        self.count += 1;
        let wrong = |what: String| Err(format!("event {}: {what}", self.count));
        if row.at_ns < self.last_ns {
            return wrong(format!("its time, {} ns, is earlier than that of the previous event", row.at_ns));
        }
        if self.spaces.insert((row.pid, row.device)) && self.spaces.len() > MOST_SPACES {
            return wrong(format!("more than {MOST_SPACES} processes and devices"));
        }
        self.last_ns = row.at_ns;
        match row.event(|site| self.stacks.get(site as usize).copied()) {
            Ok(event) => (self.each)(&event, read),
            Err(what) => return wrong(what),
        }
        Ok(())
    }
}

/// The header read so far.
#[derive(Default)]
struct Seen {
    schema: Option<String>,
    fields: serde_json::Map<String, serde_json::Value>,
    parts: Header,
    lists: BTreeSet<&'static str>,
}

/// Keys of the header: lists, and others.
const LISTS: [&str; 9] =
    ["unreported", "notes", "processes", "gpus", "steps", "sites", "device_samples", "device_processes", "alerts"];
const FIELDS: [&str; 5] = ["gpuwhy", "run", "part", "lost", "event_count"];

impl Seen {
    fn complete(&self) -> bool {
        self.schema.is_some()
            && LISTS.iter().all(|key| self.lists.contains(key))
            && FIELDS.iter().all(|key| self.fields.contains_key(*key))
    }

    fn header(mut self) -> Result<Header, String> {
        if self.schema.is_none() {
            return Err("`schema` is missing: this is not the events.json of a memory bundle".to_owned());
        }
        let missing = LISTS.iter().find(|key| !self.lists.contains(**key));
        if let Some(key) = missing.or_else(|| FIELDS.iter().find(|key| !self.fields.contains_key(**key))) {
            return Err(format!("`{key}` is missing"));
        }
        let mut field = |key: &'static str| self.fields.remove(key).unwrap_or_default();
        Ok(Header {
            gpuwhy: typed("gpuwhy", field("gpuwhy"))?,
            run: typed("run", field("run"))?,
            part: typed("part", field("part"))?,
            lost: typed("lost", field("lost"))?,
            event_count: typed("event_count", field("event_count"))?,
            ..self.parts
        })
    }
}

fn typed<T: DeserializeOwned>(key: &str, value: serde_json::Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| format!("`{key}`: {error}"))
}

fn parse(path: &Path, top: &mut Top<'_, '_>) -> Result<()> {
    let unreadable = |source| Error::Read { path: path.into(), source };
    let file = File::open(path).map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        let source = std::io::Error::other("not a regular file, and it must be read twice");
        return Err(unreadable(source));
    }
    let passing = Rc::new(Cell::new(false));
    let read = Rc::new(Cell::new(0));
    let counting = Counting { inner: file, read: Rc::clone(&read) };
    let guard = Guard::new(BufReader::with_capacity(BUFFER, counting), Rc::clone(&passing));
    let mut json = serde_json::Deserializer::from_reader(guard);
    let outcome = TopSeed { top, passing, read }.deserialize(&mut json).and_then(|()| json.end());
    outcome.map_err(|error| json_error(path, &error))
}

/// An error of the JSON parser as one of ours.
fn json_error(path: &Path, error: &serde_json::Error) -> Error {
    if error.is_eof() {
        return Error::CutOff { path: path.into(), line: error.line() };
    }
    let text = error.to_string();
    let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
    let what = gpuwhy_model::units::safe(what, 300);
    Error::Malformed { path: path.into(), line: error.line().max(1), column: error.column(), what }
}

/// Counts the bytes read from the file.
struct Counting<R> {
    inner: R,
    read: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.read.set(self.read.get() + count as u64);
        Ok(count)
    }
}

/// The whole object: collects the header in `seen`, or passes the events on.
struct Top<'a, 'b> {
    seen: &'a RefCell<Seen>,
    each: Option<&'a mut Checked<'b>>,
}

struct TopSeed<'t, 'a, 'b> {
    top: &'t mut Top<'a, 'b>,
    passing: Rc<Cell<bool>>,
    read: Rc<Cell<u64>>,
}

impl<'de> DeserializeSeed<'de> for TopSeed<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TopSeed<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "events" {
                if self.top.each.is_none() && self.top.seen.borrow().complete() {
                    return Err(de::Error::custom("the header ends here"));
                }
                self.passing.set(true);
                match &mut self.top.each {
                    Some(each) => map.next_value_seed(Events { each, read: &self.read })?,
                    None => map.next_value::<IgnoredAny>().map(|_| ())?,
                }
                self.passing.set(false);
            } else if self.top.each.is_some() {
                map.next_value::<IgnoredAny>()?;
            } else {
                header_value(&key, &mut map, &mut self.top.seen.borrow_mut())?;
            }
        }
        Ok(())
    }
}

fn header_value<'de, A: MapAccess<'de>>(key: &str, map: &mut A, seen: &mut Seen) -> Result<(), A::Error> {
    let mut bounded = |key: &'static str| seen.lists.insert(key);
    match key {
        "schema" => seen.schema = Some(map.next_value()?),
        "unreported" if bounded("unreported") => seen.parts.unreported = map.next_value_seed(Bounded::new())?,
        "notes" if bounded("notes") => seen.parts.notes = map.next_value_seed(Bounded::new())?,
        "processes" if bounded("processes") => seen.parts.processes = map.next_value_seed(Bounded::new())?,
        "gpus" if bounded("gpus") => seen.parts.gpus = map.next_value_seed(Bounded::new())?,
        "steps" if bounded("steps") => seen.parts.steps = map.next_value_seed(Bounded::new())?,
        "sites" if bounded("sites") => seen.parts.sites = map.next_value_seed(Bounded::new())?,
        "device_samples" if bounded("device_samples") => {
            seen.parts.device_samples = map.next_value_seed(Bounded::new())?;
        }
        "device_processes" if bounded("device_processes") => {
            seen.parts.device_processes = map.next_value_seed(Bounded::new())?;
        }
        "alerts" if bounded("alerts") => seen.parts.alerts = map.next_value_seed(Bounded::new())?,
        _ if FIELDS.contains(&key) => {
            seen.fields.insert(key.to_owned(), map.next_value()?);
        }
        _ => {
            map.next_value::<IgnoredAny>()?;
        }
    }
    Ok(())
}

/// A list with at most [`MOST_ENTRIES`].
struct Bounded<T>(PhantomData<T>);

impl<T> Bounded<T> {
    fn new() -> Self {
        Self(PhantomData)
    }
}

impl<'de, T: de::Deserialize<'de>> DeserializeSeed<'de> for Bounded<T> {
    type Value = Vec<T>;

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: de::Deserialize<'de>> Visitor<'de> for Bounded<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut all = Vec::new();
        while let Some(one) = list.next_element()? {
            if all.len() >= MOST_ENTRIES {
                return Err(de::Error::custom(format!("a list of more than {MOST_ENTRIES}")));
            }
            all.push(one);
        }
        Ok(all)
    }
}

/// The events, one at a time.
struct Events<'e, 'b> {
    each: &'e mut Checked<'b>,
    read: &'e Cell<u64>,
}

impl<'de> DeserializeSeed<'de> for Events<'_, '_> {
    type Value = ();

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(row) = list.next_element::<Row>()? {
            self.each.take(&row, self.read.get()).map_err(de::Error::custom)?;
        }
        Ok(())
    }
}
