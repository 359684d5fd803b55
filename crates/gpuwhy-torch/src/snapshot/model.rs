// SPDX-License-Identifier: Apache-2.0
//! A snapshot as the analyses see it: segments with their blocks, one trace per device, stacks by id.
//!
//! The shapes differ by version: a bare list of segments, Torch ≤ 2.0 (`history` instead of addresses and
//! requested sizes), a dict with traces, settings and annotations. This module brings them into one form.

use super::error::Error;
use super::pickle::Read;
use super::rows::{Annotation, Block, Entry, Frame, NOTHING, Segment, State};
use super::strings::{StrId, key};
use super::tables::Tables;
use super::value::{Short, Tag, Value};
use gpuwhy_model::units;
use std::borrow::Cow;
use std::ops::Range;

/// The allocator's settings that decide how it cuts blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) expandable_segments: bool,
    /// Blocks from this size on are never split; `None`: no limit.
    pub(super) max_split_size: Option<u64>,
    /// Divisions of a power of two that sizes round up to, by size class from 1 MiB on; 0: off.
    pub(super) roundup_divisions: [u64; 16],
    /// The environment variable as it was set.
    pub(super) conf: String,
}

/// One device's recording: a range of [`Snapshot::entries`].
#[derive(Debug, Clone)]
pub(super) struct Trace {
    pub(super) device: u32,
    pub(super) range: Range<usize>,
}

/// The whole file.
pub(super) struct Snapshot {
    tables: Tables,
    pub(super) segments: Vec<Segment>,
    /// Blocks of segment `i`: `blocks[block_ranges[i]]`, in address order.
    pub(super) blocks: Vec<Block>,
    pub(super) block_ranges: Vec<Range<usize>>,
    pub(super) entries: Vec<Entry>,
    pub(super) traces: Vec<Trace>,
    pub(super) annotations: Vec<Annotation>,
    pub(super) settings: Settings,
    /// Whether the file ends, or is damaged, before the end of the traces.
    pub(super) trace_cut: bool,
    /// Warnings about the numbers.
    pub(super) warnings: Vec<String>,
}

impl Snapshot {
    /// Builds the model from the tables.
    pub(super) fn new(read: Read) -> Result<Self, Error> {
        let Read { mut tables, top, bytes, cut, trace_cut } = read;
        let mut warnings = Vec::new();
        if let Some(error) = cut {
            if tables.segments.is_empty() && tables.entries.is_empty() {
                return Err(error);
            }
            warnings.push(format!(
                "{error}; the analysis covers what comes before: {} segments, {} trace entries",
                units::count(tables.segments.len() as u64),
                units::count(tables.entries.len() as u64)
            ));
        }
        if trace_cut {
            warnings.push("the end of the recording is missing: peaks cover only what was read".into());
        }
        let parts = Parts::find(&tables, top)?;
        let mut snapshot = Self {
            segments: Vec::new(),
            blocks: Vec::new(),
            block_ranges: Vec::new(),
            entries: Vec::new(),
            traces: Vec::new(),
            annotations: annotations(&tables, parts.annotations),
            settings: settings(&tables, parts.settings),
            trace_cut,
            warnings,
            tables: Tables::default(),
        };
        snapshot.take_segments(&mut tables, parts.segments);
        snapshot.take_traces(&mut tables, parts.traces);
        snapshot.say_what_is_missing(&tables, &parts, bytes);
        tables.finish_reading();
        snapshot.tables = tables;
        Ok(snapshot)
    }

    fn take_segments(&mut self, tables: &mut Tables, list: u32) {
        let ids: Vec<usize> = tables.items(list).filter(|i| i.is(Tag::Segment)).map(Short::index).collect();
        let mut older = false;
        for id in ids {
            let mut segment = tables.segments[id];
            segment.stack = tables.stack_of(segment.stack);
            let blocks: Vec<usize> =
                tables.items(segment.blocks).filter(|i| i.is(Tag::Block)).map(Short::index).collect();
            let start = self.blocks.len();
            let mut address = segment.address;
            for block in blocks {
                let block = complete(tables, tables.blocks[block], address, &mut older);
                address = block.address.wrapping_add(block.size);
                self.blocks.push(block);
            }
            self.block_ranges.push(start..self.blocks.len());
            self.segments.push(segment);
        }
        if older {
            self.warnings.push(
                "written by PyTorch 2.0 or older: block addresses and requested sizes are taken from the block history"
                    .into(),
            );
        }
    }

