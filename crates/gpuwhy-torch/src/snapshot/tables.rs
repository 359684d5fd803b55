// SPDX-License-Identifier: Apache-2.0
//! Compact typed tables, filled while the pickle is read: a dict becomes a row as soon as its items arrive.
//!
//! A stack is kept once, however often the file repeats it. Its id is that of its chunk of frame ids.

use super::hash::{Ids, Seed};
use super::rows::{
    Annotation, Block, EMPTY_ANNOTATION, EMPTY_BLOCK, EMPTY_ENTRY, EMPTY_SEGMENT, Entry, Frame, NOTHING, Segment,
    State, action,
};
use super::strings::{StrId, Strings, key};
use super::value::{Short, Tag, Value};

/// A run of list items.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    start: u32,
    len: u32,
}

/// Where a list's items are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Items {
    Empty,
    One(u32),
    /// Index into `Tables::many`.
    Many(u32),
}

/// A dict with more keys than this is not a snapshot's.
const MAX_KEYS: usize = 64;

/// Everything read so far.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) strings: Strings,
    pub(super) frames: Vec<Frame>,
    frame_ids: Ids,
    seed: Seed,
    /// The items of all lists, as [`Short`]s' bits: slices of plain numbers compare fastest.
    arena: Vec<u32>,
    chunks: Vec<Chunk>,
    /// Finds chunks of frames only.
    chunk_ids: Ids,
    lists: Vec<Items>,
    many: Vec<Vec<u32>>,
    /// Rows in all of `many`, for the memory account.
    many_items: usize,
    /// The kind of each dict, once known.
    dicts: Vec<Short>,
    pub(super) entries: Vec<Entry>,
    pub(super) segments: Vec<Segment>,
    pub(super) blocks: Vec<Block>,
    pub(super) annotations: Vec<Annotation>,
    others: Vec<Vec<(u32, Value)>>,
    /// Rows in all of `others`, for the memory account.
    other_items: usize,
    pairs: Vec<(i64, i64)>,
    wide: Vec<u64>,
}

impl Tables {
    /// Bytes held, close enough to stop a hostile file.
    pub(super) fn memory(&self) -> usize {
        fn of<T>(v: &Vec<T>) -> usize {
            v.capacity() * size_of::<T>()
        }
        self.strings.memory()
            + self.frame_ids.memory()
            + self.chunk_ids.memory()
            + of(&self.frames)
            + of(&self.arena)
            + of(&self.chunks)
            + of(&self.lists)
            + of(&self.many)
            + self.many_items * 2 * size_of::<u32>()
            + of(&self.dicts)
            + of(&self.entries)
            + of(&self.segments)
            + of(&self.blocks)
            + of(&self.annotations)
            + of(&self.others)
            + self.other_items * 2 * size_of::<(u32, Value)>()
            + of(&self.pairs)
            + of(&self.wide)
    }

    /// Whether every table can still be indexed.
    pub(super) fn indexable(&self) -> bool {
        let longest = [self.lists.len(), self.dicts.len(), self.strings.len(), self.entries.len(), self.wide.len()];
        longest.into_iter().max().unwrap_or(0) < Short::MAX_INDEX && self.arena.len() < NOTHING as usize / 2
    }

    pub(super) fn int(&mut self, n: i64) -> Value {
        Value::small_int(n).unwrap_or_else(|| self.keep_wide(Tag::Wide, n as u64))
    }

    /// An unsigned number of 64 bits, stored as its bits.
    pub(super) fn keep_wide(&mut self, tag: Tag, bits: u64) -> Value {
        self.wide.push(bits);
        Value::new(tag, (self.wide.len() - 1) as u32)
    }

    pub(super) fn string(&mut self, bytes: &[u8]) -> Value {
        Value::new(Tag::Str, self.strings.intern(bytes))
    }

    pub(super) fn new_list(&mut self) -> Value {
        self.lists.push(Items::Empty);
        Value::new(Tag::List, (self.lists.len() - 1) as u32)
    }

