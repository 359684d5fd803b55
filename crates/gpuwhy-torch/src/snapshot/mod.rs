// SPDX-License-Identifier: Apache-2.0
//! Memory snapshots (`torch.cuda.memory._snapshot()`, pickled): read without executing anything, replayed to the
//! byte, explained by line.
//!
//! Bytes go in, a [`MemoryReport`] comes out: [`analyse`]. The way there: `input` (chunks, gzip) → `pickle` (data
//! opcodes) → `tables` (typed rows) → `model` (one shape for all versions) → `replay` (requested bytes) and
//! `allocator` (whole blocks) → `analysis` → `report`.

mod allocator;
mod analysis;
mod error;
mod hash;
mod input;
mod model;
mod pickle;
mod place;
mod quick;
mod replay;
mod report;
mod rows;
mod strings;
mod tables;
mod value;

pub use error::Error;
pub use gpuwhy_stacks::{Owner, owner};
pub use report::{Category, Device, MemoryReport, Oom, Pinned, Row, SegmentSize};
use std::io::Read;

/// Memory reading may take unless told otherwise; a snapshot of a gigabyte stays well below.
const DEFAULT_MEMORY_LIMIT: u64 = 8 << 30;

/// What to look at, and what the file does not tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Only this device.
    pub device: Option<u32>,
    /// The device's memory, bytes; without it nothing is said about headroom.
    pub capacity_bytes: Option<u64>,
    /// Give up rather than hold more than this many bytes while reading.
    pub memory_limit_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { device: None, capacity_bytes: None, memory_limit_bytes: DEFAULT_MEMORY_LIMIT }
    }
}

/// Reads a snapshot, plain or gzipped, from anything that gives bytes (`&[u8]`, a file) and analyses it.
///
/// A file that is cut off or damaged is analysed as far as it goes, and the report's warnings say so. `progress`
/// hears now and then, from this thread, how many bytes of `source` are done; of a gzipped one that is compressed
/// bytes, so that set against the file's size they tell how long it still takes.
///
/// # Errors
/// When the pickle holds anything but plain data, is no snapshot, or gave nothing before it broke off.
pub fn analyse(
    source: impl Read + Send,
    options: &Options,
    progress: Option<&mut dyn FnMut(u64)>,
) -> Result<MemoryReport, Error> {
    let read = input::with_input(source, progress, |input| pickle::read(input, options.memory_limit_bytes))??;
    let snapshot = model::Snapshot::new(read)?;
    Ok(analysis::report(&snapshot, options))
}
