// SPDX-License-Identifier: Apache-2.0
//! Stores each name once: a trace with a million events has a few thousand names.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map with integers as keys, hashed cheaply: row numbers and name ids, nothing a file could choose freely.
pub(super) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;

/// Mixes integers by folded multiplication.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    fn write_i32(&mut self, n: i32) {
        self.write_u64(u64::from(n as u32));
    }

    fn write_isize(&mut self, n: isize) {
        self.write_u64(n as u64);
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = fold(self.0 ^ n ^ 0x517c_c1b7_2722_0a95, KEY);
    }
}

const KEY: u64 = 0x9e37_79b9_7f4a_7c15;

/// The exclusive or of both halves of the product.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// The id of a name in the [`Names`] or [`Interner`] that made it.
pub(super) type NameId = u32;

/// Longest name kept; C++ template names reach a few thousand bytes, longer text is an attack or an accident.
const MAX_NAME: usize = 8 << 10;
/// Most bytes of names kept by one interner; further names all become [`OVERFLOW`].
const MAX_BYTES: usize = 256 << 20;
/// Replaces names beyond the limit.
const OVERFLOW: &[u8] = b"(too many names)";

/// Raw names (as written in the file, escapes and all) to ids, in order of appearance.
#[derive(Debug, Default)]
pub(super) struct Interner {
    bytes: Vec<u8>,
    /// Where each name ends in `bytes`, and its hash.
    entries: Vec<(usize, u64)>,
    /// Open addressing: entry index + 1, 0 for free; a power of two long.
    slots: Vec<u32>,
}

impl Interner {
    /// The id of `name`.
    #[inline]
    pub(super) fn id(&mut self, name: &[u8]) -> NameId {
        let mut name = name.get(..MAX_NAME).unwrap_or(name);
        if self.bytes.len() + name.len() > MAX_BYTES && self.find(name).is_none() {
            name = OVERFLOW;
        }
        if self.entries.len() * 2 >= self.slots.len() {
            self.grow();
        }
        let hash = hash(name);
        match self.probe(name, hash) {
            Ok(id) => id,
            Err(slot) => {
                self.bytes.extend_from_slice(name);
                self.entries.push((self.bytes.len(), hash));
                // MAX_BYTES keeps the count of distinct names far below 2³².
                self.slots[slot] = self.entries.len() as u32;
                self.entries.len() as u32 - 1
            }
        }
    }

    fn find(&self, name: &[u8]) -> Option<NameId> {
        if self.slots.is_empty() { None } else { self.probe(name, hash(name)).ok() }
    }

    /// The name's id, or the slot where it belongs. The table is never full.
    #[inline]
    fn probe(&self, name: &[u8], hash: u64) -> Result<NameId, usize> {
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            match self.slots[slot] {
                0 => return Err(slot),
                entry => {
                    let id = entry - 1;
                    if self.entries[id as usize].1 == hash && self.name(id) == name {
                        return Ok(id);
                    }
                }
            }
            slot = (slot + 1) & mask;
        }
    }

    fn grow(&mut self) {
        let size = (self.slots.len() * 2).max(1024);
        self.slots = vec![0; size];
        for (index, (_, hash)) in self.entries.iter().enumerate() {
            let mut slot = *hash as usize & (size - 1);
            while self.slots[slot] != 0 {
                slot = (slot + 1) & (size - 1);
            }
            self.slots[slot] = index as u32 + 1;
        }
    }

    /// The bytes of a name.
    pub(super) fn name(&self, id: NameId) -> &[u8] {
        let start = if id == 0 { 0 } else { self.entries[id as usize - 1].0 };
        &self.bytes[start..self.entries[id as usize].0]
    }

    /// The number of names.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Ids of `other`'s names in this one, by their id there.
    pub(super) fn absorb(&mut self, other: &Self) -> Vec<NameId> {
        (0..other.len()).map(|id| self.id(other.name(id as NameId))).collect()
    }
}

/// Mixes eight bytes at a time by folded multiplication. Ids never leave the process, so it need not be stable; a
/// hostile file could force collisions, which costs it at most a slow read of its own trace.
#[inline]
fn hash(name: &[u8]) -> u64 {
    let mut state = KEY ^ name.len() as u64;
    let mut words = name.chunks_exact(8);
    for word in &mut words {
        let word = word.try_into().map(u64::from_le_bytes).unwrap_or(0);
        state = fold(state ^ word, KEY);
    }
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    fold(state ^ u64::from_le_bytes(last), KEY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_id() {
        let mut names = Interner::default();
        let ids: Vec<_> = (0..5000).map(|i| names.id(format!("name {i}").as_bytes())).collect();
        assert_eq!(ids, (0..5000).collect::<Vec<_>>());
        assert_eq!(names.id(b"name 4321"), 4321);
        assert_eq!(names.name(17), b"name 17");
        assert_eq!(names.id(b""), 5000);
    }

    #[test]
    fn joining_maps_ids() {
        let (mut a, mut b) = (Interner::default(), Interner::default());
        a.id(b"x");
        b.id(b"y");
        b.id(b"x");
        assert_eq!(a.absorb(&b), [1, 0]);
    }

    #[test]
    fn endless_names_are_cut() {
        let mut names = Interner::default();
        let id = names.id(&vec![b'a'; MAX_NAME * 2]);
        assert_eq!(names.name(id).len(), MAX_NAME);
    }
}