    pub(super) fn new_dict(&mut self) -> Value {
        self.dicts.push(Short::NONE);
        Value::new(Tag::Dict, (self.dicts.len() - 1) as u32)
    }

    /// A tuple: two whole numbers are a pool's id, everything else is kept as a list.
    pub(super) fn tuple(&mut self, items: &[Value]) -> Value {
        if let [a, b] = items
            && let (Some(a), Some(b)) = (self.as_int(*a), self.as_int(*b))
        {
            // Nearly every tuple is the default pool's id: one row for all of those in a row.
            if self.pairs.last() != Some(&(a, b)) {
                self.pairs.push((a, b));
            }
            return Value::new(Tag::Pair, (self.pairs.len() - 1) as u32);
        }
        let list = self.new_list();
        self.append(list.index(), items);
        list
    }

    /// The short form; a number too big for it moves to the table of wide numbers.
    #[inline]
    pub(super) fn short(&mut self, value: Value) -> Short {
        value.short().unwrap_or_else(|| self.spill(value))
    }

    #[cold]
    fn spill(&mut self, value: Value) -> Short {
        self.keep_wide(Tag::Wide, value.payload_int() as u64).short().unwrap_or(Short::NONE)
    }

    /// A value as stored in a list; a dict as its row.
    #[inline]
    pub(super) fn resolved(&mut self, value: Value) -> Short {
        if value.is(Tag::Dict) {
            // Still empty: not needed.
            return self.dicts.get(value.index()).copied().unwrap_or(Short::NONE);
        }
        self.short(value)
    }

    /// Adds items to a list.
    #[inline]
    pub(super) fn append(&mut self, list: usize, items: &[Value]) {
        let start = self.arena.len();
        // No early exit and no branch in the packing, so that the compiler vectorises it.
        let mut frames = items.iter().fold(true, |all, item| all & item.is(Tag::Frame));
        if frames {
            self.arena.extend(items.iter().map(|item| Short::new(Tag::Frame, item.index() as u32).bits()));
        } else {
            frames = true;
            self.arena.reserve(items.len());
            for &item in items {
                let short = self.resolved(item);
                frames &= short.is(Tag::Frame);
                self.arena.push(short.bits());
            }
        }
        self.add_chunk(list, start, frames);
    }

    fn add_chunk(&mut self, list: usize, start: usize, frames: bool) {
        let len = (self.arena.len() - start) as u32;
        let Some(&before) = self.lists.get(list) else { return };
        if len == 0 {
            return;
        }
        let chunk = if frames {
            self.intern_chunk(start)
        } else {
            let last = match before {
                Items::Empty => None,
                Items::One(chunk) => Some(chunk),
                Items::Many(many) => self.many[many as usize].last().copied(),
            };
            if let Some(last) = last
                && let Some(chunk) = self.chunks.get_mut(last as usize)
                && (chunk.start + chunk.len) as usize == start
                && !Short::from_bits(self.arena[start - 1]).is(Tag::Frame)
            {
                chunk.len += len;
                return;
            }
            self.chunks.push(Chunk { start: start as u32, len });
            (self.chunks.len() - 1) as u32
        };
        self.lists[list] = match before {
            Items::Empty => Items::One(chunk),
            Items::One(first) => {
                self.many.push(vec![first, chunk]);
                self.many_items += 4;
                Items::Many((self.many.len() - 1) as u32)
            }
            Items::Many(many) => {
                self.many[many as usize].push(chunk);
                self.many_items += 1;
                before
            }
        };
    }

    /// The chunk with the items from `start` on: an older one with the same, or a new one.
    fn intern_chunk(&mut self, start: usize) -> u32 {
        let Self { arena, chunks, chunk_ids, seed, .. } = self;
        let content = |chunk: Chunk| &arena[chunk.start as usize..(chunk.start + chunk.len) as usize];
        let hash = seed.words(&arena[start..]);
        if let Some(id) = chunk_ids.find(hash, |id| content(chunks[id as usize]) == &arena[start..]) {
            self.arena.truncate(start);
            return id;
        }
        let id = chunks.len() as u32;
        chunks.push(Chunk { start: start as u32, len: (arena.len() - start) as u32 });
        chunk_ids.insert(hash, id, |old| seed.words(content(chunks[old as usize])));
        id
    }

