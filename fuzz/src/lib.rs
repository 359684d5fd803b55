// SPDX-License-Identifier: Apache-2.0
//! What strangers can hand to gpuwhy, spoiled at random. `README.md` tells how to add a target.

mod campaign;
mod memory;
mod mutator;
pub mod targets;

pub use campaign::{Effort, Failure, run};
pub use memory::Counting;
pub use mutator::Mutator;

/// Something gpuwhy reads that anybody may have written.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// How it is asked for (`FUZZ_TARGET`).
    pub name: &'static str,
    /// Good examples, which are spoiled.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words of the format that chance would never produce.
    pub words: &'static [&'static [u8]],
    /// Reads any bytes, and panics if gpuwhy does what it must not do.
    pub run: fn(&[u8]),
    /// The most memory one input may take, bytes.
    pub memory: usize,
    /// How many inputs are tried where no time is given.
    pub count: u64,
}
