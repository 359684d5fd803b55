// SPDX-License-Identifier: Apache-2.0
//! A fast hash for the writer's small integer keys.
//!
//! Two maps are asked once for every call, a million times a second; the standard hash would take a tenth
//! of the time we have. Its protection against chosen keys is not needed: both maps are bounded.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map from small integer keys.
pub(crate) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FastHasher>>;

/// Multiply and fold, word by word.
#[derive(Default)]
pub(crate) struct FastHasher(u64);

impl FastHasher {
    #[inline]
    fn mix(&mut self, word: u64) {
        // An odd constant with its bits well spread (2^64 / golden ratio).
        let product = u128::from(self.0.rotate_left(5) ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for FastHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.mix(u64::from(*byte) + 1);
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.mix(u64::from(n) + 1);
    }

    fn write_u16(&mut self, n: u16) {
        self.mix(u64::from(n) + 1);
    }

    fn write_u32(&mut self, n: u32) {
        self.mix(u64::from(n) + 1);
    }

    fn write_u64(&mut self, n: u64) {
        self.mix(n.wrapping_add(1));
    }

    fn write_usize(&mut self, n: usize) {
        self.mix((n as u64).wrapping_add(1));
    }
}
