// SPDX-License-Identifier: Apache-2.0
//! Reading ELF files that belong to processes we do not trust.

use object::{ReadCache, ReadRef};
use std::cell::Cell;
use std::fs::File;
use std::ops::Range;

/// Maximum length of a name in a symbol table; no name that gpuwhy searches for is longer.
const LONGEST_NAME: u64 = 4 << 10;
/// Memory overhead of a stored name, in addition to its bytes.
const NAME_KEPT: u64 = 64;

/// A file of which only so much is read: sizes in it are its maker's claims, and reading takes memory.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)] // a borrowed cache has nothing to show
pub struct Bounded<'data> {
    cache: &'data ReadCache<&'data File>,
    left: &'data Cell<u64>,
}

impl<'data> Bounded<'data> {
    /// `left` is how many bytes may still be read.
    pub fn new(cache: &'data ReadCache<&'data File>, left: &'data Cell<u64>) -> Self {
        Self { cache, left }
    }
}

impl<'data> ReadRef<'data> for Bounded<'data> {
    fn len(self) -> Result<u64, ()> {
        self.cache.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'data [u8], ()> {
        self.left.set(self.left.get().checked_sub(size).ok_or(())?);
        self.cache.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'data [u8], ()> {
        // A table may have millions of names that do not end: each is looked through no further than a name reaches,
        // and what was looked through in vain counts as read.
        let left = self.left.get().checked_sub(NAME_KEPT).ok_or(())?;
        let end = range.end.min(range.start.saturating_add(LONGEST_NAME.min(left)));
        let found = self.cache.read_bytes_at_until(range.start..end, delimiter);
        let looked_at = found.map_or(end.saturating_sub(range.start), |bytes| bytes.len() as u64);
        self.left.set(left.saturating_sub(looked_at));
        found
    }
}