    /// Moves entries only if those of a trace are not consecutive.
    fn take_traces(&mut self, tables: &mut Tables, list: u32) {
        let traces: Vec<u32> =
            tables.items(list).map(|i| if i.is(Tag::List) { i.index() as u32 } else { NOTHING }).collect();
        let mut entries = std::mem::take(&mut tables.entries);
        let mut last = (NOTHING, NOTHING);
        for entry in &mut entries {
            // Neighbours often share a stack: look it up once.
            if entry.stack != last.0 {
                last = (entry.stack, tables.stack_of(entry.stack));
            }
            entry.stack = last.1;
        }
        for (device, trace) in traces.into_iter().enumerate() {
            let mut ids = tables.items(trace).filter(|i| i.is(Tag::Entry)).map(Short::index).peekable();
            let Some(&start) = ids.peek() else { continue };
            let (mut next, mut in_order) = (start, true);
            for id in ids {
                in_order &= id == next;
                next += 1;
            }
            let range = if in_order {
                start..next
            } else {
                let copied = entries.len();
                let moved: Vec<usize> = tables.items(trace).filter(|i| i.is(Tag::Entry)).map(Short::index).collect();
                for id in moved {
                    entries.push(entries[id]);
                }
                copied..entries.len()
            };
            self.traces.push(Trace { device: device as u32, range });
        }
        self.entries = entries;
    }

    fn say_what_is_missing(&mut self, tables: &Tables, parts: &Parts, bytes: u64) {
        if self.segments.is_empty() && self.traces.is_empty() {
            let bytes = units::count(bytes);
            self.warnings
                .push(format!("the snapshot ({bytes} bytes) has no segments and no trace: nothing was allocated"));
        } else if self.traces.is_empty() && !self.trace_cut {
            self.warnings.push(
                "no allocation history in this snapshot, so peaks are what is allocated now: call \
                 torch.cuda.memory._record_memory_history() before the run"
                    .into(),
            );
        }
        let host = tables.items(parts.host_segments).count();
        if host > 0 {
            let host = units::count(host as u64);
            self.warnings.push(format!("left out {host} segments of pinned host memory that are in the file"));
        }
    }

    /// A device's blocks with their segments.
    pub(super) fn device_blocks(&self, device: u32) -> impl Iterator<Item = (&Segment, &Block)> {
        self.segments
            .iter()
            .zip(&self.block_ranges)
            .filter(move |(segment, _)| segment.device == device)
            .flat_map(|(segment, range)| self.blocks[range.clone()].iter().map(move |block| (segment, block)))
    }

    /// A device's segments with their blocks.
    pub(super) fn device_segments(&self, device: u32) -> impl Iterator<Item = (&Segment, &[Block])> {
        let with_blocks = self.segments.iter().zip(&self.block_ranges);
        with_blocks.filter(move |(s, _)| s.device == device).map(|(s, range)| (s, &self.blocks[range.clone()]))
    }

    /// A device's recording, oldest entry first.
    pub(super) fn trace(&self, device: u32) -> &[Entry] {
        let trace = self.traces.iter().find(|t| t.device == device);
        trace.and_then(|t| self.entries.get(t.range.clone())).unwrap_or_default()
    }

    /// Whether a device's recording may lack its end. Only the last one read can.
    pub(super) fn trace_cut(&self, device: u32) -> bool {
        self.trace_cut && self.traces.last().is_none_or(|last| device >= last.device)
    }

    /// The devices in the file, in order.
    pub(super) fn devices(&self) -> Vec<u32> {
        let mut devices: Vec<u32> = self.segments.iter().map(|s| s.device).collect();
        devices.extend(self.traces.iter().map(|t| t.device));
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// A stack's frames, innermost first.
    pub(super) fn frames(&self, stack: u32) -> impl Iterator<Item = Frame> + '_ {
        let frames = self.tables.chunk(stack).filter(|item| item.is(Tag::Frame));
        frames.filter_map(|item| self.tables.frames.get(item.index()).copied())
    }

