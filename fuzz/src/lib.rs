// SPDX-License-Identifier: Apache-2.0
//! Fuzz targets for the untrusted data that gpuwhy reads. `README.md` says how to add one.

mod campaign;
mod memory;
mod mutator;
pub mod targets;

pub use campaign::{Effort, Failure, run};
pub use memory::Counting;
pub use mutator::Mutator;

/// One kind of untrusted data that gpuwhy reads.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name in `FUZZ_TARGET`.
    pub name: &'static str,
    /// Valid examples, to be mutated.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words of the format that random changes would never produce.
    pub words: &'static [&'static [u8]],
    /// Reads any bytes, and panics if gpuwhy does something it must not do.
    pub run: fn(&[u8]),
    /// The most memory one input may take, bytes.
    pub memory: usize,
    /// How many inputs are tried without a time limit.
    pub count: u64,
}
