// SPDX-License-Identifier: Apache-2.0
//! A fast hash for small keys, seeded anew in every process so that a file cannot aim for collisions.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Folds one word into the state: the two halves of a 128-bit product.
#[inline]
fn fold(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ word) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
    (product as u64) ^ ((product >> 64) as u64)
}

/// The seed of this process; makes hashers and hashes slices.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seed(u64);

impl Default for Seed {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0x67_70_75_77_u32) | 1)
    }
}

impl Seed {
    pub(super) fn bytes(self, bytes: &[u8]) -> u64 {
        let mut state = fold(self.0, bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            state = fold(state, u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        fold(state, u64::from_le_bytes(last))
    }

    /// Two lanes of two words each: the products do not wait for one another.
    pub(super) fn words(self, words: &[u32]) -> u64 {
        let pair = |a: u32, b: u32| u64::from(a) | (u64::from(b) << 32);
        let (fours, rest) = words.as_chunks::<4>();
        let (mut left, mut right) = (fold(self.0, words.len() as u64), self.0.rotate_left(32));
        for [a, b, c, d] in fours {
            left = fold(left, pair(*a, *b));
            right = fold(right, pair(*c, *d));
        }
        for word in rest {
            left = fold(left, u64::from(*word));
        }
        fold(left, right)
    }
}

/// [`Hasher`] over [`Seed`], for maps keyed by addresses and ids.
#[derive(Debug, Clone, Copy)]
pub(super) struct FastHasher(u64);

impl Hasher for FastHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = Seed(self.0).bytes(bytes);
    }
    fn write_u32(&mut self, n: u32) {
        self.0 = fold(self.0, u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = fold(self.0, n);
    }
    fn write_usize(&mut self, n: usize) {
        self.0 = fold(self.0, n as u64);
    }
}

impl BuildHasher for Seed {
    type Hasher = FastHasher;
    fn build_hasher(&self) -> FastHasher {
        FastHasher(self.0)
    }
}

/// A map with this hash.
pub(super) type FastMap<K, V> = std::collections::HashMap<K, V, Seed>;

/// Finds the id of an object by its hash, so that a table elsewhere holds each object once.
#[derive(Debug, Default)]
pub(super) struct Ids {
    /// Upper half of the hash, and id + 1; 0 is an empty slot. The length is a power of two.
    places: Vec<(u32, u32)>,
    used: usize,
}

impl Ids {
    /// The id with this hash for which `same` holds.
    #[inline]
    pub(super) fn find(&self, hash: u64, same: impl Fn(u32) -> bool) -> Option<u32> {
        if self.places.is_empty() {
            return None;
        }
        let mask = self.places.len() - 1;
        let mut place = hash as usize & mask;
        loop {
            let (upper, id) = self.places[place];
            if id == 0 {
                return None;
            }
            if upper == (hash >> 32) as u32 && same(id - 1) {
                return Some(id - 1);
            }
            place = (place + 1) & mask;
        }
    }

    /// Adds an id that [`Self::find`] did not find; `rehash` gives the hash of an existing id.
    pub(super) fn insert(&mut self, hash: u64, id: u32, rehash: impl Fn(u32) -> u64) {
        if (self.used + 1) * 2 > self.places.len() {
            let bigger = vec![(0, 0); (self.places.len() * 2).max(64)];
            for (_, old) in std::mem::replace(&mut self.places, bigger) {
                if old != 0 {
                    self.put(rehash(old - 1), old);
                }
            }
        }
        self.used += 1;
        self.put(hash, id + 1);
    }

    fn put(&mut self, hash: u64, id: u32) {
        let mask = self.places.len() - 1;
        let mut place = hash as usize & mask;
        while self.places[place].1 != 0 {
            place = (place + 1) & mask;
        }
        self.places[place] = ((hash >> 32) as u32, id);
    }

    pub(super) fn memory(&self) -> usize {
        self.places.capacity() * size_of::<(u32, u32)>()
    }
}
