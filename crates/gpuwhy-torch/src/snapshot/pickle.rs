// SPDX-License-Identifier: Apache-2.0
//! A pickle machine for data only: protocols 2 to 5, plain containers, strings, numbers and the memo.
//!
//! Opcodes that import, call or build objects are refused by name; there is no code here that could execute
//! them. The machine has no recursion: nesting lives on its own stack, whose size is bounded like the
//! tables'. Values go straight into [`Tables`]; no tree of objects is ever built.

use super::error::Error;
use super::input::Input;
use super::quick::{WINDOW, close, quick_value, recall_run};
use super::strings::key;
use super::tables::Tables;
use super::value::{Short, Tag, Value};

/// Highest protocol known.
const MAX_PROTOCOL: u8 = 5;
/// Bytes read between checks of the memory used.
const CHECK_EVERY: u64 = 64 << 10;

/// The result of reading.
pub(super) struct Read {
    pub(super) tables: Tables,
    /// The outermost object.
    pub(super) top: Value,
    /// Bytes read.
    pub(super) bytes: u64,
    /// Why reading stopped early, if it did; containers open at that point were closed.
    pub(super) cut: Option<Error>,
    /// Whether reading stopped before the end of the traces.
    pub(super) trace_cut: bool,
}

/// Reads one pickle. `limit` bounds the memory held, in bytes.
pub(super) fn read(input: Input<'_>, limit: u64) -> Result<Read, Error> {
    let mut machine = Machine {
        input,
        tables: Tables::default(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        limit,
        next_check: 0,
    };
    match machine.run() {
        Ok(top) => Ok(Read { top, bytes: machine.input.offset(), tables: machine.tables, cut: None, trace_cut: false }),
        Err(error) if error.leaves_something() => {
            let trace_cut = machine.before_end_of_traces();
            let top = machine.close_all();
            Ok(Read { top, bytes: machine.input.offset(), tables: machine.tables, cut: Some(error), trace_cut })
        }
        Err(error) => Err(error),
    }
}

struct Machine<'a> {
    input: Input<'a>,
    tables: Tables,
    stack: Vec<Value>,
    /// Stack heights at the open MARKs.
    marks: Vec<usize>,
    memo: Vec<Short>,
    limit: u64,
    next_check: u64,
}