    /// Adds key and value pairs to a dict; `pairs` is key, value, key, value …
    pub(super) fn set_items(&mut self, dict: usize, pairs: &[Value]) {
        let Some(&kind) = self.dicts.get(dict) else { return };
        let row = match kind.tag() {
            Tag::None => self.make_row(pairs),
            // Items in several batches: the dict's kind may only show now. Bounded, or it would take forever.
            Tag::Other if self.others[kind.index()].len() < MAX_KEYS => {
                let old = std::mem::take(&mut self.others[kind.index()]);
                self.other_items -= old.len();
                let mut all: Vec<Value> = old.into_iter().flat_map(|(k, v)| [Value::new(Tag::Str, k), v]).collect();
                all.extend_from_slice(pairs);
                self.make_row(&all)
            }
            _ => {
                self.fill(kind, pairs);
                kind
            }
        };
        self.dicts[dict] = row;
    }

    /// Recognises a dict by its keys and makes its row.
    fn make_row(&mut self, pairs: &[Value]) -> Short {
        let mut tag = Tag::Other;
        for key in pairs.iter().step_by(2).filter(|k| k.is(Tag::Str)) {
            tag = match key.index() as u32 {
                key::ACTION => Tag::Entry,
                key::FILENAME => Tag::Frame,
                key::BLOCKS => Tag::Segment,
                key::STAGE => Tag::Annotation,
                // A segment's blocks may come after these: look on.
                key::STATE | key::REAL_SIZE => Tag::Block,
                _ => continue,
            };
            if tag != Tag::Block {
                break;
            }
        }
        match tag {
            Tag::Frame => return self.frame(pairs),
            Tag::Entry => self.entries.push(EMPTY_ENTRY),
            Tag::Segment => self.segments.push(EMPTY_SEGMENT),
            Tag::Block => self.blocks.push(EMPTY_BLOCK),
            Tag::Annotation => self.annotations.push(EMPTY_ANNOTATION),
            _ => self.others.push(Vec::new()),
        }
        let len = match tag {
            Tag::Entry => self.entries.len(),
            Tag::Segment => self.segments.len(),
            Tag::Block => self.blocks.len(),
            Tag::Annotation => self.annotations.len(),
            _ => self.others.len(),
        };
        let row = Short::new(tag, (len - 1) as u32);
        self.fill(row, pairs);
        row
    }

    /// Frames are shared by content, so that equal stacks are found in files from any writer.
    fn frame(&mut self, pairs: &[Value]) -> Short {
        let mut frame = Frame { name: StrId(key::EMPTY), file: StrId(key::EMPTY), line: 0 };
        for (key, value) in named(pairs) {
            match key {
                key::NAME if value.is(Tag::Str) => frame.name = StrId(value.index() as u32),
                key::FILENAME if value.is(Tag::Str) => frame.file = StrId(value.index() as u32),
                key::LINE => frame.line = self.as_u64(value) as u32,
                _ => {}
            }
        }
        let Self { frames, frame_ids, seed, .. } = self;
        let hash_of = |f: &Frame| seed.words(&[f.name.0, f.file.0, f.line]);
        let hash = hash_of(&frame);
        let id = frame_ids.find(hash, |id| frames[id as usize] == frame).unwrap_or_else(|| {
            let id = frames.len() as u32;
            frames.push(frame);
            frame_ids.insert(hash, id, |old| hash_of(&frames[old as usize]));
            id
        });
        Short::new(Tag::Frame, id)
    }

