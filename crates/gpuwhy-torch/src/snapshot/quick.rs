// SPDX-License-Identifier: Apache-2.0
//! The pickle machine's frequent steps, straight from a buffer that holds them whole.
//!
//! They report no errors: the machine repeats, step by step, anything that they reject.

use super::tables::Tables;
use super::value::{Short, Tag, Value};

/// They look this far ahead: the longest opcode with its number.
pub(super) const WINDOW: usize = 16;

/// A run of GETs, such as a list of frames. Returns the bytes taken; ends at an index that was never stored.
#[inline]
pub(super) fn recall_run(bytes: &[u8], memo: &mut [Short], tables: &mut Tables, stack: &mut Vec<Value>) -> usize {
    let mut at = 0;
    loop {
        let (index, len) = match bytes.get(at..) {
            Some([b'j', a, b, c, d, ..]) => (u32::from_le_bytes([*a, *b, *c, *d]), 5),
            Some([b'h', index, ..]) => (u32::from(*index), 2),
            _ => return at,
        };
        let Some(value) = recall(memo, tables, index) else { return at };
        stack.push(value);
        at += len;
    }
}

/// The memo's entry.
#[inline]
fn recall(memo: &mut [Short], tables: &mut Tables, index: u32) -> Option<Value> {
    let place = memo.get_mut(index as usize)?;
    if place.is(Tag::Dict) {
        // A dict that is fetched again is a frame: from now on the memo holds the frame itself.
        let row = tables.resolved(place.value());
        if row.is(Tag::Frame) {
            *place = row;
        }
    }
    Some(place.value())
}

/// Adds the values above the MARK to the list or dict below it; `false` if that is not possible.
#[inline]
pub(super) fn close(tables: &mut Tables, stack: &mut Vec<Value>, mark: usize, list: bool) -> bool {
    let Some(items) = stack.get(mark..) else { return false };
    match mark.checked_sub(1).map(|below| stack[below]) {
        Some(below) if list && below.is(Tag::List) => tables.append(below.index(), items),
        Some(below) if !list && below.is(Tag::Dict) && items.len().is_multiple_of(2) => {
            tables.set_items(below.index(), items);
        }
        _ => return false,
    }
    stack.truncate(mark);
    true
}

/// Numbers, short strings and empty containers: the value and how many bytes it took.
#[inline]
pub(super) fn quick_value(next: &[u8; WINDOW], rest: &[u8], tables: &mut Tables) -> Option<(Value, usize)> {
    Some(match next {
        [b'K', n, ..] => (tables.int(i64::from(*n)), 2),
        [b'M', a, b, ..] => (tables.int(i64::from(u16::from_le_bytes([*a, *b]))), 3),
        [b'J', a, b, c, d, ..] => (tables.int(i64::from(i32::from_le_bytes([*a, *b, *c, *d]))), 5),
        [b'\x8a', n @ 1..=8, a, b, c, d, e, f, g, h, ..] => {
            // Shifting up and down again extends the sign.
            let unused = 64 - 8 * u32::from(*n);
            let number = u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]) << unused;
            (tables.int((number as i64) >> unused), 2 + usize::from(*n))
        }
        [b'\x8c', n, ..] => {
            let n = usize::from(*n);
            (tables.string(rest.get(2..2 + n)?), 2 + n)
        }
        [b'}', ..] => (tables.new_dict(), 1),
        [b']', ..] => (tables.new_list(), 1),
        [b'N', ..] => (Value::NONE, 1),
        [b'\x88', ..] => (Value::new(Tag::Bool, 1), 1),
        [b'\x89', ..] => (Value::new(Tag::Bool, 0), 1),
        _ => return None,
    })
}