impl Machine<'_> {
    /// Runs fast over buffered bytes, and in single steps where an opcode is rare, wrong or crosses the buffer's end.
    fn run(&mut self) -> Result<Value, Error> {
        loop {
            self.burst();
            if self.input.offset() >= self.next_check {
                self.check_memory()?;
            }
            let op = self.input.byte()?;
            match op {
                b'j' => {
                    let index = u32::from_le_bytes(self.input.fixed()?);
                    self.get(u64::from(index))?;
                }
                b'h' => {
                    let index = self.input.byte()?;
                    self.get(u64::from(index))?;
                }
                b'\x94' => self.put(self.memo.len() as u64)?,
                b'(' => self.marks.push(self.stack.len()),
                b'}' => {
                    let dict = self.tables.new_dict();
                    self.push(dict);
                }
                b']' => {
                    let list = self.tables.new_list();
                    self.push(list);
                }
                b'e' => self.appends()?,
                b'u' => self.set_items()?,
                b'a' => self.append()?,
                b's' => self.set_item()?,
                b'.' => {
                    return match self.stack.last() {
                        Some(top) => Ok(*top),
                        None => Err(self.damaged("the pickle ends with nothing on its stack")),
                    };
                }
                _ => self.scalar(op)?,
            }
        }
    }

    /// The frequent opcodes, straight from the buffer. Stops before anything unknown or wrong: the
    /// single step that follows handles it or reports the error.
    fn burst(&mut self) {
        let Self { input, tables, stack, marks, memo, .. } = self;
        let bytes = input.ahead();
        let mut at = 0;
        while let Some(next) = bytes.get(at..).and_then(|rest| rest.first_chunk::<WINDOW>()) {
            at += match next {
                [b'j' | b'h', ..] => match recall_run(&bytes[at..], memo, tables, stack) {
                    0 => break,
                    taken => taken,
                },
                [b'\x94', ..] => {
                    let Some(top) = stack.last() else { break };
                    memo.push(tables.short(*top));
                    1
                }
                [b'(', ..] => {
                    marks.push(stack.len());
                    1
                }
                [b'e' | b'u', ..] => {
                    let Some(&mark) = marks.last() else { break };
                    if !close(tables, stack, mark, next[0] == b'e') {
                        break;
                    }
                    marks.pop();
                    1
                }
                _ => {
                    let Some((value, len)) = quick_value(next, &bytes[at..], tables) else { break };
                    stack.push(value);
                    len
                }
            };
        }
        input.skip_buffered(at);
    }

    /// Numbers, strings and everything else that a snapshot may hold.
    #[inline]
    fn scalar(&mut self, op: u8) -> Result<(), Error> {
        let value = match op {
            b'\x8a' => {
                let n = self.input.byte()?;
                self.long(u32::from(n))?
            }
            b'\x8c' => {
                let n = self.input.byte()?;
                self.string(u64::from(n))?
            }
            b'K' => {
                let n = self.input.byte()?;
                self.tables.int(i64::from(n))
            }
            b'M' => {
                let n = u16::from_le_bytes(self.input.fixed()?);
                self.tables.int(i64::from(n))
            }
            b'J' => {
                let n = i32::from_le_bytes(self.input.fixed()?);
                self.tables.int(i64::from(n))
            }
            b'X' => {
                let n = u32::from_le_bytes(self.input.fixed()?);
                self.string(u64::from(n))?
            }
            b'N' => Value::NONE,
            b'\x88' => Value::new(Tag::Bool, 1),
            b'\x89' => Value::new(Tag::Bool, 0),
            b'G' => {
                let bits = u64::from_be_bytes(self.input.fixed()?);
                self.tables.keep_wide(Tag::Float, bits)
            }
            _ => return self.rare(op),
        };
        self.push(value);
        Ok(())
    }

    fn rare(&mut self, op: u8) -> Result<(), Error> {
        match op {
            b'\x80' => self.protocol(),
            b'\x95' => self.input.fixed::<8>().map(|_| ()),
            b'q' => {
                let index = self.input.byte()?;
                self.put(u64::from(index))
            }
            b'r' => {
                let index = u32::from_le_bytes(self.input.fixed()?);
                self.put(u64::from(index))
            }
            b'p' => {
                let index = self.input.line_number()?;
                self.put(index)
            }
            b'g' => {
                let index = self.input.line_number()?;
                self.get(index)
            }
            b')' => self.tuple_of(0),
            b'\x85' => self.tuple_of(1),
            b'\x86' => self.tuple_of(2),
            b'\x87' => self.tuple_of(3),
            b't' | b'l' => {
                let at = self.pop_mark()?;
                self.fold(at, op == b't')
            }
            b'd' => {
                let at = self.pop_mark()?;
                let dict = self.tables.new_dict();
                self.set_from(dict, at)?;
                self.push(dict);
                Ok(())
            }
            b'0' => match self.stack.pop() {
                Some(_) => Ok(()),
                None => self.pop_mark().map(|_| ()),
            },
            b'1' => {
                let at = self.pop_mark()?;
                self.stack.truncate(at);
                Ok(())
            }
            b'2' => {
                let top = self.top()?;
                self.push(top);
                Ok(())
            }
            _ => self.long_forms(op),
        }
    }

    /// Strings and bytes with other length fields, and long numbers.
    fn long_forms(&mut self, op: u8) -> Result<(), Error> {
        let value = match op {
            b'\x8d' => {
                let n = u64::from_le_bytes(self.input.fixed()?);
                self.string(n)?
            }
            b'U' => {
                let n = self.input.byte()?;
                self.string(u64::from(n))?
            }
            b'T' => {
                let n = u32::from_le_bytes(self.input.fixed()?);
                self.string(u64::from(n))?
            }
            b'C' => {
                let n = self.input.byte()?;
                self.bytes(u64::from(n))?
            }
            b'B' => {
                let n = u32::from_le_bytes(self.input.fixed()?);
                self.bytes(u64::from(n))?
            }
            b'\x8e' => {
                let n = u64::from_le_bytes(self.input.fixed()?);
                self.bytes(n)?
            }
            b'\x8b' => {
                let n = u32::from_le_bytes(self.input.fixed()?);
                self.long(n)?
            }
            _ => return Err(self.refusal(op)),
        };
        self.push(value);
        Ok(())
    }

    fn protocol(&mut self) -> Result<(), Error> {
        let protocol = self.input.byte()?;
        if protocol > MAX_PROTOCOL {
            return Err(
                self.damaged(&format!("unknown pickle protocol {protocol} (the newest known is {MAX_PROTOCOL})"))
            );
        }
        Ok(())
    }

    fn get(&mut self, index: u64) -> Result<(), Error> {
        match usize::try_from(index).ok().and_then(|i| self.memo.get(i)) {
            Some(short) => {
                let value = short.value();
                self.push(value);
                Ok(())
            }
            None => Err(self.damaged(&format!("memo entry {index} is used before it is stored"))),
        }
    }

    #[inline]
    fn put(&mut self, index: u64) -> Result<(), Error> {
        let top = self.top()?;
        // Every entry costs at least two bytes, so a larger index is an attempt to fill memory.
        let offset = self.input.offset();
        if index > offset / 2 + 256 {
            return Err(
                self.damaged(&format!("invalid memo index {index}: {offset} bytes cannot hold so many entries"))
            );
        }
        let short = self.tables.short(top);
        let index = index as usize;
        if index < self.memo.len() {
            self.memo[index] = short;
        } else {
            self.memo.resize(index, Short::NONE);
            self.memo.push(short);
        }
        Ok(())
    }

    #[inline]
    fn push(&mut self, value: Value) {
        self.stack.push(value);
    }

    fn top(&self) -> Result<Value, Error> {
        match self.stack.last() {
            Some(top) => Ok(*top),
            None => Err(self.damaged("an opcode needs a value, but the stack is empty")),
        }
    }

    #[cold]
    fn check_memory(&mut self) -> Result<(), Error> {
        let offset = self.input.offset();
        self.next_check = offset + CHECK_EVERY;
        let used = self.tables.memory()
            + self.stack.capacity() * size_of::<Value>()
            + self.marks.capacity() * size_of::<usize>()
            + self.memo.capacity() * size_of::<Short>();
        if used as u64 > self.limit || !self.tables.indexable() {
            return Err(Error::TooLarge { offset, limit: self.limit });
        }
        Ok(())
    }

    /// Where the items above the last MARK start.
    #[inline]
    fn pop_mark(&mut self) -> Result<usize, Error> {
        match self.marks.pop() {
            Some(at) if at <= self.stack.len() => Ok(at),
            Some(_) => Err(self.damaged("a value below an open MARK was removed")),
            None => Err(self.damaged("items end without a start (no MARK)")),
        }
    }

    #[inline]
    fn appends(&mut self) -> Result<(), Error> {
        let at = self.pop_mark()?;
        match at.checked_sub(1).map(|below| self.stack[below]) {
            Some(list) if list.is(Tag::List) => self.tables.append(list.index(), &self.stack[at..]),
            _ => return Err(self.damaged("items are added to a value that is not a list")),
        }
        self.stack.truncate(at);
        Ok(())
    }

    #[inline]
    fn append(&mut self) -> Result<(), Error> {
        let n = self.stack.len();
        match n.checked_sub(2).map(|below| self.stack[below]) {
            Some(list) if list.is(Tag::List) => self.tables.append(list.index(), &self.stack[n - 1..]),
            _ => return Err(self.damaged("an item is added to a value that is not a list")),
        }
        self.stack.truncate(n - 1);
        Ok(())
    }

    #[inline]
    fn set_items(&mut self) -> Result<(), Error> {
        let at = self.pop_mark()?;
        match at.checked_sub(1).map(|below| self.stack[below]) {
            Some(dict) if dict.is(Tag::Dict) => self.set_from(dict, at),
            _ => Err(self.damaged("pairs are added to a value that is not a dict")),
        }
    }

    fn set_item(&mut self) -> Result<(), Error> {
        let n = self.stack.len();
        match n.checked_sub(3).map(|below| self.stack[below]) {
            Some(dict) if dict.is(Tag::Dict) => self.set_from(dict, n - 2),
            _ => Err(self.damaged("a pair is added to a value that is not a dict")),
        }
    }

    #[inline]
    fn set_from(&mut self, dict: Value, at: usize) -> Result<(), Error> {
        if !(self.stack.len() - at).is_multiple_of(2) {
            return Err(self.damaged("a dict's key has no value"));
        }
        self.tables.set_items(dict.index(), &self.stack[at..]);
        self.stack.truncate(at);
        Ok(())
    }

    fn tuple_of(&mut self, n: usize) -> Result<(), Error> {
        match self.stack.len().checked_sub(n) {
            Some(at) => self.fold(at, true),
            None => Err(self.damaged("a tuple has more items than the stack")),
        }
    }

    /// Replaces the items from `at` on by a tuple or list of them.
    fn fold(&mut self, at: usize, tuple: bool) -> Result<(), Error> {
        let folded = if tuple {
            self.tables.tuple(&self.stack[at..])
        } else {
            let list = self.tables.new_list();
            self.tables.append(list.index(), &self.stack[at..]);
            list
        };
        self.stack.truncate(at);
        self.push(folded);
        Ok(())
    }

    fn string(&mut self, n: u64) -> Result<Value, Error> {
        let Self { input, tables, .. } = self;
        input.bytes(n, |bytes| tables.string(bytes))
    }

    fn bytes(&mut self, n: u64) -> Result<Value, Error> {
        self.input.skip(n)?;
        Ok(Value::new(Tag::Bytes, 0))
    }

    /// A number of `n` bytes, least significant first, with sign. 64 bits without sign take nine bytes.
    #[inline]
    fn long(&mut self, n: u32) -> Result<Value, Error> {
        let mut bytes = [0u8; 16];
        if n > 9 {
            return Err(self.damaged(&format!("a number of {n} bytes; a snapshot's numbers have at most nine")));
        }
        let n = n as usize;
        self.input.bytes(n as u64, |given| bytes[..n].copy_from_slice(given))?;
        if n > 0 && bytes[n - 1] & 0x80 != 0 {
            bytes[n..].fill(0xff);
        }
        let number = i128::from_le_bytes(bytes);
        if let Ok(number) = i64::try_from(number) {
            return Ok(self.tables.int(number));
        }
        match u64::try_from(number) {
            Ok(bits) => Ok(self.tables.keep_wide(Tag::Wide, bits)),
            Err(_) => Err(self.damaged("a number of more than 64 bits")),
        }
    }

    fn damaged(&self, what: &str) -> Error {
        Error::Damaged { offset: self.input.offset().saturating_sub(1), what: what.into() }
    }

    fn refusal(&self, op: u8) -> Error {
        let offset = self.input.offset().saturating_sub(1);
        if let Some(opcode) = refused_name(op) {
            Error::Refused { opcode, offset }
        } else if let Some(opcode) = unexpected_name(op) {
            Error::Unexpected { opcode, offset }
        } else {
            Error::Damaged { offset, what: format!("byte 0x{op:02x} is not a pickle opcode") }
        }
    }

    /// Whether the open containers show that (more of) the traces should follow.
    fn before_end_of_traces(&self) -> bool {
        let Some(&top) = self.stack.first() else { return true };
        if !top.is(Tag::Dict) {
            // A bare list of segments: there are no traces.
            return false;
        }
        // Keys and values of the open top dict, up to the first open container in it.
        let from = self.marks.first().map_or(1, |mark| (*mark).min(self.stack.len()));
        let to = self.marks.get(1).map_or(self.stack.len(), |mark| (*mark).min(self.stack.len()));
        let open = self.stack.get(from..to).unwrap_or_default();
        let traces = Value::new(Tag::Str, key::DEVICE_TRACES);
        match open.iter().step_by(2).position(|name| *name == traces) {
            None => self.tables.lookup(self.tables.dict(top), key::DEVICE_TRACES).is_none(),
            Some(pair) => match open.get(pair * 2 + 1..) {
                // Complete if another key follows, or if the list has been filled and nothing is open.
                Some([_, next, ..]) => !next.is(Tag::Str),
                Some([list]) => {
                    self.marks.len() > 1
                        || !list.is(Tag::List)
                        || self.tables.items(list.index() as u32).next().is_none()
                }
                _ => true,
            },
        }
    }

    /// After a file was cut off: closes open containers, innermost first, so that their contents are reachable.
    fn close_all(&mut self) -> Value {
        while let Some(at) = self.marks.pop() {
            let at = at.min(self.stack.len());
            let items = self.stack.split_off(at);
            match self.stack.last().copied() {
                Some(list) if list.is(Tag::List) => self.tables.append(list.index(), &items),
                Some(dict) if dict.is(Tag::Dict) => {
                    let pairs = self.close_pairs(&items);
                    self.tables.set_items(dict.index(), &pairs);
                }
                _ => {}
            }
        }
        // Left below the outermost MARK: the top object, and possibly its only item.
        let rest = std::mem::take(&mut self.stack);
        match rest.split_first() {
            Some((&list, items)) if list.is(Tag::List) => {
                self.tables.append(list.index(), items);
                list
            }
            Some((&dict, items)) if dict.is(Tag::Dict) => {
                let pairs = self.close_pairs(items);
                self.tables.set_items(dict.index(), &pairs);
                dict
            }
            _ => Value::NONE,
        }
    }

    /// Pairs of an open dict. A value that is not preceded by a key is the only item, not yet added, of the
    /// list before it.
    fn close_pairs(&mut self, items: &[Value]) -> Vec<Value> {
        let mut pairs: Vec<Value> = Vec::with_capacity(items.len());
        for &item in items {
            if pairs.len().is_multiple_of(2)
                && !item.is(Tag::Str)
                && let Some(list) = pairs.last().copied()
                && list.is(Tag::List)
            {
                self.tables.append(list.index(), &[item]);
            } else {
                pairs.push(item);
            }
        }
        pairs.truncate(pairs.len() / 2 * 2);
        pairs
    }
}

