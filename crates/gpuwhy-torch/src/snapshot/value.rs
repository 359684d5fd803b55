// SPDX-License-Identifier: Apache-2.0
//! Pickle values packed into one word: 8 bytes on the stack, 4 bytes in lists and in the memo.
//!
//! The upper four bits are its tag; the rest is the number itself or an index into a table.

/// What a packed value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Tag {
    /// Python's None, and a dict or list that is still empty.
    None = 0,
    Bool,
    /// A number that fits in the payload.
    Int,
    /// An index into the table of wide numbers.
    Wide,
    /// An index into the table of wide numbers, which holds its bits.
    Float,
    Str,
    /// Bytes are accepted and dropped: nothing in a snapshot needs them.
    Bytes,
    List,
    /// A dict; its kind is in the table of dicts.
    Dict,
    /// A tuple of two whole numbers: a memory pool's id.
    Pair,
    Frame,
    Entry,
    Segment,
    Block,
    Annotation,
    /// A dict of no known kind; its pairs are kept.
    Other,
}

const TAGS: [Tag; 16] = [
    Tag::None,
    Tag::Bool,
    Tag::Int,
    Tag::Wide,
    Tag::Float,
    Tag::Str,
    Tag::Bytes,
    Tag::List,
    Tag::Dict,
    Tag::Pair,
    Tag::Frame,
    Tag::Entry,
    Tag::Segment,
    Tag::Block,
    Tag::Annotation,
    Tag::Other,
];

const VALUE_BITS: u32 = 60;
const SHORT_BITS: u32 = 28;
const VALUE_MASK: u64 = (1 << VALUE_BITS) - 1;
const SHORT_MASK: u32 = (1 << SHORT_BITS) - 1;

/// A value on the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Value(u64);

impl Value {
    pub(super) const NONE: Self = Self(0);

    #[inline]
    pub(super) fn new(tag: Tag, payload: u32) -> Self {
        Self(((tag as u64) << VALUE_BITS) | u64::from(payload))
    }

    /// The number in place, where it fits (60 bits with sign).
    #[inline]
    pub(super) fn small_int(n: i64) -> Option<Self> {
        let packed = (n as u64) & VALUE_MASK;
        let back = ((packed << 4) as i64) >> 4;
        (back == n).then_some(Self(((Tag::Int as u64) << VALUE_BITS) | packed))
    }

    #[inline]
    pub(super) fn tag(self) -> Tag {
        TAGS[(self.0 >> VALUE_BITS) as usize]
    }

    /// The index of a table row.
    #[inline]
    pub(super) fn index(self) -> usize {
        self.0 as u32 as usize
    }

    /// The number of an [`Tag::Int`].
    #[inline]
    pub(super) fn payload_int(self) -> i64 {
        ((self.0 << 4) as i64) >> 4
    }

    #[inline]
    pub(super) fn is(self, tag: Tag) -> bool {
        (self.0 >> VALUE_BITS) as u8 == tag as u8
    }

    /// The short form, where the payload fits 28 bits.
    #[inline]
    pub(super) fn short(self) -> Option<Short> {
        let payload = self.0 & VALUE_MASK;
        let tag = ((self.0 >> VALUE_BITS) as u32) << SHORT_BITS;
        (payload <= u64::from(SHORT_MASK)).then_some(Short(tag | payload as u32))
    }
}

/// A value in a list or in the memo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Short(u32);

impl Short {
    pub(super) const NONE: Self = Self(0);
    /// The most rows a table may have whose rows lists refer to.
    pub(super) const MAX_INDEX: usize = SHORT_MASK as usize;

    #[inline]
    pub(super) fn new(tag: Tag, index: u32) -> Self {
        Self(((tag as u32) << SHORT_BITS) | (index & SHORT_MASK))
    }

    #[inline]
    pub(super) fn tag(self) -> Tag {
        TAGS[(self.0 >> SHORT_BITS) as usize]
    }

    #[inline]
    pub(super) fn is(self, tag: Tag) -> bool {
        (self.0 >> SHORT_BITS) as u8 == tag as u8
    }

    #[inline]
    pub(super) fn index(self) -> usize {
        (self.0 & SHORT_MASK) as usize
    }

    #[inline]
    pub(super) fn value(self) -> Value {
        Value((u64::from(self.0 >> SHORT_BITS) << VALUE_BITS) | u64::from(self.0 & SHORT_MASK))
    }

    #[inline]
    pub(super) fn bits(self) -> u32 {
        self.0
    }

    #[inline]
    pub(super) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_the_packing_or_are_turned_away() {
        for n in [0, 1, -1, (1 << 59) - 1, -(1 << 59)] {
            assert_eq!(Value::small_int(n).map(Value::payload_int), Some(n));
        }
        assert_eq!(Value::small_int(1 << 59), None);
        assert_eq!(Value::small_int(i64::MIN), None);
    }

    #[test]
    fn short_and_long_form_agree() {
        let value = Value::new(Tag::Entry, 77);
        let short = value.short().unwrap();
        assert_eq!((short.tag(), short.index(), short.value()), (Tag::Entry, 77, value));
        assert_eq!(Value::small_int(1 << 28).unwrap().short(), None);
    }
}