    fn fill(&mut self, row: Short, pairs: &[Value]) {
        match row.tag() {
            Tag::Entry => self.fill_entry(row.index(), pairs),
            Tag::Segment => self.fill_segment(row.index(), pairs),
            Tag::Block => self.fill_block(row.index(), pairs),
            Tag::Annotation => self.fill_annotation(row.index(), pairs),
            Tag::Other => {
                let kept: Vec<(u32, Value)> = named(pairs).collect();
                self.other_items += kept.len();
                self.others[row.index()].extend(kept);
            }
            _ => {}
        }
    }

    fn fill_entry(&mut self, index: usize, pairs: &[Value]) {
        let mut entry = self.entries[index];
        for (key, value) in named(pairs) {
            match key {
                key::ACTION => entry.action = action(value),
                key::ADDR | key::DEVICE_FREE => entry.addr = self.as_u64(value),
                key::SIZE => entry.size = self.as_u64(value),
                key::TIME_US => entry.time_us = self.as_u64(value),
                key::FRAMES => entry.stack = list_id(value),
                _ => {}
            }
        }
        self.entries[index] = entry;
    }

    fn fill_segment(&mut self, index: usize, pairs: &[Value]) {
        let mut segment = self.segments[index];
        for (key, value) in named(pairs) {
            match key {
                key::DEVICE => segment.device = self.as_u64(value) as u32,
                key::ADDRESS => segment.address = self.as_u64(value),
                key::TOTAL_SIZE => segment.total = self.as_u64(value),
                key::ALLOCATED_SIZE => segment.allocated = self.as_u64(value),
                key::SEGMENT_TYPE => segment.small = value == Value::new(Tag::Str, key::SMALL),
                key::SEGMENT_POOL_ID => segment.pool = self.as_pool(value),
                key::IS_EXPANDABLE => segment.expandable = value.is(Tag::Bool) && value.index() == 1,
                key::BLOCKS => segment.blocks = list_id(value),
                key::FRAMES => segment.stack = list_id(value),
                _ => {}
            }
        }
        self.segments[index] = segment;
    }

    fn fill_block(&mut self, index: usize, pairs: &[Value]) {
        let mut block = self.blocks[index];
        for (key, value) in named(pairs) {
            match key {
                key::ADDRESS | key::ADDR => block.address = self.as_u64(value),
                key::SIZE => block.size = self.as_u64(value),
                key::REQUESTED_SIZE | key::REAL_SIZE => block.requested = Some(self.as_u64(value)),
                key::STATE if value.is(Tag::Str) => {
                    block.state = match value.index() as u32 {
                        key::ACTIVE_ALLOCATED => State::Allocated,
                        key::ACTIVE_PENDING_FREE | key::ACTIVE_AWAITING_FREE => State::Pending,
                        _ => State::Inactive,
                    }
                }
                key::FRAMES => block.stack = list_id(value),
                key::HISTORY => block.history = list_id(value),
                _ => {}
            }
        }
        self.blocks[index] = block;
    }

    fn fill_annotation(&mut self, index: usize, pairs: &[Value]) {
        let mut annotation = self.annotations[index];
        for (key, value) in named(pairs) {
            match key {
                key::STAGE => annotation.start = value == Value::new(Tag::Str, key::START),
                key::NAME if value.is(Tag::Str) => annotation.name = StrId(value.index() as u32),
                key::DEVICE => annotation.device = self.as_u64(value) as u32,
                key::TIME_US => annotation.time_us = self.as_u64(value),
                _ => {}
            }
        }
        self.annotations[index] = annotation;
    }

    /// The number, or `None` for everything else.
    pub(super) fn as_int(&self, value: Value) -> Option<i64> {
        match value.tag() {
            Tag::Int => Some(value.payload_int()),
            Tag::Wide => self.wide.get(value.index()).map(|bits| *bits as i64),
            _ => None,
        }
    }

    /// The number; addresses written with a sign keep their bits, anything else is 0.
    fn as_u64(&self, value: Value) -> u64 {
        self.as_int(value).unwrap_or(0) as u64
    }