/// Names of the opcodes that import, call, build, or fetch from outside the file.
fn refused_name(op: u8) -> Option<&'static str> {
    Some(match op {
        b'c' => "GLOBAL",
        b'\x93' => "STACK_GLOBAL",
        b'R' => "REDUCE",
        b'b' => "BUILD",
        b'i' => "INST",
        b'o' => "OBJ",
        b'\x81' => "NEWOBJ",
        b'\x92' => "NEWOBJ_EX",
        b'\x82' => "EXT1",
        b'\x83' => "EXT2",
        b'\x84' => "EXT4",
        b'P' => "PERSID",
        b'Q' => "BINPERSID",
        b'\x97' => "NEXT_BUFFER",
        b'\x98' => "READONLY_BUFFER",
        _ => return None,
    })
}

/// Names of the opcodes for plain data that no snapshot has.
fn unexpected_name(op: u8) -> Option<&'static str> {
    Some(match op {
        b'\x96' => "BYTEARRAY8",
        b'\x8f' => "EMPTY_SET",
        b'\x90' => "ADDITEMS",
        b'\x91' => "FROZENSET",
        // Text forms of protocol 0: no version of PyTorch writes them.
        b'I' => "INT",
        b'L' => "LONG",
        b'F' => "FLOAT",
        b'S' => "STRING",
        b'V' => "UNICODE",
        _ => return None,
    })
}