    /// Stack ids are below this.
    pub(super) fn stack_count(&self) -> usize {
        self.tables.stack_count()
    }

    pub(super) fn text(&self, id: StrId) -> Cow<'_, str> {
        self.tables.strings.get(id)
    }
}

/// The top-level lists and dicts.
struct Parts {
    segments: u32,
    traces: u32,
    annotations: u32,
    host_segments: u32,
    settings: Short,
}

impl Parts {
    fn find(tables: &Tables, top: Value) -> Result<Self, Error> {
        let mut parts = Self {
            segments: NOTHING,
            traces: NOTHING,
            annotations: NOTHING,
            host_segments: NOTHING,
            settings: Short::NONE,
        };
        if top.is(Tag::List) {
            parts.segments = top.index() as u32;
            let foreign = tables.items(parts.segments).find(|item| !item.is(Tag::Segment));
            return match foreign {
                None => Ok(parts),
                Some(_) => Err(Error::NotASnapshot { what: "a list, but not of segments".into() }),
            };
        }
        let dict = tables.dict(top);
        let list = |key| tables.lookup(dict, key).filter(|v| v.is(Tag::List)).map_or(NOTHING, |v| v.index() as u32);
        parts.segments = list(key::SEGMENTS);
        parts.traces = list(key::DEVICE_TRACES);
        parts.annotations = list(key::EXTERNAL_ANNOTATIONS);
        parts.host_segments = list(key::HOST_SEGMENTS);
        parts.settings = tables.lookup(dict, key::ALLOCATOR_SETTINGS).map_or(Short::NONE, |v| tables.dict(v));
        if parts.segments == NOTHING && parts.traces == NOTHING {
            let what = "a pickle without `segments` and `device_traces`".into();
            return Err(Error::NotASnapshot { what });
        }
        Ok(parts)
    }
}

/// A block, with data that older versions keep elsewhere. `address` is where it must start.
fn complete(tables: &mut Tables, mut block: Block, address: u64, older: &mut bool) -> Block {
    let newest = tables.items(block.history).find(|i| i.is(Tag::Block)).map(|i| tables.blocks[i.index()]);
    if let Some(newest) = newest {
        *older = true;
        block.requested = block.requested.or(newest.requested);
        if block.stack == NOTHING {
            block.stack = newest.stack;
        }
    }
    if block.address == 0 {
        block.address = address;
    }
    if block.requested.is_none() && block.state != State::Inactive {
        block.requested = Some(block.size);
    }
    block.stack = tables.stack_of(block.stack);
    block
}

fn annotations(tables: &Tables, list: u32) -> Vec<Annotation> {
    let items = tables.items(list).filter(|item| item.is(Tag::Annotation));
    items.filter_map(|item| tables.annotations.get(item.index()).copied()).collect()
}

fn settings(tables: &Tables, dict: Short) -> Settings {
    let find = |key| tables.lookup(dict, key);
    let mut roundup_divisions = [0; 16];
    let divisions = find(key::ROUNDUP).map_or(Short::NONE, |v| tables.dict(v));
    for (name, value) in tables.other(divisions) {
        // Keys are sizes in MiB, powers of two from 1 on.
        let mebibytes: u64 = tables.strings.get(StrId(*name)).parse().unwrap_or(0);
        if mebibytes.is_power_of_two()
            && let Some(place) = roundup_divisions.get_mut(mebibytes.trailing_zeros() as usize)
        {
            *place = tables.as_int(*value).and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        }
    }
    let text = |value: Value| if value.is(Tag::Str) { Some(StrId(value.index() as u32)) } else { None };
    Settings {
        expandable_segments: find(key::EXPANDABLE_SEGMENTS).is_some_and(|v| v == Value::new(Tag::Bool, 1)),
        max_split_size: find(key::MAX_SPLIT_SIZE).and_then(|v| tables.as_int(v)).and_then(|n| u64::try_from(n).ok()),
        roundup_divisions,
        conf: find(key::CONF).and_then(text).map(|id| tables.strings.get(id).into_owned()).unwrap_or_default(),
    }
}