    /// A pool's id as a tuple or, from the C++ writer, maybe a list.
    fn as_pool(&self, value: Value) -> (i64, i64) {
        match value.tag() {
            Tag::Pair => self.pairs.get(value.index()).copied().unwrap_or_default(),
            Tag::List => {
                let mut items = self.items(value.index() as u32).filter_map(|item| self.as_int(item.value()));
                (items.next().unwrap_or(0), items.next().unwrap_or(0))
            }
            _ => (0, 0),
        }
    }

    /// A list's items, in order.
    pub(super) fn items(&self, list: u32) -> impl Iterator<Item = Short> + '_ {
        let items = self.lists.get(list as usize).copied().unwrap_or(Items::Empty);
        let (one, many): (Option<u32>, &[u32]) = match items {
            Items::Empty => (None, &[]),
            Items::One(chunk) => (Some(chunk), &[]),
            Items::Many(many) => (None, &self.many[many as usize]),
        };
        one.into_iter().chain(many.iter().copied()).flat_map(|chunk| self.chunk(chunk))
    }

    /// A chunk's items: a stack's frames, innermost first.
    pub(super) fn chunk(&self, chunk: u32) -> impl Iterator<Item = Short> + '_ {
        let range = self.chunks.get(chunk as usize).map(|c| c.start as usize..(c.start + c.len) as usize);
        let bits = range.and_then(|range| self.arena.get(range)).unwrap_or_default();
        bits.iter().copied().map(Short::from_bits)
    }

    /// The stack a list of frames is; [`NOTHING`] for none and for an empty one.
    pub(super) fn stack_of(&mut self, list: u32) -> u32 {
        match self.lists.get(list as usize).copied().unwrap_or(Items::Empty) {
            Items::Empty => NOTHING,
            Items::One(chunk) => chunk,
            // Written in several batches (over a thousand frames): joined once, then shared like the others.
            Items::Many(_) => {
                let frames = self.items(list).filter(|item| item.is(Tag::Frame));
                let joined: Vec<u32> = frames.map(Short::bits).collect();
                let start = self.arena.len();
                self.arena.extend_from_slice(&joined);
                let chunk = if joined.is_empty() { NOTHING } else { self.intern_chunk(start) };
                self.lists[list as usize] = if chunk == NOTHING { Items::Empty } else { Items::One(chunk) };
                chunk
            }
        }
    }

    /// How many chunks, and so stacks, there are.
    pub(super) fn stack_count(&self) -> usize {
        self.chunks.len()
    }

    /// The kind of a dict.
    pub(super) fn dict(&self, value: Value) -> Short {
        match value.tag() {
            Tag::Dict => self.dicts.get(value.index()).copied().unwrap_or(Short::NONE),
            _ => Short::NONE,
        }
    }

    /// The value under `key` in a dict of no known kind.
    pub(super) fn lookup(&self, dict: Short, key: u32) -> Option<Value> {
        self.other(dict).iter().rev().find(|(k, _)| *k == key).map(|(_, v)| *v)
    }

    /// All pairs of a dict of no known kind.
    pub(super) fn other(&self, dict: Short) -> &[(u32, Value)] {
        if dict.is(Tag::Other) { self.others.get(dict.index()).map_or(&[], Vec::as_slice) } else { &[] }
    }

    /// Frees what only reading needed.
    pub(super) fn finish_reading(&mut self) {
        self.dicts = Vec::new();
        self.lists = Vec::new();
        self.many = Vec::new();
        self.frame_ids = Ids::default();
        self.chunk_ids = Ids::default();
    }
}

/// The pairs whose key is a string.
fn named(pairs: &[Value]) -> impl Iterator<Item = (u32, Value)> + '_ {
    let (pairs, _) = pairs.as_chunks::<2>();
    pairs.iter().filter(|[key, _]| key.is(Tag::Str)).map(|[key, value]| (key.index() as u32, *value))
}

fn list_id(value: Value) -> u32 {
    if value.is(Tag::List) { value.index() as u32 } else { NOTHING }
}
